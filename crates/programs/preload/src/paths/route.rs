//! Resolution of a program's path to a served node.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use super::names::NAME_MAX;
use super::plan::{Kind, Node, Plan, plan};
use super::{names, sys};

/// Maximum length of a path, including the zero byte at its end. The kernel has the same limit.
const PATH_MAX: usize = libc::PATH_MAX as usize;
/// Maximum number of links that a path may follow. The kernel has the same limit.
const MAX_LINKS: usize = 40;

/// The names in the path of each served folder. Each path of a program is first compared with these names. A star
/// stands for any further letters of a name.
const PARTS: [&[&[u8]]; 5] = [
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"dev", b"infiniband"],
    &[b"sys", b"devices", b"platform", b"doorbell.*"],
    &[b"sys", b"devices", b"pci*"],
];

/// End of the address range that contains no path. Programs sometimes pass numbers in this range that they cast to
/// pointers. The kernel returns EFAULT for them.
const FIRST_PAGE: usize = 4096;

/// Whether a served folder may be open in this process or may be its working folder. Then any relative path may lead to
/// a served node.
static HAS_FOLDERS: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor or the working folder stands for a served folder.
pub(super) fn note_folder() {
    HAS_FOLDERS.store(true, Ordering::Relaxed);
}

/// Checks, when the library is loaded, whether the working folder of this program is a served folder.
pub(crate) fn look_where_started() {
    if names::node_of_working_folder().is_some() {
        note_folder();
    }
}

/// Returns whether a descriptor stands for a served folder. Another process may have opened the descriptor.
#[cold]
pub(super) fn is_folder_of_ours(fd: c_int) -> bool {
    let is_one = names::node_of(fd).is_some();
    if is_one {
        note_folder();
    }
    is_one
}

/// Returns whether this path, relative to `folder`, may lead to a served node. The first letters of nearly all paths
/// rule this out.
///
/// # Safety
///
/// `path` is null, a C string, or a number so small that the kernel rejects it as an address.
#[inline]
pub(super) unsafe fn may_concern(folder: c_int, path: *const c_char) -> bool {
    if path.addr() < FIRST_PAGE {
        return false;
    }
    let path = path.cast::<u8>();
    // SAFETY: the code reads a byte only if the preceding byte is not the zero at the end.
    unsafe {
        match *path {
            b'/' => matches!(*path.add(1), b's' | b'd' | b'/' | b'.') && concerns(path),
            _ => may_concern_below(folder, path),
        }
    }
}

/// Returns whether an absolute path may begin with the path of a served folder.
unsafe fn concerns(path: *const u8) -> bool {
    // SAFETY: the caller guarantees that `path` is a C string.
    PARTS.iter().any(|parts| unsafe { begins(path, parts) })
}

/// Returns whether a relative path may lead to a root or to a node.
#[inline]
unsafe fn may_concern_below(folder: c_int, path: *const u8) -> bool {
    // SAFETY: the caller guarantees that `path` is a C string.
    let first = unsafe { *path };
    if first == 0 {
        return false;
    }
    if HAS_FOLDERS.load(Ordering::Relaxed) {
        return true;
    }
    // The path may be relative to a folder above a root, such as `class/infiniband` in `/sys`.
    // SAFETY: the caller guarantees that `path` is a C string.
    (matches!(first, b's' | b'd' | b'c' | b'i' | b'p' | b'.') && unsafe { concerns_below(path) })
        // The kernel finds the names `.` and `..` even in a removed folder. A call with such a path would not fail, so
        // check now whether `folder` is a served folder.
        || (first == b'.' && folder >= 0 && is_folder_of_ours(folder))
}

/// Returns whether a call with a relative path failed with ENOENT because `folder` stands for a served folder. The
/// caller asks this after [`may_concern`] returned `false`: [`may_concern`] does not know a served folder that another
/// process opened and passed to this process.
///
/// # Safety
///
/// The contract of [`may_concern`].
#[cold]
pub(super) unsafe fn was_missed(folder: c_int, path: *const c_char) -> bool {
    if sys::errno() != libc::ENOENT || folder < 0 || path.addr() < FIRST_PAGE {
        return false;
    }
    // SAFETY: the caller guarantees that `path` is a C string, since the address is not below `FIRST_PAGE`.
    let is_missed = unsafe { *path } != b'/' as c_char && is_folder_of_ours(folder);
    crate::objects::answer::set_errno(libc::ENOENT);
    is_missed
}

