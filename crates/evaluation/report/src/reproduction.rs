//! Page that compares published and simulated figures.

use std::collections::BTreeSet;

use doorbell_claims::{Amount, CheckedShape, Configuration, Finding, Testbed, Verdict};
use doorbell_model::check::{Answer, Checked, Field, Said, Status};
use doorbell_record::Quantity;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::beside::{self, Beside, PUBLISHED, SIMULATED};
use crate::curves::{Curve, curve_beside};
use crate::figure;
use crate::format::{bytes, number};
use crate::page::{SCRIPT, head};
use crate::published::drawn;
use crate::sweep::{Sweep, SweepCurve, SweepPoint, plot};
use crate::table::{heading, text, value};

/// Published figures of a testbed, and the results of simulating them.
#[derive(Clone, Debug)]
pub struct Reproduction<'a> {
    /// The simulated testbed.
    pub testbed: &'a str,
    /// Description of the testbed.
    pub about: &'a str,
    /// The published figures.
    pub published: &'a Testbed,
    /// The checked numbers.
    pub rows: Vec<&'a Checked<'a>>,
    /// The checked sentences.
    pub shapes: Vec<&'a CheckedShape<'a>>,
    /// Simulated results by which rows and shapes were judged, each with the experiment for which it was simulated.
    pub answers: Vec<(&'a str, Answer)>,
}

/// Quantities of a simulation, in the order of its results.
const QUANTITIES: [(&str, &str); 3] = [("message rate", "M/s"), ("throughput", "Gb/s"), ("latency", "us")];

fn place_of(quantity: Quantity) -> Option<usize> {
    match quantity {
        Quantity::MessageRate => Some(0),
        Quantity::Throughput => Some(1),
        Quantity::MedianLatency => Some(2),
        _ => None,
    }
}

/// Returns the parameter along which the figures of an experiment were published.
fn axis(experiment: &str) -> Option<&'static str> {
    match experiment.split_once('/')?.1 {
        "latency" | "bandwidth" | "large-or-batch" => Some("size"),
        "window" => Some("window"),
        "batch" => Some("batch"),
        "atomics" => Some("queue pairs"),
        "write" | "read" | "request-response" => Some("outstanding"),
        other if other.starts_with("threads") || other.starts_with("n-to-1") => Some("senders"),
        _ => None,
    }
}

/// Returns the position of a published configuration on an axis.
fn place_on(axis: &str, configuration: &Configuration) -> Option<f64> {
    let amount = match axis {
        "size" => configuration.bytes,
        "window" | "outstanding" => configuration.window,
        "batch" => configuration.batch,
        "senders" => configuration.threads,
        "queue pairs" => configuration.connections,
        _ => None,
    };
    match amount {
        Some(Amount::Is(number)) => Some(number),
        _ => None,
    }
}

fn shown(field: Field) -> String {
    match field {
        Field::Number(number, "B") => bytes(number as f64),
        Field::Number(number, _) => number.to_string(),
        Field::Word(word) => word.to_owned(),
    }
}

