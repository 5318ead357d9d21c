//! A model checker runs all interleavings of a process that writes words and a process that reads them. The reader must
//! get consistent values.

#[path = "../../src/sequence.rs"]
mod sequence;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::cell::Cell;
use std::convert::Infallible;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

/// Number of values in the models.
const VALUES: usize = 2;

/// Number of writes.
const MOMENTS: u64 = 2;

/// The shared words: the sequence number, followed by the values.
struct Words([AtomicU64; 1 + VALUES]);

impl Words {
    fn new() -> Arc<Self> {
        Arc::new(Self(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    fn write(&self) {
        for moment in 1..=MOMENTS {
            sequence::write(|index| &self.0[index], std::iter::repeat_n(moment, VALUES));
        }
    }

    /// Reads the values one by one, as the kernel copies words of a file. Returns `None` if the values are
    /// inconsistent.
    fn read(&self) -> Option<[u64; VALUES]> {
        let look = |index: usize| self.0[index].load(Ordering::Relaxed);
        let values = Cell::new([0; VALUES]);
        let all = || {
            values.set(std::array::from_fn(|index| look(1 + index)));
            Ok::<(), Infallible>(())
        };
        let Ok(belong) = sequence::read(|| Ok(look(0)), all);
        belong.then(|| values.get())
    }

    fn check_snapshot(&self) {
        if let Some([first, second]) = self.read() {
            assert_eq!(first, second, "the values come from two writes");
        }
    }
}

#[test]
fn a_reader_gets_a_consistent_snapshot_or_nothing() {
    loom::model(|| {
        let words = Words::new();
        let writing = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || words.write()
        });
        words.check_snapshot();
        writing.join().unwrap();
        assert_eq!(words.read(), Some([MOMENTS; VALUES]));
    });
}

/// Repeats the test above with a reader that begins after the writer. The model checker remembers only the latest
/// access to a word, so this order makes it explore further runs.
#[test]
fn a_late_reader_gets_a_consistent_snapshot_or_nothing() {
    loom::model(|| {
        let words = Words::new();
        let reading = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || words.check_snapshot()
        });
        words.write();
        reading.join().unwrap();
    });
}
