//! Release of the memory of idle rings.

use super::peer::Peer;

/// Time without writes after which a ring gives its memory back. The actual time is up to twice as long.
const IDLE_NS: u64 = 1_000_000_000;

/// Maximum number of rings that give memory back in one pass. Each takes tens of microseconds, in which the device
/// does no other work.
const RINGS_PER_LOOK: usize = 4;

/// Schedule of the passes over the rings.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// Time of the next pass; `None` while no ring has memory to give back.
    look_at_ns: Option<u64>,
    /// Place at which the next pass begins, if the last one did not reach the end.
    next_place: usize,
}

impl Idle {
    /// Returns whether no pass is scheduled.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.look_at_ns.is_none()
    }

    /// Schedules a pass: a ring has memory to give back if it becomes idle.
    #[cold]
    pub(super) fn watch_from(&mut self, now_ns: u64) {
        self.look_at_ns = Some(now_ns + IDLE_NS);
    }

    /// Returns when the next pass is due.
    #[inline]
    pub(super) fn look_at_ns(&self) -> Option<u64> {
        self.look_at_ns
    }

    /// Gives back the memory of rings that have been idle since the last pass.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64, peers: &mut [Option<Peer>]) {
        let mut given_back = 0;
        for (place, peer) in peers.iter_mut().enumerate().skip(self.next_place) {
            given_back += usize::from(peer.as_mut().is_some_and(Peer::give_back_if_idle));
            if given_back == RINGS_PER_LOOK {
                // The pass continues as soon as packets have had their turn.
                (self.look_at_ns, self.next_place) = (Some(now_ns), place + 1);
                return;
            }
        }
        self.next_place = 0;
        let may_become_idle = peers.iter().flatten().any(Peer::keeps_memory);
        self.look_at_ns = may_become_idle.then_some(now_ns + IDLE_NS);
    }
}
