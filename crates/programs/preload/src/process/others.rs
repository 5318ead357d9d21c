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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::process::explain::{Hash, explain, is_wanted};

/// Maximum number of loaded files that are looked at. Later files have no explanation.
const MOST_FILES: usize = 4096;

/// Maximum bytes of constants in which a text is sought. Only files much larger than libibverbs have more.
const MOST_BYTES: usize = 64 << 20;

/// Maximum bytes of a path in an explanation. Longer paths are cut.
const MOST_PATH: usize = 512;

/// Hashes of the files that were looked at. 0 marks a free element.
static SEEN: [AtomicU64; MOST_FILES] = [const { AtomicU64::new(0) }; MOST_FILES];

/// A library of which a process may have another copy.
struct Library {
    name: &'static str,
    text: &'static [u8],
    /// Whether the process began with a copy of the usual name.
    is_usual: AtomicBool,
}

/// Number of [`LIBRARIES`].
const LIBRARY_COUNT: usize = 2;

static LIBRARIES: [Library; LIBRARY_COUNT] = [
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

/// Way in which a file contains a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKind {
    /// The library was linked into the file.
    Linked,
    /// The file is the library.
    File,
}

/// Result of looking at one file.
struct Finding {
    time: Look,
    path: [u8; MOST_PATH],
    path_length: usize,
    is_driver: bool,
    copies: [Option<CopyKind>; LIBRARY_COUNT],
}

impl Finding {
    fn none(time: Look) -> Self {
        Self { time, path: [0; MOST_PATH], path_length: 0, is_driver: false, copies: [None; LIBRARY_COUNT] }
    }

    fn keep_path(&mut self, path: &[u8]) {
        self.path_length = path.len().min(MOST_PATH);
        self.path[..self.path_length].copy_from_slice(&path[..self.path_length]);
    }

    fn is_empty(&self) -> bool {
        !self.is_driver && self.copies == [None; LIBRARY_COUNT]
    }

    fn explain(&self) {
        let path = &self.path[..self.path_length];
        // A copy of libibverbs loads the drivers of all adapters, so one of them is enough.
        if self.is_driver && !IS_DRIVER_NAMED.swap(true, Ordering::Relaxed) {
            explain(
                &Shown(path),
                &"a driver that another libibverbs has loaded: it talks to the kernel, and does not know the software \
                  RNIC",
            );
        }
        for (library, copy) in LIBRARIES.iter().zip(self.copies) {
            match copy {
                Some(CopyKind::Linked) => explain(
                    &Shown(path),
                    &format_args!(
                        "{} is linked into it: its calls do not reach this library, and find no software RNIC",
                        library.name
                    ),
                ),
                Some(CopyKind::File) => explain_copy(path, library),
                None => {}
            }
        }
    }
}

/// Explains each other copy, and each driver that such a copy has loaded.
pub(crate) fn look(time: Look) {
    if !is_wanted() {
        return;
    }
    loop {
        let mut finding = Finding::none(time);
        // SAFETY: `visit` follows the contract of the callback, and `finding` outlives the call.
        if unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut finding).cast()) } == 0 {
            return;
        }
        finding.explain();
    }
}

/// Looks at a loaded file, unless it was looked at before. Returns 1, which ends the iteration, if `finding` must be
/// explained.
///
/// The dynamic linker holds a lock meanwhile, which other threads need to load a library or to throw an exception. So
/// the function writes nothing: a full pipe would block the write until one of these threads reads the pipe. It
/// allocates nothing and takes no lock.
///
/// # Safety
///
/// `file` describes a loaded file, and `finding` points to an empty [`Finding`].
unsafe extern "C" fn visit(file: *mut libc::dl_phdr_info, _size: usize, finding: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that both pointers are valid.
    let (file, finding) = unsafe { (&*file, &mut *finding.cast::<Finding>()) };
    if file.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the dynamic linker provides the headers of a loaded file, and a C string or null as its name.
    let (headers, path) = unsafe {
        let name = if file.dlpi_name.is_null() { c"" } else { CStr::from_ptr(file.dlpi_name) };
        (slice::from_raw_parts(file.dlpi_phdr, usize::from(file.dlpi_phnum)), name.to_bytes())
    };
    if is_new(identity(file.dlpi_phdr as usize, path)) {
        // SAFETY: the file stays loaded during the callback.
        unsafe { judge(path, file.dlpi_addr as usize, headers, finding) };
        finding.keep_path(path);
    }
    c_int::from(!finding.is_empty())
}

/// Returns a number for the file with this path at this address. After a file was unloaded, another one may have its
/// address.
fn identity(address: usize, path: &[u8]) -> u64 {
    let mut hash = Hash::default();
    hash.add(address.to_ne_bytes());
    hash.add(path.iter().copied());
    hash.value()
}

