//! A parsed capture of the traffic between rxe and the software RNIC: packets, connections, messages.

use std::net::{IpAddr, Ipv4Addr};

use doorbell_verbs_core::QpKind;
use doorbell_wire::{
    AETH_LEN, ATOMIC_ETH_LEN, AtomicEthRepr, BTH_LEN, BthRepr, Check, DETH_LEN, DethRepr, Flow, ICRC_LEN, IETH_LEN,
    IMM_DT_LEN, ImmDtRepr, Outer, PacketOperation, PathMtu, Psn, Qpn, RETH_LEN, RKey, RethRepr, Transport, parse_frame,
};
use pcap_file::pcap::PcapReader;

/// Address of rxe.
pub(crate) const RXE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Address of the software RNIC.
pub(crate) const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// One packet on the cable.
#[derive(Clone)]
pub(crate) struct Packet {
    /// Time since the first packet of the capture.
    pub(crate) at_ns: u64,
    pub(crate) outer: Outer,
    pub(crate) bth: BthRepr,
    /// Bytes from the BTH to the ICRC.
    pub(crate) datagram: Vec<u8>,
    source_port: u16,
    destination_port: u16,
}

impl Packet {
    pub(crate) fn is_of_rxe(&self) -> bool {
        self.outer.src == RXE
    }

    /// Returns the bytes from the BTH to the padding.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.datagram[..self.datagram.len() - ICRC_LEN]
    }

    /// Returns whether the packet passes the ICRC check of a link over UDP.
    pub(crate) fn is_intact(&self) -> bool {
        let flow = Flow::new(self.outer.src, self.outer.dst, self.source_port, self.destination_port);
        matches!(flow.check(0, &self.datagram), Check::Valid { .. })
    }

    pub(crate) fn is_request(&self) -> bool {
        self.bth.opcode.is_request()
    }

    fn operation(&self) -> PacketOperation {
        self.bth.opcode.operation().expect("the opcode is defined by IBTA")
    }

    /// Returns the first `N` bytes after the BTH. A DETH comes before all other headers, a RETH before immediate data.
    pub(crate) fn header<const N: usize>(&self) -> &[u8; N] {
        self.bytes()[BTH_LEN..].first_chunk().expect("the packet is long enough for its opcode")
    }

    /// Returns the last extension header.
    fn last_header<const N: usize>(&self) -> &[u8; N] {
        let extensions = &self.bytes()[BTH_LEN..BTH_LEN + self.bth.opcode.extension_len()];
        extensions.last_chunk().expect("the opcode has this header")
    }

    pub(crate) fn payload(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[BTH_LEN + self.bth.opcode.extension_len()..bytes.len() - usize::from(self.bth.pad_count)]
    }

    pub(crate) fn reth(&self) -> Option<RethRepr> {
        self.bth.opcode.has_reth().then(|| RethRepr::read(self.header::<RETH_LEN>()))
    }

    pub(crate) fn atomic(&self) -> Option<AtomicEthRepr> {
        self.bth.opcode.has_atomic_eth().then(|| AtomicEthRepr::read(self.header::<ATOMIC_ETH_LEN>()))
    }

    pub(crate) fn deth(&self) -> Option<DethRepr> {
        self.bth.opcode.has_deth().then(|| DethRepr::read(self.header::<DETH_LEN>()))
    }

    /// Returns the syndrome of an ACK, a NAK, or a READ or atomic response.
    pub(crate) fn syndrome(&self) -> Option<doorbell_wire::Syndrome> {
        self.bth.opcode.has_aeth().then(|| doorbell_wire::AethRepr::read(self.header::<AETH_LEN>()).syndrome)
    }

    /// Returns whether the packet is a READ or atomic response.
    pub(crate) fn is_response(&self) -> bool {
        matches!(self.operation(), PacketOperation::ReadResponse | PacketOperation::AtomicAcknowledge)
    }

    /// Returns whether the packet is a READ or atomic request, which gets a response.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self.operation(),
            PacketOperation::ReadRequest | PacketOperation::CompareSwap | PacketOperation::FetchAdd
        )
    }

    /// Returns whether the packet is an acknowledgement or a NAK.
    pub(crate) fn is_acknowledgement(&self) -> bool {
        self.operation() == PacketOperation::Acknowledge
    }

    /// Returns whether the packet is an ACK, and no NAK or response.
    pub(crate) fn is_plain_ack(&self) -> bool {
        self.is_acknowledgement() && self.syndrome() == Some(doorbell_wire::Syndrome::ACK_UNLIMITED)
    }

    /// Returns the remote key and the range of a request.
    pub(crate) fn remote(&self) -> Option<(RKey, u64, u64)> {
        let by_reth = self.reth().map(|reth| (reth.rkey, reth.virtual_address, u64::from(reth.dma_length)));
        by_reth.or_else(|| self.atomic().map(|atomic| (atomic.rkey, atomic.virtual_address, 8)))
    }

    /// Returns how many sequence numbers the packet uses. A READ request uses those of its response packets.
    fn sequence_numbers(&self, mtu: PathMtu) -> u32 {
        match (self.operation(), self.reth()) {
            (PacketOperation::ReadRequest, Some(reth)) => {
                (reth.dma_length as usize).div_ceil(mtu.bytes()).max(1) as u32
            }
            _ => 1,
        }
    }
}

