//! Numbers as users write them: sizes (`64K`), counts (`1e6`), times (`500ms`), rates (`100G`).
//!
//! Sizes have binary units, as in perftest and `dd`: `K` is 1024. Counts and rates have decimal units. `kB` is
//! rejected, since many readers expect `kB` to mean 1000 bytes.
//!
//! Digits may have separators: `1_000_000` and `1,000,000`. In an option that takes a list, a comma separates values.

use std::net::IpAddr;
use std::time::Duration;

const BINARY: [(&str, u64); 9] = [
    ("B", 1),
    ("K", 1 << 10),
    ("k", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("", 1),
];
const DECIMAL: [(&str, u64); 6] =
    [("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000), ("", 1)];
const SECONDS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("", 1.0)];

/// Largest number up to which an `f64` can hold every integer: 2^53.
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

/// Splits a text into a number, which may have an exponent and separators of digits, and its unit.
fn split(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let is_exponent = |at: usize| {
        matches!(bytes[at], b'e' | b'E')
            && at > 0
            && bytes.get(at + 1).is_some_and(|next| next.is_ascii_digit() || matches!(next, b'+' | b'-'))
    };
    let is_number = |at: usize| {
        let is_sign = matches!(bytes[at], b'+' | b'-') && (at == 0 || is_exponent(at - 1));
        bytes[at].is_ascii_digit() || matches!(bytes[at], b'.' | b'_' | b',') || is_sign || is_exponent(at)
    };
    let end = (0..bytes.len()).find(|&at| !is_number(at)).unwrap_or(bytes.len());
    (&text[..end], text[end..].trim_start())
}

/// Removes separators of digits from a number. `_` must stand between two digits, and `,` before each group of three
/// digits of the whole part. Returns `None` if a separator stands elsewhere.
fn without_separators(number: &str) -> Option<String> {
    let bytes = number.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut separators = (0..bytes.len()).filter(|&at| matches!(bytes[at], b'_' | b','));
    if !separators.all(|at| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1))) {
        return None;
    }
    let whole = number.split(['.', 'e', 'E']).next().unwrap_or_default();
    if let Some((first, groups)) = whole.split_once(',')
        && (number.contains('_')
            || first.trim_start_matches(['+', '-']).len() > 3
            || groups.split(',').any(|group| group.len() != 3))
    {
        return None;
    }
    let has_late_comma = number[whole.len()..].contains(',');
    (!has_late_comma).then(|| number.replace(['_', ','], ""))
}

/// Parses a real number, which may have separators of digits.
fn real(number: &str) -> Option<f64> {
    without_separators(number)?.parse().ok()
}

/// Parses an integer with one of these units.
fn whole(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = split(text);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    let number = without_separators(number)?;
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(factor);
    }
    let value = real(&number)? * factor as f64;
    ((0.0..=MOST_EXACT).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// Parses a size in bytes: `4096`, `64K`, `64KiB`, `1.5M`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    whole(text, &BINARY).ok_or_else(|| {
        "must be a whole number of bytes, or with the unit K, M, G, KiB, MiB or GiB (1K is 1024 bytes), as in 64K"
            .to_owned()
    })
}

/// Parses a size in bytes that must fit into the address space of this process.
pub(crate) fn memory_bytes(text: &str) -> Result<usize, String> {
    usize::try_from(bytes(text)?).map_err(|_| "must not exceed the address space of this machine".to_owned())
}

/// Parses a size in bytes with its weight, which is 1 by default: `64:0.9`, `64K`.
pub(crate) fn weighted_bytes(text: &str) -> Result<(u64, f64), String> {
    let (size, weight) = text.split_once(':').unwrap_or((text, "1"));
    let weight =
        weight.parse().map_err(|_| "must be BYTES or BYTES:WEIGHT, as in 64:9, with a number as weight".to_owned());
    Ok((bytes(size)?, weight?))
}

/// Parses an amount of memory and returns it in MiB; a number without a unit is a number of MiB.
pub(crate) fn mebibytes(text: &str) -> Result<usize, String> {
    let given = if split(text).1.is_empty() { format!("{text}M") } else { text.to_owned() };
    let mib = whole(&given, &BINARY).filter(|bytes| bytes % (1 << 20) == 0).map(|bytes| bytes >> 20);
    mib.and_then(|mib| usize::try_from(mib).ok())
        .ok_or_else(|| "must be a whole number of MiB, as in 256, 256M or 4G".to_owned())
}

/// Parses a count: `1000000`, `1e6`, `5k`. Rejects numbers that exceed the type.
pub(crate) fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = whole(text, &DECIMAL).ok_or_else(|| {
        "must be a whole number, which may have an exponent or end in k, M or G, as in 1e6 or 5k".to_owned()
    })?;
    // Find the maximum of the type for the error. The maximum of each unsigned type is a power of two minus one.
    let most = (1..64).map(|bits| (1_u64 << bits) - 1).take_while(|&most| T::try_from(most).is_ok()).last();
    T::try_from(number).map_err(|_| format!("must be at most {}", most.unwrap_or(0)))
}

/// Parses a port number of TCP; 0 means a free one.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "must be a port number from 0 to 65535".to_owned())
}

/// Parses the UDP port of software RNICs. Both ends have the same port, so 0, a free port of the kernel's choice, joins
/// none.
pub(crate) fn udp_port(text: &str) -> Result<u16, String> {
    port(text)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "must be a UDP port number from 1 to 65535, the same on both ends".to_owned())
}

