//! The order in which a memory node answers requests. The box numbers requests when it forwards them, over all relayed
//! connections.

use std::collections::VecDeque;

use doorbell_wire::{
    AethPacket, AtomicEthPacket, BTH_LEN, BthPacket, BthRepr, PacketOperation, Psn, Qpn, RethPacket, SyndromeKind,
    Transport,
};
use rustc_hash::FxHashMap;

/// Maximum number of remembered requests in one direction of a connection, including answered ones. Further requests
/// replace the oldest ones.
const REMEMBERED: usize = 512;

/// Maximum number of addresses whose newest answer is remembered. At this number, all addresses are dropped.
const ADDRESSES: usize = 1 << 16;

/// Statistics of the order in which requests were answered.
///
/// Requests are numbered when they pass the box, over all connections. The *gap* of an answer is the absolute
/// difference between the number of its request and the number of the previously answered request. A retransmitted
/// request keeps its number, and a repeated answer has a gap of 0. An answer with a gap of 1 is in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Number of answers after the first one.
    pub answers: u64,
    /// Number of answers with a gap of 1.
    pub in_order: u64,
    /// The largest gap.
    pub largest_gap: u64,
    /// The sum of all gaps.
    pub gaps: u64,
    /// Number of retransmitted requests.
    pub repeated: u64,
    /// Number of requests whose first answer came after the first answer to a later request to the same address.
    pub late: u64,
    /// Number of answered requests.
    pub answered: u64,
}

/// The kind of answer that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// An acknowledgement of this PSN or a later one. `None` while the last packet of the request is missing.
    Acknowledge(Option<Psn>),
    /// A response to this request alone.
    Response,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    psn: Psn,
    number: u64,
    address: Option<u64>,
    awaits: Awaits,
    is_answered: bool,
}

/// The requests of one direction of a connection, in the order of their PSNs.
#[derive(Debug, Default)]
pub(crate) struct Asked(VecDeque<Request>);

impl Asked {
    /// Returns the number of requests whose first PSN is at most `psn`.
    fn upto(&self, psn: Psn) -> usize {
        self.0.partition_point(|request| !psn.is_before(request.psn))
    }
}

/// Numbers requests, and assigns answers to them.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    order: Order,
    numbered: u64,
    last: Option<u64>,
    /// For each address, the highest number of an answered request.
    newest: FxHashMap<u64, u64>,
}

impl Numbering {
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// Records a packet. `asked` has the requests in the direction of the packet. `answered` has the requests in the
    /// other direction, which the packet may answer.
    pub(crate) fn packet(
        &mut self,
        bth: &BthRepr,
        operation: PacketOperation,
        packet: &[u8],
        asked: &mut Asked,
        answered: &mut Asked,
    ) {
        if bth.opcode.transport() != Transport::Rc {
            return;
        }
        let rest = packet.get(BTH_LEN..).unwrap_or_default();
        match operation {
            _ if bth.opcode.is_request() => {
                let address = if bth.opcode.has_atomic_eth() {
                    AtomicEthPacket::new_checked(rest).ok().map(|header| header.virtual_address())
                } else if bth.opcode.has_reth() {
                    RethPacket::new_checked(rest).ok().map(|header| header.virtual_address())
                } else {
                    None
                };
                self.request(bth, operation, address, asked);
            }
            PacketOperation::Acknowledge => {
                let syndrome = AethPacket::new_checked(rest).ok().map(|header| header.syndrome().kind());
                if matches!(syndrome, Some(SyndromeKind::Ack { .. })) {
                    self.acknowledge(bth.psn, answered);
                }
            }
            PacketOperation::AtomicAcknowledge => self.respond(bth.psn, answered),
            PacketOperation::ReadResponse if bth.opcode.is_last() => self.respond(bth.psn, answered),
            _ => {}
        }
    }

    fn request(&mut self, bth: &BthRepr, operation: PacketOperation, address: Option<u64>, Asked(asked): &mut Asked) {
        let at = asked.partition_point(|request| request.psn.is_before(bth.psn));
        let has_response = matches!(
            operation,
            PacketOperation::ReadRequest | PacketOperation::CompareSwap | PacketOperation::FetchAdd
        );
        if !bth.opcode.is_first() {
            // The packet continues the request that begins at the highest PSN before this packet. If it is the last
            // packet, the request now waits for an acknowledgement of its PSN.
            if let Some(Request { awaits: Awaits::Acknowledge(end), .. }) =
                at.checked_sub(1).and_then(|at| asked.get_mut(at))
                && bth.opcode.is_last()
            {
                *end = end.or(Some(bth.psn));
            }
            return;
        }
        let is_known = asked.get(at).is_some_and(|request| request.psn == bth.psn);
        let is_forgotten = at == 0 && asked.len() == REMEMBERED;
        if is_known || is_forgotten {
            self.order.repeated += 1;
            return;
        }
        if asked.len() == REMEMBERED {
            asked.pop_front();
        }
        self.numbered += 1;
        let awaits =
            if has_response { Awaits::Response } else { Awaits::Acknowledge(bth.opcode.is_last().then_some(bth.psn)) };
        let request = Request { psn: bth.psn, number: self.numbered, address, awaits, is_answered: false };
        // The new request almost always has the highest PSN. Otherwise it is a retransmission of a request that was
        // lost before it reached the box.
        asked.insert(asked.partition_point(|other| other.psn.is_before(bth.psn)), request);
    }

