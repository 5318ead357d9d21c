//! Output: data goes to stdout, everything else to stderr.
//!
//! Untrusted text (a peer's message, names in files) may contain terminal control sequences. All writers of this
//! module escape such sequences. Clippy rejects `io::stdout` and `io::stderr` in all other modules.
#![allow(clippy::disallowed_methods, reason = "the only place that writes to the terminal")]

use std::error::Error;
use std::io::{self, IsTerminal as _, Write};

use doorbell_output::escape;

/// Returns whether stdout goes to a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether stderr goes to a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Writes a line to stdout.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    write_text(&format!("{text}\n"))
}

/// Writes a value as JSON of several lines to stdout.
pub(crate) fn pretty(value: &impl serde::Serialize) -> io::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Returns the width of each column of a table with these rows.
pub(crate) fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    (0..columns).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect()
}

/// Maximum number of columns of a line of short output.
const COLUMNS: usize = 100;

/// Breaks a text at its spaces into lines of at most 100 columns. A longer word has a line of its own.
pub(crate) fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// Writes text that consists of lines to stdout.
pub(crate) fn write_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(escape(text).as_bytes()).and_then(|()| out.flush());
    // Keep the kind of the error, so that `is_broken_pipe` recognizes a pipe without a reader.
    written.map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}")))
}

/// Writes a line to stderr. Ignores errors, such as that of a pipe without a reader.
pub(crate) fn write_note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", escape(&text.to_string()));
}

/// Writes a note of a library to stderr, like [`write_note`].
pub(crate) fn print_note(text: &str) {
    write_note(format_args!("{text}"));
}

/// Standard error for the log, whose lines may contain untrusted text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(escape(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Writes a line like `eprintln`, but does not panic if stderr has no reader.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::write_note(format_args!($($text)*)) };
}
pub(crate) use note;

/// Returns whether this error or one of its causes is a broken pipe, because the output has no reader any more.
pub(crate) fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let is = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    is(error) || error.source().is_some_and(is_broken_pipe)
}

/// Formats nanoseconds as microseconds.
pub(crate) fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_at_spaces() {
        assert_eq!(wrapped("two words"), "two words");
        let word = "x".repeat(49);
        assert_eq!(wrapped(&format!("{word} {word} z {word}")), format!("{word} {word}\nz {word}"));
        let long = "y".repeat(120);
        assert_eq!(wrapped(&format!("a {long} b")), format!("a\n{long}\nb"));
        assert_eq!(wrapped(&format!("{word}y {word}")), format!("{word}y {word}"), "100 columns are allowed");
    }

    #[test]
    fn json_with_controls_stays_json_of_the_same_value() {
        let value = serde_json::json!({ "name": "a\u{9b}2J\u{7f}\u{202e}" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let written = escape(&text);
        assert!(!written.contains(|c: char| c.is_control() && c != '\n'), "{written:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
    }
}
