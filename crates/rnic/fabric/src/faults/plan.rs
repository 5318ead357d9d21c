//! Plans of injected faults, and their text form.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Maximum delay of packets in a plan, in nanoseconds: one minute.
const MAX_DELAY_NS: u64 = 60_000_000_000;

/// Plan of the faults that a link injects into inbound packets.
///
/// The text form is `drop=0.01,duplicate=0.001,reorder=0.01,delay=5us,corrupt=0.001,seed=7`. Options may have any
/// order, and each is allowed once. Omitted options are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// The share of packets that are dropped.
    pub drop: f64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets that are held back until one to four later packets have passed them.
    pub reorder: f64,
    /// The share of packets in which one bit is flipped.
    pub corrupt: f64,
    /// Additional latency of each packet.
    pub delay_ns: u64,
    /// Seed of the random decisions. With the same plan, the same sequence of packets suffers the same faults.
    pub seed: u64,
}

impl FaultPlan {
    /// Returns whether the plan injects no faults.
    pub fn is_empty(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }
}

/// Error in a plan's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// An option that does not exist.
    #[error(
        "fault option {0:?} is unknown; allowed are drop, duplicate, reorder, corrupt, delay and \
         seed"
    )]
    UnknownOption(String),
    /// An option without a value.
    #[error("fault option {0:?} has no value; an option and its value are written as drop=0.01")]
    NoValue(String),
    /// An option that appears twice.
    #[error("fault option {0:?} is given twice; each is allowed once")]
    Repeated(String),
    /// A value that is no probability.
    #[error("fault option {option} is {value:?}; allowed is a share of packets from 0 to 1")]
    Probability {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// A value that is no delay.
    #[error(
        "fault option delay is {0:?}; allowed is a number with its unit (ns, us, ms or s), in \
         whole nanoseconds up to 60s, such as 5us or 1.5ms"
    )]
    Delay(String),
    /// A value that is no seed.
    #[error("fault option seed is {0:?}; allowed is a whole number from 0 to 2^64 - 1")]
    Seed(String),
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((option, value)) = part.split_once('=') else {
                return Err(FaultPlanError::NoValue(part.into()));
            };
            let (option, value) = (option.trim(), value.trim());
            match option {
                "drop" => plan.drop = parse_probability(option, value)?,
                "duplicate" => plan.duplicate = parse_probability(option, value)?,
                "reorder" => plan.reorder = parse_probability(option, value)?,
                "corrupt" => plan.corrupt = parse_probability(option, value)?,
                "delay" => plan.delay_ns = parse_delay(value)?,
                "seed" => {
                    plan.seed = value.parse().map_err(|_| FaultPlanError::Seed(value.into()))?;
                }
                _ => return Err(FaultPlanError::UnknownOption(option.into())),
            }
            if seen.contains(&option) {
                return Err(FaultPlanError::Repeated(option.into()));
            }
            seen.push(option);
        }
        Ok(plan)
    }
}

/// Writes the plan in the form that `from_str` parses. The seed is always included, since it is needed to replay the
/// plan.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares =
            [("drop", self.drop), ("duplicate", self.duplicate), ("reorder", self.reorder), ("corrupt", self.corrupt)];
        for (option, share) in shares {
            if share != 0.0 {
                write!(f, "{option}={share},")?;
            }
        }
        if self.delay_ns != 0 {
            let (unit, unit_ns) =
                UNITS_NS.into_iter().find(|(_, unit_ns)| self.delay_ns.is_multiple_of(*unit_ns)).unwrap_or(("ns", 1));
            write!(f, "delay={}{unit},", self.delay_ns / unit_ns)?;
        }
        write!(f, "seed={}", self.seed)
    }
}

/// The units of a delay, the largest first.
const UNITS_NS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

fn parse_probability(option: &str, value: &str) -> Result<f64, FaultPlanError> {
    match value.parse::<f64>() {
        // The addition of 0.0 turns -0.0 into 0.0.
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share + 0.0),
        _ => Err(FaultPlanError::Probability { option: option.into(), value: value.into() }),
    }
}

