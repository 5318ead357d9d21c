//! Output of perftest.

use doorbell_wire::{MessageKind, PathMtu, Transport};
use serde_json::Value;

use super::{MIB, figure, found, is_cut, option, value_of};
use crate::claim::{Claim, Figure, LinkType, Output, Tool};
use crate::numbers::whole;

/// Column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Bytes,
    Iterations,
    Peak,
    Average,
    MessageRate,
    TypicalLatency,
    AverageLatency,
    Other,
}

const MULTICAST: &str = "multicast";
const RAW_ETHERNET: &str = "raw Ethernet";

/// End of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Local,
    Remote,
}

/// Beginnings of the labels of columns.
const LABELS: [(&str, Column); 15] = [
    ("#bytes", Column::Bytes),
    ("#iterations", Column::Iterations),
    ("BW peak[", Column::Peak),
    ("BW average[", Column::Average),
    ("BW min[", Column::Other),
    ("MsgRate[", Column::MessageRate),
    ("t_min[", Column::Other),
    ("t_max[", Column::Other),
    ("t_typical[", Column::TypicalLatency),
    ("t_avg[", Column::AverageLatency),
    ("t_stdev[", Column::Other),
    ("99% percentile[", Column::Other),
    ("99.9% percentile[", Column::Other),
    ("tps average", Column::Other),
    ("CPU_Util[", Column::Other),
];

/// Heading of a table.
struct Heading<'a> {
    /// Known columns in their order.
    columns: Vec<Column>,
    /// Unit of bandwidth.
    unit: Option<&'a str>,
    /// Number of unknown columns after the known ones.
    more: usize,
    /// Whether unknown columns stand between known ones, so that the places of numbers are unknown.
    has_gap: bool,
}

impl<'a> Heading<'a> {
    fn read(line: &'a str) -> Self {
        let found = LABELS.iter().filter_map(|(label, column)| Some((line.find(label)?, *label, *column)));
        let mut found: Vec<(usize, &str, Column)> = found.collect();
        found.sort_by_key(|(place, ..)| *place);
        let last = found.last().map_or(0, |(place, ..)| *place);
        // The unit of each column with a unit is in brackets.
        let is_known = |bracket: &usize| found.iter().any(|(place, label, _)| place + label.len() == bracket + 1);
        let unknown: Vec<usize> =
            line.match_indices('[').map(|(at, _)| at).filter(|bracket| !is_known(bracket)).collect();
        let more = unknown.iter().filter(|bracket| **bracket > last).count();
        let unit = line.split_once("BW average[").and_then(|(_, rest)| Some(rest.split_once(']')?.0));
        let columns = found.into_iter().map(|(.., column)| column).collect();
        Self { columns, unit, more, has_gap: unknown.len() > more }
    }
}

/// Returns the bytes per second of a unit. perftest's MB has 2^20 bytes, and its Gb 10^9 bits, as its help states.
fn unit_bytes_per_s(unit: &str) -> Option<f64> {
    match unit {
        "MB/sec" | "MiB/sec" => Some(MIB),
        "Gb/sec" => Some(1e9 / 8.0),
        _ => None,
    }
}

pub(super) fn table(text: &str, command: &[&str], output: &mut Output) {
    found(output, Tool::Perftest);
    setup_of_command(command, output);
    let mut heading = None;
    let mut side = None;
    let last = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#bytes") {
            heading = Some(Heading::read(line));
        } else if let Some(heading) = &heading
            && let Some(bytes) = line.split_whitespace().next().and_then(whole)
        {
            row(line, bytes, heading, index + 1 == last && is_cut(text), output);
        } else {
            side = side_of(line).or(side);
            setup(line, side, output);
        }
    }
}

