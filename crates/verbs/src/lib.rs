//! RDMA verbs, safe, over interchangeable providers.
//!
//! [`Device`] is an RNIC; `soft` opens the embedded one, which needs no hardware, no kernel
//! module and no privileges (it is a feature of this crate, and on unless it is switched off), and [`system`] those of
//! the machine. Handles own what they came from: a [`Qp`] keeps its [`Pd`] and its
//! [`Cq`]s alive, and each object is destroyed when its last handle goes.
//!
//! Everything on the data path is non-blocking. To wait, arm a [`Cq`] that was created on a
//! [`Channel`] and wait until the channel's file descriptor is readable, with `poll`, `epoll` or
//! an async runtime.
//!
//! Memory that peers or the RNIC write is never seen as `&[u8]`: a [`Region`] is read and written
//! through its accessors. Below this API lies [`raw`], which takes addresses, lengths and keys as
//! they are.
#![deny(unsafe_code)]

#[cfg(feature = "soft")]
mod ack;
mod error;
#[cfg(feature = "soft")]
#[allow(unsafe_code)]
mod exit;
mod handles;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
pub mod raw;
#[allow(unsafe_code)]
mod signal;
#[cfg(feature = "soft")]
#[allow(unsafe_code)]
pub mod soft;
#[allow(unsafe_code)]
pub mod system;

pub use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Attachment, AttributeMask, Completion, CompletionOpcode, Counters, CqId, LKey,
    Limits, LinkCounters, MAX_MESSAGE_BYTES, MemoryError, ModifyError, Notifier, Notify, ObjectError, Overrun, Payload,
    PdId, PostError, PostErrorKind, QpAttributes, QpCapacities, QpCounters, QpInfo, QpInit, QpKind, QpState,
    RecvRequest, SendFlags, SendOperation, SendRequest, Sge, SrqId, Status, UdDestination, WindowBinding, WindowKind,
    transition,
};
pub use doorbell_wire::{PathMtu, Psn, QKey, Qpn, RKey};
pub use error::Error;
pub use handles::{Channel, Cq, Device, Pd, Qp, QpOptions, Srq};
pub use memory::{MemoryKind, Region};
pub use raw::DeviceAttributes;
