//! Instructions per message of two builds.

use std::path::Path;

use serde_json::{Value, json};

use super::Revision;
use crate::figures::{self, Ratio};
use crate::instructions::{self, Workload};
use crate::peers;
use crate::shell::root;

/// Number of counts of a workload with each build. Counts differ because programs read the clock, and because threads
/// wait for each other.
const COUNTS: u32 = figures::INTERVAL_FIGURES;

/// Ratio above which this build is worse than the other.
const WORSE: f64 = 1.02;

/// Counts of a workload, one of each build per round.
#[derive(Debug)]
struct Counted {
    this: Vec<f64>,
    other: Vec<f64>,
    ratio: Ratio,
}

/// Judgement of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The interval ends at [`WORSE`] or below.
    NotWorse,
    /// The interval begins above [`WORSE`].
    Worse,
    /// The interval holds [`WORSE`], or there is no interval.
    Open,
}

impl Verdict {
    fn of(ratio: &Ratio) -> Self {
        match ratio.interval {
            Some([low, _]) if low > WORSE => Self::Worse,
            Some([_, high]) if high <= WORSE => Self::NotWorse,
            _ => Self::Open,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::NotWorse => "not worse",
            Self::Worse => "worse",
            Self::Open => "open",
        }
    }
}

impl Counted {
    /// Counts a workload in rounds. `count` counts instructions per message with this build (0) or the other one (1).
    /// Returns `None` if the other build does not have the workload.
    fn take(mut count: impl FnMut(usize) -> Result<f64, String>) -> Result<Option<Self>, String> {
        let mut sides: [Vec<f64>; 2] = Default::default();
        for round in 0..COUNTS {
            for index in super::order(round) {
                match count(index) {
                    Err(why) if index == 1 && instructions::is_unknown(&why) => return Ok(None),
                    counted => sides[index].push(counted?),
                }
            }
        }
        let [this, other] = sides;
        let ratio = Ratio::of(&this, &other).ok_or_else(|| "no instructions were counted".to_owned())?;
        Ok(Some(Self { this, other, ratio }))
    }

    /// Returns the largest spread of a build's counts in per cent of its least count.
    fn spread(&self) -> f64 {
        let spreads = [&self.this, &self.other].map(|side| figures::spread(side.iter().copied()));
        spreads.into_iter().flatten().map(|(_, least, most)| 100.0 * (most - least) / least).fold(0.0, f64::max)
    }

    fn line(&self, name: &str) -> String {
        let [this, other] = [&self.this, &self.other].map(|side| super::median(side));
        let Ratio { median, interval } = self.ratio;
        let [low, high] = interval.unwrap_or([f64::NAN; 2]);
        let ratio = format!("{}{median:.4}", self.ratio.mark());
        let (spread, verdict) = (self.spread(), Verdict::of(&self.ratio).name());
        format!("{name:<20} {this:>12.1} {other:>12.1} {ratio:>9} {low:>8.4} to {high:.4} {spread:>8.2} %  {verdict}")
    }

    fn json(&self, name: &str) -> Value {
        json!({
            "name": name,
            "this": self.this,
            "other": self.other,
            "ratio": self.ratio.median,
            "interval": self.ratio.interval,
            "verdict": Verdict::of(&self.ratio).name(),
        })
    }
}

/// Counts instructions per message of both builds, and prints a table.
pub(super) fn count(home: &Path, other: &Revision) -> Result<Vec<Value>, String> {
    peers::install_for_counting()?;
    let ours = instructions::build(home, &root(), "this")?;
    let theirs = instructions::build(home, &other.tree, "other")?;
    println!("\ninstructions per message, the other being {}", other.id.get(..7).unwrap_or(&other.id));
    println!(
        "{:<20} {:>12} {:>12} {:>9} {:>18} {:>10}  more than {:.0} %",
        "",
        "this",
        "other",
        "ratio",
        "95 % of it",
        "spread",
        100.0 * (WORSE - 1.0)
    );
    let mut rows = Vec::new();
    for workload in instructions::workloads() {
        match Counted::take(|index| per_message([&ours, &theirs][index], workload))? {
            Some(counted) => {
                println!("{}", counted.line(workload.name));
                rows.push(counted.json(workload.name));
            }
            None => {
                println!("{:<20} is missing in the other", workload.name);
                rows.push(json!({ "name": workload.name, "verdict": "missing" }));
            }
        }
    }
    println!("~: the interval holds 1, so the difference is within the spread. open: the interval holds {WORSE}.");
    Ok(rows)
}

/// Counts instructions per message of a program.
fn per_message(program: &Path, workload: &Workload) -> Result<f64, String> {
    let count = |length| instructions::count(program, workload.name, length, Path::new("/dev/null"));
    let (short, long) = (count(workload.short)?, count(workload.long)?);
    Ok((long as f64 - short as f64) / workload.messages())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is counted if the other build always counts 100.
    fn counted(this: [f64; COUNTS as usize]) -> Counted {
        let mut this = this.into_iter();
        Counted::take(|index| Ok(if index == 0 { this.next().unwrap() } else { 100.0 })).unwrap().unwrap()
    }

    #[test]
    fn a_build_is_worse_only_if_the_whole_interval_is() {
        let verdict = |this| Verdict::of(&counted(this).ratio);
        assert_eq!(verdict([100.0; 6]), Verdict::NotWorse);
        assert_eq!(verdict([102.0; 6]), Verdict::NotWorse);
        assert_eq!(verdict([103.0, 103.0, 104.0, 102.5, 103.0, 103.0]), Verdict::Worse);
        assert_eq!(verdict([103.0, 103.0, 104.0, 101.0, 103.0, 103.0]), Verdict::Open);
        assert_eq!(Verdict::of(&Ratio { median: 1.5, interval: None }), Verdict::Open);
    }

    #[test]
    fn differences_within_the_spread_are_marked() {
        let line = counted([99.0, 100.0, 101.0, 102.0, 103.0, 104.0]).line("shm-lat");
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = "shm-lat 101.5 100.0 ~1.0150 0.9900 to 1.0400 5.05 % open";
        assert_eq!(words, expected.split(' ').collect::<Vec<_>>());
        assert!(counted([97.0; 6]).line("rnic").contains(" 0.9700 "));
    }

    #[test]
    fn builds_take_turns_to_be_first() {
        let mut order = Vec::new();
        let counted = Counted::take(|index| {
            order.push(index);
            Ok(1.0)
        });
        assert!(counted.unwrap().is_some());
        assert_eq!(order, [1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn only_the_other_build_may_lack_a_workload() {
        let why = "there is no workload \"shm-lat\"";
        let count = |lacking: usize, index: usize| if index == lacking { Err(why.to_owned()) } else { Ok(1.0) };
        assert!(Counted::take(|index| count(1, index)).unwrap().is_none());
        assert_eq!(Counted::take(|index| count(0, index)).unwrap_err(), why);
    }
}