    /// Marks the requests up to the acknowledged PSN as answered, except for those that wait for their own response.
    fn acknowledge(&mut self, psn: Psn, asked: &mut Asked) {
        let upto = asked.upto(psn);
        let is_covered =
            |request: &Request| matches!(request.awaits, Awaits::Acknowledge(Some(end)) if !psn.is_before(end));
        let mut is_again = true;
        // If this request is answered, an acknowledgement has answered it together with all earlier ones. So skip them.
        let from = asked.0.range(..upto).rposition(|request| request.is_answered && is_covered(request));
        for request in asked.0.range_mut(from.map_or(0, |from| from + 1)..upto) {
            if is_covered(request) && !std::mem::replace(&mut request.is_answered, true) {
                is_again = false;
                self.answer(request.number, request.address);
            }
        }
        if is_again && from.is_some() {
            self.again();
        }
    }

    /// Marks the request to which a response belongs as answered: the last one that begins at or before the PSN of the
    /// response.
    fn respond(&mut self, psn: Psn, asked: &mut Asked) {
        let Some(request) = asked.upto(psn).checked_sub(1).and_then(|at| asked.0.get_mut(at)) else { return };
        if request.awaits != Awaits::Response {
            return;
        }
        match std::mem::replace(&mut request.is_answered, true) {
            true => self.again(),
            false => self.answer(request.number, request.address),
        }
    }

    fn again(&mut self) {
        self.count(0);
    }

    fn answer(&mut self, number: u64, address: Option<u64>) {
        self.count(self.last.map_or(1, |last| number.abs_diff(last)));
        self.last = Some(number);
        self.order.answered += 1;
        let Some(address) = address else { return };
        if self.newest.len() == ADDRESSES && !self.newest.contains_key(&address) {
            self.newest.clear();
        }
        let newest = self.newest.entry(address).or_default();
        self.order.late += u64::from(number < *newest);
        *newest = number.max(*newest);
    }

    fn count(&mut self, gap: u64) {
        if self.last.is_some() {
            self.order.answers += 1;
            self.order.in_order += u64::from(gap == 1);
            self.order.gaps += gap;
            self.order.largest_gap = self.order.largest_gap.max(gap);
        }
    }
}

/// Numbers the requests in a packet capture in the same way as a box.
#[derive(Debug, Default)]
pub struct Tap {
    numbering: Numbering,
    /// For each queue pair, the index of its connection, and whether packets to this queue pair come from the client.
    ends: FxHashMap<Qpn, (usize, bool)>,
    /// The requests of each connection: those of the client, and those of the node.
    asked: Vec<[Asked; 2]>,
}

impl Tap {
    /// Creates a tap for these pairs of queue pairs. Each pair has the queue pair of a client and that of the memory
    /// node.
    pub fn new(pairs: impl IntoIterator<Item = (Qpn, Qpn)>) -> Self {
        let mut tap = Self::default();
        for (client, node) in pairs {
            let connection = tap.asked.len();
            tap.asked.push(Default::default());
            tap.ends.extend([(client, (connection, true)), (node, (connection, false))]);
        }
        tap
    }

    /// Records a packet, which begins with its BTH. Ignores packets of other queue pairs.
    pub fn packet(&mut self, packet: &[u8]) {
        let Ok(bth) = BthRepr::parse(&BthPacket::new_unchecked(packet)) else { return };
        let Some(operation) = bth.opcode.operation() else { return };
        let Some(&(connection, is_for_client)) = self.ends.get(&bth.dest_qpn) else { return };
        let Some([of_client, of_node]) = self.asked.get_mut(connection) else { return };
        let (asked, answered) = if is_for_client { (of_node, of_client) } else { (of_client, of_node) };
        self.numbering.packet(&bth, operation, packet, asked, answered);
    }

    /// Returns the statistics of the order in which requests were answered.
    pub fn order(&self) -> &Order {
        self.numbering.order()
    }
}

#[cfg(test)]
mod tests {
    use doorbell_wire::Opcode;

    use super::*;

    /// Two connections with requests in one direction.
    #[derive(Default)]
    struct Two {
        asked: [Asked; 2],
        back: Asked,
    }

