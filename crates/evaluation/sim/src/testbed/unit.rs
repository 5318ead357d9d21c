//! Units and exact decimal numbers.

use super::fields::Dimension;

/// A unit of files and of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Name in a file.
    pub(crate) name: &'static str,
    /// Suffix of a parameter's name, as in `link.rate_gbps`.
    pub(crate) suffix: &'static str,
    pub(crate) dimension: Dimension,
    /// Number of base units in this unit.
    factor: u128,
}

const fn unit(name: &'static str, suffix: &'static str, dimension: Dimension, factor: u128) -> Unit {
    Unit { name, suffix, dimension, factor }
}

const UNITS: [Unit; 15] = [
    unit("ps", "ps", Dimension::Time, 1),
    unit("ns", "ns", Dimension::Time, 1_000),
    unit("us", "us", Dimension::Time, 1_000_000),
    unit("ms", "ms", Dimension::Time, 1_000_000_000),
    unit("fs/B", "fs_per_byte", Dimension::TimePerByte, 1),
    unit("ps/B", "ps_per_byte", Dimension::TimePerByte, 1_000),
    unit("ns/B", "ns_per_byte", Dimension::TimePerByte, 1_000_000),
    unit("b/s", "bps", Dimension::Rate, 1),
    unit("Mb/s", "mbps", Dimension::Rate, 1_000_000),
    unit("Gb/s", "gbps", Dimension::Rate, 1_000_000_000),
    unit("B", "bytes", Dimension::Size, 1),
    unit("KiB", "kib", Dimension::Size, 1 << 10),
    unit("MiB", "mib", Dimension::Size, 1 << 20),
    unit("GiB", "gib", Dimension::Size, 1 << 30),
    unit("count", "count", Dimension::Count, 1),
];

/// Returns the units of a dimension.
pub(crate) fn units_of(dimension: Dimension) -> impl Iterator<Item = Unit> {
    UNITS.into_iter().filter(move |unit| unit.dimension == dimension)
}

/// Returns the names of a dimension's units for an error.
pub(crate) fn names_of(dimension: Dimension) -> String {
    let names: Vec<String> = units_of(dimension).map(|unit| format!("\"{}\"", unit.name)).collect();
    names.join(", ")
}

pub(crate) fn by_name(name: &str, dimension: Dimension) -> Option<Unit> {
    units_of(dimension).find(|unit| unit.name == name)
}

/// Reason why a number is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoNumber {
    NotANumber,
    Negative,
    /// The number is not a whole number of base units.
    TooFine,
    TooLarge,
}

/// Maximum number of digits of a number. No value needs more digits.
const MOST_DIGITS: usize = 30;

impl Unit {
    /// Converts a decimal number of this unit to base units, without floating-point arithmetic.
    pub(crate) fn base_of(self, number: &str) -> Result<u64, NoNumber> {
        let (is_negative, digits) = match number.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| NoNumber::NotANumber)?),
            None => (digits, 0),
        };
        let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, decimals].concat().replace('_', "");
        if whole.is_empty() || all.len() > MOST_DIGITS || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NoNumber::NotANumber);
        }
        let decimals = i32::try_from(decimals.replace('_', "").len()).map_err(|_| NoNumber::NotANumber)?;
        let number: u128 = all.parse().map_err(|_| NoNumber::NotANumber)?;
        if number == 0 {
            return Ok(0);
        }
        if is_negative {
            return Err(NoNumber::Negative);
        }
        let scale = exponent.checked_sub(decimals).ok_or(NoNumber::TooFine)?;
        let number = number.checked_mul(self.factor).ok_or(NoNumber::TooLarge)?;
        let power = 10_u128.checked_pow(scale.unsigned_abs());
        let base = match (scale >= 0, power) {
            (true, power) => power.and_then(|power| number.checked_mul(power)).ok_or(NoNumber::TooLarge)?,
            (false, Some(power)) if number % power == 0 => number / power,
            (false, _) => return Err(NoNumber::TooFine),
        };
        u64::try_from(base).map_err(|_| NoNumber::TooLarge)
    }

    /// Converts base units to a number of this unit, without trailing zeros.
    pub(crate) fn number_of(self, base: u64) -> String {
        let (whole, rest) = (u128::from(base) / self.factor, u128::from(base) % self.factor);
        if rest == 0 {
            return whole.to_string();
        }
        // Binary units need up to 30 decimals, and each factor divides 10^30.
        let mut decimals = String::new();
        let mut rest = rest;
        while rest != 0 && decimals.len() < MOST_DIGITS {
            rest *= 10;
            decimals.push(char::from(b'0' + u8::try_from(rest / self.factor).unwrap_or(0)));
            rest %= self.factor;
        }
        format!("{whole}.{decimals}")
    }
}

