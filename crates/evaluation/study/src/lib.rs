//! Workloads, their measurement, and the records of the results.
//!
//! ```
//! use doorbell_study::executor::block_on;
//! use doorbell_study::parameters::{Extent, Kind, Operation, Parameters};
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
//! [`workload`] holds the workloads as `async fn` over connections, written once. [`one_sided`] and
//! [`unacknowledged`] hold those over verbs alone. [`executor`] runs them on a polling thread.
//!
//! [`session`] coordinates two ends, point by point: processes joined by TCP, or both in one process. [`record`]
//! holds the results. [`far`] has workloads with more than two parties: several clients share memory.
//!
//! [`pinning`] selects the CPUs of polling threads. [`link`] states which link carried the packets between two
//! processes of one machine. [`measure`] times the parameters of the performance model, one call at a time.
#![forbid(unsafe_code)]

pub mod doctor;
pub mod environment;
pub mod executor;
pub mod experiment;
pub mod far;
pub mod layout;
pub mod link;
pub mod measure;
mod memory;
pub mod one_sided;
pub mod parameters;
mod patience;
pub mod payload;
pub mod pinning;
pub mod prediction;
pub mod record;
pub mod roles;
pub mod serving;
pub mod session;
pub mod threads;
pub mod unacknowledged;
pub mod workload;
