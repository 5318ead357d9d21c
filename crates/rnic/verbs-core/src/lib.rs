//! Types of RDMA verbs: work requests, completions, attributes of queue pairs, and limits of devices.
//!
//! All implementations of verbs share these types: the software RNIC, the RNICs of the machine, the simulated RNIC, and
//! the library with the C API. This crate accesses no registered memory and does no IO. It contains the types, the
//! table of [`transition`]s between the states of a queue pair, and checks that need no device ([`check_transition`],
//! [`SendRules`]).
//!
//! ```
//! use doorbell_verbs_core::{QpKind, QpState, transition};
//!
//! let rule = transition(QpKind::Ud, QpState::Reset, QpState::Init).expect("the first transition of every queue pair");
//! assert!(rule.required.contains(doorbell_verbs_core::AttributeMask::QKEY));
//! assert!(transition(QpKind::Ud, QpState::Reset, QpState::ReadyToSend).is_none());
//! ```
#![forbid(unsafe_code)]

mod address;
mod causes;
mod completion;
mod counters;
mod death;
mod event;
mod memory;
mod object;
mod port;
mod qp;
mod work;

pub use address::AddressVector;
pub use causes::Cause;
pub use completion::{Attachment, Completion, CompletionOpcode, Notifier, Notify, Overrun, Status};
pub use counters::{Counters, LinkCounters, QpCounters};
pub use death::{DeathReason, QP_DEATHS, QpDeath};
pub use doorbell_wire::cost::MAX_MESSAGE_BYTES;
pub use event::{AsyncEvent, EventQueue, EventSource};
pub use memory::{Access, LKey, MemoryError, PdId, Sge, WindowBinding, WindowKind};
pub use object::{CqId, Limits, ObjectError, SrqId, check_range};
pub use port::{PortError, PortOrder, PortState};
pub use qp::{
    AttributeMask, ModifyError, QpAttributes, QpCapacities, QpInfo, QpInit, QpKind, QpState, Transition,
    check_transition, transition,
};
pub use work::{
    Payload, PostError, PostErrorKind, RecvRequest, SendFlags, SendOperation, SendRequest, SendRules, UdDestination,
    check_inline, check_sges,
};