/// Formats base units in the largest unit in which the number is at least 1.
pub(crate) fn words(dimension: Dimension, base: u64) -> String {
    let fits = |unit: &Unit| u128::from(base) >= unit.factor;
    match units_of(dimension).filter(fits).last().or_else(|| units_of(dimension).next()) {
        Some(unit) if dimension != Dimension::Count => format!("{} {}", unit.number_of(base), unit.name),
        _ => base.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base(number: &str, unit: &str) -> Result<u64, NoNumber> {
        UNITS.iter().find(|it| it.name == unit).unwrap().base_of(number)
    }

    #[test]
    fn decimals_are_exact() {
        for (number, unit, expected) in [
            ("0.12", "us", 120_000),
            ("7.84", "ns", 7_840),
            ("118.857", "ns", 118_857),
            ("1e2", "Gb/s", 100_000_000_000),
            ("12.5e-1", "ns", 1_250),
            ("126.030769230", "Gb/s", 126_030_769_230),
            ("1_000", "B", 1_000),
            ("0.5", "KiB", 512),
            ("+3", "count", 3),
            ("-0", "ns", 0),
            ("0e99999", "ns", 0),
        ] {
            assert_eq!(base(number, unit), Ok(expected), "{number} {unit}");
        }
        for (number, unit, why) in [
            ("-1", "ns", NoNumber::Negative),
            ("0.0001", "ns", NoNumber::TooFine),
            ("0.1", "count", NoNumber::TooFine),
            ("1e99999", "ns", NoNumber::TooLarge),
            ("1e-99999", "ns", NoNumber::TooFine),
            ("99999999999999999999", "ms", NoNumber::TooLarge),
            ("nan", "ns", NoNumber::NotANumber),
            ("inf", "ns", NoNumber::NotANumber),
            ("", "ns", NoNumber::NotANumber),
            (".5", "ns", NoNumber::NotANumber),
            ("0x10", "B", NoNumber::NotANumber),
            ("1111111111111111111111111111111111111111111", "B", NoNumber::NotANumber),
        ] {
            assert_eq!(base(number, unit), Err(why), "{number} {unit}");
        }
    }

    #[test]
    fn words_use_the_largest_fitting_unit() {
        assert_eq!(words(Dimension::Time, 120_000), "120 ns");
        assert_eq!(words(Dimension::Time, 0), "0 ps");
        assert_eq!(words(Dimension::Time, 3_400_000), "3.4 us");
        assert_eq!(words(Dimension::Size, 1536), "1.5 KiB");
        assert_eq!(words(Dimension::Count, 16), "16");
    }

    proptest! {
        #[test]
        fn formatted_numbers_parse_to_the_same_value(base in any::<u64>(), which in 0..UNITS.len()) {
            let unit = UNITS[which];
            // Binary units would need more decimals than the parser accepts.
            prop_assume!(unit.dimension != Dimension::Size || base % (1 << 20) == 0);
            prop_assert_eq!(unit.base_of(&unit.number_of(base)), Ok(base));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}", which in 0..UNITS.len()) {
            let _ = UNITS[which].base_of(&text);
        }
    }
}
