//! The highest rate at which a receiver without credits keeps up: one that provokes no RNR NAK.

use crate::measure::{Load, MeasureError, Measured, Stop, measure, measure_until};
use crate::testbed::Testbed;

/// The factor from one rate to the next, until one is too high and one is not.
const FACTOR: f64 = 1.5;
/// Of a search that begins near the rate.
const NEAR: f64 = 1.06;
/// The most such steps: from a message per second to more than any link carries.
const MOST: u32 = 64;
/// The search ends once a rate that is too high is this much higher than one that is not.
const CLOSE: f64 = 1.03;
/// An offered rate of which less than this share is sent is more than the senders can.
const REACHED: f64 = 0.95;

/// What a rate turned out to be.
enum Tried {
    /// The receiver ran out of receives.
    TooHigh,
    /// The receiver kept up with senders that sent at this rate.
    Kept(Box<Measured>),
    /// The senders cannot send at this rate, and the receiver kept up with what they can.
    BeyondSenders(Box<Measured>),
}

/// Looks for the highest rate that provokes no RNR NAK, to a few percent. If senders that are not slowed down provoke none,
/// it is theirs. `guess` is a rate that is likely to be near; without one, the search begins at the rate to which RNR NAKs
/// slow senders down. `None` if all rates provoke some.
///
/// A run that has provoked one is not simulated to its end.
///
/// # Errors
///
/// As [`measure`].
pub(crate) fn highest_without_rnr(
    testbed: &Testbed,
    load: &Load,
    seed: u64,
    guess: Option<f64>,
) -> Result<Option<Measured>, MeasureError> {
    let attempt = |rate: f64| -> Result<Tried, MeasureError> {
        let mut paced = load.clone();
        paced.parameters.rate = Some(rate);
        let Some(measured) = measure_until(testbed, &paced, seed, Stop::AtRnrNak)? else { return Ok(Tried::TooHigh) };
        let is_reached = measured.messages_per_s >= REACHED * rate;
        let measured = Box::new(measured);
        Ok(if is_reached { Tried::Kept(measured) } else { Tried::BeyondSenders(measured) })
    };
    let (mut rate, mut factor) = match guess {
        Some(rate) => {
            if let Some(unpaced) = measure_until(testbed, load, seed, Stop::AtRnrNak)? {
                return Ok(Some(unpaced));
            }
            (rate, NEAR)
        }
        None => {
            let unpaced = measure(testbed, load, seed)?;
            if unpaced.rnr_naks == 0 {
                return Ok(Some(unpaced));
            }
            (unpaced.messages_per_s, FACTOR)
        }
    };
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
            (Some(low), None) => low * factor,
            (None, Some(high)) => high / factor,
            (None, None) => break,
        };
        // A guess that is far off is left in longer steps.
        factor = (factor * factor).min(FACTOR);
    }
    Ok(best)
}
