//! Published numbers that a study measures.

use doorbell_claims::{Amount, Cause, Compared, Gap, Quantity as Published, Row, Setting, Source, Verdict};

use super::measured::{Measured, is_of, quantity_of, setting_of};
use super::view::{View, best};
use doorbell_record::{FarPoint, Figure, PointRecord, Quantity, Strategy};

/// Ids of the numbers. They follow from packet formats, or are those of memory that several clients share.
pub(super) const IDS: &[&str] = &[
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
    "far-memory/write-success",
    "far-memory/read-success",
    "far-memory/bytes-5",
    "far-memory/bytes-50",
    "far-memory/bytes-100",
    "far-memory/tail-latency",
    "far-memory/in-order",
    "far-memory/displacement",
    "far-memory/out-of-order-16",
    "far-memory/out-of-order-32",
    "far-memory/pairs-that-fill-the-link",
];

/// Minimum share of the highest rate at which queue pairs fill the link.
const FULL: f64 = 0.95;

/// Returns whether an amount in a published configuration includes the value of a setting.
fn covers(record: &PointRecord, setting: Setting, amount: Option<Amount>) -> bool {
    let Some(number) = setting_of(record, setting) else { return true };
    match amount {
        None | Some(Amount::Unknown) => true,
        Some(Amount::Is(is)) => is == number,
        Some(Amount::Span(least, most)) => (least..=most).contains(&number),
    }
}

/// Returns the records that were measured in the published configuration of a row.
fn records<'a>(view: View<'a>, row: &'a Row) -> impl Iterator<Item = &'a PointRecord> {
    let published = &row.configuration;
    view.of(&row.experiment).filter(move |record| {
        // A configuration of requests in order states the window and the bytes of no client.
        let is_order = matches!(record.parameters.far.as_deref(), Some(FarPoint::Order(_)));
        is_of(record, &row.subject)
            && covers(record, Setting::Connections, published.connections)
            && (is_order
                || covers(record, Setting::Bytes, published.bytes) && covers(record, Setting::Window, published.window))
            && covers(record, Setting::Clients, published.clients)
            && covers(record, Setting::WritePercent, published.write_percent)
    })
}

/// Returns a figure of the store without a middlebox, and with a middlebox that steers clients.
fn of_store(view: View<'_>, row: &Row, figure: Figure) -> [Option<f64>; 2] {
    [Strategy::Optimistic, Strategy::Steered].map(|wanted| {
        let is_meant = |record: &&PointRecord| match record.parameters.far.as_deref() {
            Some(FarPoint::Store(store)) => store.strategy == wanted,
            _ => false,
        };
        Some(records(view, row).find(is_meant)?.spread(Quantity::Far(figure))?.median)
    })
}

/// Returns the measured value of a row in the base unit of the row. Of several points in its configuration, the value
/// is that of the point that deviates most.
fn find(view: View<'_>, row: &Row) -> Option<f64> {
    let over = |[alone, steered]: [Option<f64>; 2]| Some(alone? / steered?);
    match row.quantity {
        Published::BytesInflation => over(of_store(view, row, Figure::BytesPerOperation)),
        Published::TailInflation => over(of_store(view, row, Figure::PutP99)),
        Published::SuccessOfWrites => Some(of_store(view, row, Figure::PutSuccess)[0]? / 100.0),
        Published::SuccessOfReads => Some(of_store(view, row, Figure::GetSuccess)[0]? / 100.0),
        Published::SaturatingConnections => {
            let rate = |record: &PointRecord| best(record, Quantity::MessageRate);
            let curve: Vec<(f64, f64)> =
                view.of(&row.experiment).filter_map(|record| Some((record.x, rate(record)?))).collect();
            let most = curve.iter().map(|point| point.1).reduce(f64::max).filter(|_| curve.len() > 1)?;
            curve.iter().filter(|point| point.1 >= FULL * most).map(|point| point.0).reduce(f64::min)
        }
        quantity => {
            let (measured, unit) = quantity_of(quantity)?;
            let medians = records(view, row).filter_map(|record| Some(record.spread(measured)?.median));
            let found = medians.map(|number| doorbell_claims::Value { number, unit }.in_base());
            let off = |found: f64| row.relation.deviation(row.value.in_base(), found).abs();
            found.max_by(|&one, &other| off(one).total_cmp(&off(other)))
        }
    }
}

/// Judges a number. Returns `None` if points are missing.
pub(super) fn judge(view: View<'_>, row: &Row) -> Option<Verdict> {
    let source = Measured { view };
    let compared = Compared::of(row, find(view, row)?, source.noise().of(row.quantity));
    let (found, holds) = (compared.found, compared.is_within());
    let because =
        format!("{:.2} {} where {}{} is published", found.number, found.unit, row.relation.words(), row.value);
    let cause = match row.quantity {
        Published::ResponsePacketsPerOperation => Some(Cause::Acknowledgements),
        Published::SaturatingConnections => Some(Cause::Units),
        _ if row.experiment.starts_with("far-memory/") => Some(Cause::Reordering),
        _ => None,
    };
    match cause.and_then(|cause| source.lack_of(cause)) {
        Some(lack) if !holds => Some(Gap::CannotShow(format!("{because}; {lack}")).into()),
        _ => Some(Verdict::new(holds, because)),
    }
}
