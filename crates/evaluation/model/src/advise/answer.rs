//! Answer to a need in sentences: the first protocol, equal ones, ones that are left out, and changes of the need.

use doorbell_protocols::Protocol;

use super::{
    Advice, AdviseError, Need, Receives, SAME, advise, candidates, check, may_share, misfit, places, ranked, useful,
};
use crate::explain::per_second;
use crate::parameters::{Parameters, RnicKind};
use crate::predict::BoundKind;
use crate::workload::Peers;

/// Answer to a need.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The first protocol, its figures, its bottleneck, and the next best protocol, in at most two sentences.
    pub sentence: String,
    /// Recommendations in their order, in groups of equal ones.
    pub rows: Vec<Row>,
    /// Protocols without a row.
    pub left_out: Vec<LeftOut>,
    /// First recommendations after changes of the need or of the testbed.
    pub changes: Vec<Change>,
}

/// Group of recommendations with the same latency and throughput within 5 %.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The first advice of the group.
    pub best: Advice,
    /// The other recommendations of the group.
    pub ties: Vec<Advice>,
}

/// Protocol that does not suit a need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The protocol.
    pub protocol: Protocol,
    /// The reason, as a clause.
    pub reason: String,
}

/// First advice after one change of the need or of the testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The change, such as `twice the size`.
    pub what: String,
    /// Threads and connections after the change.
    pub peers: Peers,
    /// The first advice after the change. An error means that no protocol suits the changed need.
    pub first: Result<Advice, AdviseError>,
}

/// Rates of links, in Gb/s, with which the answer is compared.
const OTHER_LINKS_GBPS: [f64; 2] = [25.0, 400.0];

/// Answers a need: ranks protocols as [`advise`] does, and explains the ranking.
///
/// # Errors
///
/// Returns the errors of [`advise`].
pub fn answer(parameters: &Parameters, need: &Need) -> Result<Answer, AdviseError> {
    let all = advise(parameters, need)?;
    let left_out = Protocol::ALL.into_iter().filter(|protocol| all.iter().all(|advice| advice.protocol != *protocol));
    let left_out = left_out.map(|protocol| {
        let too_large = "with the smallest window, it needs more than the given memory of a thread";
        LeftOut { protocol, reason: misfit(protocol, need).unwrap_or(too_large).to_owned() }
    });
    let left_out = left_out.collect();
    let rows = grouped(need, all);
    Ok(Answer { sentence: sentence(need, &rows), rows, left_out, changes: changes(parameters, need) })
}

/// Groups recommendations that are equal, in the order of the first one of each group.
pub fn grouped(need: &Need, all: impl IntoIterator<Item = Advice>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for advice in all {
        match rows.iter_mut().find(|row| is_tie(need, &row.best, &advice)) {
            Some(row) => row.ties.push(advice),
            None => rows.push(Row { best: advice, ties: Vec::new() }),
        }
    }
    rows
}

/// Returns whether two recommendations are equal: within 5 % in latency and throughput, and in copies.
fn is_tie(need: &Need, one: &Advice, other: &Advice) -> bool {
    let is_near = |one: f64, other: f64| (1.0 / SAME..=SAME).contains(&(one / other));
    let fails = |advice: &Advice| need.messages_per_s.is_some_and(|rate| advice.messages_per_s < rate);
    is_near(one.latency_ns, other.latency_ns)
        && is_near(useful(need, one), useful(need, other))
        && fails(one) == fails(other)
        && (!need.receiver_places || places(one.protocol) == places(other.protocol))
}

