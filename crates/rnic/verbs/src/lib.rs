//! Safe RDMA verbs over interchangeable providers.
//!
#![cfg_attr(feature = "soft", doc = "```")]
#![cfg_attr(not(feature = "soft"), doc = "```ignore")]
//! use doorbell_verbs::soft::{self, SoftOptions};
//! use doorbell_verbs::{Access, MemoryKind, QpCapacities, QpKind, QpOptions, QpState};
//!
//! # fn main() -> Result<(), doorbell_verbs::Error> {
//! let device = soft::open(&SoftOptions::default())?; // `system::open` opens an RNIC of the machine
//! let pd = device.create_pd()?;
//! let cq = device.create_cq(64)?;
//! let memory = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ, MemoryKind::Plain)?;
//! memory.copy_in(0, b"what a peer may read");
//!
//! let qp = pd.create_qp(QpOptions {
//!     kind: QpKind::Rc,
//!     send_cq: &cq,
//!     recv_cq: &cq,
//!     srq: None,
//!     capacities: QpCapacities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 },
//!     signal_all: true,
//! })?;
//!
//! assert_eq!(qp.query().state, QpState::Reset);
//! # Ok(())
//! # }
//! ```
//!
//! The crate `doorbell` connects such a queue pair to a peer with one call.
//!
//! A [`Device`] is an RNIC. [`system`] opens the RNICs of the machine. `soft`, a default feature of this crate, opens
//! the embedded software RNIC, which needs no hardware, no kernel module and no privileges. A handle owns the objects
//! that it was created from: a [`Qp`] keeps its [`Pd`] and its [`Cq`]s alive. An object is destroyed when its last
//! handle is dropped.
//!
//! All operations of the data path are non-blocking. To wait for completions, arm a [`Cq`] that was created on a
//! [`Channel`]. Then wait until the file descriptor of the channel is readable, with `poll`, `epoll` or an async
//! runtime.
//!
//! Memory that peers or the RNIC write is never exposed as `&[u8]`: the accessors of a [`Region`] read and write it.
//! The safe API builds on the layer [`raw`], which takes plain addresses, lengths and keys.
#![deny(unsafe_code)]

#[cfg(feature = "soft")]
mod ack;
mod error;
#[cfg(feature = "soft")]
#[allow(unsafe_code)]
mod exit;
#[cfg(feature = "soft")]
#[allow(unsafe_code)]
pub mod faults;
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
mod system_error;
mod window;

pub use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Attachment, AttributeMask, Cause, Completion, CompletionOpcode, Counters, CqId,
    LKey, Limits, LinkCounters, MAX_MESSAGE_BYTES, MemoryError, ModifyError, Notifier, Notify, ObjectError, Overrun,
    Payload, PdId, PortError, PortOrder, PortState, PostError, PostErrorKind, QP_DEATHS, QpAttributes, QpCapacities,
    QpCounters, QpInfo, QpInit, QpKind, QpState, RecvRequest, SendFlags, SendOperation, SendRequest, Sge, SrqId,
    Status, UdDestination, WindowBinding, WindowKind, check_inline, transition,
};
pub use doorbell_wire::{PathMtu, Psn, QKey, Qpn, RKey};
pub use error::Error;
pub use handles::{Channel, Cq, Device, Pd, Qp, QpOptions, Srq};
pub use memory::{MemoryKind, Region};
pub use raw::DeviceAttributes;
pub use window::Window;
