//! The document.

use std::fmt::Write;

use doorbell_study::experiment::{Experiment, Finding};

use crate::escape::{Escaped, json};
use crate::format::date;
use crate::{Found, Model, Run, comparison, experiments, model, plot, sentence, table, verdicts_of};

const STYLE: &str = include_str!("../assets/style.css");
const SCRIPT: &str = include_str!("../assets/script.js");

pub(crate) fn page(runs: &[Run], model: Option<&dyn Model>) -> String {
    let experiments = experiments(runs);
    let found: Vec<Found> =
        experiments.iter().flat_map(|experiment| runs.iter().flat_map(|run| verdicts_of(run, experiment))).collect();
    let mut out = String::new();
    // The policy is a second fence behind escaping: nothing is loaded, whatever the records say.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Doorbell study: {}</title>\
         <style>{STYLE}</style></head><body>",
        Escaped(names(runs))
    );
    header(&mut out, runs, &found);
    out.push_str("<main>");
    comparison::table(&mut out, runs);
    shapes(&mut out, runs, &found);
    let compared = comparison::runs(runs);
    let comparisons: Vec<Experiment> = comparison::experiments()
        .into_iter()
        .filter(|experiment| compared.iter().flat_map(|run| &run.records).any(|it| it.experiment == experiment.name))
        .collect();
    contents(&mut out, comparisons.iter().chain(&experiments));
    for experiment in &comparisons {
        section(&mut out, &compared, experiment, model);
    }
    for experiment in &experiments {
        section(&mut out, runs, experiment, model);
    }
    if let Some(model) = model {
        model::section(&mut out, runs, model);
    }
    out.push_str("<h2 id=\"environment\">Environment</h2>");
    table::environments(&mut out, runs);
    out.push_str(READING);
    let _ = writeln!(out, "</main><script>{SCRIPT}</script></body></html>");
    out
}

fn names(runs: &[Run]) -> String {
    runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn header(out: &mut String, runs: &[Run], found: &[Found]) {
    out.push_str("<header><p class=\"kicker\">Doorbell study</p><h1>Which protocol, with which parameters?</h1>");
    for run in runs {
        let name = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        let _ = write!(
            out,
            "<p class=\"where\">{}{} on {} CPUs, Linux {}, provider {}, {}</p>",
            Escaped(name),
            Escaped(table::of(run, |e| e.cpu.clone())),
            Escaped(table::of(run, |e| e.cpus.to_string())),
            Escaped(table::of(run, |e| e.kernel.clone())),
            Escaped(table::of(run, |e| e.provider.clone())),
            Escaped(table::of(run, |e| date(e.unix_time_s))),
        );
    }
    let points: usize = runs.iter().map(|run| run.records.len()).sum();
    let times: usize = runs.iter().flat_map(|run| &run.records).map(|record| record.repetitions.len()).sum();
    let _ = write!(out, "<ul class=\"tiles\"><li><b>{points}</b> points, measured {times} times</li>");
    for outcome in [Finding::Holds, Finding::DoesNotHold, Finding::CannotShow, Finding::NotMeasured] {
        let count = found.iter().filter(|found| found.verdict.outcome == outcome).count();
        if count > 0 {
            let _ = write!(out, "<li class=\"{}\"><b>{count}</b> {}</li>", class(outcome), tile(outcome));
        }
    }
    out.push_str("</ul></header>");
}

fn class(outcome: Finding) -> &'static str {
    match outcome {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "differs",
        Finding::CannotShow => "cannot",
        Finding::NotMeasured => "missing",
    }
}

/// Not by colour alone.
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

fn badge(out: &mut String, outcome: Finding) {
    let _ = write!(out, "<span class=\"badge {}\">{} {}</span>", class(outcome), mark(outcome), outcome.name());
}

