//! RDMA testbeds in virtual time.
//!
//! A [`Testbed`] states the costs of each part of a testbed, from the CPU's store to the switch's queue. Its
//! file in `data/testbeds/` has the unit and source of each value. [`testbed::all`] returns the built-in testbeds.
//!
//! Virtual time is in whole picoseconds ([`Ps`]). It does not depend on floating-point arithmetic, on the order of hash
//! tables or on addresses, so a simulation gives the same result on each machine.
//!
//! ```
//! use doorbell_sim::{Ps, testbed};
//!
//! let t1 = testbed::by_name("connectx5-100g").ok_or("a built-in testbed")?;
//! // A SEND of 16 B takes 98 bytes on the line.
//! assert_eq!(t1.link.rate.time_of(98), Ps(7840));
//! // Replace one value. The new value has to pass the checks for values of a file.
//! let faster = t1.with("link.rate", "400 Gb/s")?;
//! assert_eq!(faster.link.rate.time_of(98), Ps(1960));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Simulation`] runs programs over verbs on the nodes of such a testbed. These are normal programs, which use
//! connections of the crate `doorbell-exchange` on the RNIC of the software device. Only their waiting is virtual.
//!
//! ```
//! use doorbell_exchange::asynchronous::Async;
//! use doorbell_exchange::{Config, Connector, SendReceive};
//! use doorbell_sim::{Ps, Simulation, Topology, testbed};
//!
//! let t1 = testbed::by_name("connectx5-100g").ok_or("a built-in testbed")?;
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

pub mod advise;
mod bottleneck;
pub mod captures;
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
pub use kernel::{Counts, NodeTimes};
pub use provider::PROVIDER;
pub use simulation::{Returned, Simulation, SimulationError, Summary, SwitchBox, ThreadTimes};
pub use testbed::Testbed;
pub use threads::{VirtualThreads, VirtualWaiter};
pub use time::{PerByte, Ps, Rate};
pub use topology::{MAX_NODES, Topology, TopologyError};
