//! Explanations of `--explain` about started programs that will not find the device. There are two reasons: the dynamic
//! linker cannot preload the library into the program, or `LD_PRELOAD` in the program's environment does not name the
//! library.
//!
//! This module runs between fork and exec. Threads that do not exist in the child may hold locks, so the module takes
//! no lock.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process::explain::{explain, is_wanted};

/// Arguments of a C function, as its caller passed them. All of them are integers and pointers. The first arguments are
/// in registers.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    frame: *const usize,
}

impl Arguments {
    /// # Safety
    ///
    /// `frame` is the frame pointer of a function that `exit.rs` defines.
    pub(crate) unsafe fn new(frame: *const usize) -> Self {
        Self { frame }
    }

    /// # Safety
    ///
    /// The function of this frame was called with more than `number` arguments.
    unsafe fn nth(self, number: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        let place = match number {
            // `exit.rs` pushed the registers below the frame pointer. The caller's frame pointer and the return address
            // lie above it.
            0..6 => self.frame.wrapping_sub(1 + number),
            _ => self.frame.wrapping_add(2 + number - 6),
        };
        #[cfg(target_arch = "aarch64")]
        let place = match number {
            // The frame begins with the frame pointer, the return address and the registers: ten words in total.
            0..8 => self.frame.wrapping_add(2 + number),
            _ => self.frame.wrapping_add(10 + number - 8),
        };
        // SAFETY: the caller guarantees that the argument exists, and `exit.rs` creates this frame layout.
        unsafe { place.read() }
    }

    /// # Safety
    ///
    /// The contract of `nth`. The argument is null, or a C string that outlives the call.
    pub(crate) unsafe fn text<'a>(self, number: usize) -> Option<&'a OsStr> {
        // SAFETY: the caller guarantees that the argument exists.
        let text = unsafe { self.nth(number) } as *const c_char;
        // SAFETY: the pointer is not null, so it points to a C string.
        (!text.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
    }
}

/// Positions of the arguments of a C function that name the program to start and the program's environment.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) environment: Environment,
}

#[derive(Clone, Copy)]
pub(crate) enum Program {
    /// The argument with this index is the path.
    Path(usize),
    /// The argument with this index is a name. If the name has no slash, the C library searches for it in `PATH`.
    Name(usize),
    /// The argument with this index is a descriptor.
    Descriptor(usize),
    /// The argument with this index is a path, relative to the descriptor in the preceding argument.
    Below(usize),
    /// The program is the shell.
    Shell,
}

#[derive(Clone, Copy)]
pub(crate) enum Environment {
    /// The program gets the environment of this process.
    Own,
    /// The argument with this index is the environment.
    Given(usize),
    /// The environment follows the first null pointer at or after the argument with this index.
    BehindNull(usize),
}

