//! Numbers for people.

/// Stands where there is no number.
pub(crate) const NOTHING: &str = "\u{2013}";

/// Three digits that count, without an exponent; a dash for what is no number.
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

/// A number with its unit.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { number(value) } else { format!("{} {unit}", number(value)) }
}

/// A size in bytes, in the unit that it is a multiple of.
pub(crate) fn bytes(value: f64) -> String {
    for (unit, size) in [("MiB", f64::from(1 << 20)), ("KiB", 1024.0)] {
        if value >= size && (value / size).fract() == 0.0 {
            return format!("{} {unit}", value / size);
        }
    }
    format!("{value} B")
}

/// A place on the axis of a sweep.
pub(crate) fn place(sweep: &str, x: f64) -> String {
    if is_in_bytes(sweep) { bytes(x) } else { format!("{x}") }
}

/// Is what is swept a size?
pub(crate) fn is_in_bytes(sweep: &str) -> bool {
    sweep.ends_with(", B")
}

/// A day of the calendar (proleptic Gregorian, UTC).
pub(crate) fn date(unix_time_s: u64) -> String {
    // Days to civil: years begin in March, so that a leap day is the last.
    let days = (unix_time_s / 86_400).min(4_000_000) as i64 + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, early) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + early)
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
        date(u64::MAX);
    }
}
