//! An RDMA NIC as a state machine: no socket, no clock, no thread.
//!
//! An example with two devices. A loop carries their packets in place of a link:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use doorbell_rnic::{Budget, Config, Filter, Rnic, TransmitBatch};
//! use doorbell_verbs_core::{
//!     AddressVector, Attachment, Completion, CqId, Payload, QpAttributes, QpCapacities, QpInit, QpKind, QpState,
//!     RecvRequest, SendFlags, SendOperation, SendRequest,
//! };
//! use doorbell_wire::{Outer, PathMtu, Psn, Qpn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! fn device(address: IpAddr) -> Result<(Rnic, CqId, Qpn), Box<dyn std::error::Error>> {
//!     let config = Config { address, active_mtu: PathMtu::Mtu1024, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
//!     let mut rnic = Rnic::new(config, None);
//!     let pd = rnic.create_pd();
//!     let (cq, _) = rnic.create_cq(16, None)?;
//!     let capacities =
//!         QpCapacities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
//!     let (send_cq, recv_cq) = (cq, cq);
//!     let init = QpInit { kind: QpKind::Uc, pd, send_cq, recv_cq, srq: None, capacities, signal_all: true };
//!     let qpn = rnic.create_qp(init)?;
//!     Ok((rnic, cq, qpn))
//! }
//! fn connect(rnic: &mut Rnic, own: Qpn, peer: (IpAddr, Qpn)) -> Result<(), Box<dyn std::error::Error>> {
//!     let none = QpAttributes::default();
//!     let (state, access) = (Some(QpState::Init), Some(Default::default()));
//!     rnic.modify_qp(own, &QpAttributes { state, access, pkey_index: Some(0), port: Some(1), ..none })?;
//!     rnic.modify_qp(own, &QpAttributes {
//!         state: Some(QpState::ReadyToReceive),
//!         address: Some(AddressVector::to(peer.0)),
//!         dest_qpn: Some(peer.1),
//!         path_mtu: Some(PathMtu::Mtu1024),
//!         receive_psn: Some(Psn::new(0)),
//!         ..none
//!     })?;
//!     let (state, send_psn) = (Some(QpState::ReadyToSend), Some(Psn::new(0)));
//!     Ok(rnic.modify_qp(own, &QpAttributes { state, send_psn, ..none })?)
//! }
//!
//! let (here, there): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let ((mut a, _, from), (mut b, cq, to)) = (device(here)?, device(there)?);
//! connect(&mut a, from, (there, to))?;
//! connect(&mut b, to, (here, from))?;
//!
//! let now_ns = 0;
//! b.post_recv(to, &[RecvRequest { wr_id: 1, sges: &[] }])?;
//! a.post_send(now_ns, from, &[SendRequest {
//!     wr_id: 2,
//!     operation: SendOperation::SendImmediate(42),
//!     flags: SendFlags::empty(),
//!     payload: Payload::Sges(&[]),
//!     destination: None,
//! }])?;
//! let mut batch = TransmitBatch::new(1 << 16, 0);
//! while a.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut batch) > 0 {
//!     let (src, traffic_class, hop_limit) = (here, 0, 64);
//!     let outer = Outer { src, dst: there, traffic_class, hop_limit, identification: None, dont_fragment: None };
//!     for run in batch.runs() {
//!         b.handle_packets(now_ns, &outer, run.segments().map(|segment| &batch.bytes()[segment]));
//!     }
//!     batch.clear();
//! }
//! a.transmitted();
//!
//! let mut completion = [Completion::default()];
//! assert_eq!(b.poll_cq(cq, &mut completion)?, 1);
//! assert_eq!((completion[0].wr_id, completion[0].attachment), (1, Attachment::Immediate(42)));
//! # Ok(())
//! # }
//! ```
//!
//! [`Rnic`] is one device. A driver gives the device packets, the time and the work requests of programs, and takes
//! runs of packets from the device. The documentation of [`Rnic`] states the order of the calls. The driver carries the
//! packets, and computes and checks their ICRC.
//!
//! The device enforces exactly the limits that were requested at the creation of each object. Bytes from the network
//! can cause NAKs, error completions or silent drops, and the device counts each of them. Such bytes cause neither a
//! panic nor memory growth.
#![deny(unsafe_code)]

mod commons;
mod completion;
#[cfg(test)]
mod completion_tests;
mod congestion;
mod deadline;
#[allow(unsafe_code)]
mod device;
mod engine;
mod faults;
mod limits;
#[allow(unsafe_code)]
mod memory;
mod packets;
mod policy;
mod qp;
mod shared;
/// Atomics, locks and the queue that [`completion`] and [`shared`] use. In model checking, the types of the model
/// checker replace them.
mod sync {
    pub(super) use crossbeam_queue::ArrayQueue;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};
}
mod transmit;
mod work;

pub use completion::{CompletionQueue, CompletionSink};
pub use deadline::earliest;
pub use device::SharedReceives;
pub use engine::{Backlog, Config, Objects, Rnic};
pub use engine::{Part, Pulled, Ready, Stray};
pub use faults::{Completed, CompletionFate, CompletionFaults};
pub use limits::LIMITS;
pub use memory::{
    Copier, GuardedCode, HEADERS_BYTES_MAX, LentMemory, Packet, Pager, Payload, Region, RegionDirectory, RegionTable,
    Through, copy_through,
};
pub use policy::{ACK_HOLD_NS, Policy};
pub use shared::{ReceiveSource, SharedReceiveQueue};
pub use transmit::{
    Budget, ENGINES_MAX, EngineId, Filter, LENT_PAYLOAD_BYTES_MIN, Loan, MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, PathEnd,
    Run, TransmitBatch, TransmitInfo,
};