fn row(line: &str, bytes: u64, heading: &Heading<'_>, is_cut: bool, output: &mut Output) {
    let Heading { columns, unit, more, has_gap } = heading;
    let mut tokens: Vec<&str> = line.split_whitespace().collect();
    if *has_gap {
        output.note("the rows are not used: their heading has columns that perftest does not print".to_owned());
        return;
    }
    let most = columns.len() + more;
    if tokens.len() > most {
        let why = "spaces may separate thousands";
        output.note(format!("the row of {bytes} B is not used: it has {} of {most} columns, so {why}", tokens.len()));
        return;
    }
    if is_cut {
        output.note("the output ends within a row, so the last number of the row is not used".to_owned());
        tokens.pop();
    } else if tokens.len() < columns.len() {
        output.note(format!("the row of {bytes} B is cut: it has {} of {} columns", tokens.len(), columns.len()));
    }
    let mut claim = Claim { bytes: Some(bytes), ..Claim::default() };
    for (token, column) in tokens.into_iter().zip(columns) {
        if matches!(column, Column::Bytes | Column::Other) {
            continue;
        }
        if *column == Column::Iterations {
            claim.iterations = whole(token).filter(|&iterations| iterations > 0);
            continue;
        }
        // perftest prints two decimals of a bandwidth.
        let has_thousands = token.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 3);
        if matches!(column, Column::Average | Column::Peak) && has_thousands {
            output.note(format!("{token} is not used: its point may separate thousands or decimals"));
            continue;
        }
        let Some(number) = figure(token, output) else { continue };
        let rate = || {
            let unit = (*unit)?;
            let unit_bytes_per_s = unit_bytes_per_s(unit)?;
            let (printed, resolution) = (number.value, number.resolution);
            Some(Figure { printed, unit: unit.to_owned(), unit_bytes_per_s, resolution })
        };
        match column {
            Column::Average => claim.average = rate(),
            // perftest prints 0 if it did not measure the peak.
            Column::Peak if number.value > 0.0 => claim.peak = rate(),
            Column::MessageRate => {
                claim.messages_per_s = Some(number.value * 1e6);
                claim.messages_error_per_s = number.resolution * 1e6;
            }
            Column::TypicalLatency => claim.latency_us = Some(number.value),
            Column::AverageLatency if claim.latency_us.is_none() => claim.latency_us = Some(number.value),
            _ => {}
        }
    }
    if claim.average.is_some() || claim.messages_per_s.is_some() || claim.latency_us.is_some() {
        output.claims.push(claim);
    }
}

fn setup_of_command(command: &[&str], output: &mut Output) {
    // In other programs than ib_send_bw and ib_send_lat, -g has another meaning.
    let is_send = command.iter().any(|word| word.contains("send_"));
    if is_send && command.iter().any(|word| matches!(*word, "-g" | "--mcg") || word.starts_with("--mcg=")) {
        output.setup.other_packets = Some(MULTICAST);
    }
    if command.iter().any(|word| word.contains("raw_ethernet_")) {
        output.setup.other_packets = Some(RAW_ETHERNET);
    }
    let duration = option(command, "-D", "--duration").and_then(|text| text.parse().ok());
    if let Some(duration_s) = duration.filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0) {
        output.setup.duration_s = Some(duration_s);
    }
}

/// Returns the end that a line with an address concerns.
fn side_of(line: &str) -> Option<Side> {
    let line = line.trim_start();
    if line.starts_with("local address") {
        return Some(Side::Local);
    }
    line.starts_with("remote address").then_some(Side::Remote)
}

fn setup(line: &str, side: Option<Side>, output: &mut Output) {
    if line.contains("CPU Frequency is not max") {
        output.setup.cpu_is_slow = true;
    }
    // A pasted text often has the command line too.
    if let Some((_, command)) = line.split_once("ib_") {
        setup_of_command(&command.split_whitespace().collect::<Vec<_>>(), output);
    }
    let setup = &mut output.setup;
    if line.contains(" Test") && !line.contains(':') {
        setup.operation = operation(line).or(setup.operation);
        setup.is_bidirectional |= line.contains("Bidirectional");
    }
    let number = |key: &str| value_of(line, key).and_then(|text| whole(text.split('[').next()?));
    setup.queue_pairs = number("Number of qps").or(setup.queue_pairs);
    setup.depth = number("TX depth").or(setup.depth);
    setup.inline = number("Max inline data").or(setup.inline);
    if let Some(mtu) = number("Mtu").and_then(|bytes| PathMtu::from_bytes(usize::try_from(bytes).ok()?)) {
        setup.path_mtu = Some(mtu);
    }
    match value_of(line, "Link type") {
        Some("Ethernet") => setup.link_type = Some(LinkType::Ethernet),
        Some("IB") => setup.link_type = Some(LinkType::InfiniBand),
        _ => {}
    }
    match value_of(line, "Connection type") {
        Some("RC") => setup.transport = Some(Transport::Rc),
        Some("UC") => setup.transport = Some(Transport::Uc),
        Some("UD") => setup.transport = Some(Transport::Ud),
        Some("RawEth") => setup.other_packets = Some(RAW_ETHERNET),
        _ => {}
    }
    if line.contains("MultiCast") || line.contains("Multicast") {
        setup.other_packets = Some(MULTICAST);
    }
    if let Some(device) = value_of(line, "Device").filter(|device| !device.is_empty()) {
        setup.device = Some(device.to_owned());
    }
    // Each queue pair has a line. All of one end have the same GID.
    let gids = match side {
        Some(Side::Local) => 0,
        Some(Side::Remote) => 1,
        None => setup.gids.len().min(1),
    };
    if let Some(gid) = line.trim_start().strip_prefix("GID:")
        && setup.gids.len() == gids
    {
        setup.gids.push(gid.trim().to_owned());
    }
}

