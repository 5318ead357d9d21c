//! First screen: the best protocol, window and batch for each compared size, and how quiet the machine was.

use std::collections::BTreeSet;

use doorbell_record::{PointRecord, Quantity, Spread};
use doorbell_study::experiment::{COMPARED_SIZES, Experiment, QUIET_SPAN, View};
use serde_json::Value;

use super::plot::{self, Curve, cost, family};
use super::{comparison, prefix};
use crate::format::{bytes, with_unit};
use crate::{Model, Run};

/// Answers to the question of the page.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) runs: Vec<AnswersOfRun>,
    pub(crate) plots: Vec<Question>,
}

/// Answers of one run.
#[derive(Debug)]
pub(crate) struct AnswersOfRun {
    /// Name of the run if the page shows several runs.
    pub(crate) run: Option<String>,
    /// Size, and the answers for latency and for throughput. A size that was not measured has no answer.
    pub(crate) rows: Vec<(String, [Option<Answer>; 2])>,
}

/// Best protocol at one size.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    /// Median of the quantity with its unit.
    pub(crate) figure: String,
    pub(crate) protocol: &'static str,
    /// Window and batch.
    pub(crate) configuration: String,
    /// Number of compared protocols, and the next best one.
    pub(crate) others: String,
}

/// Question with the plot that answers it for all sizes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) question: &'static str,
    pub(crate) setting: &'static str,
    /// Data of the plot, for the script.
    pub(crate) plot: Value,
}

/// Returns the answers, or `None` if no run measured a protocol over the message size.
pub(super) fn answers(runs: &[Run], model: Option<&dyn Model>) -> Option<Answers> {
    let (compared, experiments) = (comparison::runs(runs), comparison::experiments());
    if compared.iter().all(|run| run.records.is_empty()) {
        return None;
    }
    let row = |run: &Run, size: usize| {
        (bytes(size as f64), experiments.each_ref().map(|experiment| answer(run, experiment, size)))
    };
    let of = |run: &Run| AnswersOfRun {
        run: (runs.len() > 1).then(|| run.name.clone()),
        rows: COMPARED_SIZES.iter().map(|&size| row(run, size)).collect(),
    };
    let is_there = |it: &&Experiment| compared.iter().any(|run| run.records_of(&it.name).next().is_some());
    let question = |it: &Experiment| Question {
        question: it.question,
        setting: it.setting,
        plot: best_of_each_family(&compared, it, model),
    };
    Some(Answers {
        runs: compared.iter().filter(|run| !run.records.is_empty()).map(of).collect(),
        plots: experiments.iter().filter(is_there).map(question).collect(),
    })
}

/// Returns a sentence for each compared size of a run, with the best protocols. A size that was not measured has no
/// sentence.
pub(crate) fn sentences(run: &Run) -> Vec<String> {
    let all = answers(std::slice::from_ref(run), None);
    let rows = all.into_iter().flat_map(|all| all.runs).flat_map(|of| of.rows);
    rows.filter_map(|(size, [latency, throughput])| sentence(&size, latency.as_ref(), throughput.as_ref())).collect()
}

fn sentence(size: &str, latency: Option<&Answer>, throughput: Option<&Answer>) -> Option<String> {
    let shortest = latency.map(|best| format!("{} has the lowest latency, {}", best.protocol, best.figure));
    let highest = throughput.map(|best| {
        format!("{} with {} has the highest throughput, {}", best.protocol, best.configuration, best.figure)
    });
    let parts: Vec<String> = shortest.into_iter().chain(highest).collect();
    (!parts.is_empty()).then(|| format!("{size}: {}.", parts.join("; ")))
}

/// Returns the best protocol at one size in the first quantity of an experiment.
fn answer(run: &Run, experiment: &Experiment, size: usize) -> Option<Answer> {
    let quantity = *experiment.quantities.first()?;
    let of_size = run.records_of(&experiment.name).filter(|record| record.bytes() == size);
    let mut found: Vec<(&PointRecord, f64)> =
        of_size.filter_map(|record| Some((record, cost(record, quantity)?))).collect();
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (best, _) = *found.first()?;
    let families: BTreeSet<&str> = found.iter().map(|(record, _)| family(record)).collect();
    let next = found.iter().find(|(record, _)| family(record) != family(best));
    let others = match next {
        None => "no other protocol was measured".to_owned(),
        Some((next, _)) => format!(
            "best of {} protocols; next {}, {}{}",
            families.len(),
            title(next),
            figure(next, quantity)?,
            match do_overlap(best, next, quantity) {
                true if best.repetitions.len() == 1 => ", as good",
                true => ", within the spread of repetitions",
                false => "",
            }
        ),
    };
    let (window, batch) = window_and_batch(best);
    Some(Answer {
        figure: figure(best, quantity)?,
        protocol: title(best),
        configuration: format!("window {window}, batch {batch}"),
        others,
    })
}

