//! `doorbell wire decode`: RoCE v2 in a capture.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_analyze::decode::capture::CaptureError;
use doorbell_analyze::decode::{
    Conversation, Direction, MOST_CONVERSATIONS, Options, Summary, Times, Unanswered, decode,
};
use doorbell_analyze::explain::sentences::{byte_rate, rate};
use doorbell_verbs::Status;
use doorbell_wire::{NakCode, ROCE_UDP_PORT};

use crate::failure::{Failure, Usage};
use crate::output::{line, us};
use crate::quantity;

/// Read pcap and pcapng of Ethernet, raw IP, Linux cooked and loopback frames. If the file is damaged or ends within
/// a packet, print a summary of the readable part, and end with status 1.
#[derive(Args)]
pub(crate) struct Decode {
    /// Capture file; - is standard input
    file: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Maximum number of conversations to print, those with the most bytes first (--json has all)
    #[arg(long, value_name = "N", default_value = "10", value_parser = quantity::count::<usize>)]
    top: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options for reading a capture.
#[derive(Args)]
pub(super) struct Reading {
    /// The UDP port of RoCE v2
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT, value_parser = quantity::udp_port)]
    udp_port: u16,
    /// Maximum number of conversations to follow. Packets of further conversations are only counted
    #[arg(long, value_name = "N", default_value = "1024", value_parser = quantity::count::<usize>)]
    max_conversations: usize,
    /// Also follow packets with a wrong ICRC, which an RNIC drops
    #[arg(long)]
    ignore_icrc: bool,
}

impl Reading {
    /// Returns the options, or an error about --max-conversations.
    pub(super) fn options(&self) -> Result<Options, Usage> {
        let Self { udp_port, max_conversations, ignore_icrc } = *self;
        if !(1..=MOST_CONVERSATIONS).contains(&max_conversations) {
            return Err(Usage(format!(
                "--max-conversations is {max_conversations}, allowed is 1 to {MOST_CONVERSATIONS}"
            )));
        }
        Ok(Options { udp_port, max_conversations, drop_bad_icrc: !ignore_icrc })
    }
}

/// Maximum number of kinds of other frames in the text output. The output of --json has all kinds.
const OTHER_KINDS: usize = 6;

/// Opens a capture, or standard input for `-`, and reads it with `with`.
pub(super) fn open<T>(path: &Path, with: impl FnOnce(Box<dyn Read>) -> Result<T, CaptureError>) -> Result<T, Failure> {
    let (name, input): (String, Box<dyn Read>) = if path == Path::new("-") {
        ("standard input".to_owned(), Box::new(io::stdin().lock()))
    } else {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| format!("{name} cannot be opened: {error}"))?;
        (name, Box::new(file))
    };
    with(input).map_err(|error| format!("{name} {error}").into())
}

/// Reads a capture, or standard input for `-`.
pub(super) fn read(path: &Path, options: &Options) -> Result<Summary, Failure> {
    open(path, |input| decode(input, options))
}

pub(crate) fn run(arguments: &Decode) -> Result<ExitCode, Failure> {
    let summary = read(&arguments.file, &arguments.reading.options()?)?;
    if arguments.json {
        line(serde_json::to_string(&summary)?)?;
    } else {
        print(&summary, arguments.top)?;
    }
    match &summary.stopped {
        None => Ok(ExitCode::SUCCESS),
        Some(stopped) => {
            Err(format!("{} {stopped}; the summary is of what could be read", arguments.file.display()).into())
        }
    }
}

