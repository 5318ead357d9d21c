//! Text output of a bench.

pub(crate) mod short;

use std::collections::BTreeMap;
use std::io;

use doorbell_record::prediction::range;
use doorbell_record::{
    BothEnds, Carried, CarriedBy, Cast, Environment, Kind, Operation, Parameters, PointResult, SharedBy, Timed,
    Transport,
};

use crate::output::{line, note, us};

/// Windows and receive depths of all message sizes. By default, large messages have smaller windows and depths.
struct Fit {
    windows: Vec<usize>,
    depths: Vec<usize>,
}

impl Fit {
    fn of(parameters: &Parameters) -> Self {
        // `Parameters` with a size that does not fit at all have been rejected before.
        let (windows, depths) = parameters
            .sizes
            .iter()
            .filter_map(|&size| parameters.fit(size).ok())
            .map(|fit| (fit.window, fit.depth))
            .unzip();
        Self { windows, depths }
    }

    fn text(of_sizes: Vec<usize>) -> String {
        let (least, most) = (of_sizes.iter().min().copied().unwrap_or(0), of_sizes.iter().max().copied().unwrap_or(0));
        if least == most { most.to_string() } else { format!("{most} to {least}") }
    }
}

/// Prints all parameters, the device and the machine.
pub(crate) fn description(environment: &Environment, parameters: &Parameters) {
    let fitted = Fit::of(parameters);
    let depth = if parameters.operation.is_one_sided() {
        String::new()
    } else {
        format!(", depth {}", Fit::text(fitted.depths))
    };
    let place = match &environment.testbed {
        Some(testbed) => format!("simulated, testbed {} in virtual time", testbed.name),
        None => {
            let pinning = environment.pinning.as_ref().map_or_else(String::new, |pinning| format!("; {pinning}"));
            format!("{} on {} CPUs, Linux {}{pinning}", environment.cpu, environment.cpus, environment.kernel)
        }
    };
    note!(
        "{} over {} ({} provider), MTU {}, window {}, batch {}{depth}, inline up to {} B, \
         {} connection{}{}{}{}{}; {place}",
        name(parameters),
        environment.device,
        environment.provider,
        parameters.mtu.unwrap_or(environment.active_mtu),
        Fit::text(fitted.windows),
        parameters.batch,
        parameters.inline,
        parameters.connections,
        if parameters.connections == 1 { "" } else { "s" },
        served(parameters),
        asked(parameters),
        if parameters.credits { "" } else { ", no credits" },
        if parameters.events { ", sleeping on events" } else { "" },
    );
}

/// Prints the names of the columns of [`row`].
pub(crate) fn header(kind: Kind, parameters: &Parameters) -> io::Result<()> {
    match kind {
        Kind::Latency => line(format_args!(
            "{:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}   {}, us",
            "bytes",
            "rounds",
            "min",
            "median",
            "mean",
            "99 %",
            "99.9 %",
            "max",
            match parameters.operation.timed() {
                Timed::HalfRoundTrip => "half round trip",
                Timed::RoundTrip => "whole round trip",
                Timed::Completion => "post to completion",
            }
        )),
        Kind::Bandwidth if parameters.operation == Operation::RequestResponse => line(format_args!(
            "{:>9} {:>9} {:>11} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}   us",
            "bytes", "reply", "requests", "requests/s", "Gb/s", "median", "mean", "99 %", "99.9 %"
        )),
        Kind::Bandwidth if parameters.operation.is_one_sided() => line(format_args!(
            "{:>9} {:>12} {:>14} {:>10} {:>9} {:>9} {:>9} {:>9}   us",
            "bytes", "messages", "messages/s", "Gb/s", "median", "mean", "99 %", "99.9 %"
        )),
        Kind::Bandwidth => {
            line(format_args!("{:>9} {:>12} {:>14} {:>12} {:>10}", "bytes", "messages", "messages/s", "MiB/s", "Gb/s"))
        }
    }
}