/// Explains the reason if the started program will not find the device.
///
/// # Safety
///
/// `arguments` are the arguments of the function that `launch` describes, as its manual page requires.
pub(crate) unsafe fn watch(launch: Launch, arguments: Arguments) {
    if !is_wanted() {
        return;
    }
    // Preserve the `errno` of the program.
    // SAFETY: each thread has its own `errno`.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the caller guarantees that the arguments are valid.
    let environment = unsafe { environment(launch.environment, arguments) };
    // SAFETY: the caller guarantees that the arguments are valid.
    let program = unsafe { program(launch.program, arguments) };
    program.call(|path| judge(path, environment));
    // SAFETY: each thread has its own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

fn judge(path: &Path, environment: Variables) {
    if let Some(barrier) = doorbell_reach::barrier(path) {
        explain(&format_args!("{} cannot be reached", path.display()), &barrier);
    } else if path.is_file() && !environment.preloads() {
        let why = "LD_PRELOAD in its environment does not name the library";
        explain(&format_args!("{} will not find the device", path.display()), &why);
    }
}

/// The program to start, as the arguments of the call name it.
enum Named<'a> {
    Nothing,
    Path(&'a Path),
    Name(&'a OsStr),
    Descriptor(c_int),
}

impl Named<'_> {
    fn call(self, found: impl FnOnce(&Path)) {
        match self {
            Self::Nothing => {}
            Self::Path(path) => found(path),
            Self::Name(name) => {
                // The C library searches the `PATH` of this process, not the `PATH` of the started program.
                let own = Variables::own();
                let path = own.get("PATH").unwrap_or(OsStr::new("/bin:/usr/bin"));
                doorbell_reach::with_program(name, path, found);
            }
            Self::Descriptor(fd) => {
                let mut text = [0; 32];
                let mut rest = &mut text[..];
                let written = std::io::Write::write_fmt(&mut rest, format_args!("/proc/self/fd/{fd}"));
                let left = rest.len();
                if written.is_ok() {
                    found(Path::new(OsStr::from_bytes(&text[..text.len() - left])));
                }
            }
        }
    }
}

/// # Safety
///
/// The contract of [`watch`].
unsafe fn program<'a>(program: Program, arguments: Arguments) -> Named<'a> {
    // SAFETY: the caller guarantees that the arguments are valid.
    unsafe {
        match program {
            Program::Path(number) => arguments.text(number).map_or(Named::Nothing, |path| Named::Path(path.as_ref())),
            Program::Name(number) => arguments.text(number).map_or(Named::Nothing, Named::Name),
            Program::Descriptor(number) => Named::Descriptor(arguments.nth(number) as c_int),
            Program::Below(number) => {
                let folder = arguments.nth(number - 1) as c_int;
                match arguments.text(number).map(Path::new) {
                    Some(path) if path.is_absolute() || folder == libc::AT_FDCWD => Named::Path(path),
                    // An empty path names the descriptor itself. Other relative paths, which begin at the folder of the
                    // descriptor, are not examined.
                    Some(path) if path.as_os_str().is_empty() => Named::Descriptor(folder),
                    _ => Named::Nothing,
                }
            }
            Program::Shell => Named::Path(Path::new("/bin/sh")),
        }
    }
}

/// Environment variables as a C array of `NAME=VALUE` strings, with a null pointer after the last string. A null array
/// is empty.
#[derive(Clone, Copy)]
struct Variables(*const *const c_char);

impl Variables {
    fn own() -> Self {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        // SAFETY: the C library defines `environ`. It changes during the read only if another thread of the program
        // changes the environment. Such a program already violates the contract of `setenv`.
        Self(unsafe { environ })
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        let mut place = self.0;
        if place.is_null() {
            return None;
        }
        loop {
            // SAFETY: the loop does not read past the null pointer at the end.
            let variable = unsafe { *place };
            if variable.is_null() {
                return None;
            }
            // SAFETY: the pointer is not null, so it points to a C string.
            let variable = unsafe { CStr::from_ptr(variable) }.to_bytes();
            if let Some(value) = variable.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(OsStr::from_bytes(value));
            }
            place = place.wrapping_add(1);
        }
    }

    /// Returns whether a program with these variables loads the library.
    fn preloads(&self) -> bool {
        let Some(own) = own_library() else { return true };
        let is_own = |other: &[u8]| other.rsplit(|&byte| byte == b'/').next() == Some(own);
        self.get("LD_PRELOAD").is_some_and(|list| list.as_bytes().split(|byte| b": ".contains(byte)).any(is_own))
    }
}

/// # Safety
///
/// The contract of [`watch`].
unsafe fn environment(environment: Environment, arguments: Arguments) -> Variables {
    // SAFETY: the caller guarantees that the arguments are valid.
    unsafe {
        match environment {
            Environment::Own => Variables::own(),
            Environment::Given(number) => Variables(arguments.nth(number) as *const _),
            Environment::BehindNull(first) => {
                let mut number = first;
                while arguments.nth(number) != 0 {
                    number += 1;
                }
                Variables(arguments.nth(number + 1) as *const _)
            }
        }
    }
}

/// The path of this library. The library reads its own path when it is loaded, since another thread may hold the
/// loader's lock later.
static OWN_LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = {
    extern "C" fn at_loading() {
        // SAFETY: zeros are a valid value of each field.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `dladdr` only fills in the structure. The name stays valid for as long as the library is loaded.
        if unsafe { libc::dladdr(at_loading as *const _, &raw mut found) } != 0 {
            OWN_LIBRARY.store(found.dli_fname.cast_mut(), Ordering::Relaxed);
        }
    }
    at_loading
};

fn own_library() -> Option<&'static [u8]> {
    let path = OWN_LIBRARY.load(Ordering::Relaxed);
    // SAFETY: the pointer is not null, so it points to a C string that stays valid.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })?.to_bytes();
    path.rsplit(|&byte| byte == b'/').next()
}
