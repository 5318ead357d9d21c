//! Shapes of Send-Receive without shared receives.

use super::super::judge::{cannot, holds_if, knee};
use super::super::quantity::Quantity::{AnsweringCpu, AskingWork, MedianLatency, MessageRate, RnrNaks, Throughput};
use super::super::view::View;
use super::{Judges, NOISE, at, ends, grows_with_threads, highest, line_rate, quotient, ratio, straight, unless_soft};

const LATENCY: &str = "send-receive/latency";
const WINDOW: &str = "send-receive/window";
const BATCH: &str = "send-receive/batch";
const BANDWIDTH: &str = "send-receive/bandwidth";
const LARGE: &str = "send-receive/large-or-batch";
const RECEIVE: &str = "send-receive/receive-batching";
const INLINE: &str = "send-receive/inline";
const EVENTS: &str = "send-receive/events";
const THREADS: &str = "send-receive/threads";
pub(super) const GATHER: &str = "send-receive/n-to-1";
const RNR: &str = "send-receive/rnr";

const SOFT_DOORBELL: &str =
    "posting to a software RNIC writes no doorbell register over PCIe, which is what a list saves";

/// Returns the highest throughput of Send-Receive in all experiments.
fn ceiling(view: View<'_>) -> Option<f64> {
    highest(view, &[BANDWIDTH, THREADS, GATHER])
}

/// Returns the goodput and the RNR NAKs per second at the highest offered rate.
fn overload(view: View<'_>, series: &str) -> Option<(f64, f64)> {
    let goodput = *view.best_curve(RNR, series, MessageRate).last()?;
    Some((goodput.1, view.best_at(RNR, series, RnrNaks, goodput.0)?))
}

/// Returns the rate with `batch` messages per post divided by the rate with one message per post.
fn gain_of_batch(view: View<'_>, series: &str, batch: f64) -> Option<f64> {
    let curve = view.best_curve(BATCH, series, MessageRate);
    quotient(at(&curve, batch)?, at(&curve, 1.0)?)
}

