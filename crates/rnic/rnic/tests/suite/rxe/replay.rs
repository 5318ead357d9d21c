//! Replay of a capture, with the RNIC under test in place of the captured software RNIC. The RNIC under test gets the
//! packets of rxe and the same work requests, and must send the same packets.
//!
//! An RNIC chooses its queue pair numbers and keys itself. The replay therefore translates only these values: the
//! destination queue pair and the remote key of received packets, and the source queue pair of sent datagrams.
//! Addresses, sequence numbers and the numbers of the objects of rxe stay as captured. Before the translation, the
//! replay checks the ICRC, as a link does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Config, Filter, Region, Rnic, TransmitBatch};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Access, AddressVector, Attachment, Completion, Payload, PdId, QpCapacities, QpInit, RecvRequest, SendFlags,
    SendOperation, SendRequest, Sge, Status, UdDestination,
};
use doorbell_wire::{
    AETH_LEN, AethPacket, AtomicEthPacket, BTH_LEN, BthPacket, BthRepr, DethPacket, ICRC_LEN, NakCode, Opcode,
    PacketOperation, PathMtu, Psn, QKey, Qpn, RKey, RethPacket, Syndrome,
};

use super::capture::{Connection, Message, OWN, Packet, RXE};
use crate::common::Block;

/// Bytes of the routing header before the payload of a datagram (IBTA Vol 1, 11.4.1.2).
const GRH_LEN: usize = 40;
const QUEUE_DEPTH: usize = 1024;

/// Memory that rxe accesses, and its expected contents at the end of the replay.
struct Remote {
    region: Arc<Region>,
    memory: Block,
    expected: Vec<u8>,
}

impl Remote {
    fn place(&self, address: u64, length: usize) -> std::ops::Range<usize> {
        let start = (address - self.region.address()) as usize;
        start..start + length
    }
}

pub(crate) struct Replay<'a> {
    connection: &'a Connection,
    /// Messages of the RNIC under test to rxe.
    asks: Vec<Message>,
    /// Messages of rxe to the RNIC under test.
    asked: Vec<Message>,
    pub(crate) rnic: Rnic,
    qpn: Qpn,
    queue: Arc<CompletionQueue>,
    now_ns: u64,
    batch: TransmitBatch,
    /// Whether the captured software RNIC retransmitted requests.
    was_repeating: bool,
    /// Whether rxe retransmitted READs or atomics.
    was_asked_again: bool,
    remote: BTreeMap<u32, Remote>,
    /// Payloads of the requests to rxe, and room for the answers of rxe, one after the other.
    local: Block,
    local_region: Arc<Region>,
    /// Memory of the receives. Each has room for the longest message.
    receives: Block,
    receive_bytes: usize,
    posted: usize,
    /// Captured packets of rxe that the RNIC under test has not received yet.
    arriving: VecDeque<&'a Packet>,
    /// First transmissions of requests that have not been compared with the capture yet.
    requests: VecDeque<Vec<u8>>,
    /// Sent READ and atomic responses that have not been compared with the capture yet.
    responses: VecDeque<Vec<u8>>,
    naks: VecDeque<Vec<u8>>,
    acknowledgements: VecDeque<Vec<u8>>,
    /// Sequence numbers of the requests that the RNIC under test retransmitted.
    repeated: Vec<Psn>,
    /// Number of NAKs of rxe that made the RNIC under test retransmit, beginning at the sequence number of the NAK.
    pub(crate) naks_heeded: usize,
}

fn register(rnic: &mut Rnic, pd: PdId, memory: &Block, address: u64) -> Arc<Region> {
    // SAFETY: the block lives as long as the RNIC, and no reference to it is ever made.
    unsafe { rnic.register(pd, memory.base(), memory.len(), address, Access::all(), None) }.expect("the range is valid")
}

