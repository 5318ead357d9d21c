//! Faults of the link in seeded runs.

use super::Rng;
use super::world::Link;

/// Maximum values from which a seeded run draws the faults of a link. Rates are per mille of packets.
pub struct Worst {
    pub loss: u64,
    /// Maximum size of the receive buffer in runs with the fault "overflow".
    pub buffer_bytes: u64,
    /// Maximum rate of batches after which the link is full for some time. With 0, the fault "mixed" leaves such
    /// batches out.
    pub full: u64,
}

impl Link {
    /// Adds the fault with this name to the link, or all faults if the name is "mixed". Any other name adds no fault.
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
