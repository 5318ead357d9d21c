//! The rate of 1, 2, 4 and 8 threads, each with a queue pair of its own. They use one device with one engine, one
//! device with the default number of engines, or a device for each thread.
//!
//! Threads with a device each share no lock, no timers and no link. So they bound the rate of one device with several
//! engines, which still share regions and domains. The ratio of their rate and that of one engine is an upper bound of
//! the gain. The devices in process have one engine.
//!
//! In the rows `both`, a thread drives both ends of its connection, so one thread uses one processor. In the rows
//! `apart`, each end has a thread of its own, as if client and server were two programs of this machine.

use std::thread;

use super::pair::{Carrier, Ends, Messages, Pair};
use super::{in_rounds, spread, turns};

/// Small messages, one per post, whose costs are those of the engine and not those of copies.
const MESSAGES: Messages = Messages { bytes: 16, window: 64, depth: 128, buffers: 64 };
/// Numbers of threads, or of pairs of threads for [`Ends::Apart`].
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Gain of two threads for which several engines are worth their costs.
const GAIN: f64 = 1.6;

/// Devices of the threads of one side of a comparison.
#[derive(Clone, Copy)]
enum Devices {
    /// One device at each end, with one engine.
    One,
    /// One device at each end, with the default number of engines.
    Engines,
    /// A device for each thread at each end.
    Each,
}

impl Devices {
    const ALL: [Self; 3] = [Self::One, Self::Engines, Self::Each];
}

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

    /// Returns the messages per second of all threads together; NaN if the link has no such devices.
    fn measure(self, devices: Devices) -> f64 {
        let shared = match devices {
            Devices::One => Some(self.carrier.devices()),
            Devices::Engines => match self.carrier.default_devices() {
                Some(devices) => Some(devices),
                None => return f64::NAN,
            },
            Devices::Each => None,
        };
        let mut work = Vec::new();
        for _ in 0..self.threads {
            let devices = shared.clone().unwrap_or_else(|| self.carrier.devices());
            // Queue pairs that one thread creates would share an engine.
            let create = || Pair::new(&devices, MESSAGES);
            let pair = thread::scope(|scope| scope.spawn(create).join().expect("a pair connects"));
            work.extend(pair.turns(self.ends));
        }
        turns::rate(work)
    }
}

/// Measures all cases and prints a table.
pub(crate) fn compare(rounds: usize, about: &str) {
    let cases = Case::all();
    let rates = in_rounds(rounds, cases.len(), |case, is_reversed| {
        let mut rates = [0.0; 3];
        let sides = if is_reversed { [2, 1, 0] } else { [0, 1, 2] };
        for side in sides {
            rates[side] = cases[case].measure(Devices::ALL[side]);
        }
        rates
    });
    println!("{} B, one per post, million messages per second, {about}", MESSAGES.bytes);
    println!(
        "{:<14} {:<6} {:>7} {:>11} {:>8} {:>12}  gain of engines, of devices, least to most",
        "link", "ends", "threads", "one device", "engines", "device each"
    );
    for (case, rates) in cases.iter().zip(&rates) {
        let [one, engines, each] = [0, 1, 2].map(|side| spread(rates.iter().map(|rates| rates[side] / 1e6))[0]);
        let [gain, bound] = [1, 2].map(|side| spread(rates.iter().map(|rates| rates[side] / rates[0])));
        print!("{:<14} {:<6} {:>7} {one:>11.3} ", case.carrier.name(), case.ends.name(), case.threads);
        if engines.is_nan() {
            print!("{:>8} {each:>12.3}  -, ", "-");
        } else {
            print!("{engines:>8.3} {each:>12.3}  {:.2} ({:.2} to {:.2}), ", gain[0], gain[1], gain[2]);
        }
        println!("{:.2} ({:.2} to {:.2})", bound[0], bound[1], bound[2]);
        let ratio = bound[0];
        if case.threads == 2 {
            let verdict = if ratio >= GAIN { "is" } else { "is not" };
            println!("    the bound of the gain of two threads {verdict} at least {GAIN}");
        }
    }
}
