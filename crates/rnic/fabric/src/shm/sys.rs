//! Memory that two processes share, and the descriptors that they pass to each other.
//!
//! The peer may write the shared memory at any time, so this module makes no references to its bytes. Words are
//! atomics, and packets are copied through raw pointers. All offsets are checked against the size of the mapping,
//! whatever the memory contains. The file is a memfd with seals, so that it never shrinks under the mapping. If the
//! kernel does not overcommit memory, the whole file is allocated before it is mapped, so that each page exists.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use doorbell_rnic::{LentMemory, Payload};

use super::ring::Memory;

/// Size of one ring in bytes. The RNIC limits the requests in flight to one device to 1 MiB, and the READ responses to
/// another 1 MiB. A packet counts towards these limits with more bytes than it takes in the ring. So the ring has room
/// for all of them.
pub(super) const RING_BYTES: usize = 2 << 20;

/// Size in bytes of the control page, which precedes the rings. For each ring, the page holds two words on separate
/// cache lines: the reader's position, and whether the reader sleeps.
const CONTROL_BYTES: usize = 4096;

/// Size of the file in bytes.
const FILE_BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES;

/// Size of the mapping in bytes. Each ring is mapped twice in a row, so that a record that wraps around is contiguous.
const MAPPED_BYTES: usize = CONTROL_BYTES + 4 * RING_BYTES;

/// Distance in bytes between the words of the two rings in the control page: four cache lines.
const CONTROL_STRIDE: usize = 256;
const SLEEPS_OFFSET: usize = 128;

/// Type of the file system of a memfd without huge pages (`TMPFS_MAGIC`).
const TMPFS: i64 = 0x0102_1994;

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Mapping of the control page and both rings of a pair of devices.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    /// Process that created the mapping. A forked child does not inherit the mapping, and may have other memory at that
    /// address.
    process: u32,
    /// Whether all pages of the file were allocated before mapping. If so, `discard` does nothing.
    is_allocated: bool,
}

// SAFETY: the mapping belongs to the process, and is only accessed through atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns whether the kernel does not overcommit memory (`vm.overcommit_memory` is 2). Then the first access to a page
/// without memory may fail and end the process.
fn kernel_counts_every_page() -> bool {
    std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.starts_with(b"2"))
}

impl Mapping {
    /// Creates and seals the file for a new pair of devices, and maps it.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        // Kernels before 6.3 reject MFD_NOEXEC_SEAL; later kernels may be configured to require it.
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string that outlives both calls.
        let fd = unsafe {
            checked(libc::memfd_create(c"doorbell-link".as_ptr(), flags | libc::MFD_NOEXEC_SEAL))
                .or_else(|_| checked(libc::memfd_create(c"doorbell-link".as_ptr(), flags)))?
        };
        // SAFETY: the call above created the descriptor, and nothing else knows it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: both calls only take numbers.
        unsafe {
            checked(libc::ftruncate(fd, FILE_BYTES as libc::off_t))?;
            checked(libc::fcntl(fd, libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Self::map(file.as_fd())?, file))
    }

    /// Maps the file that a peer created, if it has the right type, size and seals.
    pub(super) fn adopt(file: BorrowedFd<'_>) -> io::Result<Self> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let fd = file.as_raw_fd();
        // SAFETY: a `stat` and a `statfs` consist of integers, for which zero is a value; the kernel fills them in.
        let (stat, system) = unsafe {
            let (mut stat, mut system): (libc::stat, libc::statfs) = (std::mem::zeroed(), std::mem::zeroed());
            checked(libc::fstat(fd, &mut stat))?;
            checked(libc::fstatfs(fd, &mut system))?;
            (stat, system)
        };
        #[allow(clippy::unnecessary_cast, reason = "the C libraries differ in the type")]
        if system.f_type as i64 != TMPFS {
            return refused("the peer's file is not in memory");
        }
        if stat.st_size != FILE_BYTES as libc::off_t {
            return refused("the peer's file has another size");
        }
        // SAFETY: the call only takes numbers.
        let seals = unsafe { checked(libc::fcntl(fd, libc::F_GET_SEALS))? };
        if seals & SEALS != SEALS {
            return refused("the peer's file is not sealed");
        }
        Self::map(file)
    }

    fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let place = |at: *mut u8, length: usize, flags: c_int, fd: RawFd, offset: usize| {
            let protection = if fd < 0 { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
            // SAFETY: either the kernel chooses the address, or the range lies in the reservation that `map` made
            // before.
            let mapped = unsafe { libc::mmap(at.cast(), length, protection, flags, fd, offset as libc::off_t) };
            if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.cast::<u8>()) }
        };
        let is_allocated = kernel_counts_every_page();
        if is_allocated {
            // If `vm.overcommit_memory` was not yet 2 when the peer created the file, the peer did not allocate the
            // pages. The call does not change pages that are allocated already.
            // SAFETY: the call only takes numbers.
            checked(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, FILE_BYTES as libc::off_t) })?;
        }
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // From here on, dropping `mapping` unmaps the reservation.
        let base = place(ptr::null_mut(), MAPPED_BYTES, reserve, -1, 0)?;
        let mapping = Self { base, process: std::process::id(), is_allocated };
        let share = |at: usize, length: usize, offset: usize| {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            place(mapping.base.wrapping_add(at), length, flags, file.as_raw_fd(), offset)
        };
        share(0, CONTROL_BYTES, 0)?;
        for ring in 0..2 {
            for copy in 0..2 {
                share(ring_offset(ring) + copy * RING_BYTES, RING_BYTES, CONTROL_BYTES + ring * RING_BYTES)?;
            }
        }
        // A forked child must not inherit the mapping, which would keep the memory allocated. The child cannot use the
        // device anyway.
        // SAFETY: the range is the mapping's, and the advice changes nothing for this process.
        checked(unsafe { libc::madvise(base.cast(), MAPPED_BYTES, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < MAPPED_BYTES);
        // SAFETY: the word consists of eight aligned bytes of the mapping, which lives as long as `self`. Both
        // processes access it by atomic operations. A peer that uses other operations can only change the number.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }
}

/// Returns the offset of a ring in the mapping.
const fn ring_offset(ring: usize) -> usize {
    CONTROL_BYTES + ring * 2 * RING_BYTES
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: this process made the reservation in `map`, and no `Ring` refers to the mapping any more.
        unsafe { libc::munmap(self.base.cast(), MAPPED_BYTES) };
    }
}

/// One ring of a mapping.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    mapping: Arc<Mapping>,
    ring: usize,
}

impl Ring {
    /// Returns the two rings. The process that created the mapping writes to the first ring and reads from the second.
    /// Its peer does the opposite.
    pub(super) fn both(mapping: Mapping) -> [Self; 2] {
        let mapping = Arc::new(mapping);
        [0, 1].map(|ring| Self { mapping: Arc::clone(&mapping), ring })
    }

    fn control(&self, offset: usize) -> &AtomicU64 {
        self.mapping.word(self.ring * CONTROL_STRIDE + offset)
    }

    /// Returns a range of the ring as a payload, which the caller copies.
    #[inline]
    pub(super) fn payload(&self, at: usize, length: usize) -> Payload<'_> {
        // SAFETY: `place` checks that the range lies in the ring and its copy, which are mapped for as long as `self`
        // lives.
        unsafe { Payload::shared(self.place(at, length), length) }
    }

    /// Lends a range of the ring that is free, for records that are published later.
    pub(super) fn lend(&self, at: usize, length: usize) -> LentMemory {
        // SAFETY: `place` checks that the range lies in the ring and its copy, which the mapping maps for writing. This
        // process accesses the range otherwise only by the raw copies of this type.
        unsafe { LentMemory::new(self.place(at, length), length, self.mapping.clone()) }
    }

    /// Returns the number of bytes of the ring for which the kernel has allocated memory.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        const PAGE: usize = 4096;
        let mut pages = vec![0_u8; RING_BYTES / PAGE];
        // SAFETY: the range is the ring, and `pages` has a byte for each page of the ring. No page is smaller than
        // `PAGE`.
        let result = unsafe { libc::mincore(self.place(0, RING_BYTES).cast(), RING_BYTES, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        PAGE * pages.iter().filter(|page| **page & 1 != 0).count()
    }

    fn place(&self, at: usize, length: usize) -> *mut u8 {
        // The second copy of the ring follows the first copy, so a range may extend into it.
        assert!(at <= 2 * RING_BYTES && length <= 2 * RING_BYTES - at);
        self.mapping.base.wrapping_add(ring_offset(self.ring) + at)
    }
}

