//! A middlebox inside the switch. It handles packets one after the other, each at a fixed cost.

use doorbell_steer::Steer;
use doorbell_wire::{BTH_LEN, BthPacket};

use super::network::Forwarded;
use super::node::{dest_qpn, node_of, source_port};
use super::stations::Server;
use super::{EventKind, World};
use crate::time::Ps;

/// A middlebox at the switch. Its address follows the address of the last node.
#[derive(Debug)]
pub(crate) struct Middlebox {
    pub(crate) steer: Steer,
    server: Server,
    /// Time of the kernel's event for the middlebox timer.
    timeout_at: Ps,
}

impl Middlebox {
    pub(crate) fn new(steer: Steer) -> Self {
        Self { steer, server: Server::default(), timeout_at: Ps::MAX }
    }
}

impl World {
    /// Handles a frame to the middlebox when the frame has reached the switch.
    pub(super) fn enter_box(&mut self, number: usize) {
        let Some(middlebox) = &mut self.middlebox else { return self.frames.give_back(number) };
        let switch = &self.testbed.switch;
        let begins = middlebox.server.serve(self.now + switch.latency, switch.middlebox_packet);
        self.push(begins + switch.middlebox, EventKind::Steer { frame: number as u32 });
    }

    /// Lets the middlebox handle a frame.
    pub(super) fn steer(&mut self, number: usize) {
        let Some(mut middlebox) = self.middlebox.take() else { return self.frames.give_back(number) };
        let frame = &self.frames[number];
        if let Some(capture) = &mut self.capture {
            capture.arrived(self.now, self.now, frame);
        }
        self.moved_at = self.now;
        let what = self.now.0 ^ (frame.bytes.len() as u64) << 48;
        middlebox.steer.handle_packet(self.now.as_ns(), &frame.outer(), &frame.bytes);
        self.frames.give_back(number);
        self.mix(what);
        self.leave_box(middlebox);
    }

    /// Lets the middlebox send the packets that a control operation has left in its queues.
    pub(crate) fn poke_box(&mut self) {
        self.push(self.clock(), EventKind::SteerTimeout);
    }

    pub(super) fn time_out_box(&mut self) {
        let Some(mut middlebox) = self.middlebox.take() else { return };
        if middlebox.timeout_at <= self.now {
            middlebox.timeout_at = Ps::MAX;
        }
        if middlebox.steer.poll_timeout().is_some_and(|at_ns| at_ns <= self.now.as_ns()) {
            middlebox.steer.handle_timeout(self.now.as_ns());
        }
        self.leave_box(middlebox);
    }

    /// Sends the packets of the middlebox and sets its timer.
    fn leave_box(&mut self, mut middlebox: Box<Middlebox>) {
        let (nodes, own) = (self.nodes.len(), self.nodes.len());
        let mut leaving = std::mem::take(&mut self.from_box);
        let Self { frames, .. } = self;
        middlebox.steer.poll_transmit(|path, packet| {
            let Some(to) = node_of(path.destination).filter(|&to| to < nodes) else { return };
            let number = frames.take(packet);
            let frame = &mut frames[number];
            frame.from = node_of(path.source).filter(|&from| from < nodes).unwrap_or(own);
            (frame.to, frame.traffic_class) = (to, path.traffic_class);
            let is_whole = packet.len() >= BTH_LEN;
            frame.opcode = if is_whole { BthPacket::new_unchecked(packet).opcode() } else { Default::default() };
            frame.payload = packet.len().saturating_sub(BTH_LEN + frame.opcode.extension_len()) as u64;
            frame.source_port = dest_qpn(packet).map_or(0, |peer| source_port(peer, peer));
            leaving.push(number);
        });
        for number in leaving.drain(..) {
            let at = middlebox.server.serve(self.now, self.testbed.switch.middlebox_packet);
            match self.network.leave_box(at, &self.testbed.switch, &mut self.frames[number], &mut self.counts) {
                Forwarded::AtNode(at) => self.arrive(number, at),
                Forwarded::AtSwitch(_) | Forwarded::Dropped => self.frames.give_back(number),
            }
        }
        self.from_box = leaving;
        if let Some(at_ns) = middlebox.steer.poll_timeout() {
            let at = Ps::from_ns(at_ns);
            if at < middlebox.timeout_at {
                middlebox.timeout_at = at;
                self.push(at, EventKind::SteerTimeout);
            }
        }
        self.middlebox = Some(middlebox);
    }
}
