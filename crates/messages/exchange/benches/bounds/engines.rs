//! The rate of 1, 2, 4 and 8 threads, each with a queue pair of its own, on one device and on a device for each thread.
//!
//! A device has one engine below one lock. Threads with a device each share no lock, no timers and no link. So they
//! bound the rate of one device with several engines, which would still share completion queues, regions and domains.
//! The ratio of both rates is an upper bound of the gain.
//!
//! In the rows `both`, a thread drives both ends of its connection, so one thread uses one processor. In the rows
//! `apart`, each end has a thread of its own, as if client and server were two programs of this machine.

use super::pair::{Carrier, Ends, Messages, Pair};
use super::{in_rounds, spread, turns};

/// Small messages, one per post, whose costs are those of the engine and not those of copies.
const MESSAGES: Messages = Messages { bytes: 16, window: 64, depth: 128, buffers: 64 };
/// Numbers of threads, or of pairs of threads for [`Ends::Apart`].
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Gain of two threads for which several engines are worth their costs.
const GAIN: f64 = 1.6;

/// A measured case.
#[derive(Clone, Copy)]
struct Case {
    carrier: Carrier,
    ends: Ends,
    threads: usize,
}

impl Case {
    /// Returns all cases in the order of the printed lines.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for carrier in Carrier::ALL {
            for ends in Ends::ALL {
                cases.extend(THREADS.map(|threads| Self { carrier, ends, threads }));
            }
        }
        cases
    }

    /// Returns the messages per second of all threads together. They have one device at each end, or a device each.
    fn measure(self, has_one_device: bool) -> f64 {
        let shared = has_one_device.then(|| self.carrier.devices());
        let mut work = Vec::new();
        for _ in 0..self.threads {
            let devices = shared.clone().unwrap_or_else(|| self.carrier.devices());
            work.extend(Pair::new(&devices, MESSAGES).turns(self.ends));
        }
        turns::rate(work)
    }
}

/// Measures all cases and prints a table.
pub(crate) fn compare(rounds: usize, about: &str) {
    let cases = Case::all();
    let rates = in_rounds(rounds, cases.len(), |case, is_reversed| {
        let mut pair = [0.0; 2];
        let sides = if is_reversed { [1, 0] } else { [0, 1] };
        for side in sides {
            pair[side] = cases[case].measure(side == 0);
        }
        pair
    });
    println!("{} B, one per post, million messages per second, {about}", MESSAGES.bytes);
    println!(
        "{:<14} {:<6} {:>7} {:>11} {:>12} {:>7}  least to most",
        "link", "ends", "threads", "one device", "device each", "ratio"
    );
    for (case, rates) in cases.iter().zip(&rates) {
        let [one, each] = [0, 1].map(|side| spread(rates.iter().map(|pair| pair[side] / 1e6))[0]);
        let [ratio, least, most] = spread(rates.iter().map(|[one, each]| each / one));
        println!(
            "{:<14} {:<6} {:>7} {one:>11.3} {each:>12.3} {ratio:>7.2}  {least:.2} to {most:.2}",
            case.carrier.name(),
            case.ends.name(),
            case.threads
        );
        if case.threads == 2 {
            let verdict = if ratio >= GAIN { "is" } else { "is not" };
            println!("    the bound of the gain of two threads {verdict} at least {GAIN}");
        }
    }
}
