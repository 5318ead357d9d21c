//! `libdoorbell_ibverbs.so`: libibverbs' C ABI on the embedded software RNIC.
//!
//! ```console
//! $ doorbell run -- ib_send_bw -d doorbell0              # in one terminal
//! $ doorbell run -- ib_send_bw -d doorbell0 127.0.0.1    # in another
//! ```
//!
//! When the library is preloaded into a dynamically linked program, it takes precedence over libibverbs. The program
//! finds the devices `doorbell0` and following, one unless the user requests more. Each call that takes an object of
//! this device runs in this library. Unsupported calls fail with the error that verbs define for them. Such calls never
//! reach the real library, which does not know these objects.
//!
//! Each object of verbs is a C structure at the start of a larger Rust structure (`handle.rs`). The library allocates
//! and frees objects as `Box`. All contexts of one device share an RNIC and its address (`device.rs`).
//!
//! The library also serves the files that programs read without calling libibverbs, such as those in `/dev/infiniband`
//! and `/sys/class/infiniband` (`paths/`).
//!
//! Programs that open libibverbs themselves reach the library through drop-in libraries (`dropin.rs`), which `build.rs`
//! makes.
//!
//! Loading the library starts no thread, opens no socket and prints nothing, since every child process inherits it.
//! The RNIC starts when a program opens the device.
//!
//! # Safety
//!
//! Functions of the C API rely on their caller for conditions that they cannot check. Each pointer that is not null
//! must point to an object that this library created and has not destroyed, or to a structure of the documented type.
//! The functions check all other conditions.
#![allow(clippy::result_large_err, reason = "a step may hold a mask of signals, and a call that waits moves few steps")]

mod cm;
mod dropin;
mod objects;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod paths;
mod process;
/// On other processors, the library serves no files. The module `paths` defines variadic C functions with a fixed
/// number of arguments, and not every processor's calling convention allows this.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod paths {
    pub(crate) fn dev_name(number: usize) -> std::ffi::CString {
        std::ffi::CString::new(format!("uverbs{number}")).unwrap_or_default()
    }

    pub(crate) fn find_all() {}

    pub(crate) fn look_where_started() {}
}
