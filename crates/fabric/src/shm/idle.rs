//! Rings in which nothing moves any more give their memory back.

use super::peer::Peer;

/// A ring gives its memory back once nothing was written to it for this time, or for up to twice as long.
const IDLE_NS: u64 = 1_000_000_000;

/// A look gives back the memory of at most this number of rings: each takes tens of microseconds, in which the device does nothing
/// else.
const RINGS_PER_LOOK: usize = 4;

/// When rings are looked at.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// `None` while no ring has memory to give back.
    look_at_ns: Option<u64>,
    /// The place at which the next look begins, if the last one has not come to the end.
    next_place: usize,
}

impl Idle {
    /// Is nothing to be looked at?
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.look_at_ns.is_none()
    }

    /// A ring has memory to give back, if it becomes idle.
    #[cold]
    pub(super) fn watch_from(&mut self, now_ns: u64) {
        self.look_at_ns = Some(now_ns + IDLE_NS);
    }

    /// When the next look is due.
    #[inline]
    pub(super) fn look_at_ns(&self) -> Option<u64> {
        self.look_at_ns
    }

    /// Gives back the memory of rings that have been idle since the last look.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64, peers: &mut [Option<Peer>]) {
        let mut given_back = 0;
        for (place, peer) in peers.iter_mut().enumerate().skip(self.next_place) {
            given_back += usize::from(peer.as_mut().is_some_and(Peer::give_back_if_idle));
            if given_back == RINGS_PER_LOOK {
                // It goes on as soon as packets have had their turn.
                (self.look_at_ns, self.next_place) = (Some(now_ns), place + 1);
                return;
            }
        }
        self.next_place = 0;
        let may_become_idle = peers.iter().flatten().any(Peer::keeps_memory);
        self.look_at_ns = may_become_idle.then_some(now_ns + IDLE_NS);
    }
}
