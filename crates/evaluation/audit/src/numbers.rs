//! Numbers in the output of programs.

/// Maximum number of characters of a number. Benchmarks print fewer.
const MOST_CHARACTERS: usize = 32;

/// Number with the precision in which it was printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number {
    pub(crate) value: f64,
    /// Half of a unit of the last printed digit.
    pub(crate) resolution: f64,
    pub(crate) has_decimal_comma: bool,
}

/// Reason why a text is no usable number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    NotANumber,
    /// The comma may separate thousands or decimals.
    Ambiguous,
}

/// Reads a number with a decimal point or comma. A comma before exactly three digits is ambiguous.
pub(crate) fn number(text: &str) -> Result<Number, Unreadable> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = digits.len() <= MOST_CHARACTERS
        && digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b','));
    if !is_number {
        return Err(Unreadable::NotANumber);
    }
    let separators = digits.bytes().filter(|byte| !byte.is_ascii_digit()).count();
    let decimals = digits.split_once(['.', ',']).map_or(0, |(_, decimals)| decimals.len());
    let has_decimal_comma = digits.contains(',');
    if separators > 1 || has_decimal_comma && decimals == 3 {
        return Err(Unreadable::Ambiguous);
    }
    let value = text.replace(',', ".").parse().map_err(|_| Unreadable::NotANumber)?;
    Ok(Number { value, resolution: 0.5 * 0.1_f64.powi(decimals as i32), has_decimal_comma })
}

/// Reads a whole number without separators.
pub(crate) fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_commas_are_read_unless_they_may_separate_thousands() {
        let value = |text: &str| number(text).map(|number| (number.value, number.has_decimal_comma));
        assert_eq!(value("11728.47"), Ok((11728.47, false)));
        assert_eq!(value("11728,47"), Ok((11728.47, true)));
        assert_eq!(value("-3.5"), Ok((-3.5, false)));
        assert_eq!(value("2,450225"), Ok((2.450225, true)));
        for text in ["11,728", "1,234.56", "1.2.3", "1,2,3"] {
            assert_eq!(value(text), Err(Unreadable::Ambiguous), "{text}");
        }
        for text in ["", "-", ".5", "1e9", "nan", "inf", "0x12", "12a", "１２"] {
            assert_eq!(value(text), Err(Unreadable::NotANumber), "{text}");
        }
        assert_eq!(number("0.48").map(|number| (number.resolution * 1e6).round()), Ok(5000.0));
        assert_eq!(
            (whole("65536"), whole("-1"), whole(""), whole("18446744073709551616")),
            (Some(65536), None, None, None)
        );
    }
}