/// Reads the packets of a capture file. Every packet must be complete and intact.
pub(crate) fn read(file: &[u8]) -> Vec<Packet> {
    let mut reader = PcapReader::new(file).expect("the file is a capture");
    let (mut packets, mut start) = (Vec::new(), None);
    while let Some(captured) = reader.next_packet() {
        let captured = captured.expect("the record is complete");
        assert_eq!(captured.data.len(), captured.orig_len as usize, "the capture must hold the whole packet");
        let frame = parse_frame(&captured.data).expect("the frame carries UDP");
        let start = *start.get_or_insert(captured.timestamp);
        let packet = Packet {
            at_ns: (captured.timestamp - start).as_nanos() as u64,
            outer: frame.outer,
            bth: BthRepr::read(frame.payload.first_chunk().expect("a BTH")),
            datagram: frame.payload.to_vec(),
            source_port: frame.encapsulation.src_port,
            destination_port: frame.encapsulation.dst_port,
        };
        assert!(packet.is_intact(), "packet {} has a wrong ICRC", packets.len());
        packets.push(packet);
    }
    packets
}

/// Packets between two queue pairs.
pub(crate) struct Connection {
    pub(crate) kind: QpKind,
    pub(crate) packets: Vec<Packet>,
    /// Queue pair number of the software RNIC, as in the packets that rxe sends to it.
    pub(crate) own_qpn: Option<Qpn>,
    /// Queue pair number of rxe, as in the packets that the software RNIC sends to it.
    pub(crate) peer_qpn: Option<Qpn>,
}

/// Splits packets into connections. The captured programs ran one after the other, so a new queue pair number begins a
/// new connection.
pub(crate) fn connections(packets: Vec<Packet>) -> Vec<Connection> {
    let mut found: Vec<Connection> = Vec::new();
    for packet in packets {
        let kind = match packet.bth.opcode.transport() {
            Transport::Rc => QpKind::Rc,
            Transport::Uc => QpKind::Uc,
            Transport::Ud => QpKind::Ud,
            other => panic!("{other} has no queue pairs"),
        };
        let (of_rxe, qpn) = (packet.is_of_rxe(), packet.bth.dest_qpn);
        let end = |connection: &Connection| if of_rxe { connection.own_qpn } else { connection.peer_qpn };
        let continues =
            found.last().is_some_and(|last| last.kind == kind && end(last).is_none_or(|known| known == qpn));
        if !continues {
            found.push(Connection { kind, packets: Vec::new(), own_qpn: None, peer_qpn: None });
        }
        let last = found.last_mut().expect("a connection was added");
        if of_rxe {
            last.own_qpn = Some(qpn);
        } else {
            last.peer_qpn = Some(qpn);
        }
        last.packets.push(packet);
    }
    found
}

/// A work request, reconstructed from its packets.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) first: Packet,
    /// The last packet. It contains the immediate data or the key to invalidate, and the solicited event bit.
    pub(crate) last: Packet,
    pub(crate) packets: u32,
    pub(crate) payload: Vec<u8>,
}

