//! Release of the memory of idle rings.

use super::peer::Peer;

/// Time without writes after which the memory of a ring is given back to the kernel. The actual time is up to twice as
/// long.
const IDLE_NS: u64 = 1_000_000_000;

/// Maximum number of rings whose memory one call of `look` gives back. Each ring takes tens of microseconds, during
/// which the device does no other work.
const RINGS_PER_LOOK: usize = 4;

/// Schedule of the passes over the rings.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// Time of the next pass; `None` while no ring has memory to give back.
    look_at_ns: Option<u64>,
    /// Index of the peer at which the next pass begins. It is 0 unless the last pass stopped early.
    next_place: usize,
}

impl Idle {
    /// Returns whether no pass is scheduled.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.look_at_ns.is_none()
    }

    /// Schedules a pass, since the caller has written to a ring. Once that ring is idle, a pass can give its memory
    /// back.
    #[cold]
    pub(super) fn watch_from(&mut self, now_ns: u64) {
        self.look_at_ns = Some(now_ns + IDLE_NS);
    }

    /// Returns the time of the next pass.
    #[inline]
    pub(super) fn look_at_ns(&self) -> Option<u64> {
        self.look_at_ns
    }

    /// Runs a pass: gives back the memory of the rings that have been idle since the last pass.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64, peers: &mut [Option<Peer>]) {
        let mut given_back = 0;
        for (place, peer) in peers.iter_mut().enumerate().skip(self.next_place) {
            given_back += usize::from(peer.as_mut().is_some_and(Peer::give_back_if_idle));
            if given_back == RINGS_PER_LOOK {
                // The pass continues in the next call of receive, so that packets do not wait.
                (self.look_at_ns, self.next_place) = (Some(now_ns), place + 1);
                return;
            }
        }
        self.next_place = 0;
        let may_become_idle = peers.iter().flatten().any(Peer::keeps_memory);
        self.look_at_ns = may_become_idle.then_some(now_ns + IDLE_NS);
    }
}
