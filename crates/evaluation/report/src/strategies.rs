//! Comparison of strategies for shared memory, by workload: one table with coloured cells for each run.

use doorbell_study::experiment::{COMPARING, View};
use doorbell_study::far::Strategy;
use doorbell_study::far::choice::{Choice, choices, needs};
use maud::{Markup, html};

use crate::Run;
use crate::format::{NOTHING, number};

/// Returns the store's workloads of a run, grouped by the parameter that each experiment varies.
fn varied(run: &Run) -> Vec<(&'static str, Vec<Choice<'_>>)> {
    let view = View::new(&run.records);
    let of = |&(experiment, what): &(&str, &'static str)| {
        // Skip workloads that were measured with only one strategy.
        let choices: Vec<_> = choices(view.of(experiment)).into_iter().filter(|it| it.candidates.len() > 1).collect();
        (!choices.is_empty()).then_some((what, choices))
    };
    COMPARING.iter().filter_map(of).collect()
}

/// Renders the tables, with a row for each workload and a column for each strategy. The result is empty if no run has
/// workloads of the store.
pub(crate) fn picture(runs: &[Run]) -> Markup {
    let all: Vec<_> = runs.iter().map(|run| (run, varied(run))).filter(|(_, varied)| !varied.is_empty()).collect();
    html! {
        @if !all.is_empty() {
            h2 #strategies { "Which strategy for my workload?" }
            p {
                "Each cell has millions of operations per second, and below them the 99 % latency of puts in microseconds (of "
                "gets, without puts). Darker cells are nearer to the maximum of their row. "
                b { "\u{2605}" } " marks the most operations, " b { "\u{25c6}" } " the shortest latency. Each group varies one "
                "parameter of the workload. Each client runs one operation at a time, without pauses."
            }
            @for (run, varied) in &all {
                @if runs.len() > 1 { h3 { (run.name) } }
                (matrix(varied))
            }
        }
    }
}

fn matrix(varied: &[(&'static str, Vec<Choice<'_>>)]) -> Markup {
    let is_there = |strategy: Strategy| varied.iter().flat_map(|(_, all)| all).any(|it| it.of(strategy).is_some());
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(|&strategy| is_there(strategy)).collect();
    html! {
        div.scroll.matrix tabindex="0" { table {
            thead {
                tr {
                    th scope="col" { "workload" }
                    @for strategy in &strategies { th scope="col" { (strategy.name()) } }
                }
                tr.needs {
                    th scope="row" { "takes beside memory" }
                    @for strategy in &strategies { td { (needs(*strategy)) } }
                }
            }
            @for (what, choices) in varied {
                tbody {
                    tr { th.group colspan=(strategies.len() + 1) scope="rowgroup" {
                        (what) @if let Some(choice) = choices.first() { small { " (" (rest(what, choice)) ")" } }
                    } }
                    @for choice in choices {
                        tr {
                            th scope="row" { (choice.x) }
                            @for strategy in &strategies { (cell(choice, *strategy)) }
                        }
                    }
                }
            }
        } }
    }
}

/// Returns a text with the values of the parameters that the experiment does not vary.
fn rest(what: &str, choice: &Choice<'_>) -> String {
    let workload = &choice.workload;
    let all = [
        ("share of puts", format!("{} % puts", workload.write_percent)),
        ("skew (Zipf exponent)", format!("Zipf {}", workload.zipf)),
        ("clients", format!("{} clients on {} hosts", workload.clients, workload.hosts)),
        ("bytes of a value", format!("values of {} B", workload.value_bytes)),
        ("keys", format!("{} keys", workload.keys)),
    ];
    let others = all.into_iter().filter(|(name, _)| !what.starts_with(name)).map(|(_, words)| words);
    others.collect::<Vec<_>>().join(", ")
}

fn cell(choice: &Choice<'_>, strategy: Strategy) -> Markup {
    let Some(candidate) = choice.of(strategy) else { return html! { td.number { (NOTHING) } } };
    let most = choice.candidates.iter().map(|one| one.rate()).fold(f64::MIN_POSITIVE, f64::max);
    let heat = (100.0 * candidate.rate() / most).clamp(0.0, 100.0);
    html! {
        td.number.heat style=(format!("--heat: {heat:.0}%")) {
            b { @if choice.fastest() == Some(strategy) { "\u{2605} " } (number(candidate.rate())) }
            br;
            small {
                @if choice.steadiest() == Some(strategy) { "\u{25c6} " }
                @if let Some(tail) = candidate.tail_us() { (number(tail)) " us" } @else { (NOTHING) }
            }
        }
    }
}
