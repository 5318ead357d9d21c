//! Workloads, their measurement, and the records of the results.
//!
//! ```
//! use doorbell_study::executor::block_on;
//! use doorbell_record::{Extent, Kind, Operation, Parameters};
//! use doorbell_study::session::{Asking, Terms, answer, local_pair};
//! use doorbell_study::threads::OsThreads;
//! use doorbell_verbs::soft::{self, SoftOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Both ends run in this process, each on its own software RNIC; `Client` and `serve` do the same over TCP.
//! let memory_bytes = 64 << 20;
//! let parameters = Parameters {
//!     memory_bytes,
//!     extent: Extent::Messages(1000),
//!     ..Parameters::plain(Kind::Bandwidth, Operation::Send, 64)
//! };
//! let (server, client) = local_pair();
//! let result = std::thread::scope(|scope| {
//!     let device = soft::open(&SoftOptions::default())?;
//!     scope.spawn(move || block_on(answer(&device, client, &OsThreads::default(), &Terms::open(memory_bytes))));
//!     let device = soft::open(&SoftOptions::default())?;
//!     block_on(async {
//!         let mut asking = Asking::new(&device, server, OsThreads::default(), parameters).await?;
//!         let result = asking.measure(64, &|_| {}).await?;
//!         asking.finish().await?;
//!         Ok::<_, Box<dyn std::error::Error>>(result)
//!     })
//! })?;
//! assert_eq!(result.messages, 1000);
//! println!("{:.0} messages/s, {} data packets", result.messages_per_s, result.counted.client.data_packets);
//! # Ok(())
//! # }
//! ```
//!
//! [`workload`] contains workloads over connections of any protocol, as `async fn`. [`unacknowledged`] contains
//! workloads that use verbs directly. [`executor`] runs workloads on a polling thread.
//!
//! [`session`] lets two ends measure one point after the other. The ends are two processes joined by TCP, or
//! both ends are in one process. `doorbell_record` contains the results. [`far`] contains workloads in which several
//! clients share memory.
//!
//! [`path`] examines the path between two machines by packets.
//! [`measure`] times single calls to determine parameters of the performance model.
#![forbid(unsafe_code)]

mod environment;
pub mod executor;
pub mod experiment;
mod failure;
pub mod far;
mod layout;
pub mod measure;
mod one_sided;
pub mod path;
pub mod session;
pub mod threads;
pub mod unacknowledged;
mod verification;
pub mod workload;
mod yield_policy;

pub use failure::{Failure, Usage};
pub use verification::complaints;
