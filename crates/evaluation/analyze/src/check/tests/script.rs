//! Conversations as lists of packets, which tests change before they are checked.

use doorbell_wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, BTH_LEN, BthRepr, CNP_RESERVED_LEN, Msn, NakCode, Opcode, Psn, Qpn,
    RKey, RethRepr, Syndrome,
};

use super::*;
use crate::decode::tests::{frame_of, pcap, seal};

pub(super) const A: u8 = 1;
pub(super) const B: u8 = 2;
pub(super) const MTU: usize = 1024;
/// First PSN, so that the PSNs wrap within the script.
pub(super) const FIRST: u32 = 0xff_fffa;

#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) from: u8,
    pub(super) bth: BthRepr,
    pub(super) extension: Vec<u8>,
    /// Payload and padding.
    pub(super) body: Vec<u8>,
    /// Whether the ICRC is wrong.
    pub(super) is_damaged: bool,
}

impl Sent {
    pub(super) fn to(&self) -> u8 {
        if self.from == A { B } else { A }
    }

    /// Returns the packet without its ICRC.
    pub(super) fn packet(&self) -> Vec<u8> {
        let mut packet = vec![0; BTH_LEN];
        self.bth.write((&mut packet[..]).try_into().unwrap());
        packet.extend(&self.extension);
        packet.extend(&self.body);
        packet
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let mut packet = seal(self.from, self.to(), 0, self.packet());
        if self.is_damaged {
            *packet.last_mut().unwrap() ^= 1;
        }
        frame_of(self.from, self.to(), None, &packet)
    }
}

/// Conversation of queue pair 0xa of A with queue pair 0xb of B. A sends the requests.
pub(super) struct Script {
    pub(super) packets: Vec<Sent>,
    pub(super) psn: Psn,
    pub(super) msn: u32,
}

impl Script {
    pub(super) fn new() -> Self {
        Self { packets: Vec::new(), psn: Psn::new(FIRST), msn: 0 }
    }

    pub(super) fn push(&mut self, from: u8, opcode: Opcode, psn: Psn, extension: &[u8], bytes: usize) {
        assert_eq!(extension.len(), opcode.extension_len(), "{opcode}");
        let padded = bytes.next_multiple_of(4);
        let bth = BthRepr {
            opcode,
            psn,
            dest_qpn: Qpn::new(if from == A { 0xb } else { 0xa }),
            pad_count: (padded - bytes) as u8,
            ack_request: from == A,
            becn: opcode == Opcode::CNP,
            ..BthRepr::default()
        };
        let body = vec![0x5a; padded];
        self.packets.push(Sent { from, bth, extension: extension.to_vec(), body, is_damaged: false });
    }

    /// Adds a new request that takes `psns` PSNs, and returns its PSN.
    pub(super) fn request(&mut self, opcode: Opcode, extension: &[u8], bytes: usize, psns: u32) -> Psn {
        let psn = self.psn;
        self.push(A, opcode, psn, extension, bytes);
        self.psn = psn.add(psns);
        psn
    }

    pub(super) fn send(&mut self) -> Psn {
        self.request(Opcode::RC_SEND_ONLY, &[], 62, 1)
    }

