//! The rules, and their application to passages.

use serde::Deserialize;

use super::passage::{Kind, Passage};
use super::sentence::{self, Sentence};

/// Maximum number of words of a sentence.
const WORDS_MAX: usize = 30;

/// Maximum number of columns of a line with a comment.
const COLUMNS_MAX: usize = 120;

/// Text that begins an allowance in a comment of source code. A reason follows this text.
const ALLOWANCE: &str = concat!("prose", ": allow:");

/// Text that begins an allowance in a page. It differs from [`ALLOWANCE`], because pages may also mention allowances.
const PAGE_ALLOWANCE: &str = concat!("<!-- prose", ": allow:");

/// Contents of `rules.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    opener: Vec<Opener>,
    phrase: Vec<Phrase>,
    pub(super) titles: Titles,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Opener {
    text: String,
    instead: String,
    /// Words after the opener with which the opener is an error; `None` means all words.
    before: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrase {
    text: String,
    instead: String,
}

/// Rules for the titles of commits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Titles {
    longest: usize,
    pub(super) since: String,
    second_verbs: Vec<String>,
}

/// A place in a file that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) line: usize,
    pub(super) what: String,
}

/// Findings and allowances of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) all: Vec<Finding>,
    /// Number of allowances.
    pub(super) allowed: usize,
}

impl Rules {
    /// Reads the rules.
    pub(super) fn read() -> Self {
        toml::from_str(include_str!("rules.toml")).expect("the file of rules is valid")
    }

    /// Checks all passages of one file.
    pub(super) fn check(&self, passages: &[Passage]) -> Findings {
        let mut findings = Findings::default();
        let mut allowances = Vec::new();
        for passage in passages {
            for (offset, line) in passage.lines.iter().enumerate() {
                if let Some((_, reason)) = line.split_once(allowance(passage.kind)) {
                    let reason = reason.trim().trim_end_matches("-->").trim();
                    allowances.push((passage.line + offset, !reason.is_empty(), 0));
                }
            }
        }
        for passage in passages {
            let span = passage.span();
            // An allowance covers its own passage, or the passage on the next line. A page is only one passage, so an
            // allowance in a page covers the next paragraph.
            let covers = |line: usize, found: &Finding| match passage.kind {
                Kind::Page => line < found.line && found.line <= line + paragraph(&passage.lines[line..]),
                _ => span.contains(&line) || span.start == line + 1,
            };
            for found in self.of_passage(passage) {
                match allowances.iter_mut().find(|(line, is_valid, _)| *is_valid && covers(*line, &found)) {
                    Some((.., uses)) => *uses += 1,
                    None => findings.all.push(found),
                }
            }
        }
        findings.allowed = allowances.len();
        for (line, is_valid, uses) in allowances {
            let what = match (is_valid, uses) {
                (false, _) => format!("an allowance needs a reason: `{ALLOWANCE} REASON`"),
                (true, 0) => "this allowance allows nothing: remove it".to_owned(),
                _ => continue,
            };
            findings.all.push(Finding { line, what });
        }
        findings.all.sort();
        findings
    }

    fn of_passage(&self, passage: &Passage) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (offset, &columns) in passage.columns.iter().enumerate().filter(|(_, columns)| **columns > COLUMNS_MAX) {
            let what = format!("a comment with {columns} columns: at most {COLUMNS_MAX}");
            findings.push(Finding { line: passage.line + offset, what });
        }
        let lines: Vec<String> = passage.lines.iter().map(|line| without_allowance(line, passage.kind)).collect();
        for sentence in sentence::of(&lines, passage.kind == Kind::Text) {
            let line = passage.line + sentence.line;
            findings.extend(self.of_sentence(passage.kind, &sentence).into_iter().map(|what| Finding { line, what }));
        }
        findings
    }

    fn of_sentence(&self, kind: Kind, sentence: &Sentence) -> Vec<String> {
        let words = words(&sentence.text);
        let mut findings = Vec::new();
        let begin: String = sentence.text.chars().take(60).collect();
        // A string literal may be the rest of a sentence, so it may begin with an opener in lower case. A page may ask
        // questions.
        let may_open = kind == Kind::Page && sentence.text.ends_with('?');
        let is_begun = kind != Kind::Text || sentence.text.starts_with(char::is_uppercase);
        if let Some(opener) = self.opener.iter().find(|opener| opener.opens(&words, &sentence.text))
            && is_begun
            && !may_open
        {
            findings.push(format!("\"{begin}\" opens with \"{}\". Instead: {}", opener.text, opener.instead));
        }
        for phrase in self.phrase.iter().filter(|phrase| contains(&words, &phrase.text)) {
            findings.push(format!("\"{}\" in \"{begin}\". Instead: {}", phrase.text, phrase.instead));
        }
        if words.len() > WORDS_MAX {
            findings.push(format!("\"{begin}\" has {} words: at most {WORDS_MAX}", words.len()));
        }
        findings
    }

    /// Returns the rule that a commit's title breaks, if any.
    pub(super) fn of_title(&self, title: &str) -> Option<String> {
        let columns = title.chars().count();
        let words = words(title);
        let second = words.windows(2).find(|pair| pair[0] == "and" && self.titles.second_verbs.contains(&pair[1]));
        if columns > self.titles.longest {
            Some(format!("has {columns} columns: at most {}", self.titles.longest))
        } else if title.contains(';') {
            Some("has a semicolon: one commit, one change".to_owned())
        } else {
            second.map(|pair| format!("names a second change, \"and {}\": one commit, one change", pair[1]))
        }
    }
}

