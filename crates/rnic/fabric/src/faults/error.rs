//! Errors in the text of plans.

use thiserror::Error;

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
    #[error(
        "fault option {0:?} has no value; an option and its value are written as drop=0.01, and a \
         rule as drop opcode=ack nth=1"
    )]
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
    /// Shares that are given twice.
    #[error("fault plan has two lists of shares; allowed is one list and any number of rules, separated by semicolons")]
    TwoLists,
    /// An invalid field of a rule in an inline plan.
    #[error("fault rule {rule:?}: {field}: {problem}")]
    Rule {
        /// Text of the rule.
        rule: String,
        /// Name of the field.
        field: String,
        /// The problem and the allowed values.
        problem: String,
    },
    /// An invalid field in a file.
    #[error("{place}: {field}: {problem}")]
    File {
        /// File and line.
        place: String,
        /// Name of the field.
        field: String,
        /// The problem and the allowed values.
        problem: String,
    },
}
