//! Sockets over RDMA, which are not offered. The real library makes them of ids, in which it looks for
//! private fields of its own, so none may come about: every other call on one then fails there with EBADF.

use std::ffi::c_int;

use crate::answer::{Refused, number};

#[unsafe(no_mangle)]
extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    number("rsocket", || Err(Refused::new(libc::EPROTONOSUPPORT, "sockets over RDMA are not offered")))
}
