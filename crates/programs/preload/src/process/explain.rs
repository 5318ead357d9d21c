//! Output of `--explain` on standard error: each sentence once. Each line names the program and its process, since
//! several programs may run.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use doorbell_output::write_escaped;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::process::config;

/// Maximum number of sentences. After these one line reports that further sentences are omitted.
const MOST: usize = 1024;

/// Hashes of the sentences that were written.
type SeenHashes = [AtomicU64; MOST];

/// Written sentences, shared with the children of this process, since a shell starts each program from a new child.
/// Null unless explanations are requested.
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
        // SAFETY: a new mapping, which stays.
        if let Ok(mapped) = unsafe { mmap_anonymous(None, BYTES, access, flags) } {
            // The mapping begins with zeros, which are a valid value of the table.
            SAID.store(mapped.as_ptr().cast(), Ordering::Release);
        }
    }
    at_loading
};

fn said() -> Option<&'static SeenHashes> {
    // SAFETY: null, or a mapping of that size that stays; all accesses are atomic.
    unsafe { SAID.load(Ordering::Acquire).as_ref() }
}

/// Returns whether explanations are requested.
#[inline]
pub(crate) fn is_wanted() -> bool {
    !SAID.load(Ordering::Relaxed).is_null()
}

/// Explains why a call, or another subject, did not do what the program asked for. A sentence that differs from an
/// earlier one only in its numbers is omitted.
///
/// The function may be called between fork and exec, and in a signal handler. It takes no lock and allocates nothing.
pub(crate) fn explain(subject: &dyn fmt::Display, why: &dyn fmt::Display) {
    let Some(said) = said() else { return };
    let mut hash = Hash::default();
    // Writing to a hash does not fail.
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

/// Writes a sentence to standard error without `--explain`, if it is the first hint of the process.
pub(crate) fn hint(subject: &dyn fmt::Display, why: &dyn fmt::Display) {
    static IS_GIVEN: AtomicBool = AtomicBool::new(false);
    if !IS_GIVEN.swap(true, Ordering::Relaxed) {
        line(format_args!("{subject}: {why}"));
    }
}

/// Also explains, from now on, messages of the software RNIC: for example its packet path and the losses of its link.
pub(crate) fn explain_device() {
    static ONCE: Once = Once::new();
    if is_wanted() {
        // No other code sets it: this library has its own copy of `tracing`.
        ONCE.call_once(|| {
            drop(tracing::subscriber::set_global_default(SentenceSubscriber(|what: &dyn fmt::Display| {
                explain(&"the device", what);
            })))
        });
    }
}

/// Passes on the sentences of events. There are no spans.
struct SentenceSubscriber<F>(F);

impl<F: Fn(&dyn fmt::Display) + Send + Sync + 'static> Subscriber for SentenceSubscriber<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::INFO
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
        event.record(&mut Sentences(&self.0));
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

/// Records a hash. The last place of the table marks that the table overflowed.
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

/// FNV-1a over all but digits.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Returns the hash, but never zero, which marks a free place.
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

/// A line of at most the length that one write keeps in one piece. Names of files and programs are foreign text, so
/// it escapes them.
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
        // The last byte is for the newline.
        let room = line.bytes.len() - 1 - line.length;
        let text = &text.as_bytes()[..text.len().min(room)];
        line.bytes[line.length..][..text.len()].copy_from_slice(text);
        line.length += text.len();
        Ok(())
    }
}

fn line(text: fmt::Arguments<'_>) {
    let mut line = Sentence { bytes: [0; 1024], length: 0 };
    // SAFETY: it has no arguments, and does not fail.
    let process = unsafe { libc::getpid() };
    // Text that does not fit is cut off.
    let _ = write!(line, "doorbell: {}[{process}]: {text}", program());
    line.bytes[line.length] = b'\n';
    // SAFETY: the bytes exist. A failure cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length + 1) };
}

/// Returns the program's name without folders.
fn program() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: the C library sets it before any code of this library runs, to a C string of the program's arguments.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return "unknown";
    }
    // SAFETY: not null, so a C string.
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
        let sayings = SentenceSubscriber(move |what: &dyn fmt::Display| also.lock().unwrap().push(what.to_string()));
        tracing::subscriber::with_default(sayings, || {
            tracing::info!("{} goes over {}", 1, "UDP");
            tracing::debug!("a detail");
            tracing::error!("the link failed: {}", 5);
        });
        assert_eq!(*said.lock().unwrap(), ["1 goes over UDP", "the link failed: 5"]);
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
