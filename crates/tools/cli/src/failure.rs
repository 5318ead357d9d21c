//! Reasons for which a command ends without a result.

pub(crate) use doorbell_study::{Failure, Usage};

/// Exit status after wrong usage, the same as clap's.
pub(crate) const WRONG_USAGE: u8 = 2;
