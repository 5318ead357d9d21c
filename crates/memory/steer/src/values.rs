//! Values of words in regions whose accesses all pass the box. With a known value, the box can turn a CAS into a WRITE.
//!
//! The table has a fixed size. It remembers one word of each line of 64 bytes, with the value after all requests that
//! the box has sent so far. The node executes requests in the order in which the box sends them.

use crate::message::{Kind, Message};

const LINE_SHIFT: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Known(u64),
    /// The value becomes known with the answer to the question with this number, unless a later request changes the
    /// word first.
    Asked(u64),
}

#[derive(Clone, Copy, Debug)]
struct Word {
    address: u64,
    value: Value,
}

#[derive(Debug)]
pub(crate) struct Values {
    words: Box<[Option<Word>]>,
    next_question: u64,
}

impl Values {
    pub(crate) fn new(words: usize) -> Self {
        Self { words: vec![None; words.clamp(1, 1 << 24).next_power_of_two()].into(), next_question: 1 }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(None);
    }

    fn place(&self, address: u64) -> usize {
        let line = address >> LINE_SHIFT;
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.words.len() - 1)
    }

    /// Returns the value of the word, if known.
    pub(crate) fn get(&self, address: u64) -> Option<u64> {
        match self.words[self.place(address)] {
            Some(Word { address: known, value: Value::Known(value) }) if known == address => Some(value),
            _ => None,
        }
    }

    pub(crate) fn set(&mut self, address: u64, value: u64) {
        self.words[self.place(address)] = Some(Word { address, value: Value::Known(value) });
    }

    /// Records that the box is sending an atomic whose outcome determines the value of the word. Returns the number of
    /// a new question. The outcome of the atomic answers this question.
    pub(crate) fn ask(&mut self, address: u64) -> u64 {
        let question = self.next_question;
        self.next_question += 1;
        self.words[self.place(address)] = Some(Word { address, value: Value::Asked(question) });
        question
    }

    /// Records the answer to a question: the value of the word after the atomic.
    pub(crate) fn answer(&mut self, address: u64, question: u64, value: u64) {
        let place = self.place(address);
        if let Some(word) = &mut self.words[place]
            && word.address == address
            && word.value == Value::Asked(question)
        {
            word.value = Value::Known(value);
        }
    }

    /// Records that the box is sending a WRITE. The words in its range become unknown, unless the WRITE covers exactly
    /// one word.
    pub(crate) fn written(&mut self, message: &Message, mtu: usize) {
        let (from, length) = (message.address, u64::from(message.length));
        if length == 0 {
            return;
        }
        let to = from.saturating_add(length - 1);
        for line in from >> LINE_SHIFT..=to >> LINE_SHIFT {
            let place = self.place(line << LINE_SHIFT);
            if self.words[place].is_some_and(|word| word.address <= to && from <= word.address.saturating_add(7)) {
                self.words[place] = None;
            }
        }
        if from % 8 == 0
            && length == 8
            && let Some(word) = message.first_payload(mtu).first_chunk::<8>()
        {
            self.set(from, u64::from_le_bytes(*word));
        }
    }

    /// Records that the box is sending a FETCH-ADD. Returns a question if the value of the word is unknown.
    pub(crate) fn added(&mut self, address: u64, add: u64) -> Option<u64> {
        match self.get(address) {
            Some(value) => {
                self.set(address, value.wrapping_add(add));
                None
            }
            None => Some(self.ask(address)),
        }
    }
}

/// Returns the value of a word after an atomic that found `original`.
pub(crate) fn behind(kind: Kind, original: u64) -> u64 {
    match kind {
        Kind::CompareSwap { compare, swap } if compare == original => swap,
        Kind::FetchAdd { add } => original.wrapping_add(add),
        _ => original,
    }
}