    pub(super) fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let extension = aeth(syndrome, self.msn);
        self.push(B, Opcode::RC_ACKNOWLEDGE, psn, &extension, 0);
    }

    /// Acknowledges one more message.
    pub(super) fn ack(&mut self, psn: Psn) {
        self.msn += 1;
        self.answer(psn, Syndrome::ACK_UNLIMITED);
    }

    pub(super) fn write(&mut self) {
        self.request(Opcode::RC_WRITE_FIRST, &reth(2548), MTU, 1);
        self.request(Opcode::RC_WRITE_MIDDLE, &[], MTU, 1);
        let last = self.request(Opcode::RC_WRITE_LAST, &[], 500, 1);
        self.ack(last);
    }

    pub(super) fn read(&mut self) {
        let psn = self.request(Opcode::RC_READ_REQUEST, &reth(2500), 0, 3);
        self.msn += 1;
        let aeth = aeth(Syndrome::ACK_UNLIMITED, self.msn);
        self.push(B, Opcode::RC_READ_RESPONSE_FIRST, psn, &aeth, MTU);
        self.push(B, Opcode::RC_READ_RESPONSE_MIDDLE, psn.add(1), &[], MTU);
        self.push(B, Opcode::RC_READ_RESPONSE_LAST, psn.add(2), &aeth, 2500 - 2 * MTU);
    }

    pub(super) fn atomic_answer(&mut self, psn: Psn) {
        let mut original = [0; 8];
        AtomicAckEthRepr { original: 77 }.write(&mut original);
        let extension = [&aeth(Syndrome::ACK_UNLIMITED, self.msn)[..], &original].concat();
        self.push(B, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, &extension, 0);
    }

    pub(super) fn notify(&mut self) {
        self.push(B, Opcode::CNP, Psn::new(0), &[0; CNP_RESERVED_LEN], 0);
    }

    pub(super) fn check(&self, limits: &Limits) -> Report {
        let frames: Vec<_> = self.packets.iter().map(Sent::frame).collect();
        check(&pcap(&frames)[..], &Options::default(), limits).unwrap()
    }

    /// Returns the packet with this opcode that comes `nth`, from 0.
    pub(super) fn nth(&mut self, opcode: Opcode, nth: usize) -> &mut Sent {
        self.packets.iter_mut().filter(|packet| packet.bth.opcode == opcode).nth(nth).unwrap()
    }

    pub(super) fn remove(&mut self, opcode: Opcode, nth: usize) {
        let mut all = self.packets.iter().enumerate().filter(|(_, packet)| packet.bth.opcode == opcode);
        let at = all.nth(nth).unwrap().0;
        self.packets.remove(at);
    }
}

pub(super) fn aeth(syndrome: Syndrome, msn: u32) -> [u8; 4] {
    let mut out = [0; 4];
    AethRepr { syndrome, msn: Msn::new(msn) }.write(&mut out);
    out
}

pub(super) fn reth(bytes: u32) -> [u8; 16] {
    let mut out = [0; 16];
    RethRepr { virtual_address: 0x1000, rkey: RKey::new(7), dma_length: bytes }.write(&mut out);
    out
}

pub(super) fn move_psn(packet: &mut Sent, by: u32) {
    packet.bth.psn = packet.bth.psn.add(by);
}

/// ACKs before the loss.
pub(super) const ACKS_BEFORE_LOSS: usize = 8;
/// SENDs before the loss.
pub(super) const SENDS_BEFORE_LOSS: usize = 6;

/// Returns a conversation with every kind of recovery that IBTA allows.
pub(super) fn clean() -> Script {
    let mut script = Script::new();
    for _ in 0..4 {
        let psn = script.send();
        script.ack(psn);
    }
    script.write();
    script.write();
    script.read();
    script.read();
    for _ in 0..2 {
        let psn = script.send();
        script.ack(psn);
    }
    // A lost packet: NAK and go-back-N.
    let sent: Vec<_> = (0..4).map(|_| script.send()).collect();
    script.msn += 1;
    script.answer(sent[1], Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    for psn in &sent[1..] {
        script.push(A, Opcode::RC_SEND_ONLY, *psn, &[], 62);
    }
    script.msn += 2;
    script.ack(sent[3]);
    // No receive: an RNR NAK of 10 us, and CNPs of one per microsecond meanwhile.
    let psn = script.send();
    script.answer(psn, Syndrome::rnr_nak(1));
    (0..12).for_each(|_| script.notify());
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.ack(psn);
    // A lost response of an atomic.
    let mut atomic = [0; 28];
    AtomicEthRepr { virtual_address: 0x2000, rkey: RKey::new(7), swap_or_add: 1, compare: 0 }.write(&mut atomic);
    let psn = script.request(Opcode::RC_FETCH_ADD, &atomic, 0, 1);
    script.msn += 1;
    script.atomic_answer(psn);
    script.push(A, Opcode::RC_FETCH_ADD, psn, &atomic, 0);
    script.atomic_answer(psn);
    for _ in 0..4 {
        let psn = script.send();
        script.ack(psn);
    }
    script
}
