//! Messages of devices that share memory, which arrive in the UDP socket and are no packets.

use std::net::SocketAddr;

use super::meet::Meeting;
use super::message::Datagram;
use super::peer::Peer;
use crate::link::{ReceivedRun, Sink};

/// Sink that takes these messages out of the received datagrams and passes the packets on.
pub(super) struct WithoutMessages<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) meeting: Option<&'a Meeting>,
    pub(super) peers: &'a [Option<Peer>],
    pub(super) own: SocketAddr,
    pub(super) packets: usize,
    /// Whether a peer wrote to a ring while this device slept, or there is news.
    pub(super) is_woken: bool,
}

impl WithoutMessages<'_> {
    /// Returns whether a run came from the socket of this device, or of one that shares memory with it. Other senders
    /// cannot make this device check all rings.
    #[cold]
    fn may_wake(&self, run: &ReceivedRun<'_>) -> bool {
        let src = run.outer.src;
        let is_peer = || self.peers.iter().flatten().any(|peer| peer.address == src);
        run.source_port == self.own.port() && (src == self.own.ip() || is_peer())
    }
}

impl Sink for WithoutMessages<'_> {
    #[inline]
    fn receive(&mut self, run: ReceivedRun<'_>) {
        // The kernel only combines datagrams of one length, so a run with packets rarely contains a message.
        if run.segments().all(|packet| Datagram::parse(packet).is_none()) {
            self.packets += run.segments().len();
            return self.sink.receive(run);
        }
        for packet in run.segments() {
            match Datagram::parse(packet) {
                Some(Datagram::Wake) => self.is_woken = self.is_woken || self.may_wake(&run),
                Some(Datagram::Challenge { invited, asked }) if run.source_port == self.own.port() => {
                    if let Some(meeting) = self.meeting {
                        meeting.challenged(run.outer.src, invited, asked);
                    }
                }
                Some(Datagram::Challenge { .. }) => {}
                None => {
                    self.packets += 1;
                    self.sink.receive(ReceivedRun { bytes: packet, segment_bytes: packet.len(), ..run });
                }
            }
        }
    }
}
