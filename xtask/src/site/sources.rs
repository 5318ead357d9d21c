//! Sources of the site: copies of the pages of the repository, with links that lead to other pages of the site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::links::{self, Link};
use crate::shell::{command, output_of, root};

/// The table of contents. Its links are relative to its own place.
pub(super) const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages of the root folder that are part of the site.
const ROOT_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Extensions of files that pages show.
const IMAGES: [&str; 2] = ["svg", "png"];

/// The files of the site: pages with their texts, and images.
pub(super) struct Sources {
    pub(super) pages: BTreeMap<PathBuf, String>,
    images: BTreeSet<PathBuf>,
}

impl Sources {
    /// Reads the files from the work tree of the repository. Ignored files are no part of the site.
    pub(super) fn read() -> Result<Self, String> {
        let mut list = command("git", &["ls-files", "--cached", "--others", "--exclude-standard", "--", "docs"]);
        list.args(ROOT_PAGES);
        let mut sources = Self { pages: BTreeMap::new(), images: BTreeSet::new() };
        for file in output_of(list)?.lines().map(PathBuf::from) {
            let is = |extension: &str| file.extension().is_some_and(|found| found == extension);
            if is("md") && root().join(&file).exists() {
                let text = fs::read_to_string(root().join(&file));
                let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
                sources.pages.insert(file, text);
            } else if IMAGES.into_iter().any(is) {
                sources.images.insert(file);
            }
        }
        Ok(sources)
    }

    /// Returns a line for each link that leads to no file or heading, and for each page that the table of contents
    /// lacks.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut listed = BTreeSet::from([PathBuf::from(SUMMARY)]);
        for (page, text) in &self.pages {
            for link in links::of(text).iter().filter(|link| !link.is_external()) {
                let (file, anchor) = link.file_and_anchor(page);
                let place = format!("{}: the link {}", page.display(), link.target);
                if file.starts_with("..") || !root().join(&file).exists() {
                    broken.push(format!("{place} leads to no file"));
                    continue;
                }
                if let Some(anchor) = anchor {
                    let headings = self.pages.get(&file).map(|text| links::anchors(text)).unwrap_or_default();
                    if !headings.contains(anchor) {
                        broken.push(format!("{place} leads to no heading"));
                    }
                }
                if page == Path::new(SUMMARY) {
                    listed.insert(file);
                }
            }
        }
        let missing = self.pages.keys().filter(|page| !listed.contains(*page));
        broken.extend(missing.map(|page| format!("{SUMMARY} has no link to {}", page.display())));
        broken
    }

    /// Writes all files to a folder, as sources of mdBook. A link to a file that is not part of the site leads into
    /// `repository`, the address of the repository's files. Without an address, only the text of the link remains.
    pub(super) fn write(&self, folder: &Path, repository: Option<&str>) -> Result<(), String> {
        for (page, text) in &self.pages {
            let (to, text) = if page == Path::new(SUMMARY) {
                (PathBuf::from("SUMMARY.md"), self.with_links(page, Path::new("SUMMARY.md"), text, repository))
            } else {
                (in_book(page), self.with_links(page, &in_book(page), text, repository))
            };
            write(&folder.join(to), text.as_bytes())?;
        }
        for image in &self.images {
            let bytes = fs::read(root().join(image)).map_err(|error| format!("{}: {error}", image.display()))?;
            write(&folder.join(image), &bytes)?;
        }
        Ok(())
    }

    /// Returns the text of a page with other links, for the place `to` in the book. A backslash before each word that
    /// looks like an HTML tag keeps the word visible.
    fn with_links(&self, page: &Path, to: &Path, text: &str, repository: Option<&str>) -> String {
        let mut edits: Vec<_> = links::tags(text).into_iter().map(|at| (at..at, "\\".to_owned())).collect();
        for link in links::of(text).into_iter().filter(|link| !link.is_external()) {
            let (file, anchor) = link.file_and_anchor(page);
            let target = if self.pages.contains_key(&file) || self.images.contains(&file) {
                let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
                Some(relative(to, &in_book(&file)) + &anchor)
            } else {
                repository.map(|address| format!("{}/{}", address.trim_end_matches('/'), file.display()))
            };
            match target {
                Some(target) => edits.extend(place_of_target(text, &link).map(|place| (place, target))),
                // Only the text of the link remains.
                None => edits.extend([
                    (link.whole.start..link.text.start, String::new()),
                    (link.text.end..link.whole.end, String::new()),
                ]),
            }
        }
        // The edits do not overlap. An edit does not move the places of earlier parts of the page.
        edits.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
        let mut text = text.to_owned();
        edits.into_iter().for_each(|(place, new)| text.replace_range(place, &new));
        text
    }
}

