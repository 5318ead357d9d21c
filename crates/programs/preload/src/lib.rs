//! `libdoorbell_ibverbs.so`: libibverbs' C ABI on the embedded software RNIC.
//!
//! ```console
//! $ doorbell run -- ib_send_bw -d doorbell0              # in one terminal
//! $ doorbell run -- ib_send_bw -d doorbell0 127.0.0.1    # in another
//! ```
//!
//! Preloaded into a dynamically linked program, the library takes precedence over libibverbs. The program finds one
//! device, `doorbell0`, and each call that takes an object of that device runs in this library. Unsupported calls
//! fail with the error that verbs define for them. They never reach the real library, which does not know these
//! objects.
//!
//! Objects are C structures that Rust structures extend (`handle.rs`). They are allocated and freed as `Box`. All
//! contexts of a process share one RNIC and its address (`device.rs`).
//!
//! The library also serves the files that programs read besides calling libibverbs (`/dev/infiniband`,
//! `/sys/class/infiniband`; `paths/`).
//!
//! Loading the library starts no thread, opens no socket and prints nothing, since every child process inherits it.
//! The RNIC starts when a program opens the device.
//!
//! # Safety
//!
//! Functions of the C API trust their caller in what C cannot check. Each pointer that is not null points to an
//! object that this library created and has not destroyed, or to a structure of the documented type. All other
//! conditions are checked.

mod cm;
mod objects;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod paths;
mod process;
/// On other machines programs find no such files. Whether a function with fixed arguments may replace a variadic one
/// depends on the machine.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod paths {
    pub(crate) fn dev_name() -> &'static std::ffi::CStr {
        c"uverbs0"
    }

    pub(crate) fn find_all() {}

    pub(crate) fn look_where_started() {}
}
