//! Rules of shared receives.

use super::asked::{Asked, list};
use super::{MANY, Rules, THREADS};
use crate::Quantity::RnrNaks;
use crate::Setting::{Bytes, Connections, OneQueue, Paced, RepostThread, SharedReceives};
use crate::{Cause, Gap, Load};

/// Returns the load of many to one with shared receives.
fn shared<'a>(asked: &Asked<'a>, bytes: f64) -> Load<'a> {
    asked.load_with(Bytes, bytes).with(OneQueue, 1.0).with(SharedReceives, 1.0)
}

/// Returns the rate with shared receives divided by the rate if each connection has its own.
fn share(asked: &mut Asked<'_>, shared: &Load<'_>) -> Result<f64, Gap> {
    let own = shared.with(SharedReceives, 0.0).in_experiment("send-receive/n-to-1");
    Ok(asked.rate(shared)? / asked.rate(&own)?)
}

pub(super) const RULES: Rules = &[
    ("send-receive/srq-thread-hurts", |asked| {
        let load = asked.load_with(Bytes, 16.0).with(SharedReceives, 1.0).with(RepostThread, 0.0);
        let (lock, many) = asked.with_many(&load, MANY)?;
        let gain = asked.rate(&lock)? / asked.rate(&lock.with(RepostThread, 1.0))?;
        let holds = asked.is_more(gain, 1.0);
        let mut because = format!("under a lock, 16 B at {many:.0} threads reach {gain:.2} times the rate");
        if let Some(cpus) = asked.cpus().filter(|cpus| holds && *cpus < 3) {
            because += &format!("; but with {cpus} CPUs that thread takes its CPU from those that send and receive");
        }
        Ok((holds, because))
    }),
    ("send-receive/srq-needs-throttling", |asked| {
        let load = asked.load_with(Bytes, 512.0).with(SharedReceives, 1.0).with(RepostThread, 1.0).with(Paced, 0.0);
        let (load, many) = asked.with_many(&load, MANY)?;
        let naks = asked.value(&load, RnrNaks)?;
        Ok((naks > 0.0, format!("{naks:.0} RNR NAKs with {many:.0} threads that send without a limit")))
    }),
    ("send-receive/srq-short-is-free", |asked| {
        let (mut holds, mut because) = (true, Vec::new());
        for bytes in [16.0, asked.number("to_bytes")?] {
            let (load, many) = asked.with_many(&shared(asked, bytes), MANY)?;
            let share = share(asked, &load)?;
            holds &= !asked.is_more(1.0, share);
            because.push(format!("with {many:.0} senders of {bytes:.0} B {:.0} % of that rate", share * 100.0));
        }
        Ok((holds, because.join(", ")))
    }),
    ("send-receive/srq-limits", |asked| {
        let (load, many) = asked.with_many(&shared(asked, 512.0), MANY)?;
        let (share, rate) = (share(asked, &load)?, asked.rate(&load)?);
        let because = format!(
            "with {many:.0} senders of 512 B {:.2} M/s ({:.0} are published), {:.0} % of the rate with buffers of their own",
            rate / 1e6,
            asked.number("rate_m_per_s")?,
            share * 100.0
        );
        asked.unless(Cause::SharedReceiveLimit, asked.is_more(1.0, share), because)
    }),
    ("send-receive/srq-does-not-decline", |asked| {
        let curve = asked.rates(&shared(asked, 16.0), Connections, THREADS)?;
        let falls = |one: (f64, f64), other: (f64, f64)| asked.is_more(one.1, other.1);
        let holds = !curve.windows(2).any(|pair| falls(pair[0], pair[1])) && !falls(curve[0], curve[curve.len() - 1]);
        Ok((holds, list(&curve, "senders of 16 B")))
    }),
    ("send-receive/srq-one-pair-is-free", |asked| {
        let load = shared(asked, 512.0).with(Connections, asked.number("connections")?);
        let share = share(asked, &load)?;
        let because = format!("with one sender of 512 B {:.0} % of the rate with buffers of its own", share * 100.0);
        Ok((!asked.is_more(1.0, share), because))
    }),
    ("send-receive/srq-unsuitable-between", |asked| {
        let (from, to) = (asked.number("from_bytes")?, asked.number("line_bytes")?);
        let (load, many) = asked.with_many(&shared(asked, 512.0), MANY)?;
        let (mut is_slow, mut is_free, mut shares) = (true, true, Vec::new());
        for bytes in asked.places(&load, Bytes, 512.0..=8192.0)? {
            let share = share(asked, &load.with(Bytes, bytes))?;
            match (from..=to).contains(&bytes) {
                true => is_slow &= asked.is_more(1.0, share),
                false => is_free &= !asked.is_more(1.0, share),
            }
            shares.push(format!("{:.0} % for {bytes:.0} B", share * 100.0));
        }
        let because = format!("with {many:.0} senders of the rate with buffers of their own {}", shares.join(", "));
        if is_slow { Ok((is_free, because)) } else { asked.unless(Cause::SharedReceiveLimit, false, because) }
    }),
];