    impl Two {
        /// Records a packet of connection `of`. `address` matters only for requests.
        fn packet(&mut self, numbering: &mut Numbering, of: usize, opcode: Opcode, psn: u32, address: u64) {
            let mut bytes = vec![0; BTH_LEN + 28];
            let mut head = BthPacket::new_unchecked(&mut bytes[..]);
            head.set_opcode(opcode);
            head.set_psn(Psn::new(psn));
            bytes[BTH_LEN..][..8].copy_from_slice(&address.to_be_bytes());
            let bth = BthRepr::parse(&BthPacket::new_unchecked(&bytes[..])).unwrap();
            let operation = bth.opcode.operation().unwrap();
            match bth.opcode.is_request() {
                true => numbering.packet(&bth, operation, &bytes, &mut self.asked[of], &mut self.back),
                false => numbering.packet(&bth, operation, &bytes, &mut self.back, &mut self.asked[of]),
            }
        }
    }

    #[test]
    fn gaps_are_differences_between_the_numbers_of_consecutive_answers() {
        let (mut two, mut numbering) = (Two::default(), Numbering::default());
        // Requests 1 and 3 are on the first queue pair, and request 2 is on the other one. Requests 2 and 3 have the
        // same address.
        two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, 7, 0x100);
        two.packet(&mut numbering, 1, Opcode::RC_COMPARE_SWAP, 0xff_ffff, 0x200);
        two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, 8, 0x200);
        two.packet(&mut numbering, 0, Opcode::RC_READ_RESPONSE_ONLY, 7, 0);
        two.packet(&mut numbering, 0, Opcode::RC_READ_RESPONSE_ONLY, 8, 0);
        two.packet(&mut numbering, 1, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0xff_ffff, 0);
        let expected = Order { answers: 2, in_order: 1, largest_gap: 2, gaps: 3, repeated: 0, late: 1, answered: 3 };
        assert_eq!(numbering.order(), &expected);
        // A retransmitted request keeps its number, and its second answer has no gap.
        two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, 8, 0x200);
        two.packet(&mut numbering, 0, Opcode::RC_READ_RESPONSE_ONLY, 8, 0);
        assert_eq!(numbering.order(), &Order { answers: 3, repeated: 1, ..expected });
    }

    #[test]
    fn one_acknowledgement_answers_all_writes_before_it_in_their_order() {
        let (mut two, mut numbering) = (Two::default(), Numbering::default());
        for psn in [0xff_fffe, 0xff_ffff, 0] {
            two.packet(&mut numbering, 0, Opcode::RC_WRITE_ONLY, psn, 0x40);
        }
        // The first of two packets arrives, and the second one is lost.
        two.packet(&mut numbering, 0, Opcode::RC_WRITE_FIRST, 1, 0x40);
        two.packet(&mut numbering, 0, Opcode::RC_ACKNOWLEDGE, 1, 0);
        let expected = Order { answers: 2, in_order: 2, largest_gap: 1, gaps: 2, answered: 3, ..Order::default() };
        assert_eq!(numbering.order(), &expected);
        two.packet(&mut numbering, 0, Opcode::RC_WRITE_LAST, 2, 0);
        two.packet(&mut numbering, 0, Opcode::RC_ACKNOWLEDGE, 2, 0);
        let expected = Order { answers: 3, in_order: 3, gaps: 3, answered: 4, ..expected };
        assert_eq!(numbering.order(), &expected);
        two.packet(&mut numbering, 0, Opcode::RC_ACKNOWLEDGE, 2, 0);
        assert_eq!(
            numbering.order(),
            &Order { answers: 4, ..expected },
            "a duplicate acknowledgement must only count as an answer"
        );
    }

    #[test]
    fn requests_are_numbered_when_they_first_pass_the_box() {
        let (mut two, mut numbering) = (Two::default(), Numbering::default());
        for psn in [5, 7, 6] {
            two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, psn, u64::from(psn));
        }
        for psn in [5, 6, 7] {
            two.packet(&mut numbering, 0, Opcode::RC_READ_RESPONSE_ONLY, psn, 0);
        }
        let expected = Order { answers: 2, in_order: 1, largest_gap: 2, gaps: 3, answered: 3, ..Order::default() };
        assert_eq!(numbering.order(), &expected, "6 has number 3, and 7 number 2");
        for psn in 8..8 + REMEMBERED as u32 {
            two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, psn, 0);
        }
        two.packet(&mut numbering, 0, Opcode::RC_READ_REQUEST, 5, 5);
        two.packet(&mut numbering, 0, Opcode::RC_READ_RESPONSE_ONLY, 5, 0);
        assert_eq!(
            numbering.order(),
            &Order { repeated: 1, ..expected },
            "a request older than the memory must count as repeated"
        );
        assert_eq!(two.asked[0].0.len(), REMEMBERED);
    }
}
