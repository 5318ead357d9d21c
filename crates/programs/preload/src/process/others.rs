//! Explanations of `--explain` about other copies of libibverbs and librdmacm in this process. Calls by name reach this
//! library, but a program may look up functions in another copy, or contain one. Such calls find no device.
//!
//! A copy is recognised by a text of each release since 2017, which also shows one that was renamed or linked into a
//! program. The library looks when it is loaded, before each `dlopen`, and when the process ends. It looks at each
//! loaded file once.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::process::explain::{explain, is_wanted};

/// Maximum number of loaded files that are looked at. Later files have no explanation.
const MOST_FILES: usize = 4096;

/// Maximum bytes of constants in which a text is sought. Only files much larger than libibverbs have more.
const MOST_BYTES: usize = 64 << 20;

/// Addresses of the files that were looked at. 0 marks a free element.
static SEEN: [AtomicUsize; MOST_FILES] = [const { AtomicUsize::new(0) }; MOST_FILES];

/// A library of which a process may have another copy.
struct Library {
    name: &'static str,
    text: &'static [u8],
    /// Whether the process began with a copy of the usual name.
    is_usual: AtomicBool,
}

static LIBRARIES: [Library; 2] = [
    Library {
        name: "libibverbs",
        text: b"no userspace device-specific driver found for",
        is_usual: AtomicBool::new(false),
    },
    Library { name: "librdmacm", text: b"discarding unmatched event", is_usual: AtomicBool::new(false) },
];

/// Part of the name of a driver that libibverbs loads. The number after it is the version of the interface.
const DRIVER: &[u8] = b"-rdmav";

static IS_DRIVER_NAMED: AtomicBool = AtomicBool::new(false);

/// Time of a look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// This library has just been loaded. References of loaded files to the usual names reach this library.
    AtLoading,
    Later,
}

/// Explains the copies that the process has before it opens the library of this name. Also explains a copy of this
/// usual name with which the process began, since the dynamic linker opens the same copy again.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn look_before_opening(name: Option<&OsStr>) {
    if !is_wanted() {
        return;
    }
    look(Look::Later);
    let Some(path) = name.map(OsStr::as_bytes) else { return };
    for library in LIBRARIES.iter().filter(|library| library.is_usual.load(Ordering::Relaxed)) {
        if has_usual_name(path, library.name) {
            explain_copy(path, library);
        }
    }
}

/// Explains each other copy, and each driver that such a copy has loaded.
pub(crate) fn look(mut time: Look) {
    if !is_wanted() {
        return;
    }
    // SAFETY: `visit` follows the contract of the callback, and `time` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut time).cast()) };
}

/// Looks at a loaded file.
///
/// # Safety
///
/// `file` describes a loaded file, and `time` points to a [`Look`].
unsafe extern "C" fn visit(file: *mut libc::dl_phdr_info, _size: usize, time: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that both pointers are valid.
    let (file, time) = unsafe { (&*file, *time.cast::<Look>()) };
    if file.dlpi_phdr.is_null() {
        return 0;
    }
    if is_new(file.dlpi_phdr as usize) {
        // SAFETY: the dynamic linker provides the headers of a loaded file, and a C string or null as its name.
        let (headers, name) = unsafe {
            let name = if file.dlpi_name.is_null() { c"" } else { CStr::from_ptr(file.dlpi_name) };
            (slice::from_raw_parts(file.dlpi_phdr, usize::from(file.dlpi_phnum)), name.to_bytes())
        };
        // SAFETY: the file stays loaded during the callback.
        unsafe { judge(name, file.dlpi_addr as usize, headers, time) };
    }
    0
}

/// Returns whether the address is seen for the first time.
fn is_new(address: usize) -> bool {
    for place in &SEEN {
        match place.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(there) if there == address => return false,
            Err(_) => {}
        }
    }
    false
}

/// # Safety
///
/// A file with these headers is loaded at this address.
unsafe fn judge(path: &[u8], base: usize, headers: &[libc::Elf64_Phdr], time: Look) {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    // A copy of libibverbs loads the drivers of all adapters, so one of them is enough.
    if contains(name, DRIVER) && !IS_DRIVER_NAMED.swap(true, Ordering::Relaxed) {
        explain(
            &Shown(path),
            &"a driver that another libibverbs has loaded: it talks to the kernel, and does not know the software RNIC",
        );
    }
    let mut constants = 0;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let (at, bytes) = (base.wrapping_add(header.p_vaddr as usize), header.p_filesz as usize);
        if (at..at.saturating_add(bytes)).contains(&(judge as *const () as usize)) {
            return; // this library
        }
        constants += if header.p_flags & libc::PF_R == 0 { MOST_BYTES } else { bytes };
    }
    if constants > MOST_BYTES {
        return;
    }
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let at = ptr::with_exposed_provenance::<u8>(base.wrapping_add(header.p_vaddr as usize));
        // SAFETY: the segment is loaded at this address, and is readable and constant.
        let segment = unsafe { slice::from_raw_parts(at, header.p_filesz as usize) };
        for library in LIBRARIES.iter().filter(|library| contains(segment, library.text)) {
            if !contains(name, library.name.as_bytes()) {
                explain(
                    &Shown(path),
                    &format_args!(
                        "{} is linked into it: its calls do not reach this library, and find no software RNIC",
                        library.name
                    ),
                );
            } else if time == Look::AtLoading && has_usual_name(name, library.name) {
                library.is_usual.store(true, Ordering::Relaxed);
            } else {
                explain_copy(path, library);
            }
        }
    }
}

fn explain_copy(path: &[u8], library: &Library) {
    explain(
        &Shown(path),
        &format_args!(
            "another {}: calls by name reach this library, but functions that the program looks up in that file find no \
             software RNIC",
            library.name
        ),
    );
}

/// Returns whether the file has the name that other files refer to, as `libibverbs.so.1.14.44.0`.
fn has_usual_name(name: &[u8], library: &str) -> bool {
    name.strip_prefix(library.as_bytes()).is_some_and(|rest| rest.starts_with(b".so"))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    // SAFETY: both slices are valid for their lengths.
    !unsafe { libc::memmem(text.as_ptr().cast(), text.len(), part.as_ptr().cast(), part.len()) }.is_null()
}

/// Path of a loaded file. The program itself has none.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the program") } else { OsStr::from_bytes(self.0).display().fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_seen_once() {
        assert!(is_new(0x1000) && !is_new(0x1000) && is_new(0x2000) && !is_new(0x1000));
    }

    #[test]
    fn only_unchanged_names_are_usual() {
        assert!(has_usual_name(b"libibverbs.so.1", "libibverbs") && has_usual_name(b"libibverbs.so", "libibverbs"));
        assert!(!has_usual_name(b"libibverbs-3f2a1b0c.so.1.14.44.0", "libibverbs"));
        assert!(!has_usual_name(b"my-libibverbs.so.1", "libibverbs"));
    }
}
