//! Drawing of matrices: links and strategies beside each other.

use doorbell_record::Link;
use maud::{Markup, html};

use crate::format::{NOTHING, number};
use crate::view::{Figures, LinksOfRun, StrategiesOfRun};

/// Renders the comparison of links.
pub(crate) fn links(all: &[LinksOfRun]) -> Markup {
    let [udp, memory] = Link::ALL.map(Link::name);
    html! {
        h2 #links { "The links beside each other" }
        p {
            "Two processes of one machine, over " (udp) " and through " (memory) ": medians, and the factor by "
            "which shared memory is better. With one message at a time, times are half a round trip of a ping-pong, and post "
            "to completion of one-sided operations. The other columns are maximum rates, with one message per post or eight."
        }
        @for of in all {
            @if let Some(run) = &of.run { h3 { (run) } }
            (matrix_of_links(of))
            @if !of.strays.is_empty() {
                p { "\u{2020} Another link carried packets of these points: " (of.strays.join("; ")) "." }
            }
        }
    }
}

fn matrix_of_links(of: &LinksOfRun) -> Markup {
    html! {
        div.scroll.matrix.links tabindex="0" { table {
            thead {
                tr {
                    th scope="col" rowspan="2" { "protocol or operation" }
                    @for (of, unit) in &of.figures { th.begins scope="colgroup" colspan="3" { (of) br; small { (unit) } } }
                }
                tr {
                    @for _ in &of.figures {
                        th.begins.number scope="col" { (Link::Udp.name()) }
                        th.number scope="col" { "memory" }
                        th.number scope="col" { "gain" }
                    }
                }
            }
            tbody {
                @for (subject, figures) in &of.rows {
                    tr {
                        th scope="row" { (subject) }
                        @for figure in figures {
                            td.begins.number { (figure.udp) }
                            td.number { (figure.shared_memory) }
                            td.number {
                                @if let Some(gain) = figure.gain { b { (format!("{gain:.2}")) "\u{d7}" } } @else { (NOTHING) }
                            }
                        }
                    }
                }
            }
        } }
    }
}

/// Renders a row for each workload, with a column for each strategy.
pub(crate) fn strategies(all: &[StrategiesOfRun]) -> Markup {
    html! {
        h2 #strategies { "Which strategy for my workload?" }
        p {
            "Each cell has millions of operations per second, and below them the 99 % latency of puts in microseconds (of "
            "gets, without puts). Darker cells are nearer to the maximum of their row. "
            b { "\u{2605}" } " marks the most operations, " b { "\u{25c6}" } " the shortest latency. Each group varies one "
            "parameter of the workload. Each client runs one operation at a time, without pauses."
        }
        @for of in all {
            @if let Some(run) = &of.run { h3 { (run) } }
            (matrix_of_strategies(of))
        }
    }
}

fn matrix_of_strategies(of: &StrategiesOfRun) -> Markup {
    html! {
        div.scroll.matrix tabindex="0" { table {
            thead {
                tr {
                    th scope="col" { "workload" }
                    @for (name, _) in &of.strategies { th scope="col" { (name) } }
                }
                tr.needs {
                    th scope="row" { "takes beside memory" }
                    @for (_, needs) in &of.strategies { td { (needs) } }
                }
            }
            @for group in &of.groups {
                tbody {
                    tr { th.group colspan=(of.strategies.len() + 1) scope="rowgroup" {
                        (group.varied) small { " (" (group.fixed) ")" }
                    } }
                    @for (x, cells) in &group.rows {
                        tr { th scope="row" { (x) } @for figures in cells { (cell(figures.as_ref())) } }
                    }
                }
            }
        } }
    }
}

fn cell(figures: Option<&Figures>) -> Markup {
    let Some(figures) = figures else { return html! { td.number { (NOTHING) } } };
    html! {
        td.number.heat style=(format!("--heat: {:.0}%", figures.heat)) {
            b { @if figures.is_fastest { "\u{2605} " } (number(figures.rate)) }
            br;
            small {
                @if figures.is_steadiest { "\u{25c6} " }
                @if let Some(tail) = figures.tail_us { (number(tail)) " us" } @else { (NOTHING) }
            }
        }
    }
}
