//! Lists of work requests, as libibverbs takes them.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

use doorbell_ibverbs_sys::*;
use doorbell_verbs_core::{PostError, PostErrorKind, RecvRequest};

/// Maximum number of work requests per call of libibverbs; a longer list takes several calls.
pub(super) const LIST: usize = 32;

/// Function of libibverbs that posts receives to a queue pair or to a shared receive queue.
pub(super) type PostReceives<Q> = unsafe extern "C" fn(*mut Q, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// Returns the error of a post that libibverbs or the kernel refused.
pub(super) fn refused(error: &io::Error) -> PostErrorKind {
    PostErrorKind::Refused { errno: error.raw_os_error().unwrap_or(0) }
}

/// Returns the reason why posting failed. `result` is an error number, or -1 with the error number in `errno`.
pub(super) fn post_failure(result: c_int, full: PostErrorKind) -> PostErrorKind {
    let error = if result == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(result.abs()) };
    if error.raw_os_error() == Some(nix::libc::ENOMEM) { full } else { refused(&error) }
}

/// Returns the index of the element that a pointer names; 0 for a null pointer, since some drivers do not report the
/// failed request.
pub(super) fn index_in<T>(array: *const T, element: *const T) -> usize {
    if element.is_null() { 0 } else { (element as usize).wrapping_sub(array as usize) / size_of::<T>() }
}

/// Posts receives. Stops at the first request that is not accepted.
///
/// # Safety
///
/// `queue` must live, and `post` must be the posting function of this kind of queue. Memory must satisfy the contract
/// of [`raw::Qp::post_recv`](crate::raw::Qp::post_recv).
#[inline]
pub(super) unsafe fn post_receives<Q>(
    queue: *mut Q,
    post: PostReceives<Q>,
    list: &[RecvRequest<'_>],
    max_sges: usize,
    full: PostErrorKind,
) -> Result<(), PostError> {
    let mut wrs = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; LIST];
    let first: *mut ibv_recv_wr = wrs.as_mut_ptr().cast();
    for (number, part) in list.chunks(LIST).enumerate() {
        let mut bad = None;
        let mut count = 0;
        for request in part {
            if request.sges.len() > max_sges {
                bad = Some(PostErrorKind::TooManySges { given: request.sges.len(), allowed: max_sges });
                break;
            }
            // SAFETY: `count` is below `LIST`, and so is the index of the previous request.
            unsafe {
                let place = first.add(count);
                place.write(ibv_recv_wr {
                    wr_id: request.wr_id,
                    next: std::ptr::null_mut(),
                    sg_list: request.sges.as_ptr().cast_mut().cast(),
                    num_sge: request.sges.len() as c_int,
                });
                if count > 0 {
                    (*first.add(count - 1)).next = place;
                }
            }
            count += 1;
        }
        if count > 0 {
            let mut failed = std::ptr::null_mut();
            // SAFETY: `first` is a terminated list of `count` requests, and the queue lives.
            let result = unsafe { post(queue, first, &mut failed) };
            if result != 0 {
                let index = number * LIST + index_in(first, failed);
                return Err(PostError { index, kind: post_failure(result, full) });
            }
        }
        if let Some(kind) = bad {
            return Err(PostError { index: number * LIST + count, kind });
        }
    }
    Ok(())
}
