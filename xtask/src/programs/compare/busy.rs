//! Measurement of programs on a machine with busy processors.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::series::{Name, Quantity, Series, UCX_LAT, of_busy};
use super::{LEGEND, in_rounds, judged, measure, shown, spread_of};
use crate::figures::{Goal, Ratio};
use crate::shell::command;

/// Goal of the ratio of the latency on a busy machine to that on a quiet machine.
const LATENCY: Goal = Goal::AtMost(2.5);
const RATE: Goal = Goal::AtLeast(0.5);

/// Goal of the ratio of a latency to the latency of UCX over TCP, on the same busy machine.
const AHEAD: Goal = Goal::AtMost(1.0);

/// Spinning programs. Dropping this value kills them.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start(count: u32) -> Result<Self, String> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            let mut spin = command("sh", &["-c", "while :; do :; done"]);
            let child = spin.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            all.0.push(child.map_err(|error| format!("a spinning program could not be started: {error}"))?);
        }
        Ok(all)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The program may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures each series without and with spinning programs in each round. Prints the figures and returns the record.
pub(super) fn compare(rounds: u32, spinners: u32) -> Result<Value, String> {
    let every = of_busy();
    let mut quiet = vec![Vec::new(); every.len()];
    let mut busy = quiet.clone();
    in_rounds(rounds, |round| {
        measure(&every, &mut quiet, round)?;
        let _spinners = Spinners::start(spinners)?;
        measure(&every, &mut busy, round)
    })?;
    let lines: Vec<Line<'_>> =
        every.iter().zip(quiet.iter().zip(&busy)).map(|(s, (q, b))| Line::new(s, q, b)).collect();
    print(&lines, spinners);
    Ok(json!({
        "schema": "doorbell-compare-busy/1", "spinners": spinners,
        "series": lines.iter().map(Line::record).collect::<Vec<_>>(),
    }))
}

/// A series, its figures, and the ratio of the busy machine to the quiet machine.
struct Line<'a> {
    series: &'a Series,
    quiet: &'a [f64],
    busy: &'a [f64],
    ratio: Ratio,
}

impl<'a> Line<'a> {
    fn new(series: &'a Series, quiet: &'a [f64], busy: &'a [f64]) -> Self {
        let ratio = Ratio::of(busy, quiet).expect("a round was measured");
        Self { series, quiet, busy, ratio }
    }

    /// Returns the goal for a busy machine.
    fn goal(&self) -> Option<Goal> {
        self.series.name.link?;
        Some(if self.series.quantity == Quantity::Latency { LATENCY } else { RATE })
    }

    fn record(&self) -> Value {
        let (series, name) = (self.series, self.series.name);
        json!({
            "quantity": series.quantity.title(), "name": name.name, "link": name.link.map(super::Link::name),
            "unit": series.quantity.unit(), "arguments": series.arguments(),
            "quiet": self.quiet, "busy": self.busy, "ratio": self.ratio.median, "interval": self.ratio.interval,
            "goal": self.goal().map(|goal| goal.to_string()),
        })
    }
}

fn print(lines: &[Line<'_>], spinners: u32) {
    println!("{LEGEND}");
    let ucx = lines.iter().find(|line| line.series.name == Name { name: UCX_LAT, link: None });
    for quantity in Quantity::ALL {
        let of_it = lines.iter().filter(|line| line.series.quantity == quantity).collect::<Vec<_>>();
        if of_it.is_empty() {
            continue;
        }
        println!("\n{:<50} {:>8} {:>8}  {:>6}   (busy: {spinners} spin)", quantity.title(), "quiet", "busy", "ratio");
        for line in of_it {
            println!("{}", text(line, ucx));
        }
    }
}

/// Returns a line of the table. The latencies of programs on the software RNIC are also divided by those of `ucx`.
fn text(line: &Line<'_>, ucx: Option<&Line<'_>>) -> String {
    let (quiet, busy) = (spread_of(line.quiet).0, spread_of(line.busy).0);
    let mut text = format!("{:<50} {quiet:>8.2} {busy:>8.2}  {}", line.series.name, shown(&line.ratio));
    text.extend(line.goal().map(|goal| judged(goal, line.ratio.median)));
    let is_ours = line.series.quantity == Quantity::Latency && line.series.name.link.is_some();
    if let Some(ratio) = ucx.filter(|_| is_ours).and_then(|ucx| Ratio::of(line.busy, ucx.busy)) {
        text.push_str(&format!("; {} of {UCX_LAT}{}", shown(&ratio).trim_start(), judged(AHEAD, ratio.median)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_intervals_and_marks() {
        let every = of_busy();
        let ucx = every.iter().find(|series| series.name.name == UCX_LAT).unwrap();
        let (quiet, slower, faster) = ([2.0; 6], [3.0, 3.0, 3.0, 3.0, 4.0, 5.0], [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
        let ucx = Line::new(ucx, &quiet, &slower);
        assert!(text(&ucx, Some(&ucx)).ends_with(" 1.50 (1.50-2.50)"), "{}", text(&ucx, Some(&ucx)));
        let ours = every.iter().find(|series| series.name.link.is_some()).unwrap();
        let line = text(&Line::new(ours, &quiet, &faster), Some(&ucx));
        assert!(line.contains("~ 1.00 (0.50-1.50), is at most 2.5; 0.67 (0.33-0.75) of UCX tcp, tag_lat"), "{line}");
        let few = text(&Line::new(ours, &quiet[..2], &slower[..2]), None);
        assert!(few.contains("~ 1.50, is at most 2.5"), "two rounds give no interval: {few}");
    }
}
