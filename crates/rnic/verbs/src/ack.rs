//! Policy of the software RNIC for acknowledging messages.

use std::str::FromStr;
use std::{env, fmt, io};

use crate::error::Error;

/// Time at which a receiver acknowledges a message that completes a receive request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckPolicy {
    /// Before the program sees the completion, unless the program has answered the latest eight receives of the queue
    /// pair. In that case, the device delays the acknowledgement and sends it with the program's next answer. A poll
    /// that finds no completion also sends a delayed acknowledgement.
    #[default]
    Answer,
    /// Always before the program sees the completion.
    Strict,
}

/// Environment variable that chooses the policy if the options of a device do not: `answer` or `strict`.
pub const ACK_VARIABLE: &str = "DOORBELL_ACK";

impl AckPolicy {
    pub(crate) fn of_environment() -> Result<Self, Error> {
        let Some(text) = env::var_os(ACK_VARIABLE).filter(|text| !text.is_empty()) else {
            return Ok(Self::default());
        };
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        text.to_string_lossy().parse().map_err(|why| Error::os(ACK_VARIABLE)(invalid(why)))
    }
}

impl FromStr for AckPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "answer" => Ok(Self::Answer),
            "strict" => Ok(Self::Strict),
            other => Err(format!("the acknowledgement policy is {other:?}; allowed are answer and strict")),
        }
    }
}

impl fmt::Display for AckPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Answer => "answer",
            Self::Strict => "strict",
        })
    }
}