impl<'a> Replay<'a> {
    pub(crate) fn new(connection: &'a Connection) -> Self {
        let (asks, asked) = (connection.messages(false), connection.messages(true));
        let config =
            Config { address: OWN, active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 16 << 20, seed: [7; 32] };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        let (cq, queue) = rnic.create_cq(QUEUE_DEPTH, None).expect("the depth is within the limits");
        let local = Block::new(asks.iter().map(room_of).sum());
        let local_region = register(&mut rnic, pd, &local, local.address());
        let longest = asked.iter().map(|message| message.payload.len()).max().unwrap_or(0);
        let receive_bytes = GRH_LEN + longest;
        let takers = asked.iter().filter(|message| message.takes_receive()).count();
        let receives = Block::new(takers * receive_bytes);
        let receive_region = register(&mut rnic, pd, &receives, receives.address());
        let remote = remote_memory(&mut rnic, pd, connection, &asked);
        let capacities = QpCapacities {
            max_send_wr: asks.len().max(1),
            max_recv_wr: takers.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let init =
            QpInit { kind: connection.kind, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
        let qpn = rnic.create_qp(init).expect("possible depths");
        bring_up(&mut rnic, qpn, connection);
        for index in 0..takers {
            let address = receives.address() + (index * receive_bytes) as u64;
            let sge = Sge { address, length: receive_bytes as u32, lkey: receive_region.lkey() };
            rnic.post_recv(qpn, &[RecvRequest { wr_id: index as u64, sges: &[sge] }]).expect("the queue has room");
        }
        let mut own = connection.packets.iter().filter(|packet| !packet.is_of_rxe() && packet.is_request());
        let was_repeating = own.any(|packet| connection.is_repeated(packet));
        let mut answered = connection.packets.iter().filter(|packet| packet.is_of_rxe() && packet.is_answered());
        let was_asked_again = answered.any(|packet| connection.is_repeated(packet));
        Self {
            connection,
            asks,
            asked,
            rnic,
            qpn,
            queue,
            now_ns: connection.packets[0].at_ns + 1,
            batch: TransmitBatch::new(1 << 20, ICRC_LEN),
            was_repeating,
            was_asked_again,
            remote,
            local,
            local_region,
            receives,
            receive_bytes,
            posted: 0,
            arriving: VecDeque::new(),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            naks: VecDeque::new(),
            acknowledgements: VecDeque::new(),
            repeated: Vec::new(),
            naks_heeded: 0,
        }
    }

    /// Handles the next packet of the capture. The RNIC under test receives a packet of rxe, or must send a packet of
    /// the software RNIC.
    pub(crate) fn step(&mut self, packet: &'a Packet) {
        if packet.is_of_rxe() {
            self.arriving.push_back(packet);
            return;
        }
        let psn = packet.bth.psn;
        if packet.is_request() {
            if self.asks.get(self.posted).is_some_and(|next| next.first.bth.psn == psn) {
                self.post();
            } else if self.connection.is_repeated(packet) {
                self.repeat(packet);
                return;
            }
        }
        loop {
            // In the capture, the acknowledgement covered all requests received before it. In the replay, some of these
            // requests may not have been delivered yet. Deliver them first.
            if packet.is_plain_ack() {
                while self.expected_psn() != psn.next()
                    && let Some(arrived) = self.arriving.pop_front()
                {
                    self.hear(arrived);
                }
                if self.expected_psn() == psn.next() {
                    self.rnic.release_acks();
                }
            }
            self.transmit();
            let sent = match packet {
                _ if packet.is_request() => self.requests.pop_front(),
                _ if packet.is_plain_ack() => self.acknowledgement_up_to(psn),
                _ if packet.is_acknowledgement() => self.naks.pop_front(),
                _ if self.was_asked_again => self.response_to(psn),
                _ => self.responses.pop_front(),
            };
            if let Some(sent) = sent {
                self.compare(&sent, packet);
                return;
            }
            let goes_on = self.go_on(packet.at_ns);
            assert!(goes_on, "{:?} {psn:?} is never sent", packet.bth.opcode);
        }
    }

    /// Returns the acknowledgement of this sequence number, if the RNIC under test has sent it. Drops the
    /// acknowledgements of earlier sequence numbers: the replay has one for each request, but the capture has only one
    /// for several requests that arrived together.
    fn acknowledgement_up_to(&mut self, psn: Psn) -> Option<Vec<u8>> {
        while let Some(sent) = self.acknowledgements.pop_front() {
            if !BthPacket::new_unchecked(&sent).psn().is_before(psn) {
                return Some(sent);
            }
        }
        None
    }

    /// Returns an earlier sent response with this sequence number, if there is one.
    fn response_to(&self, psn: Psn) -> Option<Vec<u8>> {
        self.responses.iter().rfind(|sent| BthPacket::new_unchecked(sent).psn() == psn).cloned()
    }

    /// Gives the next captured packet of rxe to the RNIC under test. If there is no such packet, handles the RNIC's
    /// next deadline, unless the deadline is later than `until_ns`. Returns whether the RNIC got a packet or handled a
    /// deadline.
    fn go_on(&mut self, until_ns: u64) -> bool {
        if let Some(arrived) = self.arriving.pop_front() {
            self.hear(arrived);
            return true;
        }
        let Some(due_ns) = self.rnic.poll_timeout().filter(|due_ns| *due_ns <= until_ns) else { return false };
        self.now_ns = due_ns;
        self.rnic.handle_timeout(due_ns);
        true
    }

    /// Handles a request that the software RNIC retransmitted in the capture. The time of the retransmission depended
    /// on round trips, which differ in the replay. The RNIC under test may therefore retransmit now, unless received
    /// packets made the retransmission unnecessary.
    fn repeat(&mut self, packet: &Packet) {
        let psn = packet.bth.psn;
        self.transmit();
        while !self.repeated.contains(&psn) && self.rnic.in_flight_packets() > 0 && self.go_on(packet.at_ns) {
            self.transmit();
        }
        self.repeated.retain(|repeated| *repeated != psn);
    }

    fn compare(&self, sent: &[u8], captured: &Packet) {
        let (mut sent, mut expected) = (sent.to_vec(), captured.bytes().to_vec());
        if captured.bth.opcode.has_deth() {
            let own = captured.deth().expect("a datagram has a DETH").source_qpn;
            DethPacket::new_unchecked(&mut sent[BTH_LEN..]).set_source_qpn(own);
        }
        if self.was_repeating && !captured.bth.opcode.is_last() {
            // The positions of the acknowledgement requests within a message depend on the window. In the capture, the
            // software RNIC had assumed a loss and reduced its window. So do not compare the acknowledgement request
            // bit.
            for bytes in [&mut sent, &mut expected] {
                BthPacket::new_unchecked(bytes).set_ack_request(false);
            }
        }
        if self.was_asked_again && captured.is_response() {
            // If rxe repeated a request before it got the response, the responder sends only one response. That
            // response has the current MSN, and a READ response may be split into two parts. So do not compare the
            // opcode, PSN and MSN.
            let content = |bytes: &[u8]| {
                let bth = BthRepr::read(bytes.first_chunk().expect("a BTH"));
                let skip = if bth.opcode.has_aeth() { BTH_LEN + AETH_LEN } else { BTH_LEN };
                (bth.opcode.operation(), bth.dest_qpn, bth.pad_count, bytes[skip..].to_vec())
            };
            assert!(content(&sent) == content(&expected), "{:?} {:?}", captured.bth.opcode, captured.bth.psn);
            return;
        }
        let header = BTH_LEN + captured.bth.opcode.extension_len();
        assert_eq!(sent[..header], expected[..header], "{:?} {:?}", captured.bth.opcode, captured.bth.psn);
        assert!(sent == expected, "the payload of {:?} {:?}", captured.bth.opcode, captured.bth.psn);
    }

    fn expected_psn(&self) -> Psn {
        self.rnic.query_qp(self.qpn).and_then(|info| info.attributes.receive_psn).expect("a queue pair that receives")
    }

    /// Gives a packet of rxe to the RNIC under test. Counts and drops a damaged packet, as a link does.
    pub(crate) fn hear(&mut self, packet: &Packet) {
        if !packet.is_intact() {
            self.rnic.count_icrc_errors(1);
            return;
        }
        let mut bytes = packet.bytes().to_vec();
        BthPacket::new_unchecked(&mut bytes).set_dest_qpn(self.qpn);
        if let Some((rkey, ..)) = packet.remote() {
            let own = self.remote[&rkey.get()].region.rkey();
            if packet.bth.opcode.has_reth() {
                RethPacket::new_unchecked(&mut bytes[BTH_LEN..]).set_rkey(own);
            } else {
                AtomicEthPacket::new_unchecked(&mut bytes[BTH_LEN..]).set_rkey(own);
            }
        }
        let is_nak = packet.syndrome().is_some_and(|syndrome| syndrome == Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
        let repeated = self.repeated.len();
        self.rnic.handle_packet(self.now_ns, &packet.outer, &bytes);
        if is_nak {
            // The packet is a NAK. It makes the RNIC under test retransmit, beginning at the sequence number of the NAK
            // (IBTA Vol 1, 9.7.5.2.8), unless this retransmission is already in flight.
            self.transmit();
            if let Some(first) = self.repeated.get(repeated) {
                assert_eq!(
                    *first, packet.bth.psn,
                    "the retransmission does not begin with the sequence number of the NAK"
                );
                self.naks_heeded += 1;
            }
        }
    }

    /// Gives all remaining packets of rxe to the RNIC under test, and sends all due packets.
    pub(crate) fn finish(&mut self) {
        while let Some(packet) = self.arriving.pop_front() {
            self.hear(packet);
            self.transmit();
        }
        self.rnic.release_acks();
        self.transmit();
    }

    fn transmit(&mut self) {
        loop {
            self.batch.clear();
            if self.rnic.poll_transmit(self.now_ns, Budget::UNLIMITED, Filter::All, &mut self.batch) == 0 {
                self.rnic.transmitted();
                return;
            }
            for run in self.batch.runs() {
                assert_eq!(run.path.destination, RXE);
                for (segment, info) in run.segments().zip(&self.batch.infos()[run.first_packet..]) {
                    let bytes = self.batch.bytes()[segment.start..segment.end - ICRC_LEN].to_vec();
                    let bth = BthRepr::read(bytes.first_chunk().expect("a BTH"));
                    match info.opcode {
                        opcode if opcode.is_request() && info.retransmission => self.repeated.push(bth.psn),
                        opcode if opcode.is_request() => self.requests.push_back(bytes),
                        Opcode::RC_ACKNOWLEDGE => {
                            let syndrome = AethPacket::new_unchecked(&bytes[BTH_LEN..]).syndrome();
                            let is_nak = syndrome != Syndrome::ACK_UNLIMITED;
                            if is_nak { &mut self.naks } else { &mut self.acknowledgements }.push_back(bytes);
                        }
                        _ => self.responses.push_back(bytes),
                    }
                }
            }
        }
    }

    /// Posts the next work request of the RNIC under test.
    fn post(&mut self) {
        let message = &self.asks[self.posted];
        assert!(!message.invalidates(), "a message invalidates a key of rxe");
        let offset: usize = self.asks[..self.posted].iter().map(room_of).sum();
        self.local.write(offset, &message.payload);
        let remote = message.first.remote().map(|(rkey, address, _)| (address, rkey));
        let of_peer = || remote.expect("the first packet names memory");
        let operation = match (message.operation(), message.immediate()) {
            (PacketOperation::Send, None) => SendOperation::Send,
            (PacketOperation::Send, Some(immediate)) => SendOperation::SendImmediate(immediate),
            (PacketOperation::Write, None) => {
                let (remote_address, rkey) = of_peer();
                SendOperation::Write { remote_address, rkey }
            }
            (PacketOperation::Write, Some(immediate)) => {
                let (remote_address, rkey) = of_peer();
                SendOperation::WriteImmediate { remote_address, rkey, immediate }
            }
            (PacketOperation::ReadRequest, _) => {
                let (remote_address, rkey) = of_peer();
                SendOperation::Read { remote_address, rkey }
            }
            (PacketOperation::CompareSwap, _) => {
                let atomic = message.first.atomic().expect("the opcode has an AtomicETH");
                let (remote_address, rkey) = of_peer();
                SendOperation::CompareSwap { remote_address, rkey, compare: atomic.compare, swap: atomic.swap_or_add }
            }
            (PacketOperation::FetchAdd, _) => {
                let atomic = message.first.atomic().expect("the opcode has an AtomicETH");
                let (remote_address, rkey) = of_peer();
                SendOperation::FetchAdd { remote_address, rkey, add: atomic.swap_or_add }
            }
            (other, _) => panic!("{other:?} is not a request"),
        };
        let address = self.local.address() + offset as u64;
        let sge = Sge { address, length: room_of(message) as u32, lkey: self.local_region.lkey() };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, message.last.bth.solicited);
        let destination = message.first.deth().map(|deth| UdDestination {
            address: AddressVector::to(RXE),
            qpn: message.first.bth.dest_qpn,
            qkey: deth.qkey,
        });
        let request = SendRequest {
            wr_id: self.posted as u64,
            operation,
            flags,
            payload: Payload::Sges(std::slice::from_ref(&sge)),
            destination,
        };
        self.rnic.post_send(self.now_ns, self.qpn, &[request]).expect("each captured request can be posted");
        self.posted += 1;
    }

    /// Returns the sequence numbers of sent NAKs that have not been compared with the capture yet.
    pub(crate) fn naks(&self) -> Vec<Psn> {
        self.naks.iter().map(|sent| BthPacket::new_unchecked(sent).psn()).collect()
    }

    /// Asserts that all remaining sent packets are acknowledgements of repeated requests of rxe. Their number depends
    /// on the times at which the requests arrived.
    pub(crate) fn assert_nothing_else_is_sent(&self) {
        let headers = |packets: &VecDeque<Vec<u8>>| -> Vec<BthRepr> {
            packets.iter().map(|bytes| BthRepr::read(bytes.first_chunk().expect("a BTH"))).collect()
        };
        assert_eq!(headers(&self.requests), [], "the RNIC sent requests that are not in the capture");
        assert_eq!(headers(&self.naks), [], "the RNIC sent NAKs that are not in the capture");
        if !self.was_asked_again {
            assert_eq!(headers(&self.responses), [], "the RNIC sent responses that are not in the capture");
        }
        let of_rxe = self.connection.packets.iter().filter(|packet| packet.is_of_rxe());
        let repeated = of_rxe.filter(|packet| packet.is_request() && self.connection.is_repeated(packet)).count();
        let more = headers(&self.acknowledgements);
        assert!(more.len() <= repeated, "the RNIC sent acknowledgements that are not in the capture: {more:?}");
    }

    /// Asserts that all work requests of both sides succeeded, with the bytes in the capture.
    pub(crate) fn assert_done(&self) {
        let mut completions = [Completion::default(); QUEUE_DEPTH];
        let count = self.queue.poll(&mut completions).expect("the queue is deep enough");
        let is_receive = |completion: &&Completion| {
            use doorbell_verbs_core::CompletionOpcode::{Receive, ReceiveWriteImmediate};
            matches!(completion.opcode, Receive | ReceiveWriteImmediate)
        };
        for completion in &completions[..count] {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
        }
        let received: Vec<_> = completions[..count].iter().filter(is_receive).collect();
        let sent = completions[..count].iter().filter(|completion| !is_receive(completion));
        assert!(
            sent.map(|completion| completion.wr_id).eq(0..self.asks.len() as u64),
            "a work request of the RNIC under test did not complete"
        );
        let mut offset = 0;
        for message in &self.asks {
            let room = room_of(message);
            let expected = self.expected_answer(message).unwrap_or_else(|| message.payload.clone());
            assert_eq!(self.local.read(offset, room), expected, "{:?}", message.first.bth);
            offset += room;
        }

        let takers: Vec<_> = self.asked.iter().filter(|message| message.takes_receive()).collect();
        assert_eq!(received.len(), takers.len(), "a message of rxe took no receive");
        for (index, (message, completion)) in takers.iter().zip(received).enumerate() {
            assert_eq!(completion.wr_id, index as u64, "receives completed out of order");
            let attachment = message.immediate().map_or(Attachment::None, Attachment::Immediate);
            assert_eq!((completion.attachment, completion.solicited), (attachment, message.last.bth.solicited));
            if message.operation() == PacketOperation::Send {
                let header = if completion.has_grh { GRH_LEN } else { 0 };
                assert_eq!(completion.byte_len as usize, header + message.payload.len());
                let at = index * self.receive_bytes + header;
                assert_eq!(self.receives.read(at, message.payload.len()), message.payload);
            }
        }
        for remote in self.remote.values() {
            assert!(
                remote.memory.read(0, remote.memory.len()) == remote.expected,
                "the memory that rxe wrote has other contents"
            );
        }
    }

    /// Returns the bytes that the requester writes to its memory when it receives the answer of rxe to a READ or to an
    /// atomic operation.
    fn expected_answer(&self, message: &Message) -> Option<Vec<u8>> {
        match message.operation() {
            PacketOperation::Send | PacketOperation::Write => None,
            PacketOperation::ReadRequest => {
                Some(message.psns().flat_map(|psn| self.connection.answer(true, psn).payload().to_vec()).collect())
            }
            _ => Some(original_of(self.connection.answer(true, message.first.bth.psn)).to_ne_bytes().to_vec()),
        }
    }
}

/// Returns the bytes of memory that a work request to rxe needs.
fn room_of(message: &Message) -> usize {
    match message.operation() {
        PacketOperation::Send | PacketOperation::Write => message.payload.len(),
        _ => message.first.remote().map_or(0, |(_, _, length)| length as usize),
    }
}

/// Returns the word that an atomic found in memory, according to its response.
fn original_of(answer: &Packet) -> u64 {
    let (_, rest) = answer.bytes().split_at(answer.bytes().len() - 8);
    u64::from_be_bytes(rest.try_into().expect("eight bytes"))
}

/// Registers the memory that rxe accesses, with contents that lead to the captured answers. Returns the memory with its
/// expected contents at the end.
fn remote_memory(rnic: &mut Rnic, pd: PdId, connection: &Connection, asked: &[Message]) -> BTreeMap<u32, Remote> {
    let mut ranges = BTreeMap::<u32, (u64, u64)>::new();
    for (rkey, address, length) in asked.iter().filter_map(|message| message.first.remote()) {
        let range = ranges.entry(rkey.get()).or_insert((address, address + length));
        *range = (range.0.min(address), range.1.max(address + length));
    }
    let mut remote: BTreeMap<u32, Remote> = ranges
        .into_iter()
        .map(|(rkey, (start, end))| {
            let start = start & !7; // keep the alignment of words
            let memory = Block::new((end - start) as usize);
            let region = register(rnic, pd, &memory, start);
            let expected = memory.read(0, memory.len());
            (rkey, Remote { region, memory, expected })
        })
        .collect();
    let of = |remote: &mut BTreeMap<u32, Remote>, rkey: RKey, write: &mut dyn FnMut(&mut Remote)| {
        write(remote.get_mut(&rkey.get()).expect("every key was registered"));
    };
    // Write the values of later answers first, so that the initial value of each word remains.
    for message in asked.iter().rev() {
        let Some((rkey, address, _)) = message.first.remote() else { continue };
        let found = match message.operation() {
            PacketOperation::ReadRequest => {
                message.psns().flat_map(|psn| connection.answer(false, psn).payload().to_vec()).collect()
            }
            PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
                original_of(connection.answer(false, message.first.bth.psn)).to_ne_bytes().to_vec()
            }
            _ => continue,
        };
        of(&mut remote, rkey, &mut |remote| {
            let place = remote.place(address, found.len());
            remote.memory.write(place.start, &found);
            remote.expected[place].copy_from_slice(&found);
        });
    }
    for message in asked {
        let Some((rkey, address, _)) = message.first.remote() else { continue };
        of(&mut remote, rkey, &mut |remote| match (message.operation(), message.first.atomic()) {
            (PacketOperation::Write, _) => {
                let place = remote.place(address, message.payload.len());
                remote.expected[place].copy_from_slice(&message.payload);
            }
            (operation, Some(atomic)) => {
                let word = &mut remote.expected[(address - remote.region.address()) as usize..][..8];
                let before = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
                let after = match operation {
                    PacketOperation::FetchAdd => before.wrapping_add(atomic.swap_or_add),
                    _ if before == atomic.compare => atomic.swap_or_add,
                    _ => before,
                };
                word.copy_from_slice(&after.to_ne_bytes());
            }
            _ => {}
        });
    }
    remote
}

/// Brings the queue pair to the state that it had at the first captured packet.
fn bring_up(rnic: &mut Rnic, qpn: Qpn, connection: &Connection) {
    let qkey = connection.packets.iter().find_map(|packet| packet.deth()).map(|deth| deth.qkey);
    let psn = |of_rxe| connection.first_psn(of_rxe).unwrap_or(Psn::new(0));
    let peer = (RXE, connection.peer_qpn.unwrap_or(Qpn::new(0)));
    let end = ConnectionEnd {
        qkey: qkey.unwrap_or(QKey::new(0)),
        send_psn: psn(false),
        receive_psn: psn(true),
        min_rnr_timer: 12,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..ConnectionEnd::new(connection.kind, peer, connection.mtu())
    };
    for attributes in end.steps() {
        rnic.modify_qp(qpn, &attributes).expect("the transition is in the table");
    }
}