impl Opener {
    fn opens(&self, words: &[String], text: &str) -> bool {
        let own: Vec<&str> = self.text.split(' ').collect();
        if !words.iter().map(String::as_str).take(own.len()).eq(own.iter().copied()) || words.len() == own.len() {
            return false;
        }
        // `Where:` is allowed, because it begins a list of symbols.
        let is_label = text.get(self.text.len()..).is_some_and(|rest| rest.starts_with(':'));
        !is_label && self.before.as_ref().is_none_or(|before| before.contains(&words[own.len()]))
    }
}

/// Returns the number of lines up to the end of the next paragraph.
fn paragraph(lines: &[String]) -> usize {
    let blank = lines.iter().take_while(|line| line.trim().is_empty()).count();
    blank + lines[blank..].iter().take_while(|line| !line.trim().is_empty()).count()
}

const fn allowance(kind: Kind) -> &'static str {
    if matches!(kind, Kind::Page) { PAGE_ALLOWANCE } else { ALLOWANCE }
}

/// Returns the line, or an empty line if it contains an allowance.
fn without_allowance(line: &str, kind: Kind) -> String {
    if line.contains(allowance(kind)) { String::new() } else { line.to_owned() }
}

/// Returns the words of a sentence in lower case, without punctuation.
pub(super) fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|character: char| !character.is_alphanumeric()).to_lowercase();
    text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
}

fn contains(words: &[String], phrase: &str) -> bool {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    words.windows(phrase.len()).any(|window| window.iter().map(String::as_str).eq(phrase.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::super::passage::{of_page, of_source};
    use super::*;

    fn of_comment(text: &str) -> Vec<String> {
        let findings = Rules::read().check(&of_source(text, true));
        findings.all.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn each_opener_and_each_phrase_is_found_and_says_what_to_write() {
        let rules = Rules::read();
        for opener in &rules.opener {
            let next = opener.before.as_ref().map_or("peers", |before| &before[0]);
            let (first, rest) = opener.text.split_at(1);
            let sentence = format!("// {}{rest} {next} it sends.", first.to_uppercase());
            let found = of_comment(&sentence);
            assert!(
                found.iter().any(|what| what.contains("opens with") && what.contains(&opener.instead)),
                "{sentence}"
            );
        }
        for phrase in &rules.phrase {
            let found = of_comment(&format!("/// The peer, {}, ends.", phrase.text));
            assert!(found.iter().any(|what| what.contains(&phrase.instead)), "{}: {found:?}", phrase.text);
        }
    }

    #[test]
    fn long_sentences_and_wide_comments_are_found() {
        let sentence = "word ".repeat(31);
        assert_eq!(of_comment(&format!("// {}\n// {}", &sentence[..75], &sentence[75..])).len(), 1);
        assert_eq!(
            of_comment(&format!("// {}", "word ".repeat(30))).len(),
            1,
            "30 words are allowed, but the line is too wide"
        );
        assert_eq!(of_comment(&format!("/// {}", "x".repeat(117))), ["a comment with 121 columns: at most 120"]);
        assert_eq!(
            of_comment(&format!("let x = \"{}\";", "word ".repeat(31))).len(),
            1,
            "a string literal with a long sentence breaks the rule"
        );
    }

    #[test]
    fn ordinary_prose_passes() {
        let comments = "//! Counters of a client. That packet is the last one.\n\
                        /// Returns the error, whatever its kind, where the caller put it.\n\
                        //\n\
                        // Where:\n\
                        // `what`, `Who`: symbols of the formula. The listener says which.\n\
                        let text = \"what the peer sent\";\n\
                        /* A block\n * of two lines. */\n";
        assert_eq!(of_comment(comments), [""; 0]);
        let page = of_page("# What does it cost?\n\nThe sender waits.\n\n```\nWho nobody.\n```\n");
        assert_eq!(Rules::read().check(&page), Findings::default());
    }

    #[test]
    fn an_allowance_holds_once_and_has_a_reason() {
        let rules = Rules::read();
        let of = |source: &str| {
            let findings = rules.check(&of_source(source, true));
            (findings.allowed, findings.all.into_iter().map(|finding| finding.line).collect::<Vec<_>>())
        };
        assert_eq!(of("// prose: allow: a quotation\n/// What is it.\n/// Nobody."), (1, vec![]));
        assert_eq!(of("// prose: allow:\n/// What is it."), (1, vec![1, 2]));
        assert_eq!(of("// prose: allow: a quotation\n\n/// What is it."), (1, vec![1, 3]));
        let page = of_page("<!-- prose: allow: a quotation -->\nNobody\nknows.\n\nNobody `prose: allow: it`.\n");
        assert_eq!(rules.check(&page).all.iter().map(|finding| finding.line).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn titles_name_one_change() {
        let rules = Rules::read();
        let bad = ["Reject requests; drop replies", "Reject requests and drop replies", &"x".repeat(73)];
        assert!(bad.iter().all(|title| rules.of_title(title).is_some()));
        let good = ["Reject requests and replies beyond the window", &"x".repeat(72)];
        assert!(good.iter().all(|title| rules.of_title(title).is_none()));
    }
}
