//! Links that a study compared, as text and as JSON.

use doorbell_record::PointRecord;
use doorbell_report::Run;
use doorbell_study::experiment::{LINK_FIGURES, View, compared};
use serde_json::{Value, json};

/// Width of the column with the names of the protocols.
const NAME: usize = 28;
/// Width of a column with figures.
const FIGURE: usize = 9;

/// Returns the lines of the table, or an empty vector if the study compared no links.
pub(crate) fn table(run: &Run) -> Vec<String> {
    let rows = compared(View::new(&run.records));
    if rows.is_empty() {
        return Vec::new();
    }
    let [mut heads, mut links] = [run.name.clone(), String::new()].map(|name| format!("{name:<NAME$}"));
    for figure in LINK_FIGURES {
        heads.push_str(&format!(
            "  {:<width$}",
            format!("{}, {}", figure.of, unit(figure.quantity.unit())),
            width = 3 * FIGURE - 2
        ));
        links.push_str(&format!("{:>FIGURE$}{:>FIGURE$}{:>FIGURE$}", "UDP", "shm", "gain"));
    }
    let mut lines = vec![heads.trim_end().to_owned(), links];
    for row in rows {
        let mut line = format!("{:<NAME$}", row.subject);
        for (figure, points) in LINK_FIGURES.iter().zip(row.points) {
            let medians = points.map(|point| Some(point?.spread(figure.quantity)?.median));
            let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            let gain = match medians {
                [Some(one), Some(other)] => Some(figure.gain([one, other])),
                _ => None,
            };
            for value in [medians[0], medians[1], gain] {
                line.push_str(&format!("{:>FIGURE$}", shown(value)));
            }
        }
        lines.push(line);
    }
    lines
}

/// Returns a unit that is short enough for a column.
fn unit(unit: &str) -> &str {
    if unit == "M messages/s" { "M/s" } else { unit }
}

/// Returns a row for each protocol and figure that was measured with both links.
pub(crate) fn as_json(run: &Run) -> Vec<Value> {
    let rows = compared(View::new(&run.records));
    let rows = rows.iter().flat_map(|row| {
        LINK_FIGURES.iter().zip(row.points).filter_map(|(figure, points)| {
            let [Some(udp), Some(memory)] = points else { return None };
            let of = |record: &PointRecord| {
                let spread = record.spread(figure.quantity)?;
                let carried = record.carried();
                Some(json!({
                    "least": spread.least,
                    "median": spread.median,
                    "most": spread.most,
                    "udp_packets": carried.udp,
                    "shared_memory_packets": carried.shared_memory,
                }))
            };
            let medians = [udp, memory].map(|record| record.spread(figure.quantity).map(|spread| spread.median));
            let [Some(one), Some(other)] = medians else { return None };
            Some(json!({
                "run": run.name,
                "subject": row.subject,
                "of": figure.of,
                "quantity": figure.quantity.name(),
                "unit": figure.quantity.unit(),
                "udp": of(udp),
                "shared_memory": of(memory),
                "gain": figure.gain([one, other]),
            }))
        })
    });
    rows.collect()
}
