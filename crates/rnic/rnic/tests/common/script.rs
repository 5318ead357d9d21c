//! One RNIC under test and a peer whose packets the test writes.

use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Completion, Counters, Payload, PostError, QpKind, QpState, RecvRequest,
    SendFlags, SendOperation, SendRequest, Status,
};
use doorbell_wire::{
    AethPacket, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BTH_LEN, BthRepr, DethRepr, ImmDtRepr, Msn, NakCode, Opcode,
    PartitionKey, PathMtu, Psn, QKey, Qpn, RKey, RethRepr, Syndrome, SyndromeKind,
};

use super::world::{Acks, Sent};
use super::{End, Link, World};

/// Index of the node with the RNIC under test.
pub const OWN: usize = 0;
/// Index of the node of the peer, whose own RNIC sends nothing.
pub const PEER: usize = 1;
/// Queue pair number of the peer.
pub const PEER_QPN: Qpn = Qpn::new(0x777);
/// Sequence number of the first request of the peer.
pub const PEER_PSN: Psn = Psn::new(5000);
/// Sequence number of the first request of the RNIC under test, unless an `End` sets another number.
pub const OWN_PSN: Psn = Psn::new(100);

/// Returns a packet built from its headers and payload, padded.
pub fn packet(bth: BthRepr, extension: &[u8], payload: &[u8]) -> Vec<u8> {
    let pad = payload.len().wrapping_neg() & 3;
    let mut header = [0; BTH_LEN];
    BthRepr { pad_count: pad as u8, ..bth }.write(&mut header);
    [&header[..], extension, payload, &[0; 3][..pad]].concat()
}

/// A packet of the peer: a request or a response.
#[derive(Clone, Debug)]
pub struct Say {
    pub bth: BthRepr,
    pub extension: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Say {
    pub fn psn(mut self, psn: Psn) -> Self {
        self.bth.psn = psn;
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    pub fn quiet(mut self) -> Self {
        self.bth.ack_request = false;
        self
    }

    pub fn reth(mut self, address: u64, rkey: RKey, length: u32) -> Self {
        let mut bytes = [0; 16];
        RethRepr { virtual_address: address, rkey, dma_length: length }.write(&mut bytes);
        self.extension.extend(bytes);
        self
    }

    pub fn atomic(mut self, address: u64, rkey: RKey, swap_or_add: u64, compare: u64) -> Self {
        let mut bytes = [0; 28];
        AtomicEthRepr { virtual_address: address, rkey, swap_or_add, compare }.write(&mut bytes);
        self.extension.extend(bytes);
        self
    }

    pub fn immediate(mut self, value: u32) -> Self {
        let mut bytes = [0; 4];
        ImmDtRepr { value }.write(&mut bytes);
        self.extension.extend(bytes);
        self
    }

    pub fn invalidate(mut self, rkey: RKey) -> Self {
        self.extension.extend(rkey.get().to_be_bytes());
        self
    }

    pub fn deth(mut self, qkey: QKey, source_qpn: Qpn) -> Self {
        let mut bytes = [0; 8];
        DethRepr { qkey, source_qpn }.write(&mut bytes);
        self.extension.extend(bytes);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        packet(self.bth, &self.extension, &self.payload)
    }
}

pub struct Script {
    pub world: World,
    pub qpn: Qpn,
    pub mtu: usize,
    next_send: u64,
}

impl Script {
    pub fn new() -> Self {
        Self::with(QpKind::Rc, PathMtu::Mtu256, &End::default())
    }

    pub fn rc(end: &End) -> Self {
        Self::with(QpKind::Rc, PathMtu::Mtu256, end)
    }

    pub fn with(kind: QpKind, mtu: PathMtu, end: &End) -> Self {
        let mut script = Self::silent(mtu);
        script.qpn = script.add_qp(kind, mtu, end);
        script
    }

    /// Creates a script without a queue pair.
    pub fn silent(mtu: PathMtu) -> Self {
        let mut world = World::new(1, 2, 1 << 20, 1 << 12, Link { latency_ns: 1000, ..Link::default() });
        world.nodes[PEER].alive = false;
        world.recording = true;
        world.acks = Acks::Released;
        Self { world, qpn: Qpn::new(0), mtu: mtu.bytes(), next_send: 0 }
    }

