//! Posting of work requests. The library converts the linked lists of C to slices.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::{align_of, offset_of, size_of};
use std::slice;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{
    LKey, Payload, PostError, PostErrorKind, QKey, QpKind, Qpn, RKey, RecvRequest, SendFlags, SendOperation,
    SendRequest, Sge, UdDestination, check_inline,
};
use smallvec::SmallVec;

use crate::objects::ah::Ah;
use crate::objects::answer::{Answer, Refused, set_errno};
use crate::objects::device::Device;
use crate::objects::handle::object;
use crate::objects::mw;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;

/// Maximum number of work requests that the library passes to the RNIC in one call.
const GROUP: usize = 16;

// The RNIC reads scatter-gather elements from the program's memory without conversion, so the layouts must be the same.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<c::ibv_sge>() && align_of::<Sge>() == align_of::<c::ibv_sge>());
    assert!(offset_of!(Sge, address) == offset_of!(c::ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(c::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(c::ibv_sge, lkey) && size_of::<LKey>() == size_of::<u32>());
};

/// # Safety
///
/// `list` points to `count` elements, which no thread changes during the call.
pub(crate) unsafe fn elements<'a>(list: *const c::ibv_sge, count: usize) -> &'a [Sge] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees that the elements exist. Both types of elements have the same layout.
    unsafe { slice::from_raw_parts(list.cast(), count) }
}

/// A work request that is part of a linked list.
trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for c::ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for c::ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts a linked list in groups. If a request is rejected, stores a pointer to the first rejected request in `bad`.
///
/// # Safety
///
/// `list` is a list of work requests, and `bad` points to memory for a pointer to a request.
unsafe fn in_groups<W: Linked, R>(
    call: &str,
    list: *mut W,
    bad: *mut *mut W,
    convert: impl Fn(&W) -> Answer<R>,
    mut post: impl FnMut(&[R]) -> Result<(), PostError>,
) -> c_int {
    let mut next = list;
    while !next.is_null() {
        let first = next;
        let mut group = SmallVec::<[R; GROUP]>::new();
        let mut refused = None;
        while group.len() < GROUP && !next.is_null() {
            // SAFETY: `next` is a request of the list.
            let request = unsafe { &*next };
            match convert(request) {
                Ok(converted) => group.push(converted),
                Err(why) => {
                    refused = Some(why);
                    break;
                }
            }
            next = request.next();
        }
        let stopped = match post(&group) {
            Ok(()) => refused.map(|why| (group.len(), why)),
            Err(error) => Some((error.index, error.kind.into())),
        };
        if let Some((index, why)) = stopped {
            let mut at = first;
            for _ in 0..index {
                // SAFETY: `at` is one of the requests of the list that the loop above has read.
                at = unsafe { &*at }.next();
            }
            why.tell(call);
            set_errno(why.errno);
            if !bad.is_null() {
                // SAFETY: the caller provides memory for the pointer.
                unsafe { bad.write(at) };
            }
            return why.errno;
        }
    }
    0
}

fn gone() -> Refused {
    Refused::new(
        libc::EIO,
        "a parent process opened the device before it forked: open the device again in this process",
    )
}

/// Converts the flags of a send work request to the RNIC's form.
pub(crate) fn send_flags(flags: u32) -> SendFlags {
    let mut own = SendFlags::empty();
    own.set(SendFlags::SIGNALED, flags & c::IBV_SEND_SIGNALED != 0);
    own.set(SendFlags::SOLICITED, flags & c::IBV_SEND_SOLICITED != 0);
    own.set(SendFlags::FENCE, flags & c::IBV_SEND_FENCE != 0);
    own
}

