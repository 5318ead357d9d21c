//! Orders of other processes of the same user to the port of a published device.
//!
//! The file of the device has two words for them after the values. The ordering process writes a request to the first
//! word. The device writes its reply to the second word, the next time that its thread wakes up. Both words have a
//! number of the request in their upper 56 bits, so a reply to an earlier request is not misread.

use std::sync::Arc;

use super::layout::{REPLY_WORD, REQUEST_WORD};
use super::mapping::Mapping;

/// Number of bits of a code, below the number of the request.
const CODE_BITS: u32 = 8;
const CODES: u64 = (1 << CODE_BITS) - 1;

/// Flag of a reply to an order that had no effect.
const REFUSED: u64 = 0x80;

/// Request to the port of a device of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRequest {
    /// Reply with the state.
    State,
    /// Go down.
    Down,
    /// Come up.
    Up,
    /// Let the device fail.
    DeviceFatal,
}

/// State of the port of a device of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedPort {
    /// Packets pass.
    Active,
    /// The port is down.
    Down,
    /// The device has failed.
    Failed,
}

/// Reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReply {
    /// State after the request.
    pub state: PublishedPort,
    /// Whether the order had no effect, since the port had the ordered state already or the device had failed.
    pub was_refused: bool,
}

impl PortRequest {
    const ALL: [Self; 4] = [Self::State, Self::Down, Self::Up, Self::DeviceFatal];

    /// Returns the word of this request with a number.
    pub(crate) fn word(self, number: u64) -> u64 {
        number << CODE_BITS | (self as u64 + 1)
    }

    fn of(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|request| *request as u64 + 1 == word & CODES)
    }
}

impl PortReply {
    const STATES: [PublishedPort; 3] = [PublishedPort::Active, PublishedPort::Down, PublishedPort::Failed];

    fn word(self, number: u64) -> u64 {
        let flag = if self.was_refused { REFUSED } else { 0 };
        number << CODE_BITS | flag | (self.state as u64 + 1)
    }

    /// Returns the reply in a word, if it replies to the request with this number.
    pub(crate) fn of(word: u64, number: u64) -> Option<Self> {
        if word >> CODE_BITS != number & (u64::MAX >> CODE_BITS) {
            return None;
        }
        let state = Self::STATES.into_iter().find(|state| *state as u64 + 1 == word & CODES & !REFUSED)?;
        Some(Self { state, was_refused: word & REFUSED != 0 })
    }
}

/// Requests to a published device, as the device sees them.
#[derive(Debug)]
pub struct PortRequests {
    mapping: Arc<Mapping>,
    /// The latest request that the device has seen.
    seen: u64,
}

impl PortRequests {
    pub(super) fn new(mapping: &Arc<Mapping>) -> Self {
        Self { mapping: Arc::clone(mapping), seen: 0 }
    }

    /// If another process has written a request since the last call, calls `obey` with the request and writes the
    /// reply. Without a new request, a call costs one load.
    pub fn serve(&mut self, obey: impl FnOnce(PortRequest) -> PortReply) {
        let word = self.mapping.load(REQUEST_WORD);
        if word == self.seen {
            return;
        }
        self.seen = word;
        if let Some(request) = PortRequest::of(word) {
            self.mapping.set(REPLY_WORD, obey(request).word(word >> CODE_BITS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_requests_and_replies() {
        let number = 0x1234_5678;
        for request in PortRequest::ALL {
            let word = request.word(number);
            assert_eq!((PortRequest::of(word), word >> CODE_BITS), (Some(request), number));
        }
        for state in PortReply::STATES {
            for was_refused in [true, false] {
                let reply = PortReply { state, was_refused };
                assert_eq!(PortReply::of(reply.word(number), number), Some(reply));
                assert_eq!(PortReply::of(reply.word(number), number + 1), None, "a reply to another request");
            }
        }
        for odd in [0, 5, 0xff, number << CODE_BITS] {
            assert_eq!(PortRequest::of(odd), None);
        }
        assert_eq!(PortReply::of(number << CODE_BITS | 9, number), None);
    }
}
