//! Threads that repeat their work, and the rate of all of them together.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time during which all threads run before a measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Time of a measurement.
const MEASURED: Duration = Duration::from_millis(200);

/// Result of one turn of a thread: the messages that its connections accepted, and those that they received.
pub(crate) struct Moved {
    pub(crate) accepted: u64,
    pub(crate) received: u64,
}

/// Work that a thread repeats.
pub(crate) type Turn = Box<dyn FnMut() -> Moved + Send>;

/// Part of a measurement, which all threads read.
#[derive(Clone, Copy)]
enum Phase {
    WarmUp,
    Measured,
    Over,
}

/// Result of a thread.
struct Done {
    /// Number of messages received during the measured time.
    received: u64,
    /// Owner of the connection's ends. The field is never read.
    _turn: Turn,
}

/// Runs each turn in a thread of its own. Returns the messages that all threads together received per second.
pub(crate) fn rate(turns: Vec<Turn>) -> f64 {
    let phase = &AtomicU8::new(Phase::WarmUp as u8);
    thread::scope(|scope| {
        let workers: Vec<_> = turns.into_iter().map(|turn| scope.spawn(move || count(phase, turn))).collect();
        thread::sleep(WARM_UP);
        let begun = Instant::now();
        phase.store(Phase::Measured as u8, Ordering::Relaxed);
        thread::sleep(MEASURED);
        phase.store(Phase::Over as u8, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        // No connection may end before all threads have: the thread of its peer would see an error.
        let done: Vec<Done> = workers.into_iter().map(|worker| worker.join().expect("no thread panics")).collect();
        done.iter().map(|done| done.received).sum::<u64>() as f64 / seconds
    })
}

/// Repeats turns until the measurement is over.
fn count(phase: &AtomicU8, mut turn: Turn) -> Done {
    let mut received = 0;
    loop {
        let now = phase.load(Ordering::Relaxed);
        if now == Phase::Over as u8 {
            return Done { received, _turn: turn };
        }
        let moved = turn();
        if now == Phase::Measured as u8 {
            received += moved.received;
        }
        if moved.accepted == 0 && moved.received == 0 {
            // More threads than processors may run, and another thread may have the peer's end.
            thread::yield_now();
        }
    }
}
