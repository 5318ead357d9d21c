//! Sockets over RDMA. The library rejects them, since the real library implements them with private fields of its own
//! ids. The program can create no rsocket, so all other calls on rsockets fail with EBADF, in the real library or the
//! drop-in.

use std::ffi::c_int;

use crate::objects::answer::{Refused, number};

#[unsafe(no_mangle)]
extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    number("rsocket", || Err(Refused::new(libc::EPROTONOSUPPORT, "sockets over RDMA are not supported")))
}