/// Returns the place of an inline link's target, the last part of the link. Pages have no links by reference.
fn place_of_target(text: &str, link: &Link) -> Option<Range<usize>> {
    let at = text[link.whole.clone()].rfind(&format!("]({}", link.target))?;
    let begin = link.whole.start + at + "](".len();
    Some(begin..begin + link.target.len())
}

/// Returns the place of a page in the book. mdBook makes the first page of a folder from `index.md`.
fn in_book(page: &Path) -> PathBuf {
    if page.file_name().is_some_and(|name| name == "README.md") { page.with_file_name("index.md") } else { page.into() }
}

/// Returns the path from the page `from` to the file `to`.
fn relative(from: &Path, to: &Path) -> String {
    let folder: Vec<_> = from.parent().unwrap_or(Path::new("")).components().collect();
    let target: Vec<_> = to.components().collect();
    let common = folder.iter().zip(&target).take_while(|(one, other)| one == other).count();
    let up = folder[common..].iter().map(|_| "..".to_owned());
    let down = target[common..].iter().map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Writes a file, and creates its folder.
pub(super) fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, bytes));
    written.map_err(|error| format!("{} could not be written: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(pages: &[(&str, &str)]) -> Sources {
        let pages = pages.iter().map(|(page, text)| (PathBuf::from(page), (*text).to_owned())).collect();
        Sources { pages, images: BTreeSet::new() }
    }

    #[test]
    fn all_links_of_pages_lead_somewhere() {
        let broken = Sources::read().expect("git lists the pages").broken();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn broken_links_and_missing_pages_are_reported() {
        let text = "[a](b.md#no-heading) [c](no-file.md) [d](../../up.md) [e](https://example.org/x)\n";
        let broken = sources(&[(SUMMARY, "[a](a.md)"), ("docs/a.md", text), ("docs/b.md", "# B\n")]).broken();
        // No page of these sources exists in the repository, so the link of the table of contents is broken too.
        let expected = [
            "docs/SUMMARY.md: the link a.md leads to no file",
            "docs/a.md: the link b.md#no-heading leads to no file",
            "docs/a.md: the link no-file.md leads to no file",
            "docs/a.md: the link ../../up.md leads to no file",
            "docs/SUMMARY.md has no link to docs/a.md",
            "docs/SUMMARY.md has no link to docs/b.md",
        ];
        assert_eq!(broken, expected);
        let page = [("docs/model.md", "# Model\n"), (SUMMARY, "[m](model.md#absent)")];
        assert_eq!(sources(&page).broken(), ["docs/SUMMARY.md: the link model.md#absent leads to no heading"]);
    }

    #[test]
    fn links_of_the_book_lead_to_its_pages_only() {
        let all = sources(&[("docs/p/README.md", ""), ("docs/a.md", ""), ("README.md", "")]);
        let text = "[p](p/README.md#x) [r](../README.md) [`code`](../crates/x.rs) [w](https://example.org)";
        let with = |repository| all.with_links(Path::new("docs/a.md"), Path::new("docs/a.md"), text, repository);
        assert_eq!(with(None), "[p](p/index.md#x) [r](../index.md) `code` [w](https://example.org)");
        assert!(with(Some("https://example.org/blob/main/")).contains("(https://example.org/blob/main/crates/x.rs)"));
        let contents =
            all.with_links(Path::new(SUMMARY), Path::new("SUMMARY.md"), "- [r](../README.md)\n- [a](a.md)", None);
        assert_eq!(contents, "- [r](index.md)\n- [a](docs/a.md)");
    }
}