fn print(summary: &Summary, top: usize) -> io::Result<()> {
    let icrc = summary.icrc;
    let mut parts = vec![
        format!("{} frames in {}", summary.frames, summary.format),
        format!("{} RoCE v2 packets", summary.packets),
        format!("{} other frames", summary.other_frames),
        format!("{} malformed packets", summary.malformed_packets),
    ];
    if summary.second_copies > 0 {
        parts.push(format!("{} second copies of packets", summary.second_copies));
    }
    if summary.faults.dropped > 0 {
        parts.push(format!("{} packets dropped by injected faults", summary.faults.dropped));
    }
    line(parts.join(", "))?;
    if !summary.other_kinds.is_empty() {
        let shown = summary.other_kinds.iter().take(OTHER_KINDS);
        let mut kinds: Vec<_> = shown.map(|it| format!("{} {}", it.frames, it.kind)).collect();
        if summary.other_kinds.len() > OTHER_KINDS {
            kinds.push("...".to_owned());
        }
        line(format_args!("other frames: {}", kinds.join(", ")))?;
    }
    let per_s = match (summary.packets_per_s, summary.frame_bytes_per_s) {
        (Some(packets), Some(bytes)) => format!(": {} packets/s, {}", rate(packets), byte_rate(bytes)),
        _ => String::new(),
    };
    line(format_args!(
        "{} frame bytes, {} of payload, in {:.6} s{per_s}",
        summary.frame_bytes,
        summary.payload_bytes,
        summary.duration_ns as f64 / 1e9
    ))?;
    line(format_args!("ICRC: {} right, {} wrong, {} not checked", icrc.right, icrc.wrong, icrc.unchecked))?;
    line(format_args!(
        "{} retransmitted packets, {} NAKs, {} RNR NAKs; {} packets marked by switches (ECN), {} CNPs",
        summary.retransmitted_packets, summary.naks, summary.rnr_naks, summary.congestion_marked_packets, summary.cnps
    ))?;
    if let Some(times) = &summary.time_to_ack {
        line(format_args!("time to acknowledgement: {}", in_us(times)))?;
    }
    if !summary.opcodes.is_empty() {
        line(format_args!("\n{:<34} {:>14} {:>18}", "opcode", "packets", "frame bytes"))?;
    }
    for count in &summary.opcodes {
        line(format_args!("{:<34} {:>14} {:>18}", count.name, count.packets, count.frame_bytes))?;
    }
    for conversation in summary.conversations.iter().take(top) {
        print_conversation(conversation)?;
    }
    let hidden = summary.conversations.len().saturating_sub(top);
    if hidden > 0 {
        line(format_args!("\n{hidden} more conversations (--top shows more of them)"))?;
    }
    if !summary.notes.is_empty() {
        line("")?;
    }
    summary.notes.iter().try_for_each(line)
}

fn in_us(times: &Times) -> String {
    format!(
        "min {} median {} 99 % {} max {} us ({} requests)",
        us(times.min_ns as f64),
        us(times.median_ns as f64),
        us(times.p99_ns as f64),
        us(times.max_ns as f64),
        times.count
    )
}

fn print_conversation(conversation: &Conversation) -> io::Result<()> {
    let qpn = |qpn: Option<u32>| qpn.map_or("unknown".to_owned(), |qpn| format!("0x{qpn:06x}"));
    let end = |address, number| format!("{address} QP {}", qpn(number));
    let (a, b) = (end(conversation.a, conversation.a_qpn), end(conversation.b, conversation.b_qpn));
    line(format_args!("\n{a} and {b}"))?;
    let (from_a, from_b) = (&conversation.from_a, &conversation.from_b);
    for (from, direction, answers) in [(&a, from_a, from_b), (&b, from_b, from_a)] {
        if direction.packets > 0 {
            line(format_args!("  from {from}: {} packets, {} frame bytes", direction.packets, direction.frame_bytes))?;
            print_direction(direction)?;
            failures(direction, answers).into_iter().try_for_each(print_failure)?;
        }
    }
    Ok(())
}

/// Maximum number of causes of a failure in the output. `doorbell man --markdown` writes all.
const MOST_CAUSES: usize = 3;

