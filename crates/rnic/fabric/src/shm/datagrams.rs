//! Datagrams on the UDP socket that contain messages about shared memory instead of packets.

use std::net::SocketAddr;

use super::meet::Meeting;
use super::message::Datagram;
use super::peer::Peer;
use crate::link::{ReceivedRun, Sink};

/// Sink that handles the messages among the received datagrams and passes the packets to another sink.
pub(super) struct WithoutMessages<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) meeting: Option<&'a Meeting>,
    pub(super) peers: &'a [Option<Peer>],
    pub(super) own: SocketAddr,
    pub(super) packets: usize,
    /// Whether a wake-up arrived: a peer wrote a record while this device slept, or the thread of the [`Meeting`] has
    /// news.
    pub(super) is_woken: bool,
}

impl WithoutMessages<'_> {
    /// Returns whether a run came from this device's own socket or from a device that shares memory with it. Wake-ups
    /// of other senders are ignored, so that these senders cannot make this device check all rings.
    #[cold]
    fn may_wake(&self, run: &ReceivedRun<'_>) -> bool {
        let src = run.outer.src;
        let is_peer = || self.peers.iter().flatten().any(|peer| peer.end.address == src);
        run.source_port == self.own.port() && (src == self.own.ip() || is_peer())
    }
}

impl Sink for WithoutMessages<'_> {
    #[inline]
    fn receive(&mut self, run: ReceivedRun<'_>) {
        // A run without messages is passed on as a whole. Runs that mix packets and messages are rare: the kernel only
        // combines datagrams of equal length, and packets and messages usually differ in length.
        if run.segments().all(|packet| Datagram::parse(packet).is_none()) {
            self.packets += run.segments().len();
            return self.sink.receive(run);
        }
        for packet in run.segments() {
            match Datagram::parse(packet) {
                Some(Datagram::Wake { .. }) => self.is_woken = self.is_woken || self.may_wake(&run),
                Some(Datagram::Challenge { invited, asked, .. }) if run.source_port == self.own.port() => {
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
