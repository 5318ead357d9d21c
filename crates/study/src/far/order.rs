//! Requests are numbered as they pass, and so is what answers them.

use std::collections::{BTreeMap, HashMap};

use doorbell_wire::{AethPacket, AtomicEthPacket, BTH_LEN, BthPacket, Opcode, Psn, Qpn, RethPacket, SyndromeKind};

use super::{Figure, Figures};

/// Numbers of the requests that passed on one queue pair, by their sequence numbers, which may wrap.
type Asked = HashMap<u32, Request>;

#[derive(Clone, Copy, Debug)]
struct Request {
    number: u64,
    address: u64,
    is_answered: bool,
}

/// Sees packets between clients and one memory node pass, as a middlebox that changes nothing would.
///
/// Requests are numbered as they pass, over all queue pairs. The *gap* of an answer is the absolute difference between its
/// request's number and that of the answer before; a request that is sent again has the number that it had, and its second
/// answer has a gap of 0. Answers whose gap is 1 are in order.
#[derive(Debug, Default)]
pub struct Tap {
    /// From a client's queue pair to that of the memory node: the former is what answers are addressed to.
    pairs: HashMap<Qpn, Qpn>,
    asked: HashMap<Qpn, Asked>,
    numbered: u64,
    last: Option<u64>,
    order: Order,
    /// The greatest number that was answered of each address.
    newest: BTreeMap<u64, u64>,
}

/// What a [`Tap`] has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Answers behind a first one.
    pub answers: u64,
    /// Of those, with a gap of 1.
    pub in_order: u64,
    /// The greatest gap.
    pub largest_gap: u64,
    /// The sum of all gaps.
    pub gaps: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Requests whose first answer came after that of a later one to the same address.
    pub late: u64,
    /// Requests that were answered.
    pub answered: u64,
}

impl Order {
    /// As records have it.
    pub fn figures(&self) -> Figures {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        Figures::from([
            (Figure::InOrder, percent(self.in_order, self.answers)),
            (Figure::LargestGap, self.largest_gap as f64),
            (Figure::MeanGap, self.gaps as f64 / self.answers.max(1) as f64),
            (Figure::SameAddressOutOfOrder, percent(self.late, self.answered)),
        ])
    }
}

impl Tap {
    /// Between these pairs of queue pairs, each that of a client and that of the memory node.
    pub fn new(pairs: impl IntoIterator<Item = (Qpn, Qpn)>) -> Self {
        Self { pairs: pairs.into_iter().collect(), ..Self::default() }
    }

    /// A packet passes, from its BTH on. Others than requests and their answers are ignored.
    pub fn packet(&mut self, bytes: &[u8]) {
        let Ok(head) = BthPacket::new_checked(bytes) else { return };
        let (opcode, to, psn) = (head.opcode(), head.dest_qpn(), head.psn());
        let rest = &bytes[BTH_LEN..];
        if opcode.has_atomic_eth() {
            if let Ok(header) = AtomicEthPacket::new_checked(rest) {
                self.request(to, psn, header.virtual_address());
            }
        } else if opcode.has_reth() {
            if let Ok(header) = RethPacket::new_checked(rest) {
                self.request(to, psn, header.virtual_address());
            }
        } else if opcode.has_aeth()
            && let (Some(&pair), Ok(header)) = (self.pairs.get(&to), AethPacket::new_checked(rest))
            && matches!(header.syndrome().kind(), SyndromeKind::Ack { .. })
        {
            // An acknowledgement speaks of all before it too, which it answers in their order. What a READ brought has a
            // packet of its own, and so has what an atomic returned.
            self.answer(pair, psn, opcode == Opcode::RC_ACKNOWLEDGE);
        }
    }

    fn request(&mut self, pair: Qpn, psn: Psn, address: u64) {
        let asked = self.asked.entry(pair).or_default();
        if asked.contains_key(&psn.get()) {
            self.order.repeated += 1;
            return;
        }
        self.numbered += 1;
        asked.insert(psn.get(), Request { number: self.numbered, address, is_answered: false });
    }

