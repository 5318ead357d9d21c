//! Short text of a bench: the parameters in a line, and the checks and limits of all sizes in a sentence.

use doorbell_machine::cpu::CpuPerMessage;
use doorbell_record::{
    BothEnds, Carried, CarriedBy, Cast, Counted, Environment, Kind, Parameters, PointResult, Timed, Transport,
};
use doorbell_sim::{Bottleneck, Station};

use super::{Fit, NO_LOSS, asked, name, served};
use crate::output::wrapped;

/// Minimum share of its time for which a thread works if it limits the rate. A thread below this share also waits.
const BUSY: f64 = 0.8;

/// Minimum share of an offered rate that counts as the whole rate, since the last messages are still under way.
const WHOLE_RATE: f64 = 0.95;

/// Minimum share of retransmitted packets that the sentence mentions.
const MANY_REPEATED: f64 = 0.01;

/// Facts about a measurement that its results lack.
pub(crate) struct Facts<'a> {
    /// Busiest station of each point. Empty if the points were measured, not simulated.
    pub(crate) busiest: &'a [Bottleneck],
    /// Number of processors that both ends share, or `None` if the ends may be on two machines.
    pub(crate) shared_cpus: Option<usize>,
    /// Whether packets and payloads are as expected.
    pub(crate) sound: bool,
    /// Whether tables precede the sentence.
    pub(crate) verbose: bool,
}

/// Returns the device and the most important parameters.
pub(crate) fn heading(environment: &Environment, parameters: &Parameters) -> String {
    let simulated = match &environment.testbed {
        Some(testbed) => format!("simulated, testbed {} in virtual time\n", testbed.name),
        None => String::new(),
    };
    let text = format!(
        "{} over {} ({} provider), window {}, batch {}, {} connection{}{}{}",
        name(parameters),
        environment.device,
        environment.provider,
        Fit::text(Fit::of(parameters).windows),
        parameters.batch,
        parameters.connections,
        if parameters.connections == 1 { "" } else { "s" },
        served(parameters),
        asked(parameters),
    );
    simulated + &wrapped(&text)
}

/// Returns the sentence about all sizes: the checks, the limit of the rate at each size, and losses.
pub(crate) fn sentence(parameters: &Parameters, results: &[PointResult], facts: &Facts<'_>) -> String {
    let mut text = checks(parameters, results, facts.sound);
    text += "; ";
    text += &limits(parameters, results, facts);
    for remark in remarks(parameters, results) {
        text += "; ";
        text += &remark;
    }
    text += if facts.verbose { "." } else { " (-v: packets, CPU time, explanations)." };
    wrapped(&text)
}

fn checks(parameters: &Parameters, results: &[PointResult], sound: bool) -> String {
    if !sound {
        return "The check failed, and lines above that begin with \"doorbell:\" say why".to_owned();
    }
    let payloads = if parameters.verify { "Payloads are intact, and " } else { "" };
    let all = |is_known: fn(&PointResult) -> bool| results.iter().all(is_known);
    let packets = if all(|result| result.counters.client.is_empty() && result.counters.server.is_empty()) {
        "no packets were checked, since the kernel counts those of these RNICs".to_owned()
    } else {
        let whose = match all(|result| !result.counters.client.is_empty() && !result.counters.server.is_empty()) {
            true => "",
            false => " of the software RNIC",
        };
        let carried = results.iter().fold(Carried::default(), |all, result| all.and(result.carried()));
        let over = match carried.by() {
            None => "",
            Some(CarriedBy::Udp) => " over UDP",
            Some(CarriedBy::SharedMemory) => " through shared memory",
            Some(CarriedBy::Both) => " over UDP and through shared memory",
        };
        format!("packets and bytes{whose}{over} match their prediction")
    };
    match payloads {
        "" => packets[..1].to_uppercase() + &packets[1..],
        _ => format!("{payloads}{packets}"),
    }
}

/// Sizes that follow one another and have the same limit.
struct Group {
    subject: String,
    first: usize,
    last: usize,
    shares: Vec<f64>,
}

