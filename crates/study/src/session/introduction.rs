//! Who the two ends are, and whether they may measure together.

use std::fmt;

use doorbell_verbs::DeviceAttributes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::SessionError;
use crate::doctor::Finding;
use crate::environment::Environment;
use crate::pinning::{Pinning, ProcessPosition};

/// A secret that both ends know.
///
/// It keeps others away from a listener, as long as nobody reads what goes over the wire, where it stands in clear.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

/// Bytes of the longest token.
const LONGEST_TOKEN: usize = 256;

/// Why something is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 1 to {LONGEST_TOKEN} bytes, this one has {0}")]
pub struct TokenError(usize);

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        match text.len() {
            1..=LONGEST_TOKEN => Ok(Self(text.to_owned())),
            length => Err(TokenError(length)),
        }
    }
}

// A token in a log would be one that everybody knows.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Returns the secret, for a process that must show it.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// How long the comparison takes tells a peer the length at most.
    fn is(&self, given: &Self) -> bool {
        self.0.as_bytes().ct_eq(given.0.as_bytes()).into()
    }
}

/// What an end that asks says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Introduction {
    /// What the other end wants to be shown.
    pub token: Option<Token>,
    /// The other end shall look for what would spoil a measurement, which takes it a second.
    pub examine: bool,
    /// The place of the end that answers among the processes of the study on its machine.
    pub place: ProcessPosition,
    /// What fills packets, and comes back with the answer: a path may carry short ones alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ballast: String,
}

/// What an end that answers says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Introduced {
    /// The machine and the device.
    pub environment: Environment,
    /// What would spoil a measurement, if that was asked for.
    pub findings: Vec<Finding>,
    /// Queue pairs that the device has; ends of earlier releases do not say.
    #[serde(default)]
    pub max_qps: Option<usize>,
    /// The number of the process that answers ([`Terms::process`]).
    #[serde(default)]
    pub process: Option<u64>,
    /// What filled packets of the introduction.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ballast: String,
}

/// On what terms an end answers.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Bytes of message memory at most.
    pub memory_bytes: usize,
    /// What whoever asks has to show.
    pub token: Option<Token>,
    /// The CPUs that its threads are pinned to.
    pub pinning: Pinning,
    /// A random number of the process that answers. A host that has several addresses says the same number at each of them.
    pub process: Option<u64>,
}

impl Terms {
    /// So much memory for whoever asks; nothing is pinned.
    pub fn open(memory_bytes: usize) -> Self {
        Self { memory_bytes, token: None, pinning: Pinning::none("nobody said where"), process: None }
    }

    /// Rejects a peer that does not show the token of this end, if it has one.
    pub(super) fn admit(&self, introduction: Option<&Introduction>) -> Result<(), SessionError> {
        check_token(self.token.as_ref(), introduction.and_then(|introduction| introduction.token.as_ref()))
    }
}

/// Rejects a token that is missing or wrong.
pub(super) fn check_token(wanted: Option<&Token>, given: Option<&Token>) -> Result<(), SessionError> {
    match (wanted, given) {
        (None, _) => Ok(()),
        (Some(wanted), Some(given)) if wanted.is(given) => Ok(()),
        (Some(_), Some(_)) => Err(SessionError::Token("another token than this side has")),
        (Some(_), None) => Err(SessionError::Token("no token, and this side wants one")),
    }
}

impl Introduced {
    /// This end, as it answers.
    pub(super) fn now(device: &DeviceAttributes, terms: &Terms, introduction: &Introduction) -> Self {
        let findings =
            if introduction.examine { crate::doctor::examine(device, terms.memory_bytes) } else { Vec::new() };
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
    fn only_whoever_shows_the_token_may_measure() {
        let open = Terms::open(1);
        assert!(open.admit(None).is_ok() && open.admit(Some(&with(Some("any")))).is_ok());
        let closed = Terms { token: "secret".parse().ok(), ..open };
        assert!(closed.admit(Some(&with(Some("secret")))).is_ok());
        for refused in [None, Some(&with(None)), Some(&with(Some("secreT"))), Some(&with(Some("secrets")))] {
            assert!(matches!(closed.admit(refused), Err(SessionError::Token(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_token_has_a_length_and_does_not_show_itself() {
        assert_eq!("".parse::<Token>(), Err(TokenError(0)));
        assert_eq!("x".repeat(257).parse::<Token>(), Err(TokenError(257)));
        let token: Token = "secret".parse().unwrap();
        assert_eq!(format!("{token:?} {:?}", with(Some("secret"))).matches("secret").count(), 0);
    }
}
