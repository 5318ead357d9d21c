//! Tolerances of all rules, in one table.
//!
//! A tolerance interprets a word of a published sentence, such as "flat" or "about". It is the same for measured,
//! simulated and predicted values. Only the noise of a source widens it, as [`Noise`] describes.

use crate::{Dimension, PublishedOperation, Quantity, Relation, Row, Subject};

/// "Flat", "as fast as", "gains nothing": maximum ratio of two values that count as equal. A larger ratio is a gain.
/// Publications print two digits, so smaller differences are invisible in their plots.
pub const FLAT: f64 = 1.05;
/// "Slower", in a sentence that compares two configurations without an amount: ratio below which one is slower.
pub const ANY: f64 = 1.0;
/// "Linear": minimum growth per doubling, as a share of proportional growth. A plot still shows a straight line.
pub const LINEAR: f64 = 0.9;
/// "About linear": minimum growth per doubling, as a share of proportional growth: at least 1.5 times per doubling.
pub const ABOUT_LINEAR: f64 = 0.75;
/// "About": maximum relative deviation. A publication that means less writes a number with two digits.
pub const ABOUT: f64 = 0.20;
/// "A straight line": maximum relative deviation of a value from the line that fits all values best.
pub const STRAIGHT: f64 = 0.10;
/// "Line rate": minimum share of the payload that the line can carry.
pub const LINE_RATE: f64 = 0.95;
/// "Near line rate": minimum share of the payload that the line can carry.
pub const NEAR_LINE_RATE: f64 = 0.7;
/// "By far", "drastically", "collapses": minimum ratio. No publication states less than twice with such a word.
pub const BY_FAR: f64 = 2.0;
/// "A little": minimum and maximum ratio of a small gain.
pub const A_LITTLE: (f64, f64) = (1.02, 1.6);

/// Published number of a latency, a rate, a size or a factor: maximum relative deviation. It covers the unpublished
/// parts of a configuration.
pub const ROW: f64 = 0.15;
/// Rate of operations or packets of a bare queue pair, whose configuration is known: maximum relative deviation.
pub const OPERATION_RATE: f64 = 0.10;
/// Point of a curve, of which the number of client threads is not stated: maximum relative deviation.
pub const CURVE: f64 = 0.20;
/// Bytes and packets that were counted exactly: maximum relative deviation, for rounding.
pub const COUNTED: f64 = 1e-4;
/// Share of attempts that succeed: maximum difference. Published runs of one store differ by this difference.
pub const SUCCESS: f64 = 0.07;
/// Share of requests to one address that are late, which is from a source's notes: maximum factor.
pub const LATE: f64 = 1.5;
/// Largest displacement of a run: maximum relative deviation. The largest of a few thousand random delays varies by
/// nearly half.
pub const DISPLACEMENT: f64 = 0.40;
/// Share of requests that are in order or out of order: maximum difference, as the publication states its spread.
pub const ORDER: f64 = 0.02;

/// Returns the maximum relative deviation from the published number of a row.
pub fn of_row(row: &Row) -> f64 {
    let share = row.value.in_base();
    match (&row.subject, row.quantity, row.quantity.dimension()) {
        (_, Quantity::SuccessOfWrites | Quantity::SuccessOfReads, _) => SUCCESS / share,
        (_, Quantity::InOrder, _) => ORDER / share,
        (_, Quantity::OutOfOrder, _) if row.relation == Relation::AtLeast => 1.0 - 1.0 / LATE,
        (_, Quantity::OutOfOrder, _) => LATE - 1.0,
        (_, Quantity::Displacement, _) => DISPLACEMENT,
        (Subject::Operation(_), _, Dimension::Size | Dimension::Packets) if row.relation == Relation::Is => COUNTED,
        // The publication states neither the threads of these operations nor the lists in which they were posted.
        (Subject::Operation(_), Quantity::OperationRate, _) if row.configuration.outstanding.is_some() => CURVE,
        (Subject::Operation(PublishedOperation::Write), Quantity::OperationRate, _)
            if row.configuration.batch.is_some() =>
        {
            ROW
        }
        (Subject::Operation(_), _, Dimension::Rate | Dimension::DataRate) => OPERATION_RATE,
        (Subject::Operation(_), _, Dimension::Packets) => OPERATION_RATE,
        _ => ROW,
    }
}

/// Relative noise of a source. Predictions and simulations have none.
///
/// Let `n` be the noise. A ratio that may be at most `t` may be at most `t * (1 + n)`. A ratio that must be at least
/// `t` must be at least `t / (1 + n)`. A deviation that may be at most `t` may be at most `t + n`. Two values differ
/// only if their ratio exceeds the ratio of equal values: `FLAT * (1 + n)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Noise of times, rates and CPU times.
    pub timed: f64,
    /// Noise of counted packets and bytes.
    pub counted: f64,
}

impl Noise {
    /// Returns the noise of a quantity.
    pub const fn of(self, quantity: Quantity) -> f64 {
        match (quantity, quantity.dimension()) {
            (
                Quantity::InOrder
                | Quantity::OutOfOrder
                | Quantity::SuccessOfWrites
                | Quantity::SuccessOfReads
                | Quantity::BytesInflation,
                _,
            )
            | (_, Dimension::Size | Dimension::Packets | Dimension::Messages) => self.counted,
            _ => self.timed,
        }
    }
}
