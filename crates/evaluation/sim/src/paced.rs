//! Search for the highest rate at which a receiver without credits keeps up, so that no RNR NAK occurs.

use crate::measure::{Load, MeasureError, Measured, Stop, measure, measure_until};
use crate::testbed::Testbed;

/// Factor between two tried rates, until one tried rate is too high and another one is not.
const FACTOR: f64 = 1.5;
/// Maximum number of tried rates. They lead from one message per second to more than any link carries.
const MOST: u32 = 64;
/// Maximum ratio of the lowest rate that is too high to the highest rate that is not. At this ratio, the search ends.
const CLOSE: f64 = 1.03;
/// Minimum share of the offered rate that senders reach. If they send less, the offered rate is beyond their limit.
const REACHED: f64 = 0.95;

/// Result of a run with an offered rate.
enum Tried {
    /// The receiver ran out of receives.
    TooHigh,
    /// The receiver kept up with senders that sent at this rate.
    Kept(Box<Measured>),
    /// The senders cannot reach this rate, and the receiver kept up with the rate that they reached.
    BeyondSenders(Box<Measured>),
}

/// Searches for the highest rate without RNR NAKs, with an accuracy of a few percent. If senders without a rate limit
/// cause no RNR NAKs, the result is the rate of these senders.
///
/// The search begins at the rate to which RNR NAKs slow the senders. Returns `None` if all rates cause RNR NAKs.
///
/// Runs with an offered rate stop at their first RNR NAK.
///
/// # Errors
///
/// Returns the errors of [`measure`].
pub(crate) fn highest_without_rnr(testbed: &Testbed, load: &Load, seed: u64) -> Result<Option<Measured>, MeasureError> {
    let attempt = |rate: f64| -> Result<Tried, MeasureError> {
        let mut paced = load.clone();
        paced.parameters.rate = Some(rate);
        let Some(measured) = measure_until(testbed, &paced, seed, Stop::AtRnrNak)? else { return Ok(Tried::TooHigh) };
        let is_reached = measured.messages_per_s >= REACHED * rate;
        let measured = Box::new(measured);
        Ok(if is_reached { Tried::Kept(measured) } else { Tried::BeyondSenders(measured) })
    };
    let unpaced = measure(testbed, load, seed)?;
    if unpaced.rnr_naks == 0 {
        return Ok(Some(unpaced));
    }
    let mut rate = unpaced.messages_per_s;
    let (mut best, mut low, mut high) = (None, None, None);
    for _ in 0..MOST {
        match attempt(rate)? {
            Tried::BeyondSenders(measured) => return Ok(Some(*measured)),
            Tried::Kept(measured) => (best, low) = (Some(*measured), Some(rate)),
            Tried::TooHigh => high = Some(rate),
        }
        rate = match (low, high) {
            (Some(low), Some(high)) if high <= low * CLOSE => break,
            (Some(low), Some(high)) => f64::midpoint(low, high),
            (Some(low), None) => low * FACTOR,
            (None, Some(high)) => high / FACTOR,
            (None, None) => break,
        };
    }
    Ok(best)
}
