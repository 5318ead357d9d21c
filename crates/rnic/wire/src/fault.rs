//! Marks of the faults that a fault injector applied to a frame. A capture file holds the marks in the comment of the
//! frame.

use core::fmt;

/// Start of a comment that holds marks.
const PREFIX: &str = "doorbell fault: ";

/// Faults of one frame.
///
/// The text form is a prefix and one word per mark, for example `doorbell fault: dropped, corrupted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultMarks(u8);

impl FaultMarks {
    /// No fault.
    pub const NONE: Self = Self(0);
    /// The injector dropped the frame, so the receiver never got the frame.
    pub const DROPPED: Self = Self(1);
    /// The frame is an additional copy of the preceding frame.
    pub const DUPLICATE: Self = Self(1 << 1);
    /// The injector flipped a bit of the frame.
    pub const CORRUPTED: Self = Self(1 << 2);
    /// The injector delayed the frame by a fixed time.
    pub const DELAYED: Self = Self(1 << 3);
    /// The injector delayed the frame until later frames had passed.
    pub const REORDERED: Self = Self(1 << 4);

    /// The injector set the frame's ECN field to "congestion experienced".
    pub const ECN_MARKED: Self = Self(1 << 5);
    /// The device that sent the frame injected the faults. Without this mark, the device that received the frame did.
    pub const OUTBOUND: Self = Self(1 << 6);

    /// Each mark and its word in the text form.
    const WORDS: [(Self, &'static str); 7] = [
        (Self::DROPPED, "dropped"),
        (Self::DUPLICATE, "duplicate"),
        (Self::CORRUPTED, "corrupted"),
        (Self::DELAYED, "delayed"),
        (Self::REORDERED, "reordered"),
        (Self::ECN_MARKED, "ecn-marked"),
        (Self::OUTBOUND, "outbound"),
    ];

    /// Returns these marks and those of `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these marks if the condition holds, and no mark otherwise.
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Returns whether these marks contain all marks of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the frame has no fault.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reads the marks from the comment of a frame. Returns `None` if another program wrote the comment. Ignores
    /// unknown words, which a later version of this crate may write.
    pub fn parse(comment: &[u8]) -> Option<Self> {
        let words = comment.strip_prefix(PREFIX.as_bytes())?;
        let mut marks = Self::NONE;
        for word in words.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            let known = Self::WORDS.iter().find(|(_, known)| known.as_bytes() == word);
            marks = marks.and(known.map_or(Self::NONE, |&(mark, _)| mark));
        }
        Some(marks)
    }
}

impl fmt::Display for FaultMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        let words = Self::WORDS.iter().filter(|&&(mark, _)| self.has(mark));
        for (index, (_, word)) in words.enumerate() {
            write!(f, "{}{word}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn marks_survive_their_text() {
        for bits in 0..1 << FaultMarks::WORDS.len() {
            let marks = FaultMarks(bits);
            assert_eq!(FaultMarks::parse(marks.to_string().as_bytes()), Some(marks));
        }
        let both = FaultMarks::CORRUPTED.and(FaultMarks::DROPPED);
        assert_eq!(both.to_string(), "doorbell fault: dropped, corrupted");
        assert_eq!(FaultMarks::parse(b"doorbell fault: melted, dropped"), Some(FaultMarks::DROPPED));
        assert_eq!(FaultMarks::parse(b"a comment of a person"), None);
    }
}