/// Returns whether the file with this [`identity`] is seen for the first time.
fn is_new(file: u64) -> bool {
    for place in &SEEN {
        match place.compare_exchange(0, file, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(there) if there == file => return false,
            Err(_) => {}
        }
    }
    false
}

/// Looks for drivers and libraries in a file.
///
/// # Safety
///
/// A file with these headers is loaded at this address.
unsafe fn judge(path: &[u8], base: usize, headers: &[libc::Elf64_Phdr], finding: &mut Finding) {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    finding.is_driver = contains(name, DRIVER);
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
        for (library, copy) in LIBRARIES.iter().zip(&mut finding.copies) {
            if !contains(segment, library.text) {
                continue;
            }
            if !contains(name, library.name.as_bytes()) {
                *copy = Some(CopyKind::Linked);
            } else if finding.time == Look::AtLoading && has_usual_name(name, library.name) {
                library.is_usual.store(true, Ordering::Relaxed);
            } else {
                *copy = Some(CopyKind::File);
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
        let [one, other] = [identity(0x1000, b"one"), identity(0x2000, b"one")];
        assert!(is_new(one) && !is_new(one) && is_new(other) && !is_new(one));
    }

    /// Visits a file with this path whose only segment is `segment`, and returns the result and the finding.
    fn visited(path: &CStr, segment: &[u8], headers: &[libc::Elf64_Phdr; 1]) -> (c_int, Finding) {
        let mut finding = Finding::none(Look::Later);
        // SAFETY: all fields are integers and pointers.
        let mut file: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
        (file.dlpi_name, file.dlpi_phdr, file.dlpi_phnum) = (path.as_ptr(), headers.as_ptr(), 1);
        assert_eq!(headers[0].p_vaddr as usize, segment.as_ptr().expose_provenance());
        // SAFETY: the header describes `segment`, which outlives the call.
        let result = unsafe { visit(&raw mut file, size_of_val(&file), (&raw mut finding).cast()) };
        (result, finding)
    }

    /// Returns the header of a file whose only segment is `segment`.
    fn header(segment: &[u8]) -> [libc::Elf64_Phdr; 1] {
        // SAFETY: all fields are integers.
        let mut header: libc::Elf64_Phdr = unsafe { std::mem::zeroed() };
        (header.p_type, header.p_flags) = (libc::PT_LOAD, libc::PF_R);
        header.p_vaddr = segment.as_ptr().expose_provenance() as u64;
        header.p_filesz = segment.len() as u64;
        [header]
    }

    #[test]
    fn a_finding_ends_the_iteration_so_that_it_is_explained_without_the_lock() {
        let segment = [&b"xx"[..], LIBRARIES[0].text, LIBRARIES[1].text].concat();
        let headers = header(&segment);
        let (result, finding) = visited(c"/opt/libibverbs-3f2a.so.1", &segment, &headers);
        assert_eq!((result, finding.copies), (1, [Some(CopyKind::File), Some(CopyKind::Linked)]));
        assert_eq!(&finding.path[..finding.path_length], b"/opt/libibverbs-3f2a.so.1");
        assert!(!finding.is_driver);
        let (result, finding) = visited(c"/opt/libibverbs-3f2a.so.1", &segment, &headers);
        assert!(result == 0 && finding.is_empty(), "the file was looked at before");
    }

    #[test]
    fn a_file_at_the_address_of_an_unloaded_file_is_looked_at() {
        let segment = LIBRARIES[1].text.to_vec();
        let headers = header(&segment);
        assert_eq!(visited(c"/opt/one.so", &segment, &headers).0, 1);
        let (result, finding) = visited(c"/opt/other.so", &segment, &headers);
        assert_eq!((result, finding.copies), (1, [None, Some(CopyKind::Linked)]));
        let nothing: [u8; 0] = [];
        let (result, finding) = visited(c"/opt/libmlx5-rdmav59.so", &nothing, &header(&nothing));
        assert!(result == 1 && finding.is_driver);
    }

    #[test]
    fn a_long_path_is_cut() {
        let mut finding = Finding::none(Look::Later);
        finding.keep_path(&[b'x'; 3 * MOST_PATH]);
        assert_eq!(finding.path_length, MOST_PATH);
    }

    #[test]
    fn only_unchanged_names_are_usual() {
        assert!(has_usual_name(b"libibverbs.so.1", "libibverbs") && has_usual_name(b"libibverbs.so", "libibverbs"));
        assert!(!has_usual_name(b"libibverbs-3f2a1b0c.so.1.14.44.0", "libibverbs"));
        assert!(!has_usual_name(b"my-libibverbs.so.1", "libibverbs"));
    }
}
