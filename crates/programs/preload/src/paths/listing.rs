//! Lists of a folder's entries. The kernel shows no entries in a removed folder, so the functions of this module answer
//! from the plan.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ops::ControlFlow;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::names::NAME_MAX;
use super::plan::{Kind, Node, plan};
use super::route::Buffer;
use super::{names, next, sys};
use crate::objects::answer::set_errno;
use crate::process::wait::Uncancelled;

/// A folder entry as programs read it. On x86-64 and AArch64, `dirent` and `dirent64` are the same structure.
pub(super) type Entry = libc::dirent64;

const _: () = assert!(size_of::<libc::dirent>() == size_of::<Entry>());

/// Offset of the name in an entry.
const NAME_AT: usize = std::mem::offset_of!(Entry, d_name);

/// Returns the entries of a served folder. For a shared folder, adds the entries that the kernel shows.
pub(super) fn entries(folder: &Node) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut add = |inode: u64, kind: u8, name: &[u8]| {
        let name = &name[..name.len().min(NAME_MAX)];
        // SAFETY: zeros are a valid entry.
        let mut entry: Entry = unsafe { std::mem::zeroed() };
        entry.d_ino = inode;
        // Position of the next entry.
        entry.d_off = all.len() as i64 + 1;
        entry.d_type = kind;
        entry.d_reclen = (NAME_AT + name.len() + 1).next_multiple_of(align_of::<Entry>()) as u16;
        for (to, &byte) in entry.d_name.iter_mut().zip(name) {
            *to = byte as c_char;
        }
        all.push(entry);
    };
    let above = folder.path.iter().rposition(|&byte| byte == b'/').and_then(|end| plan().find(&folder.path[..end]));
    add(folder.inode(), libc::DT_DIR, b".");
    add(above.map_or(1, Node::inode), libc::DT_DIR, b"..");
    for node in plan().within(folder) {
        let kind = match node.kind {
            Kind::Folder { .. } => libc::DT_DIR,
            Kind::File(_) => libc::DT_REG,
            Kind::Link(_) => libc::DT_LNK,
            Kind::Character { .. } => libc::DT_CHR,
        };
        add(node.inode(), kind, node.name());
    }
    let mut real = Buffer::new();
    if folder.is_shared() && real.push(&folder.path).is_ok() {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let Ok(theirs) = sys::openat(libc::AT_FDCWD, real.with_zero(), flags, 0) else { return all };
        let _ = sys::entries(&theirs, |entry| {
            let name = &entry.name[..entry.name.len() - 1];
            if plan().within(folder).all(|node| node.name() != name) {
                add(entry.inode, entry.kind, name);
            }
            ControlFlow::Continue(())
        });
    }
    all
}

/// An open stream of a served folder. The library never frees a `Stream`, but reuses it.
struct Stream {
    /// The stream of the C library, or null if this `Stream` is unused.
    stream: AtomicPtr<libc::DIR>,
    node: AtomicPtr<Node>,
    entries: AtomicPtr<Vec<Entry>>,
    /// Index of the next entry.
    position: AtomicUsize,
    /// The `Stream` that was created before this `Stream`.
    before: *const Self,
}

// SAFETY: no thread changes `before`, and all other fields are atomic.
unsafe impl Sync for Stream {}

/// The most recently created `Stream`: the head of the list of all `Stream`s. The list has no lock. A forked child
/// could inherit a locked lock whose holder does not exist in the child.
static STREAMS: AtomicPtr<Stream> = AtomicPtr::new(ptr::null_mut());

/// Marks a `Stream` that is neither free nor used by a stream of the C library yet.
const CLAIMED: *mut libc::DIR = ptr::without_provenance_mut(1);

fn streams() -> impl Iterator<Item = &'static Stream> {
    // SAFETY: the pointer is null, or refers to a leaked box.
    let first = unsafe { STREAMS.load(Ordering::Acquire).as_ref() };
    // SAFETY: the pointer is null, or refers to a leaked box.
    std::iter::successors(first, |stream| unsafe { stream.before.as_ref() })
}

#[inline]
fn find(stream: *mut libc::DIR) -> Option<&'static Stream> {
    if STREAMS.load(Ordering::Relaxed).is_null() || stream.is_null() {
        return None;
    }
    streams().find(|known| known.stream.load(Ordering::Acquire) == stream)
}

