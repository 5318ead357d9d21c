//! Patterns of traffic. [`all`] returns the explanations of all patterns that fit the counters.

use doorbell_wire::cost::MAX_MESSAGE_BYTES;
use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, BTH_LEN, ICRC_LEN, IMM_DT_LEN, IpVersion, MessageKind, OuterKind,
    PathMtu, RETH_LEN, Transport,
};

use super::carriers::{CARRIERS, DATAGRAMS, WITH_CREDITS, merge};
use super::classes::{self, Class, Data, holds_round_size};
use super::{Explanation, Hints, Pattern, Range, Rates, Requester, SKEW, Span};
use super::{sentences, weight};

/// Rates of one direction.
#[derive(Clone, Copy, Debug)]
struct Flow {
    packets: f64,
    bytes: f64,
}

impl Flow {
    /// Returns the frame bytes per packet, or 0 without packets.
    fn mean(&self) -> f64 {
        if self.packets > 0.0 { self.bytes / self.packets } else { 0.0 }
    }
}

/// Returns all explanations that fit the rates.
pub(super) fn all(rates: &Rates, hints: &Hints) -> Vec<Explanation> {
    let rx = Flow { packets: rates.rx_packets, bytes: rates.rx_bytes };
    let tx = Flow { packets: rates.tx_packets, bytes: rates.tx_bytes };
    let mut found = Vec::new();
    for outer in hints.outers() {
        let around = (outer.header_len() + BTH_LEN + ICRC_LEN) as u64;
        let mut shapes = Shapes { hints, outer, around, ack: (around + AETH_LEN as u64) as f64, found: &mut found };
        for (requester, forth, back) in [(Requester::ThisHost, tx, rx), (Requester::Peer, rx, tx)] {
            if forth.packets > 0.0 {
                shapes.one_way(requester, forth, back);
                shapes.with_credits(requester, forth, back);
                shapes.reads(requester, forth, back);
                shapes.atomics(requester, forth, back);
                shapes.short_for_long(requester, forth, back);
            }
        }
        if rx.packets > 0.0 && tx.packets > 0.0 {
            shapes.both_ways(tx, rx);
            shapes.datagrams_both_ways(tx, rx);
        }
    }
    found
}

struct Shapes<'a> {
    hints: &'a Hints,
    outer: OuterKind,
    /// Frame bytes of a packet without extension headers and payload.
    around: u64,
    /// Frame bytes of an ACK, and of a SEND with immediate data and no payload.
    ack: f64,
    found: &'a mut Vec<Explanation>,
}

