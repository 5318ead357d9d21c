//! Shapes and numbers of memory that several clients share.

use doorbell_published::{Amount, Row};

use super::super::judge::{Judgement, holds_if};
use super::super::quantity::Quantity::{self, Far, MessageRate};
use super::super::view::View;
use super::{Judges, NOISE, at, ends, knee, unless_soft};
use crate::far::Figure::{
    BytesPerOperation, GetSuccess, InOrder, LargestGap, PutP99, PutSuccess, SameAddressOutOfOrder, Torn,
};

/// Reason why a software RNIC lacks the ceilings of hardware.
const ONE_PROCESSOR: &str = "a software RNIC has no units that work side by side, and crosses no PCIe";

/// Published number, with a function that returns the measured number, and a function that decides whether the two
/// numbers agree.
struct Number {
    id: &'static str,
    find: fn(View<'_>, &Row) -> Option<f64>,
    holds: fn(found: f64, published: f64) -> bool,
}

/// Published numbers. Numbers of the store are compared at the number of clients and the share of puts that the row
/// states.
const NUMBERS: &[Number] = &[
    Number {
        id: "far-memory/write-success",
        find: |view, row| of_store(view, row, "optimistic", PutSuccess),
        holds: |found, published| (found - published).abs() <= 5.0,
    },
    Number {
        id: "far-memory/read-success",
        find: |view, row| of_store(view, row, "optimistic", GetSuccess),
        holds: |found, published| (found - published).abs() <= 7.0,
    },
    Number { id: "far-memory/bytes-5", find: bytes, holds: within_three_tenths },
    Number { id: "far-memory/bytes-50", find: bytes, holds: within_three_tenths },
    Number { id: "far-memory/bytes-100", find: bytes, holds: within_three_tenths },
    Number {
        id: "far-memory/tail-latency",
        find: |view, row| Some(of_store(view, row, "optimistic", PutP99)? / of_store(view, row, "steered", PutP99)?),
        holds: |found, published| (published / 1.5..=published * 1.5).contains(&found),
    },
    Number {
        id: "far-memory/in-order",
        find: |view, row| view.median_at(&row.experiment, "READ", Far(InOrder), pairs(row)?),
        holds: |found, _| (95.0..=99.0).contains(&found),
    },
    Number {
        id: "far-memory/displacement",
        find: |view, row| view.median_at(&row.experiment, "READ", Far(LargestGap), pairs(row)?),
        holds: |found, _| (5.0..=20.0).contains(&found),
    },
    Number {
        id: "far-memory/out-of-order-16",
        find: |view, row| view.median_at(&row.experiment, "READ", Far(SameAddressOutOfOrder), pairs(row)?),
        holds: |found, published| (found - published).abs() <= 1.0,
    },
    Number {
        id: "far-memory/out-of-order-32",
        find: |view, row| view.median_at(&row.experiment, "READ", Far(SameAddressOutOfOrder), pairs(row)?),
        holds: |found, published| found >= published,
    },
    Number {
        id: "far-memory/pairs-that-fill-the-link",
        find: |view, row| {
            let curve = view.best_curve(&row.experiment, "WRITE, inline", MessageRate);
            ends(&curve)?;
            Some(knee(&curve, 0.95)?.0)
        },
        holds: |found, published| found >= published,
    },
];

/// Returns the ids of all numbers.
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|number| number.id)
}

fn one(amount: Option<Amount>) -> Option<f64> {
    match amount? {
        Amount::Is(value) => Some(value),
        _ => None,
    }
}

fn pairs(row: &Row) -> Option<f64> {
    one(row.configuration.connections)
}

fn of_store(view: View<'_>, row: &Row, strategy: &str, figure: crate::far::Figure) -> Option<f64> {
    let clients = one(row.configuration.clients)?;
    let puts = one(row.configuration.write_percent)?;
    view.median_at(&row.experiment, &format!("{strategy}, {clients} clients"), Far(figure), puts)
}

/// Returns the bytes per operation of the optimistic strategy, divided by those of clients whose requests a middlebox
/// steers.
fn bytes(view: View<'_>, row: &Row) -> Option<f64> {
    Some(of_store(view, row, "optimistic", BytesPerOperation)? / of_store(view, row, "steered", BytesPerOperation)?)
}

fn within_three_tenths(found: f64, published: f64) -> bool {
    (found - published).abs() <= 0.3
}

