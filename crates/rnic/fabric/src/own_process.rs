//! Descriptors that a forked child must not keep open. Two kinds exist: sockets that occupy a port or a name, and
//! connections. When this process dies, its connections end, and so the peers notice the death. A child with a copy of
//! a connection would delay that end.
#![allow(unsafe_code)]

mod gate;
/// Atomics of [`gate`]. The test with the model checker replaces them by those of loom.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}

use std::ffi::c_int;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use gate::Gate;

/// Maximum number of descriptors on the list of descriptors that forked children give up. Descriptors beyond this
/// number stay open in forked children.
const LISTED_MAX: usize = 8192;

/// Maximum time that a forking thread waits for threads that open descriptors, and that an opening thread waits for a
/// fork. Without a limit, a signal handler that forks could wait forever for the opening that it interrupted. A fork
/// handler of the program could also wait forever for a thread that itself waits for the fork.
///
/// The tests demand that no fork overtakes an opening, and a busy machine may keep a thread from its processor for
/// long.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 50 });

/// Time that a waiting thread sleeps between two checks.
const NAP: Duration = Duration::from_micros(50);

/// Entry of the list of descriptors that forked children give up.
struct Listed {
    /// Number of the descriptor plus one. 0 marks a free place, and -1 marks a place that is being filled.
    entry: AtomicI32,
    /// Device of the descriptor's file. Device and inode reveal that the program has closed the descriptor and reused
    /// its number for another file.
    device: AtomicU64,
    inode: AtomicU64,
}

static LISTED: [Listed; LISTED_MAX] =
    [const { Listed { entry: AtomicI32::new(0), device: AtomicU64::new(0), inode: AtomicU64::new(0) } }; LISTED_MAX];

/// Order of threads that open descriptors and threads that fork.
static GATE: Gate = Gate { opening: AtomicU32::new(0), forking: AtomicU32::new(0) };

/// Returns a function that sleeps for [`NAP`] per call. The function returns false once its caller has waited for
/// [`PATIENCE`].
fn naps() -> impl FnMut() -> bool {
    let mut waited = Duration::ZERO;
    move || {
        thread::sleep(NAP);
        waited += NAP;
        waited < PATIENCE
    }
}

/// Guard that a thread holds while it creates a descriptor and puts it on the list of descriptors that forked children
/// give up. A thread that closes such a descriptor holds the guard too. While the guard lives, other threads wait
/// before they fork. The holder must not wait for other threads.
#[derive(Debug)]
pub struct Opening(());

impl Opening {
    /// Waits until no thread forks. From then on, threads that want to fork must wait until the guard is dropped.
    pub fn begin() -> Self {
        watch_forks();
        GATE.begin_opening(naps());
        Self(())
    }

    /// Returns whether a thread forks now, so that [`begin`](Self::begin) would wait.
    pub fn would_wait() -> bool {
        GATE.forking.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        GATE.end_opening();
    }
}

/// A descriptor that forked children give up.
///
/// In a forked child, the descriptor number refers to a socket without name and peer. So the child's copy of this value
/// can access neither the parent's file nor a file that the child opens later.
///
/// The program may have closed the descriptor and reused its number for another file. Dropping this value does not
/// close such a file.
#[derive(Debug)]
pub struct OwnProcess {
    fd: ManuallyDrop<OwnedFd>,
    file: Option<File>,
    place: Option<usize>,
}

/// Device and inode of a file.
type File = (u64, u64);

impl OwnProcess {
    /// Puts a descriptor on the list of descriptors that forked children give up. The caller must have created the
    /// descriptor while it held the [`Opening`].
    pub fn new(fd: OwnedFd, _opening: &Opening) -> Self {
        let number = fd.as_raw_fd();
        let file = file_of(number);
        let place = file.and_then(|(device, inode)| {
            let take =
                |listed: &Listed| listed.entry.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let place = LISTED.iter().position(take)?;
            LISTED[place].device.store(device, Ordering::Relaxed);
            LISTED[place].inode.store(inode, Ordering::Relaxed);
            LISTED[place].entry.store(number + 1, Ordering::Release);
            Some(place)
        });
        Self { fd: ManuallyDrop::new(fd), file, place }
    }

    /// Returns a second descriptor of the same file. Forked children give up the second descriptor too.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn duplicate(&self) -> io::Result<Self> {
        let opening = Opening::begin();
        Ok(Self::new(self.fd.try_clone()?, &opening))
    }

    /// Returns whether the descriptor number still refers to the original file.
    pub fn is_intact(&self) -> bool {
        self.file.is_some() && self.file == file_of(self.fd.as_raw_fd())
    }

    /// Checks that the descriptor number still refers to the original file.
    ///
    /// # Errors
    ///
    /// EBADF: the program has closed the descriptor.
    pub fn expect_intact(&self) -> io::Result<()> {
        if self.is_intact() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }
}

/// Puts a new descriptor on the list of descriptors that forked children give up. A child that was forked before this
/// call keeps the descriptor open.
impl From<OwnedFd> for OwnProcess {
    fn from(fd: OwnedFd) -> Self {
        let opening = Opening::begin();
        Self::new(fd, &opening)
    }
}