fn sentence(need: &Need, rows: &[Row]) -> String {
    let Some(Row { best, .. }) = rows.first() else { return String::new() };
    let (unit, noun) = match need.reply_bytes {
        Some(_) => ("requests", "A request"),
        None => ("messages", "A message"),
    };
    let (binds, reached) = (limit(need, best.binding), per_second(best.messages_per_s));
    let figure = match need.messages_per_s {
        Some(rate) if best.messages_per_s >= rate => {
            format!("{} {unit}/s of at most {reached}, at which {binds}", per_second(rate))
        }
        Some(rate) => format!("only {reached} of {} {unit}/s; {binds}", per_second(rate)),
        None => format!("{reached} {unit}/s; {binds}"),
    };
    let (alone, loaded) = (short_us(best.latency_ns), best.loaded_ns.map(short_us));
    let loaded = match loaded {
        // An acknowledgement may free a place of the window before the receiver has found the message.
        Some(_) if best.loaded_ns < Some(best.latency_ns) => " and with this load".to_owned(),
        Some(loaded) => format!(" and {loaded} us with this load"),
        None => String::new(),
    };
    format!("Take {}: {figure}. {noun} takes {alone} us alone{loaded}; {}.", with_options(best), next_best(need, rows))
}

/// Returns a clause about the second row: `the next best, Direct-Write, reaches 12 % less`. Without a second row, the
/// clause says whether other protocols are equal to the first one.
pub fn next_best(need: &Need, rows: &[Row]) -> String {
    match rows {
        [Row { best, .. }, next, ..] => {
            format!("the next best, {}, {}", called(next.best.protocol), compared(need, best, &next.best))
        }
        [Row { ties, .. }] if !ties.is_empty() => "the other protocols that suit are equal within 5 %".to_owned(),
        _ => "no other protocol suits".to_owned(),
    }
}

/// Returns the protocol of an advice with its options: `Send-Receive with window 32 and batch 8`.
pub fn with_options(advice: &Advice) -> String {
    let Advice { protocol, window, batch, depth, srq, .. } = advice;
    let name = called(*protocol);
    match (*batch, *srq) {
        (1, false) => format!("{name} with window {window}"),
        (_, false) => format!("{name} with window {window} and batch {batch}"),
        (_, true) => format!("{name} with window {window}, batch {batch} and a shared receive queue of {depth}"),
    }
}

/// Returns the name of a protocol in sentences. A variant has its name on the command line in parentheses.
fn called(protocol: Protocol) -> String {
    let description = protocol.description();
    let family = description.title.split([' ', ',']).next().unwrap_or(description.title);
    match family.eq_ignore_ascii_case(description.name) {
        true => family.to_owned(),
        false => format!("{family} ({})", description.name),
    }
}

/// Returns a clause that names what limits the throughput: `the receiver's CPU binds`.
fn limit(need: &Need, kind: BoundKind) -> String {
    let (sender, receiver) = match need.reply_bytes {
        Some(_) => ("client's", "server's"),
        None => ("sender's", "receiver's"),
    };
    let name = kind.name();
    let what = match kind {
        BoundKind::LinkBackward => format!("the link from the {}", receiver.trim_end_matches("'s")),
        _ => match (name.strip_prefix("sending "), name.strip_prefix("receiving ")) {
            (Some(part), _) => format!("the {sender} {part}"),
            (_, Some(part)) => format!("the {receiver} {part}"),
            _ => format!("the {name}"),
        },
    };
    with_verb(&what, kind)
}

/// Returns a clause with the name of a bound: `sending CPU binds`.
pub(super) fn binds(kind: BoundKind) -> String {
    with_verb(kind.name(), kind)
}

fn with_verb(what: &str, kind: BoundKind) -> String {
    let is_plural = matches!(
        kind,
        BoundKind::SendingUnits
            | BoundKind::ReceivingUnits
            | BoundKind::PayloadFetches
            | BoundKind::Rounds
            | BoundKind::SlowAccesses
            | BoundKind::ReadsInFlight
            | BoundKind::Atomics
            | BoundKind::AtomicsOnAddress
    );
    format!("{what} {}", if is_plural { "bind" } else { "binds" })
}

