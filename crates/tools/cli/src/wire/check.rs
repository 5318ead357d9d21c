//! `doorbell wire check`: judgement of the RoCE v2 packets of captures.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_analyze::check::{Event, EventKind, Finding, Limits, QueuePair, Report, check};
use doorbell_analyze::decode::capture::CaptureReader;
use doorbell_output::files::check_replaceable;
use doorbell_report::{JudgedCapture, Timeline, TimelinePoint, judged_captures_html, write_whole};
use doorbell_wire::ack_timeout_ns;
use serde_json::json;

use super::decode::{Reading, open};
use crate::failure::{Failure, Usage};
use crate::output::line;
use crate::quantity;

/// Read the same files as `doorbell wire decode`. A rule whose evidence is missing reports nothing: packets of one
/// direction, packets cut by the snap length, and captures that lack packets are only counted. End with status 1 if a
/// finding is an error, if a file cannot be read, or if no rule could judge a packet of a file.
#[derive(Args)]
pub(crate) struct Check {
    /// Capture files; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Exponent of the acknowledgement timeout of the queue pairs, 1 to 31; judges the time before retransmissions
    #[arg(long, value_name = "EXPONENT", value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: Option<u8>,
    /// Retry count of the queue pairs, 0 to 7; judges the number of retransmissions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    retry_count: Option<u8>,
    /// Minimum time between two CNPs to one queue pair, as in 4us
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    cnp_interval: Option<f64>,
    /// The capture has every packet of its queue pairs once, in the network's order; judges acknowledged PSNs that were
    /// never captured, and repeated NAKs and responses
    #[arg(long)]
    complete: bool,
    #[command(flatten)]
    reading: Reading,
    /// Maximum number of findings, and of queue pairs with a timeline, to print (--json has up to 10,000 findings)
    #[arg(long, value_name = "N", default_value = "10", value_parser = quantity::count::<usize>)]
    top: usize,
    /// Also write a page with the findings and a picture of each timeline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object per file
    #[arg(long)]
    json: bool,
}

/// Maximum number of lines of a timeline.
const TIMELINE_LINES: usize = 20;