/// Records that a stream of the C library belongs to a served folder.
pub(super) fn remember(stream: *mut libc::DIR, node: &'static Node) {
    let claim = |known: &&Stream| {
        known.stream.compare_exchange(ptr::null_mut(), CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let known = streams().find(claim).unwrap_or_else(|| {
        let mut new = Box::new(Stream {
            stream: AtomicPtr::new(CLAIMED),
            node: AtomicPtr::new(ptr::null_mut()),
            entries: AtomicPtr::new(ptr::null_mut()),
            position: AtomicUsize::new(0),
            before: STREAMS.load(Ordering::Acquire),
        });
        loop {
            let before = new.before.cast_mut();
            let made = Box::into_raw(new);
            match STREAMS.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the box was just leaked.
                Ok(_) => break unsafe { &*made },
                Err(other) => {
                    // SAFETY: the pointer was just created from a box, and no other thread has the pointer.
                    new = unsafe { Box::from_raw(made) };
                    new.before = other;
                }
            }
        }
    });
    known.position.store(0, Ordering::Relaxed);
    known.node.store(ptr::from_ref(node).cast_mut(), Ordering::Relaxed);
    known.entries.store(Box::into_raw(Box::new(entries(node))), Ordering::Relaxed);
    known.stream.store(stream, Ordering::Release);
}

impl Stream {
    fn entries(&self) -> &[Entry] {
        // SAFETY: the pointer is null, or refers to a box that exists until the program closes or rewinds the stream.
        unsafe { self.entries.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
    }

    /// Returns the next entry, or null after the last entry.
    fn next(&self) -> *mut Entry {
        let all = self.entries();
        let step = |position| (position < all.len()).then_some(position + 1);
        match self.position.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
            Ok(position) => ptr::from_ref(&all[position]).cast_mut(),
            Err(_) => ptr::null_mut(),
        }
    }

    fn rewind(&self) {
        self.position.store(0, Ordering::Relaxed);
        // SAFETY: the pointer is null, or refers to a node of the plan, which is never freed.
        if let Some(node) = unsafe { self.node.load(Ordering::Relaxed).as_ref() }.filter(|node| node.is_shared()) {
            self.replace(Box::into_raw(Box::new(entries(node))));
        }
    }

    fn replace(&self, new: *mut Vec<Entry>) {
        let old = self.entries.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the pointer was created from a box. This thread has just taken the pointer out of the field.
            drop(unsafe { Box::from_raw(old) });
        }
    }

    fn forget(&self) {
        self.replace(ptr::null_mut());
        self.stream.store(ptr::null_mut(), Ordering::Release);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopendir(fd: c_int) -> *mut libc::DIR {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    let stream = unsafe { next::fdopendir(fd) };
    if !stream.is_null() {
        let errno = sys::errno();
        if let Some(node) = names::node_of(fd) {
            let _uncancelled = Uncancelled::new();
            remember(stream, node);
        }
        set_errno(errno);
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closedir(stream: *mut libc::DIR) -> c_int {
    // Forget the stream before the C library frees it, since the next stream may use the same memory.
    if let Some(known) = find(stream) {
        known.forget();
    }
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    unsafe { next::closedir(stream) }
}

macro_rules! readdirs {
    ($($name:ident -> $entry:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(stream: *mut libc::DIR) -> *mut $entry {
                match find(stream) {
                    Some(known) => known.next().cast(),
                    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                    None => unsafe { next::$name(stream) },
                }
            }
        )*
    };
}

readdirs! {
    readdir -> libc::dirent;
    readdir64 -> libc::dirent64;
}

macro_rules! readdirs_into {
    ($($name:ident -> $entry:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                stream: *mut libc::DIR, into: *mut $entry, found: *mut *mut $entry
            ) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                // `into` has room for an entry.
                unsafe {
                    let Some(known) = find(stream) else { return next::$name(stream, into, found) };
                    let entry = known.next();
                    if entry.is_null() {
                        found.write(ptr::null_mut());
                    } else {
                        ptr::copy_nonoverlapping(entry.cast::<u8>(), into.cast(), usize::from((*entry).d_reclen));
                        found.write(into);
                    }
                    0
                }
            }
        )*
    };
}

readdirs_into! {
    readdir_r -> libc::dirent;
    readdir64_r -> libc::dirent64;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rewinddir(stream: *mut libc::DIR) {
    match find(stream) {
        Some(known) => known.rewind(),
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        None => unsafe { next::rewinddir(stream) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn seekdir(stream: *mut libc::DIR, position: c_long) {
    match find(stream) {
        Some(known) => known.position.store(usize::try_from(position).unwrap_or(usize::MAX), Ordering::Relaxed),
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        None => unsafe { next::seekdir(stream, position) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn telldir(stream: *mut libc::DIR) -> c_long {
    match find(stream) {
        Some(known) => known.position.load(Ordering::Relaxed) as c_long,
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        None => unsafe { next::telldir(stream) },
    }
}

/// Reads the entries of a folder. This function of the C library wraps the system call `getdents64`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getdents64(fd: c_int, into: *mut c_void, size: usize) -> isize {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    let length = unsafe { next::getdents64(fd, into, size) };
    // The kernel returns ENOENT only for a removed folder, so any other result is final.
    if length != -1 || sys::errno() != libc::ENOENT {
        return length;
    }
    let _uncancelled = Uncancelled::new();
    // SAFETY: the caller's buffer has room for `size` bytes.
    match unsafe { fill(fd, into.cast(), size) } {
        Ok(length) => length as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Fills a buffer with the entries of a folder, starting at the position of its descriptor. Returns the number of
/// bytes.
///
/// # Safety
///
/// `into` has room for `size` bytes.
unsafe fn fill(fd: c_int, into: *mut u8, size: usize) -> Result<usize, c_int> {
    let node = names::node_of(fd).filter(|node| node.is_folder()).ok_or(libc::ENOENT)?;
    let position = sys::position(fd)?;
    let (mut length, mut next) = (0, position);
    let all = entries(node);
    for entry in all.iter().skip(position) {
        let bytes = usize::from(entry.d_reclen);
        if length + bytes > size {
            break;
        }
        // SAFETY: the entry and the rest of the buffer have at least `bytes` bytes.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(entry).cast(), into.add(length), bytes) };
        length += bytes;
        next += 1;
    }
    if next == position && position < all.len() {
        return Err(libc::EINVAL);
    }
    sys::set_position(fd, next)?;
    Ok(length)
}

/// Copied entries in memory of the C library. The program frees the copies.
#[derive(Clone, Copy)]
pub(super) struct Copies {
    list: *mut *mut Entry,
    count: usize,
}

impl Copies {
    /// Copies the entries of a folder. Returns `None` if no memory is available.
    pub(super) fn of(folder: &Node) -> Option<Self> {
        let all = entries(folder);
        // SAFETY: each piece of the C library's memory has at least the length of the entry that is copied to it.
        unsafe {
            let list: *mut *mut Entry = libc::calloc(all.len(), size_of::<*mut Entry>()).cast();
            let mut copies = Self { list, count: 0 };
            if list.is_null() {
                return None;
            }
            for entry in &all {
                let bytes = usize::from(entry.d_reclen);
                let copy = libc::malloc(bytes);
                if copy.is_null() {
                    copies.free();
                    return None;
                }
                ptr::copy_nonoverlapping(ptr::from_ref(entry).cast::<u8>(), copy.cast(), bytes);
                list.add(copies.count).write(copy.cast());
                copies.count += 1;
            }
            Some(copies)
        }
    }

    unsafe fn free(self) {
        // SAFETY: the list and its entries are memory of the C library.
        unsafe {
            (0..self.count).for_each(|at| libc::free((*self.list.add(at)).cast()));
            libc::free(self.list.cast());
        }
    }

    /// Keeps the entries that the program's filter selects, and sorts them with the program's comparison function.
    /// Either function of the program may leave by `longjmp`, so this frame holds no value that must be dropped.
    ///
    /// # Safety
    ///
    /// Each of `filter` and `order` is null, or a function of the type that `scandir` requires.
    pub(super) unsafe fn select(mut self, filter: *const c_void, order: *const c_void) -> Self {
        type Filter = unsafe extern "C-unwind" fn(*const Entry) -> c_int;
        unsafe extern "C-unwind" {
            fn qsort(list: *mut c_void, count: usize, size: usize, order: *const c_void);
        }
        // SAFETY: the caller guarantees the types of the functions. The loop moves or frees each entry of the list
        // once.
        unsafe {
            if !filter.is_null() {
                let filter = std::mem::transmute::<*const c_void, Filter>(filter);
                let mut kept = 0;
                for at in 0..self.count {
                    let entry = *self.list.add(at);
                    if filter(entry) != 0 {
                        self.list.add(kept).write(entry);
                        kept += 1;
                    } else {
                        libc::free(entry.cast());
                    }
                }
                self.count = kept;
            }
            if !order.is_null() && self.count > 1 {
                qsort(self.list.cast(), self.count, size_of::<*mut Entry>(), order);
            }
        }
        self
    }

    /// Passes the list to the program, and returns its length.
    ///
    /// # Safety
    ///
    /// `into` is the argument of `scandir` in which the program receives the list.
    pub(super) unsafe fn hand_over(self, into: *mut *mut *mut c_void) -> c_int {
        // SAFETY: the caller guarantees that `into` is valid.
        unsafe { into.write(self.list.cast()) };
        self.count as c_int
    }
}