#[cold]
unsafe fn concerns_below(path: *const u8) -> bool {
    // SAFETY: the caller guarantees that `path` is a C string.
    PARTS.iter().any(|parts| (0..parts.len()).any(|from| unsafe { begins(path, &parts[from..]) }))
}

/// Returns whether a path begins with these names. Ignores repeated slashes and single dots.
unsafe fn begins(mut path: *const u8, parts: &[&[u8]]) -> bool {
    // SAFETY: the loop reads no byte after the zero at the end.
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
                if letter == b'*' {
                    return true; // only the last name has a star
                }
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

/// A path under construction, which needs no heap memory.
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

    /// Returns the path, including the zero byte at its end.
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

    /// Removes the last name of the path. Leaves the root unchanged.
    pub(super) fn pop(&mut self) {
        let end = self.path().iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.truncate(end);
    }

    /// Fills the buffer with a path that a system call returns.
    fn fill(&mut self, call: impl FnOnce(&mut [u8]) -> Result<usize, c_int>) -> Result<(), c_int> {
        let length = call(&mut self.bytes[..PATH_MAX - 1])?;
        self.length = length;
        self.truncate(PATH_MAX - 1);
        Ok(())
    }
}

/// Destination of a path.
pub(super) enum Lead {
    /// The path does not lead to a served node. The call must use the path of the program unchanged.
    Through,
    /// The path leads out of the served tree. The call must use the path in the buffer.
    Elsewhere,
    /// The path leads to this node. The path of the node is in the buffer.
    Node(&'static Node),
    /// The path leads to no file. Contains the errno.
    Refused(c_int),
}

/// Treatment of the last name of a path.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The call follows a link in the last name.
    Followed,
    /// The call acts on the link in the last name.
    Itself,
    /// The call creates a missing file, which the kernel denies in its own folders. `followed` tells whether the call
    /// follows a link in the last name.
    Made { followed: bool },
}

impl End {
    fn follows(self) -> bool {
        matches!(self, Self::Followed | Self::Made { followed: true })
    }

    /// Returns the errno of the call if the file is missing.
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
    // SAFETY: the caller guarantees that `path` is a C string.
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
        // An empty path may name a descriptor that stands for a link. For any other node, an empty path names no file.
        Ok(Some(node)) if path.is_empty() && !matches!(node.kind, Kind::Link(_)) => Lead::Refused(libc::ENOENT),
        Ok(Some(node)) => Lead::Node(node),
        Ok(None) => Lead::Elsewhere,
        Err(errno) => Lead::Refused(errno),
    }
}

/// Puts the folder to which the path is relative into the buffer. Returns whether the path may lead to a served node.
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
        // SAFETY: the slice is part of a C string, which ends with a zero byte.
        unsafe { concerns_below(path.as_ptr()) }
    }
}

/// Returns whether the folder at `path` lies above a root.
fn is_above(path: &[u8]) -> bool {
    path.is_empty() || plan().is_above_roots(path)
}

/// Follows a path from the folder in the buffer, as the kernel would. Returns `None` if the path leads out of the
/// served tree. The buffer then contains the destination.
fn walk<'a>(plan: &'a Plan, path: &[u8], end: End, at: &mut Buffer) -> Result<Option<&'a Node>, c_int> {
    let mut ahead = Buffer::new();
    ahead.push(path)?;
    let (mut next, mut links) = (0, 0);
    loop {
        let rest = &ahead.path()[next..];
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let rest = &rest[slashes..];
        let here = plan.find(at.path());
        // `here` may be a link that the call does not follow, but then the path must end with the link. The same
        // applies to a file.
        if here.is_some_and(|node| !node.is_folder()) && (slashes > 0 || !rest.is_empty()) {
            return Err(libc::ENOTDIR);
        }
        if rest.is_empty() {
            // The path leads to a folder of the kernel. The empty path in the buffer stands for the root.
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
            None if plan.is_above_roots(at.path()) => {}
            // A served folder that is not shared contains only nodes of the plan.
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