impl AsFd for OwnProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        // The guard keeps forks away: the kernel copies descriptors before memory, so a child could have a copy of the
        // descriptor and no entry.
        let _opening = Opening::begin();
        // Close the descriptor before its entry in `LISTED` is removed. In between, another file may get the number. If
        // another thread forks nevertheless, the child compares device and inode, and leaves that file alone.
        if self.is_intact() {
            // SAFETY: the descriptor is dropped only here, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
        if let Some(place) = self.place {
            LISTED[place].entry.store(0, Ordering::Release);
        }
    }
}

/// Returns device and inode of a descriptor's file. Makes only a system call, because a forked child of a process with
/// threads may call only async-signal-safe functions.
fn file_of(fd: RawFd) -> Option<File> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills in the structure, which consists of integers.
    let stat = unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init())? };
    #[allow(clippy::unnecessary_cast, reason = "the C libraries differ in the types")]
    Some((stat.st_dev as u64, stat.st_ino as u64))
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Registers the fork handlers at the first call. [`Opening::begin`] calls this function.
///
/// A library whose own handler waits for calls of other threads calls this function before it registers that handler.
/// The C library runs handlers before a fork in reverse order, so the wait ends before threads with an [`Opening`] have
/// to wait for the fork.
pub fn watch_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel) {
        // SAFETY: the functions live as long as the code. They only access atomics, sleep, and make system calls, which
        // a forked child of a process with threads may do.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(give_up_in_child)) };
    }
}

/// Waits until each thread that is opening a descriptor has put it on the list of descriptors that forked children give
/// up.
extern "C" fn before_fork() {
    GATE.begin_forking(naps());
}

extern "C" fn after_fork() {
    GATE.end_forking();
}

