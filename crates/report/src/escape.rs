//! Text from records, made harmless.

use std::fmt::{self, Display, Write};

/// Displays as text of HTML, also within quoted attributes.
pub(crate) struct Escaped<T>(pub(crate) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Writer<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Writer<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '&' => self.0.write_str("&amp;"),
                    '<' => self.0.write_str("&lt;"),
                    '>' => self.0.write_str("&gt;"),
                    '"' => self.0.write_str("&quot;"),
                    '\'' => self.0.write_str("&#39;"),
                    // Not allowed in HTML, and of no use.
                    c if c.is_control() => self.0.write_char('\u{fffd}'),
                    c => self.0.write_char(c),
                })
            }
        }
        write!(Writer(f), "{}", self.0)
    }
}

/// JSON that may stand in a `script` element: it cannot end it, nor begin a comment.
pub(crate) fn json(value: &serde_json::Value) -> String {
    let text = value.to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_what_it_stands_in() {
        assert_eq!(Escaped("<a href='x'>\"&\0").to_string(), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;\u{fffd}");
        let value = serde_json::json!({ "name": "</script><!-- & -->" });
        let text = json(&value);
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
