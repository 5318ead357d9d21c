//! Runs that wait for room in full rings. The link looks for room in each call of `transmit` and `receive`, and asks by
//! `poll_timeout` for such calls.

use super::super::held::RETRY_NS;
use super::SharedMemoryLink;

impl SharedMemoryLink {
    /// Writes waiting runs to rings that have room now, and drops those whose reader has stopped.
    #[inline]
    pub(super) fn flush_held(&mut self, now_ns: u64) {
        if self.retry_at_ns.is_some() {
            self.flush_all_held(now_ns);
        }
    }

    #[cold]
    fn flush_all_held(&mut self, now_ns: u64) {
        let mut some_wait = false;
        for place in 0..self.peers.len() {
            let Some(peer) = self.peers[place].as_mut().filter(|peer| !peer.held.is_empty()) else { continue };
            let (written, dropped) = peer.flush(now_ns);
            some_wait |= !peer.held.is_empty();
            self.counters.packets_sent += written;
            self.counters.full += dropped;
            self.wake(&[place]);
        }
        self.retry_at_ns = some_wait.then_some(now_ns + RETRY_NS);
    }
}
