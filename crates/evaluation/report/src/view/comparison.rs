//! Protocols at a glance: figures of each protocol at the sizes at which all protocols are measured.

use doorbell_record::{PointRecord, Quantity};
use doorbell_study::experiment::{COMPARED_SIZES, Experiment, Layout};

use super::points::run_cell;
use super::table::{Cell, Table};
use crate::Run;
use crate::format::{NOTHING, bytes};

/// Family of the experiments that compare all protocols.
pub(crate) const ALL: &str = "all";
/// Configuration in which every protocol is measured: 64 unacknowledged messages (32 for Direct-Read), one per post.
const COMMON: &str = "unbatched";

/// Returns one experiment for latency and one for throughput, each with all protocols in one plot.
pub(super) fn experiments() -> [Experiment; 2] {
    let of = |what: &str, question, setting, quantities: [Quantity; 2]| Experiment {
        name: format!("{ALL}/{what}"),
        question,
        setting,
        sweep: "message size, B",
        quantities: quantities.to_vec(),
        points: Vec::new(),
        layout: Layout::default(),
    };
    [
        of(
            "latency",
            "How long does one message take, by protocol?",
            "the best variant of each protocol at each size; one connection, one message at a time, half a round trip",
            [Quantity::MedianLatency, Quantity::TailLatency],
        ),
        of(
            "bandwidth",
            "How much goes through, by protocol?",
            "the best variant and configuration of each protocol at each size; one connection. For large messages window \
             and depth shrink to the size of a cache",
            [Quantity::Throughput, Quantity::MessageRate],
        ),
    ]
}

/// Returns the experiment and the curve of the comparison to which a record of a single protocol belongs. Returns
/// `None` if the comparison does not use the record.
pub(crate) fn name(record: &PointRecord) -> Option<(String, String)> {
    let (family, what) = record.experiment.split_once('/')?;
    if what != "latency" && what != "bandwidth" {
        return None;
    }
    let series = match record.series.as_str() {
        "ping-pong" => family.to_owned(),
        own if own == family || own.starts_with(&format!("{family}, ")) => own.to_owned(),
        own => format!("{family}, {own}"),
    };
    Some((format!("{ALL}/{what}"), series))
}

/// Returns the runs with the records of the comparison: records of single protocols with other names of the experiment
/// and the curve.
pub(super) fn runs(runs: &[Run]) -> Vec<Run> {
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
                let latency = run
                    .records_of(&format!("{family}/latency"))
                    .filter(is_it)
                    .filter_map(|record| {
                        Some((median(record, Quantity::MedianLatency)?, median(record, Quantity::TailLatency)?))
                    })
                    .min_by(|a, b| a.0.total_cmp(&b.0));
                let best = run
                    .records_of(&format!("{family}/bandwidth"))
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

/// Returns the table of all protocols, or `None` if neither latency nor bandwidth was measured at these sizes.
pub(super) fn table(runs: &[Run]) -> Option<Table> {
    let rows = rows(runs);
    let most = rows.iter().filter_map(|row| row.best).map(|best| best.1).fold(0.0, f64::max);
    let share = |throughput: f64| if most > 0.0 { throughput / most * 100.0 } else { 0.0 };
    let cells = |row: Row<'_>| {
        let best = match row.best {
            Some((rate, throughput, series)) => {
                [Cell::number(rate), Cell::Bar(throughput, share(throughput)), Cell::text(series)]
            }
            None => [Cell::number(None), Cell::number(None), Cell::text(NOTHING)],
        };
        let mut cells = vec![Cell::shown(row.size as f64, bytes(row.size as f64))];
        cells.extend(run_cell(runs, row.run));
        cells.extend([
            Cell::text(row.family),
            Cell::number(row.latency.map(|latency| latency.0)),
            Cell::number(row.latency.map(|latency| latency.1)),
        ]);
        cells.extend(best);
        cells
    };
    Table::default()
        .numbers(["size"])
        .texts((runs.len() > 1).then_some("run"))
        .texts(["protocol"])
        .numbers(["median latency, us", "99 % latency, us", "M messages/s", "Gb/s"])
        .texts(["fastest variant"])
        .with_rows(rows.into_iter().map(cells))
}