impl Reproduction<'_> {
    fn experiments(&self) -> Vec<&str> {
        let rows = self.rows.iter().map(|checked| checked.row.experiment.as_str());
        let mut seen = BTreeSet::new();
        rows.chain(self.shapes.iter().map(|checked| checked.shape.experiment.as_str()))
            .filter(|experiment| seen.insert(*experiment))
            .collect()
    }

    /// Returns the simulated results of an experiment as a sweep over all parameters whose values differ.
    fn sweep(&self, experiment: &str) -> Sweep {
        let own = self.answers.iter().filter(|(of, _)| *of == experiment).map(|(_, answer)| answer);
        let mut own: Vec<&Answer> = own.collect();
        let names: Vec<&str> = own.first().map_or(Vec::new(), |answer| answer.fields.iter().map(|it| it.0).collect());
        own.retain(|answer| answer.fields.iter().map(|it| it.0).eq(names.iter().copied()));
        let differs = |at: &usize| own.iter().any(|answer| answer.fields[*at].1 != own[0].fields[*at].1);
        let varied: Vec<usize> = (0..names.len()).filter(differs).collect();
        let point = |answer: &&Answer| {
            let fields = || varied.iter().map(|at| answer.fields[*at].1);
            let number = |field| match field {
                Field::Number(number, unit) => Some((number as f64, unit)),
                Field::Word(_) => None,
            };
            let (results, bottleneck) = match answer.said {
                Said::LatencyNs(ns) => ([None, None, Some(ns / 1e3)], String::new()),
                Said::Rate(rate, binding) => {
                    let gb = (answer.bytes > 0).then_some(rate * answer.bytes as f64 * 8.0 / 1e9);
                    ([Some(rate / 1e6), gb, None], binding.to_string())
                }
            };
            SweepPoint {
                values: fields().map(shown).collect(),
                numbers: fields().map(number).collect(),
                results: results.to_vec(),
                bottleneck,
            }
        };
        Sweep {
            testbed: format!("{}, simulated", self.testbed),
            setting: Vec::new(),
            axes: varied.iter().map(|at| names[*at].to_owned()).collect(),
            quantities: QUANTITIES.to_vec(),
            points: own.iter().map(point).collect(),
        }
    }

    /// Renders the published curves and their simulation.
    fn curves(&self) -> Markup {
        let simulated = format!("{}, simulated", self.testbed);
        let published = format!("{}, published", self.published.name);
        html! {
            @for Beside { over, data } in beside::plots([&simulated, &published], &self.rows) {
                section {
                    h3 { "Published curves over " (over) " " span.badge.simulated { "simulated: " (self.testbed) } }
                    (figure::plot(&data))
                }
            }
        }
    }

    /// Returns the plot of an experiment: simulated curves, and published points and curves.
    fn plot(&self, experiment: &str, sweep: &Sweep) -> Option<Value> {
        let (axis_name, unit, curves) = sweep.curves(axis(experiment))?;
        let mut series: Vec<Value> = curves.iter().map(|curve| curve.series(SIMULATED)).collect();
        if axis(experiment) == Some(axis_name) {
            let published = self.published_curves(experiment, axis_name, &curves);
            series.extend(published.iter().map(|curve| curve.series(PUBLISHED)));
        }
        let published = format!("{}, published", self.published.name);
        Some(plot((axis_name, unit), &QUANTITIES, &[(&sweep.testbed, true), (&published, false)], series))
    }

    fn published_curves(&self, experiment: &str, axis: &str, simulated: &[SweepCurve]) -> Vec<SweepCurve> {
        let only = |at: usize, value: f64| {
            let mut results = vec![None; QUANTITIES.len()];
            results[at] = Some(value);
            results
        };
        let of_row = |checked: &&Checked<'_>| {
            let row = checked.row;
            let ((quantity, value), x) = (drawn(row)?, place_on(axis, &row.configuration)?);
            Some(SweepCurve { name: row.id.clone(), points: vec![(x, only(place_of(quantity)?, value))] })
        };
        let own = |_: &str, quantity: Quantity, from: f64| {
            let at = place_of(quantity)?;
            let points = |curve: &SweepCurve| {
                let points = curve.points.iter().filter_map(|(x, results)| Some((*x, results[at]?)));
                let points: Vec<(f64, f64)> = points.filter(|(x, _)| *x >= from).collect();
                (points.len() > 1).then_some((curve.name.clone(), points))
            };
            simulated.iter().find_map(points)
        };
        let of_shape = |checked: &&CheckedShape<'_>| {
            let Curve { name, quantity, points } = curve_beside(self.published, checked.shape, own)?;
            let at = place_of(quantity)?;
            Some(SweepCurve { name, points: points.into_iter().map(|(x, value)| (x, only(at, value))).collect() })
        };
        let rows = self.rows.iter().filter(|checked| checked.row.experiment == experiment).filter_map(of_row);
        let shapes = self.shapes.iter().filter(|checked| checked.shape.experiment == experiment);
        rows.chain(shapes.filter_map(of_shape)).collect()
    }

    fn section(&self, experiment: &str) -> Markup {
        let rows: Vec<&&Checked<'_>> = self.rows.iter().filter(|it| it.row.experiment == experiment).collect();
        let shapes: Vec<&&CheckedShape<'_>> =
            self.shapes.iter().filter(|it| it.shape.experiment == experiment).collect();
        let sweep = self.sweep(experiment);
        html! {
            section {
                h3 { (experiment) " " span.badge.simulated { "simulated: " (self.testbed) } }
                @if let Some(data) = self.plot(experiment, &sweep) { (figure::plot(&data)) }
                @if !rows.is_empty() {
                    div.scroll tabindex="0" { table.sortable {
                        thead { tr {
                            (heading("published number", false)) (heading("published", true)) (heading("simulated", true))
                            (heading("deviation", true)) (heading("basis", false)) (heading("status", false))
                            (heading("binds", false)) (heading("row", false))
                        } }
                        tbody { @for checked in rows { (row(checked)) } }
                    } }
                }
                @if !shapes.is_empty() {
                    ul.verdicts {
                        @for checked in shapes {
                            @let Verdict { finding, because } = &checked.verdict;
                            li {
                                (badge(class_of(*finding), holds(*finding))) " " b { (checked.shape.says) } " "
                                (basis(checked.is_fitted))
                                span { (because) }
                            }
                        }
                    }
                }
                @if !sweep.points.is_empty() && !sweep.axes.is_empty() {
                    details { summary { "All that was simulated here" } (sweep.table()) }
                }
            }
        }
    }
}

