//! The page of Markdown with all predictions.

use std::fmt::Write;

use super::{BlindRow, Doubt, Estimate, Predicted, SEEDS, doubts};
use crate::reproduce::Lack;
use crate::testbed::Testbed;

/// How the page begins.
const HEAD: &str = "\
# Blind predictions

The simulator predicts the results of experiments that others have published. Nobody who worked on the simulator or on the
testbeds' files had seen these results when the page was made. The last column is empty; the published number will be entered
there later, and compared.

`doorbell sim predict --out docs/blind-predictions.md` makes this page from the testbeds' files. The test
`crates/sim/tests/predictions.rs` fails if the page lacks a row, if a file's values have changed since, or if the simulator
now says something else.

## Configuration as published

- T1 (`connectx5-100g`): each list has one work request, one receive and one completion, since the source does not batch
  here. 64 messages may be unacknowledged, with Direct-Read 32. Each message is signalled.
- Credits are off in every protocol that can do without. Then the N:1 rate is the highest that provokes no RNR NAK. The
  search for it ends once a rate that is too high is at most 3 % above one that is not.
- Of each protocol, the variants that post different operations for a message: of Direct-Read without a fence and with one
  that waits for the completion of the fenced WRITE, of Buffered-Write one of each way to notify.
- N:1 is N threads on one host, which share its NIC, and one thread on the other host, which receives from all of them.
  N:N is N threads on each host, one connection for each pair.
- Latency is half a round trip, the median.
- T2 (`counters-100g`): requests and responses of 1 byte, on one queue pair.
- T3 (`connectx5-100g-far`): 64 WRITEs of 8 bytes in flight for each queue pair, or 16 READs, which is the NIC's limit. One
  thread posts for each queue pair.
- The store on T3: 1,024 keys, values of 1 KiB, 64 clients on two hosts in a closed loop; half puts and Zipf 0.99 where they are
  not varied. Between two operations a client does nothing for 15 us, as fitted on the published share of CASes that succeed,
  and shortcuts are written 7.1 us after a put, as fitted on that of READs (docs/far-memory.md).
- CAS on one address of T3: each client on a host of its own, 16 CASes outstanding; straight over a queue pair for each client,
  or through a middlebox that has one, with and without turning CASes into WRITEs.

## Where the intervals come from

An interval says how far the number moves when uncertain values of the testbed's file move. The tables below name these
values. Each is set to its least and then to its greatest value, all others staying as they are, and the row is simulated
again. Fitted values move no further than the rows on which they were fitted stay within their tolerance. Assumed values move
over the range that specifications or measurements of similar hardware leave open. Two other seeds count as one more change.
The lower end of the interval is the prediction minus the root of the sum of the squares of all moves downward, as if
the changes were independent of each other; the upper end likewise.

The intervals say nothing about mechanisms that the simulator does not have.
";

/// The page of Markdown with all predictions.
pub fn page(all: &[(&Testbed, Vec<Predicted>)]) -> String {
    let mut text = HEAD.to_owned();
    for (testbed, predicted) in all {
        // To write to a string does not fail.
        let _ = section(&mut text, testbed, predicted);
    }
    text
}

fn section(text: &mut String, testbed: &Testbed, predicted: &[Predicted]) -> std::fmt::Result {
    writeln!(text, "\n## {}: {}\n", testbed.name, testbed.about)?;
    writeln!(text, "{}\n", revision(testbed))?;
    writeln!(text, "| value | in the file | least | greatest | why |\n|---|---|---|---|---|")?;
    for Doubt { path, least, greatest, why } in doubts(&testbed.name) {
        let of_file = testbed.parameters().find(|parameter| parameter.path == *path);
        let value = of_file.map_or_else(String::new, |it| format!("{} {}", it.value, it.unit));
        writeln!(text, "| `{path}` | {} | {least} | {greatest} | {why} |", value.trim_end())?;
    }
    writeln!(text, "| seed | 1 | {} | {} | any |", SEEDS[0], SEEDS[1])?;
    let mut experiment = "";
    for one in predicted {
        let row = &one.row;
        if std::mem::replace(&mut experiment, row.experiment) != row.experiment {
            writeln!(text, "\n{}", heading(row))?;
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

/// With which values the page was made.
pub fn revision(testbed: &Testbed) -> String {
    format!("Made with `testbeds/{}.toml`, whose values have the digest `{}`.", testbed.name, testbed.digest())
}

/// The heading of the table that has this row.
pub fn heading(row: &BlindRow) -> String {
    format!("### {}: {}", row.testbed, row.experiment)
}

/// A row's cells on the page, without what was predicted: by these it is found again.
pub fn cells(row: &BlindRow) -> String {
    format!("| {} | {} | {} | {} |", row.subject, row.bytes, row.at.1, row.unit.name())
}

fn named(row: &BlindRow) -> String {
    format!("{}, {}, {} B, {} {}, {}", row.experiment, row.subject, row.bytes, row.at.1, row.at.0, row.unit.name())
}

/// The first line of a reason. The others are the state of each thread.
fn sentence(lack: &Lack) -> String {
    let text = lack.to_string();
    format!("{}.", text.lines().next().unwrap_or_default().trim_end_matches('.'))
}

/// A number with three digits.
pub fn digits(value: f64) -> String {
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        0.9995.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
