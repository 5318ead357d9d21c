//! Output of `ucx_perftest`.

use doorbell_wire::MessageKind;

use super::{MIB, figure, found, is_cut, option, value_of};
use crate::claim::{Claim, Figure, Output, Tool};
use crate::numbers::whole;

/// Numbers of a row: iterations, three of latency or overhead, two of bandwidth, and two of message rate. A cut row has
/// one less.
const NUMBERS: usize = 8;

pub(super) fn table(text: &str, command: &[&str], output: &mut Output) {
    found(output, Tool::UcxPerftest);
    let mut bytes = option(command, "-s", "--size").and_then(whole);
    let mut test = option(command, "-t", "--test").map(str::to_owned);
    let mut is_finished = false;
    let last = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        if line.contains("ucx_perftest") {
            // A pasted text often has the command line.
            let words: Vec<&str> = line.split_whitespace().collect();
            bytes = option(&words, "-s", "--size").and_then(whole).or(bytes);
            test = option(&words, "-t", "--test").map(str::to_owned).or(test);
        }
        let in_box = line.trim_matches(|letter: char| letter == '|' || letter.is_whitespace());
        bytes = value_of(in_box, "Message size").and_then(whole).or(bytes);
        if let Some(row) = line.trim_start().strip_prefix("Final:") {
            is_finished = true;
            let is_cut = index + 1 == last && is_cut(text);
            final_row(row, bytes, test.as_deref(), is_cut, output);
        }
    }
    if !is_finished {
        output.note("the output has no row `Final:`, so the run has not ended: its rows are not used".to_owned());
    }
    output.setup.operation = test.as_deref().and_then(operation);
    output.setup.is_bidirectional |= test.as_deref().is_some_and(|test| test.contains("bidir"));
}

fn operation(test: &str) -> Option<MessageKind> {
    match test {
        test if test.contains("put") => Some(MessageKind::Write),
        test if test.contains("get") => Some(MessageKind::Read),
        _ => None,
    }
}

fn final_row(row: &str, bytes: Option<u64>, test: Option<&str>, is_cut: bool, output: &mut Output) {
    let mut tokens: Vec<&str> = row.split_whitespace().collect();
    if is_cut {
        output.note("the output ends within a row, so the last number of the row is not used".to_owned());
        tokens.pop();
    }
    if !(NUMBERS - 1..=NUMBERS).contains(&tokens.len()) {
        let count = tokens.len();
        output.note(format!("the row `Final:` has {count} numbers, but {NUMBERS} are expected: it is not used"));
        return;
    }
    // The columns are iterations, percentile, average and overall latency, average and overall bandwidth, and average
    // and overall message rate. The overall values concern the whole run.
    let mut at = |index: usize| tokens.get(index).and_then(|token| figure(token, output));
    let (latency, bandwidth, rate) = (at(3), at(5), at(7));
    let iterations = tokens.first().and_then(|token| whole(token));
    let is_latency = test.is_some_and(|test| test.contains("lat"));
    let claim = Claim {
        name: test.map(str::to_owned),
        bytes,
        iterations,
        // UCX divides by 2^20, although it prints MB.
        average: bandwidth.map(|number| Figure {
            printed: number.value,
            unit: "MB/s".to_owned(),
            unit_bytes_per_s: MIB,
            resolution: number.resolution,
        }),
        peak: None,
        messages_per_s: rate.map(|number| number.value),
        messages_error_per_s: rate.map_or(0.0, |number| 2.0 * number.resolution),
        latency_us: latency.filter(|_| is_latency).map(|number| number.value),
    };
    if claim.average.is_some() || claim.messages_per_s.is_some() {
        output.claims.push(claim);
    }
}
