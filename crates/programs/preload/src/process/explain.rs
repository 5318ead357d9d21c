//! Output on standard error: the sentences of `--explain`, and a line for each queue pair that dies. The library writes
//! each sentence once. Each line names the program and the process id, since several programs may run.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use doorbell_output::write_escaped;
use doorbell_verbs::QP_DEATHS;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::process::config;

/// Maximum number of sentences. After this number, one line reports that further sentences are omitted.
const MOST: usize = 1024;

/// Hashes of the written sentences.
type SeenHashes = [AtomicU64; MOST];

/// Hashes of the written sentences. The process shares the table with its children, since a shell starts each program
/// from a new child. Null unless the user requested explanations.
static SAID: AtomicPtr<SeenHashes> = AtomicPtr::new(ptr::null_mut());

/// Creates the table. The library calls this function when it is loaded, since the program may fork before it calls any
/// other function.
pub(crate) fn prepare() {
    if !config::explains() {
        return;
    }
    const BYTES: NonZeroUsize = NonZeroUsize::new(size_of::<SeenHashes>()).unwrap();
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
    // SAFETY: the mapping is new, and no code unmaps it.
    if let Ok(mapped) = unsafe { mmap_anonymous(None, BYTES, access, flags) } {
        // The mapping contains zeros, which are a valid value of the table.
        SAID.store(mapped.as_ptr().cast(), Ordering::Release);
    }
}

fn said() -> Option<&'static SeenHashes> {
    // SAFETY: the pointer is null, or points to a mapping of that size that no code unmaps. All accesses are atomic.
    unsafe { SAID.load(Ordering::Acquire).as_ref() }
}

/// Returns whether the user requested explanations.
#[inline]
pub(crate) fn is_wanted() -> bool {
    !SAID.load(Ordering::Relaxed).is_null()
}

/// Explains why a call, or another subject, did not do what the program requested. Omits a sentence that differs from
/// an earlier sentence only in its numbers.
///
/// The function may run between fork and exec, and in a signal handler. So it takes no lock and allocates nothing.
pub(crate) fn explain(subject: &dyn fmt::Display, why: &dyn fmt::Display) {
    let Some(said) = said() else { return };
    let mut hash = Hash::default();
    // Writing to a hash cannot fail.
    let _ = write!(hash, "{subject}: {why}");
    match record(said, hash.value()) {
        Novelty::Known => {}
        Novelty::New => line(format_args!("{subject}: {why}")),
        Novelty::TooMany => {
            if is_first_excess(said) {
                line(format_args!("{MOST} sentences were explained: further ones are omitted"));
            }
        }
    }
}

/// Writes a sentence to standard error, even without `--explain`. Writes only the first hint of each process.
pub(crate) fn hint(subject: &dyn fmt::Display, why: &dyn fmt::Display) {
    static IS_GIVEN: AtomicBool = AtomicBool::new(false);
    if !IS_GIVEN.swap(true, Ordering::Relaxed) {
        line(format_args!("{subject}: {why}"));
    }
}

/// Maximum number of dead queue pairs that a process reports.
const MOST_DEATHS: usize = 64;