/// # Safety
///
/// The C contract of `ibv_post_send`.
unsafe fn operation(wr: &c::ibv_send_wr) -> Answer<SendOperation> {
    // SAFETY: the opcode selects the valid member of each union. All members are plain numbers and pointers.
    let (immediate, invalidated, rdma, atomic, bind) = unsafe {
        let beside = &wr.__bindgen_anon_1;
        let bind = &wr.__bindgen_anon_2.bind_mw;
        (u32::from_be(beside.imm_data), beside.invalidate_rkey, wr.wr.rdma, wr.wr.atomic, bind)
    };
    let (remote_address, rkey) = (rdma.remote_addr, RKey::new(rdma.rkey));
    Ok(match wr.opcode {
        c::IBV_WR_SEND => SendOperation::Send,
        c::IBV_WR_SEND_WITH_IMM => SendOperation::SendImmediate(immediate),
        c::IBV_WR_SEND_WITH_INV => SendOperation::SendInvalidate(RKey::new(invalidated)),
        c::IBV_WR_RDMA_WRITE => SendOperation::Write { remote_address, rkey },
        c::IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::WriteImmediate { remote_address, rkey, immediate },
        c::IBV_WR_RDMA_READ => SendOperation::Read { remote_address, rkey },
        c::IBV_WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareSwap {
            remote_address: atomic.remote_addr,
            rkey: RKey::new(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        c::IBV_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd {
            remote_address: atomic.remote_addr,
            rkey: RKey::new(atomic.rkey),
            add: atomic.compare_add,
        },
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        c::IBV_WR_BIND_MW => unsafe { mw::bind_operation(bind.mw, bind.rkey, &bind.bind_info) }?,
        c::IBV_WR_LOCAL_INV => SendOperation::LocalInvalidate(RKey::new(invalidated)),
        opcode => {
            return Err(Refused::invalid(format!(
                "send opcode {opcode} is not supported: use SEND, WRITE, READ, an atomic or a memory window operation"
            )));
        }
    })
}

/// # Safety
///
/// `ah` is null or an existing address handle.
pub(crate) unsafe fn destination(ah: *mut c::ibv_ah, qpn: u32, qkey: u32) -> Answer<UdDestination> {
    // SAFETY: the caller guarantees that the address handle is null or exists.
    let address = unsafe { object::<Ah>(ah) }?.address;
    Ok(UdDestination { address, qpn: Qpn::new(qpn), qkey: QKey::new(qkey) })
}

fn count(number: c_int) -> Answer<usize> {
    usize::try_from(number)
        .map_err(|_| Refused::invalid(format!("{number} scatter-gather elements: must not be negative")))
}

/// Returns the elements of a work request. Returns an error without reading any element if their number exceeds
/// `allowed`, which is the limit of the queue.
///
/// # Safety
///
/// If `given` is at most `allowed`, `list` points to `given` elements, which no thread changes during the call.
pub(crate) unsafe fn elements_within<'a>(list: *const c::ibv_sge, given: usize, allowed: usize) -> Answer<&'a [Sge]> {
    if given > allowed {
        return Err(PostErrorKind::TooManySges { given, allowed }.into());
    }
    // SAFETY: the caller guarantees that the elements exist.
    Ok(unsafe { elements(list, given) })
}

/// Returns the bytes of a send work request. Like drivers, the function checks the limits before it reads any byte,
/// since a rejected request may contain any address. If there are several inline pieces, the function joins them in
/// `gathered`.
///
/// # Safety
///
/// The C contract of `ibv_post_send`. `gathered` outlives the request.
unsafe fn payload<'a>(
    own: &Qp,
    operation: SendOperation,
    wr: &c::ibv_send_wr,
    gathered: &RefCell<Vec<Box<[u8]>>>,
) -> Answer<Payload<'a>> {
    if operation.is_local() {
        return Ok(Payload::Sges(&[])); // the operation transfers no bytes
    }
    let limits = &own.capacities;
    if wr.send_flags & c::IBV_SEND_INLINE == 0 {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        return Ok(Payload::Sges(unsafe { elements_within(wr.sg_list, count(wr.num_sge)?, limits.max_send_sge) }?));
    }
    // Accept at least one piece. A queue pair that sends only inline data may have been created with `max_send_sge` 0.
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let sges = unsafe { elements_within(wr.sg_list, count(wr.num_sge)?, limits.max_send_sge.max(1)) }?;
    check_inline(operation, sges.iter().map(|sge| sge.length as usize), limits.max_inline)?;
    Ok(Payload::Inline(match sges {
        [] => &[],
        // SAFETY: by the C contract, inline pieces lie in the program's memory.
        [sge] => unsafe { piece(sge) },
        sges => {
            // SAFETY: by the C contract, inline pieces lie in the program's memory.
            let bytes: Box<[u8]> = sges.iter().flat_map(|sge| unsafe { piece(sge) }).copied().collect();
            // SAFETY: the box stays in `gathered` until the request is posted. If the box moves, the bytes stay in
            // place.
            let inline = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            gathered.borrow_mut().push(bytes);
            inline
        }
    }))
}