fn row(checked: &Checked<'_>) -> Markup {
    let (published, relation) = (checked.row.value, checked.row.relation);
    html! {
        tr {
            (text(&checked.row.says))
            (value(published.number, checked.published()))
            @match &checked.outcome {
                Ok(compared) => {
                    @let (simulated, unit) = (compared.found.number, compared.found.unit);
                    (value(simulated, format_args!("{} {unit}", number(simulated))))
                    (value(compared.deviation, compared.deviation_of(relation)))
                    td { (basis(checked.is_fitted)) }
                    td { (status(checked.status())) }
                    (text(checked.binding.map_or("", |binding| binding.name)))
                }
                Err(lack) => {
                    (value(f64::NAN, crate::format::NOTHING)) (value(f64::NAN, crate::format::NOTHING))
                    td { (basis(checked.is_fitted)) }
                    td { (status(checked.status())) ": " (lack) }
                    (text(""))
                }
            }
            (text(&checked.row.id))
        }
    }
}

fn basis(is_fitted: bool) -> Markup {
    html! { @if is_fitted { span.badge.cannot { "fitted" } } @else { span.badge { "predicted" } } }
}

fn badge(class: &str, words: &str) -> Markup {
    let mark = match class {
        "holds" => "\u{2713}",
        "differs" => "\u{2717}",
        _ => "\u{2026}",
    };
    html! { span class={ "badge " (class) } { (mark) " " (words) } }
}

fn status(status: Status) -> Markup {
    match status {
        Status::Within => badge("holds", "within"),
        Status::Beyond => badge("differs", "beyond"),
        Status::NoModel => badge("missing", "not simulated"),
    }
}

fn holds(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "does not hold",
        Finding::CannotShow | Finding::NoValues => "not simulated",
    }
}

fn class_of(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "differs",
        Finding::CannotShow | Finding::NoValues => "missing",
    }
}

