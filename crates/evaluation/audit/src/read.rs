//! Readers of the output of benchmarks. They accept any text, and report the parts that they cannot use.

mod fio;
mod osu;
mod perftest;
mod qperf;
mod ucx;

use doorbell_verbs_core::Status;
use serde_json::Value;

use crate::claim::{Output, Tool};
use crate::numbers::{Number, Unreadable, number};

/// Bytes of a MiB, which perftest and UCX print as MB.
const MIB: f64 = 1_048_576.0;

/// Maximum number of characters of a note about a text that is no number.
const NOTED_CHARACTERS: usize = 32;

/// Reads the output of a benchmark. `command` is the command line of the benchmark, or empty if it is unknown.
///
/// Text that no known tool writes leads to an output without claims, and a note.
pub fn read(text: &str, command: &[String]) -> Output {
    let mut output = Output { failures: failures(text), ..Output::default() };
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let is_json = text.trim_start().starts_with('{');
    if is_json {
        match serde_json::from_str::<Value>(text) {
            Ok(value) if value.get("jobs").is_some() => fio::json(&value, &mut output),
            Ok(value) => perftest::json(&value, &mut output),
            Err(error) => output.note(format!("the JSON cannot be read, perhaps since it is cut: {error}")),
        }
    } else if text.contains("#bytes") {
        perftest::table(text, &words, &mut output);
    } else if text.contains("overhead (usec)") || text.lines().any(|line| line.trim_start().starts_with("Final:")) {
        ucx::table(text, &words, &mut output);
    } else if text.contains("IOPS=") {
        fio::text(text, &mut output);
    } else if osu::is_table(text) {
        osu::table(text, &mut output);
    } else {
        qperf::results(text, &mut output);
    }
    if output.claims.is_empty() {
        let why = match output.tool {
            None => "no part of the output has the format of perftest, ucx_perftest, qperf, fio or OSU's benchmarks",
            Some(_) => "the output has no complete row of results",
        };
        output.note(why.to_owned());
    }
    output
}

/// Returns the statuses of failed completions that a text names, each once, in the order of the text.
fn failures(text: &str) -> Vec<Status> {
    let mut found = Vec::new();
    for line in text.lines() {
        let lower = line.to_ascii_lowercase();
        let numbered = lower
            .split_once("failed status ")
            .and_then(|(_, rest)| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok())
            .and_then(Status::failed);
        // UCX prints `transport retry count exceeded` without the last syllable of `counter`.
        let named = Status::FAILED.into_iter().find(|status| {
            let text = status.text().to_ascii_lowercase();
            lower.contains(&text)
                || lower.contains(&text.replace("counter", "count"))
                || lower.contains(&status.symbol().to_ascii_lowercase())
        });
        if let Some(status) = numbered.or(named)
            && !found.contains(&status)
        {
            found.push(status);
        }
    }
    found
}

/// Reads a number of a table, and notes that a number has a decimal comma or cannot be read.
fn figure(token: &str, output: &mut Output) -> Option<Number> {
    match number(token) {
        Ok(read) => {
            if read.has_decimal_comma {
                output.note("the output has decimal commas: numbers are read accordingly".to_owned());
            }
            if read.value < 0.0 {
                output
                    .note(format!("{token} is negative, so a variable of the tool overflowed: the number is not used"));
                return None;
            }
            Some(read)
        }
        Err(Unreadable::Ambiguous) => {
            output.note(format!("{token} is not used: its comma may separate thousands or decimals"));
            None
        }
        Err(Unreadable::NotANumber) => {
            let shown: String = token.chars().take(NOTED_CHARACTERS).collect();
            output.note(format!("\"{shown}\" is not used: a number has digits, and at most one decimal point"));
            None
        }
    }
}

/// Returns the text after `key` and a colon, up to a tab, two spaces or the end of the line.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.split_once(key)?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = rest.find('\t').into_iter().chain(rest.find("  ")).min().unwrap_or(rest.len());
    Some(rest[..end].trim())
}

/// Returns the value of an option in a command line: `-D 10`, `-D10`, `--duration 10` or `--duration=10`.
fn option<'a>(words: &[&'a str], short: &str, long: &str) -> Option<&'a str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if *word == short || *word == long {
            return words.next().copied();
        }
        if let Some(value) = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value);
        }
        let joined = word.strip_prefix(short).filter(|_| !word.starts_with("--"));
        if let Some(value) = joined.filter(|value| value.starts_with(|first: char| first.is_ascii_digit())) {
            return Some(value);
        }
    }
    None
}

/// Returns whether the last line of a text has no line feed, so that its last number may be cut.
fn is_cut(text: &str) -> bool {
    !text.is_empty() && !text.ends_with('\n')
}

fn found(output: &mut Output, tool: Tool) {
    output.tool = Some(tool);
}

#[cfg(test)]
mod tests;