/// Returns a clause that compares an advice with the first one: `reaches 12 % less and takes 40 % longer alone`.
fn compared(need: &Need, first: &Advice, next: &Advice) -> String {
    let percent = |factor: f64| 100.0 * (factor - 1.0);
    let rate = percent(useful(need, next) / useful(need, first));
    let time = percent(next.latency_ns / first.latency_ns);
    let least = percent(SAME) / SAME;
    let mut clauses = Vec::new();
    match rate {
        _ if rate <= -least => clauses.push(format!("reaches {:.0} % less", -rate)),
        _ if rate >= least => clauses.push(format!("reaches {rate:.0} % more")),
        _ => {}
    }
    match time {
        _ if time >= least => clauses.push(format!("takes {time:.0} % longer alone")),
        _ if time <= -least => clauses.push(format!("takes {:.0} % less time alone", -time)),
        _ => {}
    }
    if clauses.is_empty() {
        clauses.push(match need.messages_per_s {
            _ if places(first.protocol) && !places(next.protocol) => "copies each message at the receiver".to_owned(),
            Some(rate) if next.messages_per_s < rate => {
                let share = (100.0 * next.messages_per_s / rate).floor();
                format!("reaches only {share:.0} % of the rate")
            }
            _ => "copies no message at the receiver".to_owned(),
        });
    }
    clauses.join(" and ")
}

/// Formats a time in microseconds with about three significant digits.
fn short_us(ns: f64) -> String {
    let us = ns / 1e3;
    match us {
        _ if us >= 100.0 => format!("{us:.0}"),
        _ if us >= 10.0 => format!("{us:.1}"),
        _ => format!("{us:.2}"),
    }
}

/// Returns the first recommendations after changes that a user may plan.
fn changes(parameters: &Parameters, need: &Need) -> Vec<Change> {
    let first = |parameters: &Parameters, need: &Need| -> Result<Option<Advice>, AdviseError> {
        Ok(advise(parameters, need)?.into_iter().next())
    };
    let mut changes = Vec::new();
    let mut add = |what: String, peers: Peers, first: Result<Option<Advice>, AdviseError>| {
        if let Some(first) = first.transpose() {
            changes.push(Change { what, peers, first });
        }
    };
    let twice = |bytes: u64| bytes.saturating_mul(2);
    let larger = Need {
        sizes: need.sizes.iter().map(|&(bytes, share)| (twice(bytes), share)).collect(),
        reply_bytes: need.reply_bytes.map(twice),
        ..need.clone()
    };
    add("twice the size".to_owned(), larger.peers, first(parameters, &larger));
    let Peers { senders, receivers, connections } = need.peers;
    let peers = Peers { senders: senders.saturating_mul(2), receivers, connections: connections.saturating_mul(2) };
    let who = if need.reply_bytes.is_some() { "clients" } else { "senders" };
    add(format!("twice the {who}"), peers, first(parameters, &Need { peers, ..need.clone() }));
    for gbps in OTHER_LINKS_GBPS.into_iter().filter(|_| parameters.rnic == RnicKind::Hardware) {
        add(format!("a link of {gbps} Gb/s"), need.peers, first(&with_link(parameters, gbps), need));
    }
    if may_share(need) && misfit(Protocol::SendReceive, need).is_none() {
        let shared = || -> Result<Option<Advice>, AdviseError> {
            check(need)?;
            let all = ranked(parameters, need, candidates(parameters, need, Receives::Shared)?)?;
            Ok(all.into_iter().next())
        };
        add("with an SRQ".to_owned(), need.peers, shared());
    }
    changes
}

