//! Text for terminals.

use std::borrow::Cow;
use std::fmt;

/// Escapes characters that control a terminal, except the newline and the tab.
///
/// An escaped character has the form `\u001b`, as in JSON strings. If `text` is JSON, escaping does not change its
/// value.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    // Writing to a string cannot fail.
    let _ = write_escaped(&mut escaped, text);
    Cow::Owned(escaped)
}

/// Writes `text` with the escapes of [`escape`], without allocating.
///
/// # Errors
///
/// Returns the errors of `to`.
pub fn write_escaped(to: &mut impl fmt::Write, text: &str) -> fmt::Result {
    let mut rest = text;
    while let Some((at, character)) = rest.char_indices().find(|&(_, character)| is_obeyed(character)) {
        to.write_str(&rest[..at])?;
        // All characters to escape have at most four hexadecimal digits.
        write!(to, "\\u{:04x}", u32::from(character))?;
        rest = &rest[at + character.len_utf8()..];
    }
    to.write_str(rest)
}

/// Returns whether a terminal obeys the character: a control character of ISO 6429, or a Unicode mark that changes the
/// direction of text.
fn is_obeyed(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        character => character.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_a_terminal_would_obey_is_escaped() {
        assert_eq!(escape("\u{1b}]0;title\u{7}\r\u{9b}2J\u{7f}"), r"\u001b]0;title\u0007\u000d\u009b2J\u007f");
        assert_eq!(escape("a\u{202e}b\u{2066}"), r"a\u202eb\u2066");
        assert!((0..=0x9f).filter_map(char::from_u32).all(|c| {
            let text = c.to_string();
            !escape(&text).chars().any(|c| c.is_control() && c != '\n' && c != '\t')
        }));
    }

    #[test]
    fn other_text_stays() {
        for text in ["", "a line\n\tand another", "µs, naïve, 日本語, \u{1f600}", r"\u001b"] {
            assert!(matches!(escape(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
    }
}
