//! Data goes to stdout, everything else to stderr.

use std::error::Error;
use std::io::{self, Write};

/// Writes a line to stdout.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    write_all(format!("{text}\n").as_bytes())
}

/// Writes what has lines already to stdout.
pub(crate) fn write_all(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text).and_then(|()| out.flush());
    // The kind stays: a pipe that nobody reads any more is no failure.
    written.map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}")))
}

/// Writes a line to stderr. That nobody reads it is no reason to stop.
pub(crate) fn write_note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// As `eprintln`, which panics where nobody reads any more.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::write_note(format_args!($($text)*)) };
}
pub(crate) use note;

/// Is this error, or what caused it, that nobody reads our output any more?
pub(crate) fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let is = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    is(error) || error.source().is_some_and(is_broken_pipe)
}

/// A number with a unit that fits: nanoseconds as microseconds.
pub(crate) fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}
