//! Formatting of numbers.

use time::UtcDateTime;

/// Placeholder for a missing number.
pub(crate) const NOTHING: &str = "\u{2013}";

/// Formats a number with three significant digits, without an exponent. A value that is not finite becomes a dash.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !(-6.0..15.0).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let decimals = (2.0 - magnitude).clamp(0.0, 8.0) as usize;
    format!("{value:.decimals$}")
}

/// Formats a number with its unit.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { number(value) } else { format!("{} {unit}", number(value)) }
}

/// Formats a size in bytes. The unit is the largest one of which the size is a multiple.
pub(crate) fn bytes(value: f64) -> String {
    for (unit, size) in [("MiB", f64::from(1 << 20)), ("KiB", 1024.0)] {
        if value >= size && (value / size).fract() == 0.0 {
            return format!("{} {unit}", value / size);
        }
    }
    format!("{value} B")
}

/// Formats a position on the axis of a sweep.
pub(crate) fn place(sweep: &str, x: f64) -> String {
    if is_in_bytes(sweep) { bytes(x) } else { format!("{x}") }
}

/// Returns whether the swept parameter is a size.
pub(crate) fn is_in_bytes(sweep: &str) -> bool {
    sweep.ends_with(", B")
}

/// Formats a date (proleptic Gregorian, UTC).
pub(crate) fn date(unix_time_s: u64) -> String {
    let moment = i64::try_from(unix_time_s).ok().and_then(|seconds| UtcDateTime::from_unix_timestamp(seconds).ok());
    moment.map_or(NOTHING.to_owned(), |moment| moment.date().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (2.7648, "2.76"),
            (27.648, "27.6"),
            (276.48, "276"),
            (27_648.0, "27648"),
            (0.012_345, "0.0123"),
            (1e-9, "1.00e-9"),
            (-3.2151, "-3.22"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((bytes(1.0), bytes(2048.0), bytes(1048576.0), bytes(1500.0)), {
            ("1 B".into(), "2 KiB".into(), "1 MiB".into(), "1500 B".into())
        });
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in
            [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01"), (1_795_219_199, "2026-11-20")]
        {
            assert_eq!(date(seconds), day);
        }
        assert_eq!(date(u64::MAX), NOTHING);
    }
}
