//! Tables of the OSU micro-benchmarks.

use super::{figure, found, is_cut};
use crate::claim::{Claim, Figure, Output, Tool};
use crate::numbers::whole;

/// Column after the size.
#[derive(Clone, Copy)]
enum Column {
    Bandwidth,
    MessageRate,
    Latency,
}

/// Labels of columns. OSU's MB has 10^6 bytes.
const LABELS: [(&str, Column); 7] = [
    ("Bandwidth (MB/s)", Column::Bandwidth),
    (" MB/s", Column::Bandwidth),
    ("Messages/s", Column::MessageRate),
    ("Latency (us)", Column::Latency),
    ("Latency(us)", Column::Latency),
    ("Avg Latency(us)", Column::Latency),
    ("Lat (us)", Column::Latency),
];

fn heading(line: &str) -> Option<Vec<Column>> {
    let line = line.trim_start().strip_prefix('#')?;
    if !line.trim_start().starts_with("Size") {
        return None;
    }
    let mut places: Vec<(usize, Column)> =
        LABELS.iter().filter_map(|(label, column)| Some((line.find(label)?, *column))).collect();
    places.sort_by_key(|(place, _)| *place);
    // Labels that contain each other end at the same place.
    places.dedup_by_key(|(_, column)| std::mem::discriminant(column));
    let columns: Vec<Column> = places.into_iter().map(|(_, column)| column).collect();
    (!columns.is_empty()).then_some(columns)
}

pub(super) fn is_table(text: &str) -> bool {
    text.lines().any(|line| heading(line).is_some())
}

pub(super) fn table(text: &str, output: &mut Output) {
    found(output, Tool::Osu);
    let mut columns = None;
    let last = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        if let Some(found) = heading(line) {
            columns = Some(found);
        } else if line.trim_start().starts_with('#') {
            let is_both_ways = line.contains("Bi-Directional") || line.contains("Bidirectional");
            output.setup.is_bidirectional |= is_both_ways;
        } else if let Some(columns) = &columns {
            row(line, columns, index + 1 == last && is_cut(text), output);
        }
    }
}

fn row(line: &str, columns: &[Column], is_cut: bool, output: &mut Output) {
    let mut tokens: Vec<&str> = line.split_whitespace().collect();
    let Some(bytes) = tokens.first().and_then(|token| whole(token)) else { return };
    if is_cut {
        output.note("the output ends within a row, so the last number of the row is not used".to_owned());
        tokens.pop();
    }
    let mut claim = Claim { bytes: Some(bytes), ..Claim::default() };
    for (token, column) in tokens.into_iter().skip(1).zip(columns) {
        let Some(number) = figure(token, output) else { continue };
        match column {
            Column::Bandwidth => {
                let (printed, resolution) = (number.value, number.resolution);
                let figure = Figure { printed, unit: "MB/s".to_owned(), unit_bytes_per_s: 1e6, resolution };
                claim.average = Some(figure);
            }
            Column::MessageRate => {
                claim.messages_per_s = Some(number.value);
                claim.messages_error_per_s = number.resolution;
            }
            Column::Latency => claim.latency_us = Some(number.value),
        }
    }
    if claim.average.is_some() || claim.messages_per_s.is_some() || claim.latency_us.is_some() {
        output.claims.push(claim);
    }
}
