//! Openings of sessions: a client greets and shows the token before the server serves it.

use doorbell_exchange::admission::{Hello, Line, Opening, Verdict};
use doorbell_exchange::setup;
use serde::Serialize;

use super::SessionError;
use super::introduction::{Token, check_token};
use super::peer::{FromServer, ToServer};
use super::tcp::parse;

/// Maximum length of a client's first line. An introduction may be padded to test whether long packets pass.
const LINE_MAX: usize = 64 << 10;

/// The opening of a client of a session: its greeting, and its first line. If the server has a token, the line
/// contains it.
#[derive(Clone, Debug)]
pub struct SessionOpening {
    token: Option<Token>,
    greeting: Hello,
    /// `Some` once the client has greeted.
    line: Option<Line>,
}

impl SessionOpening {
    /// Makes the opening of clients that must show this token.
    pub fn new(token: Option<Token>) -> Self {
        Self { token, greeting: Hello::new(0), line: None }
    }

    /// Returns the first line of a client that may measure.
    fn judge(&self, line: &[u8]) -> Result<ToServer, SessionError> {
        let first = parse(line).map_err(SessionError::Unexpected)?;
        let token = match &first {
            ToServer::Introduce(introduction) => introduction.token.as_ref(),
            ToServer::Parameters(_) => None,
            _ => return Err(SessionError::Unexpected("no parameters".to_owned())),
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
                // A client of another release learns this release from the answer.
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

/// Returns the line of a message.
pub(super) fn to_line(message: &impl Serialize) -> Vec<u8> {
    // Messages have only keys that JSON allows, so this cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
