//! Sockets over RDMA, which are refused. The real library builds them from ids and reads private fields of its own ids.
//! Since `rsocket` creates none here, all other calls on rsockets fail in the real library with EBADF.

use std::ffi::c_int;

use crate::objects::answer::{Refused, number};

#[unsafe(no_mangle)]
extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    number("rsocket", || Err(Refused::new(libc::EPROTONOSUPPORT, "sockets over RDMA are not offered")))
}
