//! Markdown page with all predictions.

use std::fmt::Write;

use super::{BlindRow, Doubt, Estimate, Predicted, SEEDS, doubts};
use crate::reproduce::Lack;
use crate::testbed::Testbed;

/// Path of the page in the repository.
pub const PATH: &str = "docs/blind-predictions-2.md";

/// Introduction of the page.
const HEAD: &str = "\
# Blind predictions, second set

These rows were chosen after the published numbers of the [first set](blind-predictions.md) were known. When this page
was made, the authors of the simulator and of the testbeds' files had not seen the published numbers of these rows.
The last column is empty. Later, the published number is entered there and compared.

`doorbell sim predict --out docs/blind-predictions-2.md` makes this page from the testbeds' files. The test
`crates/evaluation/sim/tests/suite/predictions.rs` fails if the page lacks a row, if values of a file have changed
since, or if the simulator now gives another number.

## Configuration as published

All rows of T1 have lists of one work request, one receive and one completion. At most 64 messages are unacknowledged,
and each message is signalled.

- **Direct-Write (`direct-write-each`)**: the receiver grants each buffer with a WRITE of its own, as soon as the
  program frees the buffer. At most 64 grants are unacknowledged.
- **Shared-Write (`shared-write-each`)**: the sender reserves space for each message by a FETCH_ADD of its own, with
  up to 16 in flight, the NIC's limit. All senders add to the same word.
- **Buffered-Write (`buffered-write-tail-send`)**: the sender WRITEs the tail after each message. The receiver reports
  free space by SEND after each eighth of the ring, as published.
- **Buffered-Read**: the receiver READs the tail, then all messages up to the tail with one READ, then WRITEs the
  head.
- **N:1**: N threads on one host share its NIC. One thread on the other host polls each connection in turn: the memory
  of the oldest granted buffer in Direct-Write, the connection's own completion queue in Shared-Write. Both protocols
  have flow control, so no rate is searched.
- **1:1**: one thread at each end.
- **Smallest message that fills the line**: the first of 16 B, 32 B, ..., 64 KiB whose rate is at least 95 % of the
  rate of the line. The line is taken to carry the packets of messages only. Buffered-Read's messages count as one
  READ each.
- **Latency**: the median of half a round trip, one message at a time.
- **Operations of 8 B over 20 queue pairs (T3)**: the number outstanding is the sum over all queue pairs. Each queue
  pair has a thread, and its own word for CAS. WRITEs are inline. If 20 does not divide the number, some
  queue pairs have one operation more than the others.
- **CAS on one address in the NIC's memory (T3)**: each client is on a separate host and has 16 CASes outstanding,
  with a queue pair of its own. The CASes of the address take their turns, each for the time of an access to the NIC's
  memory.
- **Store (T3)**: 1,024 keys, clients in a closed loop with a pause of 0.2 us for each client, which is
  fitted on the published shares of CASes that succeed. The Zipf exponent is 0.99 and half of the operations are puts, unless varied. With 64 clients, there are
  two hosts and values of 1 KiB. With 392 clients, there are seven hosts and values of 128 B. The 280 clients over
  skew run on seven hosts with values of 1 KiB. `steered` has a middlebox in the switch, which takes a packet each
  nanosecond. A port of 100 Gb/s delivers at most one packet in 6.7 ns, so the middlebox runs at line rate.

## Source of the intervals

An interval states how far the number moves when uncertain values of the testbed's file move. The tables below name
these values. Each is set to its minimum and then to its maximum, while all others stay as they are. Fitted values move
as far as their rows stay within tolerance. Assumed values move over the range that specifications or measurements of
similar hardware leave open. Two other seeds count as one more change.

The first set showed that these moves do not cover mechanisms that the simulator lacks. So there is one more: the
simulator's error on published rows of the same kind. This error is the root mean square of the relative deviations of
all such rows to which no value of the testbed was fitted. It counts downward and upward.

All moves are treated as independent of each other. An end of the interval is the prediction minus or plus the root of
the sum of the squares of the moves to its side.
";

/// Renders the Markdown page with all predictions.
pub fn page(all: &[(&Testbed, Vec<Predicted>)]) -> String {
    let mut text = HEAD.to_owned();
    for (testbed, predicted) in all {
        // Writing to a string does not fail.
        let _ = section(&mut text, testbed, predicted);
    }
    text
}