/// All verdicts in one table.
fn shapes(out: &mut String, runs: &[Run], found: &[Found]) {
    if found.is_empty() {
        return;
    }
    out.push_str(
        "<h2 id=\"verdicts\">Published shapes, and what the data say</h2><p>Shapes of an evaluation on \
                  ConnectX-5 RNICs over 100 Gb/s Ethernet; each verdict is computed from the best repetition of each \
                  point, since other programs only ever slow one down.</p>\
                  <div class=\"scroll cards\" tabindex=\"0\"><table class=\"sortable\"><thead><tr>",
    );
    if runs.len() > 1 {
        table::heading(out, "run", false);
    }
    for name in ["experiment", "published", "verdict", "because"] {
        table::heading(out, name, false);
    }
    out.push_str("</tr></thead><tbody>");
    for found in found {
        out.push_str("<tr>");
        if runs.len() > 1 {
            table::text(out, &found.run);
        }
        let name = Escaped(&found.experiment);
        let _ = write!(out, "<td><a href=\"#{}\">{name}</a></td>", anchor(&found.experiment));
        table::text(out, found.verdict.published);
        out.push_str("<td>");
        badge(out, found.verdict.outcome);
        out.push_str("</td>");
        table::text(out, &found.verdict.because);
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// A name as part of an address: letters, digits and dashes.
fn anchor(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    std::iter::once('x').chain(std::iter::once('-')).chain(plain).collect()
}

fn contents<'a>(out: &mut String, experiments: impl Iterator<Item = &'a Experiment>) {
    out.push_str("<h2 id=\"experiments\">Experiments</h2><nav><ol>");
    for experiment in experiments {
        let (anchor, name) = (anchor(&experiment.name), Escaped(&experiment.name));
        let _ = write!(out, "<li><a href=\"#{anchor}\">{name}</a> {}</li>", Escaped(experiment.question));
    }
    out.push_str("</ol></nav>");
}

fn section(out: &mut String, runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) {
    let _ = write!(
        out,
        "<section id=\"{}\"><h3>{}</h3><p class=\"question\">{}</p><p class=\"setting\">{}</p>",
        anchor(&experiment.name),
        Escaped(&experiment.name),
        Escaped(experiment.question),
        Escaped(experiment.setting)
    );
    for run in runs {
        if let Some(summary) = sentence::summary(run, experiment) {
            let name = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
            let _ = write!(out, "<p class=\"summary\"><b>{}</b>{}</p>", Escaped(name), Escaped(summary));
        }
    }
    let _ = write!(
        out,
        "<figure class=\"plot\"><script type=\"application/json\">{}</script><noscript>The plot takes JavaScript; the \
         table below has all its numbers.</noscript></figure>",
        json(&plot::data(runs, experiment, model))
    );
    let verdicts: Vec<Found> = runs.iter().flat_map(|run| verdicts_of(run, experiment)).collect();
    if !verdicts.is_empty() {
        out.push_str("<ul class=\"verdicts\">");
        for found in verdicts {
            let run = if runs.len() > 1 { format!("{}: ", found.run) } else { String::new() };
            out.push_str("<li>");
            badge(out, found.verdict.outcome);
            let _ = write!(
                out,
                " <b>{}</b> <span>{}{}</span></li>",
                Escaped(found.verdict.published),
                Escaped(run),
                Escaped(found.verdict.because)
            );
        }
        out.push_str("</ul>");
    }
    table::points(out, runs, experiment, model);
    out.push_str("</section>");
}

const READING: &str = "<h2 id=\"reading\">How to read this</h2><ul class=\"reading\">\
<li>A point is measured several times, with every other point between. Curves go through the medians, bars reach from \
the least to the most, and faint dots are the single measurements.</li>\
<li>Latency is half a round trip of a ping-pong. Gb/s are 10<sup>9</sup> bits of payload per second.</li>\
<li>Data packets are counted by the RNICs of both ends and predicted by the arithmetic of packets; \u{2260} marks where \
they differ. <i>Repeated</i> are packets sent again, of all repetitions.</li>\
<li>Jain\u{2019}s index is 1 where all connections sent as much, and 1/N where one sent everything.</li>\
<li>Everything here, text and pictures, is in this file; it loads nothing.</li></ul>";
