//! The table under a plot, and the environment of runs.

use std::fmt::Write;

use doorbell_study::experiment::{Experiment, PointRecord, Quantity, View};
use doorbell_study::record::PointResult;

use crate::escape::Escaped;
use crate::format::{NOTHING, date, number, place};
use crate::{Model, Run};

/// One heading of a table that sorts.
pub(crate) fn heading(out: &mut String, text: &str, is_number: bool) {
    let class = if is_number { " class=\"number\"" } else { "" };
    let _ = write!(out, "<th scope=\"col\"{class}><button type=\"button\">{}</button></th>", Escaped(text));
}

/// A cell that sorts by its text.
pub(crate) fn text(out: &mut String, text: impl std::fmt::Display) {
    let _ = write!(out, "<td>{}</td>", Escaped(text));
}

/// A cell that sorts by a number; behind all others if it is none.
pub(crate) fn value(out: &mut String, value: f64, text: impl std::fmt::Display) {
    let key = if value.is_finite() { value.to_string() } else { String::new() };
    let _ = write!(out, "<td class=\"number\" data-value=\"{key}\">{}</td>", Escaped(text));
}

fn nothing(out: &mut String) {
    value(out, f64::NAN, NOTHING);
}

/// All points of an experiment.
pub(crate) fn points(out: &mut String, runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\"><table class=\"sortable\"><thead><tr>");
    if runs.len() > 1 {
        heading(out, "run", false);
    }
    heading(out, "configuration", false);
    heading(out, experiment.sweep, true);
    for quantity in experiment.quantities {
        heading(out, &label(*quantity), true);
        heading(out, "least \u{2013} most", true);
    }
    if model.is_some() {
        heading(out, "model", true);
        heading(out, "bottleneck", false);
    }
    for name in ["times", "data packets", "predicted", "repeated", "RNR NAKs"] {
        heading(out, name, true);
    }
    out.push_str("</tr></thead><tbody>");
    for run in runs {
        let mut records: Vec<&PointRecord> = View::new(&run.records).of(&experiment.name).collect();
        let order = |record: &PointRecord| experiment.points.iter().position(|point| point.series == record.series);
        records.sort_by(|a, b| (order(a), &a.series).cmp(&(order(b), &b.series)).then(a.x.total_cmp(&b.x)));
        for record in records {
            out.push_str("<tr>");
            if runs.len() > 1 {
                text(out, &run.name);
            }
            row(out, run, record, experiment, model);
            out.push_str("</tr>");
        }
    }
    out.push_str("</tbody></table></div>");
}

fn label(quantity: Quantity) -> String {
    match quantity.unit() {
        "" => quantity.name().to_owned(),
        unit => format!("{}, {unit}", quantity.name()),
    }
}

fn row(out: &mut String, run: &Run, record: &PointRecord, experiment: &Experiment, model: Option<&dyn Model>) {
    text(out, &record.series);
    value(out, record.x, place(experiment.sweep, record.x));
    for quantity in experiment.quantities {
        match record.spread(*quantity) {
            Some(spread) => {
                value(out, spread.median, number(spread.median));
                let range = format!("{} \u{2013} {}", number(spread.least), number(spread.most));
                value(out, spread.most - spread.least, range);
            }
            None => (0..2).for_each(|_| nothing(out)),
        }
    }
    if let Some(model) = model {
        match experiment.quantities.first().and_then(|quantity| model.predict(run, record, *quantity)) {
            Some(prediction) => {
                value(out, prediction.value, number(prediction.value));
                text(out, prediction.bottleneck);
            }
            None => (0..2).for_each(|_| nothing(out)),
        }
    }
    let sum = |of: fn(&PointResult) -> u64| -> u64 { record.repetitions.iter().map(of).fold(0, u64::saturating_add) };
    value(out, record.repetitions.len() as f64, record.repetitions.len());
    let counted = sum(|r| r.counted.client.data_packets.saturating_add(r.counted.server.data_packets));
    let least = sum(|r| r.predicted.client.data_packets.saturating_add(r.predicted.server.data_packets));
    // One end may ask the other by READ, as often as it likes.
    let asks = record.repetitions.iter().any(|r| r.predicted.client.asks || r.predicted.server.asks);
    let most = sum(|r| r.predicted.client.data_packets_max.saturating_add(r.predicted.server.data_packets_max));
    let most = if asks { u64::MAX } else { most };
    let differs = if (least..=most).contains(&counted) { "" } else { " \u{2260}" };
    value(out, counted as f64, format!("{counted}{differs}"));
    let predicted = match most {
        u64::MAX => format!("{least} or more"),
        most if most == least => least.to_string(),
        most => format!("{least} \u{2013} {most}"),
    };
    value(out, least as f64, predicted);
    let repeated =
        sum(|r| r.counted.client.retransmitted_packets.saturating_add(r.counted.server.retransmitted_packets));
    value(out, repeated as f64, repeated);
    let naks = sum(|r| r.counted.client.rnr_naks.saturating_add(r.counted.server.rnr_naks));
    value(out, naks as f64, naks);
}

/// Where each run was measured.
pub(crate) fn environments(out: &mut String, runs: &[Run]) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">run</th>");
    for run in runs {
        let _ = write!(out, "<th scope=\"col\">{}</th>", Escaped(&run.name));
    }
    out.push_str("</tr></thead><tbody>");
    type Line = (&'static str, fn(&Run) -> String);
    let lines: [Line; 11] = [
        ("processor", |run| of(run, |e| e.cpu.clone())),
        ("CPUs", |run| of(run, |e| e.cpus.to_string())),
        ("Linux", |run| of(run, |e| e.kernel.clone())),
        ("provider", |run| of(run, |e| e.provider.clone())),
        ("UDP port", |run| of(run, |e| e.udp_port.to_string())),
        ("largest path MTU", |run| of(run, |e| format!("{} B", e.active_mtu))),
        ("receive buffer granted", |run| of(run, |e| format!("{} B", e.receive_buffer_bytes))),
        ("Doorbell", |run| of(run, |e| e.doorbell.clone())),
        ("begun", |run| of(run, |e| date(e.unix_time_s))),
        ("points", |run| run.records.len().to_string()),
        ("seconds measured", |run| {
            let results = run.records.iter().flat_map(|record| &record.repetitions);
            format!("{:.0}", results.map(|result| result.seconds).sum::<f64>())
        }),
    ];
    for (name, line) in lines {
        let _ = write!(out, "<tr><th scope=\"row\">{name}</th>");
        for run in runs {
            text(out, line(run));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// What the records of a run say of their environment, each different answer once.
pub(crate) fn of(run: &Run, line: impl Fn(&doorbell_study::environment::Environment) -> String) -> String {
    let mut all: Vec<String> = run.records.iter().map(|record| line(&record.environment)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(4);
    all.join(" / ")
}
