//! Sentences of Markdown, each with its line.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Word that replaces inline code in a sentence, so that the code counts as one word.
pub(super) const CODE: &str = "`code`";

/// Abbreviations whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 9] = ["e.g.", "i.e.", "vs.", "cf.", "vol.", "no.", "fig.", "etc.", "approx."];

/// A sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// Index of the line in which the sentence begins.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns all sentences of lines of Markdown. Code blocks contain no sentences. In printed text, a sentence ends at
/// the end of its line, unless a backslash continues the line.
pub(super) fn of(lines: &[String], is_printed: bool) -> Vec<Sentence> {
    let text = lines.join("\n");
    let starts: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let line_of = |at: usize| starts.partition_point(|&start| start <= at);
    let mut block = Block::default();
    let mut sentences = Vec::new();
    let mut is_code = false;
    for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
        let line = line_of(range.start);
        match event {
            Event::Start(Tag::CodeBlock(_)) => is_code = true,
            Event::End(TagEnd::CodeBlock) => is_code = false,
            Event::Text(text) if !is_code => block.push(&text, line),
            Event::Code(_) => block.push(CODE, line),
            Event::SoftBreak if is_printed => block.end(&mut sentences),
            Event::SoftBreak | Event::HardBreak => block.push(" ", line),
            Event::Start(tag) if is_inline(&tag.to_end()) => {}
            Event::End(tag) if is_inline(&tag) => {}
            Event::Start(_) | Event::End(_) => block.end(&mut sentences),
            _ => {}
        }
    }
    block.end(&mut sentences);
    sentences
}

fn is_inline(tag: &TagEnd) -> bool {
    matches!(tag, TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link | TagEnd::Image)
}

/// Text of a paragraph, a heading, or a cell.
#[derive(Default)]
struct Block {
    text: String,
    /// For each piece of the text, its offset and its line.
    pieces: Vec<(usize, usize)>,
}

impl Block {
    fn push(&mut self, text: &str, line: usize) {
        self.pieces.push((self.text.len(), line));
        self.text.push_str(text);
    }

    /// Moves the sentences of the block to `sentences`, and empties the block.
    fn end(&mut self, sentences: &mut Vec<Sentence>) {
        let block = std::mem::take(self);
        let line_of =
            |at: usize| block.pieces.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, line)| *line);
        for (start, end) in split(&block.text) {
            let text = &block.text[start..end];
            let trimmed = text.trim_start();
            if !trimmed.is_empty() {
                let line = line_of(start + text.len() - trimmed.len());
                sentences.push(Sentence { line, text: trimmed.trim_end().to_owned() });
            }
        }
    }
}

/// Returns the begin and the end of each sentence of a text.
fn split(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, mark) in text.char_indices().filter(|(_, character)| matches!(character, '.' | '!' | '?')) {
        let after = &text[at + mark.len_utf8()..];
        let next = after.trim_start_matches([')', '"', '\'', '*']);
        let word = text[start..=at].rsplit(char::is_whitespace).next().unwrap_or("");
        let first = next.split_whitespace().next().unwrap_or("");
        // A path such as docs/a.md may begin a sentence, although its first letter is in lower case.
        let begins = !first.starts_with(char::is_lowercase) || first.contains('/');
        let is_end = next.starts_with(char::is_whitespace)
            && begins
            && !ABBREVIATIONS.contains(&word.trim_start_matches('(').to_lowercase().as_str());
        if is_end {
            let end = text.len() - next.len();
            found.push((start, end));
            start = end;
        }
    }
    found.push((start, text.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(text: &str) -> Vec<(usize, String)> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        of(&lines, false).into_iter().map(|sentence| (sentence.line, sentence.text)).collect()
    }

    #[test]
    fn markdown_falls_into_sentences() {
        let text = "# Title\n\nOne `a.b` (IBTA Vol. 1), e.g. two. Three\ngoes on? `x` is four. docs/a.md is five.\n\n* item\n* [link](url.html) B\n\n\
                    ```text\nWho. What.\n```\n\n| a | b. C |\n|---|---|\n| d | e |\n";
        let expected = [
            (0, "Title"),
            (2, "One `code` (IBTA Vol. 1), e.g. two."),
            (2, "Three goes on?"),
            (3, "`code` is four."),
            (3, "docs/a.md is five."),
            (5, "item"),
            (6, "link B"),
            (12, "a"),
            (12, "b."),
            (12, "C"),
            (14, "d"),
            (14, "e"),
        ];
        assert_eq!(sentences(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn lines_of_printed_text_are_sentences_unless_continued() {
        let lines = ["Examples:", "  one two", "  three \\", "  four"].map(str::to_owned);
        let found: Vec<String> = of(&lines, true).into_iter().map(|sentence| sentence.text).collect();
        assert_eq!(found, ["Examples:", "one two", "three  four"]);
    }
}
