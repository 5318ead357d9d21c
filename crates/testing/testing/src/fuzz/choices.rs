//! Choices that the bytes of a fuzz input determine.

/// A source of choices. After the last byte, all choices are 0 and `is_empty` returns true.
#[derive(Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    /// Returns whether all bytes were used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number from the next two bytes.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 { usize::from(self.byte()) % end.max(1) } else { self.short() % end }
    }

    /// Returns true for half of all byte values.
    pub fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Returns a number from the next eight bytes.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// Returns the next `length` bytes, or fewer at the end of the input.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}
