//! Options of an id: `rdma_set_option`.

use std::ffi::{c_int, c_uint, c_void};

use doorbell_ibverbs_sys as c;

use super::id;
use crate::objects::answer::{Answer, Refused, number};

/// Maximum exponent of an acknowledgement timeout. The field has five bits (IBTA Vol 1, 9.9.2.1.1).
const MAX_ACK_TIMEOUT: u8 = 31;

/// # Safety
///
/// `value` points to `length` bytes.
unsafe fn value_of<T: Copy>(value: *const c_void, length: usize) -> Answer<T> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Refused::invalid(format!("the option's value has {length} bytes: must have {}", size_of::<T>())));
    }
    // SAFETY: the caller guarantees that `value` points to `length` bytes. Each option is a number, for which any bytes
    // are valid.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_set_option(
    id: *mut c::rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    number("rdma_set_option", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        let name = name as c_uint;
        if level as c_uint != c::RDMA_OPTION_ID || name > c::RDMA_OPTION_ID_ACK_TIMEOUT {
            let why =
                format!("option {name} of level {level} is not supported: use TOS, REUSEADDR, AFONLY or ACK_TIMEOUT");
            return Err(Refused::new(libc::ENOSYS, why));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe {
            match name {
                c::RDMA_OPTION_ID_TOS => own.line.state().options.traffic_class = value_of::<u8>(value, length)?,
                c::RDMA_OPTION_ID_REUSEADDR => own.line.set_reuse(value_of::<c_int>(value, length)? != 0)?,
                c::RDMA_OPTION_ID_AFONLY => {
                    let only = value_of::<c_int>(value, length)? != 0;
                    if own.line.is_bound() {
                        return Err(Refused::invalid(
                            "the id is already bound: set RDMA_OPTION_ID_AFONLY before rdma_bind_addr",
                        ));
                    }
                    own.line.state().options.ipv6_only = only;
                }
                _ => {
                    let timeout = value_of::<u8>(value, length)?;
                    if timeout > MAX_ACK_TIMEOUT {
                        let most = format!("acknowledgement timeout {timeout}: must be at most {MAX_ACK_TIMEOUT}");
                        return Err(Refused::invalid(most));
                    }
                    own.line.state().options.ack_timeout = Some(timeout);
                }
            }
        }
        Ok(0)
    })
}
