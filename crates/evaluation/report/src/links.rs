//! Comparison of every protocol over UDP and through shared memory: one table for each run.

use doorbell_study::experiment::{Compared, LINK_FIGURES, LinkFigure, PointRecord, View, compared};
use doorbell_study::link::{CarriedBy, Link};
use maud::{Markup, html};

use crate::format::{NOTHING, number};
use crate::{Found, Run, page};

/// Renders the comparison of links with the verdicts on its goals. The result is empty if no links were compared.
pub(crate) fn section(runs: &[Run], goals: &[Found]) -> Markup {
    let all: Vec<(&Run, Vec<Compared<'_>>)> = runs.iter().map(|run| (run, compared(View::new(&run.records)))).collect();
    if all.iter().all(|(_, rows)| rows.is_empty()) {
        return Markup::default();
    }
    let [udp, memory] = Link::ALL.map(Link::name);
    html! {
        h2 #links { "The links beside each other" }
        p {
            "Two processes of one machine, over " (udp) " and through " (memory) ": medians, and the factor by "
            "which shared memory is better. With one message at a time, times are half a round trip of a ping-pong, and post "
            "to completion of one-sided operations. The other columns are maximum rates, with one message per post or eight."
        }
        @for (run, rows) in all.iter().filter(|(_, rows)| !rows.is_empty()) {
            @if runs.len() > 1 { h3 { (run.name) } }
            (matrix(rows))
            (strays(rows))
        }
        (page::list(runs, goals))
    }
}

fn matrix(rows: &[Compared<'_>]) -> Markup {
    let is_there = |index: usize| rows.iter().any(|row| row.points[index].iter().any(Option::is_some));
    let figures: Vec<(usize, &LinkFigure)> =
        LINK_FIGURES.iter().enumerate().filter(|(index, _)| is_there(*index)).collect();
    html! {
        div.scroll.matrix.links tabindex="0" { table {
            thead {
                tr {
                    th scope="col" rowspan="2" { "protocol or operation" }
                    @for (_, figure) in &figures {
                        th.begins scope="colgroup" colspan="3" { (figure.of) br; small { (figure.quantity.unit()) } }
                    }
                }
                tr {
                    @for _ in &figures {
                        th.begins.number scope="col" { (Link::Udp.name()) }
                        th.number scope="col" { "memory" }
                        th.number scope="col" { "gain" }
                    }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        th scope="row" { (row.subject) }
                        @for (index, figure) in &figures { (cells(figure, row.points[*index])) }
                    }
                }
            }
        } }
    }
}

/// Renders a figure with both links, and the ratio of shared memory to UDP.
fn cells(figure: &LinkFigure, points: [Option<&PointRecord>; 2]) -> Markup {
    let medians = points.map(|point| Some(point?.spread(figure.quantity)?.median));
    let shown = |index: usize| {
        let Some(median) = medians[index] else { return NOTHING.to_owned() };
        let mark = if points[index].is_some_and(strays_from_its_link) { " \u{2020}" } else { "" };
        format!("{}{mark}", number(median))
    };
    let gain = match medians {
        [Some(one), Some(other)] => figure.gain([one, other]),
        _ => f64::NAN,
    };
    html! {
        td.begins.number { (shown(0)) }
        td.number { (shown(1)) }
        td.number { @if gain.is_finite() { b { (format!("{gain:.2}")) "\u{d7}" } } @else { (NOTHING) } }
    }
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

/// Renders the explanation of the dagger in the table, with all points that have a dagger.
fn strays(rows: &[Compared<'_>]) -> Markup {
    let all = rows.iter().flat_map(|row| row.points.iter().flatten().flatten());
    let found: Vec<String> = all
        .filter(|record| strays_from_its_link(record))
        .map(|record| format!("{} ({}, {}): {}", record.series, record.experiment, record.x, record.carried()))
        .collect();
    html! {
        @if !found.is_empty() {
            p { "\u{2020} Another link carried packets of these points: " (found.join("; ")) "." }
        }
    }
}
