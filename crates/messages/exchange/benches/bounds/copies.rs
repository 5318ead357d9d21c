//! The rate of messages of 1 MiB through shared memory, and that of copies of the same length without an RNIC.
//!
//! A design that maps the peer's memory would place a message by one copy, which the responder's RNIC makes after its
//! checks. The rate of one copy in one thread bounds the rate of that design: its headers, checks and acknowledgements
//! take time too. Source and destination of the copies have as many buffers as those of the connection.

use std::hint::black_box;

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

/// Mover of bytes.
#[derive(Clone, Copy)]
enum Mover {
    /// Copies by this number of threads, without an RNIC.
    Copies(usize),
    /// A connection through shared memory.
    Connection(Ends),
}

/// Order of the printed lines. The connection with a thread at each end has the index [`BASE`], and that in one thread
/// the next one.
const MOVERS: [Mover; 4] =
    [Mover::Copies(1), Mover::Copies(2), Mover::Connection(Ends::Apart), Mover::Connection(Ends::Both)];
const BASE: usize = 2;

impl Mover {
    fn name(self) -> &'static str {
        match self {
            Self::Copies(1) => "one copy, one thread",
            Self::Copies(_) => "one copy, each of two threads",
            Self::Connection(Ends::Apart) => "SENDs, a thread at each end",
            Self::Connection(Ends::Both) => "SENDs, both ends in one thread",
        }
    }

    /// Returns the bytes per second.
    fn measure(self, messages: Messages) -> f64 {
        let work: Vec<Turn> = match self {
            Self::Copies(threads) => (0..threads).map(|_| copying(messages)).collect(),
            Self::Connection(ends) => Pair::new(&Carrier::SharedMemory.devices(), messages).turns(ends),
        };
        turns::rate(work) * messages.bytes as f64
    }
}

/// Returns the work of a thread that copies one message in each turn, between buffers that no other thread uses.
fn copying(messages: Messages) -> Turn {
    let Messages { bytes, depth, buffers, .. } = messages;
    // Values other than 0, so that the kernel provides the pages now.
    let (from, mut to) = (vec![7_u8; bytes * buffers], vec![1_u8; bytes * depth]);
    let mut number = 0;
    Box::new(move || {
        let (source, destination) = (number % buffers * bytes, number % depth * bytes);
        number += 1;
        let to = &mut to[destination..destination + bytes];
        to.copy_from_slice(black_box(&from[source..source + bytes]));
        black_box(to);
        Moved { accepted: 1, received: 1 }
    })
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
        let verdict = if ratio(0, BASE) >= GAIN { "is" } else { "is not" };
        println!("    the bound of the gain by one copy {verdict} at least {GAIN}");
    }
}