/// Minimum number of transmissions of a request that counts as never acknowledged. A capture may end within a recovery.
const SILENT_TRANSMISSIONS: u64 = 3;
const NO_ANSWER: &str = "no request was ever acknowledged, or the capture lacks the answers";
const REFUSED: &str = "the peer refused a request";

/// Returns the statuses with which requests of one direction failed, as far as the answers show them, and what the
/// capture shows of each.
fn failures(requests: &Direction, answers: &Direction) -> Vec<(Status, String)> {
    let mut failures = Vec::new();
    let is_reliable = requests.operations.iter().any(|operation| operation.transport == "RC");
    let is_answered = answers.acks > 0
        || answers.cut_acks > 0
        || answers.rnr_naks > 0
        || answers.read_response_packets > 0
        || answers.atomic_responses > 0
        || !answers.naks.is_empty();
    // A capture that ends soon after its first request has no acknowledgement either, but no repetition.
    if is_reliable && !is_answered && requests.retransmitted_packets > 0 {
        failures.push((Status::RetryExceeded, NO_ANSWER.to_owned()));
    } else if is_reliable
        && let Some(request) = requests.unanswered.filter(|request| request.transmissions >= SILENT_TRANSMISSIONS)
    {
        failures.push(unanswered(&request));
    }
    failures.extend(answers.naks.iter().filter_map(|nak| match NakCode(nak.code) {
        NakCode::INVALID_REQUEST => Some((Status::RemoteInvalidRequest, REFUSED.to_owned())),
        NakCode::REMOTE_ACCESS_ERROR => Some((Status::RemoteAccess, REFUSED.to_owned())),
        NakCode::REMOTE_OPERATIONAL_ERROR => Some((Status::RemoteOperation, REFUSED.to_owned())),
        _ => None,
    }));
    failures
}

/// Returns the status with which a request ends that is repeated until the capture ends, and a sentence about it.
fn unanswered(request: &Unanswered) -> (Status, String) {
    let duration = request.duration_ns.map_or(String::new(), |ns| format!(" in {:.3} s", ns as f64 / 1e9));
    let (psn, times) = (request.psn, request.transmissions);
    // Requests before the peer had no receive buffer may have been lost too.
    if 2 * request.rnr_naks >= times {
        let seen = format!("request PSN 0x{psn:06x} met {} RNR NAKs{duration}, and no ACK", request.rnr_naks);
        return (Status::RnrRetryExceeded, seen);
    }
    (Status::RetryExceeded, format!("request never acknowledged: PSN 0x{psn:06x}, sent {times} times{duration}"))
}

fn print_failure((status, seen): (Status, String)) -> io::Result<()> {
    // The capture may end before the queue pair gives up, but a refused request has failed.
    let ends = if seen == REFUSED { "the request ends" } else { "after the last retry, the request ends" };
    line(format_args!("    {seen}: {ends} with status {} ({})", status.number(), status.text()))?;
    let causes = status.causes().iter().take(MOST_CAUSES);
    causes.map(|it| format!("      perhaps {}. Check: {}", it.cause, it.check)).try_for_each(line)
}