impl Group {
    fn text(&self, is_only_one: bool) -> String {
        let Self { subject, first, last, shares } = self;
        let percent = |share: f64| format!("{:.0}", 100.0 * share.min(1.0));
        let least = percent(shares.iter().copied().fold(f64::INFINITY, f64::min));
        let most = percent(shares.iter().copied().fold(0.0, f64::max));
        let busy = match shares.is_empty() {
            true => String::new(),
            false if least == most => format!(" ({most} % busy)"),
            false => format!(" ({least} to {most} % busy)"),
        };
        match (is_only_one, first == last) {
            (true, _) => format!("{subject}{busy} limits the rate"),
            (false, true) => format!("{subject}{busy} limits {first} B"),
            (false, false) => format!("{subject}{busy} limits {first} to {last} B"),
        }
    }
}

fn limits(parameters: &Parameters, results: &[PointResult], facts: &Facts<'_>) -> String {
    let mut groups: Vec<Group> = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let (subject, share) = limit(parameters, result, facts.busiest.get(index).copied(), facts.shared_cpus);
        match groups.last_mut() {
            Some(group) if group.subject == subject => {
                group.last = result.bytes;
                group.shares.extend(share);
            }
            _ => {
                let shares = share.into_iter().collect();
                groups.push(Group { subject, first: result.bytes, last: result.bytes, shares });
            }
        }
    }
    let is_only_one = groups.len() == 1;
    let texts: Vec<String> = groups.iter().map(|group| group.text(is_only_one)).collect();
    texts.join(", ")
}

/// Returns the limit of the rate of a point as the subject of a sentence, and the share of its time for which it works.
fn limit(
    parameters: &Parameters,
    result: &PointResult,
    busiest: Option<Bottleneck>,
    shared_cpus: Option<usize>,
) -> (String, Option<f64>) {
    let plain = |subject: &str| (subject.to_owned(), None);
    let idle = |cause: &str| plain(if parameters.think_us > 0 { "the think time of the clients" } else { cause });
    if parameters.kind == Kind::Latency {
        return match parameters.operation.timed() {
            Timed::HalfRoundTrip | Timed::RoundTrip => plain("one round trip at a time"),
            Timed::Completion => plain("one operation at a time"),
        };
    }
    // The rate of a result has only the messages that arrived.
    let posted = (result.messages + result.lost) as f64 / result.messages.max(1) as f64;
    let posted_per_s = result.messages_per_s * posted;
    if parameters.rate.is_some_and(|rate| posted_per_s >= WHOLE_RATE * rate) {
        return plain("the offered rate");
    }
    if !parameters.credits && rnr_naks(result) > 0 {
        return plain("the receiver, which had no receive posted,");
    }
    if let Some(busiest) = busiest {
        return if busiest.binds() { (station(busiest), Some(busiest.share)) } else { idle("the window") };
    }
    // The CPU time of both ends is per message that the asking end sent.
    let sent_per_s = posted_per_s / if parameters.bidirectional { 2.0 } else { 1.0 };
    let processors = |cpu: &CpuPerMessage| Some(cpu.useful_us? * 1e-6 * sent_per_s);
    let BothEnds { client, server } = &result.cpu_per_message;
    let (Some(this), Some(other)) = (processors(client), processors(server)) else {
        return plain("an unknown cause");
    };
    if let Some(cpus) = shared_cpus
        && this + other >= BUSY * cpus as f64
    {
        return ("the CPU that both sides share".to_owned(), Some((this + other) / cpus as f64));
    }
    let Cast { asking, answering } = parameters.cast();
    let ends = [("this side", asking.threads.max(1), this), ("the other side", answering.threads.max(1), other)];
    let [this, other] = ends.map(|(side, threads, processors)| (side, threads, processors / threads as f64));
    let (side, threads, share) = if this.2 >= other.2 { this } else { other };
    match threads {
        _ if share < BUSY => idle("the wait of both sides for each other"),
        1 => (format!("the thread of {side}"), Some(share)),
        _ => (format!("the work of {threads} threads of {side}"), Some(share)),
    }
}

/// Returns the name of a station of a testbed as the subject of a sentence.
fn station(busiest: Bottleneck) -> String {
    let name = match busiest.station {
        Station::Thread => "the thread",
        Station::Unit => "a processing unit",
        Station::Send => "the NIC's send stage",
        Station::Gather => "the NIC's fetches of payloads",
        Station::Receive => "the NIC's receive stage",
        Station::Fetch => "PCIe towards the NIC",
        Station::Write => "PCIe towards memory",
        Station::Port => "the line",
        Station::SwitchPort => "the line of the switch",
    };
    match busiest.node {
        Some(0) => format!("{name} of this side"),
        Some(_) => format!("{name} of the other side"),
        None => name.to_owned(),
    }
}

