//! `libdoorbell_ibverbs.so`: libibverbs' C ABI on the embedded software RNIC.
//!
//! ```console
//! $ doorbell run -- ib_send_bw -d doorbell0              # in one terminal
//! $ doorbell run -- ib_send_bw -d doorbell0 127.0.0.1    # in another
//! ```
//!
//! Preloaded into a dynamically linked program, it stands before
//! libibverbs: the program finds one device, `doorbell0`, and everything that takes an object of
//! that device comes here. What is offered works; everything else is refused with the error that
//! verbs have for it, and never reaches the real library, which knows nothing of these objects.
//!
//! Objects are C structures with Rust behind them (`handle.rs`); they come from `Box` and go back
//! to it. All contexts of a process share one RNIC and its address (`device.rs`).
//!
//! What programs look at besides libibverbs (`/dev/infiniband`, `/sys/class/infiniband`) is served too (`tree/`).
//!
//! Loading the library starts and opens nothing: no thread, no socket, no output, since every child process
//! inherits it. The RNIC starts when a program opens the device.
//!
//! # Safety
//!
//! Every function of the C API trusts its caller for what C makes unknowable: that a pointer that
//! is not null points to an object that this library made and that was not destroyed, or to a
//! structure of the documented type. What can be checked is checked.

mod ah;
mod answer;
mod cm;
mod config;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod event;
mod exit;
mod explain;
mod fork;
mod handle;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod last;
mod lasting;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod launch;
mod mr;
mod mw;
mod next;
mod pd;
mod post;
mod qp;
mod qp_attr;
mod query;
mod refused;
mod signals;
mod srq;
mod stats;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tree;
/// Elsewhere programs find no such files: whether what stands before functions of any number of arguments may take a
/// fixed one depends on the machine.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tree {
    pub(crate) fn dev_name() -> &'static std::ffi::CStr {
        c"uverbs0"
    }

    pub(crate) fn find_all() {}

    pub(crate) fn look_where_started() {}
}
mod wait;
mod wr;
