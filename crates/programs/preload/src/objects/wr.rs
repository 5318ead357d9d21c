//! `ibv_wr_*`: work requests that a program builds with several calls.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{
    LKey, Payload, PostErrorKind, QpKind, RKey, SendFlags, SendOperation, SendRequest, Sge, UdDestination, check_inline,
};
use smallvec::SmallVec;

use crate::objects::answer::{Answer, Refused};
use crate::objects::mw::bind_operation;
use crate::objects::post::{destination, elements_within, send_flags};
use crate::objects::qp::Qp;

/// Operations that the device supports.
const OFFERED: c::ibv_qp_create_send_ops_flags = c::IBV_QP_EX_WITH_RDMA_WRITE
    | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | c::IBV_QP_EX_WITH_SEND
    | c::IBV_QP_EX_WITH_SEND_WITH_IMM
    | c::IBV_QP_EX_WITH_RDMA_READ
    | c::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | c::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | c::IBV_QP_EX_WITH_SEND_WITH_INV
    | WINDOWS;

/// Operations on memory windows.
const WINDOWS: u32 = c::IBV_QP_EX_WITH_BIND_MW | c::IBV_QP_EX_WITH_LOCAL_INV;

/// Returns the operations that the device supports for a transport.
fn of_transport(kind: QpKind) -> u32 {
    let ud = c::IBV_QP_EX_WITH_SEND | c::IBV_QP_EX_WITH_SEND_WITH_IMM;
    match kind {
        QpKind::Ud => ud,
        QpKind::Uc => ud | c::IBV_QP_EX_WITH_RDMA_WRITE | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | WINDOWS,
        QpKind::Rc => OFFERED,
    }
}

/// Returns the function table of a queue pair for `operations`. Programs call the functions of the requested operations
/// without checking that they exist. So this function returns an error for operations that the device does not support.
pub(crate) fn table(kind: QpKind, operations: u64) -> Answer<c::ibv_qp_ex> {
    let missing = operations & !u64::from(of_transport(kind));
    if missing != 0 {
        let name = kind.name();
        return Err(Refused::unsupported(format!(
            "send operations {missing:#x} are not supported on {name} queue pairs: {:#x} are allowed",
            of_transport(kind)
        )));
    }
    Ok(c::ibv_qp_ex {
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        ..c::ibv_qp_ex::default()
    })
}

/// Bytes of a work request, as a range of the builder's elements or of its inline bytes.
enum Bytes {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

struct Request {
    wr_id: u64,
    operation: SendOperation,
    flags: SendFlags,
    bytes: Bytes,
    destination: Option<UdDestination>,
}

#[derive(Default)]
struct Building {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    refused: Option<Refused>,
}

impl Building {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.refused = None;
    }
}

/// Work requests that a program is building.
#[derive(Default)]
pub(crate) struct Builder {
    /// Lock that a building thread holds from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    busy: AtomicBool,
    building: UnsafeCell<Building>,
}

/// # Safety
///
/// `qp` is a queue pair that was created for `ibv_wr_*`.
unsafe fn parts<'a>(qp: *mut c::ibv_qp_ex) -> (&'a Qp, &'a Builder) {
    // SAFETY: the caller guarantees that the queue pair exists.
    let own = unsafe { &*qp.cast::<Qp>() };
    (own, own.builder.as_ref().expect("only queue pairs with a builder have this function table"))
}

/// # Safety
///
/// The contract of [`parts`]. The calling thread is between `ibv_wr_start` and `ibv_wr_complete`, so no other thread
/// uses the builder.
unsafe fn building<'a>(qp: *mut c::ibv_qp_ex) -> &'a mut Building {
    // SAFETY: the caller guarantees that no other thread uses the builder.
    unsafe { &mut *parts(qp).1.building.get() }
}

/// # Safety
///
/// The contract of [`building`].
unsafe fn begin(qp: *mut c::ibv_qp_ex, operation: SendOperation) {
    // SAFETY: the caller guarantees the contract of `building`. The program has set `wr_id` and `wr_flags`.
    let (own, building, wr_id, flags) = unsafe { (parts(qp).0, building(qp), (*qp).wr_id, (*qp).wr_flags) };
    if building.refused.is_some() {
        return; // after an error, no request of the list is posted
    }
    let depth = own.capacities.max_send_wr;
    if building.requests.len() >= depth {
        building.refused = Some(PostErrorKind::QueueFull { queue: "send queue", depth }.into());
        return;
    }
    let here = building.sges.len();
    building.requests.push(Request {
        wr_id,
        operation,
        flags: send_flags(flags),
        bytes: Bytes::Sges(here..here),
        destination: None,
    });
}

/// Runs `body` on the request that the program began most recently. Does nothing if the program's list already has an
/// error.
///
/// # Safety
///
/// The contract of [`building`].
unsafe fn with_last(qp: *mut c::ibv_qp_ex, body: impl FnOnce(&mut Request, &mut Vec<Sge>, &mut Vec<u8>) -> Answer<()>) {
    // SAFETY: the caller guarantees the contract of `building`.
    let Building { requests, sges, inline, refused } = unsafe { building(qp) };
    if refused.is_some() {
        return;
    }
    let outcome = match requests.last_mut() {
        Some(request) => body(request, sges, inline),
        None => {
            Err(Refused::invalid("the program has begun no work request: call a function such as ibv_wr_send first"))
        }
    };
    *refused = outcome.err();
}

unsafe extern "C" fn wr_start(qp: *mut c::ibv_qp_ex) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (_, builder) = unsafe { parts(qp) };
    // Another thread may be building requests. Wait until it has finished.
    while builder.busy.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
    // SAFETY: this thread holds the lock of the builder.
    unsafe { building(qp) }.clear();
}