/// Parses a time in seconds: `0.5`, `500ms`, `2min`.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let factor = SECONDS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
    let value = factor.zip(real(number)).map(|(factor, number)| factor * number);
    // Callers convert the value to a `Duration`, which cannot be negative, infinite or longer than 2^64 s.
    value
        .filter(|value| Duration::try_from_secs_f64(*value).is_ok())
        .ok_or_else(|| "must be a number of seconds, or of ns, us, ms, s, min or h, as in 500ms".to_owned())
}

/// Parses a number per second, with a decimal unit or without: `481k`, `3.13M`, `100G`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let factor = DECIMAL.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor as f64);
    factor
        .zip(real(number))
        .map(|(factor, number)| factor * number)
        .ok_or_else(|| format!("{text:?} must be a number, which may end in k, M, G or T, as in 100G"))
}

/// Parses the rate of a link. Rejects numbers such as 100, which are meant as Gb/s.
pub(crate) fn link(text: &str) -> Result<f64, String> {
    match rate(text)? {
        rate if (1e6..=1e14).contains(&rate) => Ok(rate),
        _ => Err(format!("the rate of a link is {text:?}, must be 1M to 100T bits per second, as in 100G")),
    }
}

/// Parses an IP address.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "must be an IP address, as in 192.0.2.7".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64 KiB", 65_536),
            ("1.5M", 1_572_864),
            ("4KiB", 4096),
            ("2G", 1 << 31),
            ("1e3", 1000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "K", "sixteen", "1.5", "64kB", "64KB", "-1", "1e", "1e-3", "1e400", "inf", "nan", "16384P"] {
            let why = bytes(text).expect_err(text);
            assert!(why.contains("64K"), "{text}: {why}");
        }
        assert!(bytes("17179869184G").is_err(), "2^64 is one too many");
    }

    #[test]
    fn digits_have_separators() {
        for (text, number) in [
            ("1_000_000", 1_000_000),
            ("1,000,000", 1_000_000),
            ("463,272", 463_272),
            ("12,345k", 12_345_000),
            ("1_0", 10),
            ("+1,000", 1000),
            ("1,000.5k", 1_000_500),
        ] {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        assert_eq!(bytes("1_024K"), Ok(1 << 20));
        assert_eq!(rate("29,649,408"), Ok(29_649_408.0));
        assert_eq!(rate("-1,000"), Ok(-1000.0));
        assert_eq!(seconds("1_000ms"), Ok(1.0));
        for text in
            ["1,5", "1,00", "1,0000", "1234,567", ",100", "100,", "_1", "1_", "1__0", "1.5_", "1,000_000", "0.1,000"]
        {
            assert!(rate(text).is_err(), "{text}");
            assert!(count::<u64>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_without_a_unit_is_in_mebibytes() {
        for (text, mib) in [("256", 256), ("256M", 256), ("256MiB", 256), ("4G", 4096), ("1048576B", 1), ("0", 0)] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for text in ["", "1K", "0.5", "-1", "much", "1e30"] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_and_rates_have_decimal_units() {
        for (text, number) in
            [("1000000", 1_000_000), ("1e6", 1_000_000), ("1E+6", 1_000_000), ("5k", 5000), ("2.5M", 2_500_000)]
        {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        for text in ["", "k", "0.5", "-1", "1Ki", "many", "1e6e6"] {
            assert!(count::<u64>(text).is_err(), "{text}");
        }
        assert_eq!(count::<u8>("300"), Err("must be at most 255".to_owned()));
        assert_eq!(count::<u32>("5G"), Err("must be at most 4294967295".to_owned()));
        for (text, number) in [("481000", 481e3), ("481k", 481e3), ("3.13M", 3.13e6), ("100G", 100e9), ("-2", -2.0)] {
            assert_eq!(rate(text), Ok(number), "{text}");
        }
        for text in ["", "k", "1x", "G1"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["0", "-1G", "100", "200T", "inf", "nan"] {
            assert!(link(text).is_err(), "{text}");
        }
        assert_eq!(address("192.0.2.7"), Ok(IpAddr::from([192, 0, 2, 7])));
        assert!(address("localhost").is_err() && address("").is_err());
    }

    #[test]
    fn only_tcp_ports_may_be_zero() {
        assert_eq!((port("0"), udp_port("1"), udp_port("65535")), (Ok(0), Ok(1), Ok(65535)));
        for text in ["0", "65536", "-1", "", "roce"] {
            assert!(udp_port(text).is_err_and(|why| why.contains("from 1 to 65535")), "{text}");
        }
    }

    #[test]
    fn times_without_a_unit_are_seconds() {
        let times = [
            ("1", 1.0),
            ("0.5", 0.5),
            ("500ms", 0.5),
            ("20us", 20e-6),
            ("2min", 120.0),
            ("1 h", 3600.0),
            ("1e-3", 1e-3),
        ];
        for (text, time) in times {
            let parsed = seconds(text).expect(text);
            assert!((parsed - time).abs() < 1e-12, "{text} is {parsed} s");
        }
        for text in ["", "s", "5m", "-1s", "1e300", "inf", "nan", "soon"] {
            let why = seconds(text).expect_err(text);
            assert!(why.contains("500ms"), "{text}: {why}");
        }
    }
}
