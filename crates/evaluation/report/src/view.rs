//! View of the report: all data of the page, computed once from the records. Drawing computes nothing.

mod answers;
mod changes;
pub(crate) mod comparison;
pub(crate) mod curves;
mod environment;
mod hosts;
mod links;
mod model;
mod plot;
mod points;
pub(crate) mod published;
mod requests;
mod sentence;
mod strategies;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod tests;

use doorbell_claims::{Testbed, Verdict};
use doorbell_protocols::Protocol;
use doorbell_record::PointRecord;
use doorbell_study::experiment::{Experiment, FAR_MEMORY, REQUESTS};
use serde_json::Value;

pub(crate) use answers::{Answer, Answers, Question, sentences, window_and_batch};
pub use changes::Changed;
pub(crate) use changes::{Common, Overview, pair};
pub(crate) use links::LinksOfRun;
pub(crate) use model::{ModelOfRun, Quality};
pub(crate) use points::ordered;
pub(crate) use published::Published;
pub(crate) use strategies::{Figures, StrategiesOfRun};

use crate::format::date;
use crate::{Found, Model, Run, Tally, experiments, verdicts_of};
use table::{Cell, Table};

/// All data of the page.
#[derive(Debug)]
pub(crate) struct View {
    /// Names of all runs.
    pub(crate) names: String,
    /// Question that the page answers.
    pub(crate) question: &'static str,
    pub(crate) origins: Vec<Origin>,
    /// Sentences on how quiet the machine of each run was, with the prefix of the run.
    pub(crate) quiet: Vec<(String, String)>,
    /// Best protocol, window and batch for each size.
    pub(crate) answers: Option<Answers>,
    /// Sentence on the lack of answers.
    pub(crate) unanswered: Option<&'static str>,
    pub(crate) tiles: Tiles,
    /// Changes between two runs.
    pub(crate) changes: Option<Overview>,
    /// Protocols at a glance.
    pub(crate) glance: Option<Table>,
    /// Requests with replies, by the number of clients.
    pub(crate) requests: Option<Table>,
    pub(crate) links: Vec<LinksOfRun>,
    /// Verdicts on goals.
    pub(crate) goals: Vec<Judged>,
    pub(crate) strategies: Vec<StrategiesOfRun>,
    /// Verdicts on published shapes.
    pub(crate) shapes: Option<Table>,
    pub(crate) sections: Vec<Section>,
    pub(crate) models: Option<Vec<ModelOfRun>>,
    pub(crate) environments: Table,
    pub(crate) hosts: Option<Table>,
}

/// Machine and date of a run.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) prefix: String,
    /// The simulated testbed, or `None` if the run was measured.
    pub(crate) testbed: Option<String>,
    pub(crate) cpu: String,
    pub(crate) cpus: String,
    pub(crate) kernel: String,
    pub(crate) provider: String,
    pub(crate) date: String,
}

/// Numbers of points and of verdicts.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// Measured points and their repetitions, or `None` if all points were simulated.
    pub(crate) measured: Option<(usize, usize)>,
    pub(crate) simulated: usize,
    /// Verdicts on published shapes.
    pub(crate) verdicts: Tally,
}

/// Verdict in a list.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) prefix: String,
    pub(crate) says: &'static str,
    pub(crate) verdict: Verdict,
    /// Whether the machine was not quiet.
    pub(crate) is_restless: bool,
}

/// Section of an experiment.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) question: &'static str,
    pub(crate) setting: &'static str,
    /// Path of the guide's page about the protocol, or about all protocols, from the root of the repository.
    pub(crate) page: Option<&'static str>,
    /// Testbeds on which the experiment was simulated.
    pub(crate) testbeds: Vec<String>,
    /// Prefix of a run, and the summary of the experiment in the run.
    pub(crate) summaries: Vec<(String, String)>,
    /// Data of the plot, for the script.
    pub(crate) plot: Value,
    pub(crate) verdicts: Vec<Judged>,
    /// Changes between two runs.
    pub(crate) changes: Option<Common>,
    pub(crate) points: Table,
    /// CPU time of each host.
    pub(crate) cpu: Option<Table>,
    pub(crate) published: Option<Published>,
}

impl View {
    /// Computes the view of these runs.
    pub(crate) fn new(runs: &[Run], model: Option<&dyn Model>, published: Option<&Testbed>) -> Self {
        let experiments = experiments(runs);
        let judged = |experiment| runs.iter().flat_map(move |run| verdicts_of(run, experiment)).collect();
        let verdicts: Vec<Vec<Found>> = experiments.iter().map(judged).collect();
        let (goals, shapes): (Vec<&Found>, Vec<&Found>) =
            verdicts.iter().flatten().partition(|found| found.claim.is_goal());
        let (goals, tiles) = (goals.into_iter().map(|it| Judged::new(runs, it)).collect(), Tiles::new(runs, &shapes));
        let shapes = shapes_table(runs, &shapes);
        let sections = experiments.iter().zip(&verdicts);
        let sections = sections.map(|(experiment, found)| Section::new(runs, experiment, found, model, published));
        let (question, answers) = (question(runs), answers::answers(runs, model));
        let asked = experiments.iter().find(|experiment| experiment.name == REQUESTS);
        let is_unanswered = question == PROTOCOLS && answers.is_none() && !experiments.is_empty();
        Self {
            names: runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", "),
            question,
            origins: runs.iter().map(|run| Origin::new(runs, run)).collect(),
            quiet: answers::quiet(runs, &experiments),
            answers,
            unanswered: is_unanswered.then_some(
                "This page ranks no protocols, since none of its experiments varies the message size of a protocol. \
                 `doorbell study` without names of experiments measures them.",
            ),
            tiles,
            changes: pair(runs).map(|pair| pair.overview(&experiments)),
            glance: comparison::table(runs),
            requests: asked.and_then(|experiment| requests::table(runs, experiment, model)),
            links: links::links(runs),
            goals,
            strategies: strategies::strategies(runs),
            shapes,
            sections: sections.collect(),
            models: model.map(|model| model::models(runs, model)),
            environments: environment::environments(runs),
            hosts: hosts::hosts(runs),
        }
    }
}

