//! Times in the text of plans.

use std::fmt;

/// Maximum delay of packets in a plan, in nanoseconds: one minute.
pub(super) const MAX_DELAY_NS: u64 = 60_000_000_000;

/// The units of a delay, the largest first.
const UNITS_NS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Parses a time with its unit. Returns `None` unless it is a whole number of nanoseconds, up to one minute.
pub(super) fn parse_delay(value: &str) -> Option<u64> {
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let unit_ns = UNITS_NS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, ns)| *ns)?;
    parse_decimal(number, unit_ns).filter(|delay_ns| *delay_ns <= MAX_DELAY_NS)
}

/// A time with the largest unit that divides it.
pub(super) struct TimeText(pub(super) u64);

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS_NS.into_iter().find(|(_, unit_ns)| self.0.is_multiple_of(*unit_ns));
        let (unit, unit_ns) = unit.unwrap_or(("ns", 1));
        write!(f, "{}{unit}", self.0 / unit_ns)
    }
}

/// Parses a decimal number of units and returns nanoseconds. Returns `None` if the text is no number, or if the result
/// is no whole number.
fn parse_decimal(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let parse = |digits: &str| -> Option<u64> { if digits.is_empty() { Some(0) } else { digits.parse().ok() } };
    let scale = 10_u64.checked_pow(fraction.len() as u32)?;
    let fraction_ns = parse(fraction)?.checked_mul(unit_ns)?;
    if !fraction_ns.is_multiple_of(scale) {
        return None;
    }
    parse(whole)?.checked_mul(unit_ns)?.checked_add(fraction_ns / scale)
}