pub(super) fn judge_row(view: View<'_>, row: &Row) -> Option<Judgement> {
    let number = NUMBERS.iter().find(|number| number.id == row.id)?;
    let found = (number.find)(view, row)?;
    let published = row.value.number;
    let because = format!("{found:.2} where {}{} is published", row.relation.words(), row.value);
    let missing =
        if row.id == "far-memory/pairs-that-fill-the-link" { ONE_PROCESSOR } else { "nothing is reordered here" };
    unless_soft(view, (number.holds)(found, published), because, missing)
}

/// Returns the last value of a curve divided by the value at `from`, and the last value.
fn gain(view: View<'_>, series: &str, from: f64) -> Option<(f64, f64)> {
    let curve = rates(view, series);
    let last = ends(&curve)?.1;
    Some((last.1 / at(&curve, from)?, last.1))
}

fn rates(view: View<'_>, series: &str) -> Vec<(f64, f64)> {
    view.best_curve("far-memory/concurrency", series, MessageRate)
}

pub(super) const SHAPES: Judges = &[
    ("far-memory/cas-has-a-ceiling", |view, shape| {
        let (rate, from) = (shape.number("rate_m_per_s")?, shape.number("outstanding")?);
        let [cas, read, write] = ["CAS", "READ", "WRITE"].map(|series| gain(view, series, from));
        let (cas, read, write) = (cas?, read?, write?);
        let because = format!(
            "from {from:.0} outstanding on CAS gain {:.2} times and reach {:.1} M/s ({rate:.0} published), READs {:.2} times \
             ({:.1} M/s), WRITEs {:.2} times ({:.1} M/s)",
            cas.0, cas.1, read.0, read.1, write.0, write.1
        );
        let holds = cas.0 <= NOISE && (cas.1 / rate - 1.0).abs() <= 0.1 && read.0 > NOISE && write.0 > NOISE;
        unless_soft(view, holds, because, ONE_PROCESSOR)
    }),
    ("far-memory/one-address-is-slow", |view, shape| {
        let rate = shape.number("rate_m_per_s")?;
        let (one, many) = (rates(view, "CAS, one address"), rates(view, "CAS"));
        let most = |curve: &[(f64, f64)]| Some(knee(curve, 1.0)?.1);
        let (one, many) = (most(&one)?, most(&many)?);
        let because = format!(
            "{one:.1} M/s on one address at most, where {rate} M/s is published, and {many:.1} M/s on {:.0}: {:.0} times as \
             many",
            shape.number("connections")?,
            many / one
        );
        let holds = (one / rate - 1.0).abs() <= 0.1 && many >= 10.0 * one;
        unless_soft(view, holds, because, ONE_PROCESSOR)
    }),
    ("far-memory/order-within-a-pair", |view, shape| {
        let experiment = shape.experiment.as_str();
        let within = |pairs: f64| -> Option<f64> {
            let of = |series| view.median_at(experiment, series, Far(InOrder), pairs);
            Some(of("READ")?.min(of("WRITE")?).min(of("CAS")?))
        };
        let (one, many) = (within(1.0)?, within(32.0)?);
        let because = format!("on one queue pair {one:.1} % of the answers are in order, on 32 at least {many:.1} %");
        holds_if(one >= 100.0 && many < 100.0, because)
    }),
    ("far-memory/long-reads-tear", |view, shape| {
        let whole = shape.number("whole_bytes")?;
        let curve = view.curve("far-memory/tearing", "path MTU 1024", Far(Torn));
        let (first, last) = ends(&curve)?;
        let because = format!(
            "of READs of {:.0} B {:.1} % are torn, of {:.0} B {:.1} % (path MTU 1024)",
            first.0, first.1, last.0, last.1
        );
        holds_if(first.0 <= whole && first.1 == 0.0 && last.1 > 0.0, because)
    }),
    ("far-memory/optimism-collapses", |view, shape| {
        let published = shape.number("succeeding_writes_percent")?;
        let at_half = |series: &str, quantity: Quantity| view.median_at(&shape.experiment, series, quantity, 50.0);
        let success = at_half("optimistic, 128 clients", Far(PutSuccess))?;
        let steered = at_half("steered, 128 clients", Far(PutSuccess))?;
        let because = format!(
            "{success:.0} % of the CASes succeed where {published:.0} % are published, and {steered:.0} % behind a middlebox"
        );
        holds_if(success <= 2.0 * published && success * NOISE <= steered, because)
    }),
];