fn section(text: &mut String, testbed: &Testbed, predicted: &[Predicted]) -> std::fmt::Result {
    writeln!(text, "\n## {}: {}\n", testbed.name, testbed.about)?;
    writeln!(text, "{}\n", revision(testbed))?;
    writeln!(text, "| value | in the file | least | greatest | why |\n|---|---|---|---|---|")?;
    for Doubt { path, least, greatest, why } in doubts(&testbed.name) {
        writeln!(text, "| `{path}` | {} | {least} | {greatest} | {why} |", of_file(testbed, path))?;
    }
    writeln!(text, "| seed | 1 | {} | {} | any |", SEEDS[0], SEEDS[1])?;
    errors(text, predicted)?;
    let mut experiment = "";
    for one in predicted {
        let row = &one.row;
        if std::mem::replace(&mut experiment, row.experiment) != row.experiment {
            writeln!(text, "\n{}", heading(row))?;
            changes(text, testbed, row)?;
            writeln!(
                text,
                "\n| protocol or operation | bytes | {} | unit | predicted | interval | published |",
                row.at.0
            )?;
            writeln!(text, "|---|---|---|---|---|---|---|")?;
        }
        match &one.outcome {
            Ok(Estimate { value, interval: (least, greatest) }) => {
                let (value, least, greatest) = (digits(*value), digits(*least), digits(*greatest));
                writeln!(text, "{} {value} | {least} to {greatest} | |", cells(row))?;
            }
            Err(_) => writeln!(text, "{} none | | |", cells(row))?,
        }
    }
    let without: Vec<String> = predicted
        .iter()
        .flat_map(|one| {
            let of_row = one.outcome.as_ref().err().map(|lack| format!("- {}: {}", named(&one.row), sentence(lack)));
            let changes = one.lacks.iter().map(|(change, lack)| {
                format!(
                    "- {}, with {change}: {} The interval does without this change.",
                    named(&one.row),
                    sentence(lack)
                )
            });
            of_row.into_iter().chain(changes).collect::<Vec<_>>()
        })
        .collect();
    if !without.is_empty() {
        writeln!(text, "\n### {}: without a prediction\n\n{}", testbed.name, without.join("\n"))?;
    }
    Ok(())
}

/// Writes the table of errors on similar published rows.
fn errors(text: &mut String, predicted: &[Predicted]) -> std::fmt::Result {
    let mut known: Vec<(&str, f64)> = Vec::new();
    for one in predicted {
        let name = one.row.similar.name();
        if let Some(error) = one.error
            && known.iter().all(|(other, _)| *other != name)
        {
            known.push((name, error));
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n| similar published rows | error of the simulator |\n|---|---|")?;
    known.iter().try_for_each(|(name, error)| writeln!(text, "| {name} | {:.0} % |", error * 100.0))
}

/// Writes the values of the testbed that differ in the rows of a table.
fn changes(text: &mut String, testbed: &Testbed, row: &BlindRow) -> std::fmt::Result {
    if row.changes.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n| value | in the file | here | least | greatest | why |\n|---|---|---|---|---|---|")?;
    row.changes.iter().try_for_each(|(path, here)| {
        let doubt = row.doubts.iter().find(|doubt| doubt.path == *path);
        let (least, greatest, why) = doubt.map_or(("", "", ""), |it| (it.least, it.greatest, it.why));
        let value = of_file(testbed, path);
        writeln!(text, "| `{path}` | {value} | {here} | {least} | {greatest} | {why} |")
    })
}

/// Returns the value of the testbed's file at this path, with its unit.
fn of_file(testbed: &Testbed, path: &str) -> String {
    let parameter = testbed.parameters().find(|parameter| parameter.path == path);
    parameter.map_or_else(String::new, |it| format!("{} {}", it.value, it.unit).trim_end().to_owned())
}

/// Returns the sentence that names the testbed's file and the digest of its values.
pub fn revision(testbed: &Testbed) -> String {
    format!("Made with `data/testbeds/{}.toml`, whose values have the digest `{}`.", testbed.name, testbed.digest())
}

/// Returns the heading of the table that has this row.
pub fn heading(row: &BlindRow) -> String {
    format!("### {}: {}", row.testbed, row.experiment)
}

/// Returns the cells of a row without the prediction. They identify the row on the page.
pub fn cells(row: &BlindRow) -> String {
    format!("| {} | {} | {} | {} |", row.subject, row.bytes, row.at.1, row.unit.name())
}

fn named(row: &BlindRow) -> String {
    format!("{}, {}, {} B, {} {}, {}", row.experiment, row.subject, row.bytes, row.at.1, row.at.0, row.unit.name())
}

/// Returns the first line of a reason as a sentence. Further lines of a reason, such as states of threads, are omitted.
fn sentence(lack: &Lack) -> String {
    let text = lack.to_string();
    format!("{}.", text.lines().next().unwrap_or_default().trim_end_matches('.'))
}

/// Formats a number with three digits.
pub fn digits(value: f64) -> String {
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        0.9995.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
