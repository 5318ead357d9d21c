//! Model checks of all interleavings of threads that drop messages of a ring, connections that move the head, and peers
//! that write to freed memory. A held message must not be overwritten, and all freed memory must become available.

#[allow(dead_code, unreachable_pub)] // the models use only some functions
#[path = "../../src/connection/ring/units.rs"]
mod units;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use units::{UNIT, Units};

/// Number of units of the ring in the models.
const COUNT: usize = 2;

const BYTES: u64 = (COUNT * UNIT) as u64;

/// A ring and its memory. The model checker detects if a write of the peer and another access to this memory are not
/// ordered.
struct Ring {
    units: Units,
    memory: [UnsafeCell<u64>; COUNT],
    /// Copy of the head, which the peer reads.
    head_word: AtomicU64,
}

// SAFETY: the model checker reports each pair of accesses to a cell that are not ordered.
unsafe impl Sync for Ring {}
// SAFETY: the model checker reports each pair of accesses to a cell that are not ordered.
unsafe impl Send for Ring {}

impl Ring {
    fn new() -> Arc<Self> {
        let memory = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(Self { units: Units::new(BYTES as usize), memory, head_word: AtomicU64::new(0) })
    }

    fn memory(&self, position: u64) -> &UnsafeCell<u64> {
        &self.memory[self.units.offset(position) / UNIT]
    }

    /// Writes a message of one unit, as a peer does.
    fn write(&self, position: u64) {
        // SAFETY: the model checker reports each pair of accesses to a cell that are not ordered.
        self.memory(position).with_mut(|message| unsafe { *message = position });
    }

    /// Writes a message, as a peer does, and receives it, as a connection does.
    fn receive(&self, position: u64) {
        assert!(!self.units.is_taken(position), "a message lies in space that the head shows as free");
        self.write(position);
        self.units.hold(position, UNIT);
    }

    /// Reads a message and drops it, as a thread of the program does.
    fn drop_message(&self, position: u64) {
        // SAFETY: the model checker reports each pair of accesses to a cell that are not ordered.
        self.memory(position).with(|message| assert_eq!(unsafe { *message }, position));
        self.units.release(position);
    }

    fn advance(&self) -> usize {
        self.units.advance(|_, _| (), |head| self.head_word.store(head, Ordering::Release))
    }
}

#[test]
fn message_memory_is_reused_only_after_its_last_read() {
    loom::model(|| {
        let ring = Ring::new();
        let dropping = [0, UNIT as u64].map(|position| {
            ring.receive(position);
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || ring.drop_message(position))
        });
        // The threads drop the two messages in any order, and the head must pass both messages.
        for position in [0, UNIT as u64] {
            while ring.units.head() <= position {
                if ring.advance() == 0 {
                    loom::thread::yield_now();
                }
            }
            ring.receive(position + BYTES);
        }
        dropping.into_iter().for_each(|dropping| dropping.join().unwrap());
        assert_eq!((ring.units.head(), ring.advance()), (BYTES, 0), "a message of the next lap was freed");
        ring.drop_message(BYTES);
        ring.drop_message(BYTES + UNIT as u64);
        assert_eq!((ring.advance(), ring.units.head()), (2, 2 * BYTES));
    });
}

#[test]
fn two_connections_move_a_head_that_peers_read() {
    two_connections_move_one_head(|ring| ring.head_word.load(Ordering::Acquire));
}

#[test]
fn two_connections_move_a_head_that_each_reports() {
    two_connections_move_one_head(|ring| ring.units.head());
}

fn two_connections_move_one_head(look: impl Fn(&Ring) -> u64 + Send + Sync + 'static) {
    loom::model(move || {
        let ring = Ring::new();
        ring.receive(0);
        ring.receive(UNIT as u64);
        let other = loom::thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                ring.drop_message(0);
                ring.advance();
            }
        });
        ring.drop_message(UNIT as u64);
        ring.advance();
        // A peer that has read the head writes to free memory.
        let head = look(&ring);
        if head > 0 {
            ring.receive(BYTES);
        }
        other.join().unwrap();
        ring.advance();
        assert_eq!((ring.units.head(), ring.head_word.load(Ordering::Relaxed)), (BYTES, BYTES));
        assert_eq!(ring.units.is_taken(BYTES), head > 0, "wrong state of the message of the next lap");
    });
}

#[test]
fn a_hole_search_skips_concurrently_dropped_messages() {
    loom::model(|| {
        let ring = Ring::new();
        // A message of a live sender lies before the space that a dead sender has reserved.
        ring.receive(0);
        ring.drop_message(0);
        let searching = loom::thread::spawn({
            let ring = Arc::clone(&ring);
            move || ring.units.skip(BYTES)
        });
        ring.advance();
        searching.join().unwrap();
        ring.advance();
        assert_eq!(ring.units.head(), BYTES, "the head has not passed the hole");
        ring.receive(BYTES);
        ring.receive(BYTES + UNIT as u64);
        assert_eq!((ring.advance(), ring.units.head()), (0, BYTES), "the head has passed a held message");
    });
}