/// Converts a send work request to the RNIC's form.
///
/// # Safety
///
/// The contract of [`payload`].
unsafe fn send_request<'a>(
    own: &Qp,
    wr: &c::ibv_send_wr,
    gathered: &RefCell<Vec<Box<[u8]>>>,
) -> Answer<SendRequest<'a>> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let operation = unsafe { operation(wr) }?;
    let destination = match own.kind {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        QpKind::Ud => Some(unsafe { destination(wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) }?),
        _ => None,
    };
    // SAFETY: the caller guarantees the contract of `payload`.
    let payload = unsafe { payload(own, operation, wr, gathered) }?;
    Ok(SendRequest { wr_id: wr.wr_id, operation, flags: send_flags(wr.send_flags), payload, destination })
}

/// # Safety
///
/// The element refers to existing memory of the program.
unsafe fn piece<'a>(sge: &Sge) -> &'a [u8] {
    match sge.length {
        0 => &[],
        // SAFETY: the caller guarantees that the memory exists.
        length => unsafe { slice::from_raw_parts(sge.address as *const u8, length as usize) },
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut c::ibv_qp,
    list: *mut c::ibv_send_wr,
    bad: *mut *mut c::ibv_send_wr,
) -> c_int {
    // SAFETY: by the C contract, the queue pair exists.
    let own = unsafe { &*qp.cast::<Qp>() };
    let _uncancelled = own.device.uncancelled();
    let gathered = RefCell::new(Vec::new());
    let convert = |wr: &c::ibv_send_wr| {
        if !own.device.is_own() {
            return Err(gone());
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments. The RNIC has accepted all
        // requests before `gathered` is dropped.
        unsafe { send_request(own, wr, &gathered) }
    };
    // SAFETY: by the C contract, the memory stays registered until the program polls the completion.
    unsafe { in_groups("ibv_post_send", list, bad, convert, |group| own.raw.post_send(group)) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut c::ibv_qp,
    list: *mut c::ibv_recv_wr,
    bad: *mut *mut c::ibv_recv_wr,
) -> c_int {
    // SAFETY: by the C contract, the queue pair exists.
    let own = unsafe { &*qp.cast::<Qp>() };
    let _uncancelled = own.device.uncancelled();
    let convert = |wr: &c::ibv_recv_wr| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { recv_request(&own.device, wr, own.max_recv_sge) }
    };
    // SAFETY: by the C contract, the memory stays registered until the program polls the completion.
    unsafe { in_groups("ibv_post_recv", list, bad, convert, |group| own.raw.post_recv(group)) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut c::ibv_srq,
    list: *mut c::ibv_recv_wr,
    bad: *mut *mut c::ibv_recv_wr,
) -> c_int {
    // SAFETY: by the C contract, the shared receive queue exists.
    let own = unsafe { &*srq.cast::<Srq>() };
    let _uncancelled = own.device.uncancelled();
    let convert = |wr: &c::ibv_recv_wr| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { recv_request(&own.device, wr, own.max_sge()) }
    };
    // SAFETY: by the C contract, the memory stays registered until the program polls the completion.
    unsafe { in_groups("ibv_post_srq_recv", list, bad, convert, |group| own.raw.post_recv(group)) }
}

/// Converts a receive work request to the RNIC's form.
///
/// # Safety
///
/// The C contract of `ibv_post_recv`.
unsafe fn recv_request<'a>(device: &Device, wr: &c::ibv_recv_wr, max_sge: usize) -> Answer<RecvRequest<'a>> {
    if !device.is_own() {
        return Err(gone());
    }
    // SAFETY: the caller guarantees the C contract of `ibv_post_recv`.
    Ok(RecvRequest { wr_id: wr.wr_id, sges: unsafe { elements_within(wr.sg_list, count(wr.num_sge)?, max_sge) }? })
}

#[cfg(test)]
mod tests;
