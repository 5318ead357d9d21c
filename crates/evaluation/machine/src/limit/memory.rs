//! Limits of memory: time to transfer a cache line between two processors, and rate of copies.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of cache line transfers between two reads of the clock.
const ROUND: u64 = 256;

/// Number of unsuccessful polls after which a thread yields. On a machine with one processor, the other thread can only
/// run then.
const PATIENT_LOOKS: u32 = 10_000;

/// Sizes in bytes of the blocks whose copies are measured.
const BLOCKS: [usize; 2] = [64 << 10, 1 << 20];

/// Limits of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryLimit {
    /// Median time to transfer a cache line between two spinning threads, in nanoseconds.
    pub line_ns: f64,
    /// Rates at which one thread copies a block to another block.
    pub copies: Vec<CopyResult>,
}

/// Rate at which blocks of one size are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyResult {
    /// Bytes of each block.
    pub bytes: usize,
    /// Bytes copied per second in the fastest repetition, since other programs can only slow a copy down.
    pub bytes_per_s: f64,
}

/// Measures the transfer time of a cache line and the rates of copies. Each repetition lasts as long as `repetition`.
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

/// Word alone in an aligned pair of cache lines. Some processors fetch pairs of lines together.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Waits until the word has the value `turn`. Returns `false` if `over` is set earlier.
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

/// Returns half of the median round-trip time of a word between two threads, in nanoseconds.
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

/// Copies a block of `bytes` bytes to another block for `duration`. Returns the bytes copied per second.
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