pub(super) const SHAPES: Judges = &[
    ("send-receive/latency-is-a-line", |view, shape| straight(view, LATENCY, "ping-pong", shape.number("to_bytes")?)),
    ("send-receive/window-linear-then-flat", |view, shape| {
        let wide = shape.number("knee_window")?;
        let curve = view.best_curve(WINDOW, "one per post", MessageRate);
        let (one, at_wide) = (at(&curve, 1.0)?, at(&curve, wide)?);
        let (knee, most) = knee(&curve, 0.9)?;
        let because = format!(
            "{wide:.0} unacknowledged give {:.1} times the rate of one, the most that any window gives is {:.1} times, \
             and 90 % of that are reached at {knee:.0}",
            at_wide / one,
            most / one
        );
        holds_if(at_wide / one >= wide / 2.0 && most / at_wide <= 1.25, because)
    }),
    ("send-receive/window-gains", |view, shape| {
        let curve = view.best_curve(WINDOW, "one per post", MessageRate);
        let (one, (knee, most)) = (at(&curve, 1.0)?, knee(&curve, 1.0)?);
        holds_if(most / one >= shape.number("gain")?, format!("{:.1} times at a window of {knee:.0}", most / one))
    }),
    ("send-receive/batch-gains", |view, shape| {
        let (batch, most) = (shape.number("knee_batch")?, shape.number("gain")?);
        let gain = gain_of_batch(view, "window 256", batch)?;
        let because = format!("{batch:.0} per post give {gain:.2} times the rate of one per post");
        unless_soft(view, (NOISE..=most * NOISE).contains(&gain), because, SOFT_DOORBELL)
    }),
    ("send-receive/batch-linear-where-posts-bind", |view, shape| {
        let batch = shape.number("knee_batch")?;
        let gain = gain_of_batch(view, "4 posts in flight", batch)?;
        let because = format!("with four posts in flight {batch:.0} per post give {gain:.2} times the rate of one");
        holds_if(gain >= 0.6 * batch, because)
    }),
    ("send-receive/batch-flat-above-8", |view, shape| {
        let batch = shape.number("knee_batch")?;
        let curve = view.best_curve(BATCH, "window 256", MessageRate);
        let at_batch = at(&curve, batch)?;
        let above: Vec<_> = curve.into_iter().filter(|point| point.0 >= batch).collect();
        ends(&above)?;
        let (best, most) = knee(&above, 1.0)?;
        let because = format!("the best batch is {best:.0}, with {:.2} times the rate of {batch:.0}", most / at_batch);
        holds_if(most / at_batch <= 1.15, because)
    }),
    ("send-receive/batch-wants-window", |view, shape| {
        let batch = shape.number("batch")?;
        let [narrow, wide] = [shape.number("narrow_window")?, shape.number("wide_window")?];
        let [in_narrow, in_wide] =
            [narrow, wide].map(|window| gain_of_batch(view, &format!("window {window:.0}"), batch));
        let (in_narrow, in_wide) = (in_narrow?, in_wide?);
        let because = format!(
            "{batch:.0} per post give {in_wide:.2} times the rate of one per post with {wide:.0} unacknowledged, \
             {in_narrow:.2} times with {narrow:.0}"
        );
        match in_wide >= NOISE * in_narrow {
            // If lists save nothing even with the wide window, the reason may be the software RNIC.
            false if in_wide < NOISE => unless_soft(view, false, because, SOFT_DOORBELL),
            holds => holds_if(holds, because),
        }
    }),
    ("send-receive/single-connection-ceiling", |view, shape| {
        let batch = shape.number("batch")?;
        let series = format!("window {:.0}", shape.number("wide_window")?);
        let above: Vec<_> =
            view.best_curve(BATCH, &series, MessageRate).into_iter().filter(|point| point.0 >= batch).collect();
        ends(&above)?;
        let (_, most) = knee(&above, 1.0)?;
        let several = knee(&view.best_curve(THREADS, "16 B", MessageRate), 1.0)?.1;
        let because = format!(
            "one connection reaches {most:.2} M/s with any batch from {batch:.0} on ({:.0} are published), several \
             {several:.2} M/s",
            shape.number("ceiling_m_per_s")?
        );
        let is_flat = above.iter().all(|point| point.1 * 1.25 >= most);
        if is_flat && several < 2.0 * most && view.cpus() < 4 {
            return cannot(format!("{because}; several take more than the {} CPUs that are here", view.cpus()));
        }
        // The publication says "by far". This function requires a factor of two.
        holds_if(is_flat && several >= 2.0 * most, because)
    }),
    ("send-receive/sequential-is-slow", |view, shape| {
        let (to_bytes, most) = (shape.number("to_bytes")?, shape.number("most_share")?);
        let mut curve = view.best_curve(BANDWIDTH, "sequential", Throughput);
        curve.retain(|point| point.0 <= to_bytes);
        let share = knee(&curve, 1.0)?.1 / ceiling(view)?;
        let because = format!(
            "up to {to_bytes:.0} B at best {:.0} % of the highest throughput of any configuration",
            share * 100.0
        );
        holds_if(share < most, because)
    }),
    ("send-receive/unbatched-is-linear", |view, _| {
        let curve = view.best_curve(BANDWIDTH, "unbatched", Throughput);
        let most = ceiling(view)?;
        let (first, last) = (curve.first()?, curve.iter().take_while(|point| point.1 < 0.6 * most).last()?);
        if last.0 <= first.0 {
            return None;
        }
        let (growth, sizes) = (last.1 / first.1, last.0 / first.0);
        let because = format!(
            "from {:.0} B to {:.0} B, {sizes:.0} times as long, throughput grows {growth:.0}-fold; at its best it \
             reaches {:.0} % of the highest of all",
            first.0,
            last.0,
            knee(&curve, 1.0)?.1 / most * 100.0
        );
        holds_if(growth >= 0.6 * sizes, because)
    }),
    ("send-receive/batched-is-steeper", |view, shape| {
        let to_bytes = shape.number("to_bytes")?;
        let [batched, unbatched] =
            ["batched", "unbatched"].map(|series| view.best_curve(BANDWIDTH, series, MessageRate));
        let short = batched.iter().filter(|point| point.0 <= to_bytes);
        let ratios: Vec<f64> = short.filter_map(|point| Some(point.1 / at(&unbatched, point.0)?)).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        if ratios.is_empty() {
            return None;
        }
        holds_if(mean >= NOISE, format!("{mean:.2} times as many messages on average up to {to_bytes:.0} B"))
    }),
    ("send-receive/large-beats-batch", |view, _| {
        let [one, eight] = ["one message", "list of 8"].map(|series| view.best_curve(LARGE, series, Throughput));
        let ratios: Option<Vec<f64>> = one.iter().map(|point| Some(point.1 / at(&eight, point.0)?)).collect();
        let ratios = ratios.filter(|ratios| !ratios.is_empty())?;
        let wins = ratios.iter().filter(|ratio| **ratio >= NOISE).count();
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let because = format!("faster at {wins} of {} lengths, {most:.1} times at most", ratios.len());
        holds_if(wins * 2 > ratios.len(), because)
    }),
    ("send-receive/poll-lists-gain", |view, shape| {
        let curve = view.best_curve(RECEIVE, "reposted in lists", MessageRate);
        let gain = quotient(at(&curve, shape.number("poll_list")?)?, at(&curve, 1.0)?)?;
        // The publication says "nearly half". This function requires 40 % of the published gain.
        let least = 1.0 + (shape.number("gain")? - 1.0) * 0.4;
        holds_if(gain >= least, format!("{gain:.2} times the rate of taking them one by one"))
    }),
    ("send-receive/receiver-never-binds", |view, shape| {
        let slow = at(&view.best_curve(RECEIVE, "reposted one by one", MessageRate), 1.0)?;
        let fast = at(&view.best_curve(RECEIVE, "reposted in lists", MessageRate), shape.number("poll_list")?)?;
        let because = format!("without any batching {:.0} % of the rate with it", slow / fast * 100.0);
        holds_if(fast / slow <= NOISE, because)
    }),
    ("send-receive/inline-is-faster", |view, shape| {
        let bytes = shape.number("bytes")?;
        let gain = ratio(view, INLINE, ["not inline", "inline"], MedianLatency, bytes)?;
        let because = format!("{bytes:.0} B take {:.0} % longer without", (gain - 1.0) * 100.0);
        unless_soft(view, gain >= 1.03, because, "what inline data save, a read over PCIe, a software RNIC never does")
    }),
    ("send-receive/batch-saves-cpu", |view, shape| {
        let (batch, window) = (shape.number("batch")?, shape.number("window")?);
        let curve = view.best_curve(BATCH, &format!("window {window:.0}"), AskingWork);
        let share = quotient(at(&curve, batch)?, at(&curve, 1.0)?)?;
        let because =
            format!("{batch:.0} per post take {:.0} % of the sender's CPU time of one per post", share * 100.0);
        unless_soft(view, share * NOISE <= 1.0, because, SOFT_DOORBELL)
    }),
    ("send-receive/inline-costs-cpu", |view, shape| {
        let bytes = shape.number("bytes")?;
        let cost = ratio(view, INLINE, ["inline", "not inline"], AskingWork, bytes)?;
        let because = format!("{bytes:.0} B inline take {cost:.2} times the CPU time of an end");
        unless_soft(view, cost >= 1.03, because, "a software RNIC copies every payload by the CPU, inline or not")
    }),
    ("send-receive/events-save-cpu", |view, shape| {
        let rate = shape.number("rate_k_per_s")?;
        let share = ratio(view, EVENTS, ["sleeping", "polling"], AnsweringCpu, rate)?;
        let because = format!(
            "at {rate:.0} thousand messages/s the receiver takes {:.0} % of the CPU time of one that polls",
            share * 100.0
        );
        // Require at most half of the CPU time. Noise, and a processor that two processes share, have smaller effects.
        holds_if(share <= 0.5, because)
    }),
    ("send-receive/threads-are-linear", |view, _| grows_with_threads(view, THREADS, &["16 B", "512 B"])),
    ("send-receive/threads-line-rate", |view, shape| {
        line_rate(view, THREADS, &format!("{:.0} B", shape.number("bytes")?), ceiling(view))
    }),
    ("send-receive/threads-small-beat-512", |view, shape| {
        let [small, large] = ["16 B", "512 B"].map(|series| view.best_curve(THREADS, series, MessageRate));
        let ratio = knee(&small, 1.0)?.1 / knee(&large, 1.0)?.1;
        unless_soft(
            view,
            ratio >= shape.number("gain")?,
            format!("{ratio:.2} times at best"),
            "on the testbed 512 B fill the line (594 line bytes each, 21 million per second), and there is none here",
        )
    }),
    ("send-receive/n-to-1-line-rate", |view, shape| {
        line_rate(view, GATHER, &format!("{:.0} B, single receiver", shape.number("bytes")?), ceiling(view))
    }),
    ("send-receive/n-to-1-falls", |view, _| {
        let shares = ["16 B", "512 B"].map(|bytes| {
            let curve = view.best_curve(GATHER, &format!("{bytes}, single receiver"), MessageRate);
            let ((first, few), (last, many)) = ends(&curve)?;
            let because =
                format!("{last:.0} senders of {bytes} reach {:.0} % of the rate of {first:.0}", many / few * 100.0);
            Some((many * NOISE <= few, because))
        });
        let [(small, because), (larger, and)] = [shares[0].clone()?, shares[1].clone()?];
        holds_if(small && larger, format!("{because}, {and}"))
    }),
    ("send-receive/n-to-1-16-slower-than-512", |view, _| {
        let curve = view.best_curve(GATHER, "16 B, single receiver", MessageRate);
        let &(senders, _) = curve.last()?;
        let ratio = ratio(view, GATHER, ["16 B, single receiver", "512 B, single receiver"], MessageRate, senders)?;
        let because = format!("with {senders:.0} senders 16 B reach {ratio:.2} times the messages/s of 512 B");
        unless_soft(view, ratio < 1.0, because, "the software RNIC puts no data into completions")
    }),
    ("send-receive/n-to-1-one-queue", |view, _| {
        let curve = view.best_curve(GATHER, "16 B, single receiver", MessageRate);
        let &(senders, _) = curve.last()?;
        let ratio = ratio(view, GATHER, ["16 B, single receiver", "16 B, in turn"], MessageRate, senders)?;
        holds_if(ratio >= NOISE, format!("{ratio:.2} times the rate with {senders:.0} senders of 16 B"))
    }),
    ("send-receive/rnr-hurts", |view, _| {
        let share = |senders: &str| {
            let (without, naks) = overload(view, &format!("{senders}, none"))?;
            Some((without / overload(view, &format!("{senders}, credits"))?.0, naks))
        };
        let ((one, naks), (eight, _)) = (share("1 sender")?, share("8 senders")?);
        let because = format!(
            "at the highest rate offered {naks:.0} RNR NAKs/s, and {:.0} % of the goodput that credits give with one \
             sender, {:.0} % with eight",
            one * 100.0,
            eight * 100.0
        );
        holds_if(naks > 0.0 && one * NOISE < 1.0, because)
    }),
    ("send-receive/rnr-is-many-to-one", |view, _| {
        let ((_, one), (_, eight)) = (overload(view, "1 sender, none")?, overload(view, "8 senders, none")?);
        let because = format!("{one:.0} RNR NAKs/s with one sender, {eight:.0} with eight");
        holds_if(eight > one * NOISE, because)
    }),
    ("send-receive/credits-prevent-rnr", |view, _| {
        let most = ["1 sender, credits", "8 senders, credits"]
            .into_iter()
            .flat_map(|series| view.of(RNR).filter(move |record| record.series == series))
            .filter_map(|record| Some(record.spread(RnrNaks)?.most))
            .reduce(f64::max)?;
        holds_if(most == 0.0, format!("with credits {most:.0} RNR NAKs/s in every repetition at most"))
    }),
];
