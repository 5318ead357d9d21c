//! The HTML document.

use doorbell_published::Testbed;
use doorbell_study::experiment::{Experiment, FAR_MEMORY, Finding, PointRecord, View};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::format::date;
use crate::{
    Found, Model, Run, changes, comparison, experiments, links, model, plot, published, sentence, strategies, table,
    verdicts_of,
};

const STYLE: &str = include_str!("../assets/style.css");
pub(crate) const SCRIPT: &str = include_str!("../assets/script.js");

/// Content security policy of the page. It forbids to load anything, even if a record could break out of its escaping.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

/// Renders the head of a document.
pub(crate) fn head(title: Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(POLICY);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            style { (PreEscaped(STYLE)) }
        }
    }
}

pub(crate) fn page(runs: &[Run], model: Option<&dyn Model>, published: Option<&Testbed>) -> String {
    let experiments = experiments(runs);
    let (goals, found): (Vec<Found>, Vec<Found>) = experiments
        .iter()
        .flat_map(|experiment| runs.iter().flat_map(|run| verdicts_of(run, experiment)))
        .partition(|found| found.verdict.is_goal);
    let compared = comparison::runs(runs);
    let comparisons: Vec<Experiment> = comparison::experiments()
        .into_iter()
        .filter(|experiment| compared.iter().flat_map(|run| &run.records).any(|it| it.experiment == experiment.name))
        .collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(html! { "Doorbell study: " (names(runs)) }))
            body {
                (header(runs, &found))
                main {
                    @if let Some(pair) = changes::pair(runs) { (pair.overview(&experiments)) }
                    (comparison::table(runs))
                    (links::section(runs, &goals))
                    (strategies::picture(runs))
                    (shapes(runs, &found))
                    (contents(comparisons.iter().chain(&experiments)))
                    @for experiment in &comparisons { (section(&compared, experiment, model, None)) }
                    @for experiment in &experiments { (section(runs, experiment, model, published)) }
                    @if let Some(model) = model { (model::section(runs, model)) }
                    h2 #environment { "Environment" }
                    (table::environments(runs))
                    (table::hosts(runs))
                    (reading())
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
        "\n"
    };
    // HTML allows no control characters except newlines, but records may contain all of them.
    page.into_string().replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

fn names(runs: &[Run]) -> String {
    runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Returns the name of a run as a prefix if the page shows several runs, else an empty text.
fn prefix(runs: &[Run], name: &str) -> String {
    if runs.len() > 1 { format!("{name}: ") } else { String::new() }
}

fn header(runs: &[Run], found: &[Found]) -> Markup {
    let of = |is_simulated: bool| runs.iter().filter(move |run| run.testbed().is_some() == is_simulated);
    let points: usize = of(false).map(|run| run.records.len()).sum();
    let times: usize = of(false).flat_map(|run| &run.records).map(|record| record.repetitions.len()).sum();
    let simulated: usize = of(true).map(|run| run.records.len()).sum();
    let count = |outcome| found.iter().filter(|found| found.verdict.outcome == outcome).count();
    let outcomes = [Finding::Holds, Finding::DoesNotHold, Finding::CannotShow, Finding::NotMeasured];
    html! {
        header {
            p.kicker { "Doorbell study" }
            h1 { (question(runs)) }
            @for run in runs {
                @if let Some(testbed) = run.testbed() {
                    p.where {
                        (prefix(runs, &run.name)) b { "simulated, not measured" } ": testbed " (testbed) " in virtual time ("
                        (table::of(run, |e| e.cpu.clone())) "), " (table::of(run, |e| date(e.unix_time_s)))
                    }
                } @else {
                    p.where {
                        (prefix(runs, &run.name)) (table::of(run, |e| e.cpu.clone())) " on "
                        (table::of(run, |e| e.cpus.to_string())) " CPUs, Linux " (table::of(run, |e| e.kernel.clone()))
                        ", provider " (table::of(run, |e| e.provider.clone())) ", "
                        (table::of(run, |e| date(e.unix_time_s)))
                    }
                }
            }
            ul.tiles {
                @if points > 0 || simulated == 0 { li { b { (points) } " points, measured " (times) " times" } }
                @if simulated > 0 { li.simulated { b { (simulated) } " points, simulated" } }
                @for outcome in outcomes.into_iter().filter(|&outcome| count(outcome) > 0) {
                    li class=(class(outcome)) { b { (count(outcome)) } " " (tile(outcome)) }
                }
            }
        }
    }
}

/// Returns the question that the page answers.
fn question(runs: &[Run]) -> &'static str {
    let is_far = |record: &PointRecord| record.experiment.starts_with(FAR_MEMORY);
    let mut records = runs.iter().flat_map(|run| &run.records).peekable();
    let is_about_memory = records.peek().is_some() && records.all(is_far);
    if is_about_memory {
        "How much does sharing memory cost, and which strategy avoids it?"
    } else {
        "Which protocol, with which parameters?"
    }
}

fn class(outcome: Finding) -> &'static str {
    match outcome {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "differs",
        Finding::CannotShow => "cannot",
        Finding::NotMeasured => "missing",
    }
}

/// Returns the mark of a verdict, by which readers who see no colours tell verdicts apart.
fn mark(outcome: Finding) -> &'static str {
    match outcome {
        Finding::Holds => "\u{2713}",
        Finding::DoesNotHold => "\u{2717}",
        Finding::CannotShow => "\u{2205}",
        Finding::NotMeasured => "\u{2026}",
    }
}

fn tile(outcome: Finding) -> &'static str {
    match outcome {
        Finding::Holds => "published shapes hold",
        Finding::DoesNotHold => "do not hold here",
        Finding::CannotShow => "cannot show on this provider",
        Finding::NotMeasured => "not measured",
    }
}

