//! Rules of Direct-Read.

use super::asked::{at, list};
use super::{MANY, Rules, SIZES, THREADS, of_all};
use crate::Cause;
use crate::Quantity::{Latency, LineShare, Throughput};
use crate::Setting::{Batch, Bytes, Connections, Window};
use crate::tolerance::{A_LITTLE, ABOUT, ABOUT_LINEAR, BY_FAR, LINEAR, NEAR_LINE_RATE};

/// Name of the protocol without a fence.
const PLAIN: &str = "direct-read";

pub(super) const RULES: Rules = &[
    ("direct-read/latency-is-flat", |asked| {
        let to_bytes = asked.number("to_bytes")?;
        let [short, long] = [16.0, to_bytes].map(|bytes| asked.value(&asked.load_with(Bytes, bytes), Latency));
        let growth = long? / short?;
        let because = format!("{to_bytes:.0} B take {growth:.2} times as long as 16 B");
        Ok((asked.is_at_most(growth, 1.0 + ABOUT), because))
    }),
    ("direct-read/fence-is-slower", |asked| {
        let fenced = asked.load_with(Bytes, 16.0);
        let ratio = asked.value(&fenced, Latency)? / asked.value(&fenced.with_protocol(PLAIN), Latency)?;
        let published = asked.number("longer_us")? / asked.number("without_us")?;
        let because = format!("16 B take {ratio:.2} times as long ({:.1} are published)", 1.0 + published);
        Ok((asked.is_about(ratio - 1.0, published), because))
    }),
    ("direct-read/fence-serialises", |asked| {
        let fenced = asked.load_with(Window, 32.0).with(Batch, 1.0);
        let plain = asked.rates(&fenced.with_protocol(PLAIN), Bytes, SIZES)?;
        let gains = of_all(&plain, &asked.rates(&fenced, Bytes, SIZES)?)?;
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let because = format!("without a fence at least {least:.1} times as much at {} sizes", gains.len());
        Ok((asked.is_at_least(least, BY_FAR), because))
    }),
    ("direct-read/bandwidth-bends", |asked| {
        let load = asked.load_with(Window, 32.0).with(Batch, 1.0);
        let sizes = 16.0..=65_536.0;
        let curve = asked.curve(&load, Throughput, Bytes, sizes.clone())?;
        let shares = asked.curve(&load, LineShare, Bytes, sizes)?;
        let is_on = |(pair, share): (&[(f64, f64)], &(f64, f64))| {
            asked.is_linear(pair[0], pair[1], ABOUT_LINEAR) || asked.is_at_least(share.1, NEAR_LINE_RATE)
        };
        let (last, share) = shares[shares.len() - 1];
        let is_bent = !asked.is_linear(curve[curve.len() - 2], curve[curve.len() - 1], LINEAR);
        let because = format!(
            "{:.0}-fold from {:.0} to {last:.0} B, to {}",
            curve[curve.len() - 1].1 / curve[0].1,
            curve[0].0,
            asked.of_line(share)
        );
        let is_line = asked.is_line_rate(share);
        match curve.windows(2).zip(&shares[1..]).all(is_on) && is_bent {
            true => asked.unless(Cause::Line, is_line, because),
            false => Ok((false, because)),
        }
    }),
    ("direct-read/window-of-32", |asked| {
        let knee = asked.number("knee_window")?;
        let curve = asked.rates(&asked.load_with(Batch, 1.0), Window, knee..=4.0 * knee)?;
        at(&curve, knee)?;
        Ok((asked.is_flat(&curve), list(&curve, "unacknowledged")))
    }),
    ("direct-read/threads-are-linear", |asked| {
        asked.grows_with_threads(|asked, rates| asked.is_linear_then_less(rates))
    }),
    ("direct-read/threads-line-rate", |asked| asked.reaches_line_rate(asked.number("bytes")?, &asked.load())),
    ("direct-read/n-to-1-small-flat", |asked| {
        let curve = asked.rates(&asked.load_with(Bytes, 16.0), Connections, THREADS)?;
        Ok((asked.is_flat(&curve), list(&curve, "senders of 16 B")))
    }),
    ("direct-read/n-to-1-large-gains", |asked| {
        let (load, many) = asked.with_many(&asked.load_with(Bytes, asked.number("bytes")?), MANY)?;
        let gain = asked.rate(&load)? / asked.rate(&load.with(Connections, 1.0))?;
        let share = asked.value(&load, LineShare)?;
        let because = format!("{many:.0} senders reach {gain:.2} times the rate of one, {}", asked.of_line(share));
        let is_little = asked.is_at_least(gain, A_LITTLE.0) && asked.is_at_most(gain, A_LITTLE.1);
        if !is_little {
            return Ok((false, because));
        }
        asked.unless(Cause::Line, asked.is_line_rate(share), because)
    }),
];