/// Returns a text about the mix of sizes, and the replies and the loop of a workload with requests. For one-sided
/// operations with a window, it states the interval of a latency.
fn asked(parameters: &Parameters) -> String {
    let mix = parameters
        .mix
        .as_ref()
        .filter(|mix| mix.0.len() > 1)
        .map_or_else(String::new, |mix| format!(", a mix of {} sizes (the table has the longest)", mix.0.len()));
    if parameters.operation.is_one_sided() && parameters.kind == Kind::Bandwidth {
        return match parameters.rate {
            None => ", latency from post to completion",
            Some(_) => ", latency from the time at which an operation was due",
        }
        .to_owned();
    }
    if parameters.operation != Operation::RequestResponse {
        return mix;
    }
    let replies = parameters.reply.map_or_else(String::new, |reply| format!(", replies of {reply} B"));
    let since = match parameters.rate {
        Some(_) => ": latency from the time at which a request was due",
        None => "",
    };
    format!("{mix}{replies}, {}{since}", parameters.request_loop())
}

/// Returns a text about the threads that serve connections: asking threads, a colon, and answering threads. The text is
/// empty for one thread that polls each connection.
fn served(parameters: &Parameters) -> String {
    let Parameters { serving, .. } = parameters;
    let Cast { asking, answering } = parameters.cast();
    let threads = match (asking.threads, answering.threads) {
        (1, 1) => String::new(),
        (threads, servers) => format!(" on {threads}:{servers} threads"),
    };
    let receiver = if serving.single_receiver { ", a single receiver" } else { "" };
    let shared = match serving.shared_receives {
        None => "",
        Some(SharedBy::Lock) => ", receive buffers shared under a lock",
        Some(SharedBy::Thread) => ", receive buffers shared and posted again by a thread",
    };
    format!("{threads}{receiver}{shared}")
}

fn name(parameters: &Parameters) -> String {
    let protocol = parameters.protocol;
    match parameters.operation {
        Operation::Send if parameters.replicate => format!("One source for many readers over {protocol}"),
        Operation::Send => match parameters.transport {
            Transport::Rc => protocol.to_string(),
            Transport::Uc => "SEND over UC".to_owned(),
            Transport::Ud => "SEND over UD".to_owned(),
        },
        Operation::Write => "RDMA WRITE".to_owned(),
        Operation::Read => "RDMA READ".to_owned(),
        Operation::CompareSwap => "Compare-and-swap".to_owned(),
        Operation::FetchAdd => "Fetch-and-add".to_owned(),
        Operation::RequestResponse => format!("Request-response over {protocol}"),
    }
}

pub(crate) fn row(parameters: &Parameters, result: &PointResult) -> io::Result<()> {
    for note in &result.fitted.notes {
        note!("{} B: {note}", result.bytes);
    }
    match (parameters.kind, result.latency_ns) {
        (Kind::Latency, Some(latency)) => line(format_args!(
            "{:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            result.bytes,
            result.messages,
            us(latency.min as f64),
            us(latency.p50 as f64),
            us(latency.mean),
            us(latency.p99 as f64),
            us(latency.p999 as f64),
            us(latency.max as f64),
        )),
        (Kind::Bandwidth, Some(latency)) if parameters.operation.is_one_sided() => line(format_args!(
            "{:>9} {:>12} {:>14.0} {:>10.3} {:>9} {:>9} {:>9} {:>9}",
            result.bytes,
            result.messages,
            result.messages_per_s,
            result.bytes_per_s * 8.0 / 1e9,
            us(latency.p50 as f64),
            us(latency.mean),
            us(latency.p99 as f64),
            us(latency.p999 as f64),
        )),
        (Kind::Bandwidth, Some(latency)) => line(format_args!(
            "{:>9} {:>9} {:>11} {:>12.0} {:>9.3} {:>9} {:>9} {:>9} {:>9}",
            result.bytes,
            parameters.reply_bytes(result.bytes),
            result.messages,
            result.messages_per_s,
            result.bytes_per_s * 8.0 / 1e9,
            us(latency.p50 as f64),
            us(latency.mean),
            us(latency.p99 as f64),
            us(latency.p999 as f64),
        )),
        _ => line(format_args!(
            "{:>9} {:>12} {:>14.0} {:>12.2} {:>10.3}",
            result.bytes,
            result.messages,
            result.messages_per_s,
            result.bytes_per_s / f64::from(1 << 20),
            result.bytes_per_s * 8.0 / 1e9,
        )),
    }
}

