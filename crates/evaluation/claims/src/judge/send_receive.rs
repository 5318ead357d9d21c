//! Rules of Send-Receive without shared receives.

use super::asked::{at, highest, list, millions, quotient};
use super::line::Line;
use super::{MANY, Rules, SIZES, THREADS, of_all};
use crate::Quantity::{Latency, LineShare, ReceivingCpu, RnrNaks, SendingCpu, Throughput};
use crate::Setting::{
    Batch, Bytes, Connections, Credits, Inline, OneQueue, PollList, PostsInFlight, RatePerS, RepostList, Sleeping,
    Window,
};
use crate::tolerance::{ABOUT, ABOUT_LINEAR, BY_FAR, LINEAR, NEAR_LINE_RATE, STRAIGHT};
use crate::{Cause, Gap};

/// Number of posts in flight if the number of posts binds. No publication states it.
const POSTS: f64 = 4.0;

pub(super) const RULES: Rules = &[
    ("send-receive/latency-is-a-line", |asked| {
        let to_bytes = asked.number("to_bytes")?;
        let curve = asked.curve(&asked.load(), Latency, Bytes, 16.0..=to_bytes)?;
        let line = Line::fit(&curve).ok_or_else(|| Gap::NoValues("a line needs three points".to_owned()))?;
        let because = format!(
            "a line of {:.1} us + {:.2} us/KiB fits {} sizes up to {to_bytes:.0} B within {:.0} %",
            line.base / 1e3,
            line.slope * 1.024,
            curve.len(),
            line.worst * 100.0
        );
        Ok((line.slope > 0.0 && asked.is_off_by(1.0 + line.worst, 1.0, STRAIGHT), because))
    }),
    ("send-receive/window-linear-then-flat", |asked| {
        let knee = asked.number("knee_window")?;
        let curve = asked.rates(&asked.load_with(Batch, 1.0), Window, 1.0..=8.0 * knee)?;
        at(&curve, 1.0)?;
        at(&curve, knee)?;
        // Sweeps double the window, so the smallest sufficient window lies between half of the knee and the knee.
        let before = curve.iter().take_while(|point| point.0 < knee).count();
        let is_linear = curve[..before].windows(2).all(|pair| asked.is_linear(pair[0], pair[1], LINEAR));
        let grows = asked.is_more(curve[before].1, curve[before - 1].1);
        Ok((is_linear && grows && asked.is_flat(&curve[before..]), list(&curve, "unacknowledged")))
    }),
    ("send-receive/window-gains", |asked| {
        let curve = asked.rates(&asked.load_with(Batch, 1.0), Window, 1.0..=256.0)?;
        let gain = highest(&curve) / at(&curve, 1.0)?;
        Ok((asked.is_at_least(gain, asked.number("gain")?), format!("{gain:.1} times with the best window")))
    }),
    ("send-receive/batch-gains", |asked| {
        let (batch, most) = (asked.number("knee_batch")?, asked.number("gain")?);
        let load = asked.load_with(Window, 256.0);
        let gain = asked.rate(&load.with(Batch, batch))? / asked.rate(&load.with(Batch, 1.0))?;
        let holds = asked.is_more(gain, 1.0) && asked.is_at_most(gain, most * (1.0 + ABOUT));
        let because = format!("{batch:.0} per post give {gain:.2} times the rate of one per post");
        asked.unless(Cause::Doorbell, holds, because)
    }),
    ("send-receive/batch-linear-where-posts-bind", |asked| {
        let knee = asked.number("knee_batch")?;
        let curve = asked.rates(&asked.load_with(PostsInFlight, POSTS), Batch, 1.0..=knee)?;
        let holds = curve.windows(2).all(|pair| asked.is_linear(pair[0], pair[1], ABOUT_LINEAR));
        Ok((holds, format!("{POSTS} posts in flight, {}", list(&curve, "per post"))))
    }),
    ("send-receive/batch-flat-above-8", |asked| {
        let knee = asked.number("knee_batch")?;
        let curve = asked.rates(&asked.load_with(Window, 256.0), Batch, knee..=8.0 * knee)?;
        at(&curve, knee)?;
        Ok((asked.is_flat(&curve), list(&curve, "per post")))
    }),
    ("send-receive/batch-wants-window", |asked| {
        let batch = asked.number("batch")?;
        let windows = [asked.number("narrow_window")?, asked.number("wide_window")?];
        let mut gains = [0.0; 2];
        for (gain, window) in gains.iter_mut().zip(windows) {
            let load = asked.load_with(Window, window);
            *gain = asked.rate(&load.with(Batch, batch))? / asked.rate(&load.with(Batch, 1.0))?;
        }
        let because = format!(
            "{batch:.0} per post give {:.2} times the rate of one per post with {:.0} unacknowledged, {:.2} times with {:.0}",
            gains[1], windows[1], gains[0], windows[0]
        );
        match asked.is_more(gains[1], gains[0]) {
            // If lists save nothing even with the wide window, the reason may be the source.
            false if !asked.is_more(gains[1], 1.0) => asked.unless(Cause::Doorbell, false, because),
            holds => Ok((holds, because)),
        }
    }),
    ("send-receive/single-connection-ceiling", |asked| {
        let (batch, window) = (asked.number("batch")?, asked.number("wide_window")?);
        let one = asked.rates(&asked.load_with(Window, window), Batch, batch..=64.0)?;
        let threads = asked.load_with(Bytes, 16.0).in_experiment("send-receive/threads");
        let several = highest(&asked.rates(&threads, Connections, THREADS)?);
        let least = one.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let is_flat = !asked.is_more(highest(&one), least);
        let is_far = asked.is_at_least(several / highest(&one), BY_FAR);
        let because = format!(
            "one connection, {} ({:.0} are published), several {}",
            list(&one, "per post"),
            asked.number("ceiling_m_per_s")?,
            millions(several)
        );
        if is_flat && !is_far {
            asked.needs_cpus(1.0, &because)?;
        }
        Ok((is_flat && is_far, because))
    }),
    ("send-receive/sequential-is-slow", |asked| {
        let (to_bytes, most) = (asked.number("to_bytes")?, asked.number("most_share")?);
        let load = asked.load_with(Window, 1.0).with(Batch, 1.0);
        let share = highest(&asked.curve(&load, LineShare, Bytes, 16.0..=to_bytes)?);
        let because = format!("up to {to_bytes:.0} B at best {}", asked.of_line(share));
        Ok((asked.is_at_most(share, most), because))
    }),
    ("send-receive/unbatched-is-linear", |asked| {
        let load = asked.load_with(Window, asked.number("window")?).with(Batch, 1.0);
        let curve = asked.curve(&load, Throughput, Bytes, SIZES)?;
        let shares = asked.curve(&load, LineShare, Bytes, SIZES)?;
        let is_on = |(pair, share): (&[(f64, f64)], &(f64, f64))| {
            asked.is_linear(pair[0], pair[1], LINEAR) || asked.is_at_least(share.1, NEAR_LINE_RATE)
        };
        let holds = curve.windows(2).zip(&shares[1..]).all(is_on) && !asked.is_at_least(shares[0].1, NEAR_LINE_RATE);
        let of_line: Vec<String> = shares.iter().map(|share| format!("{:.1}", share.1 * 100.0)).collect();
        let last = shares[shares.len() - 1].0;
        let because = format!("{:.0} to {last:.0} B: {}", shares[0].0, of_line.join(", "));
        Ok((holds, because + &asked.of_line(1.0).replace("100 %", " %")))
    }),
    ("send-receive/batched-is-steeper", |asked| {
        let to_bytes = asked.number("to_bytes")?;
        let batched = asked.load_with(Window, asked.number("window")?).with(Batch, asked.number("batch")?);
        let unbatched = asked.load_with(Window, 64.0).with(Batch, 1.0);
        let [batched, unbatched] = [batched, unbatched].map(|load| asked.rates(&load, Bytes, 16.0..=to_bytes));
        let ratios = of_all(&batched?, &unbatched?)?;
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        Ok((asked.is_more(mean, 1.0), format!("{mean:.2} times as many messages on average up to {to_bytes:.0} B")))
    }),
    ("send-receive/large-beats-batch", |asked| {
        let batch = asked.number("batch")?;
        let small = asked.load_with(Batch, batch);
        let mut gains = Vec::new();
        for bytes in asked.places(&small, Bytes, 16.0..=512.0)? {
            let small = asked.value(&small.with(Bytes, bytes), Throughput)?;
            let large = asked.value(&asked.load_with(Batch, 1.0).with(Bytes, bytes * batch), Throughput)?;
            gains.push(quotient(large, small)?);
        }
        let least = gains.iter().copied().reduce(f64::min).ok_or_else(|| Gap::NoValues("no sizes".to_owned()))?;
        let because = format!(
            "at {} lengths at least {least:.2} times the bytes per second of {batch:.0} in one post",
            gains.len()
        );
        Ok((asked.is_more(least, 1.0), because))
    }),
    ("send-receive/poll-lists-gain", |asked| {
        let load = asked.load_with(RepostList, 64.0);
        let lists = asked.rate(&load.with(PollList, asked.number("poll_list")?))?;
        let gain = quotient(lists, asked.rate(&load.with(PollList, 1.0))?)?;
        let because = format!("{gain:.2} times the rate of taking them one by one");
        Ok((asked.is_about(gain, asked.number("gain")?), because))
    }),
    ("send-receive/receiver-never-binds", |asked| {
        let slow = asked.rate(&asked.load_with(PollList, 1.0).with(RepostList, 1.0))?;
        let lists = asked.load_with(PollList, asked.number("poll_list")?).with(RepostList, 64.0);
        let fast = asked.rate(&lists)?;
        let because = format!("without any batching {:.0} % of the rate with it", slow / fast * 100.0);
        Ok((!asked.is_more(fast, slow), because))
    }),
    ("send-receive/inline-is-faster", |asked| {
        let bytes = asked.number("bytes")?;
        let load = asked.load_with(Bytes, bytes);
        let gain = asked.value(&load.with(Inline, 0.0), Latency)? / asked.value(&load.with(Inline, 1.0), Latency)?;
        let because = format!("without inline data {bytes:.0} B take {gain:.2} times as long");
        asked.unless(Cause::PayloadFetch, asked.is_more(gain, 1.0), because)
    }),
    ("send-receive/batch-saves-cpu", |asked| {
        let batch = asked.number("batch")?;
        let load = asked.load_with(Window, asked.number("window")?);
        let share = quotient(
            asked.value(&load.with(Batch, batch), SendingCpu)?,
            asked.value(&load.with(Batch, 1.0), SendingCpu)?,
        )?;
        let because =
            format!("{batch:.0} per post take {:.0} % of the sender's CPU time of one per post", share * 100.0);
        asked.unless(Cause::Doorbell, asked.is_more(1.0, share), because)
    }),
    ("send-receive/inline-costs-cpu", |asked| {
        let bytes = asked.number("bytes")?;
        let load = asked.load_with(Bytes, bytes);
        let cost = quotient(
            asked.value(&load.with(Inline, 1.0), SendingCpu)?,
            asked.value(&load.with(Inline, 0.0), SendingCpu)?,
        )?;
        let because = format!("{bytes:.0} B inline take {cost:.2} times the CPU time of an end");
        asked.unless(Cause::InlineCopy, asked.is_more(cost, 1.0), because)
    }),
    ("send-receive/events-save-cpu", |asked| {
        let rate = asked.number("rate_k_per_s")?;
        let load = asked.load_with(RatePerS, rate * 1e3);
        let share = quotient(
            asked.value(&load.with(Sleeping, 1.0), ReceivingCpu)?,
            asked.value(&load.with(Sleeping, 0.0), ReceivingCpu)?,
        )?;
        let because = format!(
            "at {rate:.0} thousand messages/s the receiver takes {:.0} % of the CPU time of one that polls",
            share * 100.0
        );
        // A processor that two processes share has smaller effects.
        Ok((share * BY_FAR <= 1.0, because))
    }),
    ("send-receive/threads-are-linear", |asked| {
        asked.grows_with_threads(|asked, rates| asked.is_linear_then_flat(rates))
    }),
    ("send-receive/threads-line-rate", |asked| asked.reaches_line_rate(asked.number("bytes")?, &asked.load())),
    ("send-receive/threads-small-beat-512", |asked| {
        let (small, many) = asked.with_many(&asked.load_with(Bytes, 16.0), *THREADS.end())?;
        let ratio = asked.rate(&small)? / asked.rate(&small.with(Bytes, 512.0))?;
        let because = format!("{ratio:.2} times with {many:.0} threads");
        asked.unless(Cause::FullLine, asked.is_at_least(ratio, asked.number("gain")?), because)
    }),
    ("send-receive/n-to-1-line-rate", |asked| {
        asked.reaches_line_rate(asked.number("bytes")?, &asked.load_with(OneQueue, 1.0))
    }),
    ("send-receive/n-to-1-falls", |asked| {
        let (mut holds, mut because) = (true, Vec::new());
        for bytes in [16.0, 512.0] {
            let curve = asked.rates(&asked.load_with(Bytes, bytes).with(OneQueue, 1.0), Connections, THREADS)?;
            holds &= asked.falls_from_its_highest(&curve);
            because.push(format!("{bytes:.0} B, {}", list(&curve, "senders")));
        }
        Ok((holds, because.join("; ")))
    }),
    ("send-receive/n-to-1-16-slower-than-512", |asked| {
        let (small, many) = asked.with_many(&asked.load_with(Bytes, 16.0).with(OneQueue, 1.0), MANY)?;
        let ratio = asked.rate(&small)? / asked.rate(&small.with(Bytes, 512.0))?;
        let because = format!("with {many:.0} senders 16 B reach {ratio:.2} times the messages/s of 512 B");
        asked.unless(Cause::DataInCompletions, asked.is_slower(ratio), because)
    }),
    ("send-receive/n-to-1-one-queue", |asked| {
        let (one, many) = asked.with_many(&asked.load_with(Bytes, 16.0).with(OneQueue, 1.0), MANY)?;
        let gain = asked.rate(&one)? / asked.rate(&one.with(OneQueue, 0.0))?;
        Ok((asked.is_more(gain, 1.0), format!("{gain:.2} times the rate with {many:.0} senders of 16 B")))
    }),
    ("send-receive/rnr-hurts", |asked| {
        let load = asked.load_with(OneQueue, 1.0);
        let (free, held) = (load.with(Credits, 0.0), load.with(Credits, 1.0));
        let (mut holds, mut because) = (false, Vec::new());
        for senders in asked.places(&free, Connections, 1.0..=MANY)? {
            let [free, held] = [&free, &held].map(|load| load.with(Connections, senders));
            let naks = asked.value(&free, RnrNaks)?;
            let share = asked.rate(&free)? / asked.rate(&held)?;
            holds |= naks > 0.0 && asked.is_more(1.0, share);
            because.push(format!(
                "{senders:.0} senders: {naks:.0} RNR NAKs and {:.0} % of the goodput that credits give",
                share * 100.0
            ));
        }
        Ok((holds, because.join(", ")))
    }),
    ("send-receive/rnr-is-many-to-one", |asked| {
        let load = asked.load_with(OneQueue, 1.0).with(Credits, 0.0);
        let (load, senders) = asked.with_many(&load, MANY)?;
        let (one, many) = (asked.value(&load.with(Connections, 1.0), RnrNaks)?, asked.value(&load, RnrNaks)?);
        let because = format!("{one:.0} RNR NAKs with one sender, {many:.0} with {senders:.0}");
        Ok((asked.is_more(many, one), because))
    }),
    ("send-receive/credits-prevent-rnr", |asked| {
        let load = asked.load_with(OneQueue, 1.0);
        let [mut with, mut without] = [0.0_f64; 2];
        for senders in asked.places(&load.with(Credits, 1.0), Connections, 1.0..=MANY)? {
            let load = load.with(Connections, senders);
            with = with.max(asked.value(&load.with(Credits, 1.0), RnrNaks)?);
            without = without.max(asked.value(&load.with(Credits, 0.0), RnrNaks)?);
        }
        let because = format!("{with:.0} RNR NAKs with credits at most, {without:.0} without");
        Ok((with == 0.0 && without > 0.0, because))
    }),
];
