//! An RDMA NIC as a state machine: no socket, no clock, no thread.
//!
//! [`Rnic`] is one device. A driver feeds it packets, time and the programs' work requests, and
//! takes packets from it in runs; the order in which to call it is documented on the type. What
//! carries the packets, and what makes and checks their ICRC, is somebody else's business.
//!
//! Limits are those asked for at creation and are enforced exactly. Bytes from the network cause
//! NAKs, error completions or silent drops, each counted; never a panic, never growth.

mod completion;
mod congestion;
mod core;
mod counters;
mod engine;
mod event;
mod memory;
mod qp;
mod shared;
mod transmit;
mod work;

pub use completion::{
    Attachment, Completion, CompletionOpcode, CompletionQueue, CompletionSink, MAX_CQ_DEPTH, Notifier, Notify, Overrun,
    Status,
};
pub use counters::Counters;
pub use engine::{
    ACK_HOLD_NS, Backlog, Config, CqId, EngineId, MAX_CQS, MAX_GROUPS, MAX_INLINE_BYTES, MAX_QPS, MAX_QUEUE_DEPTH,
    MAX_SGES, MAX_SRQS, ObjectError, Objects, QpInfo, QpInit, Rnic, SrqId,
};
pub use event::{AsyncEvent, EventQueue, EventSource};
pub use memory::{
    Access, LKey, MAX_REGION_BYTES, MAX_REGIONS, MAX_WINDOWS, MemoryError, Pager, PdId, Region, RegionDirectory,
    RegionTable, Sge, Through, WindowBinding, WindowKind,
};
pub use qp::{
    AttributeMask, MAX_MESSAGE_BYTES, MAX_RD_ATOMIC, ModifyError, QpAttributes, QpCapacities, QpCounters, QpKind,
    QpState, Transition, check_transition, transition,
};
pub use shared::{ReceiveSource, SharedReceiveQueue};
pub use transmit::{Budget, Filter, MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, Run, TransmitBatch, TransmitInfo};
pub use work::{
    AddressVector, Payload, PostError, PostErrorKind, RecvRequest, SendFlags, SendOperation, SendRequest, UdDestination,
};
