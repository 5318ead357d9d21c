//! Shapes of shared receives.

use super::super::judge::{cannot, holds_if};
use super::super::quantity::Quantity::{MessageRate, RnrNaks};
use super::super::view::View;
use super::send_receive::GATHER;
use super::{Judges, NOISE, at, ends, unless_soft};

const THREADS: &str = "send-receive/threads-srq";
const SHARED: &str = "send-receive/n-to-1-srq";

const SOFT_LIMIT: &str = "the limit is that of an RNIC's hardware, and this one is software";

/// Returns the messages/s with a shared receive queue divided by those without, for each number of senders.
fn shared_shares(view: View<'_>, bytes: f64) -> Vec<(f64, f64)> {
    let shared = view.best_curve(SHARED, &format!("{bytes:.0} B, shared"), MessageRate);
    let own = view.best_curve(GATHER, &format!("{bytes:.0} B, single receiver"), MessageRate);
    shared.iter().filter_map(|&(senders, rate)| Some((senders, rate / at(&own, senders)?))).collect()
}

/// Returns the largest number of senders and the ratio of [`shared_shares`] with these senders, if there is more than
/// one sender.
fn of_several(view: View<'_>, bytes: f64) -> Option<(f64, f64)> {
    shared_shares(view, bytes).pop().filter(|share| share.0 > 1.0)
}

pub(super) const SHAPES: Judges = &[
    ("send-receive/srq-thread-hurts", |view, _| {
        let (x, by_lock) = *view.best_curve(THREADS, "16 B, lock", MessageRate).last()?;
        let gain = by_lock / view.best_at(THREADS, "16 B, thread", MessageRate, x)?;
        let because = format!("under a lock, 16 B at {x:.0} threads reach {gain:.2} times the rate");
        let few = if gain >= NOISE && view.cpus() < 3 {
            format!("; but with {} CPUs that thread takes its CPU from those that send and receive", view.cpus())
        } else {
            String::new()
        };
        holds_if(gain >= NOISE, because + &few)
    }),
    ("send-receive/srq-needs-throttling", |view, _| {
        let naks = view.of(THREADS).filter_map(|record| Some(record.spread(RnrNaks)?.most));
        let most = naks.reduce(f64::max)?;
        let because = format!(
            "{} without any limit on senders: credits grant no more than is posted",
            if most == 0.0 { "not one RNR NAK".to_owned() } else { format!("up to {most:.0} RNR NAKs/s") }
        );
        holds_if(most > 0.0, because)
    }),
    ("send-receive/srq-short-is-free", |view, shape| {
        let mut least: Option<(f64, f64, f64)> = None;
        for bytes in [16.0, shape.number("to_bytes")?] {
            let (senders, share) = of_several(view, bytes)?;
            if least.is_none_or(|least| share < least.2) {
                least = Some((bytes, senders, share));
            }
        }
        let (bytes, senders, share) = least?;
        let because = format!("with {senders:.0} senders of {bytes:.0} B {:.0} % of that rate", share * 100.0);
        holds_if(share * NOISE >= 1.0, because)
    }),
    ("send-receive/srq-limits", |view, shape| {
        let (senders, share) = of_several(view, 512.0)?;
        let rate = view.best_at(SHARED, "512 B, shared", MessageRate, senders)?;
        let because = format!(
            "with {senders:.0} senders of 512 B {rate:.2} M/s ({:.0} are published), {:.0} % of the rate with buffers of \
             their own",
            shape.number("rate_m_per_s")?,
            share * 100.0
        );
        unless_soft(view, share * 1.25 < 1.0, because, SOFT_LIMIT)
    }),
    ("send-receive/srq-does-not-decline", |view, _| {
        let curve = view.best_curve(SHARED, "16 B, shared", MessageRate);
        let ((first, few), (last, many)) = ends(&curve)?;
        let because = format!("{last:.0} senders of 16 B reach {:.0} % of the rate of {first:.0}", many / few * 100.0);
        holds_if(many * NOISE >= few, because)
    }),
    ("send-receive/srq-one-pair-is-free", |view, shape| {
        let one = shape.number("connections")?;
        let share = at(&shared_shares(view, 512.0), one)?;
        let because = format!("with one sender of 512 B {:.0} % of the rate with buffers of its own", share * 100.0);
        holds_if(share * NOISE >= 1.0, because)
    }),
    ("send-receive/srq-unsuitable-between", |view, shape| {
        let (senders, between) = of_several(view, 512.0)?;
        let (_, above) = of_several(view, 8192.0)?;
        let because = format!(
            "with {senders:.0} senders {:.0} % of the rate with buffers of their own for 512 B (between {:.0} B and \
             {:.0} B), and {:.0} % for 8192 B (outside)",
            between * 100.0,
            shape.number("from_bytes")?,
            shape.number("line_bytes")?,
            above * 100.0
        );
        match between * 1.25 < 1.0 {
            false if view.is_soft() => cannot(format!("{because}; {SOFT_LIMIT}")),
            is_held => holds_if(is_held && above * NOISE >= 1.0, because),
        }
    }),
];
