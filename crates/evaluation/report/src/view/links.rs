//! Comparison of every protocol over UDP and through shared memory: one table for each run.

use doorbell_record::{CarriedBy, Link, PointRecord};
use doorbell_study::experiment::{Compared, LINK_FIGURES, LinkFigure, View, compared};

use crate::Run;
use crate::format::{NOTHING, number};

/// Links of one run beside each other.
#[derive(Debug)]
pub(crate) struct LinksOfRun {
    /// Name of the run if the page shows several runs.
    pub(crate) run: Option<String>,
    /// Subject and unit of each figure.
    pub(crate) figures: Vec<(&'static str, &'static str)>,
    /// Protocol or operation, and its figures.
    pub(crate) rows: Vec<(String, Vec<Both>)>,
    /// Points of which another link carried packets.
    pub(crate) strays: Vec<String>,
}

/// A figure with both links.
#[derive(Debug)]
pub(crate) struct Both {
    pub(crate) udp: String,
    pub(crate) shared_memory: String,
    /// Factor by which shared memory is better.
    pub(crate) gain: Option<f64>,
}

/// Returns the comparison of links for each run that compared links.
pub(super) fn links(runs: &[Run]) -> Vec<LinksOfRun> {
    let all = runs.iter().map(|run| (run, compared(View::new(&run.records))));
    let of = |(run, rows): (&Run, Vec<Compared<'_>>)| {
        let is_there = |index: usize| rows.iter().any(|row| row.points[index].iter().any(Option::is_some));
        let figures: Vec<(usize, &LinkFigure)> =
            LINK_FIGURES.iter().enumerate().filter(|(index, _)| is_there(*index)).collect();
        let row = |row: &Compared<'_>| {
            (row.subject.to_string(), figures.iter().map(|(index, figure)| both(figure, row.points[*index])).collect())
        };
        LinksOfRun {
            run: (runs.len() > 1).then(|| run.name.clone()),
            figures: figures.iter().map(|(_, figure)| (figure.of, figure.quantity.unit())).collect(),
            rows: rows.iter().map(row).collect(),
            strays: strays(&rows),
        }
    };
    all.filter(|(_, rows)| !rows.is_empty()).map(of).collect()
}

fn both(figure: &LinkFigure, points: [Option<&PointRecord>; 2]) -> Both {
    let medians = points.map(|point| Some(point?.spread(figure.quantity)?.median));
    let shown = |index: usize| {
        let Some(median) = medians[index] else { return NOTHING.to_owned() };
        let mark = if points[index].is_some_and(strays_from_its_link) { " \u{2020}" } else { "" };
        format!("{}{mark}", number(median))
    };
    let gain = match medians {
        [Some(one), Some(other)] => Some(figure.gain([one, other])).filter(|gain| gain.is_finite()),
        _ => None,
    };
    Both { udp: shown(0), shared_memory: shown(1), gain }
}

/// Returns whether packets of this point used a link other than the intended one.
fn strays_from_its_link(record: &PointRecord) -> bool {
    let own = match record.parameters.link {
        Some(Link::Udp) => CarriedBy::Udp,
        Some(Link::SharedMemory) => CarriedBy::SharedMemory,
        None => return false,
    };
    record.carried().by().is_some_and(|by| by != own)
}

/// Returns the points that have a dagger in the table.
fn strays(rows: &[Compared<'_>]) -> Vec<String> {
    let all = rows.iter().flat_map(|row| row.points.iter().flatten().flatten());
    all.filter(|record| strays_from_its_link(record))
        .map(|record| format!("{} ({}, {}): {}", record.series, record.experiment, record.x, record.carried()))
        .collect()
}