impl Shapes<'_> {
    /// Returns whether packets of `frame` bytes fit the mean length `mean` within the tolerance.
    fn is(&self, mean: f64, frame: f64) -> bool {
        self.hints.around(frame).contains(mean)
    }

    /// Returns the range of the true rate. The counters are noisy, and the two directions are not read at the same
    /// moment.
    fn around_rate(&self, value: f64) -> Range {
        let off = self.hints.tolerance + SKEW / 2.0;
        Range { min: value * (1.0 - off), max: value * (1.0 + off) }
    }

    /// Returns the data of a direction in which every packet carries data.
    fn data(&self, flow: Flow) -> Data {
        Data { packets: self.around_rate(flow.packets), mean: self.hints.around(flow.mean()), counted: flow.mean() }
    }

    /// Returns the data of a direction in which `data` packets per second carry data and the other packets are ACKs.
    fn data_among_acks(&self, flow: Flow, data: Range) -> Data {
        let mean = |counted: f64, data: f64| self.ack + (counted - self.ack) * (flow.packets / data).max(1.0);
        let counted = self.hints.around(flow.mean());
        let corners = [
            mean(counted.min, data.min),
            mean(counted.min, data.max),
            mean(counted.max, data.min),
            mean(counted.max, data.max),
        ];
        let mean = Range {
            min: corners.into_iter().fold(f64::INFINITY, f64::min),
            max: corners.into_iter().fold(f64::NEG_INFINITY, f64::max),
        };
        Data { packets: data, mean, counted: flow.mean().clamp(mean.min, mean.max) }
    }

    fn start(
        &self,
        kinds: &[MessageKind],
        transports: &[Transport],
        pattern: Pattern,
        requester: Requester,
    ) -> Explanation {
        let mut implausibility = 0.0;
        if self.outer.vlan && !self.hints.vlan {
            implausibility += weight::VLAN;
        }
        if self.outer.ip == IpVersion::V6 && self.hints.ip.is_none() {
            implausibility += weight::IPV6;
        }
        Explanation {
            summary: String::new(),
            operations: kinds.to_vec(),
            transports: transports.to_vec(),
            pattern,
            requester,
            payload_bytes: Span { min: 0, max: 0 },
            nearest_payload_bytes: None,
            received_payload_bytes: None,
            packets_per_message: Span { min: 1, max: 1 },
            operations_per_s: Range { min: 0.0, max: 0.0 },
            one_outstanding_per_s: None,
            acks_per_packet: None,
            goodput_bytes_per_s: Range { min: 0.0, max: 0.0 },
            path_mtu: None,
            ip_version: if self.outer.ip == IpVersion::V4 { 4 } else { 6 },
            vlan: self.outer.vlan,
            misfit: 0.0,
            reasons: Vec::new(),
            implausibility,
        }
    }

    /// Stores an explanation, unless a capture excludes it.
    fn finish(&mut self, mut explanation: Explanation, forth: Flow, back: Flow) {
        if self.hints.seen.as_ref().is_some_and(|seen| !seen.restrict(&mut explanation)) {
            return;
        }
        sentences::describe(&mut explanation, forth.mean(), back.mean(), self.ack);
        self.found.push(explanation);
    }

    /// Stores the payload and the packets of `class` in the explanation, and adds their implausibility.
    fn judge(&self, explanation: &mut Explanation, class: &Class, mtu: Option<PathMtu>, mean: f64) {
        explanation.payload_bytes = class.payload;
        explanation.nearest_payload_bytes = class.nearest;
        explanation.packets_per_message = class.packets;
        explanation.path_mtu = mtu.map(PathMtu::bytes);
        explanation.misfit = class.misfit;
        let mut more = 0.0;
        match class.nearest {
            Some(Span { max: 0, .. }) => more += weight::NO_PAYLOAD,
            Some(nearest) if holds_round_size(nearest) => {}
            Some(_) if holds_round_size(class.payload) => more += weight::ROUND_WITHIN_TOLERANCE,
            Some(_) => more += weight::ODD_SIZE,
            None => {
                more += weight::OPEN_LENGTH;
                // A short last packet hardly lowers the mean length of a long message, so all packets of the
                // message look nearly full.
                let full = mtu.map_or(0.0, |mtu| (self.around + mtu.bytes() as u64) as f64);
                if mean < full * 0.97 {
                    more += weight::PARTLY_FILLED;
                }
            }
        }
        if class.misfit > classes::EXACT * 100.0 {
            more +=
                weight::INEXACT + weight::MISFIT * (class.misfit / self.hints.tolerance.max(classes::EXACT)).min(1.0);
        }
        if self.hints.mtu.is_none() {
            more += match mtu {
                Some(PathMtu::Mtu256 | PathMtu::Mtu512) => weight::UNUSUAL_MTU,
                Some(PathMtu::Mtu2048) => weight::MTU_2048,
                _ => 0.0,
            };
        }
        explanation.implausibility += more;
    }

    /// Returns the payload bytes per second of `flow`, of which `data` packets carry data.
    fn goodput(&self, flow: Flow, data: Range, messages: Range, once: Span) -> Range {
        let at = |data: f64, messages: f64, once: u64| {
            let data = data.min(flow.packets);
            let acks = (flow.packets - data).max(0.0) * self.ack;
            (flow.bytes - acks - data * self.around as f64 - messages * once as f64).max(0.0)
        };
        let (a, b) = (at(data.min, messages.max, once.max + 3), at(data.max, messages.min, once.min));
        let (c, d) = (at(data.min, messages.min, once.min), at(data.max, messages.max, once.max + 3));
        Range { min: a.min(d).min(b).min(c), max: a.max(b).max(c).max(d) }
    }

    fn operations_per_s(packets: Range, per_message: Span) -> Range {
        Range { min: packets.min / per_message.max as f64, max: packets.max / per_message.min as f64 }
    }

    /// Tries SENDs or WRITEs in one direction, with only acknowledgements in the other direction.
    fn one_way(&mut self, requester: Requester, forth: Flow, back: Flow) {
        let answered = back.packets > 0.0;
        // Without loss, the responder acknowledges each request packet at most once.
        if answered && (!self.is(back.mean(), self.ack) || back.packets > forth.packets * (1.0 + SKEW)) {
            return;
        }
        let transports: &[Transport] = if answered { &[Transport::Rc] } else { &[Transport::Uc, Transport::Rc] };
        let data = self.data(forth);
        let ratio = back.packets / forth.packets;
        let acks = answered.then_some(Range { min: ratio * (1.0 - SKEW), max: ratio * (1.0 + SKEW) });
        let longest = self.hints.longest_payload();
        for carrier in &CARRIERS {
            let Some(class) = classes::single(&data, self.around + carrier.once, longest) else { continue };
            let mut it = self.start(carrier.kinds, transports, Pattern::OneWay, requester);
            it.implausibility += carrier.unusual;
            if answered && ratio < 0.1 {
                it.implausibility += weight::FEW_ACKS;
            }
            self.fill_one_way(it, &class, None, carrier.exactly(), (forth, back), data, acks);
        }
        for mtu in self.hints.mtus() {
            for carrier in &CARRIERS {
                if let Some(class) = classes::exact_power_of_two(&data, self.around, carrier.once, mtu) {
                    let mut it = self.start(carrier.kinds, transports, Pattern::OneWay, requester);
                    it.implausibility += carrier.unusual;
                    self.fill_one_way(it, &class, Some(mtu), carrier.exactly(), (forth, back), data, acks);
                }
            }
            // In long messages, the few bytes by which the kinds differ are smaller than the tolerance.
            let any = Span { min: 2, max: u64::MAX };
            let each = CARRIERS
                .iter()
                .filter_map(|carrier| Some((carrier, classes::cut(&data, self.around, carrier.once, mtu, any)?)));
            let Some((kinds, class, once)) = merge(each) else { continue };
            let mut it = self.start(&kinds, transports, Pattern::OneWay, requester);
            if answered && ratio > 0.6 {
                it.implausibility += weight::MANY_ACKS;
            }
            self.fill_one_way(it, &class, Some(mtu), Span { min: 0, max: once }, (forth, back), data, acks);
        }
        if !answered {
            for carrier in &DATAGRAMS {
                let Some(class) = classes::single(&data, self.around + carrier.once, longest) else { continue };
                let mut it = self.start(carrier.kinds, &[Transport::Ud], Pattern::OneWay, requester);
                it.implausibility += carrier.unusual;
                if carrier.kinds == [MessageKind::Send] && self.fills_packets(&class) {
                    it.implausibility += weight::FULL_DATAGRAM;
                    if it.vlan && !self.hints.vlan {
                        it.implausibility += weight::VLAN_OF_FULL_DATAGRAM - weight::VLAN;
                    }
                }
                self.fill_one_way(it, &class, None, carrier.exactly(), (forth, back), data, None);
            }
        }
    }

    /// Returns whether the packets exactly fill a common path MTU. A datagram cannot be longer than a packet, so
    /// programs that send large amounts of data in datagrams fill the path MTU.
    fn fills_packets(&self, class: &Class) -> bool {
        let is_usual = |bytes: u64| [PathMtu::Mtu1024, PathMtu::Mtu4096].iter().any(|mtu| mtu.bytes() as u64 == bytes);
        class.misfit <= classes::EXACT && class.nearest.is_some_and(|nearest| is_usual(nearest.max))
    }

    #[allow(clippy::too_many_arguments, reason = "one call per kind of explanation, and each differs in these")]
    fn fill_one_way(
        &mut self,
        mut it: Explanation,
        class: &Class,
        mtu: Option<PathMtu>,
        once: Span,
        (forth, back): (Flow, Flow),
        data: Data,
        acks: Option<Range>,
    ) {
        // In other patterns, ACKs lower the counted mean, so packets with data are longer than this mean.
        let mean = if it.pattern == Pattern::OneWay { data.counted } else { data.mean.max };
        self.judge(&mut it, class, mtu, mean);
        it.operations_per_s = Self::operations_per_s(data.packets, class.packets);
        it.acks_per_packet = acks;
        let (packets, messages) = if it.pattern == Pattern::OneWay {
            let counted = Range { min: forth.packets, max: forth.packets };
            (counted, Self::operations_per_s(counted, class.packets))
        } else {
            (data.packets, it.operations_per_s)
        };
        it.goodput_bytes_per_s = self.goodput(forth, packets, messages, once);
        self.finish(it, forth, back);
    }

    /// Tries SENDs in one direction, for which the receiver grants credits by SENDs with immediate data and no
    /// payload. Credit messages and their ACKs have the length of an ACK.
    fn with_credits(&mut self, requester: Requester, forth: Flow, back: Flow) {
        // The receiver sends at most one credit message per message.
        let credits = back.packets.min(forth.packets / 2.0);
        if !self.is(back.mean(), self.ack)
            || back.packets > 2.0 * forth.packets * (1.0 + SKEW)
            || credits < 0.3 * self.hints.tolerance * forth.packets
        {
            return;
        }
        let packets =
            Range { min: self.around_rate(forth.packets - credits).min, max: self.around_rate(forth.packets).max };
        let data = self.data_among_acks(forth, packets);
        let ratio = back.packets / forth.packets;
        let acks = Some(Range { min: 0.0, max: ratio.min(1.0) * (1.0 + SKEW) });
        let carriers =
            || CARRIERS.iter().filter(|carrier| carrier.kinds.iter().all(|kind| WITH_CREDITS.contains(kind)));
        let longest = self.hints.longest_payload();
        let single = carriers()
            .filter_map(|carrier| Some((carrier, classes::single(&data, self.around + carrier.once, longest)?)));
        let mut classes = vec![(None, merge(single))];
        let any = Span { min: 2, max: u64::MAX };
        for mtu in self.hints.mtus() {
            let cut = carriers()
                .filter_map(|carrier| Some((carrier, classes::cut(&data, self.around, carrier.once, mtu, any)?)));
            classes.push((Some(mtu), merge(cut)));
        }
        for (mtu, merged) in classes {
            let Some((kinds, class, once)) = merged else { continue };
            let mut it = self.start(&kinds, &[Transport::Rc], Pattern::OneWayWithCredits, requester);
            it.implausibility += weight::WITH_CREDITS;
            if mtu.is_none() {
                it.implausibility += among_acks(&[class.payload]);
            }
            self.fill_one_way(it, &class, mtu, Span { min: 0, max: once }, (forth, back), data, acks);
        }
    }

    /// Tries READ requests in one direction and READ responses in the other direction.
    fn reads(&mut self, requester: Requester, forth: Flow, back: Flow) {
        let request = (self.around + RETH_LEN as u64) as f64;
        let ratio = back.packets / forth.packets;
        if !self.is(forth.mean(), request) || ratio < 1.0 - SKEW {
            return;
        }
        let data = self.data(back);
        let packets =
            Span { min: (ratio * (1.0 - SKEW)).ceil().max(1.0) as u64, max: (ratio * (1.0 + SKEW)).floor() as u64 };
        let mut classes = Vec::new();
        let aeth = AETH_LEN as u64;
        if packets.min <= 1 && packets.max >= 1 {
            classes.push((None, classes::single(&data, self.around + aeth, self.hints.longest_payload()), aeth));
        }
        if packets.max >= 2 {
            for mtu in self.hints.mtus() {
                // The first and the last packet of a response carry an AETH.
                classes.push((Some(mtu), classes::cut(&data, self.around, 2 * aeth, mtu, packets), 2 * aeth));
            }
        }
        for (mtu, class, once) in classes {
            let Some(class) = class else { continue };
            let mut it = self.start(&[MessageKind::Read], &[Transport::Rc], Pattern::Fetch, requester);
            self.judge(&mut it, &class, mtu, data.counted);
            it.implausibility += if class.nearest.is_some_and(|nearest| nearest.max == 0) {
                weight::EMPTY_READ
            } else {
                weight::SIGNATURE
            };
            let answered = Self::operations_per_s(data.packets, class.packets);
            let asked = self.around_rate(forth.packets);
            it.operations_per_s = Range {
                min: asked.min.min(answered.min),
                max: asked.max.max(answered.max.min(asked.max * (1.0 + SKEW))),
            };
            let counted = Range { min: back.packets, max: back.packets };
            it.goodput_bytes_per_s = self.goodput(back, counted, it.operations_per_s, Span { min: 0, max: once });
            if mtu.is_some() {
                // Each request may read a piece of a longer range, so the payload of a request is reported.
                it.nearest_payload_bytes = Some(class.payload);
                it.payload_bytes.max = MAX_MESSAGE_BYTES;
                it.operations_per_s.min *= class.payload.min as f64 / MAX_MESSAGE_BYTES as f64;
            }
            self.finish(it, forth, back);
        }
    }

    /// Tries atomic operations: operands in one direction, original values in the other direction.
    fn atomics(&mut self, requester: Requester, forth: Flow, back: Flow) {
        let request = (self.around + ATOMIC_ETH_LEN as u64) as f64;
        let response = (self.around + (AETH_LEN + ATOMIC_ACK_ETH_LEN) as u64) as f64;
        let ratio = back.packets / forth.packets;
        if !self.is(forth.mean(), request)
            || !self.is(back.mean(), response)
            || !(1.0 - SKEW..=1.0 + SKEW).contains(&ratio)
        {
            return;
        }
        let kinds = [MessageKind::CompareSwap, MessageKind::FetchAdd];
        let mut it = self.start(&kinds, &[Transport::Rc], Pattern::Fetch, requester);
        it.payload_bytes = Span { min: 8, max: 8 };
        it.nearest_payload_bytes = Some(it.payload_bytes);
        it.misfit = (forth.mean() / request - 1.0).abs().max((back.mean() / response - 1.0).abs());
        it.implausibility += weight::SIGNATURE;
        let (least, most) = (forth.packets.min(back.packets), forth.packets.max(back.packets));
        it.operations_per_s = Range { min: self.around_rate(least).min, max: self.around_rate(most).max };
        it.goodput_bytes_per_s = Range { min: 8.0 * it.operations_per_s.min, max: 8.0 * it.operations_per_s.max };
        self.finish(it, forth, back);
    }

    /// Returns the rate of packets with data, under the assumption that this rate is equal in both directions and that
    /// the remaining packets are ACKs. The rate is at most the rate of the slower direction, and at least half of the
    /// rate of the faster direction.
    fn data_both_ways(tx: Flow, rx: Flow) -> Option<Range> {
        let range = Range {
            min: tx.packets.max(rx.packets) / 2.0 * (1.0 - SKEW),
            max: tx.packets.min(rx.packets) * (1.0 + SKEW),
        };
        (range.min <= range.max).then_some(range)
    }

    /// Tries equal numbers of messages in both directions: requests and responses, or two senders.
    fn both_ways(&mut self, tx: Flow, rx: Flow) {
        let Some(packets) = Self::data_both_ways(tx, rx) else { return };
        let (sent, received) = (self.data_among_acks(tx, packets), self.data_among_acks(rx, packets));
        let longest = self.hints.longest_payload();
        for carrier in &CARRIERS {
            let class = |data: &Data| classes::single(data, self.around + carrier.once, longest);
            if let (Some(tx_class), Some(rx_class)) = (class(&sent), class(&received)) {
                let once = carrier.exactly();
                self.fill_both_ways(
                    carrier.kinds,
                    carrier.unusual,
                    None,
                    once,
                    (tx, rx),
                    packets,
                    (tx_class, rx_class),
                );
            }
        }
        for mtu in self.hints.mtus() {
            let any = Span { min: 2, max: u64::MAX };
            let class =
                |data: &Data| {
                    merge(CARRIERS.iter().filter_map(|carrier| {
                        Some((carrier, classes::cut(data, self.around, carrier.once, mtu, any)?))
                    }))
                };
            if let (Some((kinds, tx_class, once)), Some((_, rx_class, _))) = (class(&sent), class(&received)) {
                let once = Span { min: 0, max: once };
                self.fill_both_ways(&kinds, 0.0, Some(mtu), once, (tx, rx), packets, (tx_class, rx_class));
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "two calls, which differ in these")]
    fn fill_both_ways(
        &mut self,
        kinds: &[MessageKind],
        unusual: f64,
        mtu: Option<PathMtu>,
        once: Span,
        (tx, rx): (Flow, Flow),
        packets: Range,
        (tx_class, rx_class): (Class, Class),
    ) {
        let mut it = self.start(kinds, &[Transport::Rc], Pattern::RequestResponse, Requester::Both);
        // With ACKs among the packets, no payload is the nearest, since each number of ACKs gives another payload.
        let open = |class: Class| Class { nearest: None, misfit: 0.0, ..class };
        self.judge(&mut it, &open(tx_class), mtu, self.data_among_acks(tx, packets).mean.max);
        it.received_payload_bytes = Some(rx_class.payload);
        if mtu.is_none() {
            it.implausibility += among_acks(&[tx_class.payload, rx_class.payload]);
        }
        it.implausibility += unusual + weight::BOTH_WAYS;
        let like_acks = |flow: Flow| self.is(flow.mean(), self.ack);
        if like_acks(tx) != like_acks(rx) {
            it.implausibility += weight::ANSWERS_LIKE_ACKS;
        }
        it.operations_per_s = Self::operations_per_s(packets, tx_class.packets);
        // Each direction has a message and an ACK per operation.
        let one_outstanding = (tx.packets + rx.packets) / 4.0;
        it.one_outstanding_per_s =
            (mtu.is_none() && it.operations_per_s.contains(one_outstanding)).then_some(one_outstanding);
        let ratio = |data: f64| (tx.packets.max(rx.packets) / data - 1.0).clamp(0.0, 1.0);
        it.acks_per_packet = Some(Range { min: ratio(packets.max), max: ratio(packets.min) });
        let (sent, received) = (
            self.goodput(tx, packets, it.operations_per_s, once),
            self.goodput(rx, packets, it.operations_per_s, once),
        );
        it.goodput_bytes_per_s = Range { min: sent.min.max(received.min), max: sent.max.max(received.max) };
        self.finish(it, tx, rx);
    }

    /// Tries short requests with long responses, or the reverse, by SENDs or WRITEs.
    fn short_for_long(&mut self, requester: Requester, forth: Flow, back: Flow) {
        let tolerance = self.hints.tolerance;
        // If the short packets have the length of ACKs, `one_way` covers the traffic.
        if forth.mean() <= self.ack * (1.0 + 2.0 * tolerance) || back.packets < 2.0 * forth.packets * (1.0 - SKEW) {
            return;
        }
        let longest = self.hints.longest_payload();
        let once = (RETH_LEN + IMM_DT_LEN) as u64;
        let carried = forth.bytes - self.ack * forth.packets;
        let least = carried / ((self.around + once + longest) as f64 - self.ack);
        let messages = Range { min: least.max(0.0) * (1.0 - SKEW), max: forth.packets * (1.0 + SKEW) };
        let short = self.data_among_acks(forth, messages);
        let Some((_, asked, _)) = merge(
            CARRIERS
                .iter()
                .filter_map(|carrier| Some((carrier, classes::single(&short, self.around + carrier.once, longest)?))),
        ) else {
            return;
        };
        let packets = Range {
            min: (back.packets - messages.max).max(back.packets / 2.0) * (1.0 - SKEW),
            max: back.packets * (1.0 + SKEW),
        };
        let long = self.data_among_acks(back, packets);
        let per_message = Span { min: 2, max: (packets.max / messages.min).floor() as u64 };
        for mtu in self.hints.mtus() {
            let each = CARRIERS.iter().filter_map(|carrier| {
                Some((carrier, classes::cut(&long, self.around, carrier.once, mtu, per_message)?))
            });
            let Some((kinds, class, once)) = merge(each) else { continue };
            let mut it = self.start(&kinds, &[Transport::Rc], Pattern::RequestResponse, Requester::Both);
            self.judge(&mut it, &class, Some(mtu), long.counted);
            it.implausibility += weight::BOTH_WAYS + weight::UNLIKE_SIZES;
            let (sent, received) = if requester == Requester::ThisHost {
                (asked.payload, class.payload)
            } else {
                (class.payload, asked.payload)
            };
            it.payload_bytes = sent;
            it.received_payload_bytes = Some(received);
            let cut = Self::operations_per_s(packets, class.packets);
            it.operations_per_s = Range { min: cut.min.max(messages.min), max: cut.max.min(messages.max) };
            if it.operations_per_s.min > it.operations_per_s.max {
                continue;
            }
            it.acks_per_packet = Some(Range { min: 0.0, max: 1.0 });
            it.goodput_bytes_per_s = self.goodput(back, packets, it.operations_per_s, Span { min: 0, max: once });
            let (tx, rx) = if requester == Requester::ThisHost { (forth, back) } else { (back, forth) };
            self.finish(it, tx, rx);
        }
    }

    /// Tries datagrams in both directions, without acknowledgements.
    fn datagrams_both_ways(&mut self, tx: Flow, rx: Flow) {
        let ratio = tx.packets / rx.packets;
        if !(1.0 - SKEW..=1.0 + SKEW).contains(&ratio) {
            return;
        }
        let (sent, received) = (self.data(tx), self.data(rx));
        let longest = self.hints.longest_payload();
        for carrier in &DATAGRAMS {
            let class = |data: &Data| classes::single(data, self.around + carrier.once, longest);
            let (Some(tx_class), Some(rx_class)) = (class(&sent), class(&received)) else { continue };
            let mut it = self.start(carrier.kinds, &[Transport::Ud], Pattern::RequestResponse, Requester::Both);
            self.judge(&mut it, &tx_class, None, sent.counted);
            it.implausibility += carrier.unusual + weight::DATAGRAMS_BOTH_WAYS;
            if !rx_class.nearest.is_some_and(holds_round_size) {
                it.implausibility += weight::ROUND_WITHIN_TOLERANCE;
            }
            it.received_payload_bytes = Some(rx_class.payload);
            let (least, most) = (tx.packets.min(rx.packets), tx.packets.max(rx.packets));
            it.operations_per_s = Range { min: self.around_rate(least).min, max: self.around_rate(most).max };
            let once = carrier.exactly();
            it.goodput_bytes_per_s = self.goodput(tx, sent.packets, it.operations_per_s, once);
            self.finish(it, tx, rx);
        }
    }
}

/// Returns the implausibility of a length that is unknown only because ACKs are among the packets. The result is 0 if
/// each range of payloads contains a common size.
fn among_acks(payloads: &[Span]) -> f64 {
    if payloads.iter().copied().all(holds_round_size) {
        -weight::OPEN_LENGTH
    } else {
        weight::ODD_SIZE - weight::OPEN_LENGTH
    }
}