/// Returns the name of a run as a prefix if the page shows several runs, else an empty text.
fn prefix(runs: &[Run], name: &str) -> String {
    if runs.len() > 1 { format!("{name}: ") } else { String::new() }
}

/// Question of a page on protocols.
const PROTOCOLS: &str = "Which protocol, with which parameters?";

fn question(runs: &[Run]) -> &'static str {
    let is_far = |record: &PointRecord| record.experiment.starts_with(FAR_MEMORY);
    let mut records = runs.iter().flat_map(|run| &run.records).peekable();
    let is_about_memory = records.peek().is_some() && records.all(is_far);
    if is_about_memory { "How much does sharing memory cost, and which strategy avoids it?" } else { PROTOCOLS }
}

/// Returns all verdicts on published shapes.
fn shapes_table(runs: &[Run], found: &[&Found]) -> Option<Table> {
    let row = |found: &&Found| {
        let mut cells: Vec<Cell> = (runs.len() > 1).then(|| Cell::text(&found.run)).into_iter().collect();
        cells.extend([
            Cell::Experiment(found.experiment.clone()),
            Cell::text(found.claim.says),
            Cell::Verdict(found.verdict.finding, found.is_restless),
            Cell::text(&found.verdict.because),
        ]);
        cells
    };
    Table::default()
        .texts((runs.len() > 1).then_some("run"))
        .texts(["experiment", "published", "verdict", "because"])
        .with_rows(found.iter().map(row))
}

impl Origin {
    fn new(runs: &[Run], run: &Run) -> Self {
        Self {
            prefix: prefix(runs, &run.name),
            testbed: run.testbed().map(str::to_owned),
            cpu: environment::of(run, |e| e.cpu.clone()),
            cpus: environment::of(run, |e| e.cpus.to_string()),
            kernel: environment::of(run, |e| e.kernel.clone()),
            provider: environment::of(run, |e| e.provider.clone()),
            date: environment::of(run, |e| date(e.unix_time_s)),
        }
    }
}

impl Tiles {
    fn new(runs: &[Run], found: &[&Found]) -> Self {
        let of = |is_simulated: bool| runs.iter().filter(move |run| run.testbed().is_some() == is_simulated);
        let points: usize = of(false).map(|run| run.records.len()).sum();
        let times: usize = of(false).flat_map(|run| &run.records).map(|record| record.repetitions.len()).sum();
        let simulated: usize = of(true).map(|run| run.records.len()).sum();
        Self {
            measured: (points > 0 || simulated == 0).then_some((points, times)),
            simulated,
            verdicts: Tally::of(found.iter().copied()),
        }
    }
}

impl Judged {
    fn new(runs: &[Run], found: &Found) -> Self {
        Self {
            prefix: prefix(runs, &found.run),
            says: found.claim.says,
            verdict: found.verdict.clone(),
            is_restless: found.is_restless,
        }
    }
}

/// Returns the page about the protocol of an experiment, or about all protocols if the experiment compares them.
fn page_about(experiment: &str) -> Option<&'static str> {
    let (family, _) = experiment.split_once('/')?;
    if family == comparison::ALL {
        return Some(Protocol::PAGES);
    }
    Protocol::ALL.into_iter().find(|protocol| protocol.description().family == family).map(Protocol::page)
}

impl Section {
    fn new(
        runs: &[Run],
        experiment: &Experiment,
        found: &[Found],
        model: Option<&dyn Model>,
        published: Option<&Testbed>,
    ) -> Self {
        let is_there = |run: &&Run| run.records_of(&experiment.name).next().is_some();
        let mut testbeds: Vec<String> =
            runs.iter().filter(is_there).filter_map(Run::testbed).map(str::to_owned).collect();
        testbeds.sort_unstable();
        testbeds.dedup();
        let summary = |run: &Run| Some((prefix(runs, &run.name), sentence::summary(run, experiment)?));
        Self {
            name: experiment.name.clone(),
            question: experiment.question,
            setting: experiment.setting,
            page: page_about(&experiment.name),
            testbeds,
            summaries: runs.iter().filter_map(summary).collect(),
            plot: plot::data(runs, experiment, model, published),
            verdicts: found.iter().map(|it| Judged::new(runs, it)).collect(),
            changes: pair(runs).map(|pair| pair.common(experiment)),
            points: points::points(runs, experiment, model),
            cpu: hosts::cpu_of_hosts(runs, experiment),
            published: published.and_then(|testbed| published::section(testbed, experiment, runs)),
        }
    }
}