/// Returns the parameters with a link of another rate. A byte takes at least its time on the line in a latency.
fn with_link(parameters: &Parameters, gbps: f64) -> Parameters {
    let gap = 8.0 / gbps;
    Parameters {
        gap_bandwidth_ns_per_byte: gap,
        gap_latency_ns_per_byte: parameters.gap_latency_ns_per_byte.max(gap),
        g_var_ns_per_byte: parameters.g_var_ns_per_byte.max(gap),
        ..parameters.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::Goal;

    fn on_t1(need: &Need) -> Answer {
        answer(&Parameters::t1(), need).unwrap()
    }

    #[test]
    fn the_first_sentence_says_what_to_take() {
        let need = Need {
            receiver_holds: true,
            receiver_sleeps: true,
            peers: Peers::many_to_one(24),
            ..Need::new(200, Goal::Throughput)
        };
        let answer = on_t1(&need);
        let best = &answer.rows[0].best;
        let (advised, rate) = (with_options(best), per_second(best.messages_per_s));
        let start = format!("Take {advised}: {rate} messages/s; the receiver's CPU binds. A message takes 2.");
        assert!(advised.starts_with("Send-Receive with window "), "{advised}");
        assert!(answer.sentence.starts_with(&start), "{}", answer.sentence);
        assert!(answer.sentence.contains(" us alone and "), "{}", answer.sentence);
        assert!(answer.sentence.ends_with(" us with this load; no other protocol suits."), "{}", answer.sentence);
        // The rate of a need takes the place of full windows.
        let slow = on_t1(&Need { messages_per_s: Some(2e6), ..need.clone() });
        assert!(slow.sentence.contains(": 2.00 M messages/s of at most "), "{}", slow.sentence);
        assert!(!slow.sentence.contains("with this load"), "{}", slow.sentence);
        let fast = on_t1(&Need { messages_per_s: Some(1e9), ..need.clone() });
        assert!(fast.sentence.contains(": only ") && fast.sentence.contains(" M of 1000 M messages/s; "));
        assert!(!fast.sentence.contains("with this load"), "{}", fast.sentence);
        let rare = on_t1(&Need { messages_per_s: Some(12_300.0), ..need });
        assert!(rare.sentence.contains(": 12.3 k messages/s of at most "), "{}", rare.sentence);
        let fast = on_t1(&Need { messages_per_s: Some(1e9), ..Need::new(64, Goal::Latency) });
        let reason = &fast.rows[0].best.reason;
        assert!(reason.contains("the highest throughput") && !reason.contains("shortest latency"), "{reason}");
        assert!(reason.starts_with("reaches only ") && !reason.contains("only 0 %"), "{reason}");
    }

    #[test]
    fn bounds_with_plural_names_bind() {
        assert_eq!(binds(BoundKind::SendingUnits), "sending NIC's units bind");
        assert_eq!(binds(BoundKind::SendingCpu), "sending CPU binds");
    }

    #[test]
    fn a_window_that_is_free_before_the_message_is_found_has_one_time() {
        let need = Need { peers: Peers::many_to_one(2), ..Need::new(64, Goal::Latency) };
        let rows = |loaded_ns: f64| {
            let all = advise(&Parameters::t1(), &need).unwrap().into_iter();
            grouped(&need, all.map(|advice| Advice { loaded_ns: Some(loaded_ns), latency_ns: 2000.0, ..advice }))
        };
        assert!(sentence(&need, &rows(1900.0)).contains(" takes 2.00 us alone and with this load; "));
        assert!(sentence(&need, &rows(2500.0)).contains(" takes 2.00 us alone and 2.50 us with this load; "));
    }

    #[test]
    fn sentences_of_requests_at_a_rate_have_the_time_with_this_load() {
        let need = Need {
            reply_bytes: Some(4096),
            messages_per_s: Some(1e5),
            peers: Peers::many_to_one(8),
            ..Need::new(200, Goal::Latency)
        };
        let answer = on_t1(&need);
        assert!(answer.sentence.contains(" us with this load"), "{}", answer.sentence);
    }

    #[test]
    fn sentences_of_requests_name_clients_and_server() {
        let need = Need {
            reply_bytes: Some(65_536),
            peers: Peers::many_to_one(24),
            window: Some(16),
            ..Need::new(200, Goal::Throughput)
        };
        let answer = on_t1(&need);
        for words in ["M requests/s; the link from the server binds. A request takes 1", " us alone and "] {
            assert!(answer.sentence.contains(words), "{}", answer.sentence);
        }
    }

    #[test]
    fn nearly_equal_recommendations_differ_in_the_rate_or_in_copies() {
        let need = Need { messages_per_s: Some(1e6), receiver_places: true, ..Need::new(64, Goal::Throughput) };
        let of = |protocol: Protocol, messages_per_s: f64| {
            let all = advise(&Parameters::t1(), &need).unwrap();
            let found = all.into_iter().find(|advice| advice.protocol == protocol).unwrap();
            Advice { latency_ns: 3000.0, messages_per_s, ..found }
        };
        let reaching = of(Protocol::SendReceive, 1e6);
        let below = of(Protocol::SendReceive, 0.979e6);
        assert_eq!(compared(&need, &reaching, &below), "reaches only 97 % of the rate");
        let placing = of(Protocol::DirectRead, 1e6);
        assert_eq!(compared(&need, &placing, &below), "copies each message at the receiver");
        assert_eq!(compared(&need, &reaching, &placing), "copies no message at the receiver");
    }

    #[test]
    fn equal_recommendations_have_one_row() {
        let need = Need { peers: Peers::pairs(4), ..Need::new(1 << 20, Goal::Throughput) };
        let (all, answer) = (advise(&Parameters::t1(), &need).unwrap(), on_t1(&need));
        let rows: usize = answer.rows.iter().map(|row| 1 + row.ties.len()).sum();
        assert_eq!(rows, all.len());
        assert!(answer.rows.len() < all.len(), "messages of 1 MiB fill the link with several protocols");
        assert_eq!(answer.rows[0].best, all[0]);
        for Row { best, ties } in &answer.rows {
            assert!(ties.iter().all(|tie| is_tie(&need, best, tie)));
        }
    }

    #[test]
    fn each_protocol_has_a_row_or_a_reason() {
        let needs = [
            Need::new(64, Goal::Latency),
            Need { receiver_sleeps: true, receiver_holds: true, ..Need::new(64, Goal::Latency) },
            Need { receiver_places: true, peers: Peers::many_to_one(3), ..Need::new(64, Goal::Latency) },
            Need { memory_bytes: Some(8 << 10), ..Need::new(64, Goal::Latency) },
        ];
        for need in needs {
            let Answer { rows, left_out, .. } = on_t1(&need);
            let rows = rows.iter().flat_map(|row| std::iter::once(&row.best).chain(&row.ties));
            let mut found: Vec<Protocol> = rows.map(|advice| advice.protocol).collect();
            found.extend(left_out.iter().map(|left| left.protocol));
            found.sort_unstable();
            assert_eq!(found, Protocol::ALL);
            assert!(left_out.iter().all(|left| left.reason.len() > 10), "{left_out:?}");
        }
        let direct_read = on_t1(&Need::new(64, Goal::Latency)).left_out;
        let direct_read = direct_read.iter().find(|left| left.protocol == Protocol::DirectRead).unwrap();
        assert!(direct_read.reason.contains("--place"), "{}", direct_read.reason);
    }

    #[test]
    fn changes_are_predictions_of_changed_needs() {
        let need = Need { peers: Peers::many_to_one(8), receiver_holds: true, ..Need::new(4096, Goal::Throughput) };
        let answer = on_t1(&need);
        let names: Vec<&str> = answer.changes.iter().map(|change| change.what.as_str()).collect();
        let expected =
            ["twice the size", "twice the senders", "a link of 25 Gb/s", "a link of 400 Gb/s", "with an SRQ"];
        assert_eq!(names, expected);
        let rate = |index: usize| answer.changes[index].first.as_ref().unwrap().messages_per_s;
        let best = answer.rows[0].best.messages_per_s;
        assert_eq!(answer.changes[1].peers.senders, 16);
        assert!(rate(0) < best && rate(2) < 0.3 * best && rate(3) >= best, "{:#?}", answer.changes);
        let shared = answer.changes[4].first.as_ref().unwrap();
        assert!(shared.srq && shared.protocol == Protocol::SendReceive && shared.messages_per_s < best);
        // One sender and one receiver have nothing to share.
        assert_eq!(on_t1(&Need::new(64, Goal::Latency)).changes.len(), 4);
    }
}
