//! Protocols at a glance: what each reaches at the sizes that all are measured at.

use std::fmt::Write;

use doorbell_study::experiment::{COMPARED_SIZES, PointRecord, Quantity, View};

use crate::Run;
use crate::escape::Escaped;
use crate::format::{NOTHING, bytes, number};
use crate::table::{heading, text, value};

/// What a protocol reaches at one size in one run.
struct Row<'a> {
    run: &'a Run,
    family: &'a str,
    size: usize,
    latency: Option<(f64, f64)>,
    best: Option<(f64, f64, &'a str)>,
}

fn rows<'a>(runs: &'a [Run]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for size in COMPARED_SIZES {
        for run in runs {
            let view = View::new(&run.records);
            let mut families: Vec<&str> = run
                .records
                .iter()
                .filter_map(|record| {
                    record.experiment.strip_suffix("/latency").or(record.experiment.strip_suffix("/bandwidth"))
                })
                .collect();
            families.sort_unstable();
            families.dedup();
            for family in families {
                let is_it = |record: &&PointRecord| record.x == size as f64;
                let median = |record: &PointRecord, quantity| Some(record.spread(quantity)?.median);
                let latency = view
                    .of(&format!("{family}/latency"))
                    .filter(is_it)
                    .filter_map(|record| {
                        Some((median(record, Quantity::MedianLatency)?, median(record, Quantity::TailLatency)?))
                    })
                    .min_by(|a, b| a.0.total_cmp(&b.0));
                let best = view
                    .of(&format!("{family}/bandwidth"))
                    .filter(is_it)
                    .filter_map(|record| {
                        let rate = median(record, Quantity::MessageRate)?;
                        Some((rate, median(record, Quantity::Throughput)?, record.series.as_str()))
                    })
                    .max_by(|a, b| a.0.total_cmp(&b.0));
                if latency.is_some() || best.is_some() {
                    rows.push(Row { run, family, size, latency, best });
                }
            }
        }
    }
    rows
}

/// The table of them. Nothing where neither latency nor bandwidth was measured at these sizes.
pub(crate) fn table(out: &mut String, runs: &[Run]) {
    let rows = rows(runs);
    if rows.is_empty() {
        return;
    }
    let most = rows.iter().filter_map(|row| row.best).map(|best| best.1).fold(0.0, f64::max);
    out.push_str(
        "<h2 id=\"glance\">Protocols at a glance</h2><p>Latency is that of one message at a time, of the \
                  variant that is fastest then; throughput that of the fastest variant and configuration.</p><div class=\"scroll\" tabindex=\"0\">\
                  <table class=\"sortable\" id=\"comparison\"><thead><tr>",
    );
    heading(out, "size", true);
    if runs.len() > 1 {
        heading(out, "run", false);
    }
    heading(out, "protocol", false);
    for name in ["median latency, us", "99 % latency, us", "M messages/s", "Gb/s"] {
        heading(out, name, true);
    }
    heading(out, "fastest configuration", false);
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        value(out, row.size as f64, bytes(row.size as f64));
        if runs.len() > 1 {
            text(out, &row.run.name);
        }
        text(out, row.family);
        for latency in [row.latency.map(|latency| latency.0), row.latency.map(|latency| latency.1)] {
            let latency = latency.unwrap_or(f64::NAN);
            value(out, latency, number(latency));
        }
        let (rate, throughput, series) = row.best.unwrap_or((0.0, 0.0, NOTHING));
        value(out, rate, number(rate));
        let share = if most > 0.0 { throughput / most * 100.0 } else { 0.0 };
        let _ = write!(
            out,
            "<td class=\"number bar\" data-value=\"{throughput}\"><span style=\"--share:{share:.1}%\">{}</span></td>",
            Escaped(number(throughput))
        );
        text(out, series);
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}
