//! Output on standard error: the sentences of `--explain`, and a line for each queue pair that dies. The library writes
//! each sentence once. Each line names the program and the process id, since several programs may run.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use doorbell_output::write_escaped;
use doorbell_verbs::QP_DEATHS;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
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

/// Creates the table when the library is loaded, since the program may fork before it calls any other function.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = {
    extern "C" fn at_loading() {
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
    at_loading
};

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

/// Reports the death of a queue pair, even without `--explain`.
fn report_death(what: &dyn fmt::Display) {
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    match REPORTED.fetch_add(1, Ordering::Relaxed) {
        earlier if earlier < MOST_DEATHS => line(format_args!("{what}")),
        MOST_DEATHS => line(format_args!("{MOST_DEATHS} queue pairs have died: further ones are omitted")),
        _ => {}
    }
}

/// Reports from now on each queue pair that dies. If the user requested explanations, also explains the messages that
/// the software RNIC logs, for example its packet path and the losses of its link.
pub(crate) fn explain_device() {
    static ONCE: Once = Once::new();
    let reports_deaths = config::reports_deaths();
    if is_wanted() || reports_deaths {
        // No other code sets the default subscriber: this library has its own copy of `tracing`.
        ONCE.call_once(|| {
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

/// FNV-1a hash of a sentence without its digits.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Returns the hash, but never 0, which marks a free element of the table.
    fn value(&self) -> u64 {
        self.0.max(1)
    }
}

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes().filter(|byte| !byte.is_ascii_digit()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
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
