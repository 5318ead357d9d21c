//! The part of a stream that an answer acknowledges.

use doorbell_wire::Psn;

/// Sequence numbers that an answer acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledged {
    /// All sequence numbers up to and including this one.
    UpTo(Psn),
    /// All sequence numbers before this one.
    Before(Psn),
    /// All sequence numbers before this one, for which no receive buffer is ready.
    NotReady(Psn),
    Nothing,
}

impl Acknowledged {
    pub(super) fn covers(self, psn: Psn) -> bool {
        match self {
            Acknowledged::UpTo(last) => !last.is_before(psn),
            Acknowledged::Before(end) | Acknowledged::NotReady(end) => psn.is_before(end),
            Acknowledged::Nothing => false,
        }
    }
}
