//! Shapes of Direct-Read.

use super::super::judge::{holds_if, knee};
use super::super::quantity::Quantity::{MedianLatency, MessageRate, Throughput};
use super::super::view::View;
use super::{Judges, NOISE, at, ends, grows_with_threads, highest, line_rate, quotient, ratio};

const LATENCY: &str = "direct-read/latency";
const BANDWIDTH: &str = "direct-read/bandwidth";
const WINDOW: &str = "direct-read/window";
const THREADS: &str = "direct-read/threads";
const GATHER: &str = "direct-read/n-to-1";

/// Returns the rate with the most senders divided by the rate with the fewest, and a sentence about this ratio.
fn gain_of_senders(view: View<'_>, series: &str) -> Option<(f64, String)> {
    let ((first, few), (last, many)) = ends(&view.best_curve(GATHER, series, MessageRate))?;
    let gain = many / few;
    Some((gain, format!("{last:.0} senders reach {gain:.2} times the rate of {first:.0}")))
}

pub(super) const SHAPES: Judges = &[
    ("direct-read/latency-is-flat", |view, shape| {
        let to_bytes = shape.number("to_bytes")?;
        let curve = view.best_curve(LATENCY, "unfenced", MedianLatency);
        let growth = quotient(at(&curve, to_bytes)?, at(&curve, 16.0)?)?;
        holds_if(growth <= 1.2, format!("{to_bytes:.0} B take {growth:.2} times as long as 16 B"))
    }),
    ("direct-read/fence-is-slower", |view, shape| {
        let longer = ratio(view, LATENCY, ["fenced, awaited", "unfenced"], MedianLatency, 16.0)?;
        let published = 1.0 + shape.number("longer_us")? / shape.number("without_us")?;
        // Require at least half of the published difference, which exceeds the noise.
        let least = 1.0 + (published - 1.0) / 2.0;
        holds_if(longer >= least, format!("16 B take {longer:.2} times as long ({published:.1} are published)"))
    }),
    ("direct-read/fence-serialises", |view, _| {
        let series = ["fenced, awaited, unbatched", "unfenced, unbatched"];
        let share = ratio(view, BANDWIDTH, series, MessageRate, 512.0)?;
        holds_if(share <= 0.6, format!("512 B reach {:.0} % of the rate without", share * 100.0))
    }),
    ("direct-read/bandwidth-bends", |view, _| {
        let curve = view.best_curve(BANDWIDTH, "unfenced, unbatched", Throughput);
        let small = quotient(at(&curve, 512.0)?, at(&curve, 16.0)?)?;
        let large = quotient(at(&curve, 8192.0)?, at(&curve, 512.0)?)?;
        let because = format!("{small:.0}-fold from 16 to 512 B, {large:.1}-fold from there to 8192 B");
        // In proportion to the size, the rates would grow 32-fold and 16-fold.
        holds_if(small >= 20.0 && large <= 12.0, because)
    }),
    ("direct-read/window-of-32", |view, shape| {
        let window = shape.number("knee_window")?;
        let curve = view.best_curve(WINDOW, "unfenced", MessageRate);
        let (at_window, most) = (at(&curve, window)?, knee(&curve, 1.0)?.1);
        let because = format!("the most that any window gives is {:.2} times that of {window:.0}", most / at_window);
        holds_if(most <= at_window * NOISE, because)
    }),
    ("direct-read/threads-are-linear", |view, _| grows_with_threads(view, THREADS, &["16 B", "512 B"])),
    ("direct-read/threads-line-rate", |view, shape| {
        let ceiling = highest(view, &[BANDWIDTH, THREADS, GATHER]);
        line_rate(view, THREADS, &format!("{:.0} B", shape.number("bytes")?), ceiling)
    }),
    ("direct-read/n-to-1-small-flat", |view, _| {
        let (gain, because) = gain_of_senders(view, "16 B")?;
        holds_if(gain <= NOISE, because)
    }),
    ("direct-read/n-to-1-large-gains", |view, shape| {
        let (gain, because) = gain_of_senders(view, &format!("{:.0} B", shape.number("bytes")?))?;
        // The publication says "a little" without a number.
        holds_if((1.02..=1.6).contains(&gain), because)
    }),
];
