//! Rules of memory that several clients share.

use super::Rules;
use super::asked::{Asked, at, highest, millions, quotient};
use crate::Quantity::{InOrder, OperationRate, SuccessOfWrites, Torn};
use crate::Setting::{Bytes, Clients, Connections, OneAddress, Outstanding, PathMtu, Steered, WritePercent};
use crate::tolerance::BY_FAR;
use crate::{Cause, Gap, Load, PublishedOperation};

/// Returns the smallest share of requests in order, over READ, WRITE and CAS.
fn in_order(asked: &mut Asked<'_>, load: &Load<'_>) -> Result<f64, Gap> {
    let mut least = 1.0_f64;
    for operation in [PublishedOperation::Read, PublishedOperation::Write, PublishedOperation::Cas] {
        least = least.min(asked.value(&load.with_operation(operation), InOrder)?);
    }
    Ok(least)
}

pub(super) const RULES: Rules = &[
    ("far-memory/cas-has-a-ceiling", |asked| {
        let from = asked.number("outstanding")?;
        let (mut holds, mut because) = (true, Vec::new());
        for (operation, name) in [
            (PublishedOperation::Cas, "CAS"),
            (PublishedOperation::Read, "READs"),
            (PublishedOperation::Write, "WRITEs"),
        ] {
            let load = asked.load_with(OneAddress, 0.0).with_operation(operation);
            let curve = asked.curve(&load, OperationRate, Outstanding, from..=500.0)?;
            let (first, last) = (at(&curve, from)?, highest(&curve));
            holds &= asked.is_more(last, first) == (operation != PublishedOperation::Cas);
            because.push(format!("{name} gain {:.2} times, to {}", quotient(last, first)?, millions(last)));
        }
        let because = format!("from {from:.0} outstanding on {}", because.join(", "));
        asked.unless(Cause::Units, holds, because)
    }),
    ("far-memory/one-address-is-slow", |asked| {
        let load = asked.load_with(OneAddress, 1.0);
        let one = asked.curve(&load, OperationRate, Outstanding, asked.number("connections")?..=320.0)?;
        let (most, own) = (one[one.len() - 1].0, load.with(OneAddress, 0.0));
        let own = asked.value(&own.with(Outstanding, most), OperationRate)?;
        let because = format!(
            "{} on one address at most ({} M/s are published), {} with an address for each queue pair",
            millions(highest(&one)),
            asked.number("rate_m_per_s")?,
            millions(own)
        );
        let holds = asked.is_flat(&one) && asked.is_at_least(own / highest(&one), BY_FAR);
        asked.unless(Cause::Units, holds, because)
    }),
    ("far-memory/order-within-a-pair", |asked| {
        let one = in_order(asked, &asked.load_with(Connections, 1.0))?;
        let (load, pairs) = asked.with_many(&asked.load().with_operation(PublishedOperation::Read), 32.0)?;
        let many = in_order(asked, &load)?;
        let because = format!(
            "on one queue pair {:.1} % of the answers are in order, on {pairs:.0} at least {:.1} %",
            one * 100.0,
            many * 100.0
        );
        Ok((one >= 1.0 && many < 1.0, because))
    }),
    ("far-memory/unreliable-have-no-order", |asked| {
        let share = asked.value(&asked.load_with(Connections, 1.0), InOrder)?;
        Ok((share < 1.0, format!("on one unreliable queue pair {:.1} % of the answers are in order", share * 100.0)))
    }),
    ("far-memory/long-reads-tear", |asked| {
        let whole = asked.number("whole_bytes")?;
        let curve = asked.curve(&asked.load_with(PathMtu, 1024.0), Torn, Bytes, whole..=4096.0)?;
        let (short, long) = (at(&curve, whole)?, curve[curve.len() - 1]);
        let because = format!(
            "of READs of {whole:.0} B {:.1} % are torn, of {:.0} B {:.1} % (path MTU 1024)",
            short * 100.0,
            long.0,
            long.1 * 100.0
        );
        Ok((short == 0.0 && long.1 > 0.0, because))
    }),
    ("far-memory/optimism-collapses", |asked| {
        let published = asked.number("succeeding_writes_percent")? / 100.0;
        let load = asked.load_with(WritePercent, 50.0).with(Clients, 128.0);
        let alone = asked.value(&load.with(Steered, 0.0), SuccessOfWrites)?;
        let steered = asked.value(&load.with(Steered, 1.0), SuccessOfWrites)?;
        let because = format!(
            "{:.0} % of the CASes succeed where {:.0} % are published, and {:.0} % behind a middlebox",
            alone * 100.0,
            published * 100.0,
            steered * 100.0
        );
        Ok((asked.is_at_most(alone / published, BY_FAR) && asked.is_more(steered, alone), because))
    }),
];
