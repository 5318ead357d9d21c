//! Files and folders without a name, for the descriptors that programs open.
//!
//! For a file, the library creates an anonymous file of the kernel that contains the current content. For a folder, the
//! library creates a folder under a random name, opens the folder and removes it at once. So the kernel frees the file
//! or folder when its last descriptor is closed, even if a signal kills the process. No function of this module takes a
//! lock or allocates, since a signal handler may open files at any time.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Display};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use super::names::{Name, is_folder_of_ours};
use super::plan::{Content, Kind, Node, text};
use super::route::{self, Buffer};
use super::sys::{self, Fd};
use crate::process::explain;

const FILE_MODE: u32 = 0o444;
const FOLDER_MODE: u32 = 0o755;
/// Mode of a folder from its creation until the library removes its name. Only then does the folder get
/// [`FOLDER_MODE`].
const PRIVATE_MODE: u32 = 0o700;

/// Device that the library opens in place of a character device. All users may open `/dev/full`, and writes to it fail.
pub(super) const STAND_IN: &[u8] = b"/dev/full";

/// Maximum number of names that are tried for a folder. Other processes may take a name or remove the folder.
const ATTEMPTS: usize = 64;

/// Maximum number of entries that [`sweep`] examines in one place of [`PLACES`].
const MAX_SWEPT: usize = 4096;

/// Reason why the library cannot create a file for a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unserved {
    /// The system call failed with this errno, as it may for any other file.
    Errno(c_int),
    /// No place allows the creation of a folder or a file. Contains the errno of the last place that failed with
    /// another errno than ENOENT.
    NoPlace(c_int),
    NoProc,
}

impl Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Errno(errno) => write!(f, "{}", nix::errno::Errno::from_raw(errno)),
            Self::NoPlace(errno) => {
                f.write_str("no file for this path can be created in any of ")?;
                for (at, place) in PLACES.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{place}")?;
                }
                write!(f, ": {}", nix::errno::Errno::from_raw(errno))
            }
            Self::NoProc => f.write_str("/proc is not mounted, and the library opens the device's files through /proc"),
        }
    }
}

impl From<c_int> for Unserved {
    fn from(errno: c_int) -> Self {
        Self::Errno(errno)
    }
}