/// Returns a value of each end of each result, with the message size and the name of the end.
fn ends<'a, T>(
    results: &'a [PointResult],
    of: impl Fn(&'a PointResult) -> &'a BothEnds<T>,
) -> impl Iterator<Item = (usize, &'static str, &'a T)>
where
    T: 'a,
{
    results.iter().flat_map(move |result| {
        let ends = of(result);
        [("this", &ends.client, &result.counters.client), ("other", &ends.server, &result.counters.server)]
            .into_iter()
            // Skip an RNIC of the machine, whose counters in the kernel include the packets of all programs.
            .filter(|(_, _, counters)| !counters.is_empty())
            .map(|(name, end, _)| (result.bytes, name, end))
    })
}

/// Prints the lost messages, if the transport neither acknowledges nor retransmits.
pub(crate) fn lost_messages(parameters: &Parameters, results: &[PointResult]) -> io::Result<()> {
    if parameters.transport == Transport::Rc {
        return Ok(());
    }
    line("")?;
    line(match parameters.kind {
        Kind::Latency => "Messages without an answer: nothing is sent again",
        Kind::Bandwidth => "Messages that did not arrive: nothing is sent again, and nothing slows a sender down",
    })?;
    line(format_args!("{:>9} {:>12} {:>12} {:>8}", "bytes", "sent", "lost", "share"))?;
    for result in results {
        let sent: u64 = result.sent_by_connection.iter().sum();
        let share = 100.0 * result.lost as f64 / sent.max(1) as f64;
        line(format_args!("{:>9} {sent:>12} {:>12} {share:>6.2} %", result.bytes, result.lost))?;
    }
    Ok(())
}

/// Prints the CPU time of both ends.
pub(crate) fn cpu(parameters: &Parameters, results: &[PointResult]) -> io::Result<()> {
    let is_answered = parameters.kind == Kind::Latency && parameters.operation == Operation::Send
        || parameters.operation == Operation::RequestResponse;
    line("")?;
    line(format_args!(
        "CPU time per {}, us: of all threads of a side, and without polls that found nothing",
        if is_answered { "message and its answer" } else { "message" }
    ))?;
    line(format_args!("{:>9} {:<6} {:>12} {:>14}", "bytes", "side", "CPU", "without polls"))?;
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |us| format!("{us:.3}"));
    for result in results {
        let BothEnds { client, server } = &result.cpu_per_message;
        for (name, spent) in [("this", client), ("other", server)] {
            let (all, useful) = (shown(spent.all_us), shown(spent.useful_us));
            line(format_args!("{:>9} {name:<6} {all:>12} {useful:>14}", result.bytes))?;
        }
    }
    Ok(())
}

/// Prints counted packets beside predicted packets.
pub(crate) fn packets(parameters: &Parameters, results: &[PointResult]) -> io::Result<()> {
    if results.iter().all(|result| result.counters.client.is_empty() && result.counters.server.is_empty()) {
        note!("packets of these RNICs are counted by the kernel: `doorbell counters` shows them");
        return Ok(());
    }
    line("")?;
    line("Packets sent, first transmissions; predicted by the arithmetic of packets (`doorbell wire cost`)")?;
    let is_answered = matches!(parameters.operation, Operation::Read | Operation::CompareSwap | Operation::FetchAdd);
    let mut both = ends(results, |result| &result.predicted).map(|(_, _, predicted)| predicted);
    if !is_answered {
        acknowledged_packets(results)?;
    }
    if is_answered || both.any(|predicted| predicted.is_asked || predicted.response_packets > 0) {
        answered_packets(results)?;
    }
    if ends(results, |result| &result.predicted).any(|(_, _, predicted)| predicted.asks) {
        line("N..: at least N. One end asks the other by READ for its progress, any number of times.")?;
    }
    rates(results)?;
    explained(results)?;
    lost(results).iter().chain(&carried(results)).try_for_each(line)?;
    let rnr: u64 = results.iter().map(|r| r.counted.client.rnr_naks + r.counted.server.rnr_naks).sum();
    if !parameters.credits && rnr > 0 {
        line(format_args!(
            "{rnr} RNR NAKs: without credits the sender does not know how many receives are posted. Each RNR NAK \
             stops the connection for a while. With --rnr-retry below 7, too many of them break the connection."
        ))?;
    }
    let stalled: u64 = results.iter().map(|result| result.stalled_on_credits).sum();
    if stalled > 0 {
        line(format_args!("{stalled} times a sender found no credit: the receiver is slower, and nothing was lost."))?;
    }
    Ok(())
}

