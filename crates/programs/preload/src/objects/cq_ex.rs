//! Extended completion queues, whose completions a program reads field by field.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::Completion;
use doorbell_verbs::raw::Provider;

use crate::objects::answer::{Refused, pointer};
use crate::objects::cq::{self, Cq};

/// Completion fields that programs can read.
const FIELDS: u64 = (c::IBV_WC_STANDARD_FLAGS
    | c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut c::ibv_context,
    init: *mut c::ibv_cq_init_attr_ex,
) -> *mut c::ibv_cq_ex {
    pointer("ibv_create_cq_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let init = unsafe { init.as_ref() }.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        if init.comp_mask & !(c::IBV_CQ_INIT_ATTR_MASK_FLAGS | c::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Refused::invalid(format!(
                "comp_mask {:#x} of a completion queue has unknown bits: only IBV_CQ_INIT_ATTR_MASK_* are allowed",
                init.comp_mask
            )));
        }
        if init.wc_flags & !FIELDS != 0 {
            return Err(Refused::unsupported(format!(
                "completion fields {:#x} are not supported: {FIELDS:#x} are allowed",
                init.wc_flags & !FIELDS
            )));
        }
        let flags = if init.comp_mask & c::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { init.flags } else { 0 };
        if flags & !c::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(Refused::unsupported(format!(
                "completion queue flags {flags:#x} are not supported: only \
                 IBV_CREATE_CQ_ATTR_SINGLE_THREADED is allowed"
            )));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let cq = unsafe { cq::create(context, init.cqe as usize, init.cq_context, init.channel, init.comp_vector) }?;
        let cq = cq.cast::<c::ibv_cq_ex>();
        // SAFETY: the queue was just created, and no other thread knows it.
        let table = unsafe { &mut *cq };
        table.start_poll = Some(start_poll);
        table.next_poll = Some(next_poll);
        table.end_poll = Some(end_poll);
        // Set all read functions, also those of fields that the program did not request. The inline functions of the
        // verbs headers, such as `ibv_wc_read_opcode`, call them without a check for null.
        table.read_opcode = Some(read_opcode);
        table.read_vendor_err = Some(read_vendor_err);
        table.read_wc_flags = Some(read_wc_flags);
        table.read_byte_len = Some(read_byte_len);
        table.read_imm_data = Some(read_imm_data);
        table.read_qp_num = Some(read_qp_num);
        table.read_src_qp = Some(read_src_qp);
        table.read_slid = Some(read_slid);
        table.read_sl = Some(read_sl);
        table.read_dlid_path_bits = Some(read_dlid_path_bits);
        table.read_completion_ts = Some(read_completion_ts);
        table.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        Ok(cq)
    })
}

/// # Safety
///
/// `cq` is a completion queue that exists.
unsafe fn own<'a>(cq: *mut c::ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller guarantees that the queue exists.
    unsafe { &*cq.cast::<Cq>() }
}

/// # Safety
///
/// The calling thread is between `ibv_start_poll` and `ibv_end_poll`.
unsafe fn current<'a>(cq: *mut c::ibv_cq_ex) -> &'a Completion {
    // SAFETY: between these calls, only the polling thread accesses the field.
    unsafe { &*own(cq).current.get() }
}

/// Takes one completion from the queue. The calling thread must hold the lock `polling`.
fn advance(own: &Cq) -> c_int {
    let _uncancelled = own.device.uncancelled();
    // SAFETY: only the thread that holds `polling` accesses these fields.
    let (current, table) = unsafe { (&mut *own.current.get(), own.c.get()) };
    match own.raw.poll(std::slice::from_mut(current)) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            cq::explain_failure(&own.device, current.status);
            // SAFETY: only the thread that holds `polling` accesses these fields, which C code reads directly.
            unsafe {
                (*table).wr_id = current.wr_id;
                (*table).status = cq::wc_status(current.status);
            }
            0
        }
        Err(_) => libc::EOVERFLOW,
    }
}

unsafe extern "C" fn start_poll(cq: *mut c::ibv_cq_ex, attr: *mut c::ibv_poll_cq_attr) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (own, attr) = unsafe { (own(cq), attr.as_ref()) };
    if !own.device.is_own() || attr.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // Another thread may be polling. Wait until it calls `ibv_end_poll`.
    while own.polling.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
    let code = advance(own);
    if code != 0 {
        own.polling.store(false, Ordering::Release);
    }
    code
}

unsafe extern "C" fn next_poll(cq: *mut c::ibv_cq_ex) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    advance(unsafe { own(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut c::ibv_cq_ex) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { own(cq) }.polling.store(false, Ordering::Release);
}

/// Returns the time of the completion in nanoseconds since 1970. The device's clock has another origin.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut c::ibv_cq_ex) -> u64 {
    // SAFETY: by the C contract, the program calls this function only while it polls.
    let (own, completion) = unsafe { (own(cq), current(cq)) };
    // Read the time of day first. If the thread is interrupted between the two clocks, the result is then too early,
    // but never in the future.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age_ns = own.device.provider.now_ns().saturating_sub(completion.timestamp_ns);
    (now.as_nanos() as u64).saturating_sub(age_ns)
}

unsafe extern "C" fn read_sl(cq: *mut c::ibv_cq_ex) -> u8 {
    // SAFETY: by the C contract, the program calls this function only while it polls.
    let (own, completion) = unsafe { (own(cq), current(cq)) };
    cq::wc_sl(completion, own)
}

macro_rules! readers {
    ($($name:ident: $type:ty = |$completion:pat_param| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut c::ibv_cq_ex) -> $type {
            // SAFETY: by the C contract, the program calls this function only while it polls.
            let $completion = unsafe { current(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode: c::ibv_wc_opcode = |completion| cq::wc_opcode(completion.opcode);
    read_vendor_err: u32 = |_| 0;
    read_wc_flags: c_uint = |completion| cq::wc_flags(completion);
    read_byte_len: u32 = |completion| completion.byte_len;
    read_imm_data: c::__be32 = |completion| cq::wc_attachment(completion);
    read_qp_num: u32 = |completion| completion.qpn.get();
    read_src_qp: u32 = |completion| completion.source_qpn.get();
    read_slid: u32 = |_| 0;
    read_dlid_path_bits: u8 = |_| 0;
    read_completion_ts: u64 = |completion| completion.timestamp_ns;
}