/// Replaces all listed descriptors in a forked child by a socket without name and peer.
extern "C" fn give_up_in_child() {
    GATE.reset();
    let mut stand_in = None;
    for listed in &LISTED {
        // Clear the entry. Later, this number may refer to another file of the child, and a child of the child must not
        // replace that file.
        let fd = listed.entry.swap(0, Ordering::AcqRel) - 1;
        let file = (listed.device.load(Ordering::Relaxed), listed.inode.load(Ordering::Relaxed));
        if fd >= 0 && file_of(fd) == Some(file) {
            stand_in = replace(fd, stand_in);
        }
    }
    if let Some(fd) = stand_in {
        // SAFETY: `replace` opened the descriptor.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
}

/// Replaces a descriptor by a copy of the stand-in, a socket without name and peer. Opens the stand-in if `stand_in` is
/// `None`. If the replacement fails, the descriptor is closed.
fn replace(fd: RawFd, stand_in: Option<RawFd>) -> Option<RawFd> {
    let open = || {
        // SAFETY: the call only takes numbers.
        let made = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        RawFd::try_from(made).ok().filter(|&made| made >= 0)
    };
    let close = || {
        // SAFETY: the descriptor is the parent's, and the child gives it up.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    };
    let Some(made) = stand_in.or_else(open) else {
        // The process has reached its limit of descriptors. Closing `fd` makes room for the stand-in.
        close();
        return open().filter(|&made| made != fd);
    };
    // SAFETY: the call only takes numbers. It closes the parent's file, which the child gives up.
    if unsafe { libc::syscall(libc::SYS_dup3, made, fd, libc::O_CLOEXEC) } < 0 {
        close();
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read as _};
    use std::os::fd::FromRawFd as _;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;
    use crate::link::Link as _;
    use crate::udp::{BindRequest, bind};

    /// Time after which a test fails. Children of other tests end sooner.
    const LONG: Duration = Duration::from_secs(20);

    /// A forked child process, which is killed when this value is dropped. The child only sleeps.
    struct Child(libc::pid_t);

    impl Child {
        fn fork() -> Self {
            // SAFETY: the child only calls `pause`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                loop {
                    // SAFETY: the call has no arguments.
                    unsafe { libc::pause() };
                }
            }
            assert!(child > 0);
            Self(child)
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let mut status = 0;
            // SAFETY: the child was forked by `fork`, and no call has waited for it yet.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                assert_eq!(libc::waitpid(self.0, &raw mut status, 0), self.0);
            }
        }
    }

    /// Lock that lets the forking tests run one after the other. A forked child gives up only the descriptors in
    /// `LISTED`. So it would keep open a pipe that another test has just created, and that test would wait for the
    /// pipe's end.
    static TURN: Mutex<()> = Mutex::new(());

    /// Returns whether the read end of a pipe reports its end within the given time. It does once no process holds the
    /// write end open.
    fn ends(mut pipe: PipeReader, within: Duration) -> bool {
        let flags = libc::O_NONBLOCK;
        // SAFETY: the call only takes numbers.
        assert_eq!(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags) }, 0);
        let start = Instant::now();
        while start.elapsed() < within {
            match pipe.read(&mut [0]) {
                Ok(0) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
                unexpected => panic!("{unexpected:?}"),
            }
        }
        false
    }

    #[test]
    fn a_forked_child_closes_every_listed_descriptor() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let _turn = TURN.lock();
        // This thread creates and lists descriptors all the time, while the test's main thread forks children.
        let opener = thread::spawn(|| {
            let (mut kept, mut closed) = (Vec::new(), Vec::new());
            while !STOP.load(Ordering::Relaxed) {
                let opening = Opening::begin();
                let (reader, writer) = io::pipe().unwrap();
                thread::yield_now();
                let own = OwnProcess::new(writer.into(), &opening);
                drop(opening);
                kept.push((reader, own));
                if kept.len() == 8 {
                    for (reader, own) in kept.drain(..) {
                        drop(own);
                        closed.push(reader);
                    }
                    closed.truncate(200);
                }
            }
            (kept, closed)
        });
        // Fork children while `opener` creates and closes write ends of pipes. Afterwards, each read end must report
        // the end of its pipe, since no child may hold the write end open.
        let mut children = Vec::new();
        for _ in 0..50 {
            thread::sleep(Duration::from_micros(300));
            children.push(Child::fork());
        }
        STOP.store(true, Ordering::Relaxed);
        let mut looked_at = 0;
        let (kept, closed) = opener.join().unwrap();
        for reader in closed {
            assert!(ends(reader, LONG), "a child holds a descriptor that was closed");
        }
        for (reader, own) in kept {
            drop(own);
            assert!(ends(reader, LONG), "a child holds a descriptor");
            looked_at += 1;
        }
        let opening = Opening::begin();
        let (reader, writer) = io::pipe().unwrap();
        let own = OwnProcess::new(writer.into(), &opening);
        drop(opening);
        children.push(Child::fork());
        drop(own);
        assert!(ends(reader, LONG), "a child holds a descriptor, after {looked_at} that no child held");
    }

    #[test]
    fn a_descriptor_is_not_closed_during_a_fork() {
        let _turn = TURN.lock();
        let opening = Opening::begin();
        let (reader, writer) = io::pipe().unwrap();
        let own = OwnProcess::new(writer.into(), &opening);
        drop(opening);
        let place = own.place.unwrap();
        // The kernel copies descriptors and memory between these two handlers.
        before_fork();
        let closer = thread::spawn(move || drop(own));
        let is_closed = ends(reader.try_clone().unwrap(), Duration::from_millis(100));
        let is_listed = LISTED[place].entry.load(Ordering::Acquire) != 0;
        after_fork();
        closer.join().unwrap();
        assert!(!is_closed, "the descriptor was closed during the fork");
        assert!(is_listed, "the descriptor left the list during the fork");
        assert!(ends(reader, LONG), "the descriptor stays open after the fork");
    }

    #[test]
    fn a_file_that_reuses_a_listed_number_stays_open() {
        let _turn = TURN.lock();
        let opening = Opening::begin();
        let (_reader, writer) = io::pipe().unwrap();
        let own = OwnProcess::new(writer.into(), &opening);
        drop(opening);
        let (reader, theirs) = io::pipe().unwrap();
        // Replace the descriptor by another file, as a program might that closes all descriptors.
        // SAFETY: both numbers are open.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), own.as_fd().as_raw_fd()) }, own.as_fd().as_raw_fd());
        drop(theirs);
        let child = Child::fork();
        let number = own.as_fd().as_raw_fd();
        drop(own);
        assert!(!ends(reader.try_clone().unwrap(), Duration::from_millis(20)), "another file was closed");
        // SAFETY: the number is a duplicate of `theirs`.
        drop(unsafe { std::fs::File::from_raw_fd(number) });
        assert!(!ends(reader.try_clone().unwrap(), Duration::from_millis(100)), "the child closed another file");
        drop(child);
        assert!(ends(reader, LONG));
    }

    /// Tests that a forked child does not occupy the port of its parent's device. The child must close its copies of
    /// three sockets: the device's socket, the socket of a group, and the duplicate on which a thread waits.
    #[test]
    fn a_port_is_free_while_a_forked_child_lives() {
        let _turn = TURN.lock();
        let address = std::net::IpAddr::from([127, 77, 43, 81]);
        let request = BindRequest { address: Some(address), port: 47_917, ..BindRequest::default() };
        let mut link = bind(request).unwrap();
        let group = link.join([224, 0, 43, 81].into()).unwrap();
        let readable = link.readable().unwrap();
        let number = readable.as_fd().as_raw_fd();
        let child = Child::fork();
        let held = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        // SAFETY: the call only checks whether the process exists.
        assert_eq!(unsafe { libc::kill(child.0, 0) }, 0);
        drop((link, group, readable));
        // The child closes its copies before `fork` returns in the child, but `fork` may return in this process
        // earlier.
        let until = Instant::now() + LONG;
        let again = loop {
            match bind(request) {
                Ok(link) => break link,
                Err(error) => assert!(Instant::now() < until, "the port is not free: {error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let of_child = std::fs::read_dir(format!("/proc/{}/fd", child.0)).unwrap();
        let links: Vec<_> = of_child.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
        assert!(!links.contains(&held), "the child holds {held:?} of {links:?}");
        drop((again, child));
    }
}