pub(crate) fn run(arguments: &Check) -> Result<ExitCode, Failure> {
    let options = arguments.reading.options()?;
    let limits = Limits {
        timeout_ns: arguments.timeout.and_then(ack_timeout_ns),
        retry_count: arguments.retry_count.map(u32::from),
        cnp_interval_ns: arguments.cnp_interval.map(|seconds| (seconds * 1e9) as u64),
        complete: arguments.complete,
    };
    if let Some(out) = &arguments.html {
        check_is_no_capture(out)?;
        check_replaceable(out).map_err(|error| format!("--html: {}: {error}", out.display()))?;
    }
    let mut status = ExitCode::SUCCESS;
    let (mut failures, mut stopped, mut pages, mut empty) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.files {
        let report = match open(path, |input| check(input, &options, &limits)) {
            Ok(report) => report,
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        if arguments.json {
            let mut object = serde_json::to_value(&report)?;
            object["file"] = json!(path.display().to_string());
            line(object)?;
        } else {
            print(path, &report, arguments.top)?;
        }
        if arguments.html.is_some() {
            pages.push(page(path, &report));
        }
        if report.has_errors() {
            status = ExitCode::FAILURE;
        }
        if !report.has_judged() && report.stopped.is_none() {
            empty.push(format!("{} has {}", path.display(), unjudged(&report)));
        }
        stopped.extend(report.stopped.map(|why| format!("{} {why}", path.display())));
    }
    if let Some(out) = arguments.html.as_ref().filter(|_| !pages.is_empty()) {
        write_whole(out, &judged_captures_html(&pages))?;
    }
    if !stopped.is_empty() {
        failures.push(format!("{}; only the packets before are judged", stopped.join("; ")));
    }
    if !empty.is_empty() {
        failures.push(format!("{}: no rule was judged", empty.join("; ")));
    }
    if failures.is_empty() { Ok(status) } else { Err(failures.join("; ").into()) }
}

/// Rejects a page that would replace a capture, as after a forgotten name of the page.
fn check_is_no_capture(out: &Path) -> Result<(), Usage> {
    if File::open(out).is_ok_and(|file| CaptureReader::new(file).is_ok()) {
        return Err(Usage(format!("--html: {} is a capture, allowed is another file", out.display())));
    }
    Ok(())
}

/// Returns the reason why no rule judged a packet of a capture, and the option that helps.
fn unjudged(report: &Report) -> String {
    let Report { packets, frames, unfollowed_packets, .. } = report;
    if *packets == 0 {
        return format!("no RoCE v2 packet among {frames} frames (--udp-port states another port)");
    }
    if unfollowed_packets == packets {
        return format!("{packets} RoCE v2 packets, all of transports that are not followed, or cut within the BTH");
    }
    format!("{packets} RoCE v2 packets, but none with a right ICRC (--ignore-icrc judges the others)")
}

/// Returns the time of the first packet of the timelines.
fn start_ns(report: &Report) -> Option<u64> {
    report.queue_pairs.iter().flat_map(|it| &it.events).filter_map(|event| event.at_ns).min()
}

/// Returns the contents of the page about one capture.
fn page(path: &Path, report: &Report) -> JudgedCapture {
    let start_ns = start_ns(report).unwrap_or(0);
    let timeline = |(at, queue_pair): (usize, &QueuePair)| {
        let own = report.findings.iter().filter(|finding| finding.queue_pair == Some(at));
        let mut violations: BTreeMap<u64, Option<u64>> = own.map(|finding| (finding.packet, finding.at_ns)).collect();
        let seconds = |at_ns: Option<u64>| at_ns.unwrap_or(start_ns).saturating_sub(start_ns) as f64 / 1e9;
        let point = |event: &Event| TimelinePoint {
            packet: event.packet,
            at_s: seconds(event.at_ns),
            psn: (event.kind != EventKind::Cnp).then_some(event.psn),
            kind: event.kind.name(),
            is_finding: violations.remove(&event.packet).is_some(),
        };
        let mut points: Vec<_> = queue_pair.events.iter().map(point).collect();
        // The events are a sample, which may lack the packets of findings.
        points.extend(violations.into_iter().map(|(packet, at_ns)| TimelinePoint {
            packet,
            at_s: seconds(at_ns),
            psn: None,
            kind: "finding",
            is_finding: true,
        }));
        Timeline { title: direction(queue_pair), remark: remarks(queue_pair), points }
    };
    let cells = |finding: &Finding| {
        let rule = format!("{} (IBTA {})", finding.rule, finding.section);
        let (expected, found) = (finding.expected.clone(), finding.found.clone());
        [finding.packet.to_string(), finding.severity.to_string(), rule, expected, found]
    };
    JudgedCapture {
        file: path.display().to_string(),
        remarks: vec![format!("{} frames, {} RoCE v2 packets", report.frames, report.packets)],
        findings: report.findings.iter().map(cells).collect(),
        timelines: report.queue_pairs.iter().enumerate().map(timeline).collect(),
    }
}

fn print(path: &Path, report: &Report, top: usize) -> io::Result<()> {
    line(format_args!(
        "{}: {} frames in {}, {} RoCE v2 packets, {} not followed",
        path.display(),
        report.frames,
        report.format,
        report.packets,
        report.unfollowed_packets
    ))?;
    line(match (report.errors, report.warnings) {
        (0, 0) if !report.has_judged() => "no packet to judge".to_owned(),
        (0, 0) => "no finding".to_owned(),
        (errors, warnings) => format!("findings: errors {errors}, warnings {warnings}"),
    })?;
    let start_ns = start_ns(report);
    for finding in report.findings.iter().take(top) {
        print_finding(report, finding, start_ns)?;
    }
    let hidden = report.findings.len().saturating_sub(top) as u64 + report.more_findings;
    if hidden > 0 {
        line(format_args!("{hidden} more findings (--top shows more of them)"))?;
    }
    line(format_args!("\n{:<16} {:>8} {:>12} {:>12}", "rule", "findings", "judged", "not judged"))?;
    for count in &report.rules {
        let name = count.rule.name;
        line(format_args!("{name:<16} {:>8} {:>12} {:>12}", count.findings, count.judged, count.unjudged))?;
    }
    for (at, queue_pair) in report.queue_pairs.iter().enumerate().take(top) {
        print_timeline(report, at, queue_pair, start_ns)?;
    }
    let hidden = report.queue_pairs.len().saturating_sub(top);
    if hidden > 0 {
        line(format_args!("\n{hidden} more queue pairs (--top shows more of them)"))?;
    }
    Ok(())
}

fn direction(queue_pair: &QueuePair) -> String {
    let from = queue_pair.from_qpn.map_or("unknown".to_owned(), |qpn| format!("0x{qpn:06x}"));
    format!("{} QP {from} to {} QP 0x{:06x}", queue_pair.from, queue_pair.to, queue_pair.to_qpn)
}

fn remarks(queue_pair: &QueuePair) -> String {
    let mut remarks = vec![format!("{} packets, {} repeated requests", queue_pair.packets, queue_pair.repeated)];
    if queue_pair.opposite.is_none() {
        remarks.push("no packets of the opposite direction".to_owned());
    }
    if !queue_pair.complete {
        remarks.push("requests are missing".to_owned());
    }
    remarks.join(", ")
}

fn after(start_ns: Option<u64>, at_ns: Option<u64>) -> String {
    match (start_ns, at_ns) {
        (Some(start_ns), Some(at_ns)) => format!("{:>12.6} s", at_ns.saturating_sub(start_ns) as f64 / 1e9),
        _ => format!("{:>14}", "no time"),
    }
}

fn print_finding(report: &Report, finding: &Finding, start_ns: Option<u64>) -> io::Result<()> {
    let related = finding.related_packet.map_or(String::new(), |packet| format!(", after packet {packet}"));
    let queue_pair = finding.queue_pair.and_then(|at| report.queue_pairs.get(at));
    let queue_pair = queue_pair.map_or(String::new(), |it| format!(", {}", direction(it)));
    line(format_args!(
        "packet {}{related}, {}: {} {} (IBTA {}){queue_pair}: expected {}, found {}",
        finding.packet,
        after(start_ns, finding.at_ns).trim_start(),
        finding.severity,
        finding.rule,
        finding.section,
        finding.expected,
        finding.found
    ))
}

/// Prints the ends of a stream, its rare events and its findings.
fn print_timeline(report: &Report, at: usize, queue_pair: &QueuePair, start_ns: Option<u64>) -> io::Result<()> {
    line(format_args!("\n{}: {}", direction(queue_pair), remarks(queue_pair)))?;
    let last = queue_pair.events.len().saturating_sub(1);
    let shown = queue_pair
        .events
        .iter()
        .enumerate()
        .filter(|(index, event)| *index == 0 || *index == last || event.kind.is_rare());
    let text = |event: &Event| format!("{} PSN 0x{:06x}", event.kind.name(), event.psn);
    let mut lines: Vec<_> = shown.map(|(_, event)| (event.packet, event.at_ns, text(event))).collect();
    let own = report.findings.iter().filter(|finding| finding.queue_pair == Some(at));
    lines.extend(own.map(|finding| (finding.packet, finding.at_ns, format!("{} {}", finding.severity, finding.rule))));
    lines.sort_by_key(|(packet, ..)| *packet);
    for (packet, at_ns, text) in lines.iter().take(TIMELINE_LINES) {
        line(format_args!("  {} {packet:>9} {text}", after(start_ns, *at_ns)))?;
    }
    let hidden = lines.len().saturating_sub(TIMELINE_LINES);
    if hidden > 0 { line(format_args!("  {hidden} more events (--json has them)")) } else { Ok(()) }
}
