//! Where the tree lies: a folder of this process, made when a program first opens or looks at a part of it.
//!
//! Nothing here takes a lock, since a signal handler may come here in the midst of it: whatever is made may be there
//! already, made by another thread or by the code that the handler interrupted.

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use doorbell_counters::process_folder;

use super::plan::{Content, Kind, Node, plan, text};
use super::route::Buffer;
use super::sys;
use crate::explain;

/// The name of the folder in which each process has one. Nothing else is called so.
const TREES: &str = "doorbell-trees";

const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// What stands for a character device: it is one, it opens for everybody, and whoever writes a command to it learns
/// that it was not taken. Names are links to it, since only root makes devices.
pub(super) const STAND_IN: &[u8] = b"/dev/full\0";

pub(super) struct Place {
    /// A forked child has the parent's, which it leaves alone, and one that changed its user may not enter it.
    pid: u32,
    euid: u32,
    root: Vec<u8>,
    /// All of it was put there once.
    is_full: AtomicBool,
}

/// The place of this process, or of the one that it was forked from. A place is never freed.
pub(super) static PLACE: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// The process that is about to end, and makes no other. A child may share our memory until it ends.
static OVER: AtomicU32 = AtomicU32::new(0);

fn known() -> Option<&'static Place> {
    // SAFETY: null, or leaked.
    unsafe { PLACE.load(Ordering::Acquire).as_ref() }
}

/// If a path lies in the tree of a process, this or another: how many of its bytes lead to the tree. A program may
/// start where the one that started it was.
pub(super) fn strip(path: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut parts = path.split(|&byte| byte == b'/');
    parts.by_ref().find(|part| {
        at += part.len() + 1;
        *part == TREES.as_bytes()
    })?;
    let process = parts.next()?;
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let is_one = process.split(|&byte| byte == b'-').map(is_number).eq([true; 3]);
    is_one.then_some(at + process.len())
}

/// The place of this process, found or made.
fn own() -> Result<&'static Place, String> {
    let (pid, euid) = (sys::pid(), sys::euid());
    let before = known().filter(|place| place.pid == pid && place.euid == euid);
    if let Some(place) = before {
        let mut root = Buffer::new();
        // Somebody may have removed it, or the process may see another root by now.
        if root.push(&place.root).is_ok() && sys::exists(root.with_zero()) {
            return Ok(place);
        }
    }
    if OVER.load(Ordering::Relaxed) == pid {
        return Err("the process ends".to_owned());
    }
    let folder = process_folder(TREES).map_err(|error| error.to_string())?;
    for left in &folder.left_behind {
        sys::remove_folder(&zeroed(left.as_os_str().as_bytes()));
    }
    let root = folder.path.into_os_string().into_encoded_bytes();
    if let Some(place) = before.filter(|place| place.root == root) {
        place.is_full.store(false, Ordering::Relaxed);
        return Ok(place);
    }
    let place = Box::leak(Box::new(Place { pid, euid, root, is_full: AtomicBool::new(false) }));
    // Of two threads, both found the same folder.
    PLACE.store(place, Ordering::Release);
    extern "C" fn at_quick_exit() {
        end();
    }
    // SAFETY: the handler stays loaded with the library. Where it cannot be registered, the next process cleans up.
    unsafe { libc_at_quick_exit(at_quick_exit) };
    Ok(place)
}

unsafe extern "C" {
    #[link_name = "at_quick_exit"]
    fn libc_at_quick_exit(callback: extern "C" fn()) -> std::ffi::c_int;
}

fn zeroed(path: &[u8]) -> Vec<u8> {
    [path, b"\0"].concat()
}

/// Puts a node, and what is below it, where a real call finds it, and replaces the node's path in the buffer by that
/// place's.
pub(super) fn prepare(node: &Node, path: &mut Buffer) -> Result<(), Unprepared> {
    if matches!(node.kind, Kind::Character { .. }) {
        path.truncate(0);
        return Ok(path.push(STAND_IN.strip_suffix(b"\0").unwrap_or(STAND_IN))?);
    }
    locate(node, path)?;
    if node.is_folder() {
        let place = own()?;
        if !place.is_full.swap(true, Ordering::Relaxed) {
            put_below(place, b"")?;
        } else {
            put_below(place, &node.path)?;
        }
    }
    Ok(())
}

/// Is there a place? Without one there is nothing.
pub(super) fn find() -> Result<(), Unprepared> {
    own()?;
    Ok(())
}

/// Puts a node alone where a real call finds it.
pub(super) fn locate(node: &Node, path: &mut Buffer) -> Result<(), Unprepared> {
    let place = own()?;
    put(place, node, path)?;
    Ok(())
}

/// Why nothing can be put there.
pub(super) enum Unprepared {
    Errno(std::ffi::c_int),
    /// There is no place.
    Nowhere(String),
}

impl From<std::ffi::c_int> for Unprepared {
    fn from(errno: std::ffi::c_int) -> Self {
        Self::Errno(errno)
    }
}

impl From<String> for Unprepared {
    fn from(why: String) -> Self {
        Self::Nowhere(why)
    }
}

fn put_below(place: &Place, folder: &[u8]) -> Result<(), std::ffi::c_int> {
    let mut path = Buffer::new();
    for node in plan().below(folder) {
        put(place, node, &mut path)?;
        if node.is_shared() {
            share(node, &path);
        }
    }
    if let Some(node) = plan().find(folder).filter(|node| node.is_shared()) {
        put(place, node, &mut path)?;
        share(node, &path);
    }
    Ok(())
}

