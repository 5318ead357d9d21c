//! Rules of bare operations, of requests with responses, and of frames.

use super::Rules;
use super::asked::quotient;
use crate::Quantity::{
    OperationRate, RequestBytesPerPacket, RequestPacketsPerOperation, ResponseBytesPerPacket,
    ResponsePacketsPerOperation,
};
use crate::Setting::{Bytes, Connections, Credits, Window};
use crate::{Cause, PublishedOperation};

pub(super) const RULES: Rules = &[
    ("wire/acks-are-packets", |asked| {
        let packets = asked.number("packets")?;
        let mut found = Vec::new();
        for (operation, experiment) in
            [(PublishedOperation::Write, "one-sided/write"), (PublishedOperation::Read, "one-sided/read")]
        {
            for bytes in [0.0, 1.0] {
                let load = asked.load_with(Window, 1.0).with(Bytes, bytes);
                let load = load.with_operation(operation).in_experiment(experiment);
                found.push(asked.value(&load, RequestPacketsPerOperation)?);
                found.push(asked.value(&load, ResponsePacketsPerOperation)?);
            }
        }
        let holds = found.iter().all(|found| asked.is_counted(*found, packets));
        let off = |found: &f64| (found - packets).abs();
        let worst = found.into_iter().max_by(|one, other| off(one).total_cmp(&off(other))).unwrap_or(packets);
        Ok((holds, format!("{worst:.3} packets per operation in the direction that differs most")))
    }),
    ("wire/acks-coalesce", |asked| {
        let load = asked.load_with(Bytes, 1.0);
        let curve = asked.curve(&load, RequestPacketsPerOperation, Window, 1.0..=64.0)?;
        let (least, most) = (asked.number("least")?, asked.number("most")?);
        let is_within = |packets: f64| !asked.is_more(least, packets) && !asked.is_more(packets, most);
        let (first, last) = (curve[0], curve[curve.len() - 1]);
        let because = format!(
            "{:.2} packets per operation with {:.0} outstanding, {:.2} with {:.0}: messages and their acknowledgements",
            first.1, first.0, last.1, last.0
        );
        Ok((curve.iter().all(|point| is_within(point.1)) && asked.is_more(first.1, last.1), because))
    }),
    ("wire/send-looks-like-ack", |asked| {
        let bytes = asked.number("bytes")?;
        let load = asked.load_with(Bytes, 1.0).with(Window, 1.0).with(Credits, 0.0);
        let send = asked.value(&load, RequestBytesPerPacket)?;
        let ack = asked.value(&load, ResponseBytesPerPacket)?;
        let because = format!("a SEND of 1 B has {send:.2} B, its ACK {ack:.2} B");
        Ok((asked.is_counted(send, bytes) && asked.is_counted(ack, bytes), because))
    }),
    ("far-memory/atomics-are-slow", |asked| {
        let pairs = asked.number("connections")?;
        let cas = asked.load_with(Connections, pairs);
        let read = asked.value(&cas.with_operation(PublishedOperation::Read), OperationRate)?;
        let share = quotient(asked.value(&cas, OperationRate)?, read)?;
        let because = format!("over {pairs:.0} queue pairs CAS reach {:.0} % of the rate of READs", share * 100.0);
        asked.unless(Cause::Units, asked.is_more(1.0, share), because)
    }),
];
