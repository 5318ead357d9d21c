//! Comparison of strategies for shared memory, by workload: one table with coloured cells for each run.

use doorbell_record::Strategy;
use doorbell_study::experiment::COMPARING;

use crate::Run;
use crate::choice::{Choice, choices, needs};

/// Strategies of one run beside each other.
#[derive(Debug)]
pub(crate) struct StrategiesOfRun {
    /// Name of the run if the page shows several runs.
    pub(crate) run: Option<String>,
    /// Name of each strategy, and the resources that it needs.
    pub(crate) strategies: Vec<(&'static str, &'static str)>,
    pub(crate) groups: Vec<Group>,
}

/// Workloads that differ in one parameter.
#[derive(Debug)]
pub(crate) struct Group {
    /// The parameter.
    pub(crate) varied: &'static str,
    /// Values of the other parameters.
    pub(crate) fixed: String,
    /// Value of the parameter, and the figures of each strategy.
    pub(crate) rows: Vec<(f64, Vec<Option<Figures>>)>,
}

/// Figures of a strategy for a workload.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Millions of operations per second.
    pub(crate) rate: f64,
    /// The rate as percentage of the maximum rate of all strategies.
    pub(crate) heat: f64,
    /// 99th percentile of latency in microseconds.
    pub(crate) tail_us: Option<f64>,
    pub(crate) is_fastest: bool,
    pub(crate) is_steadiest: bool,
}

/// Returns the store's workloads of a run, grouped by the parameter that each experiment varies.
fn varied(run: &Run) -> Vec<(&'static str, Vec<Choice<'_>>)> {
    let of = |&(experiment, what): &(&str, &'static str)| {
        // Skip workloads that were measured with only one strategy.
        let choices: Vec<_> =
            choices(run.records_of(experiment)).into_iter().filter(|it| it.candidates.len() > 1).collect();
        (!choices.is_empty()).then_some((what, choices))
    };
    COMPARING.iter().filter_map(of).collect()
}

/// Returns the strategies of each run that has workloads of the store.
pub(super) fn strategies(runs: &[Run]) -> Vec<StrategiesOfRun> {
    let of = |(run, varied): (&Run, Vec<(&'static str, Vec<Choice<'_>>)>)| {
        let is_there = |strategy: Strategy| varied.iter().flat_map(|(_, all)| all).any(|it| it.of(strategy).is_some());
        let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(|&strategy| is_there(strategy)).collect();
        let row =
            |choice: &Choice<'_>| (choice.x, strategies.iter().map(|&strategy| figures(choice, strategy)).collect());
        let group = |(what, choices): &(&'static str, Vec<Choice<'_>>)| Group {
            varied: what,
            fixed: choices.first().map_or_else(String::new, |choice| rest(what, choice)),
            rows: choices.iter().map(row).collect(),
        };
        StrategiesOfRun {
            run: (runs.len() > 1).then(|| run.name.clone()),
            strategies: strategies.iter().map(|strategy| (strategy.name(), needs(*strategy))).collect(),
            groups: varied.iter().map(group).collect(),
        }
    };
    runs.iter().map(|run| (run, varied(run))).filter(|(_, varied)| !varied.is_empty()).map(of).collect()
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

fn figures(choice: &Choice<'_>, strategy: Strategy) -> Option<Figures> {
    let candidate = choice.of(strategy)?;
    let most = choice.candidates.iter().map(|one| one.rate()).fold(f64::MIN_POSITIVE, f64::max);
    Some(Figures {
        rate: candidate.rate(),
        heat: (100.0 * candidate.rate() / most).clamp(0.0, 100.0),
        tail_us: candidate.tail_us(),
        is_fastest: choice.fastest() == Some(strategy),
        is_steadiest: choice.steadiest() == Some(strategy),
    })
}