/// File that was standard error when the program opened its first device.
static STANDARD_ERROR: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// Returns device and inode of standard error, or `None` if it is closed.
fn standard_error() -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` fills the structure if it succeeds. The call bypasses this library's own `fstat`.
    let status = unsafe {
        match libc::syscall(libc::SYS_fstat, libc::STDERR_FILENO, status.as_mut_ptr()) {
            0 => status.assume_init(),
            _ => return None,
        }
    };
    Some((status.st_dev, status.st_ino))
}

/// Returns whether standard error is open, and is this file.
fn is_standard_error(file: Option<(u64, u64)>) -> bool {
    file.is_some() && standard_error() == file
}

/// Reports the death of a queue pair, even without `--explain`. The program did not ask for this line, so the line must
/// not harm it. It goes only into the file that was standard error at the start, and neither waits nor raises SIGPIPE.
fn report_death(what: &dyn fmt::Display) {
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    if !is_standard_error(STANDARD_ERROR.get().copied().flatten()) {
        return;
    }
    match REPORTED.fetch_add(1, Ordering::Relaxed) {
        earlier if earlier < MOST_DEATHS => without_sigpipe(|| line_at_once(format_args!("{what}"))),
        MOST_DEATHS => without_sigpipe(|| {
            line_at_once(format_args!("{MOST_DEATHS} queue pairs have died: further ones are omitted"));
        }),
        _ => {}
    }
}

/// Writes a line if standard error has room for it now.
fn line_at_once(text: fmt::Arguments<'_>) {
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `ready` is one valid element. A pipe that is ready has room for `PIPE_BUF` bytes, more than a line has.
    let found = unsafe { libc::poll(&mut ready, 1, 0) };
    if found == 1 && ready.revents == libc::POLLOUT {
        line(text);
    }
}

/// Calls `write` while this thread blocks SIGPIPE, and takes the signal that `write` has raised.
fn without_sigpipe(write: impl FnOnce()) {
    let sigpipe = SigSet::from(Signal::SIGPIPE);
    let mut before = SigSet::empty();
    if pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&sigpipe), Some(&mut before)).is_err() {
        return;
    }
    // SAFETY: `sigpending` fills the set if it succeeds.
    let was_pending = unsafe {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigpending(pending.as_mut_ptr()) != 0 || libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    };
    write();
    if !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are valid. The call returns at once if no signal is pending.
        unsafe { libc::sigtimedwait(sigpipe.as_ref(), ptr::null_mut(), &now) };
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
}

/// Reports from now on each queue pair that dies. If the user requested explanations, also explains the messages that
/// the software RNIC logs, for example its packet path and the losses of its link.
pub(crate) fn explain_device() {
    static ONCE: Once = Once::new();
    let reports_deaths = config::reports_deaths();
    if is_wanted() || reports_deaths {
        // No other code sets the default subscriber: this library has its own copy of `tracing`.
        ONCE.call_once(|| {
            STANDARD_ERROR.get_or_init(standard_error);
            drop(tracing::subscriber::set_global_default(SentenceSubscriber {
                all: is_wanted(),
                say: |target: &str, what: &dyn fmt::Display| match target {
                    QP_DEATHS => report_death(what),
                    _ => explain(&"the device", what),
                },
            }))
        });
    }
}

/// A `tracing` subscriber that passes the target and the sentence of each event to a function. The subscriber ignores
/// spans.
struct SentenceSubscriber<F> {
    /// Whether events other than [`QP_DEATHS`] are passed too.
    all: bool,
    say: F,
}

impl<F: Fn(&str, &dyn fmt::Display) + Send + Sync + 'static> Subscriber for SentenceSubscriber<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::INFO && (self.all || metadata.target() == QP_DEATHS)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        struct Sentences<'a>(&'a dyn Fn(&dyn fmt::Display));
        impl Visit for Sentences<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    (self.0)(&format_args!("{value:?}"));
                }
            }
        }
        event.record(&mut Sentences(&|what: &dyn fmt::Display| (self.say)(event.metadata().target(), what)));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

enum Novelty {
    New,
    Known,
    TooMany,
}

/// Records a hash. The last element of the table marks that the table overflowed.
fn record(said: &SeenHashes, hash: u64) -> Novelty {
    for place in &said[..MOST - 1] {
        match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Novelty::New,
            Err(there) if there == hash => return Novelty::Known,
            Err(_) => {}
        }
    }
    Novelty::TooMany
}

fn is_first_excess(said: &SeenHashes) -> bool {
    said[MOST - 1].swap(1, Ordering::Relaxed) == 0
}

/// FNV-1a hash.
pub(crate) struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    pub(crate) fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Returns the hash, but never 0, which marks a free element of a table.
    pub(crate) fn value(&self) -> u64 {
        self.0.max(1)
    }
}

/// Adds a sentence without its digits.
impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.bytes().filter(|byte| !byte.is_ascii_digit()));
        Ok(())
    }
}

/// A line that one `write` call does not split. `Sentence` escapes the text, since names of files and programs may
/// contain control characters.
struct Sentence {
    bytes: [u8; 1024],
    length: usize,
}

impl fmt::Write for Sentence {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(&mut Escaped(self), text)
    }
}

/// Adapter that adds already escaped text to a sentence.
struct Escaped<'a>(&'a mut Sentence);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Self(line) = self;
        // The last byte of the buffer is for the newline.
        let room = line.bytes.len() - 1 - line.length;
        let text = &text.as_bytes()[..text.len().min(room)];
        line.bytes[line.length..][..text.len()].copy_from_slice(text);
        line.length += text.len();
        Ok(())
    }
}

fn line(text: fmt::Arguments<'_>) {
    let mut line = Sentence { bytes: [0; 1024], length: 0 };
    // SAFETY: `getpid` has no arguments, and cannot fail.
    let process = unsafe { libc::getpid() };
    // The buffer cuts off text that does not fit.
    let _ = write!(line, "doorbell: {}[{process}]: {text}", program());
    line.bytes[line.length] = b'\n';
    // SAFETY: the bytes are initialised. A failure of `write` cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length + 1) };
}

/// Returns the program's name without folders.
fn program() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: before any code of this library runs, the C library sets the pointer to a C string of the program's
    // arguments.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return "unknown";
    }
    // SAFETY: the pointer is not null, so it points to a C string.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> u64 {
        let mut hash = Hash::default();
        hash.write_str(text).unwrap();
        hash.value()
    }

    #[test]
    fn a_sentence_with_other_numbers_is_the_same() {
        assert_eq!(hash("ibv_reg_mr: 4096 B at 0x12"), hash("ibv_reg_mr: 8 B at 0x7"));
        assert_ne!(hash("ibv_reg_mr: no"), hash("ibv_reg_mr: yes"));
    }

    #[test]
    fn each_hash_is_new_once_and_a_full_table_rejects_others() {
        let said: SeenHashes = [const { AtomicU64::new(0) }; MOST];
        for hash in 1..MOST as u64 {
            assert!(matches!(record(&said, hash), Novelty::New));
            assert!(matches!(record(&said, hash), Novelty::Known));
        }
        assert!(matches!(record(&said, 1 << 40), Novelty::TooMany));
        assert!(is_first_excess(&said) && !is_first_excess(&said));
    }

    #[test]
    fn messages_of_the_device_are_explained() {
        let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let also = std::sync::Arc::clone(&said);
        let say = move |_: &str, what: &dyn fmt::Display| also.lock().unwrap().push(what.to_string());
        let sayings = SentenceSubscriber { all: true, say };
        tracing::subscriber::with_default(sayings, || {
            tracing::info!("{} goes over {}", 1, "UDP");
            tracing::debug!("a detail");
            tracing::error!("the link failed: {}", 5);
        });
        assert_eq!(*said.lock().unwrap(), ["1 goes over UDP", "the link failed: 5"]);
    }

    #[test]
    fn only_deaths_are_reported_without_explanations() {
        let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let also = std::sync::Arc::clone(&said);
        let say = move |target: &str, what: &dyn fmt::Display| {
            also.lock().unwrap().push(format!("{target} {what}"));
        };
        tracing::subscriber::with_default(SentenceSubscriber { all: false, say }, || {
            tracing::error!("the link failed");
            tracing::info!(target: QP_DEATHS, "QP {}", 5);
        });
        assert_eq!(*said.lock().unwrap(), ["doorbell::queue_pair QP 5"]);
    }

    /// Runs `body` in a child whose standard error is a pipe, and returns its exit status and what it wrote. The reader
    /// closes the pipe before `body` if `is_closed`.
    fn in_child(is_closed: bool, body: fn()) -> (i32, String) {
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child calls only `body` and functions that are safe after a fork, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the descriptors are open. SIGPIPE gets its default action, as in C programs.
            unsafe {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::dup2(ends[1], libc::STDERR_FILENO);
                libc::close(ends[0]);
                libc::close(ends[1]);
                if is_closed {
                    // Wait until the parent has closed the other end.
                    let mut end = libc::pollfd { fd: libc::STDERR_FILENO, events: 0, revents: 0 };
                    libc::poll(&mut end, 1, 10_000);
                }
            }
            body();
            // SAFETY: the child ends without destructors of its parent's threads.
            unsafe { libc::_exit(7) };
        }
        // SAFETY: the parent owns the descriptors.
        unsafe { libc::close(ends[1]) };
        let mut text = String::new();
        // SAFETY: nothing else owns this descriptor.
        let mut reader = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(ends[0]) };
        if is_closed {
            drop(reader);
        } else {
            std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        (status, text)
    }

    #[test]
    fn a_death_is_reported_on_standard_error() {
        let (status, text) = in_child(false, || {
            assert!(is_standard_error(standard_error()));
            without_sigpipe(|| line_at_once(format_args!("QP 0x000005: gone")));
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
        assert!(text.ends_with("]: QP 0x000005: gone\n"), "{text}");
    }

    #[test]
    fn a_death_whose_report_has_no_reader_does_not_end_the_program() {
        let (status, _) = in_child(true, || {
            line_at_once(format_args!("QP 0x000005: gone"));
            // The reader may also leave between the look and the write.
            without_sigpipe(|| line(format_args!("to no reader")));
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
    }

    #[test]
    fn another_file_at_the_place_of_standard_error_gets_no_line() {
        assert!(!is_standard_error(None));
        let (status, _) = in_child(false, || {
            let before = standard_error();
            // SAFETY: the path ends with a zero byte, and the descriptors are this child's.
            unsafe { libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY), libc::STDERR_FILENO) };
            assert!(before.is_some() && !is_standard_error(before));
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let mut line = Sentence { bytes: [0; 1024], length: 0 };
        write!(line, "{}", "x".repeat(5000)).unwrap();
        assert_eq!(line.length, 1023);
        write!(line, "more").unwrap();
        assert_eq!(line.length, 1023);
    }

    #[test]
    fn text_of_others_is_escaped() {
        let mut line = Sentence { bytes: [0; 1024], length: 0 };
        let name = "/tmp/\u{1b}]0;x\u{7}";
        write!(line, "{name}: no such file").unwrap();
        assert_eq!(&line.bytes[..line.length], br"/tmp/\u001b]0;x\u0007: no such file");
    }
}
