//! Introductions of the two ends, and the check of the token.

use std::fmt;

use doorbell_machine::doctor::{self, Finding};
use doorbell_verbs::DeviceAttributes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::{Patience, SessionError};
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_record::Environment;

/// Secret that both ends know.
///
/// A token keeps strangers away from a listener. The client sends the token in clear text, so an observer of the
/// network can read it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

/// Maximum length of a token in bytes.
const LONGEST_TOKEN: usize = 256;

impl std::str::FromStr for Token {
    /// Sentence about a token of invalid length.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.len() {
            1..=LONGEST_TOKEN => Ok(Self(text.to_owned())),
            length => Err(format!("a token of {length} bytes: must have 1 to {LONGEST_TOKEN} bytes")),
        }
    }
}

// Hide the secret, since debug output may go to a log.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Returns a new random token.
    ///
    /// # Errors
    ///
    /// The system returns no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Returns the secret. A process passes the secret to another process that must show the token.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Returns whether the tokens are equal. The duration of the comparison reveals only whether the lengths are equal.
    fn is(&self, given: &Self) -> bool {
        self.0.as_bytes().ct_eq(given.0.as_bytes()).into()
    }
}

/// Introduction of the asking end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Introduction {
    /// Token that the other end requires.
    pub token: Option<Token>,
    /// Whether the other end shall examine its machine for causes of distorted measurements. An examination takes a
    /// second.
    pub examine: bool,
    /// Position of the answering end among the processes of the study on its machine.
    pub place: ProcessPosition,
    /// Padding that makes packets long. The answer contains the same padding, to test whether the path carries long
    /// packets both ways.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ballast: String,
}

/// Introduction of the answering end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Introduced {
    /// Machine and device of the answering end.
    pub environment: Environment,
    /// Causes of distorted measurements, if the introduction requested an examination.
    pub findings: Vec<Finding>,
    /// Maximum number of queue pairs of the device. Earlier releases do not send this field.
    #[serde(default)]
    pub max_qps: Option<usize>,
    /// Random number of the answering process ([`Terms::process`]).
    #[serde(default)]
    pub process: Option<u64>,
    /// Padding of the introduction.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ballast: String,
}

/// Conditions under which an end answers clients.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Maximum message memory in bytes.
    pub memory_bytes: usize,
    /// Token that clients must show.
    pub token: Option<Token>,
    /// Whether the client cannot be a stranger even without a token, since this process or its parent has started it.
    pub is_known: bool,
    /// CPUs for the threads of this end.
    pub pinning: Pinning,
    /// Random number of the answering process. A host with several addresses sends the same number at each address.
    pub process: Option<u64>,
}

impl Terms {
    /// Creates terms with this amount of memory, without a token and without pinned threads.
    pub fn open(memory_bytes: usize) -> Self {
        let pinning = Pinning::none("the terms name no CPUs");
        Self { memory_bytes, token: None, is_known: false, pinning, process: None }
    }

    /// Returns the patience with which this end waits for the next request of an admitted client. A client without a
    /// token may be a stranger.
    pub(super) fn patience(&self) -> Patience {
        if self.is_known || self.token.is_some() { Patience::Endless } else { Patience::Request }
    }

    /// If this end has a token, rejects a peer that does not show that token.
    pub(super) fn admit(&self, introduction: Option<&Introduction>) -> Result<(), SessionError> {
        check_token(self.token.as_ref(), introduction.and_then(|introduction| introduction.token.as_ref()))
    }
}

/// Rejects a token that is missing or wrong.
pub(super) fn check_token(wanted: Option<&Token>, given: Option<&Token>) -> Result<(), SessionError> {
    match (wanted, given) {
        (None, _) => Ok(()),
        (Some(wanted), Some(given)) if wanted.is(given) => Ok(()),
        (Some(_), Some(_)) => Err(SessionError::Token("another token than this side requires")),
        (Some(_), None) => Err(SessionError::Token("no token, but this side requires one")),
    }
}

impl Introduced {
    /// Returns the introduction of this end.
    pub(super) fn now(device: &DeviceAttributes, terms: &Terms, introduction: &Introduction) -> Self {
        let findings = if introduction.examine { doctor::examine(device, terms.memory_bytes) } else { Vec::new() };
        let pinning = Some(terms.pinning.share(introduction.place));
        let environment = Environment { pinning, ..Environment::of(device) };
        let ballast = introduction.ballast.clone();
        Self { environment, findings, max_qps: Some(device.limits.max_qps), process: terms.process, ballast }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(token: Option<&str>) -> Introduction {
        Introduction { token: token.map(|token| token.parse().unwrap()), ..Introduction::default() }
    }

    #[test]
    fn only_a_peer_with_the_token_may_measure() {
        let open = Terms::open(1);
        assert!(open.admit(None).is_ok() && open.admit(Some(&with(Some("any")))).is_ok());
        let closed = Terms { token: "secret".parse().ok(), ..open };
        assert!(closed.admit(Some(&with(Some("secret")))).is_ok());
        for refused in [None, Some(&with(None)), Some(&with(Some("secreT"))), Some(&with(Some("secrets")))] {
            assert!(matches!(closed.admit(refused), Err(SessionError::Token(_))), "{refused:?}");
        }
    }

    #[test]
    fn tokens_have_a_maximum_length_and_debug_hides_them() {
        for (length, allowed) in [(0, false), (1, true), (256, true), (257, false)] {
            let said = format!("a token of {length} bytes: must have 1 to 256 bytes");
            assert_eq!("x".repeat(length).parse::<Token>().map(drop), if allowed { Ok(()) } else { Err(said) });
        }
        let token: Token = "secret".parse().unwrap();
        assert_eq!(format!("{token:?} {:?}", with(Some("secret"))).matches("secret").count(), 0);
    }
}