/// Renders the comparison of published and simulated figures as one self-contained HTML document.
pub fn reproduction_html(all: &[Reproduction<'_>]) -> String {
    let rows = |wanted: Status| all.iter().flat_map(|it| &it.rows).filter(|it| it.status() == wanted).count();
    let shapes =
        |wanted: Finding| all.iter().flat_map(|it| &it.shapes).filter(|it| it.verdict.finding == wanted).count();
    let names: Vec<&str> = all.iter().map(|it| it.testbed).collect();
    let tiles = [
        ("holds", rows(Status::Within), "published numbers within their tolerance"),
        ("differs", rows(Status::Beyond), "beyond"),
        ("missing", rows(Status::NoModel), "not simulated"),
        ("holds", shapes(Finding::Holds), "published shapes hold"),
        ("differs", shapes(Finding::DoesNotHold), "do not hold"),
        ("missing", shapes(Finding::NoValues), "not simulated"),
    ];
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(html! { "Doorbell: published and simulated: " (names.join(", ")) }))
            body {
                header {
                    p.kicker { "Doorbell, simulated" }
                    h1 { "Published and simulated figures" }
                    p.where {
                        "Each published number and sentence, simulated in virtual time in the published configuration; nothing "
                        "here was measured. " b { "Fitted" } " are those to which a value of the testbed was fitted; all others are "
                        b { "predicted" } "."
                    }
                    ul.tiles { @for (class, count, words) in tiles { li class=(class) { b { (count) } " " (words) } } }
                }
                main {
                    @for one in all {
                        h2 { (one.published.name) ", simulated as " (one.testbed) }
                        p.setting { (one.about) ". Published: " (one.published.hardware) "." }
                        (one.curves())
                        @for experiment in one.experiments() { (one.section(experiment)) }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
        "\n"
    };
    // HTML allows no control characters except newlines, but names may contain all of them.
    page.into_string().replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use doorbell_model::check::{Analytic, Recorder, check_shape};
    use doorbell_model::parameters::Parameters;

    use super::*;

    /// Calls `body` with a reproduction that has results of the analytic model in place of the simulator.
    fn predicted(body: impl FnOnce(&Reproduction<'_>)) {
        let published = doorbell_claims::testbed("t1").expect("a testbed");
        let parameters = Parameters::t1();
        let mut model = Analytic::new(Some(&parameters));
        let mut recorder = Recorder::new(&mut model);
        let mut answers = Vec::new();
        let mut rows = Vec::new();
        for row in &published.rows {
            rows.push(Checked::of(row, &mut recorder));
            answers.extend(recorder.take().into_iter().map(|answer| (row.experiment.as_str(), answer)));
        }
        let mut shapes = Vec::new();
        for shape in &published.shapes {
            shapes.push(check_shape(shape, &mut recorder));
            answers.extend(recorder.take().into_iter().map(|answer| (shape.experiment.as_str(), answer)));
        }
        let (rows, shapes) = (rows.iter().collect(), shapes.iter().collect());
        body(&Reproduction { testbed: "mine & yours", about: "nothing", published, rows, shapes, answers });
    }

    #[test]
    fn every_row_and_shape_is_on_the_page_with_its_verdict() {
        predicted(|reproduction| {
            let page = reproduction_html(std::slice::from_ref(reproduction));
            for needed in ["nothing here was measured", "mine &amp; yours", "fitted", "predicted", "does not hold"] {
                assert!(page.contains(needed), "{needed} is missing");
            }
            for row in &reproduction.published.rows {
                assert!(page.contains(&format!("<td>{}</td>", row.id)), "{} is missing", row.id);
            }
            assert_eq!(page.matches("<li><span class=\"badge ").count(), reproduction.published.shapes.len());
            assert!(!page.contains("mine & yours,"));
        });
    }

    #[test]
    fn plots_show_published_and_simulated_points() {
        predicted(|reproduction| {
            let experiment = "send-receive/latency";
            let data = reproduction.plot(experiment, &reproduction.sweep(experiment)).expect("a plot");
            assert_eq!(data["sweep"], "size, B");
            assert_eq!(data["simulated"], serde_json::json!([true, false]));
            let series = data["series"].as_array().expect("series");
            let run = |wanted: usize| series.iter().filter(|series| series["run"] == wanted).collect::<Vec<_>>();
            let (simulated, published) = (run(SIMULATED), run(PUBLISHED));
            let names: Vec<_> = published.iter().map(|series| series["name"].as_str().expect("a name")).collect();
            assert_eq!(names, ["send-receive/base-latency", "send-receive/latency-is-a-line (shape)"]);
            // The published number is a point at 16 B, in microseconds. The simulated curve has a point at 16 B too.
            assert_eq!(published[0]["points"][0]["x"], 16.0);
            assert_eq!(published[0]["points"][0]["y"][2]["median"], 2.0);
            assert!(simulated.iter().any(|series| series["points"][0]["x"] == 16.0), "{simulated:?}");

            // The axis is the number of senders, although more sizes than numbers of senders were simulated.
            let experiment = "send-receive/n-to-1-srq";
            let data = reproduction.plot(experiment, &reproduction.sweep(experiment)).expect("a plot");
            assert_eq!(data["sweep"], "senders");
        });
    }
}
