//! Comparison of strategies for a workload, to choose one.

use doorbell_record::{FarPoint, Figure, PointRecord, PointResult, StorePoint, Strategy};

/// Result of one strategy for a workload.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Strategy that coordinates the clients.
    pub strategy: Strategy,
    /// Result of the strategy.
    pub result: &'a PointResult,
}

impl Candidate<'_> {
    /// Returns a figure of the result.
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        self.result.far.get(&figure).copied()
    }

    /// Returns millions of operations per second.
    pub fn rate(&self) -> f64 {
        self.result.messages_per_s / 1e6
    }

    /// Returns the 99th percentile of the times of puts in microseconds. Without puts, returns that of the gets.
    pub fn tail_us(&self) -> Option<f64> {
        self.figure(Figure::PutP99).or_else(|| self.figure(Figure::GetP99))
    }
}

/// Workload with the result of each strategy.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Workload. The strategy in this value has no meaning.
    pub workload: StorePoint,
    /// Position of the workload on the axis of its experiment.
    pub x: f64,
    /// Results of the strategies, in the order of [`Strategy::ALL`].
    pub candidates: Vec<Candidate<'a>>,
}

impl Choice<'_> {
    /// Returns the strategy with the most operations per second.
    pub fn fastest(&self) -> Option<Strategy> {
        self.candidates.iter().max_by(|a, b| a.rate().total_cmp(&b.rate())).map(|best| best.strategy)
    }

    /// Returns the strategy with the lowest [tail](Candidate::tail_us).
    pub fn steadiest(&self) -> Option<Strategy> {
        let timed = self.candidates.iter().filter_map(|one| Some((one.strategy, one.tail_us()?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|best| best.0)
    }

    /// Returns the result of a strategy.
    pub fn of(&self, strategy: Strategy) -> Option<&Candidate<'_>> {
        self.candidates.iter().find(|one| one.strategy == strategy)
    }
}

/// Replaces the strategy with a fixed strategy, so that two workloads that differ only in their strategies are equal.
fn without_strategy(point: &StorePoint) -> StorePoint {
    StorePoint { strategy: Strategy::Optimistic, ..point.clone() }
}

/// Groups an experiment's records by workload, in the order of the experiment's axis. Each workload has the results of
/// its strategies. The result of a strategy is the repetition with the median rate.
pub fn choices<'a>(records: impl IntoIterator<Item = &'a PointRecord>) -> Vec<Choice<'a>> {
    let mut found: Vec<Choice<'a>> = Vec::new();
    for record in records {
        let Some(FarPoint::Store(point)) = record.parameters.far.as_deref() else { continue };
        let mut results: Vec<&PointResult> = record.repetitions.iter().collect();
        results.sort_by(|a, b| a.messages_per_s.total_cmp(&b.messages_per_s));
        let Some(&result) = results.get(results.len() / 2) else { continue };
        let workload = without_strategy(point);
        let at = match found.iter().position(|choice| choice.workload == workload && choice.x == record.x) {
            Some(at) => at,
            None => {
                found.push(Choice { workload, x: record.x, candidates: Vec::new() });
                found.len() - 1
            }
        };
        let candidates = &mut found[at].candidates;
        if candidates.iter().all(|one| one.strategy != point.strategy) {
            candidates.push(Candidate { strategy: point.strategy, result });
        }
    }
    let place = |strategy: Strategy| Strategy::ALL.iter().position(|&other| other == strategy);
    found.iter_mut().for_each(|choice| choice.candidates.sort_by_key(|one| place(one.strategy)));
    found.sort_by(|a, b| a.x.total_cmp(&b.x));
    found
}

/// Returns the measured workload that is most similar to `workload`. The distance between shares of puts and between
/// Zipf exponents is their difference. The distance between other parameters is their ratio.
pub fn most_like<'c, 'a>(choices: &'c [Choice<'a>], workload: &StorePoint) -> Option<&'c Choice<'a>> {
    let times = |a: f64, b: f64| (a.max(1.0) / b.max(1.0)).log2().abs();
    let distance = |other: &StorePoint| {
        (other.write_percent - workload.write_percent).abs() / 25.0
            + (other.zipf - workload.zipf).abs() / 0.3
            + times(other.clients as f64, workload.clients as f64)
            + times(other.value_bytes as f64, workload.value_bytes as f64) / 2.0
            + times(other.keys as f64, workload.keys as f64) / 2.0
    };
    choices.iter().min_by(|a, b| distance(&a.workload).total_cmp(&distance(&b.workload)))
}

/// Returns the resources that a strategy needs in addition to clients and passive memory.
pub fn needs(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Combine => "clients that share hosts",
        Strategy::QueueLock => "datagrams between clients",
        Strategy::Server => "a core of the memory node",
        Strategy::Steered | Strategy::SteeredWrite => "a middlebox",
        _ => "nothing else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::environment;
    use doorbell_study::experiment::{Effort, Point, all};

    /// Returns records of `far-memory/strategies` with rates that depend on the order of strategies.
    fn records() -> Vec<PointRecord> {
        let experiment = all(Effort::Quick).into_iter().find(|one| one.name == "far-memory/strategies").unwrap();
        let of = |point: &Point| {
            let Some(FarPoint::Store(store)) = point.parameters.far.as_deref() else { panic!("{point:?}") };
            let place = Strategy::ALL.iter().position(|&other| other == store.strategy).unwrap() as f64;
            let mut record = point.record(&experiment, environment());
            // With few puts, strategies later in the table are faster. With many puts, they are slower.
            let rate = if point.x < 50.0 { 1e6 * (1.0 + place) } else { 1e6 * (10.0 - place) };
            let mut result = PointResult { messages_per_s: rate, ..PointResult::default() };
            result.far.insert(Figure::PutP99, 100.0 - place);
            record.repetitions = vec![result];
            record
        };
        experiment.points.iter().map(of).collect()
    }

    #[test]
    fn choices_group_strategies_by_workload() {
        let records = records();
        let found = choices(&records);
        assert_eq!(found.iter().map(|choice| choice.x).collect::<Vec<_>>(), [5.0, 100.0]);
        assert!(found.iter().all(|choice| choice.candidates.len() == Strategy::ALL.len()));
        let best: Vec<_> = found.iter().map(Choice::fastest).collect();
        assert_eq!(best, [Some(Strategy::SteeredWrite), Some(Strategy::Optimistic)]);
        assert_eq!(found[1].steadiest(), Some(Strategy::SteeredWrite));
        let asked = StorePoint { write_percent: 90.0, clients: 100, ..StorePoint::default() };
        assert_eq!(most_like(&found, &asked).map(|choice| choice.x), Some(100.0));
        assert!(most_like(&[], &asked).is_none());
    }
}
