//! Reasons for which a command ends without a result.

/// Reason of a failed command, as a sentence.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Wrong usage: an argument is invalid, or two arguments are invalid together.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Exit status after wrong usage, the same as clap's.
pub(crate) const WRONG_USAGE: u8 = 2;