    pub fn add_qp(&mut self, kind: QpKind, mtu: PathMtu, end: &End) -> Qpn {
        let qpn = self.world.create_qp(OWN, kind, end);
        self.world.bring_to_init(OWN, qpn, kind, end);
        self.world.bring_to_rtr(OWN, qpn, kind, mtu, end, (PEER, PEER_QPN, PEER_PSN));
        self.world.bring_to_rts(OWN, qpn, kind, end);
        qpn
    }

    pub fn rnic(&mut self) -> &mut doorbell_rnic::Rnic {
        &mut self.world.nodes[OWN].rnic
    }

    pub fn counters(&self) -> Counters {
        *self.world.nodes[OWN].rnic.counters()
    }

    pub fn base(&self) -> u64 {
        self.world.nodes[OWN].memory.address()
    }

    pub fn rkey(&self) -> RKey {
        self.world.nodes[OWN].region.rkey()
    }

    pub fn state(&self) -> QpState {
        self.world.state_of(OWN, self.qpn)
    }

    /// Registers a part of the memory of the node again, with other rights.
    pub fn region(&mut self, offset: usize, length: usize, access: Access) -> std::sync::Arc<doorbell_rnic::Region> {
        let node = &mut self.world.nodes[OWN];
        assert!(offset + length <= node.memory.len());
        let (base, address) = (node.memory.base().wrapping_add(offset), node.memory.address() + offset as u64);
        // SAFETY: the block lives as long as the node's RNIC.
        unsafe { node.rnic.register(node.pd, base, length, address, access, None) }
            .expect("the device has room for a region")
    }

    /// Returns a packet of the peer with PSN 5000 and an acknowledgement request. The test changes its other fields.
    pub fn say(&self, opcode: Opcode) -> Say {
        let bth = BthRepr {
            opcode,
            dest_qpn: self.qpn,
            ack_request: true,
            psn: PEER_PSN,
            partition_key: PartitionKey::DEFAULT,
            ..BthRepr::default()
        };
        Say { bth, extension: Vec::new(), payload: Vec::new() }
    }

    pub fn hear(&mut self, said: &Say) {
        self.world.inject(PEER, OWN, &said.bytes());
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        let mut aeth = [0; 4];
        AethRepr { syndrome, msn: Msn::new(0) }.write(&mut aeth);
        let mut said = self.say(Opcode::RC_ACKNOWLEDGE).psn(psn).quiet();
        said.extension.extend(aeth);
        self.hear(&said);
    }

    pub fn ack(&mut self, psn: Psn) {
        self.acknowledge(psn, Syndrome::ACK_UNLIMITED);
    }

    pub fn nak(&mut self, psn: Psn, code: NakCode) {
        self.acknowledge(psn, Syndrome::nak(code));
    }

    pub fn rnr_nak(&mut self, psn: Psn, timer: u8) {
        self.acknowledge(psn, Syndrome::rnr_nak(timer));
    }

    /// Sends a READ response packet to the RNIC.
    pub fn respond(&mut self, opcode: Opcode, psn: Psn, payload: &[u8]) {
        let mut said = self.say(opcode).psn(psn).quiet().payload(payload);
        if opcode.has_aeth() {
            let mut aeth = [0; 4];
            AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(0) }.write(&mut aeth);
            said.extension.extend(aeth);
        }
        self.hear(&said);
    }

    pub fn respond_atomic(&mut self, psn: Psn, original: u64) {
        let mut said = self.say(Opcode::RC_ATOMIC_ACKNOWLEDGE).psn(psn).quiet();
        let (mut aeth, mut value) = ([0; 4], [0; 8]);
        AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(0) }.write(&mut aeth);
        AtomicAckEthRepr { original }.write(&mut value);
        said.extension.extend(aeth);
        said.extension.extend(value);
        self.hear(&said);
    }

    /// Returns the packets that the RNIC sends now.
    pub fn sent(&mut self) -> Vec<Sent> {
        self.world.transmit();
        std::mem::take(&mut self.world.log)
    }

