//! Words of the pages of `docs` that are written by hand, of which there is a maximum.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{rules, sentence};
use crate::shell::{command, output_of, root};

/// Maximum number of words of all pages together.
pub(super) const WORDS_MAX: usize = 45_000;

/// Number of pages that an error names.
const NAMED: usize = 5;

/// Pages of `docs` that programs write, the table of contents, and the first set of blind predictions. That page is a
/// record, which stays as it was made.
const LEFT_OUT: [&str; 4] =
    ["docs/SUMMARY.md", "docs/blind-predictions-2.md", "docs/blind-predictions.md", "docs/internals/errors.md"];

/// Begin of the line before a part of a page that a program writes or compares.
const BEGIN: &str = "<!-- generated: ";

/// Line after such a part.
const END: &str = "<!-- end of generated part -->";

/// Number of words by page.
pub(super) type Words = BTreeMap<PathBuf, usize>;

/// Counts the words of each page.
pub(super) fn count() -> Result<Words, String> {
    let list = output_of(command("git", &["ls-files", "docs/*.md"]))?;
    let pages = list.lines().filter(|page| !LEFT_OUT.contains(page));
    pages
        .map(|page| {
            let text = fs::read_to_string(root().join(page)).map_err(|error| format!("{page}: {error}"))?;
            let words = words(&text).map_err(|why| format!("{page}: {why}"))?;
            Ok((PathBuf::from(page), words))
        })
        .collect()
}

/// Returns an error if all pages together have more words than allowed. The error names the longest pages.
pub(super) fn excess(words: &Words) -> Option<String> {
    let total: usize = words.values().sum();
    let mut longest: Vec<(&PathBuf, &usize)> = words.iter().collect();
    longest.sort_by_key(|(_, words)| Reverse(**words));
    let named: Vec<String> =
        longest.iter().take(NAMED).map(|(page, words)| format!("{} has {words}", page.display())).collect();
    let sentence = || format!("docs has {total} words by hand: at most {WORDS_MAX}; {}", named.join(", "));
    (total > WORDS_MAX).then(sentence)
}

/// Counts the words of a page. Code blocks, comments and generated parts have none, and inline code is one word.
fn words(page: &str) -> Result<usize, String> {
    let mut lines = Vec::new();
    let mut is_generated = false;
    for line in page.lines() {
        if line.starts_with(BEGIN) {
            is_generated = true;
        } else if line == END {
            is_generated = false;
        } else if !is_generated {
            lines.push(line.to_owned());
        }
    }
    if is_generated {
        return Err(format!("a generated part has no end: put the line {END} after it"));
    }
    Ok(sentence::of(&lines, false).iter().map(|sentence| rules::words(&sentence.text).len()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_by_hand_are_counted() {
        let page = "# A title\n\nTwo `code span` words, [a link](page.md).\n\n| a | b c |\n|---|---|\n| d | - |\n\n\
                    <!-- not counted -->\n\n```console\n$ not counted\n```\n\n1. item\n   <!-- not counted -->\n\n   \
                    ```console\n   $ not counted\n   ```\n\n<!-- generated: `a command` -->\n\nnot counted\n\n\
                    <!-- end of generated part -->\n\nlast\n";
        assert_eq!(words(page), Ok(13));
        let unended = words("<!-- generated: `a command` -->\n\nnot counted\n").expect_err("no end");
        assert!(unended.contains(END), "{unended}");
    }

    #[test]
    fn more_words_than_allowed_are_an_error() {
        let pages = |second| Words::from([("docs/a.md".into(), WORDS_MAX - 10), ("docs/b.md".into(), second)]);
        assert_eq!(excess(&pages(10)), None);
        let sentence = excess(&pages(11)).expect("one word too many");
        assert_eq!(sentence, "docs has 45001 words by hand: at most 45000; docs/a.md has 44990, docs/b.md has 11");
    }

    #[test]
    fn pages_left_out_exist() {
        let missing: Vec<_> = LEFT_OUT.into_iter().filter(|page| !root().join(page).exists()).collect();
        assert_eq!(missing, [""; 0]);
    }
}