/// Returns the window and the batch of a point, after the fit into the memory.
pub(crate) fn window_and_batch(record: &PointRecord) -> (usize, usize) {
    match record.repetitions.first().map(|result| &result.fitted).filter(|fitted| fitted.window > 0) {
        Some(fitted) => (fitted.window, fitted.batch),
        None => (record.parameters.window, record.parameters.batch),
    }
}

fn title(record: &PointRecord) -> &'static str {
    record.parameters.protocol.description().title
}

fn figure(record: &PointRecord, quantity: Quantity) -> Option<String> {
    Some(with_unit(record.spread(quantity)?.median, quantity.unit()))
}

/// Returns whether the ranges of the repetitions of two points overlap.
fn do_overlap(one: &PointRecord, other: &PointRecord, quantity: Quantity) -> bool {
    match (one.spread(quantity), other.spread(quantity)) {
        (Some(one), Some(other)) => one.least <= other.most && other.least <= one.most,
        _ => false,
    }
}

/// Returns a plot with one curve for each family of protocols, which has the best point at each size. The curves of the
/// variants are hidden.
fn best_of_each_family(compared: &[Run], experiment: &Experiment, model: Option<&dyn Model>) -> Value {
    let Some(&quantity) = experiment.quantities.first() else { return Value::Null };
    let mut curves = Vec::new();
    for (style, run) in compared.iter().enumerate() {
        let mut records: Vec<&PointRecord> = run.records_of(&experiment.name).collect();
        records.sort_by(|a, b| a.x.total_cmp(&b.x));
        let families: BTreeSet<&str> = records.iter().map(|record| family(record)).collect();
        for name in families {
            let own: Vec<&PointRecord> = records.iter().copied().filter(|record| family(record) == name).collect();
            let variants: BTreeSet<&str> = own.iter().map(|record| record.series.as_str()).collect();
            let of = |variant: &str| own.iter().copied().filter(|record| record.series == variant).collect::<Vec<_>>();
            if variants.len() > 1 {
                let hidden = |&variant: &&str| Curve {
                    name: variant.to_owned(),
                    style,
                    run,
                    records: of(variant),
                    is_hidden: true,
                };
                curves.extend(variants.iter().map(hidden));
            }
            let best = best_at_each_place(&own, quantity);
            curves.push(Curve { name: name.to_owned(), style, run, records: best, is_hidden: false });
        }
    }
    let names: Vec<(String, bool)> = compared.iter().map(|run| (run.name.clone(), run.testbed().is_some())).collect();
    plot::plot(compared, experiment, &names, curves, model)
}

/// Returns the best record at each position. The records are in the order of positions.
fn best_at_each_place<'a>(records: &[&'a PointRecord], quantity: Quantity) -> Vec<&'a PointRecord> {
    let of_place = records.chunk_by(|one, other| one.x == other.x);
    let cost_of = |record: &&PointRecord| cost(record, quantity).unwrap_or(f64::INFINITY);
    of_place.filter_map(|all| all.iter().copied().min_by(|a, b| cost_of(a).total_cmp(&cost_of(b)))).collect()
}

/// Returns a sentence for each run on how quiet its machine was, with the prefix of the run.
pub(super) fn quiet(runs: &[Run], experiments: &[Experiment]) -> Vec<(String, String)> {
    let of = |run: &Run| Some((prefix(runs, &run.name), quiet_of(run, experiments)?));
    runs.iter().filter_map(of).collect()
}

fn quiet_of(run: &Run, experiments: &[Experiment]) -> Option<String> {
    if run.records.is_empty() {
        return None;
    }
    if let Some(plan) = View::new(&run.records).fault_plan() {
        return Some(format!("Faults were injected, so no claim about a clean link is judged: {plan}."));
    }
    if run.testbed().is_some() {
        return Some("Virtual time is quiet: other programs have no effect on a simulation.".to_owned());
    }
    let view = View::new(&run.records);
    let span = |experiment: &Experiment| view.span(&experiment.name, *experiment.quantities.first()?);
    let spans: Vec<f64> = experiments.iter().filter_map(span).collect();
    let (all, restless) = (spans.len(), spans.iter().filter(|span| **span > QUIET_SPAN).count());
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    Some(match Spread::of(spans) {
        None => "How quiet the machine was is unknown, since each point was measured once.".to_owned(),
        Some(spans) if restless == 0 => format!(
            "The machine was quiet: the repetitions of a typical point span {} of their median, and in no experiment \
             more than {}.",
            percent(spans.median),
            percent(QUIET_SPAN)
        ),
        Some(spans) => format!(
            "The machine was not quiet in {restless} of {all} experiments: the repetitions of their typical points \
             span more than {} of the median. Over all experiments, the repetitions of a typical point span {}.",
            percent(QUIET_SPAN),
            percent(spans.median)
        ),
    })
}