unsafe extern "C" fn wr_abort(qp: *mut c::ibv_qp_ex) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { parts(qp) }.1.busy.store(false, Ordering::Release);
}

unsafe extern "C" fn wr_complete(qp: *mut c::ibv_qp_ex) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let ((own, builder), building) = unsafe { (parts(qp), building(qp)) };
    let _uncancelled = own.device.uncancelled();
    let posted = building.refused.take().map_or_else(|| own.device.expect_own(), Err).and_then(|()| {
        let list: SmallVec<[SendRequest<'_>; 16]> = building
            .requests
            .iter()
            .map(|request| SendRequest {
                wr_id: request.wr_id,
                operation: request.operation,
                flags: request.flags,
                payload: match &request.bytes {
                    Bytes::Sges(range) => Payload::Sges(&building.sges[range.clone()]),
                    Bytes::Inline(range) => Payload::Inline(&building.inline[range.clone()]),
                },
                destination: request.destination,
            })
            .collect();
        // SAFETY: by the C contract, the memory stays registered until the program polls the completion.
        let posted = unsafe { own.raw.post_all_sends(&list) };
        posted.map_err(|error| Refused::new(Refused::from(error.kind).errno, error.to_string()))
    });
    builder.busy.store(false, Ordering::Release);
    match posted {
        Ok(()) => 0,
        Err(why) => {
            why.tell("ibv_wr_complete");
            why.errno
        }
    }
}

unsafe extern "C" fn wr_send(qp: *mut c::ibv_qp_ex) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::Send) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut c::ibv_qp_ex, immediate: c::__be32) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::SendImmediate(u32::from_be(immediate))) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut c::ibv_qp_ex, rkey: u32) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::SendInvalidate(RKey::new(rkey))) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut c::ibv_qp_ex, rkey: u32) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::LocalInvalidate(RKey::new(rkey))) }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut c::ibv_qp_ex,
    mw: *mut c::ibv_mw,
    rkey: u32,
    info: *const c::ibv_mw_bind_info,
) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        let info = info.as_ref().ok_or_else(|| Refused::invalid("the binding is null"));
        match info.and_then(|info| bind_operation(mw, rkey, info)) {
            Ok(operation) => begin(qp, operation),
            Err(why) => {
                building(qp).refused.get_or_insert(why);
            }
        }
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut c::ibv_qp_ex, rkey: u32, remote_address: u64) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::Write { remote_address, rkey: RKey::new(rkey) }) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut c::ibv_qp_ex, rkey: u32, remote_address: u64, immediate: c::__be32) {
    let immediate = u32::from_be(immediate);
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::WriteImmediate { remote_address, rkey: RKey::new(rkey), immediate }) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut c::ibv_qp_ex, rkey: u32, remote_address: u64) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::Read { remote_address, rkey: RKey::new(rkey) }) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut c::ibv_qp_ex, rkey: u32, remote_address: u64, compare: u64, swap: u64) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::CompareSwap { remote_address, rkey: RKey::new(rkey), compare, swap }) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut c::ibv_qp_ex, rkey: u32, remote_address: u64, add: u64) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { begin(qp, SendOperation::FetchAdd { remote_address, rkey: RKey::new(rkey), add }) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut c::ibv_qp_ex, ah: *mut c::ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        with_last(qp, |request, _, _| {
            request.destination = Some(destination(ah, qpn, qkey)?);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut c::ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        with_last(qp, |request, sges, _| {
            let start = sges.len();
            sges.push(Sge { address, length, lkey: LKey(lkey) });
            request.bytes = Bytes::Sges(start..sges.len());
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut c::ibv_qp_ex, count: usize, list: *const c::ibv_sge) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        let allowed = parts(qp).0.capacities.max_send_sge;
        with_last(qp, |request, sges, _| {
            let start = sges.len();
            sges.extend_from_slice(elements_within(list, count, allowed)?);
            request.bytes = Bytes::Sges(start..sges.len());
            Ok(())
        });
    }
}

/// # Safety
///
/// `address` is null, or points to `length` bytes.
unsafe fn inline_bytes<'a>(address: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 || address.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees that `address` points to `length` bytes.
    unsafe { slice::from_raw_parts(address.cast(), length) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut c::ibv_qp_ex, address: *mut c_void, length: usize) {
    let list = c::ibv_data_buf { addr: address, length };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const list) }
}

/// Copies inline data after checking that all pieces fit. IBTA and drivers limit only the number of bytes in such a
/// list. This function also rejects a list with more pieces than the device's maximum number of scatter-gather
/// elements.
unsafe extern "C" fn wr_set_inline_data_list(qp: *mut c::ibv_qp_ex, count: usize, list: *const c::ibv_data_buf) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        let own = parts(qp).0;
        let (max_pieces, max_inline) = (own.device.attributes.limits.max_sges, own.capacities.max_inline);
        with_last(qp, |request, _, inline| {
            if count > max_pieces {
                return Err(PostErrorKind::TooManySges { given: count, allowed: max_pieces }.into());
            }
            let pieces = if list.is_null() { &[] } else { slice::from_raw_parts(list, count) };
            check_inline(request.operation, pieces.iter().map(|piece| piece.length), max_inline)?;
            let start = inline.len();
            for piece in pieces {
                inline.extend_from_slice(inline_bytes(piece.addr, piece.length));
            }
            request.bytes = Bytes::Inline(start..inline.len());
            Ok(())
        });
    }
}
