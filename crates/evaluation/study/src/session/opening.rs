//! Openings of sessions. A client must greet the server and show the token before the server serves the client.

use doorbell_exchange::admission::{Hello, Line, Opening, Verdict};
use doorbell_exchange::setup;
use serde::Serialize;

use super::SessionError;
use super::introduction::{Token, check_token};
use super::messages::{FromServer, ToServer};
use super::tcp::parse;

/// Maximum bytes of a client's first line. The line is long if its introduction is padded to test whether long packets
/// pass.
const LINE_MAX: usize = 64 << 10;

/// Opening of a client: its greeting and its first line. If the server has a token, the first line must contain the
/// token.
#[derive(Clone, Debug)]
pub struct SessionOpening {
    token: Option<Token>,
    greeting: Hello,
    /// First line so far. `None` until the client has greeted.
    line: Option<Line>,
}

impl SessionOpening {
    /// Creates the opening of a client that must show `token`, if the server has one.
    pub fn new(token: Option<Token>) -> Self {
        Self { token, greeting: Hello::new(0), line: None }
    }

    /// Parses the first line and checks its token.
    fn judge(&self, line: &[u8]) -> Result<ToServer, SessionError> {
        let first = parse(line).map_err(SessionError::Unexpected)?;
        let token = match &first {
            ToServer::Introduce(introduction) => introduction.token.as_ref(),
            ToServer::Parameters(_) => None,
            _ => return Err(SessionError::Unexpected("a first request with no parameters".to_owned())),
        };
        check_token(self.token.as_ref(), token).map(|()| first)
    }
}

impl Opening for SessionOpening {
    type Admitted = ToServer;
    type Refusal = SessionError;

    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<ToServer, SessionError>) {
        let Some(line) = &mut self.line else {
            let (used, verdict) = self.greeting.hear(peer, bytes);
            let verdict = match verdict {
                Verdict::Admit(_) => {
                    self.line = Some(Line::new(LINE_MAX));
                    Verdict::Reply(setup::hello(&[]))
                }
                Verdict::Continue | Verdict::Reply(_) => Verdict::Continue,
                // Send this release's greeting, so that a client of another release can report both releases.
                Verdict::Dismiss { why, .. } => {
                    Verdict::Dismiss { reply: setup::hello(&[]), why: why.map(SessionError::from) }
                }
            };
            return (used, verdict);
        };
        let failed = |why: SessionError| {
            let reply = to_line(&FromServer::Failed(why.to_string()));
            Verdict::Dismiss { reply, why: Some(why) }
        };
        match line.take(bytes) {
            Err(error) => (bytes.len(), failed(SessionError::Unexpected(error.to_string()))),
            Ok((used, None)) => (used, Verdict::Continue),
            Ok((used, Some(line))) => (used, self.judge(&line).map_or_else(failed, Verdict::Admit)),
        }
    }
}

/// Serializes a message as a line.
pub(super) fn to_line(message: &impl Serialize) -> Vec<u8> {
    // Messages have only keys that JSON allows, so serialization cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
