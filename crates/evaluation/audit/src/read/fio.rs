//! Output of fio.

use serde_json::Value;

use super::{figure, found};
use crate::claim::{Claim, Figure, Output, Tool};

/// Units of fio's bandwidth.
const UNITS: [(&str, f64); 10] = [
    ("B/s", 1.0),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
    ("TiB/s", 1_099_511_627_776.0),
    ("kB/s", 1e3),
    ("KB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
];
const PREFIXES: [(&str, f64); 4] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];

/// Splits a text into its leading number and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | ',')));
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    // The comma after a number separates it from the next one.
    match number.strip_suffix(',') {
        Some(number) => (number, ""),
        None => (number, rest),
    }
}

pub(super) fn text(text: &str, output: &mut Output) {
    found(output, Tool::Fio);
    let mut bytes = None;
    for line in text.lines() {
        if let Some((_, sizes)) = line.split_once("bs=") {
            bytes = block(sizes);
        }
        let direction = ["read", "write", "trim"]
            .into_iter()
            .find(|name| line.trim_start().strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(':')));
        if let Some(direction) = direction
            && let Some((_, rate)) = line.split_once("IOPS=")
        {
            row(direction, rate, bytes, output);
        }
    }
}

/// Returns the block size in bytes if the sizes of reads and writes, as in `(R) 4096B-4096B, (W) 4096B-4096B`, are one
/// size.
fn block(sizes: &str) -> Option<u64> {
    let mut found = None;
    let sizes = sizes.split("ioengine").next()?;
    let words = sizes.split(|letter: char| letter.is_whitespace() || matches!(letter, ',' | '-' | '/'));
    for word in words.filter(|word| word.starts_with(|first: char| first.is_ascii_digit())) {
        let (number, unit) = split(word);
        let factor = match unit {
            "B" | "" => 1.0,
            "K" | "KiB" => 1024.0,
            "M" | "MiB" => 1_048_576.0,
            _ => return None,
        };
        let size = (number.parse::<f64>().ok()? * factor) as u64;
        if found.is_some_and(|found| found != size) {
            return None;
        }
        found = Some(size);
    }
    found
}

fn row(direction: &str, rate: &str, bytes: Option<u64>, output: &mut Output) {
    let (operations, rest) = split(rate);
    let prefix = rest.chars().take_while(|letter| letter.is_ascii_alphabetic()).collect::<String>();
    let operations = figure(operations, output).zip(PREFIXES.iter().find(|(name, _)| *name == prefix));
    let bandwidth = rate.split_once("BW=").and_then(|(_, bandwidth)| {
        let (number, rest) = split(bandwidth);
        let end = rest.find("/s")? + 2;
        let (unit, factor) = UNITS.iter().find(|(name, _)| *name == &rest[..end])?;
        let number = figure(number, output)?;
        Some(Figure {
            printed: number.value,
            unit: (*unit).to_owned(),
            unit_bytes_per_s: *factor,
            resolution: number.resolution,
        })
    });
    let claim = Claim {
        name: Some(direction.to_owned()),
        bytes,
        average: bandwidth,
        messages_per_s: operations.map(|(number, (_, factor))| number.value * factor),
        messages_error_per_s: operations.map_or(0.0, |(number, (_, factor))| 2.0 * number.resolution * factor),
        ..Claim::default()
    };
    if claim.average.is_some() {
        output.claims.push(claim);
    } else {
        output.note(format!("the line of {direction} is cut, or has no bandwidth: it is not used"));
    }
}

pub(super) fn json(value: &Value, output: &mut Output) {
    found(output, Tool::FioJson);
    let jobs = value.get("jobs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let common = value.pointer("/global options/bs").and_then(Value::as_str);
    for job in jobs {
        let name = job.get("jobname").and_then(Value::as_str).unwrap_or("job");
        let size = job.pointer("/job options/bs").and_then(Value::as_str).or(common);
        for direction in ["read", "write"] {
            let Some(part) = job.get(direction) else { continue };
            let number = |key: &str| part.get(key).and_then(Value::as_f64).filter(|number| *number > 0.0);
            let Some(printed) = number("bw_bytes") else { continue };
            output.claims.push(Claim {
                name: Some(format!("{name} {direction}")),
                bytes: size.and_then(|size| block(&size.replace('k', "K").replace('m', "M"))),
                iterations: part.get("total_ios").and_then(Value::as_u64),
                average: Some(Figure { printed, unit: "B/s".to_owned(), unit_bytes_per_s: 1.0, resolution: 0.5 }),
                messages_per_s: number("iops"),
                messages_error_per_s: 1.0,
                ..Claim::default()
            });
        }
    }
}