    fn answer(&mut self, pair: Qpn, psn: Psn, covers_earlier: bool) {
        let Some(asked) = self.asked.get_mut(&pair) else { return };
        let mut numbers = Vec::new();
        let mut place = psn;
        while let Some(request) = asked.get_mut(&place.get()) {
            let is_again = std::mem::replace(&mut request.is_answered, true);
            if is_again && place != psn {
                break;
            }
            numbers.push((*request, is_again));
            if !covers_earlier || is_again {
                break;
            }
            place = place.sub(1);
        }
        for (Request { number, address, .. }, is_again) in numbers.into_iter().rev() {
            let gap = if is_again { 0 } else { self.last.map_or(1, |last| number.abs_diff(last)) };
            if self.last.is_some() {
                self.order.answers += 1;
                self.order.in_order += u64::from(gap == 1);
                self.order.gaps += gap;
                self.order.largest_gap = self.order.largest_gap.max(gap);
            }
            if is_again {
                continue;
            }
            self.last = Some(number);
            self.order.answered += 1;
            let newest = self.newest.entry(address).or_default();
            self.order.late += u64::from(number < *newest);
            *newest = (*newest).max(number);
        }
    }

    /// What it has seen.
    pub fn order(&self) -> &Order {
        &self.order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: [u32; 2] = [0x11, 0x12];
    const CLIENT: [u32; 2] = [0x21, 0x22];

    fn tap() -> Tap {
        Tap::new([0, 1].map(|pair| (Qpn::new(CLIENT[pair]), Qpn::new(NODE[pair]))))
    }

    /// A packet with an address where requests have one.
    fn packet(opcode: Opcode, to: u32, psn: u32, address: u64) -> Vec<u8> {
        let mut bytes = vec![0; BTH_LEN + 28];
        let mut head = BthPacket::new_unchecked(&mut bytes[..]);
        head.set_opcode(opcode);
        head.set_dest_qpn(Qpn::new(to));
        head.set_psn(Psn::new(psn));
        bytes[BTH_LEN..][..8].copy_from_slice(&address.to_be_bytes());
        bytes
    }

    #[test]
    fn gaps_are_differences_between_the_numbers_of_consecutive_answers() {
        let mut tap = tap();
        // Numbers 1 and 3 on the first queue pair, 2 on the other; 2 and 3 go to one address.
        tap.packet(&packet(Opcode::RC_READ_REQUEST, NODE[0], 7, 0x100));
        tap.packet(&packet(Opcode::RC_COMPARE_SWAP, NODE[1], 0xff_ffff, 0x200));
        tap.packet(&packet(Opcode::RC_READ_REQUEST, NODE[0], 8, 0x200));
        tap.packet(&packet(Opcode::RC_READ_RESPONSE_ONLY, CLIENT[0], 7, 0));
        tap.packet(&packet(Opcode::RC_READ_RESPONSE_ONLY, CLIENT[0], 8, 0));
        tap.packet(&packet(Opcode::RC_ATOMIC_ACKNOWLEDGE, CLIENT[1], 0xff_ffff, 0));
        let expected = Order { answers: 2, in_order: 1, largest_gap: 2, gaps: 3, repeated: 0, late: 1, answered: 3 };
        assert_eq!(tap.order(), &expected);
        // What is sent again keeps its number, and its second answer has no gap.
        tap.packet(&packet(Opcode::RC_READ_REQUEST, NODE[0], 8, 0x200));
        tap.packet(&packet(Opcode::RC_READ_RESPONSE_ONLY, CLIENT[0], 8, 0));
        let expected = Order { answers: 3, repeated: 1, ..expected };
        assert_eq!(tap.order(), &expected);
        assert_eq!(tap.order().figures()[&Figure::InOrder], 100.0 / 3.0);
    }

    #[test]
    fn one_acknowledgement_answers_all_writes_before_it_in_their_order() {
        let mut tap = tap();
        for psn in [0xff_fffe, 0xff_ffff, 0] {
            tap.packet(&packet(Opcode::RC_WRITE_ONLY, NODE[0], psn, 0x40));
        }
        tap.packet(&packet(Opcode::RC_ACKNOWLEDGE, CLIENT[0], 0, 0));
        assert_eq!(
            tap.order(),
            &Order { answers: 2, in_order: 2, largest_gap: 1, gaps: 2, answered: 3, ..Order::default() }
        );
        // Foreign packets and damaged ones change nothing.
        tap.packet(&packet(Opcode::RC_ACKNOWLEDGE, 0x99, 0, 0));
        tap.packet(&[0x11; 5]);
        assert_eq!(tap.order().answered, 3);
    }
}
