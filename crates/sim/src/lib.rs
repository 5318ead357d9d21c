//! RDMA testbeds in virtual time.
//!
//! A [`Testbed`] says what each part of a testbed needs, from the CPU's store to the switch's queue: one file,
//! `testbeds/*.toml`, each value with its unit and its source. [`testbed::all`] has those that are part of the
//! program.
//!
//! Time is in whole picoseconds ([`Ps`]). Nothing here uses floating-point arithmetic, the order of a hash table or
//! the address of anything, so a simulation gives the same result on every machine.
//!
//! ```
//! use doorbell_sim::{Ps, testbed};
//!
//! let t1 = testbed::by_name("connectx5-100g").ok_or("a testbed of the program")?;
//! // A SEND of 16 B is 98 bytes on the line.
//! assert_eq!(t1.link.rate.time_of(98), Ps(7840));
//! // The same testbed with another link: one value replaced, under the same checks.
//! let faster = t1.with("link.rate", "400 Gb/s")?;
//! assert_eq!(faster.link.rate.time_of(98), Ps(1960));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Simulation`] runs programs over verbs on nodes of such a testbed. Their code is that of any program: connections
//! of the crate `doorbell-exchange`, on the same RNIC as the software device's. Only how threads wait is virtual.
//!
//! ```
//! use doorbell_exchange::asynchronous::Async;
//! use doorbell_exchange::{Config, Connector, SendReceive};
//! use doorbell_sim::{Ps, Simulation, Topology, testbed};
//!
//! let t1 = testbed::by_name("connectx5-100g").ok_or("a testbed of the program")?;
//! let mut simulation = Simulation::new(t1, Topology::Pair, 1)?;
//! let end = |node: usize| SendReceive.endpoint(&simulation.device(node).create_pd()?, &Config::default(), None);
//! let (a, b) = (end(0)?, end(1)?);
//! let (of_a, of_b) = (SendReceive.describe(&a), SendReceive.describe(&b));
//! let mut a = Async::new(SendReceive.connect(a, &of_b)?, simulation.polling());
//! let mut b = Async::new(SendReceive.connect(b, &of_a)?, simulation.polling());
//!
//! let clock = simulation.polling();
//! simulation.spawn(0, "sender", async move {
//!     a.send(b"hello").await?;
//!     a.finish().await
//! });
//! let arrived = simulation.spawn(1, "receiver", async move {
//!     let message = b.receive().await?;
//!     let at = clock.now();
//!     assert_eq!(&*message, b"hello");
//!     drop(message);
//!     b.finish().await?;
//!     Ok::<_, doorbell_exchange::ConnectionError>(at)
//! });
//! let summary = simulation.run()?;
//! let at = arrived.take().ok_or("the thread has ended")??;
//! assert!(at > Ps::from_ns(500) && at < Ps::from_ns(5000), "{at}");
//! assert!(summary.ended > at);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod bottleneck;
mod estimate;
pub mod far;
mod kernel;
pub mod measure;
mod paced;
pub mod predict;
#[allow(unsafe_code)]
mod provider;
pub mod reproduce;
pub mod session;
mod simulation;
pub mod sweep;
pub mod testbed;
mod threads;
mod time;
mod topology;
pub mod traffic;

pub use bottleneck::{Bottleneck, Station};
pub use estimate::MemoryError;
pub use kernel::Counts;
pub use provider::PROVIDER;
pub use simulation::{NodeTimes, Returned, Simulation, SimulationError, Summary, SwitchBox, ThreadTimes};
pub use testbed::Testbed;
pub use threads::{VirtualThreads, VirtualWaiter};
pub use time::{PerByte, Ps, Rate};
pub use topology::{MAX_NODES, Topology, TopologyError};