fn operation(title: &str) -> Option<MessageKind> {
    let names = [
        ("RDMA_Write", MessageKind::Write),
        ("RDMA_Read", MessageKind::Read),
        ("Send", MessageKind::Send),
        ("CMP_AND_SWAP", MessageKind::CompareSwap),
        ("FETCH_AND_ADD", MessageKind::FetchAdd),
    ];
    names.into_iter().find(|(name, _)| title.contains(name)).map(|(_, kind)| kind)
}

pub(super) fn json(value: &Value, output: &mut Output) {
    let Some(results) = value.get("results") else { return };
    found(output, Tool::PerftestJson);
    let info = value.get("test_info").unwrap_or(&Value::Null);
    let text = |key: &str| info.get(key).and_then(Value::as_str);
    let number = |key: &str| info.get(key).and_then(Value::as_u64);
    let title = text("test").or(text("Test")).unwrap_or_default();
    let setup = &mut output.setup;
    setup.operation = operation(title);
    setup.is_bidirectional = title.contains("Bidirectional");
    setup.device = text("Device").map(str::to_owned);
    setup.queue_pairs = number("Number_of_qps");
    setup.depth = number("TX_depth");
    setup.path_mtu = number("Mtu").and_then(|bytes| PathMtu::from_bytes(usize::try_from(bytes).ok()?));
    setup.link_type = match text("Link_type") {
        Some("Ethernet") => Some(LinkType::Ethernet),
        Some("IB") => Some(LinkType::InfiniBand),
        _ => None,
    };
    let rows = results.as_array().map_or(std::slice::from_ref(results), Vec::as_slice);
    for row in rows {
        result(row, output);
    }
}

fn result(row: &Value, output: &mut Output) {
    let number = |key: &str| row.get(key).and_then(Value::as_f64).filter(|number| *number > 0.0);
    let count = |key: &str| row.get(key).and_then(Value::as_u64);
    let bytes = count("MsgSize");
    let messages_per_s = number("MsgRate").map(|rate| rate * 1e6);
    let mut claim = Claim {
        bytes,
        iterations: count("n_iterations"),
        messages_per_s,
        messages_error_per_s: 0.5,
        latency_us: number("t_typical").or(number("t_avg")),
        ..Claim::default()
    };
    if let Some(printed) = number("BW_average") {
        // The JSON does not name its unit: the unit is the one that agrees with the message rate.
        let units = [("MB/sec", MIB), ("Gb/sec", 1e9 / 8.0)];
        let expected = bytes.zip(messages_per_s).map(|(bytes, rate)| bytes as f64 * rate);
        let fits = |unit: f64| expected.is_some_and(|expected| (printed * unit / expected - 1.0).abs() < 0.02);
        match units.into_iter().find(|(_, unit)| fits(*unit)) {
            Some((unit, unit_bytes_per_s)) => {
                let figure = |printed| Figure { printed, unit: unit.to_owned(), unit_bytes_per_s, resolution: 0.005 };
                claim.average = Some(figure(printed));
                claim.peak = number("BW_peak").map(figure);
            }
            None => output.note(format!(
                "BW_average {printed} is not used: neither MB/sec nor Gb/sec agrees with size and message rate"
            )),
        }
    }
    if claim.average.is_some() || claim.messages_per_s.is_some() || claim.latency_us.is_some() {
        output.claims.push(claim);
    }
}