fn print_direction(direction: &Direction) -> io::Result<()> {
    for it in &direction.operations {
        let mut sizes: Vec<_> = it.sizes.iter().map(|size| format!("{} of {} B", size.messages, size.bytes)).collect();
        if it.other_sizes > 0 {
            sizes.push(format!("{} of other sizes up to {} B", it.other_sizes, it.max_bytes.unwrap_or(0)));
        }
        if it.unknown_sizes > 0 {
            sizes.push(format!("{} of unknown length, cut by the snap length", it.unknown_sizes));
        }
        let (transport, operation) = (&it.transport, &it.operation);
        line(format_args!("    {transport} {operation}: {} messages ({})", it.messages, sizes.join(", ")))?;
    }
    if direction.request_packets > 0 {
        line(format_args!(
            "    {} request packets, {} retransmitted, {} missing; {} incomplete messages",
            direction.request_packets,
            direction.retransmitted_packets,
            direction.missing_packets,
            direction.incomplete_messages
        ))?;
    }
    if let Some(ratio) = direction.acks_per_request_packet {
        line(format_args!("    {ratio:.3} acknowledgements came back per SEND or WRITE packet"))?;
    }
    if let Some(times) = &direction.time_to_ack {
        line(format_args!("    time to acknowledgement: {}", in_us(times)))?;
    }
    let answers = [
        (direction.acks, "ACKs"),
        (direction.cut_acks, "ACKs or NAKs, cut by the snap length"),
        (direction.read_response_packets, "READ response packets"),
        (direction.atomic_responses, "atomic responses"),
        (direction.rnr_naks, "RNR NAKs"),
        (direction.bad_icrc_packets, "packets with a wrong ICRC"),
    ];
    let mut answers: Vec<_> = answers.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    answers.extend(direction.naks.iter().map(|nak| format!("{} NAKs ({})", nak.naks, nak.name)));
    if answers.is_empty() { Ok(()) } else { line(format_args!("    {}", answers.join(", "))) }
}

#[cfg(test)]
mod tests {
    use doorbell_analyze::decode::{NakCount, OperationCount};

    use super::*;

    fn statuses(requests: &Direction, answers: &Direction) -> Vec<Status> {
        failures(requests, answers).into_iter().map(|(status, _)| status).collect()
    }

    fn requests(transport: &str, retransmitted_packets: u64) -> Direction {
        let operation = OperationCount {
            transport: transport.to_owned(),
            operation: "SEND".to_owned(),
            messages: 1,
            payload_bytes: 8,
            min_bytes: Some(8),
            max_bytes: Some(8),
            sizes: Vec::new(),
            other_sizes: 0,
            unknown_sizes: 0,
        };
        Direction { operations: vec![operation], retransmitted_packets, ..Direction::default() }
    }

    #[test]
    fn repeated_requests_without_any_answer_end_with_a_retry_error() {
        let silent = Direction::default();
        assert_eq!(statuses(&requests("RC", 3), &silent), [Status::RetryExceeded]);
        let answers = Direction { acks: 1, ..Direction::default() };
        for (requests, answers) in
            [(requests("RC", 0), &silent), (requests("UC", 3), &silent), (requests("RC", 3), &answers)]
        {
            assert!(failures(&requests, answers).is_empty(), "{requests:?}");
        }
    }

    #[test]
    fn refusals_have_the_status_of_their_code() {
        let nak = |code: NakCode| NakCount { code: code.0, name: code.to_string(), naks: 1 };
        let naks = vec![nak(NakCode::PSN_SEQUENCE_ERROR), nak(NakCode::REMOTE_ACCESS_ERROR)];
        let answers = Direction { naks, ..Direction::default() };
        assert_eq!(statuses(&requests("RC", 3), &answers), [Status::RemoteAccess]);
    }

    #[test]
    fn a_request_that_is_repeated_to_the_end_was_never_acknowledged() {
        let of = |transmissions, rnr_naks| {
            let unanswered = Unanswered { psn: 0x12, transmissions, rnr_naks, duration_ns: Some(1_750_000_000) };
            let requests = Direction { unanswered: Some(unanswered), ..requests("RC", 8) };
            failures(&requests, &Direction { acks: 9, ..Direction::default() })
        };
        let seen = "request never acknowledged: PSN 0x000012, sent 8 times in 1.750 s";
        assert_eq!(of(8, 0), [(Status::RetryExceeded, seen.to_owned())]);
        let seen = "request PSN 0x000012 met 7 RNR NAKs in 1.750 s, and no ACK";
        assert_eq!(of(8, 7), [(Status::RnrRetryExceeded, seen.to_owned())]);
        assert!(of(2, 0).is_empty(), "the capture may end within a recovery");
    }
}