fn badge(outcome: Finding) -> Markup {
    html! { span class={ "badge " (class(outcome)) } { (mark(outcome)) " " (outcome.name()) } }
}

/// Renders all verdicts in one table.
fn shapes(runs: &[Run], found: &[Found]) -> Markup {
    if found.is_empty() {
        return Markup::default();
    }
    let are_several = runs.len() > 1;
    html! {
        h2 #verdicts { "Published shapes, and what the data say" }
        p {
            "Shapes of an evaluation on ConnectX-5 RNICs over 100 Gb/s Ethernet; each verdict is computed from the "
            "best repetition of each point, since other programs can only slow one down."
        }
        div.scroll.cards tabindex="0" { table.sortable {
            thead { tr {
                @if are_several { (table::heading("run", false)) }
                @for name in ["experiment", "published", "verdict", "because"] { (table::heading(name, false)) }
            } }
            tbody {
                @for found in found {
                    tr {
                        @if are_several { (table::text(&found.run)) }
                        td { a href={ "#" (anchor(&found.experiment)) } { (found.experiment) } }
                        (table::text(found.verdict.says))
                        td { (badge(found.verdict.outcome)) }
                        (table::text(&found.verdict.because))
                    }
                }
            }
        } }
    }
}

/// Renders verdicts, each with its reason.
pub(crate) fn list(runs: &[Run], verdicts: &[Found]) -> Markup {
    html! {
        @if !verdicts.is_empty() {
            ul.verdicts {
                @for found in verdicts {
                    li {
                        (badge(found.verdict.outcome)) " " b { (found.verdict.says) } " "
                        span { (prefix(runs, &found.run)) (found.verdict.because) }
                    }
                }
            }
        }
    }
}

/// Returns the anchor of a name for links within the page. The anchor has only letters, digits and dashes.
pub(crate) fn anchor(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    std::iter::once('x').chain(std::iter::once('-')).chain(plain).collect()
}

fn contents<'a>(experiments: impl Iterator<Item = &'a Experiment>) -> Markup {
    html! {
        h2 #experiments { "Experiments" }
        nav { ol {
            @for experiment in experiments {
                li { a href={ "#" (anchor(&experiment.name)) } { (experiment.name) } " " (experiment.question) }
            }
        } }
    }
}

fn section(runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>, published: Option<&Testbed>) -> Markup {
    let verdicts: Vec<Found> = runs.iter().flat_map(|run| verdicts_of(run, experiment)).collect();
    html! {
        section id=(anchor(&experiment.name)) {
            h3 {
                (experiment.name)
                @for testbed in simulated(runs, experiment) { " " span.badge.simulated { "simulated: " (testbed) } }
            }
            p.question { (experiment.question) }
            p.setting { (experiment.setting) }
            @for run in runs {
                @if let Some(summary) = sentence::summary(run, experiment) {
                    p.summary { b { (prefix(runs, &run.name)) } (summary) }
                }
            }
            figure.plot {
                script type="application/json" { (in_script(&plot::data(runs, experiment, model, published))) }
                noscript { "The plot needs JavaScript; the table below has all its numbers." }
            }
            (list(runs, &verdicts))
            @if let Some(pair) = changes::pair(runs) { (pair.points(experiment)) }
            (table::points(runs, experiment, model))
            (table::cpu_of_hosts(runs, experiment))
            @if let Some(testbed) = published { (published::section(testbed, experiment, runs)) }
        }
    }
}

/// Returns the testbeds on which an experiment was simulated.
fn simulated<'a>(runs: &'a [Run], experiment: &Experiment) -> impl Iterator<Item = &'a str> {
    let is_there = |run: &&Run| View::new(&run.records).of(&experiment.name).next().is_some();
    let mut testbeds: Vec<&str> = runs.iter().filter(is_there).filter_map(Run::testbed).collect();
    testbeds.sort_unstable();
    testbeds.dedup();
    testbeds.into_iter()
}

/// Returns JSON as the text of a `script` element. HTML does not unescape this text, so `<`, `>` and `&` are escaped as
/// in JSON, and the text can neither end the element nor begin a comment.
pub(crate) fn in_script(value: &serde_json::Value) -> PreEscaped<String> {
    let text = value.to_string();
    PreEscaped(text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

fn reading() -> Markup {
    html! {
        h2 #reading { "How to read this" }
        ul.reading {
            li {
                "A point is measured several times, and all other points between two of its repetitions. Curves go through "
                "the medians, bars reach from minimum to maximum, and faint dots are the single measurements."
            }
            li {
                "Points with hollow markers were simulated: in virtual time, once each, since the same seed gives the same "
                "result. They have their own curves, verdicts and model, separate from measured points."
            }
            li {
                "With shared memory, each CAS and each READ of a value is an attempt. It succeeds if it finds the newest node. "
                "Bytes are frame bytes, relative to a run in which each first attempt succeeds."
            }
            li { "Latency is half a round trip of a ping-pong. Gb/s are 10" sup { "9" } " bits of payload per second." }
            li {
                "Data packets are counted by the RNICs of both ends and predicted by the arithmetic of packets; "
                "\u{2260} marks differences. " i { "Repeated" } " packets are retransmissions, of all repetitions."
            }
            li {
                "Jain\u{2019}s index is 1 if all connections sent the same amount, and 1/N if one sent everything."
            }
            li { "This file contains all text and pictures; it loads nothing." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_ends_no_element() {
        let value = serde_json::json!({ "name": "</script><!-- & -->" });
        let PreEscaped(text) = in_script(&value);
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