/// Prints the packets of requests that are acknowledged: SENDs and WRITEs.
fn acknowledged_packets(results: &[PointResult]) -> io::Result<()> {
    line(format_args!(
        "{:>9} {:<6} {:>12} {:>17} {:>15} {:>23} {:>10} {:>21} {:>8} {:>7} {:>8}",
        "bytes",
        "side",
        "data",
        "predicted",
        "data bytes",
        "predicted",
        "ACKs",
        "predicted",
        "credits",
        "repeat",
        "RNR NAKs"
    ))?;
    let both = ends(results, |result| &result.counted).zip(ends(results, |result| &result.predicted));
    for ((bytes, name, counted), (_, _, predicted)) in both {
        line(format_args!(
            "{:>9} {:<6} {:>12} {:>17} {:>15} {:>23} {:>10} {:>21} {:>8} {:>7} {:>8}",
            bytes,
            name,
            counted.data_packets,
            range(predicted.data_packets, predicted.data_packets_max, predicted.asks),
            counted.data_bytes,
            range(predicted.data_bytes, predicted.data_bytes_max, predicted.asks),
            counted.ack_packets,
            format!("{}..{}", predicted.ack_packets_min, predicted.ack_packets_max),
            counted.control_packets,
            counted.retransmitted_packets,
            counted.rnr_naks,
        ))?;
    }
    Ok(())
}

/// Prints the packets of requests that are answered: READs and atomics.
fn answered_packets(results: &[PointResult]) -> io::Result<()> {
    line(format_args!(
        "{:>9} {:<6} {:>12} {:>21} {:>15} {:>12} {:>12} {:>15} {:>25} {:>7}",
        "bytes",
        "side",
        "requests",
        "predicted",
        "request bytes",
        "responses",
        "predicted",
        "response bytes",
        "predicted",
        "repeat",
    ))?;
    let both = ends(results, |result| &result.counted).zip(ends(results, |result| &result.predicted));
    for ((bytes, name, counted), (_, _, predicted)) in both {
        line(format_args!(
            "{:>9} {:<6} {:>12} {:>21} {:>15} {:>12} {:>12} {:>15} {:>25} {:>7}",
            bytes,
            name,
            counted.data_packets,
            range(predicted.data_packets, predicted.data_packets_max, predicted.asks),
            counted.data_bytes,
            counted.response_packets,
            range(predicted.response_packets, predicted.response_packets_max, predicted.is_asked),
            counted.response_bytes,
            range(predicted.response_bytes, predicted.response_bytes_max, predicted.is_asked),
            counted.retransmitted_packets,
        ))?;
    }
    Ok(())
}

/// Prints all packets per second at each end, as the counters of its NIC show them.
fn rates(results: &[PointResult]) -> io::Result<()> {
    line("")?;
    line("All packets per second, as the counters of each side show them")?;
    line(format_args!(
        "{:>9} {:<6} {:>14} {:>12} {:>14} {:>12}",
        "bytes", "side", "packets in/s", "MB in/s", "packets out/s", "MB out/s"
    ))?;
    for (bytes, name, rates) in ends(results, |result| &result.rates) {
        line(format_args!(
            "{:>9} {:<6} {:>14.0} {:>12.2} {:>14.0} {:>12.2}",
            bytes,
            name,
            rates.rx_packets,
            rates.rx_bytes / 1e6,
            rates.tx_packets,
            rates.tx_bytes / 1e6,
        ))?;
    }
    Ok(())
}

