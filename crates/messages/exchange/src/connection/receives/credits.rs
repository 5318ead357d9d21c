//! Flow control by credits: each side reports to its peer how many receives it has posted.
//!
//! A grant is the cumulative number of receives that a side has posted for data, modulo 2^30. Data messages carry
//! grants in their immediate data. A credit message is a SEND of 0 B whose immediate data has the top bit set. Each
//! side posts [`CREDIT_RECEIVES`](crate::connection::config::CREDIT_RECEIVES) additional receives for messages without
//! data.

/// Flag of a message that has no data.
const ALONE: u32 = 1 << 31;
/// Flag of the goodbye.
const GOODBYE: u32 = 1 << 30;
const COUNT_MASK: u32 = GOODBYE - 1;

/// Contents of the immediate data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// Whether the message has no data: it is a credit message or a goodbye.
    pub(crate) alone: bool,
    /// Whether the message is the goodbye of its sender.
    pub(crate) goodbye: bool,
    /// Cumulative number of receives that the sender of the message has posted for data, modulo 2^30.
    pub(crate) granted: u32,
}

impl Word {
    pub(crate) fn new(alone: bool, granted: u64) -> Self {
        Self { alone, goodbye: false, granted: granted as u32 & COUNT_MASK }
    }

    pub(crate) fn goodbye(granted: u64) -> Self {
        Self { goodbye: true, ..Self::new(true, granted) }
    }

    pub(crate) fn encode(self) -> u32 {
        self.granted | if self.alone { ALONE } else { 0 } | if self.goodbye { GOODBYE } else { 0 }
    }

    pub(crate) fn decode(immediate: u32) -> Self {
        Self { alone: immediate & ALONE != 0, goodbye: immediate & GOODBYE != 0, granted: immediate & COUNT_MASK }
    }

    /// Returns the full cumulative number. `near` must differ from the full number by at most 2^29.
    pub(crate) fn extend(self, near: u64) -> u64 {
        let ahead = self.granted.wrapping_sub(near as u32) & COUNT_MASK;
        if ahead <= COUNT_MASK / 2 {
            near + u64::from(ahead)
        } else {
            near.saturating_sub(u64::from((COUNT_MASK + 1) - ahead))
        }
    }
}

/// Credits of a sender: the receives that the peer has granted, and the messages that the sender has sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendCredits {
    granted: u64,
    sent: u64,
}

impl SendCredits {
    pub(crate) fn new(initial: u64) -> Self {
        Self { granted: initial, sent: 0 }
    }

    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.sent < self.granted
    }

    #[inline]
    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }

    /// Takes a grant of the peer. Returns false if the grant is impossible: it exceeds the number of sent messages by
    /// more than `depth`, the number of the peer's receives.
    #[inline]
    pub(crate) fn grant(&mut self, word: Word, depth: u64) -> bool {
        let granted = word.extend(self.granted);
        self.granted = self.granted.max(granted); // an older grant than the known one has no effect
        self.granted <= self.sent + depth
    }
}

#[cfg(test)]
mod tests {
    use super::super::reports::ReceiveCredits;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn credit_words_round_trip_and_extend(near in 0_u64..1 << 40, off in -(1_i64 << 28)..1 << 28, alone: bool) {
            let count = near.saturating_add_signed(off);
            let word = Word::decode(Word::new(alone, count).encode());
            prop_assert_eq!(word.alone, alone);
            prop_assert_eq!(word.extend(near), count);
        }

        /// A sender and a receiver send, deliver and free messages in any order. The sender never has more unfreed
        /// messages than the receiver has receives. Once all messages are freed, the sender has credits again.
        #[test]
        fn credits_neither_overrun_nor_starve(depth in 1_u64..40, steps in prop::collection::vec(0_u8..4, 1..400)) {
            let mut sender = SendCredits::new(depth);
            let receiver = ReceiveCredits::new(depth);
            let (mut on_the_way, mut held, mut granted) = (0_u64, 0_u64, depth);
            let mut words: Vec<Word> = Vec::new();
            for step in steps {
                match step {
                    0 if sender.has_credit() => { sender.sent(); on_the_way += 1; }
                    1 if on_the_way > 0 => { on_the_way -= 1; held += 1; receiver.received(); }
                    2 if held > 0 => { held -= 1; granted += 1; }
                    3 if !words.is_empty() => {
                        let word = words.remove(0);
                        prop_assert!(sender.grant(word, depth));
                    }
                    _ => {}
                }
                if receiver.take_due(granted) {
                    words.push(Word::new(true, granted));
                }
                prop_assert!(words.len() <= 2, "more credit messages than reserved receives");
                prop_assert!(on_the_way + held <= depth);
            }
            // After all messages are delivered and freed, the sender has credits again.
            for _ in 0..on_the_way { receiver.received(); }
            granted += on_the_way + held;
            for _ in 0..3 {
                for word in words.drain(..) { prop_assert!(sender.grant(word, depth)); }
                if receiver.take_due(granted) { words.push(Word::new(true, granted)); }
            }
            prop_assert!(sender.has_credit());
        }
    }
}
