//! The parts of a file that are checked: comments and string literals of source code, and whole pages.

use std::ops::Range;

/// Kind of a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Comment,
    /// A string literal.
    Text,
    Page,
}

/// Lines of Markdown that belong together, such as the lines of one comment.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) kind: Kind,
    /// Number of the first line in its file.
    pub(super) line: usize,
    pub(super) lines: Vec<String>,
    /// Columns of each comment line in the file, including code before the comment.
    pub(super) columns: Vec<usize>,
}

impl Passage {
    fn new(kind: Kind, line: usize) -> Self {
        Self { kind, line, lines: Vec::new(), columns: Vec::new() }
    }

    /// Returns the line numbers of the passage in its file.
    pub(super) fn span(&self) -> Range<usize> {
        self.line..self.line + self.lines.len()
    }

    fn push(&mut self, text: &str, columns: usize) {
        self.lines.push(text.to_owned());
        self.columns.push(columns);
    }
}

/// Returns the whole page as one passage.
pub(super) fn of_page(text: &str) -> Vec<Passage> {
    let mut page = Passage::new(Kind::Page, 1);
    text.lines().for_each(|line| page.push(line, 0));
    vec![page]
}

/// Markers of line comments, the longest first.
const MARKERS: [&str; 3] = ["///", "//!", "//"];

/// Returns comments and string literals of Rust or C. Consecutive lines of one kind of comment are one passage.
pub(super) fn of_source(source: &str, has_raw_strings: bool) -> Vec<Passage> {
    let mut scanner = Scanner { source, at: 0, line: 1, has_raw_strings, found: Vec::new() };
    scanner.run();
    let columns: Vec<usize> = source.lines().map(|line| line.chars().count()).collect();
    let mut passages: Vec<Passage> = Vec::new();
    let mut marker_before = "";
    for (kind, line, text) in scanner.found {
        let marker = match kind {
            Kind::Comment => MARKERS.into_iter().find(|marker| text.starts_with(marker)).unwrap_or("/*"),
            _ => "",
        };
        let continues = passages.last().is_some_and(|last| last.kind == kind && last.span().end == line);
        if !(continues && marker == marker_before && marker.starts_with("//")) {
            passages.push(Passage::new(kind, line));
        }
        marker_before = marker;
        let Some(passage) = passages.last_mut() else { continue };
        let body = text.strip_prefix(marker).unwrap_or(text);
        for (offset, part) in body.strip_suffix("*/").unwrap_or(body).split('\n').enumerate() {
            let width = if kind == Kind::Comment { columns.get(line + offset - 1).copied().unwrap_or(0) } else { 0 };
            let part = if marker == "/*" { part.trim_start().trim_start_matches('*') } else { part };
            passage.push(part.strip_prefix(' ').unwrap_or(part), width);
        }
    }
    passages
}

/// Finds comments and strings.
struct Scanner<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    has_raw_strings: bool,
    found: Vec<(Kind, usize, &'a str)>,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Skips `bytes` bytes and returns the skipped text.
    fn skip(&mut self, bytes: usize) -> &'a str {
        let taken = &self.rest()[..bytes.min(self.rest().len())];
        self.line += taken.matches('\n').count();
        self.at += taken.len();
        taken
    }

    fn run(&mut self) {
        while let Some(next) = self.rest().chars().next() {
            let rest = self.rest();
            let line = self.line;
            if rest.starts_with("//") {
                let length = rest.find('\n').unwrap_or(rest.len());
                let text = self.skip(length);
                self.found.push((Kind::Comment, line, text));
            } else if rest.starts_with("/*") {
                let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
                let text = self.skip(length);
                self.found.push((Kind::Comment, line, text));
            } else if let Some(hashes) = self.raw_string() {
                let opening = rest.find('"').map_or(rest.len(), |quote| quote + 1);
                self.skip(opening);
                let closing = format!("\"{}", "#".repeat(hashes));
                let length = self.rest().find(&closing).unwrap_or(self.rest().len());
                let text = self.skip(length);
                self.skip(closing.len());
                self.found.push((Kind::Text, line, text));
            } else if next == '"' {
                self.skip(1);
                let length = end_of_string(self.rest());
                let text = self.skip(length);
                self.skip(1);
                self.found.push((Kind::Text, line, text));
            } else if next == '\'' {
                self.skip(character_length(rest));
            } else if next.is_alphanumeric() || next == '_' {
                // Skip the whole word. Otherwise an `r` at its end could count as the begin of a raw string.
                let length = rest.find(|other: char| !other.is_alphanumeric() && other != '_').unwrap_or(rest.len());
                self.skip(length);
            } else {
                self.skip(next.len_utf8());
            }
        }
    }

    /// Returns the number of `#` of a raw string, if a raw string begins at the current position.
    fn raw_string(&self) -> Option<usize> {
        let rest = self.rest();
        let rest = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| self.has_raw_strings)?;
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        rest[hashes..].starts_with('"').then_some(hashes)
    }
}

/// Returns the length of a string up to its closing quote.
fn end_of_string(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, character) in rest.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a character literal, or 1 for the quote of a lifetime.
fn character_length(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => rest[3.min(rest.len())..].find('\'').map_or(1, |end| end + 4),
        Some(_) => characters.next().filter(|(_, after)| *after == '\'').map_or(1, |(end, _)| end + 1),
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(Kind, usize, String)> {
        of_source(source, true)
            .into_iter()
            .map(|passage| (passage.kind, passage.line, passage.lines.join("|")))
            .collect()
    }

    #[test]
    fn comments_and_texts_are_found_and_nothing_else() {
        let source = r####"//! Page.
//!
//! Second line.

/// Item, with 'quotes'.
// Another kind.
fn f<'a>(x: &'a str) -> char {
    let y = "a \"text\" // no comment"; // behind code
    let z = r#"raw "text""#; /* block
     * goes on */
    for '"' in ['\'', '\u{22}'] { bar"b" }
}
"####;
        let expected = [
            (Kind::Comment, 1, "Page.||Second line."),
            (Kind::Comment, 5, "Item, with 'quotes'."),
            (Kind::Comment, 6, "Another kind."),
            (Kind::Text, 8, "a \\\"text\\\" // no comment"),
            (Kind::Comment, 8, "behind code"),
            (Kind::Text, 9, "raw \"text\""),
            (Kind::Comment, 9, "block|goes on "),
            (Kind::Text, 11, "b"),
        ];
        assert_eq!(found(source), expected.map(|(kind, line, text)| (kind, line, text.to_owned())));
    }

    #[test]
    fn lines_of_a_comment_are_measured_in_their_file() {
        let source = format!("fn f() {{}}\n    // short\n    // {}\n", "x".repeat(120));
        assert_eq!(of_source(&source, true)[0].columns, [12, 127]);
    }
}
