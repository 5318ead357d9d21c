//! Reasons for which a study or a command ends without a result.

/// Reason of a failed command, as a sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Wrong usage: an argument is invalid, or two arguments are invalid together.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
