//! Devices that were invited without success. Each pair of engines requests invitations on its own, so this module
//! limits the number of tries per device.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// Time without further tries after a try without success. The time doubles with each further one. It is half the time
/// after which a pair of engines requests another invitation, so a device with one engine gets all its tries.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Maximum time without tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of devices in the list. If the list is full, it starts again.
const ABSENCES_MAX: usize = 4096;

/// Pause between tries to invite a device.
#[derive(Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// Devices that were invited without success.
#[derive(Debug)]
pub(super) struct Absences {
    pauses: FxHashMap<IpAddr, Pause>,
    longest: Duration,
}

impl Absences {
    /// Creates an empty list. If a device may use only shared memory, the pauses do not grow, since packets are lost
    /// during the pauses.
    pub(super) fn new(only_shared_memory: bool) -> Self {
        let longest = if only_shared_memory { FIRST_PAUSE } else { LONGEST_PAUSE };
        Self { pauses: FxHashMap::default(), longest }
    }

    /// Returns whether the device at `address` must not be invited now.
    pub(super) fn pauses(&self, address: IpAddr, now: Instant) -> bool {
        self.pauses.get(&address).is_some_and(|pause| now < pause.until)
    }

    /// Notes that the device at `address` was invited without success.
    pub(super) fn add(&mut self, address: IpAddr, now: Instant) {
        if self.pauses(address, now) {
            return; // several engines were invited at the same time
        }
        let length = self.pauses.get(&address).map_or(FIRST_PAUSE, |pause| (2 * pause.length).min(self.longest));
        if self.pauses.len() >= ABSENCES_MAX {
            self.pauses.clear();
        }
        self.pauses.insert(address, Pause { until: now + length, length });
    }

    /// Notes that the device at `address` shares memory.
    pub(super) fn remove(&mut self, address: IpAddr) {
        self.pauses.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of tries in 10 seconds, if requests come each millisecond.
    fn tries(only_shared_memory: bool) -> usize {
        let (mut absences, address, begun) = (Absences::new(only_shared_memory), [127, 0, 0, 9].into(), Instant::now());
        let is_tried = |millisecond: &u64| {
            let now = begun + Duration::from_millis(*millisecond);
            let is_tried = !absences.pauses(address, now);
            absences.add(address, now);
            is_tried
        };
        (0..10_000).filter(is_tried).count()
    }

    #[test]
    fn the_number_of_tries_does_not_depend_on_the_number_of_requests() {
        // Seven pauses of 5 to 320 ms, then pauses of 500 ms.
        assert_eq!(tries(false), 7 + 19);
        assert_eq!(tries(true), 2000);
    }

    #[test]
    fn a_device_that_shared_memory_is_tried_again_at_once() {
        let (mut absences, address, now) = (Absences::new(false), [127, 0, 0, 9].into(), Instant::now());
        absences.add(address, now);
        assert!(absences.pauses(address, now));
        absences.remove(address);
        assert!(!absences.pauses(address, now));
    }
}
