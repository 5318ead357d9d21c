//! Ratios from measurements in one guest. They compare perftest on rdma_rxe with perftest on the software RNIC, and
//! `doorbell bench` with perftest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Guest, missing};
use crate::figures::{Goal, spread};

const SCRIPT: &str = script!("two_rxe", "ratios");

/// Maximum duration of a round in the emulated machine.
const ROUND: Duration = Duration::from_secs(400);
const BOOT: Duration = Duration::from_secs(120);

/// Comparison of two series, with its goal.
struct Comparison {
    /// Name of the measurement in the script's output.
    measure: &'static str,
    what: &'static str,
    unit: &'static str,
    /// Series that is compared. The ratio is its figure divided by the figure of `theirs`.
    ours: &'static str,
    theirs: &'static str,
    goal: Option<Goal>,
}

const fn on_rxe(measure: &'static str, what: &'static str, unit: &'static str, goal: Option<Goal>) -> Comparison {
    Comparison { measure, what, unit, ours: "soft", theirs: "rxe", goal }
}

const fn of_bench(measure: &'static str, what: &'static str) -> Comparison {
    let goal = Some(Goal::AtLeast(0.95));
    Comparison { measure, what, unit: "M/s", ours: "bench", theirs: "perftest", goal }
}

const COMPARISONS: &[Comparison] = &[
    on_rxe("send_lat_16_loopback", "`ib_send_lat` 16 B, loopback", "us", Some(Goal::AtMost(1.5))),
    on_rxe("send_lat_16_veth", "`ib_send_lat` 16 B, veth", "us", Some(Goal::AtMost(1.0))),
    on_rxe("write_lat_16_loopback", "`ib_write_lat` 16 B, loopback", "us", Some(Goal::AtMost(3.0))),
    on_rxe("write_lat_16_veth", "`ib_write_lat` 16 B, veth", "us", Some(Goal::AtMost(2.0))),
    on_rxe("send_bw_16_loopback", "`ib_send_bw` 16 B, loopback", "M/s", Some(Goal::AtLeast(5.0))),
    on_rxe("send_bw_16_veth", "`ib_send_bw` 16 B, veth", "M/s", None),
    on_rxe("write_bw_65536_loopback", "`ib_write_bw` 64 KiB, loopback", "MiB/s", Some(Goal::AtLeast(1.5))),
    on_rxe("write_bw_65536_veth", "`ib_write_bw` 64 KiB, veth", "MiB/s", None),
    of_bench("write_16_batch_1", "`bench bw --op write` 16 B, window 64"),
    of_bench("write_16_batch_8", "the same, 8 per post"),
    of_bench("send_16_batch_1", "`bench bw` 16 B, window 64"),
    of_bench("send_16_batch_8", "the same, 8 per post"),
];

/// Measures `rounds` times, prints the table, and stores the table and the raw figures in `out`.
pub(crate) fn measure(rounds: u32, out: &Path) -> Result<(), String> {
    missing().map_or(Ok(()), Err)?;
    let ended = Guest::new(BOOT + ROUND * rounds).run(&format!("rounds={rounds}\n{SCRIPT}"))?;
    ended.keep(out)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| format!("{}: {error}", path.display())
    };
    let raw = out.join("raw.txt");
    let table = table(&Figures::parse(&fs::read_to_string(&raw).map_err(at(&raw))?)?);
    let file = out.join("ratios.md");
    fs::write(&file, &table).map_err(at(&file))?;
    print!("{table}");
    ended.passed()
}

/// Figures, by measurement, series and round.
struct Figures(BTreeMap<String, BTreeMap<String, BTreeMap<u32, f64>>>);

impl Figures {
    /// Parses lines of round, measurement, series and figure.
    fn parse(text: &str) -> Result<Self, String> {
        let mut figures = BTreeMap::<String, BTreeMap<String, BTreeMap<u32, f64>>>::new();
        for line in text.lines() {
            let unreadable =
                || format!("{line:?} cannot be parsed, expected are round, measurement, series and figure");
            let [round, measure, whose, figure] =
                line.split(' ').collect::<Vec<_>>().try_into().map_err(|_| unreadable())?;
            let round = round.parse().map_err(|_| unreadable())?;
            let figure: f64 = figure.parse().map_err(|_| unreadable())?;
            if !(figure.is_finite() && figure > 0.0) {
                return Err(unreadable());
            }
            figures.entry(measure.to_owned()).or_default().entry(whose.to_owned()).or_default().insert(round, figure);
        }
        Ok(Self(figures))
    }

    fn of(&self, measure: &str, whose: &str) -> Option<&BTreeMap<u32, f64>> {
        self.0.get(measure)?.get(whose)
    }
}

/// Formats a number with three significant digits.
fn digits(value: f64) -> String {
    let decimals = (2 - value.log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.decimals$}")
}

fn cell(figures: impl Iterator<Item = f64>) -> Option<(f64, String)> {
    let (median, least, most) = spread(figures)?;
    Some((median, format!("{} ({} to {})", digits(median), digits(least), digits(most))))
}

/// Returns the table of medians and ranges. The ratio is the median of the ratios of all rounds.
fn table(figures: &Figures) -> String {
    let mut text = String::from(
        "| median (least to most) | unit | ours | beside it | ratio | goal |\n|---|---|---|---|---|---|\n",
    );
    for comparison in COMPARISONS {
        let Comparison { measure, what, unit, ours, theirs, goal } = comparison;
        let both = figures.of(measure, ours).zip(figures.of(measure, theirs));
        let cells = both.and_then(|(own, other)| {
            let ratios = own.iter().filter_map(|(round, figure)| Some(figure / other.get(round)?));
            Some((cell(own.values().copied())?.1, cell(other.values().copied())?.1, cell(ratios)?))
        });
        let line = match cells {
            None => format!("| {what} | {unit} | not measured | | | |"),
            Some((own, other, (ratio, ratios))) => {
                let judged = goal.map_or("".to_owned(), |goal| {
                    format!("{goal}: {}", if goal.is_met(ratio) { "met" } else { "missed" })
                });
                format!("| {what} | {unit} | {ours} {own} | {theirs} {other} | {ratios} | {judged} |")
            }
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_over_the_rounds() {
        let raw = "1 send_lat_16_loopback rxe 20\n1 send_lat_16_loopback soft 10\n2 send_lat_16_loopback rxe 10\n\
                   2 send_lat_16_loopback soft 20\n3 send_lat_16_loopback rxe 20\n3 send_lat_16_loopback soft 32.04\n";
        let table = table(&Figures::parse(raw).unwrap());
        let line = table.lines().nth(2).unwrap();
        let expected = "| `ib_send_lat` 16 B, loopback | us | soft 20.0 (10.0 to 32.0) | rxe 20.0 (10.0 to 20.0) | \
                        1.60 (0.500 to 2.00) | at most 1.5: missed |";
        assert_eq!(line, expected);
        assert!(table.lines().nth(3).unwrap().contains("not measured"), "{table}");
    }

    #[test]
    fn a_line_without_a_figure_is_an_error() {
        for line in ["1 send rxe", "1 send rxe x", "one send rxe 1", "1 send rxe 0", "1 send rxe inf"] {
            let error = Figures::parse(line).err().unwrap();
            assert!(error.contains(line), "{error}");
        }
    }
}
