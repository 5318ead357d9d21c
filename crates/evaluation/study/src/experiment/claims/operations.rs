//! Shapes and numbers of one-sided operations, of requests with answers, and of frames.

use doorbell_published::{Amount, Quantity as Published, Relation, Row, Subject};

use super::super::judge::{Judgement, cannot, holds_if};
use super::super::quantity::Quantity::{
    self, MessageRate, RequestFrame, RequestPackets, ResponseFrame, ResponsePackets,
};
use super::super::record::PointRecord;
use super::super::view::View;
use super::{Judges, NOISE, at, quotient, unless_soft};
use crate::parameters::Operation;

/// Ids of published numbers that follow from packet formats and do not depend on the machine.
pub(super) const ROWS: &[&str] = &[
    "wire/write-0-frame",
    "wire/write-1-frame",
    "wire/write-5-frame",
    "wire/ack-frame",
    "wire/write-1mib-bytes-per-packet",
    "one-sided/write-1mib-acks-per-message",
    "one-sided/read-0-request-packets",
    "one-sided/read-0-response-packets",
    "one-sided/read-1-request-packets",
    "one-sided/read-1-response-packets",
    "request-response/packets-per-operation",
    "request-response/counted-bytes-per-packet",
];

/// Returns whether an amount in a published configuration includes `number`.
fn covers(amount: Option<Amount>, number: usize) -> bool {
    let number = number as f64;
    match amount {
        None | Some(Amount::Unknown) => true,
        Some(Amount::Is(is)) => is == number,
        Some(Amount::Span(least, most)) => (least..=most).contains(&number),
    }
}

/// Returns whether a record was measured in the published configuration of a row.
fn is_meant(record: &PointRecord, row: &Row) -> bool {
    let operation = match record.parameters.operation {
        Operation::Send => "send",
        Operation::Write => "write",
        Operation::Read => "read",
        Operation::CompareSwap => "cas",
        Operation::RequestResponse => "request-response",
        Operation::FetchAdd => return false,
    };
    let configuration = &row.configuration;
    matches!(&row.subject, Subject::Operation(of) if of.name() == operation)
        && covers(configuration.bytes, record.bytes())
        && covers(configuration.window, record.parameters.window)
        && covers(configuration.connections, record.parameters.connections)
}

fn quantity_of(row: &Row) -> Option<Quantity> {
    Some(match row.quantity {
        Published::RequestBytesPerPacket => RequestFrame,
        Published::ResponseBytesPerPacket => ResponseFrame,
        Published::RequestPacketsPerOperation => RequestPackets,
        Published::ResponsePacketsPerOperation => ResponsePackets,
        _ => return None,
    })
}

/// Judges whether every point in the row's configuration has the row's number.
pub(super) fn judge_row(view: View<'_>, row: &Row) -> Option<Judgement> {
    let quantity = quantity_of(row)?;
    let published = row.value.number;
    let medians = view.of(&row.experiment).filter(|record| is_meant(record, row));
    let found: Vec<f64> = medians.filter_map(|record| Some(record.spread(quantity)?.median)).collect();
    let deviation = |found: f64| row.relation.deviation(published, found).abs();
    let worst = found.into_iter().max_by(|&a, &b| deviation(a).total_cmp(&deviation(b)))?;
    // Allow a tolerance, since the interval between two counter reads does not begin and end exactly with a message.
    let tolerance = if row.relation == Relation::Is { 0.002 } else { 0.1 };
    let because = format!("{worst:.2} {} where {}{} is published", quantity.unit(), row.relation.words(), row.value);
    let holds = deviation(worst) <= tolerance;
    match row.quantity {
        Published::ResponsePacketsPerOperation if !holds && view.is_soft() => {
            cannot(format!("{because}; how many packets one ACK covers is up to the RNIC"))
        }
        _ => holds_if(holds, because),
    }
}

pub(super) const SHAPES: Judges = &[
    ("wire/acks-are-packets", |view, shape| {
        let packets = shape.number("packets")?;
        let mut worst = packets;
        for series in ["0 B", "1 B"] {
            for quantity in [RequestPackets, ResponsePackets] {
                let found = view.median_at("one-sided/write", series, quantity, 1.0)?;
                if (found - packets).abs() >= (worst - packets).abs() {
                    worst = found;
                }
            }
        }
        let because = format!("{worst:.3} packets per operation in the direction that differs most");
        holds_if((worst - packets).abs() <= 0.02, because)
    }),
    ("wire/acks-coalesce", |view, shape| {
        let curve = view.curve("wire/request-response", "1 B", RequestPackets);
        let (one, many) = (at(&curve, 1.0)?, *curve.last()?);
        let range = shape.number("least")? - 0.01..=shape.number("most")? + 0.01;
        let because = format!(
            "{one:.2} packets per operation with one outstanding, {:.2} with {:.0}: messages and their acknowledgements",
            many.1, many.0
        );
        holds_if(curve.iter().all(|point| range.contains(&point.1)) && many.1 * NOISE <= one, because)
    }),
    ("wire/send-looks-like-ack", |view, shape| {
        let bytes = shape.number("bytes")?;
        let send = view.median_at("wire/frames", "SEND without credits", RequestFrame, 1.0)?;
        let ack = view.median_at("wire/frames", "SEND without credits", ResponseFrame, 1.0)?;
        let because = format!("a SEND of 1 B has {send:.2} B, its ACK {ack:.2} B");
        holds_if((send - bytes).abs() <= 0.1 && (ack - bytes).abs() <= 0.1, because)
    }),
    ("far-memory/atomics-are-slow", |view, shape| {
        let pairs = shape.number("connections")?;
        let [cas, read] = ["CAS", "READ"].map(|series| view.best_at("one-sided/atomics", series, MessageRate, pairs));
        let share = quotient(cas?, read?)?;
        let because = format!("over {pairs:.0} queue pairs CAS reach {:.0} % of the rate of READs", share * 100.0);
        unless_soft(view, share * NOISE <= 1.0, because, "a software RNIC crosses no PCIe while it holds a lock")
    }),
];
