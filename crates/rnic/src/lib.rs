//! An RDMA NIC as a state machine: no socket, no clock, no thread.
//!
//! [`Rnic`] is one device. A driver feeds it packets, time and the programs' work requests, and
//! takes packets from it in runs; the order in which to call it is documented on the type. What
//! carries the packets, and what makes and checks their ICRC, is somebody else's business.
//!
//! Limits are those asked for at creation and are enforced exactly. Bytes from the network cause
//! NAKs, error completions or silent drops, each counted; never a panic, never growth.

mod commons;
mod completion;
mod congestion;
mod engine;
mod memory;
mod policy;
mod qp;
mod shared;
mod transmit;
mod work;

pub use completion::{CompletionQueue, CompletionSink};
pub use engine::{Backlog, Config, EngineId, LIMITS, Objects, Rnic};
pub use engine::{Part, Pulled, Ready};
pub use memory::{Pager, Region, RegionDirectory, RegionTable, Through};
pub use policy::{ACK_HOLD_NS, Policy};
pub use shared::{ReceiveSource, SharedReceiveQueue};
pub use transmit::{Budget, Filter, MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, Run, TransmitBatch, TransmitInfo};
