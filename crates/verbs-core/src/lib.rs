//! The words of RDMA verbs: what programs post and reap, what queue pairs are set to, what devices are limited to.
//!
//! Whatever offers verbs shares them: an RNIC in software, the machine's own, one in virtual time, a library with C's
//! names. There is no memory here and no IO, only values, the table of [`transition`]s between the states of a queue
//! pair, and the checks that need no device ([`check_transition`], [`SendRules`]).
//!
//! ```
//! use doorbell_verbs_core::{QpKind, QpState, transition};
//!
//! let rule = transition(QpKind::Ud, QpState::Reset, QpState::Init).expect("so every queue pair begins");
//! assert!(rule.required.contains(doorbell_verbs_core::AttributeMask::QKEY));
//! assert!(transition(QpKind::Ud, QpState::Reset, QpState::ReadyToSend).is_none());
//! ```
#![forbid(unsafe_code)]

mod completion;
mod counters;
mod event;
mod memory;
mod object;
mod qp;
mod work;

pub use completion::{Attachment, Completion, CompletionOpcode, Notifier, Notify, Overrun, Status};
pub use counters::{Counters, LinkCounters, QpCounters};
pub use doorbell_wire::cost::MAX_MESSAGE_BYTES;
pub use event::{AsyncEvent, EventQueue, EventSource};
pub use memory::{Access, LKey, MemoryError, PdId, Sge, WindowBinding, WindowKind};
pub use object::{CqId, Limits, ObjectError, SrqId, check_range};
pub use qp::{
    AttributeMask, ModifyError, QpAttributes, QpCapacities, QpInfo, QpInit, QpKind, QpState, Transition,
    check_transition, transition,
};
pub use work::{
    AddressVector, Payload, PostError, PostErrorKind, RecvRequest, SendFlags, SendOperation, SendRequest, SendRules,
    UdDestination, check_inline, check_sges,
};