fn parse_delay(value: &str) -> Result<u64, FaultPlanError> {
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let unit_ns = UNITS_NS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, ns)| *ns);
    unit_ns
        .and_then(|unit_ns| parse_decimal(number, unit_ns))
        .filter(|delay_ns| *delay_ns <= MAX_DELAY_NS)
        .ok_or_else(|| FaultPlanError::Delay(value.into()))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<FaultPlan, FaultPlanError> {
        text.parse()
    }

    #[test]
    fn a_plan_is_read_and_printed() {
        let text = "drop=0.01,duplicate=0.001,reorder=0.01,delay=5us,corrupt=0.001,seed=7";
        let plan = parse(text).unwrap();
        let expected =
            FaultPlan { drop: 0.01, duplicate: 0.001, reorder: 0.01, corrupt: 0.001, delay_ns: 5_000, seed: 7 };
        assert_eq!(plan, expected);
        let printed = "drop=0.01,duplicate=0.001,reorder=0.01,corrupt=0.001,delay=5us,seed=7";
        assert_eq!(plan.to_string(), printed);
        assert!(parse("").unwrap().is_empty() && parse(" seed = 9 ,").unwrap().is_empty());
        assert!(!plan.is_empty());
    }

    #[test]
    fn delays_have_units() {
        let table = [
            ("0ns", 0),
            ("17ns", 17),
            ("1.5us", 1_500),
            ("2ms", 2_000_000),
            (".25s", 250_000_000),
            ("1.s", 1_000_000_000),
            ("60s", 60_000_000_000),
            ("1.0000000000000000000000000s", 1_000_000_000),
        ];
        for (text, delay_ns) in table {
            assert_eq!(parse(&format!("delay={text}")).unwrap().delay_ns, delay_ns, "{text}");
        }
        let wrong = ["", "5", "us", ".us", "1.5ns", "5m", "-1us", "1e3us", "61s", "1.2.3us", "5 µs"];
        for text in wrong {
            let error = parse(&format!("delay={text}")).unwrap_err();
            assert_eq!(error, FaultPlanError::Delay(text.into()));
            assert!(error.to_string().contains(&format!("{text:?}")));
        }
    }

    #[test]
    fn errors_name_option_value_and_allowed_range() {
        let table = [
            ("drop=1.5", "drop", "\"1.5\"", "from 0 to 1"),
            ("reorder=-0.1", "reorder", "\"-0.1\"", "from 0 to 1"),
            ("corrupt=NaN", "corrupt", "\"NaN\"", "from 0 to 1"),
            ("duplicate=often", "duplicate", "\"often\"", "from 0 to 1"),
            ("seed=-1", "seed", "\"-1\"", "whole number"),
            ("loss=0.1", "\"loss\"", "unknown", "drop, duplicate"),
            ("drop", "\"drop\"", "no value", "drop=0.01"),
            ("drop=0.1,seed=1,drop=0.2", "\"drop\"", "twice", "once"),
        ];
        for (text, option, value, allowed) in table {
            let error = parse(text).unwrap_err().to_string();
            for part in [option, value, allowed] {
                assert!(error.contains(part), "{text}: {error}");
            }
        }
    }

    proptest! {
        #[test]
        fn printed_plans_parse_back(
            shares in prop::array::uniform4(0.0..=1.0_f64),
            delay_ns in 0..=MAX_DELAY_NS,
            magnitude in 0..10_u32,
            seed: u64,
        ) {
            let [drop, duplicate, reorder, corrupt] = shares;
            let delay_ns = delay_ns / 10_u64.pow(magnitude) * 10_u64.pow(magnitude);
            let plan = FaultPlan { drop, duplicate, reorder, corrupt, delay_ns, seed };
            prop_assert_eq!(parse(&plan.to_string()), Ok(plan));
        }

        #[test]
        fn no_text_panics(text in "[a-z0-9=.,µ -]{0,40}") {
            if let Ok(plan) = parse(&text) {
                prop_assert_eq!(parse(&plan.to_string()), Ok(plan));
            }
        }

        #[test]
        fn no_value_panics(option in "drop|duplicate|reorder|corrupt|delay|seed", value in ".{0,30}") {
            let _ = parse(&format!("{option}={value}"));
        }
    }
}
