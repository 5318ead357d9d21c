//! Explanations of `--explain` about started programs that will not find the device. Either the library cannot be
//! preloaded into the program, or the environment that it is given does not name the library.
//!
//! All of this code runs between fork and exec, when threads that no longer exist may hold locks. So it takes none.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process::explain::{explain, is_wanted};

/// Arguments of a C function, as its caller passed them: numbers and pointers. The first ones are in registers.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    frame: *const usize,
}

impl Arguments {
    /// # Safety
    ///
    /// `frame` is the frame pointer of `exit.rs`'s functions.
    pub(crate) unsafe fn new(frame: *const usize) -> Self {
        Self { frame }
    }

    /// # Safety
    ///
    /// The function was called with more than `number` arguments.
    unsafe fn nth(self, number: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        let place = match number {
            // The registers were pushed below the frame pointer. The caller's frame pointer and the return address
            // lie above it.
            0..6 => self.frame.wrapping_sub(1 + number),
            _ => self.frame.wrapping_add(2 + number - 6),
        };
        #[cfg(target_arch = "aarch64")]
        let place = match number {
            // Frame pointer and return address come first, then the registers; ten words in all.
            0..8 => self.frame.wrapping_add(2 + number),
            _ => self.frame.wrapping_add(10 + number - 8),
        };
        // SAFETY: the caller's promise, and the layout that `exit.rs` makes.
        unsafe { place.read() }
    }

    /// # Safety
    ///
    /// The contract of `nth`. The argument is null, or a C string that outlives the call.
    unsafe fn text<'a>(self, number: usize) -> Option<&'a OsStr> {
        // SAFETY: the caller's promise.
        let text = unsafe { self.nth(number) } as *const c_char;
        // SAFETY: not null, so a C string.
        (!text.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
    }
}

/// A C function that starts a program: the arguments that name the program and its environment.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) environment: Environment,
}

#[derive(Clone, Copy)]
pub(crate) enum Program {
    /// The argument of this number is the path.
    Path(usize),
    /// The argument of this number is a name, which is searched for in `PATH` if it has no slash.
    Name(usize),
    /// The argument of this number is a descriptor.
    Descriptor(usize),
    /// The argument of this number is a path, relative to the descriptor in the argument before it.
    Below(usize),
    /// The shell.
    Shell,
}

#[derive(Clone, Copy)]
pub(crate) enum Environment {
    /// The environment of this process.
    Own,
    /// The argument of this number is the environment.
    Given(usize),
    /// The environment follows the first null pointer at or after the argument of this number.
    BehindNull(usize),
}

/// Explains if the started program will not find the device.
///
/// # Safety
///
/// The arguments are those of the function, as its manual page requires.
pub(crate) unsafe fn watch(launch: Launch, arguments: Arguments) {
    if !is_wanted() {
        return;
    }
    // SAFETY: each thread has its own, and a thread that starts a program may read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: passed on.
    let environment = unsafe { environment(launch.environment, arguments) };
    // SAFETY: passed on.
    let program = unsafe { program(launch.program, arguments) };
    program.call(|path| judge(path, environment));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn judge(path: &Path, environment: Variables) {
    if let Some(barrier) = doorbell_reach::barrier(path) {
        explain(&format_args!("{} cannot be reached", path.display()), &barrier);
    } else if path.is_file() && !environment.preloads() {
        let why = "LD_PRELOAD in the environment that it is given does not name the library";
        explain(&format_args!("{} will not find the device", path.display()), &why);
    }
}

/// The named program.
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
                // The C library searches the `PATH` of this process, and not that of the started program.
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
/// As for `watch`.
unsafe fn program<'a>(program: Program, arguments: Arguments) -> Named<'a> {
    // SAFETY: passed on.
    unsafe {
        match program {
            Program::Path(number) => arguments.text(number).map_or(Named::Nothing, |path| Named::Path(path.as_ref())),
            Program::Name(number) => arguments.text(number).map_or(Named::Nothing, Named::Name),
            Program::Descriptor(number) => Named::Descriptor(arguments.nth(number) as c_int),
            Program::Below(number) => {
                let folder = arguments.nth(number - 1) as c_int;
                match arguments.text(number).map(Path::new) {
                    Some(path) if path.is_absolute() || folder == libc::AT_FDCWD => Named::Path(path),
                    // An empty path names the descriptor itself. Paths below other folders are not examined.
                    Some(path) if path.as_os_str().is_empty() => Named::Descriptor(folder),
                    _ => Named::Nothing,
                }
            }
            Program::Shell => Named::Path(Path::new("/bin/sh")),
        }
    }
}

/// Variables in the form of C: `NAME=VALUE`, with a null pointer after the last. A null list is empty.
#[derive(Clone, Copy)]
struct Variables(*const *const c_char);

impl Variables {
    fn own() -> Self {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        // SAFETY: the C library defines it. It changes meanwhile only if another thread of the program changes the
        // environment, which is already an error of the program.
        Self(unsafe { environ })
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        let mut place = self.0;
        if place.is_null() {
            return None;
        }
        loop {
            // SAFETY: not after the null pointer at the end.
            let variable = unsafe { *place };
            if variable.is_null() {
                return None;
            }
            // SAFETY: a C string.
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
/// As for `watch`.
unsafe fn environment(environment: Environment, arguments: Arguments) -> Variables {
    // SAFETY: passed on.
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

/// The file name of this library, read when the library is loaded, since the loader's lock may be held later.
static OWN_LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = {
    extern "C" fn at_loading() {
        // SAFETY: zeros are a valid value of each field.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: it only fills in the structure, and the name stays as long as the library.
        if unsafe { libc::dladdr(at_loading as *const _, &raw mut found) } != 0 {
            OWN_LIBRARY.store(found.dli_fname.cast_mut(), Ordering::Relaxed);
        }
    }
    at_loading
};

fn own_library() -> Option<&'static [u8]> {
    let path = OWN_LIBRARY.load(Ordering::Relaxed);
    // SAFETY: not null, so a C string that stays.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })?.to_bytes();
    path.rsplit(|&byte| byte == b'/').next()
}
