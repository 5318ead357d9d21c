//! The rate of messages of 1 MiB through shared memory, and that of copies of the same length without an RNIC.
//!
//! A design that maps the peer's memory would place a message by one copy, which the responder's RNIC makes after its
//! checks. Today each end makes one copy, and both copies run at the same time if the ends have threads of their own.
//! So the gain is at most the rate of one copy in the receiving thread, divided by the rate of two copies through a
//! ring. Headers, checks and acknowledgements take the same time in both designs. Source and destination of the copies
//! have as many buffers as those of the connection.

use std::hint::black_box;
use std::sync::{Arc, mpsc};

use super::pair::{Carrier, Ends, Messages, Pair};
use super::turns::{self, Moved, Turn};
use super::{in_rounds, spread};

/// Messages with a buffer that stays in a cache, and with buffers that rotate beyond it, as those of `doorbell bench`.
const MESSAGES: [Messages; 2] = [
    Messages { bytes: 1 << 20, window: 4, depth: 8, buffers: 1 },
    Messages { bytes: 1 << 20, window: 4, depth: 8, buffers: 12 },
];
/// Gain for which the design is worth its costs.
const GAIN: f64 = 1.5;

/// Bytes that one thread passes to the other at a time: about those of the longest run.
const PIECE: usize = 64 << 10;
/// Number of pieces in the ring, which has the size of a ring of the RNIC.
const PIECES: usize = (2 << 20) / PIECE;

/// Mover of bytes.
#[derive(Clone, Copy)]
enum Mover {
    /// Copies by one thread, without an RNIC.
    Copies,
    /// Two threads without an RNIC. The first one names pieces, or copies them into a ring if `is_copied`. The second
    /// one copies them out.
    Passes { is_copied: bool },
    /// A connection through shared memory.
    Connection(Ends),
}

/// Order of the printed lines. The connection with a thread at each end has the index [`BASE`], and that in one thread
/// the next one. The index of one copy between two threads is [`PASSES`], and that of two copies the next one.
const MOVERS: [Mover; 5] = [
    Mover::Copies,
    Mover::Passes { is_copied: false },
    Mover::Passes { is_copied: true },
    Mover::Connection(Ends::Apart),
    Mover::Connection(Ends::Both),
];
const PASSES: usize = 1;
const BASE: usize = 3;

impl Mover {
    fn name(self) -> &'static str {
        match self {
            Self::Copies => "one copy, one thread",
            Self::Passes { is_copied: false } => "one copy, by the second thread",
            Self::Passes { is_copied: true } => "two copies, one by each thread",
            Self::Connection(Ends::Apart) => "SENDs, a thread at each end",
            Self::Connection(Ends::Both) => "SENDs, both ends in one thread",
        }
    }

    /// Returns the bytes per second.
    fn measure(self, messages: Messages) -> f64 {
        let work: Vec<Turn> = match self {
            Self::Copies => vec![copying(messages)],
            Self::Passes { is_copied } => passing(messages, is_copied).into(),
            Self::Connection(ends) => Pair::new(&Carrier::SharedMemory.devices(), messages).turns(ends),
        };
        turns::rate(work) * messages.bytes as f64
    }
}

/// Creates buffers. Their values are not 0, so that the kernel provides the pages now.
fn buffers(messages: Messages, count: usize) -> Vec<u8> {
    vec![7; messages.bytes * count]
}

/// Returns the work of a thread that copies one message in each turn, between buffers that no other thread uses.
fn copying(messages: Messages) -> Turn {
    let Messages { bytes, depth, buffers: sources, .. } = messages;
    let (from, mut to) = (buffers(messages, sources), buffers(messages, depth));
    let mut number = 0;
    Box::new(move || {
        let (source, destination) = (number % sources * bytes, number % depth * bytes);
        number += 1;
        let to = &mut to[destination..destination + bytes];
        to.copy_from_slice(black_box(&from[source..source + bytes]));
        black_box(to);
        Moved { accepted: 1, received: 1 }
    })
}

/// Returns the work of two threads, of which the first one passes pieces of messages to the second one.
fn passing(messages: Messages, is_copied: bool) -> [Turn; 2] {
    let Messages { bytes, depth, buffers: sources, .. } = messages;
    let (from, mut to) = (Arc::new(buffers(messages, sources)), buffers(messages, depth));
    let (full, arriving) = mpsc::channel::<(usize, Vec<u8>)>();
    let (empty, free) = mpsc::channel::<Vec<u8>>();
    (0..PIECES).for_each(|_| empty.send(vec![1; PIECE]).expect("the other end lives"));
    let (mut named, mut copied) = (0_usize, 0_usize);
    let source = Arc::clone(&from);
    // The other thread may have ended, at the end of a measurement. Then a piece is dropped.
    let first = move || {
        let Ok(mut piece) = free.try_recv() else { return Moved { accepted: 0, received: 0 } };
        let at = named % (sources * bytes);
        named += PIECE;
        if is_copied {
            piece.copy_from_slice(black_box(&from[at..at + PIECE]));
        }
        let _ = full.send((at, piece));
        Moved { accepted: 1, received: 0 }
    };
    let second = move || {
        let Ok((at, piece)) = arriving.try_recv() else { return Moved { accepted: 0, received: 0 } };
        let destination = copied % (depth * bytes);
        copied += PIECE;
        let piece_from = if is_copied { &piece[..] } else { &source[at..at + PIECE] };
        let to = &mut to[destination..destination + PIECE];
        to.copy_from_slice(black_box(piece_from));
        black_box(to);
        let _ = empty.send(piece);
        Moved { accepted: 1, received: u64::from(copied.is_multiple_of(bytes)) }
    };
    [Box::new(first), Box::new(second)]
}

/// Measures all cases and prints a table.
pub(crate) fn compare(rounds: usize, about: &str) {
    let cases: Vec<(Messages, Mover)> =
        MESSAGES.into_iter().flat_map(|messages| MOVERS.map(|mover| (messages, mover))).collect();
    let rates = in_rounds(rounds, cases.len(), |case, _| {
        let (messages, mover) = cases[case];
        mover.measure(messages)
    });
    println!("1 MiB, GB/s, {about}");
    println!("{:>7} {:<31} {:>6} {:>15} {:>15}", "buffers", "", "GB/s", "of ends apart", "of one thread");
    for (messages, rates) in MESSAGES.iter().zip(rates.chunks(MOVERS.len())) {
        let ratio = |mover: usize, base: usize| {
            spread(rates[mover].iter().zip(&rates[base]).map(|(rate, base)| rate / base))[0]
        };
        for (index, mover) in MOVERS.iter().enumerate() {
            println!(
                "{:>7} {:<31} {:>6.2} {:>15.2} {:>15.2}",
                messages.buffers,
                mover.name(),
                spread(rates[index].iter().copied())[0] / 1e9,
                ratio(index, BASE),
                ratio(index, BASE + 1)
            );
        }
        let gain = ratio(PASSES, PASSES + 1);
        let verdict = if gain >= GAIN { "is" } else { "is not" };
        println!("    one copy is {gain:.2} times as fast as two: the bound of the gain {verdict} at least {GAIN}");
    }
}
