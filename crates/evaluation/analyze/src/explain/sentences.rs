//! Sentences of an answer, with rounded numbers.

use doorbell_wire::cost::MAX_MESSAGE_BYTES;
use doorbell_wire::{MessageKind, Transport};

use super::{Answer, Explanation, Hints, Pattern, Range, Requester, Span};

/// Formats a rate with a unit prefix: `481 k`, `3.13 M`.
pub fn rate(value: f64) -> String {
    rounded(value, 0)
}

/// Formats a rate of bytes with its unit: `12 B/s`, `481 kB/s`, `3.13 MB/s`.
pub fn byte_rate(bytes_per_s: f64) -> String {
    let rate = rate(bytes_per_s);
    let space = if rate.ends_with(char::is_alphabetic) { "" } else { " " };
    format!("{rate}{space}B/s")
}

/// Formats a number of things, with the plural of their name where it belongs: `1 packet`, `16 packets`.
pub fn number_of(count: u64, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// Formats a rate with a unit prefix and three significant digits, and `more` further digits.
fn rounded(value: f64, more: usize) -> String {
    let (scaled, unit) = match value {
        v if v >= 999.5e6 => (v / 1e9, " G"),
        v if v >= 999.5e3 => (v / 1e6, " M"),
        v if v >= 999.5 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let digits = match scaled {
        0.0 => 0,
        s if s >= 99.95 => more,
        s if s >= 9.995 => 1 + more,
        _ => 2 + more,
    };
    format!("{scaled:.digits$}{unit}")
}

/// Formats a range of rates, as one number if the ends of the range are close.
pub fn rate_range(range: Range) -> String {
    if range.max <= range.min * 1.08 {
        rate((range.min + range.max) / 2.0)
    } else if range.min < range.max * 1e-3 {
        format!("up to {}", rate(range.max))
    } else {
        format!("{} to {}", rate(range.min), rate(range.max))
    }
}

/// Formats payload bytes: `1-4 B`, `1 MiB`, `4 KiB and more`.
pub fn payload(span: Span) -> String {
    let size = |bytes: u64| match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 13 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    };
    match span {
        Span { min, max } if min == max => size(max),
        Span { min, max } if (max > min.saturating_mul(1000) && min > 4) || max == MAX_MESSAGE_BYTES => {
            format!("{} and more", size(min))
        }
        Span { min, max } => format!("{min}-{max} B"),
    }
}

fn kinds(operations: &[MessageKind]) -> String {
    // Lists of more than two kinds omit the variants with immediate data or a key to invalidate.
    let plain: Vec<_> = operations
        .iter()
        .filter(|kind| {
            operations.len() <= 2
                || !matches!(kind, MessageKind::SendImm | MessageKind::SendInv | MessageKind::WriteImm)
        })
        .map(ToString::to_string)
        .collect();
    plain.join(" or ")
}

/// Fills in the summary and the reasons. `forth` and `back` are the bytes per packet in the direction of the requests
/// and in the other direction. For messages in both directions, `forth` and `back` are the bytes per packet sent and
/// received.
pub(super) fn describe(it: &mut Explanation, forth: f64, back: f64, ack: f64) {
    it.summary = summary(it);
    let mut reasons = Vec::new();
    let headers = ack - 4.0;
    match it.pattern {
        Pattern::OneWay => {
            reasons.push(length(it, forth, headers));
            match it.acks_per_packet {
                Some(acks) => reasons.push(format!(
                    "The other direction has {back:.1} B per packet, the length of an ACK ({ack:.0} B), {} per request packet{}.",
                    ratio(acks),
                    match it.packets_per_message {
                        Span { min, max } if min == max && max > 1 => {
                            format!(" and {:.1} per message", (acks.min + acks.max) / 2.0 * max as f64)
                        }
                        _ => String::new(),
                    }
                )),
                None if it.transports == [Transport::Ud] => {
                    reasons.push("The other direction is empty, as for datagrams.".to_owned());
                }
                None => reasons.push(
                    "The other direction is empty: the transport is unreliable, or ACKs of RC fell outside the interval.".to_owned(),
                ),
            }
        }
        Pattern::OneWayWithCredits => {
            reasons.push(format!(
                "The receiver sends {back:.1} B per packet: ACKs, and credit messages of {ack:.0} B (SEND with immediate, no \
                 payload). The ACKs of the credit messages are among the {forth:.1} B per packet of the sender."
            ));
            reasons.push("The number of credit messages is unknown, so payload and rate are ranges.".to_owned());
        }
        Pattern::Fetch if it.operations == [MessageKind::Read] => {
            reasons.push(format!(
                "{forth:.1} B per packet is the length of a READ request ({:.0} B), and {back:.1} B fits its response.",
                headers + 16.0
            ));
            if it.packets_per_message.max > 1 {
                reasons.push(format!(
                    "Each request has {} response packets. A requester may split a long READ into several requests. The \
                     payload is then that of one request, and the operations are fewer than the requests.",
                    count(it.packets_per_message)
                ));
            } else if it.payload_bytes.min == 0 {
                reasons.push("A WRITE without payload and its ACK have the same lengths.".to_owned());
            }
        }
        Pattern::Fetch => {
            reasons.push(format!(
                "{forth:.1} B out for the requester and {back:.1} B back are the lengths of an atomic request ({:.0} B) and \
                 its response ({:.0} B). Both atomic operations have these lengths.",
                headers + 28.0,
                headers + 12.0
            ));
        }
        Pattern::RequestResponse => {
            reasons.push(format!("{forth:.1} B per packet go out and {back:.1} B come in, at matching rates."));
            if it.transports != [Transport::Ud] {
                reasons.push(
                    "An ACK is a separate packet, and one may cover many messages. Each message takes one to two packets \
                     in its direction, so the rate is a range. With few outstanding, it is near its lower end."
                        .to_owned(),
                );
            }
        }
    }
    if it.misfit > 1e-4 {
        reasons
            .push(format!("The counted length differs from the nearest possible one by {:.2} %.", it.misfit * 100.0));
    }
    if let (Some(mtu), true) = (it.path_mtu, it.packets_per_message.max > it.packets_per_message.min) {
        reasons.push(format!(
            "Full packets of path MTU {mtu} hide the length of the messages, which have {} packets each.",
            count(it.packets_per_message)
        ));
    }
    it.reasons = reasons;
}

fn length(it: &Explanation, mean: f64, headers: f64) -> String {
    let once = match it.operations.first() {
        _ if it.packets_per_message.max > 1 => 0.0,
        Some(MessageKind::SendImm | MessageKind::SendInv) => 4.0,
        Some(MessageKind::Write) => 16.0,
        Some(MessageKind::WriteImm) => 20.0,
        _ => 0.0,
    } + if it.transports == [Transport::Ud] { 8.0 } else { 0.0 };
    let extra = match it.operations.first() {
        _ if once == 0.0 => "",
        Some(MessageKind::Write | MessageKind::WriteImm) => ", including the RETH,",
        _ if it.transports == [Transport::Ud] => ", including the DETH,",
        _ => ", including 4 of immediate data or of a key to invalidate,",
    };
    if let (Some(mtu), Some(nearest)) = (it.path_mtu, it.nearest_payload_bytes) {
        let packets = it.packets_per_message.max;
        return format!(
            "If the counters are exact, {mean:.4} B per packet are {mtu} of payload, {headers:.0} of headers and {} over {packets} packets: \
             {} each.",
            if it.operations == [MessageKind::Write] { "16 of a RETH" } else { "the additional bytes of one packet" },
            payload(nearest)
        );
    }
    if it.path_mtu.is_some() {
        return format!(
            "{mean:.1} B per packet are {headers:.0} of headers and {:.1} of payload on average.",
            mean - headers
        );
    }
    format!(
        "{mean:.1} B per packet are {:.0} of headers{extra} and {:.1} of payload padded to four.",
        headers + once,
        (mean - headers - once).max(0.0)
    )
}

fn ratio(range: Range) -> String {
    let middle = (range.min + range.max) / 2.0;
    if middle < 0.095 { format!("{middle:.3}") } else { format!("{middle:.2}") }
}

fn count(span: Span) -> String {
    match span {
        Span { min, max } if min == max => max.to_string(),
        Span { min, max } if max > 100_000 => format!("{min} or more"),
        Span { min, max } => format!("{min} to {max}"),
    }
}

fn summary(it: &Explanation) -> String {
    format!("{}, {}", what(it), how(it, it.operations_per_s))
}

/// Returns the operations and their payload as words.
fn what(it: &Explanation) -> String {
    let what = kinds(&it.operations);
    if it.operations.contains(&MessageKind::CompareSwap) {
        return format!("{what} on 8 B");
    }
    let nearest = it.nearest_payload_bytes.unwrap_or(it.payload_bytes);
    let mut text = match nearest.max {
        0 => format!("{what} without payload"),
        _ => format!("{what} of {}", payload(nearest)),
    };
    if it.operations == [MessageKind::Read] && it.payload_bytes.max == MAX_MESSAGE_BYTES {
        text.push_str(" or of more, asked for in such pieces");
    } else if nearest != it.payload_bytes {
        text.push_str(&format!(" ({} within the tolerance)", payload(it.payload_bytes)));
    } else if it.nearest_payload_bytes.is_none() && it.path_mtu.is_none() {
        text.push_str(&round_sizes(nearest));
    }
    match it.received_payload_bytes {
        Some(received) if received != it.payload_bytes => text.push_str(&format!(" out and {} in", payload(received))),
        _ => {}
    }
    text
}

/// Returns the common sizes in a wide range.
fn round_sizes(span: Span) -> String {
    let sizes: Vec<_> = (0..32).map(|exponent| 1_u64 << exponent).filter(|&bytes| span.contains(bytes)).collect();
    match sizes.as_slice() {
        _ if span.max - span.min < 4 => String::new(),
        [] => String::new(),
        [one] => format!(" ({one} B if a power of two)"),
        [some @ .., last] => {
            let some: Vec<_> = some.iter().map(u64::to_string).collect();
            format!(" ({} or {last} B if a power of two)", some.join(", "))
        }
    }
}

/// Returns the requester, the rate and the packets as words.
fn how(it: &Explanation, operations_per_s: Range) -> String {
    let range = rate_range(operations_per_s);
    let rate = match it.one_outstanding_per_s {
        Some(one) => format!("{} if one is outstanding, else {range}", rounded(one, 1)),
        None => range,
    };
    let who = match it.requester {
        Requester::ThisHost => "by this host",
        Requester::Peer => "by the peer",
        Requester::Both => "request and response",
    };
    let unit = if it.pattern == Pattern::RequestResponse { "round trips/s" } else { "operations/s" };
    let transport = it.transports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    let mut text = format!("{who}, {rate} {unit} ({transport})");
    if let Some(mtu) = it.path_mtu {
        text.push_str(&format!(", path MTU {mtu}"));
    }
    match (it.pattern, it.acks_per_packet) {
        (Pattern::OneWay, Some(acks)) => text.push_str(&format!(", {} ACKs per packet", ratio(acks))),
        (Pattern::OneWayWithCredits, _) => text.push_str(", with credit messages back"),
        _ => {}
    }
    match (it.ip_version, it.vlan) {
        (6, true) => text.push_str(", IPv6 with a VLAN tag"),
        (6, false) => text.push_str(", IPv6"),
        (_, true) => text.push_str(", with a VLAN tag"),
        _ => {}
    }
    text
}

/// Returns the named explanations as a sentence, without the counters. Explanations that differ only in operation and
/// payload share one part of the sentence.
pub fn conclusion(answer: &Answer) -> String {
    let rates = &answer.rates;
    if rates.rx_packets == 0.0 && rates.tx_packets == 0.0 {
        return "There is no RDMA traffic.".to_owned();
    }
    let mut groups: Vec<Vec<&Explanation>> = Vec::new();
    for it in answer.named() {
        let alike = |other: &Explanation| {
            (it.pattern, it.requester, it.path_mtu, it.ip_version, it.vlan)
                == (other.pattern, other.requester, other.path_mtu, other.ip_version, other.vlan)
                && it.transports == other.transports
        };
        match groups.iter_mut().find(|group| alike(group[0])) {
            Some(group) => group.push(it),
            None => groups.push(vec![it]),
        }
    }
    let parts: Vec<_> = groups
        .iter()
        .map(|group| {
            let what: Vec<_> = group.iter().map(|it| what(it)).collect();
            let min = group.iter().map(|it| it.operations_per_s.min).fold(f64::INFINITY, f64::min);
            let max = group.iter().map(|it| it.operations_per_s.max).fold(0.0, f64::max);
            format!("{}, {}", what.join(", or "), how(group[0], Range { min, max }))
        })
        .collect();
    let rest = match answer.explanations.len() - answer.named + answer.left_out {
        0 => String::new(),
        1 => " Another explanation fits, but is less plausible.".to_owned(),
        rest => format!(" {rest} others fit, but are less plausible."),
    };
    match answer.named {
        0 => "no single operation explains both directions. Several may run at a time, or the counters include other \
             traffic; use a shorter interval, one queue pair, or a capture (`doorbell wire decode`)."
            .to_owned(),
        1 => format!("{}.{rest}", parts[0]),
        _ => format!("{}: counters cannot tell these apart.{rest}", parts.join("; or ")),
    }
}

pub(super) fn verdict(answer: &Answer) -> String {
    let counted = |name: &str, mean: Option<f64>, packets: f64| match mean {
        Some(mean) => format!("{mean:.1} B per packet {name} at {} packets/s", rate(packets)),
        None => format!("nothing {name}"),
    };
    let rates = &answer.rates;
    let conclusion = conclusion(answer);
    if rates.rx_packets == 0.0 && rates.tx_packets == 0.0 {
        return conclusion;
    }
    format!(
        "{}, {}: {conclusion}",
        counted("in", answer.rx_bytes_per_packet, rates.rx_packets),
        counted("out", answer.tx_bytes_per_packet, rates.tx_packets)
    )
}

pub(super) fn notes(answer: &Answer, hints: &Hints) -> Vec<String> {
    let mut notes = Vec::new();
    if !answer.explanations.is_empty() {
        notes.push("Counters give means: a mixture of sizes looks like one size between them.".to_owned());
    }
    let one_way = |side| {
        let is = |it: &&Explanation| it.pattern == Pattern::OneWay && it.requester == side;
        answer.explanations.iter().find(is)
    };
    if let (Some(_), Some(_)) = (one_way(Requester::ThisHost), one_way(Requester::Peer)) {
        notes.push(
            "Both directions show the length of an ACK, which a SEND of 1 to 4 bytes has too. The bytes do not show which \
             direction carries messages, or whether both do."
                .to_owned(),
        );
    }
    if let Some(seen) = &hints.seen {
        notes.push(format!("The capture shows these messages, and the explanations have no others: {seen}."));
    }
    if answer.left_out > 0 {
        notes.push(format!("{} less plausible explanations are left out.", answer.left_out));
    }
    if hints.mtu.is_none() && answer.explanations.iter().any(|it| it.path_mtu.is_some()) {
        notes.push("The path MTU is unknown; a given path MTU excludes explanations.".to_owned());
    }
    if let Some(link) = answer.link {
        for (name, share) in [("incoming", link.rx_share), ("outgoing", link.tx_share)] {
            // Rounding of the counters may raise the share slightly above 1.
            if share > 1.01 {
                notes.push(format!(
                    "The {name} direction shows {:.1} % of what the link carries: the rates or the link's rate are wrong.",
                    share * 100.0
                ));
            }
        }
    }
    notes
}
