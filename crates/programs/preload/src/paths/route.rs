//! Resolution of a program's path to a served node.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::{Kind, Node, Plan, ROOTS, plan};
use super::{names, sys};

/// Maximum length of a path, including the zero at its end, as in the kernel.
const PATH_MAX: usize = libc::PATH_MAX as usize;
pub(super) const NAME_MAX: usize = 255;
/// Maximum number of links that are followed.
const MAX_LINKS: usize = 40;

/// The parts of [`ROOTS`], with which each path is compared first.
const PARTS: [&[&[u8]]; 4] = [
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"dev", b"infiniband"],
    &[b"sys", b"devices", b"platform", b"doorbell.0"],
];

/// End of the range that contains no path. Numbers below it were cast to pointers, and the kernel returns EFAULT for
/// them.
const FIRST_PAGE: usize = 4096;

/// Whether the program may have a served folder open, or as its working folder. Then any relative path may lead to a
/// served node.
static HAS_FOLDERS: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor or the working folder stands for a served folder.
pub(super) fn note_folder() {
    HAS_FOLDERS.store(true, Ordering::Relaxed);
}

/// Checks whether this program was started in a served folder, when the library is loaded.
pub(crate) fn look_where_started() {
    if names::node_of_working_folder().is_some() {
        note_folder();
    }
}

/// Returns whether a descriptor, which another process may have opened, is a served folder.
#[cold]
pub(super) fn is_folder_of_ours(fd: c_int) -> bool {
    let is_one = names::node_of(fd).is_some();
    if is_one {
        note_folder();
    }
    is_one
}

/// Returns whether this path, relative to a folder, may lead to a served node. Nearly all paths do not, and their
/// first letters show it.
///
/// # Safety
///
/// `path` is a C string, null, or a number small enough that the kernel rejects it.
#[inline]
pub(super) unsafe fn may_concern(folder: c_int, path: *const c_char) -> bool {
    if path.addr() < FIRST_PAGE {
        return false;
    }
    let path = path.cast::<u8>();
    // SAFETY: a byte is read only if the byte before it is not the zero.
    unsafe {
        match *path {
            b'/' => matches!(*path.add(1), b's' | b'd' | b'/' | b'.') && concerns(path),
            _ => may_concern_below(folder, path),
        }
    }
}

/// Returns whether an absolute path leads to a root.
unsafe fn concerns(path: *const u8) -> bool {
    // SAFETY: passed on to our caller.
    PARTS.iter().any(|parts| unsafe { begins(path, parts) })
}

/// Returns whether a relative path may lead to a root or a node.
#[inline]
unsafe fn may_concern_below(folder: c_int, path: *const u8) -> bool {
    // SAFETY: passed on to our caller.
    let first = unsafe { *path };
    if first == 0 {
        return false;
    }
    if HAS_FOLDERS.load(Ordering::Relaxed) {
        return true;
    }
    // The path may start in a folder above a root, such as `class/infiniband` in `/sys`.
    // SAFETY: passed on to our caller.
    (matches!(first, b's' | b'd' | b'c' | b'i' | b'p' | b'.') && unsafe { concerns_below(path) })
        // In a removed folder the kernel finds `.` and `..`, and no other name.
        || (first == b'.' && folder >= 0 && is_folder_of_ours(folder))
}

/// Returns whether the kernel found no file because the folder is a served one that another process opened. The
/// caller asks after a failed call with a path that [`may_concern`] let pass.
///
/// # Safety
///
/// The contract of `may_concern`.
#[cold]
pub(super) unsafe fn was_missed(folder: c_int, path: *const c_char) -> bool {
    if sys::errno() != libc::ENOENT || folder < 0 || path.addr() < FIRST_PAGE {
        return false;
    }
    // SAFETY: the caller's promise.
    let is_missed = unsafe { *path } != b'/' as c_char && is_folder_of_ours(folder);
    crate::objects::answer::set_errno(libc::ENOENT);
    is_missed
}

#[cold]
unsafe fn concerns_below(path: *const u8) -> bool {
    // SAFETY: passed on to our caller.
    PARTS.iter().any(|parts| (0..parts.len()).any(|from| unsafe { begins(path, &parts[from..]) }))
}

/// Returns whether a path begins with these parts. Repeated slashes and single dots do not count.
unsafe fn begins(mut path: *const u8, parts: &[&[u8]]) -> bool {
    // SAFETY: no byte is read after the zero.
    unsafe {
        for part in parts {
            loop {
                match *path {
                    b'/' => path = path.add(1),
                    b'.' if *path.add(1) == b'/' => path = path.add(2),
                    _ => break,
                }
            }
            for &letter in *part {
                if *path != letter {
                    return false;
                }
                path = path.add(1);
            }
            if !matches!(*path, 0 | b'/') {
                return false;
            }
        }
    }
    true
}

/// A path under construction, without heap memory.
pub(super) struct Buffer {
    bytes: [u8; PATH_MAX],
    length: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self { bytes: [0; PATH_MAX], length: 0 }
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the path with the zero at its end.
    pub(super) fn with_zero(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }

    pub(super) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub(super) fn push(&mut self, more: &[u8]) -> Result<(), c_int> {
        let end = self.length + more.len();
        if end >= PATH_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.length..end].copy_from_slice(more);
        self.bytes[end] = 0;
        self.length = end;
        Ok(())
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
        self.bytes[self.length] = 0;
    }

    /// Removes the last name of the path. The root stays the root.
    pub(super) fn pop(&mut self) {
        let end = self.path().iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.truncate(end);
    }

    /// Fills the buffer with a path from a system call.
    fn fill(&mut self, call: impl FnOnce(&mut [u8]) -> Result<usize, c_int>) -> Result<(), c_int> {
        let length = call(&mut self.bytes[..PATH_MAX - 1])?;
        self.length = length;
        self.truncate(PATH_MAX - 1);
        Ok(())
    }
}