impl Memory for Ring {
    fn capacity(&self) -> usize {
        RING_BYTES
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        assert!(at < RING_BYTES);
        self.mapping.word(ring_offset(self.ring) + at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: usize, word: u64) {
        assert!(at < RING_BYTES);
        self.mapping.word(ring_offset(self.ring) + at).store(word, Ordering::Release);
    }

    #[inline]
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        // SAFETY: `place` checks that the range lies in the ring and its copy, which are mapped for as long as `self`
        // lives. `bytes` is private memory. Concurrent accesses of the peer to the range only affect the peer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(at, bytes.len()), bytes.len()) }
    }

    #[inline]
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        // SAFETY: as for `copy_in`. If the peer writes to the range at the same time, the copy may mix old and new
        // bytes, which is allowed.
        unsafe { ptr::copy_nonoverlapping(self.place(at, bytes.len()), bytes.as_mut_ptr(), bytes.len()) }
    }

    #[inline]
    fn head(&self) -> u64 {
        self.control(0).load(Ordering::Acquire)
    }

    #[inline]
    fn set_head(&self, head: u64) {
        self.control(0).store(head, Ordering::Release);
    }

    #[inline]
    fn sleeps(&self) -> bool {
        self.control(SLEEPS_OFFSET).load(Ordering::Relaxed) != 0
    }

    fn set_sleeps(&self, sleeps: bool) -> bool {
        self.control(SLEEPS_OFFSET).swap(sleeps.into(), Ordering::AcqRel) != 0
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn discard(&self) {
        if self.mapping.is_allocated {
            return;
        }
        // The call frees the ring's pages for both mapped copies and in both processes. The kernel rejects the call for
        // locked memory. Then the ring keeps its contents, which is also correct.
        // SAFETY: the range is the ring. Afterwards it reads as zeros, which the peer could have stored too.
        unsafe { libc::madvise(self.place(0, RING_BYTES).cast(), RING_BYTES, libc::MADV_REMOVE) };
    }
}

/// Accepts the next connection that waits in the queue of a listener.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel is not asked for the caller's address.
    let fd = checked(unsafe { libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags) })?;
    // SAFETY: the call above created the descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces a descriptor by another file, as a program might that closes all descriptors and reuses their numbers.
#[cfg(test)]
pub(super) fn replace(fd: RawFd, by: BorrowedFd<'_>) -> OwnedFd {
    // SAFETY: the number is open. The test checks that its previous owner notices the replacement.
    unsafe {
        assert_eq!(libc::dup2(by.as_raw_fd(), fd), fd);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Result of one call of [`receive_message`].
#[derive(Debug)]
pub(super) struct Received {
    /// Length of the message in bytes; 0 at the end of the connection.
    pub(super) length: usize,
    /// Descriptors that arrived with the message.
    pub(super) files: Vec<OwnedFd>,
    /// Whether all bytes and descriptors of the message arrived. The kernel truncates messages that exceed the buffers.
    pub(super) is_whole: bool,
}

/// Receives the next message of a connection, without waiting.
///
/// If a message has more descriptors than fit into the buffer, or than this process may open, the kernel installs only
/// the first of them. This function returns all installed descriptors, and the caller closes those that it does not
/// want.
pub(super) fn receive_message(connection: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    // Buffer for a header and two descriptors. Valid messages have at most one descriptor.
    let mut control = [0_u64; 3];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` consists of integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the buffers of the message live in this function and in `bytes`.
    let length = unsafe { libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut files = Vec::new();
    // SAFETY: the kernel wrote control messages up to `msg_controllen`, and the CMSG functions stay within that length.
    // `cmsg_len` limits the data of a message. The data of SCM_RIGHTS consist of descriptors.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                #[allow(clippy::unnecessary_cast, reason = "the C libraries differ in the type")]
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                let numbers = (0..bytes / size_of::<RawFd>()).map(|index| first.add(index).read_unaligned());
                files.extend(numbers.map(|fd| OwnedFd::from_raw_fd(fd)));
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    let is_whole = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
    Ok(Received { length, files, is_whole })
}