fn put(place: &Place, node: &Node, path: &mut Buffer) -> Result<(), std::ffi::c_int> {
    path.truncate(0);
    path.push(&place.root)?;
    path.push(&node.path)?;
    match &node.kind {
        Kind::Folder { .. } => make_folders(path, path.path().len()),
        Kind::Link(target) => link(path, target),
        Kind::Character { .. } => link(path, STAND_IN),
        Kind::File(content) => write(path, content),
    }
}

/// Makes a folder, and those above it, as far as the path goes.
fn make_folders(path: &Buffer, length: usize) -> Result<(), std::ffi::c_int> {
    let mut folder = Buffer::new();
    folder.push(&path.path()[..length])?;
    match sys::mkdir(folder.with_zero(), FOLDER_MODE) {
        // Whatever the program masks.
        Ok(()) => sys::chmod(folder.with_zero(), FOLDER_MODE),
        Err(libc::EEXIST) => Ok(()),
        Err(libc::ENOENT) => {
            let above = folder.path().iter().rposition(|&byte| byte == b'/').filter(|&above| above > 0);
            make_folders(path, above.ok_or(libc::ENOENT)?)?;
            match sys::mkdir(folder.with_zero(), FOLDER_MODE) {
                Err(libc::EEXIST) => Ok(()),
                made => made.and_then(|()| sys::chmod(folder.with_zero(), FOLDER_MODE)),
            }
        }
        Err(errno) => Err(errno),
    }
}

fn make_above(path: &Buffer) -> Result<(), std::ffi::c_int> {
    let above = path.path().iter().rposition(|&byte| byte == b'/').ok_or(libc::ENOENT)?;
    make_folders(path, above)
}

fn link(path: &Buffer, target: &[u8]) -> Result<(), std::ffi::c_int> {
    let made = match sys::symlink(target, path.with_zero()) {
        Err(libc::ENOENT) => {
            make_above(path)?;
            sys::symlink(target, path.with_zero())
        }
        made => made,
    };
    if made == Err(libc::EEXIST) { Ok(()) } else { made }
}

fn write(path: &Buffer, content: &Content) -> Result<(), std::ffi::c_int> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let (file, is_new) = match sys::openat(libc::AT_FDCWD, path.with_zero(), flags, 0) {
        Err(libc::ENOENT) => {
            let make = || sys::openat(libc::AT_FDCWD, path.with_zero(), flags | libc::O_CREAT, FILE_MODE);
            let file = match make() {
                Err(libc::ENOENT) => {
                    make_above(path)?;
                    make()
                }
                made => made,
            }?;
            // Whatever the program masks.
            sys::fchmod(&file, FILE_MODE)?;
            (file, true)
        }
        opened => (opened?, false),
    };
    if let (Content::Fixed(_), false) = (content, is_new) {
        return Ok(());
    }
    match text(content) {
        Some(text) => sys::set_content(&file, text.bytes()),
        None => Ok(()),
    }
}

/// Shows in a folder of ours what the kernel has in its own: a link to each entry.
fn share(node: &Node, path: &Buffer) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let entry = |folder: &[u8], name: &[u8]| {
        let mut entry = Buffer::new();
        entry.push(folder)?;
        entry.push(b"/")?;
        entry.push(name.strip_suffix(b"\0").unwrap_or(name)).map(|()| entry)
    };
    // Links to what has gone meanwhile.
    if let Ok(ours) = sys::openat(libc::AT_FDCWD, path.with_zero(), flags, 0) {
        let _ = sys::entries(&ours, |name| {
            let (Ok(own), Ok(real)) = (entry(&node.path, name), entry(&node.path, name)) else { return };
            if plan().find(own.path()).is_none() && !sys::exists(real.with_zero()) {
                let _ = sys::unlink(ours.raw(), name, 0);
            }
        });
    }
    let mut real = Buffer::new();
    let Ok(()) = real.push(&node.path) else { return };
    let Ok(theirs) = sys::openat(libc::AT_FDCWD, real.with_zero(), flags, 0) else { return };
    let _ = sys::entries(&theirs, |name| {
        let (Ok(theirs), Ok(own)) = (entry(&node.path, name), entry(path.path(), name)) else { return };
        if plan().find(theirs.path()).is_none() {
            let _ = sys::symlink(theirs.with_zero(), own.with_zero());
        }
    });
}

/// Removes the folder, before the process ends. Where it is another process's, nothing happens.
pub(crate) fn end() {
    remove(|place| {
        OVER.store(place.pid, Ordering::Relaxed);
        true
    });
}

/// Removes the folder, before another program takes the process's place, unless the new one starts in it.
pub(crate) fn before_exec() {
    remove(|place| {
        let mut folder = [0; libc::PATH_MAX as usize];
        let length = sys::getcwd(&mut folder).unwrap_or(0);
        !folder[..length].starts_with(&place.root)
    });
}

fn remove(is_wanted: impl FnOnce(&Place) -> bool) {
    let Some(place) = known() else { return };
    if place.pid != sys::pid() || place.euid != sys::euid() || !is_wanted(place) {
        return;
    }
    PLACE.store(ptr::null_mut(), Ordering::Release);
    let mut root = Buffer::new();
    if root.push(&place.root).is_ok() {
        sys::remove_folder(root.with_zero());
    }
}

/// Says why a path leads to nothing, to who asked for it with `--explain`.
pub(super) fn tell(path: &[u8], why: &dyn Display) {
    if explain::is_wanted() {
        explain::explain(&path.escape_ascii(), why);
    }
}
