//! Faults of a share of all packets, and their text form.

use std::fmt;
use std::str::FromStr;

use super::error::FaultPlanError;
use super::rule::{Corruption, FaultAction, Place};
use super::time::{TimeText, parse_delay};

/// Faults that strike a share of all arriving packets.
///
/// The text form is `drop=0.01,duplicate=0.001,reorder=0.01,delay=5us,corrupt=0.001,seed=7`. Options may have any
/// order, and each is allowed once. Omitted options are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultShares {
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
    /// Seed of all random decisions of the plan. With the same plan, the same sequence of packets suffers the same
    /// faults.
    pub seed: u64,
}

impl FaultShares {
    /// Returns whether no packet suffers a fault.
    pub fn is_empty(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }

    /// Returns these faults as actions, each with the number of its random stream and the share of packets, or `None`
    /// for every packet. The streams are fixed, so each kind strikes the same packets, independent of the other shares.
    pub(super) fn actions(&self) -> impl Iterator<Item = (u64, Option<f64>, FaultAction)> {
        let bit = Corruption { place: Place::AnyBit, value: None, reseals: false };
        let drawn = [
            (0, self.drop, FaultAction::Drop),
            (1, self.corrupt, FaultAction::Corrupt(bit)),
            (2, self.duplicate, FaultAction::Duplicate { copies: 1, delay_ns: 0 }),
            (3, self.reorder, FaultAction::Reorder { behind: None }),
        ];
        let drawn = drawn.into_iter().filter(|(_, share, _)| *share > 0.0);
        let delay_ns = self.delay_ns;
        let delay = (delay_ns > 0).then_some((4, None, FaultAction::Delay { delay_ns }));
        drawn.map(|(stream, share, action)| (stream, Some(share), action)).chain(delay)
    }
}

impl FromStr for FaultShares {
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
                "delay" => {
                    plan.delay_ns = parse_delay(value).ok_or_else(|| FaultPlanError::Delay(value.into()))?;
                }
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
impl fmt::Display for FaultShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares =
            [("drop", self.drop), ("duplicate", self.duplicate), ("reorder", self.reorder), ("corrupt", self.corrupt)];
        for (option, share) in shares {
            if share != 0.0 {
                write!(f, "{option}={share},")?;
            }
        }
        if self.delay_ns != 0 {
            f.write_str("delay=")?;
            write!(f, "{}", TimeText(self.delay_ns))?;
            f.write_str(",")?;
        }
        write!(f, "seed={}", self.seed)
    }
}

fn parse_probability(option: &str, value: &str) -> Result<f64, FaultPlanError> {
    match value.parse::<f64>() {
        // The addition of 0.0 turns -0.0 into 0.0.
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share + 0.0),
        _ => Err(FaultPlanError::Probability { option: option.into(), value: value.into() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::time::MAX_DELAY_NS;
    use super::*;

    fn parse(text: &str) -> Result<FaultShares, FaultPlanError> {
        text.parse()
    }

    #[test]
    fn a_plan_is_read_and_printed() {
        let text = "drop=0.01,duplicate=0.001,reorder=0.01,delay=5us,corrupt=0.001,seed=7";
        let plan = parse(text).unwrap();
        let expected =
            FaultShares { drop: 0.01, duplicate: 0.001, reorder: 0.01, corrupt: 0.001, delay_ns: 5_000, seed: 7 };
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
            let plan = FaultShares { drop, duplicate, reorder, corrupt, delay_ns, seed };
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
