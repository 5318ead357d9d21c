//! What seeded runs do to a link.

use super::rng::Rng;
use super::world::Link;

/// How bad the faults of a link become at most: rates are per mille of packets.
pub struct Worst {
    pub loss: u64,
    /// Of the receive buffer that overflows.
    pub buffer_bytes: u64,
    /// How often the link is full; if never, "mixed" leaves that out.
    pub full: u64,
}

impl Link {
    /// Gives the link the fault of this name, all of them if that is "mixed", and none if it is a name of something else.
    pub fn disturb(&mut self, fault: &str, worst: &Worst, rng: &mut Rng) {
        let all = fault == "mixed";
        if fault == "loss" || all {
            self.loss = rng.within(1, worst.loss);
        }
        if fault == "duplicate" || all {
            self.duplicate = rng.within(1, 300);
        }
        if fault == "reorder" || all {
            self.jitter_ns = rng.within(1, 60_000);
        }
        if fault == "delay" || all {
            (self.delay, self.delay_ns) = (rng.within(1, 100), rng.within(1, 5_000_000));
        }
        if fault == "overflow" || all {
            self.buffer_bytes = rng.within(5_000, worst.buffer_bytes);
            self.service_ns = rng.within(1, 100_000);
        }
        if fault == "full" || (all && worst.full > 0) {
            (self.full, self.full_ns) = (rng.within(1, worst.full), rng.within(1, 500_000));
        }
    }
}
