//! Descriptors that must end with this process, so that a forked child must not hold them open. They are sockets that
//! own a port or a name, and connections whose end tells a peer that the process has died.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::gate::Gate;

/// Maximum number of descriptors that a forked child gives up. Further ones stay open in children.
const LISTED_MAX: usize = 8192;

/// Maximum time that a fork waits for threads that open descriptors, and that they wait for the fork. The forking
/// thread may be one of them, in a signal handler. A program's fork handler may also wait for one of them.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long a waiting thread sleeps before it checks again.
const NAP: Duration = Duration::from_micros(50);

/// A descriptor that forked children give up.
struct Listed {
    /// The descriptor's number plus one; 0 is a free place, and -1 a place that is being filled.
    entry: AtomicI32,
    /// The file of the descriptor. A program may close a descriptor that it did not open, and reuse its number for
    /// another file.
    device: AtomicU64,
    inode: AtomicU64,
}

static LISTED: [Listed; LISTED_MAX] =
    [const { Listed { entry: AtomicI32::new(0), device: AtomicU64::new(0), inode: AtomicU64::new(0) } }; LISTED_MAX];

/// Threads that open descriptors, and threads that fork.
static GATE: Gate = Gate { opening: AtomicU32::new(0), forking: AtomicU32::new(0) };

/// Returns a function that sleeps for a moment, and returns whether to go on waiting.
fn naps() -> impl FnMut() -> bool {
    let mut waited = Duration::ZERO;
    move || {
        thread::sleep(NAP);
        waited += NAP;
        waited < PATIENCE
    }
}

/// Guard of a new descriptor from before its creation until it is listed. While the guard lives, other threads that
/// fork wait. The holder must not wait for anything.
#[derive(Debug)]
pub struct Opening(());

impl Opening {
    /// Waits until no thread forks.
    pub fn begin() -> Self {
        watch_forks();
        GATE.begin_opening(naps());
        Self(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        GATE.end_opening();
    }
}

/// A descriptor that forked children give up.
///
/// In a forked child, its number stands for a socket without name and peer. So the child can reach neither the
/// parent's file nor a later file of its own through the number.
///
/// A program that closes a descriptor that it did not open may have another file under the number. This type does not
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
    /// Lists a descriptor. The caller created it while it held the [`Opening`].
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

    /// Returns a second descriptor of the same file, which forked children give up too.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn duplicate(&self) -> io::Result<Self> {
        let opening = Opening::begin();
        Ok(Self::new(self.fd.try_clone()?, &opening))
    }

    /// Returns whether the number still stands for the file.
    pub fn is_intact(&self) -> bool {
        self.file.is_some() && self.file == file_of(self.fd.as_raw_fd())
    }

    /// Checks that the number still stands for the file.
    ///
    /// # Errors
    ///
    /// EBADF: the program has closed the descriptor.
    pub fn expect_intact(&self) -> io::Result<()> {
        if self.is_intact() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }
}

/// Lists a descriptor that was just created. A child that was forked in between keeps it.
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
        // Closed first: a child that is forked in between checks the file that the number stands for by then.
        if self.is_intact() {
            // SAFETY: this is its only drop, and nothing uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
        if let Some(place) = self.place {
            LISTED[place].entry.store(0, Ordering::Release);
        }
    }
}

/// Returns the file of a descriptor. Uses only a system call: a child of a process with threads may do nothing else.
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

/// Registers the handlers of forks, once.
fn watch_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel) {
        // SAFETY: the functions live as long as the code, and only make system calls, as a child of a process with
        // threads may.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(give_up_in_child)) };
    }
}

/// Waits until all descriptors that must not stay open are on the list.
extern "C" fn before_fork() {
    GATE.begin_forking(naps());
}

extern "C" fn after_fork() {
    GATE.end_forking();
}

/// Gives up all listed descriptors in a forked child.
extern "C" fn give_up_in_child() {
    GATE.reset();
    let mut stand_in = None;
    for listed in &LISTED {
        // The child may have other descriptors with these numbers when it forks itself.
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

/// Replaces a descriptor by the stand-in. Opens the stand-in first if there is none. If that fails, the number is
/// free afterwards.
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
        // At the limit of descriptors, closing this one makes room.
        close();
        return open().filter(|&made| made != fd);
    };
    // SAFETY: the call only takes numbers, and closes the file of `fd`.
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

    /// Longer than the life of any child of another test.
    const LONG: Duration = Duration::from_secs(20);

    /// A forked child that lives as long as this value. The child prints nothing and closes nothing by itself.
    struct Child(libc::pid_t);

    impl Child {
        fn fork() -> Self {
            // SAFETY: the child only waits for its end.
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

    /// Lock for tests that fork. Their children hold all descriptors of the process that are not on the list.
    static TURN: Mutex<()> = Mutex::new(());

    /// Returns whether a pipe ends in time. A pipe ends when no process holds its other side open.
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
        // The thread creates and lists descriptors all the time, while the test forks children.
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
        // The thread also closes descriptors, and the test checks their other ends.
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
    fn a_file_that_reuses_a_listed_number_stays_open() {
        let _turn = TURN.lock();
        let opening = Opening::begin();
        let (_reader, writer) = io::pipe().unwrap();
        let own = OwnProcess::new(writer.into(), &opening);
        drop(opening);
        let (reader, theirs) = io::pipe().unwrap();
        // Act like a program that closes all descriptors that it did not open. SAFETY: both numbers are open.
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

    /// Tests that no child holds the port of a parent that has ended. The device's own socket, a group's socket, and
    /// the copies that threads wait on must close in the child.
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
        // The child closes its copies before `fork` returns in the child. This process does not wait for that.
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
