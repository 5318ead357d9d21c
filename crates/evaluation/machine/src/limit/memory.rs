//! Limits of memory: transfers of a cache line between two processors, and copies.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of transfers between two reads of the clock.
const ROUND: u64 = 256;

/// Number of unsuccessful polls after which a thread yields. On a machine with one processor, the other side waits
/// for that.
const PATIENT_LOOKS: u32 = 10_000;

/// Bytes of the blocks whose copies are measured.
const BLOCKS: [usize; 2] = [64 << 10, 1 << 20];

/// Limits of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryLimit {
    /// Time of one transfer of a cache line between two spinning threads: the median of many.
    pub line_ns: f64,
    /// Copies from one block to another by one thread.
    pub copies: Vec<CopyResult>,
}

/// Rate at which blocks are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyResult {
    /// Bytes of each block.
    pub bytes: usize,
    /// Bytes copied per second in the fastest repetition: other programs can only slow a copy down.
    pub bytes_per_s: f64,
}

/// Measures both limits. Each repetition lasts as long as `repetition`.
///
/// # Errors
///
/// The operating system cannot start a thread.
pub(super) fn measure(repetition: Duration, repetitions: usize) -> io::Result<MemoryLimit> {
    let line_ns = line(repetition)?;
    let copies = BLOCKS.map(|bytes| CopyResult {
        bytes,
        bytes_per_s: (0..repetitions.max(1)).map(|_| copy(bytes, repetition)).fold(0.0, f64::max),
    });
    Ok(MemoryLimit { line_ns, copies: copies.to_vec() })
}

/// Word in its own pair of cache lines, since some processors fetch two lines together.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Waits until the word is `turn`. Returns false if `over` is set before that.
    fn wait(&self, turn: u64, over: &AtomicBool) -> bool {
        let mut looks = 0;
        while self.0.load(Ordering::Acquire) != turn {
            looks += 1;
            if looks % PATIENT_LOOKS == 0 {
                if over.load(Ordering::Relaxed) {
                    return false;
                }
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Returns half of the round-trip time of a word.
fn line(duration: Duration) -> io::Result<f64> {
    let (word, over) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
    thread::scope(|scope| {
        let other = || {
            let mut turn = 1;
            while word.wait(turn, &over) {
                word.0.store(turn + 1, Ordering::Release);
                turn += 2;
            }
        };
        thread::Builder::new().spawn_scoped(scope, other)?;
        let (start, mut rounds, mut turn) = (Instant::now(), Vec::new(), 0);
        while start.elapsed() < duration || rounds.is_empty() {
            let began = Instant::now();
            for _ in 0..ROUND {
                word.0.store(turn + 1, Ordering::Release);
                turn += 2;
                word.wait(turn, &over);
            }
            rounds.push(began.elapsed().as_nanos() as f64 / (2 * ROUND) as f64);
        }
        over.store(true, Ordering::Relaxed);
        rounds.sort_unstable_by(f64::total_cmp);
        Ok(rounds[rounds.len() / 2])
    })
}

/// Returns the bytes per second of copies from one block to another.
fn copy(bytes: usize, duration: Duration) -> f64 {
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    let (start, mut copied) = (Instant::now(), 0);
    while copied == 0 || start.elapsed() < duration {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        copied += bytes;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_and_end() {
        let measured = measure(Duration::from_millis(2), 2).unwrap();
        assert!(measured.line_ns > 0.0, "{measured:?}");
        assert_eq!(measured.copies.iter().map(|copy| copy.bytes).collect::<Vec<_>>(), BLOCKS);
        assert!(measured.copies.iter().all(|copy| copy.bytes_per_s > 0.0), "{measured:?}");
    }
}