/// Destination of a path.
pub(super) enum Lead {
    /// No served node. The call uses the path as the program gave it.
    Through,
    /// Outside of the tree: the path in the buffer.
    Elsewhere,
    /// This node. Its path is in the buffer.
    Node(&'static Node),
    /// No file. Contains the errno.
    Refused(c_int),
}

/// Treatment of the last name of a path.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The call follows a link.
    Followed,
    /// The call uses a link itself.
    Itself,
    /// The call creates a missing file, which the kernel denies in its own folders. `followed` tells whether it
    /// follows a link.
    Made { followed: bool },
}

impl End {
    fn follows(self) -> bool {
        matches!(self, Self::Followed | Self::Made { followed: true })
    }

    /// Returns the errno if the file is missing.
    fn missing(self) -> c_int {
        if matches!(self, Self::Made { .. }) { libc::EACCES } else { libc::ENOENT }
    }
}

/// Resolves a path.
///
/// # Safety
///
/// `path` is a C string.
pub(super) unsafe fn lead(folder: c_int, path: *const c_char, end: End, into: &mut Buffer) -> Lead {
    // SAFETY: the caller's promise.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    if path.len() >= PATH_MAX {
        return Lead::Refused(libc::ENAMETOOLONG);
    }
    if path.starts_with(b"/") {
        into.truncate(0);
    } else if !begin(folder, path, into) {
        return Lead::Through;
    }
    match walk(plan(), path, end, into) {
        // An empty path names the link that a descriptor stands for, and no other node.
        Ok(Some(node)) if path.is_empty() && !matches!(node.kind, Kind::Link(_)) => Lead::Refused(libc::ENOENT),
        Ok(Some(node)) => Lead::Node(node),
        Ok(None) => Lead::Elsewhere,
        Err(errno) => Lead::Refused(errno),
    }
}

/// Puts the folder of a relative path into the buffer. Returns whether the path may lead to a served node.
fn begin(folder: c_int, path: &[u8], into: &mut Buffer) -> bool {
    let found = if folder == libc::AT_FDCWD {
        match into.fill(sys::getcwd) {
            Err(libc::ENOENT) => into.fill(|bytes| sys::readlink(names::WORKING_FOLDER, bytes)),
            found => found,
        }
    } else {
        into.fill(|bytes| sys::readlink(sys::DescriptorPath::new(folder).with_zero(), bytes))
    };
    if found.is_err() {
        return false;
    }
    if let Some(node) = names::node_of_path(into.path()) {
        into.truncate(0);
        return into.push(&node.path).is_ok();
    }
    if into.path() == b"/" {
        into.truncate(0);
    }
    is_above(into.path()) && {
        // SAFETY: a slice of a C string, which ends with a zero.
        unsafe { concerns_below(path.as_ptr()) }
    }
}

/// Returns whether a folder lies above a root.
fn is_above(path: &[u8]) -> bool {
    path.is_empty() || ROOTS.iter().any(|root| root.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/")))
}

/// Follows a path from the one in the buffer, as the kernel would. Returns `None` if it leads outside, to the path in
/// the buffer.
fn walk<'a>(plan: &'a Plan, path: &[u8], end: End, at: &mut Buffer) -> Result<Option<&'a Node>, c_int> {
    let mut ahead = Buffer::new();
    ahead.push(path)?;
    let (mut next, mut links) = (0, 0);
    loop {
        let rest = &ahead.path()[next..];
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let rest = &rest[slashes..];
        let here = plan.find(at.path());
        // A followed link is no longer at this position, and a link at the end of the path has no path after it.
        if here.is_some_and(|node| !node.is_folder()) && (slashes > 0 || !rest.is_empty()) {
            return Err(libc::ENOTDIR);
        }
        if rest.is_empty() {
            // The root or a folder above a served one: the kernel's folder.
            if here.is_none() && at.path().is_empty() {
                at.push(b"/")?;
            }
            return Ok(here);
        }
        let length = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (name, behind) = rest.split_at(length);
        next = ahead.length - behind.len();
        match name {
            b"." => continue,
            b".." => {
                at.pop();
                continue;
            }
            name if name.len() > NAME_MAX => return Err(libc::ENAMETOOLONG),
            _ => {}
        }
        let above = at.length;
        at.push(b"/")?;
        at.push(name)?;
        match plan.find(at.path()) {
            Some(Node { kind: Kind::Link(target), .. }) if end.follows() || !behind.is_empty() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(libc::ELOOP);
                }
                at.truncate(above);
                let mut onward = Buffer::new();
                onward.push(target.strip_suffix(b"\0").unwrap_or(target))?;
                onward.push(behind)?;
                (ahead, next) = (onward, 0);
            }
            Some(_) => {}
            None if is_above(at.path()) => {}
            // A served folder contains only the nodes of the plan.
            None if here.is_some_and(|node| !node.is_shared()) => {
                let is_last = behind.iter().all(|&byte| byte == b'/');
                return Err(if is_last { end.missing() } else { libc::ENOENT });
            }
            None => {
                at.push(behind)?;
                return Ok(None);
            }
        }
    }
}