impl Message {
    pub(crate) fn operation(&self) -> PacketOperation {
        self.first.operation()
    }

    pub(crate) fn immediate(&self) -> Option<u32> {
        self.last.bth.opcode.has_imm().then(|| ImmDtRepr::read(self.last.last_header::<IMM_DT_LEN>()).value)
    }

    pub(crate) fn invalidates(&self) -> bool {
        self.last.bth.opcode.has_ieth() && self.last.last_header::<IETH_LEN>().len() == IETH_LEN
    }

    /// Returns whether the message uses a receive.
    pub(crate) fn takes_receive(&self) -> bool {
        self.operation() == PacketOperation::Send || self.immediate().is_some()
    }

    pub(crate) fn psns(&self) -> impl Iterator<Item = Psn> + use<> {
        let first = self.first.bth.psn;
        (0..self.packets).map(move |index| first.add(index))
    }
}

impl Connection {
    /// Returns the path MTU: the payload length of the first packet of a message with several packets. If every message
    /// had one packet, returns the largest payload length.
    pub(crate) fn mtu(&self) -> PathMtu {
        let parts = self.packets.iter().filter(|packet| packet.bth.opcode.is_first() && !packet.bth.opcode.is_only());
        let bytes = parts.map(|packet| packet.payload().len()).max();
        bytes.map_or(PathMtu::Mtu4096, |bytes| PathMtu::from_bytes(bytes).expect("the first packet of several is full"))
    }

    /// Returns the messages of one side, in the order of their sequence numbers. A repeated request counts once.
    pub(crate) fn messages(&self, of_rxe: bool) -> Vec<Message> {
        let mut packets: Vec<&Packet> =
            self.packets.iter().filter(|packet| packet.is_of_rxe() == of_rxe && packet.is_request()).collect();
        let Some(start) = self.first_psn(of_rxe) else { return Vec::new() };
        packets.sort_by_key(|packet| packet.bth.psn.distance_from(start));
        let (mut next, mut messages) = (start, Vec::<Message>::new());
        let mut open = false;
        for packet in packets {
            if packet.bth.psn.is_before(next) {
                continue;
            }
            assert_eq!(packet.bth.psn, next, "a packet is missing");
            let count = packet.sequence_numbers(self.mtu());
            next = next.add(count);
            assert_eq!(open, !packet.bth.opcode.is_first(), "a message begins within another");
            if packet.bth.opcode.is_first() {
                let (first, last) = (packet.clone(), packet.clone());
                messages.push(Message { first, last, packets: 0, payload: Vec::new() });
            }
            let message = messages.last_mut().expect("a first packet began the message");
            message.packets += count;
            message.payload.extend_from_slice(packet.payload());
            message.last = packet.clone();
            open = !packet.bth.opcode.is_last();
        }
        assert!(!open, "the last message is incomplete");
        messages
    }

    /// Returns whether an earlier request of the same side already used the sequence number of this request.
    pub(crate) fn is_repeated(&self, packet: &Packet) -> bool {
        let earlier = self.packets.iter().take_while(|other| !std::ptr::eq(*other, packet));
        let mut same_side = earlier.filter(|other| other.is_request() && other.is_of_rxe() == packet.is_of_rxe());
        same_side.any(|other| packet.bth.psn.distance_from(other.bth.psn) < other.sequence_numbers(self.mtu()))
    }

    /// Returns the sequence number of the first request of one side.
    pub(crate) fn first_psn(&self, of_rxe: bool) -> Option<Psn> {
        let own = self.packets.iter().filter(|packet| packet.is_of_rxe() == of_rxe && packet.is_request());
        own.map(|packet| packet.bth.psn).reduce(|first, psn| if psn.is_before(first) { psn } else { first })
    }

    /// Returns the READ or atomic response of one side with this sequence number.
    pub(crate) fn answer(&self, of_rxe: bool, psn: Psn) -> &Packet {
        let mut packets = self.packets.iter().filter(|packet| packet.is_of_rxe() == of_rxe && packet.bth.psn == psn);
        packets.find(|packet| packet.is_response()).expect("each READ and atomic was answered")
    }
}