    /// Returns the opcodes and sequence numbers of the packets that the RNIC sends now.
    pub fn shapes(&mut self) -> Vec<(Opcode, Psn)> {
        self.sent().iter().map(|sent| (sent.opcode(), sent.psn())).collect()
    }

    /// Advances the time by `ns`. The RNIC handles all deadlines in between.
    pub fn pass(&mut self, ns: u64) {
        let until_ns = self.world.now_ns + ns;
        self.world.run_until(until_ns);
    }

    /// Posts a request whose source or destination is the first `length` bytes of memory. Returns the number of the
    /// work request.
    pub fn post_flagged(&mut self, operation: SendOperation, length: usize, flags: SendFlags) -> u64 {
        let wr_id = self.next_send;
        self.try_post(operation, length, flags).expect("the queue has room");
        wr_id
    }

    pub fn try_post(&mut self, operation: SendOperation, length: usize, flags: SendFlags) -> Result<(), PostError> {
        let sge = [self.world.nodes[OWN].sge(0, length)];
        let (wr_id, now_ns, qpn) = (self.next_send, self.world.now_ns, self.qpn);
        let request = SendRequest { wr_id, operation, flags, payload: Payload::Sges(&sge), destination: None };
        self.rnic().post_send(now_ns, qpn, &[request])?;
        self.next_send += 1;
        Ok(())
    }

    pub fn post(&mut self, operation: SendOperation, length: usize) -> u64 {
        self.post_flagged(operation, length, SendFlags::SIGNALED)
    }

    pub fn read_of(&self, length: usize) -> (SendOperation, usize) {
        (SendOperation::Read { remote_address: 0x10_0000, rkey: RKey::new(0x1234) }, length)
    }

    pub fn post_read(&mut self, length: usize) -> u64 {
        self.post(SendOperation::Read { remote_address: 0x10_0000, rkey: RKey::new(0x1234) }, length)
    }

    /// Posts a receive of `length` bytes at `offset`. The number of the work request is the offset.
    pub fn receive(&mut self, offset: usize, length: usize) {
        let sges = [self.world.nodes[OWN].sge(offset, length)];
        let qpn = self.qpn;
        let request = RecvRequest { wr_id: offset as u64, sges: &sges };
        self.rnic().post_recv(qpn, &[request]).expect("the queue has room");
    }

    /// Returns the new completions. The RNIC first sends its packets, since the completion of a receive is visible only
    /// after its acknowledgement.
    pub fn reap(&mut self) -> Vec<Completion> {
        self.world.transmit();
        self.world.nodes[OWN].reap()
    }

    /// Returns the work request numbers and statuses of the new completions.
    pub fn ends(&mut self) -> Vec<(u64, Status)> {
        self.reap().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    /// Receives messages and replies to each, until the acknowledgement of the next message may wait for its reply.
    /// Returns the sequence number of the next request. The receives use the end of the node's memory.
    pub fn answer_often(&mut self) -> Psn {
        for index in 0..8 {
            let offset = self.world.nodes[OWN].memory.len() - 8;
            self.receive(offset, 8);
            self.hear(&self.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(index)));
            assert_eq!(self.reap().len(), 1, "expected only the completion of a receive");
            self.post_flagged(SendOperation::Send, 8, SendFlags::empty());
        }
        let last = self.sent().iter().rfind(|sent| sent.opcode() == Opcode::RC_SEND_ONLY).expect("answers").psn();
        self.ack(last);
        PEER_PSN.add(8)
    }

    pub fn events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.rnic().poll_event()).collect()
    }

    pub fn address(&self) -> AddressVector {
        AddressVector::to(self.world.nodes[PEER].address)
    }
}

/// Returns the NAK code of a packet, if it is a NAK.
pub fn nak_of(sent: &Sent) -> Option<NakCode> {
    match syndrome_of(sent) {
        Some(SyndromeKind::Nak(code)) => Some(code),
        _ => None,
    }
}

/// Returns the syndrome of an ACK or response.
pub fn syndrome_of(sent: &Sent) -> Option<SyndromeKind> {
    let bytes = sent.opcode().has_aeth().then(|| &sent.bytes[BTH_LEN..])?;
    Some(AethPacket::new_checked(bytes).expect("whole").syndrome().kind())
}
