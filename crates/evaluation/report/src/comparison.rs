//! Protocols at a glance: figures of each protocol at the sizes at which all protocols are measured.

use doorbell_study::experiment::{COMPARED_SIZES, Experiment, PointRecord, Quantity, View};
use doorbell_study::layout::Layout;
use maud::{Markup, html};

use crate::Run;
use crate::format::{NOTHING, bytes, number};
use crate::table::{heading, text, value};

/// Configuration in which every protocol is measured: 64 unacknowledged messages (32 for Direct-Read), one per post.
const COMMON: &str = "unbatched";

/// Returns one experiment for latency and one for throughput, each with all protocols in one plot.
pub(crate) fn experiments() -> [Experiment; 2] {
    let of = |what: &str, question, setting, quantities: [Quantity; 2]| Experiment {
        name: format!("all/{what}"),
        question,
        setting,
        sweep: "message size, B",
        quantities: quantities.to_vec(),
        points: Vec::new(),
        claims: Vec::new(),
        layout: Layout::default(),
    };
    [
        of(
            "latency",
            "How long does one message take, by protocol?",
            "the points of each protocol's own experiment at the sizes that all are measured at",
            [Quantity::MedianLatency, Quantity::TailLatency],
        ),
        of(
            "bandwidth",
            "How much goes through, by protocol?",
            "the points of each protocol's own experiment with 64 messages unacknowledged (Direct-Read: 32), one per post; for large \
             messages window and depth shrink to what a cache holds",
            [Quantity::Throughput, Quantity::MessageRate],
        ),
    ]
}

/// Returns the experiment and the curve of the comparison to which a record of a single protocol belongs. Returns
/// `None` if the comparison does not use the record.
pub(crate) fn name(record: &PointRecord) -> Option<(String, String)> {
    let (family, what) = record.experiment.split_once('/')?;
    let variant = match what {
        "latency" => record.series.as_str(),
        "bandwidth" if record.series == COMMON => "",
        "bandwidth" => record.series.strip_suffix(COMMON)?.strip_suffix(", ")?,
        _ => return None,
    };
    let is_compared = COMPARED_SIZES.iter().any(|&size| record.x == size as f64);
    let is_only = variant.is_empty() || variant == family || variant == "ping-pong";
    let series = if is_only { family.to_owned() } else { format!("{family}, {variant}") };
    is_compared.then(|| (format!("all/{what}"), series))
}

/// Returns the runs with the records of the comparison: records of single protocols with other names of the experiment
/// and the curve.
pub(crate) fn runs(runs: &[Run]) -> Vec<Run> {
    let compared = |record: &PointRecord| {
        let (experiment, series) = name(record)?;
        Some(PointRecord { experiment, series, ..record.clone() })
    };
    let of = |run: &Run| Run { name: run.name.clone(), records: run.records.iter().filter_map(compared).collect() };
    runs.iter().map(of).collect()
}

/// Figures of a protocol at one size in one run.
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
                    .filter(|record| record.series.ends_with(COMMON))
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

/// Renders the table of all protocols. The result is empty if neither latency nor bandwidth was measured at these
/// sizes.
pub(crate) fn table(runs: &[Run]) -> Markup {
    let rows = rows(runs);
    if rows.is_empty() {
        return Markup::default();
    }
    let are_several = runs.len() > 1;
    let most = rows.iter().filter_map(|row| row.best).map(|best| best.1).fold(0.0, f64::max);
    let share = |throughput: f64| if most > 0.0 { throughput / most * 100.0 } else { 0.0 };
    html! {
        h2 #glance { "Protocols at a glance" }
        p {
            "Latency is measured with one message at a time, throughput with 64 unacknowledged messages (32 for "
            "Direct-Read), one per post. Each figure is that of the fastest variant."
        }
        div.scroll tabindex="0" { table.sortable #comparison {
            thead { tr {
                (heading("size", true))
                @if are_several { (heading("run", false)) }
                (heading("protocol", false))
                @for name in ["median latency, us", "99 % latency, us", "M messages/s", "Gb/s"] {
                    (heading(name, true))
                }
                (heading("fastest variant", false))
            } }
            tbody {
                @for row in rows {
                    @let (rate, throughput, series) = row.best.unwrap_or((0.0, 0.0, NOTHING));
                    tr {
                        (value(row.size as f64, bytes(row.size as f64)))
                        @if are_several { (text(&row.run.name)) }
                        (text(row.family))
                        @for latency in [row.latency.map(|latency| latency.0), row.latency.map(|latency| latency.1)] {
                            @let latency = latency.unwrap_or(f64::NAN);
                            (value(latency, number(latency)))
                        }
                        (value(rate, number(rate)))
                        td.number.bar data-value=(throughput) {
                            span style=(format_args!("--share:{:.1}%", share(throughput))) { (number(throughput)) }
                        }
                        (text(series))
                    }
                }
            }
        } }
    }
}