fn rnr_naks(result: &PointResult) -> u64 {
    result.counted.client.rnr_naks + result.counted.server.rnr_naks
}

/// Returns clauses about lost messages and packets, if there are any.
fn remarks(parameters: &Parameters, results: &[PointResult]) -> Vec<String> {
    let mut remarks = Vec::new();
    let sum = |of: fn(&PointResult) -> u64| results.iter().map(of).sum::<u64>();
    let lost = sum(|result| result.lost);
    if parameters.transport != Transport::Rc && lost > 0 {
        let sent = sum(|result| result.sent_by_connection.iter().sum());
        let how = match parameters.kind {
            Kind::Latency => "had no answer",
            Kind::Bandwidth => "did not arrive",
        };
        let share = 100.0 * lost as f64 / sent.max(1) as f64;
        remarks.push(format!("{lost} of {sent} messages ({share:.2} %) {how}"));
    }
    let refused = sum(rnr_naks);
    if !parameters.credits && refused > 0 {
        remarks.push(format!("{refused} RNR NAKs stopped the sender for a while"));
    }
    let of_both = |of: fn(&Counted) -> u64| {
        results.iter().map(|result| of(&result.counted.client) + of(&result.counted.server)).sum::<u64>()
    };
    let repeated = of_both(|counted| counted.retransmitted_packets);
    let first = of_both(|counted| counted.data_packets + counted.response_packets);
    let share = repeated as f64 / first.max(1) as f64;
    if share >= MANY_REPEATED {
        remarks.push(format!("{:.1} % of the packets were sent again", 100.0 * share));
    }
    let below: u64 = results
        .iter()
        .flat_map(|result| [&result.link.client, &result.link.server])
        .flatten()
        .filter(|(counter, _)| !NO_LOSS.contains(&counter.as_str()))
        .map(|(_, count)| *count)
        .sum();
    if below > 0 {
        remarks.push(format!("{below} packets were lost between RNIC and network"));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use doorbell_record::Operation;

    use super::*;

    const MEASURED: Facts<'_> = Facts { busiest: &[], shared_cpus: None, sound: true, verbose: false };

    fn bandwidth(sizes: &[usize]) -> Parameters {
        Parameters { sizes: sizes.to_vec(), ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16) }
    }

    /// Returns the result of a size at a million messages per second, with the microseconds of CPU time per message of
    /// both ends.
    fn result(bytes: usize, [this, other]: [f64; 2]) -> PointResult {
        let mut result = PointResult { bytes, messages: 1000, messages_per_s: 1e6, ..PointResult::default() };
        let cpu = |us| CpuPerMessage { all_us: Some(1.0), useful_us: Some(us) };
        result.cpu_per_message = BothEnds { client: cpu(this), server: cpu(other) };
        for counters in [&mut result.counters.client, &mut result.counters.server] {
            counters.insert("tx_data_packets".to_owned(), 1000);
        }
        result.counted.client.data_packets = 1000;
        result
    }

    /// Checks that the text has lines of at most 100 columns, and returns it as one line.
    #[track_caller]
    fn one_line(text: &str) -> String {
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        text.replace('\n', " ")
    }

    #[track_caller]
    fn said(parameters: &Parameters, results: &[PointResult], facts: &Facts<'_>) -> String {
        one_line(&sentence(parameters, results, facts))
    }

    #[test]
    fn sizes_with_one_limit_share_a_clause() {
        let results = [result(16, [0.97, 0.5]), result(512, [0.9, 0.5]), result(4096, [0.3, 0.85])];
        let text = said(&bandwidth(&[16, 512, 4096]), &results, &MEASURED);
        assert_eq!(
            text,
            "Packets and bytes match their prediction; the thread of this side (90 to 97 % busy) limits 16 to 512 B, \
             the thread of the other side (85 % busy) limits 4096 B (-v: packets, CPU time, explanations)."
        );
        let text = said(&bandwidth(&[16]), &results[..1], &Facts { verbose: true, ..MEASURED });
        assert!(text.ends_with("the thread of this side (97 % busy) limits the rate."), "{text}");
    }

    #[test]
    fn each_cause_is_named() {
        let idle = [result(64, [0.3, 0.2])];
        let plain = bandwidth(&[64]);
        let has = |parameters: &Parameters, results: &[PointResult], facts: &Facts<'_>, words: &str| {
            let text = said(parameters, results, facts);
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
        };
        has(&plain, &idle, &MEASURED, "the wait of both sides for each other limits the rate");
        let here = Facts { shared_cpus: Some(2), ..MEASURED };
        has(&plain, &[result(64, [1.0, 0.7])], &here, "the CPU that both sides share (85 % busy) limits");
        has(&Parameters { rate: Some(1e6), ..plain.clone() }, &idle, &MEASURED, "the offered rate limits");
        has(&Parameters { rate: Some(2e6), ..plain.clone() }, &idle, &MEASURED, "the wait of both");
        let half = PointResult { lost: 1000, ..idle[0].clone() };
        has(&Parameters { rate: Some(2e6), ..plain.clone() }, &[half], &MEASURED, "the offered rate limits");
        let latency = Parameters::plain(Kind::Latency, Operation::Read, 64);
        has(&latency, &idle, &MEASURED, "one operation at a time limits the rate");
        let mut unknown = idle[0].clone();
        unknown.cpu_per_message.server.useful_us = None;
        has(&plain, &[unknown], &MEASURED, "an unknown cause limits");
        let mut threads = plain.clone();
        threads.serving.threads = 4;
        has(&threads, &[result(64, [3.6, 0.2])], &MEASURED, "the work of 4 threads of this side (90 % busy)");
        threads.serving.single_receiver = true;
        has(&threads, &[result(64, [2.0, 0.9])], &MEASURED, "the thread of the other side (90 % busy)");
        threads.serving.single_receiver = false;
        // Each server thread has at least one of four connections.
        (threads.connections, threads.serving.server_threads) = (4, 8);
        has(&threads, &[result(64, [2.0, 3.6])], &MEASURED, "the work of 4 threads of the other side (90 % busy)");
        let thinking = Parameters { think_us: 50, ..plain.clone() };
        has(&thinking, &idle, &MEASURED, "the think time of the clients limits the rate");
        has(&thinking, &[result(64, [0.97, 0.5])], &MEASURED, "the thread of this side (97 % busy) limits the rate");
        let line = [Bottleneck { station: Station::Port, node: Some(0), share: 0.99 }];
        let simulated = Facts { busiest: &line, ..MEASURED };
        has(&plain, &idle, &simulated, "the line of this side (99 % busy) limits the rate");
        let idle_line = [Bottleneck { share: 0.5, ..line[0] }];
        has(&plain, &idle, &Facts { busiest: &idle_line, ..MEASURED }, "the window limits the rate");
        has(
            &thinking,
            &idle,
            &Facts { busiest: &idle_line, ..MEASURED },
            "the think time of the clients limits the rate",
        );
    }

    #[test]
    fn losses_and_failed_checks_are_stated() {
        let parameters = Parameters { transport: Transport::Uc, verify: true, ..bandwidth(&[64]) };
        let mut lossy = result(64, [0.9, 0.2]);
        lossy.lost = 20;
        lossy.sent_by_connection = vec![1000];
        lossy.counted.server.retransmitted_packets = 50;
        lossy.link.client.insert("rx_overflow".to_owned(), 3);
        lossy.link.client.insert("tx_udp_packets".to_owned(), 900);
        let text = said(&parameters, &[lossy], &MEASURED);
        for words in [
            "Payloads are intact, and packets and bytes over UDP match their prediction",
            "20 of 1000 messages (2.00 %) did not arrive",
            "5.0 % of the packets were sent again",
            "3 packets were lost between RNIC and network",
        ] {
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
        }
        let failed = Facts { sound: false, ..MEASURED };
        assert!(said(&parameters, &[result(64, [0.9, 0.2])], &failed).starts_with("The check failed"));
        let mut uncounted = result(64, [0.9, 0.2]);
        uncounted.counters = BothEnds::default();
        let text = said(&bandwidth(&[64]), &[uncounted], &MEASURED);
        assert!(text.starts_with("No packets were checked, since the kernel counts"), "{text}");
    }
}
