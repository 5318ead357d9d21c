//! The table through which the drop-in libraries `libibverbs.so.1` and `librdmacm.so.1` call this library.
//!
//! A program that opens libibverbs by `dlopen` and looks up functions in it is not reached by preloading. Such a
//! program finds the drop-ins instead, if `LD_LIBRARY_PATH` names their folder. `build.rs` makes the drop-ins of the
//! lists in `abi/`, and writes the table that this module includes. A drop-in has no state: each of its functions jumps
//! to an entry of the table. So a process that preloads the library and opens a drop-in has one device.
//!
//! Functions that this library does not export by name are here. They include the functions that only providers of
//! libibverbs call, which fail, since a provider would talk to the kernel.

mod copies;
mod plain;

use std::ffi::{c_int, c_void};

use crate::objects::answer::{self, Refused};

/// Address of a function, whose type the caller of a drop-in knows.
#[repr(transparent)]
struct Call(*const ());

// SAFETY: the addresses of functions are constant.
unsafe impl Sync for Call {}

/// Reason why functions of a drop-in fail.
#[derive(Clone, Copy)]
struct Reason {
    errno: c_int,
    text: &'static str,
}

impl Reason {
    fn refused(self) -> Refused {
        Refused::new(self.errno, self.text)
    }
}

const DRIVER: Reason = Reason {
    errno: libc::EOPNOTSUPP,
    text: "only drivers of adapters call this function, and the software RNIC has no driver in the kernel",
};
const FIRST: Reason = Reason {
    errno: libc::EOPNOTSUPP,
    text: "version IBVERBS_1.0 of the function is not supported: programs since 2007 use IBVERBS_1.1",
};
const NEWER: Reason =
    Reason { errno: libc::EOPNOTSUPP, text: "the device does not support this function of a newer rdma-core" };
/// The program can create no rsocket, so each descriptor that it passes is a wrong one.
const SOCKET: Reason = Reason { errno: libc::EBADF, text: "sockets over RDMA are not supported, so this is none" };

/// Defines a function that fails. Callers pass arguments, which the function ignores.
macro_rules! refused {
    (status $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() -> c_int {
            answer::status(stringify!($name), || Err($why.refused()))
        }
    };
    (number $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() -> c_int {
            answer::number(stringify!($name), || Err($why.refused()))
        }
    };
    (pointer $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() -> *mut c_void {
            answer::pointer(stringify!($name), || Err($why.refused()))
        }
    };
    (zero $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() -> u64 {
            answer::status(stringify!($name), || Err($why.refused()));
            0
        }
    };
    (nothing $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() {
            answer::status(stringify!($name), || Err($why.refused()));
        }
    };
    // Drivers call these functions when they are loaded, so the program did nothing that needs an explanation.
    (silent $why:ident $name:ident) => {
        pub(super) extern "C" fn $name() {}
    };
}

include!(concat!(env!("OUT_DIR"), "/calls.rs"));