/// Prints what the rates of each end show about the application.
fn explained(results: &[PointResult]) -> io::Result<()> {
    line("")?;
    line("Conclusions of `doorbell wire explain` from these counters alone")?;
    for (bytes, name, conclusion) in ends(results, |result| &result.explained) {
        line(format_args!("{bytes:>9} {name:<6} {}", conclusion.verdict))?;
    }
    Ok(())
}

/// Returns the lines about packets lost below the RNICs, if there are any.
fn lost(results: &[PointResult]) -> Vec<String> {
    let mut lines = Vec::new();
    for (bytes, name, link) in ends(results, |result| &result.link) {
        for (what, count) in link.iter().filter(|&(what, &count)| count > 0 && !NO_LOSS.contains(&what.as_str())) {
            if lines.is_empty() {
                let heading = "Lost between RNIC and network, which the counters above do not show";
                lines.extend([String::new(), heading.to_owned()]);
            }
            lines.push(format!("{bytes:>9} {name:<6} {count} {}", meaning(what)));
        }
    }
    lines
}

/// Counters of the packets that were sent over UDP and of those that were sent through shared memory.
const SENT_COUNTERS: [&str; 2] = ["tx_udp_packets", "tx_shared_memory_packets"];

/// Counters of the link that show no loss of packets. A corrupted packet is lost too, but the RNIC counts it.
const NO_LOSS: [&str; 8] = [
    SENT_COUNTERS[0],
    SENT_COUNTERS[1],
    "rx_shared_memory_packets",
    "shared_memory_refused",
    "fault_duplicated",
    "fault_reordered",
    "fault_corrupted",
    "fault_delayed",
];

/// Returns lines about the path of the packets: a sentence if all packets used one link, else the numbers of each end.
fn carried(results: &[PointResult]) -> Vec<String> {
    let all = results.iter().fold(Carried::default(), |all, result| all.and(result.carried()));
    let sentence = match all.by() {
        None => return Vec::new(),
        Some(CarriedBy::Udp) => "All packets went over UDP",
        Some(CarriedBy::SharedMemory) => "All packets went through shared memory",
        Some(CarriedBy::Both) => "Packets sent over UDP, and through shared memory",
    };
    let mut lines = vec![String::new(), sentence.to_owned()];
    if all.by() == Some(CarriedBy::Both) {
        lines.push(format!("{:>9} {:<6} {:>14} {:>14}", "bytes", "side", "UDP", "shared memory"));
        let count = |link: &BTreeMap<String, u64>, name: &str| link.get(name).copied().unwrap_or(0);
        for (bytes, name, link) in ends(results, |result| &result.link) {
            let (udp, memory) = (count(link, SENT_COUNTERS[0]), count(link, SENT_COUNTERS[1]));
            lines.push(format!("{bytes:>9} {name:<6} {udp:>14} {memory:>14}"));
        }
    }
    lines
}

