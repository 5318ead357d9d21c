//! Links and headings of pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A link or an image of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Place of the whole link in the page: `[text](target)`.
    pub(super) whole: Range<usize>,
    /// Place of the text of the link. Empty for a link without text.
    pub(super) text: Range<usize>,
    pub(super) target: String,
}

impl Link {
    /// Returns whether the link leaves the repository.
    pub(super) fn is_external(&self) -> bool {
        ["http://", "https://", "mailto:"].iter().any(|scheme| self.target.starts_with(scheme))
    }

    /// Returns the path of the linked file, relative to the root of the repository, and the anchor without `#`. `page`
    /// is the path of the page with the link.
    pub(super) fn file_and_anchor(&self, page: &Path) -> (PathBuf, Option<&str>) {
        let (path, anchor) = match self.target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (self.target.as_str(), None),
        };
        let file = match path {
            "" => page.to_owned(),
            path => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
        };
        (file, anchor)
    }
}

/// Returns a relative path without `.` and `..`. A path that leaves its start keeps these `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the links and images of a page, in their order.
pub(super) fn of(page: &str) -> Vec<Link> {
    let mut links = Vec::new();
    let mut open: Vec<Link> = Vec::new();
    for (event, range) in Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                grow(&mut open, &range);
                open.push(Link { text: range.start..range.start, whole: range, target: dest_url.into_string() });
            }
            Event::End(TagEnd::Link | TagEnd::Image) => links.extend(open.pop()),
            Event::Text(_) | Event::Code(_) | Event::SoftBreak => grow(&mut open, &range),
            _ => {}
        }
    }
    links.sort_by_key(|link| link.whole.start);
    links
}

/// Adds a part of the page to the text of the innermost open link.
fn grow(open: &mut [Link], part: &Range<usize>) {
    if let Some(link) = open.last_mut() {
        link.text = if link.text.is_empty() { part.clone() } else { link.text.start..part.end };
    }
}

/// Returns the places of words that look like HTML tags, such as `<ADDRESS>` in a help text. Pages have no HTML, except
/// comments.
pub(super) fn tags(page: &str) -> Vec<usize> {
    let events = Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter();
    let tags = events.filter(|(event, _)| matches!(event, Event::InlineHtml(tag) if !tag.starts_with("<!--")));
    tags.map(|(_, place)| place.start).collect()
}

/// Returns the anchors of a page's headings, as code hosts and mdBook form them.
pub(super) fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut uses = BTreeMap::<String, usize>::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let count = uses.entry(anchor.clone()).or_default();
                anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            _ => {}
        }
    }
    anchors
}

/// Returns the anchor of a heading: lower case, hyphens for spaces, and no punctuation.
fn anchor(heading: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' => Some('-'),
        letter => (letter.is_alphanumeric() || matches!(letter, '-' | '_')).then_some(letter),
    };
    heading.trim().to_lowercase().chars().filter_map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_their_texts_and_targets() {
        let page = "See [a `b` c](x.md#y), ![image](i.svg) and\n\n```\n[no](code.md)\n```\n\n| [cell](t.md) |\n|---|\n";
        let found: Vec<_> = of(page).into_iter().map(|link| (page[link.text].to_owned(), link.target)).collect();
        let expected = [("a `b` c", "x.md#y"), ("image", "i.svg"), ("cell", "t.md")];
        assert_eq!(found, expected.map(|(text, target)| (text.to_owned(), target.to_owned())));
        assert_eq!(&page[of(page)[0].whole.clone()], "[a `b` c](x.md#y)");
    }

    #[test]
    fn an_image_inside_a_link_is_a_link_of_its_own() {
        let page = "[![image](i.svg)](x.md)";
        let targets: Vec<_> = of(page).into_iter().map(|link| link.target).collect();
        assert_eq!(targets, ["x.md", "i.svg"]);
        assert_eq!(&page[of(page)[0].text.clone()], "![image](i.svg)");
    }

    #[test]
    fn targets_are_paths_of_the_repository() {
        let of_page = |target: &str, page: &str| {
            let link = Link { whole: 0..0, text: 0..0, target: target.to_owned() };
            let (file, anchor) = link.file_and_anchor(Path::new(page));
            (file.to_string_lossy().into_owned(), anchor.map(str::to_owned))
        };
        assert_eq!(of_page("../README.md", "docs/a.md"), ("README.md".to_owned(), None));
        assert_eq!(of_page("#b", "docs/a.md"), ("docs/a.md".to_owned(), Some("b".to_owned())));
        assert_eq!(of_page("./c/../d.md#e", "docs/a.md"), ("docs/d.md".to_owned(), Some("e".to_owned())));
        assert_eq!(of_page("../../x", "docs/a.md"), ("../x".to_owned(), None));
    }

    #[test]
    fn words_in_angle_brackets_are_tags() {
        let page = "| a <b> `<c>` |\n|---|\n\n<!-- comment -->\n\nd <!-- e --> <f>\n";
        let words: Vec<_> = tags(page).into_iter().map(|at| &page[at..at + 3]).collect();
        assert_eq!(words, ["<b>", "<f>"]);
    }

    #[test]
    fn anchors_are_those_of_code_hosts() {
        let page = "# A b: `c-d` (e)\n\n## Same\n\n## Same\n\n## x_y, 1.5 ms\n\n```\n# no heading\n```\n";
        let expected = ["a-b-c-d-e", "same", "same-1", "x_y-15-ms"];
        assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), expected);
    }
}
