//! Openings that several listeners use, and their parts.

use std::mem;

use super::{Opening, Verdict};
use crate::setup::{self, EndpointDescription, Parsed, SetupError};

/// Collector of the bytes of a line that arrives in pieces.
#[derive(Clone, Debug)]
pub struct Line {
    pub(super) bytes: Vec<u8>,
    most: usize,
}

/// Error for a line that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {0} B, the maximum")]
pub struct LineError(
    /// Maximum number of bytes of a line.
    pub usize,
);

impl Line {
    /// Makes an empty line of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most }
    }

    /// Takes the next bytes up to the end of the line. Returns the number of taken bytes, and the line without its
    /// newline once the line is complete.
    ///
    /// # Errors
    ///
    /// The line is too long.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), LineError> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let content = &bytes[..end.unwrap_or(bytes.len())];
        if self.bytes.len() + content.len() > self.most {
            self.bytes = Vec::new();
            return Err(LineError(self.most));
        }
        self.bytes.extend_from_slice(content);
        Ok(match end {
            Some(end) => (end + 1, Some(mem::take(&mut self.bytes))),
            None => (bytes.len(), None),
        })
    }
}

/// The opening of a listener whose visitors send a hello with endpoint descriptions, in the format of
/// [`setup::exchange`].
#[derive(Clone, Debug)]
pub struct Hello {
    bytes: Vec<u8>,
    count: usize,
}

impl Hello {
    /// Makes an opening that expects `count` descriptions in the hello.
    pub fn new(count: usize) -> Self {
        Self { bytes: Vec::new(), count }
    }
}

impl Opening for Hello {
    type Admitted = Vec<EndpointDescription>;
    type Refusal = SetupError;

    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<Self::Admitted, SetupError>) {
        let mut rest = bytes;
        loop {
            match setup::parse(peer, &self.bytes, self.count) {
                Err(why) => {
                    // A peer of another release gets a hello, which contains the version of this side.
                    let is_other = matches!(why, SetupError::Version { .. });
                    let reply = if is_other { setup::hello(&[]) } else { Vec::new() };
                    return (bytes.len() - rest.len(), Verdict::Dismiss { reply, why: Some(why) });
                }
                Ok(Parsed::Complete(theirs)) => return (bytes.len() - rest.len(), Verdict::Admit(theirs)),
                Ok(Parsed::Incomplete(_)) if rest.is_empty() => return (bytes.len(), Verdict::Continue),
                Ok(Parsed::Incomplete(more)) => {
                    let (taken, after) = rest.split_at(more.min(rest.len()));
                    self.bytes.extend_from_slice(taken);
                    rest = after;
                }
            }
        }
    }
}