impl Unserved {
    /// Returns the errno for the program, after an explanation if the user requested explanations.
    pub(super) fn errno(self, node: &Node) -> c_int {
        match self {
            Self::Errno(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => errno,
            Self::Errno(_) | Self::NoPlace(_) | Self::NoProc => {
                tell(&node.path, &self);
                libc::ENOENT
            }
        }
    }
}

/// Explains why a path leads to no node, if the user requested explanations.
pub(super) fn tell(path: &[u8], why: &dyn Display) {
    if explain::is_wanted() {
        explain::explain(&path.escape_ascii(), why);
    }
}

/// Checks whether the library can serve nodes in this process. Without `/proc`, as in a bare chroot, it cannot serve
/// any.
pub(super) fn check() -> Result<(), Unserved> {
    if sys::exists(b"/proc/self/fd\0") { Ok(()) } else { Err(Unserved::NoProc) }
}

/// Creates a file or folder without a name that stands for a node. For a link, creates a folder.
pub(super) fn make(node: &Node) -> Result<Fd, Unserved> {
    check()?;
    match &node.kind {
        Kind::File(content) => file(node, content),
        Kind::Folder { .. } | Kind::Link(_) | Kind::Character { .. } => folder(node),
    }
}

/// Opens a node with the flags of the program's call.
pub(super) fn open(node: &Node, flags: c_int) -> Result<Fd, Unserved> {
    const PASSED: c_int = libc::O_PATH | libc::O_NONBLOCK | libc::O_NOATIME;
    let made = make(node)?;
    let cloexec = flags & libc::O_CLOEXEC != 0;
    let path = sys::DescriptorPath::new(made.raw());
    match sys::openat(libc::AT_FDCWD, path.with_zero(), libc::O_RDONLY | flags & PASSED, 0) {
        // The program gets the lowest free descriptor number, as it would from the kernel.
        Ok(opened) => Ok(sys::take_number(opened, made, cloexec)?),
        // No second descriptor is free, so the program gets `made`. For a file, `made` is writable, but its content is
        // sealed.
        Err(libc::EMFILE | libc::ENFILE) if flags & libc::O_PATH == 0 => {
            if !cloexec {
                sys::clear_cloexec(&made)?;
            }
            Ok(made)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn file(node: &Node, content: &Content) -> Result<Fd, Unserved> {
    let file = match sys::memfd(Name::of_file(node).with_zero()) {
        // A filter of system calls may deny `memfd_create`. Then create a file without a name in some folder.
        Err(libc::EPERM | libc::EACCES | libc::ENOSYS) => in_some_place(|place| {
            sys::openat(libc::AT_FDCWD, place.with_zero(), libc::O_TMPFILE | libc::O_RDWR, PRIVATE_MODE)
        })?,
        made => made?,
    };
    let text = text(content);
    sys::write(&file, text.bytes())?;
    sys::fchmod(&file, FILE_MODE)?;
    sys::seal(&file);
    Ok(file)
}

fn folder(node: &Node) -> Result<Fd, Unserved> {
    static SWEPT: AtomicBool = AtomicBool::new(false);
    let folder = in_some_place(|place| {
        let length = place.path().len();
        let folder = folder_in(place, node)?;
        if !SWEPT.swap(true, Ordering::Relaxed) {
            place.truncate(length);
            sweep(place);
        }
        Ok(folder)
    })?;
    route::note_folder();
    Ok(folder)
}

fn folder_in(place: &mut Buffer, node: &Node) -> Result<Fd, c_int> {
    let length = place.path().len();
    for _ in 0..ATTEMPTS {
        place.truncate(length);
        place.push(b"/")?;
        place.push(Name::of_folder(node).bytes())?;
        let path = place.with_zero();
        match sys::mkdir(path, PRIVATE_MODE) {
            Err(libc::EEXIST) => continue,
            made => made?,
        }
        // Open the folder before any other file. Then the folder gets the lowest free number, and one free descriptor
        // is enough.
        let opened = sys::openat(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0);
        let removed = sys::rmdirat(libc::AT_FDCWD, path);
        let folder = match opened {
            // Another process of this user has already found and removed the folder.
            Err(libc::ENOENT) => continue,
            opened => opened?,
        };
        let found = sys::fstat(folder.raw())?;
        if found.st_uid == sys::euid() && found.st_nlink == 0 {
            sys::fchmod(&folder, FOLDER_MODE)?;
            return Ok(folder);
        }
        // Either `rmdirat` failed, or the file system counts links differently, or another user has replaced the
        // folder. Return the errno of `rmdirat` if it failed. Otherwise try another name.
        removed?;
    }
    Err(libc::EBUSY)
}

/// Removes empty folders that killed processes of this user have left. These processes were killed after they created
/// their folder, and before they removed it.
fn sweep(place: &Buffer) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let Ok(listed) = sys::openat(libc::AT_FDCWD, place.with_zero(), flags, 0) else { return };
    let (user, mut seen) = (sys::euid(), 0);
    let _ = sys::entries(&listed, |entry| {
        let is_own = || sys::lstatat(listed.raw(), entry.name).is_ok_and(|found| found.st_uid == user);
        if is_folder_of_ours(&entry.name[..entry.name.len() - 1]) && is_own() {
            let _ = sys::rmdirat(listed.raw(), entry.name);
        }
        seen += 1;
        if seen < MAX_SWEPT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
}

/// A folder in which this user may create folders.
enum ParentFolder {
    /// The path in an environment variable.
    Variable(&'static CStr),
    Path(&'static CStr),
    /// `/run/user/UID`.
    Runtime,
}

/// Places for new files and folders, in order of preference.
static PLACES: [ParentFolder; 6] = [
    ParentFolder::Variable(c"DOORBELL_COUNTERS_DIR"),
    ParentFolder::Variable(c"XDG_RUNTIME_DIR"),
    ParentFolder::Runtime,
    ParentFolder::Path(c"/dev/shm"),
    ParentFolder::Path(c"/tmp"),
    ParentFolder::Path(c"/var/tmp"),
];

impl Display for ParentFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "${}", name.to_bytes().escape_ascii()),
            Self::Path(path) => write!(f, "{}", path.to_bytes().escape_ascii()),
            Self::Runtime => f.write_str("/run/user/UID"),
        }
    }
}

impl ParentFolder {
    /// Stores the path of the place in a buffer. Returns an errno if this user cannot trust the place.
    fn find(&self, path: &mut Buffer) -> Result<(), c_int> {
        path.truncate(0);
        match self {
            Self::Variable(name) => {
                // SAFETY: the name is a C string. The value is copied at once.
                let value = unsafe { libc::getenv(name.as_ptr()) };
                if value.is_null() {
                    return Err(libc::ENOENT);
                }
                // SAFETY: the pointer is not null, so it points to a C string.
                path.push(unsafe { CStr::from_ptr(value) }.to_bytes())?;
                if !path.path().starts_with(b"/") {
                    return Err(libc::ENOENT);
                }
            }
            Self::Path(fixed) => path.push(fixed.to_bytes())?,
            Self::Runtime => {
                let mut digits = [0; 10];
                let mut at = digits.len();
                let mut rest = sys::euid();
                while rest > 0 || at == digits.len() {
                    at -= 1;
                    digits[at] = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                path.push(b"/run/user/")?;
                path.push(&digits[at..])?;
            }
        }
        let found = sys::lstatat(libc::AT_FDCWD, path.with_zero())?;
        if found.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(libc::ENOTDIR);
        }
        if self.is_trusted(&found) { Ok(()) } else { Err(libc::EACCES) }
    }

    /// Returns whether no other user can replace a folder that this process creates in the place.
    fn is_trusted(&self, found: &libc::stat) -> bool {
        // In a user namespace, the owner of a system folder may be a user without a number in the namespace. So the
        // owner of a fixed path is always trusted.
        let is_owner_trusted = matches!(self, Self::Path(_)) || found.st_uid == 0 || found.st_uid == sys::euid();
        let others_write = found.st_mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
        is_owner_trusted && (!others_write || found.st_mode & libc::S_ISVTX != 0)
    }
}

/// Creates a file or folder in the first place that allows the creation.
fn in_some_place(make: impl Fn(&mut Buffer) -> Result<Fd, c_int>) -> Result<Fd, Unserved> {
    let (mut last, mut path) = (libc::ENOENT, Buffer::new());
    for place in &PLACES {
        match place.find(&mut path).and_then(|()| make(&mut path)) {
            Ok(made) => return Ok(made),
            Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => return Err(Unserved::Errno(errno)),
            // Keep the errno of an earlier place, since an errno such as EACCES tells the user more than ENOENT of a
            // missing place.
            Err(libc::ENOENT) => {}
            Err(errno) => last = errno,
        }
    }
    Err(Unserved::NoPlace(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(owner: u32, mode: u32) -> libc::stat {
        // SAFETY: zeros are a valid `stat`.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        (found.st_uid, found.st_mode) = (owner, libc::S_IFDIR | mode);
        found
    }

    #[test]
    fn a_place_where_another_user_decides_about_names_is_not_trusted() {
        let (own, other) = (sys::euid(), sys::euid() ^ 0x5555);
        let (named, fixed) = (ParentFolder::Variable(c"X"), ParentFolder::Path(c"/tmp"));
        assert!(named.is_trusted(&status(own, 0o700)) && named.is_trusted(&status(0, 0o1777)));
        for refused in [status(other, 0o700), status(other, 0o1777), status(own, 0o777), status(own, 0o770)] {
            assert!(!named.is_trusted(&refused), "{} {:o}", refused.st_uid, refused.st_mode);
        }
        assert!(fixed.is_trusted(&status(0, 0o1777)) && fixed.is_trusted(&status(other, 0o1777)));
        assert!(!fixed.is_trusted(&status(0, 0o777)));
    }

    #[test]
    fn a_folder_has_no_name_when_it_is_open() {
        let node = super::super::plan::plan().find(b"/sys/class/infiniband").unwrap();
        // The first call also removes old folders in the same place.
        for _ in 0..2 {
            let folder = folder(node).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(sys::fstat(folder.raw()).unwrap().st_nlink, 0);
            let mut path = [0; 4096];
            let length = sys::readlink(sys::DescriptorPath::new(folder.raw()).with_zero(), &mut path).unwrap();
            let name = std::str::from_utf8(&path[..length]).unwrap().strip_suffix(" (deleted)").unwrap();
            assert!(!sys::exists(format!("{name}\0").as_bytes()), "{name}");
        }
    }
}