/// Returns the meaning of a link counter as text.
fn meaning(counter: &str) -> &str {
    match counter {
        "rx_overflow" => "datagrams or runs of them dropped, since the receive buffer was full (rx_overflow)",
        "rx_truncated" => "datagrams dropped, longer than any packet (rx_truncated)",
        "tx_oversize" => "packets not sent, beyond the MTU of interface or path (tx_oversize)",
        "tx_unreachable" => "packets not sent, with no way to their destination (tx_unreachable)",
        "tx_refused" => "packets refused by the peer's host (tx_refused)",
        "tx_ring_full" => "packets dropped, since the memory shared with the peer was full (tx_ring_full)",
        "tx_port_down" => "packets not sent, since the port was down (tx_port_down)",
        "rx_port_down" => "packets dropped, since the port was down (rx_port_down)",
        "fault_dropped" => "packets dropped by fault injection (fault_dropped)",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use doorbell_record::link_by_name;
    use doorbell_verbs::LinkCounters;

    use super::*;

    #[test]
    fn threads_of_the_answering_side_have_connections() {
        let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, 64);
        let mut with = |connections, threads, server_threads| {
            parameters.connections = connections;
            (parameters.serving.threads, parameters.serving.server_threads) = (threads, server_threads);
            served(&parameters)
        };
        assert_eq!(with(1, 1, 0), "");
        assert_eq!(with(4, 4, 0), " on 4:4 threads");
        assert_eq!(with(4, 4, 1), " on 4:1 threads");
        assert_eq!(with(4, 2, 9), " on 2:4 threads");
    }

    #[test]
    fn first_line_shows_windows_of_large_messages() {
        let of = |sizes: &[usize]| {
            let given = Parameters {
                sizes: sizes.to_vec(),
                window: 64,
                depth: 128,
                depths_are_defaults: true,
                ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16)
            };
            let Fit { windows, depths } = Fit::of(&given);
            [windows, depths].map(Fit::text)
        };
        assert_eq!(of(&[16]), ["64", "128"]);
        assert_eq!(of(&[65536]), ["8", "16"]);
        assert_eq!(of(&[16, 65536, 1 << 20]), ["64 to 2", "128 to 4"]);
    }

    #[test]
    fn only_losses_of_a_link_are_printed() {
        let before = LinkCounters { rx_overflow: 5, tx_oversize: 7, ..LinkCounters::default() };
        let after = LinkCounters { rx_overflow: 8, ..before };
        let mut result = PointResult { bytes: 64, ..PointResult::default() };
        // `lost` skips an end without counters, so give each end one.
        for counters in [&mut result.counters.client, &mut result.counters.server] {
            counters.insert("rnr_nak_sent".to_owned(), 0);
        }
        result.link.client = link_by_name(&before, &before);
        result.link.server = link_by_name(&after, &before);
        let lines = lost(&[result]);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[2].starts_with("       64 other  3 datagrams") && lines[2].contains("(rx_overflow)"),
            "{lines:?}"
        );
        assert_eq!(lost(&[PointResult::default()]), [""; 0]);
    }

    #[test]
    fn one_link_is_named_and_two_are_counted_per_end() {
        let none = LinkCounters::default();
        let result = |client: LinkCounters, server: LinkCounters| {
            let mut result = PointResult { bytes: 64, ..PointResult::default() };
            for (counters, link, counted) in [
                (&mut result.counters.client, &mut result.link.client, client),
                (&mut result.counters.server, &mut result.link.server, server),
            ] {
                counters.insert("rnr_nak_sent".to_owned(), 0);
                *link = link_by_name(&counted, &none);
            }
            result
        };
        let memory = LinkCounters { tx_shared_memory_packets: 9, rx_shared_memory_packets: 9, ..none };
        let udp = LinkCounters { tx_udp_packets: 7, ..none };
        assert_eq!(carried(&[result(none, none)]), [""; 0], "no end counted");
        assert_eq!(carried(&[result(memory, memory)]), ["", "All packets went through shared memory"]);
        assert_eq!(carried(&[result(udp, udp)]), ["", "All packets went over UDP"]);
        let both = carried(&[result(memory, udp)]);
        assert_eq!(both.len(), 5, "{both:?}");
        assert_eq!(both[3].split_whitespace().collect::<Vec<_>>(), ["64", "this", "0", "9"]);
        assert_eq!(both[4].split_whitespace().collect::<Vec<_>>(), ["64", "other", "7", "0"]);
        assert_eq!(lost(&[result(memory, udp)]), [""; 0]);
    }

    #[test]
    fn every_counter_of_a_link_has_a_meaning() {
        for name in LinkCounters::NAMES.iter().filter(|name| !NO_LOSS.contains(name)) {
            assert!(meaning(name).ends_with(&format!("({name})")), "{name}");
        }
    }
}
