//! `cargo xtask site`: a site of all pages, with search, by mdBook.

mod links;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use crate::browser::Scheme;
use crate::shell::{command, run, target};
use crate::test::StepEnd;
use crate::{browser, peers, place, programs};

use sources::{SUMMARY, Sources};

/// Version of mdBook that builds the site.
const MDBOOK: &str = "mdbook@0.5.4";

/// Arguments of mdBook's installation. They leave out its server and its watch over files. A build without optimization
/// and without information for debuggers takes less time, and the pages are few.
const INSTALLATION: [&str; 6] =
    ["--debug", "--no-default-features", "--features", "search", "--config", "profile.dev.debug=false"];

/// Settings of mdBook.
const BOOK: &str = "\
[book]
title = \"Doorbell\"
language = \"en\"
src = \"src\"

[build]
create-missing = false

[output.html]
smart-punctuation = false

[output.html.playground]
runnable = false

[output.html.print]
enable = false

[output.html.search]
limit-results = 30
";

/// Pages that `doorbell man --markdown` writes, each with its title. They are no files of the repository.
const GENERATED: [(&str, &str); 6] = [
    ("Commands and options", "commands.md"),
    ("Settings of a measurement", "settings.md"),
    ("Fields of records", "records.md"),
    ("Failed completions", "statuses.md"),
    ("Counters", "counters.md"),
    ("Fields of testbeds", "testbed-fields.md"),
];

/// Head of the part of the table of contents that begins with [`GENERATED`].
const REFERENCE: &str = "# Reference\n\n";

/// Builds the site in a folder, and returns its path. `doorbell` must be built. Links to other files of the repository
/// lead to `repository`.
pub(crate) fn build(out: Option<&Path>, repository: Option<&str>) -> Result<PathBuf, String> {
    let out = match out {
        Some(given) => std::path::absolute(given).map_err(|error| format!("{}: {error}", given.display()))?,
        None => target().join("site"),
    };
    if !is_free(&out) {
        return Err(format!(
            "{} has other files than a site, which mdBook would remove: choose another --out",
            out.display()
        ));
    }
    let sources = Sources::read()?;
    let broken = sources.broken();
    if !broken.is_empty() {
        return Err(broken.join("\n"));
    }
    let mdbook = peers::tool(MDBOOK, &INSTALLATION)?;
    let folder = place::own_file("book");
    sources.write(&folder.join("src"), repository)?;
    generate(&folder.join("src"))?;
    sources::write(&folder.join("book.toml"), BOOK.as_bytes())?;
    let mut make = command(mdbook, &["build", "--dest-dir"]);
    make.arg(&out).arg(&folder);
    run(make)?;
    check(&out)?;
    Ok(out)
}

/// Writes the generated pages, and their lines of the table of contents.
fn generate(sources: &Path) -> Result<(), String> {
    let mut man = command(programs::doorbell(), &["man", "--markdown", "--out"]);
    man.arg(sources.join("docs/reference"));
    run(man)?;
    let summary = sources.join("SUMMARY.md");
    let text = read(&summary)?;
    let (before, after) = text.split_once(REFERENCE).ok_or_else(|| format!("{SUMMARY} has no part {REFERENCE:?}"))?;
    let lines = GENERATED.map(|(title, page)| format!("- [{title}](docs/reference/{page})\n")).concat();
    sources::write(&summary, format!("{before}{REFERENCE}{lines}{after}").as_bytes())
}

/// Returns whether a folder is missing, empty, or has a site. mdBook removes the earlier content of its folder.
fn is_free(folder: &Path) -> bool {
    let is_empty = fs::read_dir(folder).map_or(!folder.exists(), |mut entries| entries.next().is_none());
    is_empty || folder.join("toc.html").exists()
}

/// Pages that the check opens in a browser.
const OPENED: [&str; 2] = ["index.html", "docs/guide/first-message.html"];

/// Builds the site, and checks its links. Opens two pages at the width of a desktop and of a phone, with a script that
/// uses the search.
pub(crate) fn step() -> StepEnd {
    let site = match build(Some(&place::own().join("site")), None) {
        Ok(site) => site,
        Err(why) => return StepEnd::Failed(why),
    };
    let Some(chromium) = peers::chromium() else {
        return StepEnd::LeftOut("there is no chromium, so no page was opened".to_owned());
    };
    let mut all = OPENED.iter().flat_map(|page| [(1300, 900), (420, 900)].map(|size| (site.join(page), size)));
    let script = include_str!("site/browser.js");
    all.try_for_each(|(page, size)| browser::open(chromium, &page, script, size, Scheme::Light)).into()
}

/// Checks that each link of a built page leads to a file of the site, and to an element with its anchor.
fn check(site: &Path) -> Result<(), String> {
    let mut folders = vec![site.to_owned()];
    let (mut pages, mut count, mut broken) = (0, 0, Vec::new());
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let page = read(&path)?;
                let targets = targets(&page);
                (pages, count) = (pages + 1, count + targets.len());
                for target in targets {
                    if let Err(why) = follow(&path, &target) {
                        broken.push(format!("{}: the link {target} {why}", path.display()));
                    }
                }
            }
        }
    }
    eprintln!("{}: {pages} pages, {count} links", site.display());
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

fn read(page: &Path) -> Result<String, String> {
    fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))
}

/// Returns the targets of the links and images in the content of a built page, without those of other sites.
fn targets(page: &str) -> Vec<String> {
    let content =
        page.split_once("<main>").and_then(|(_, rest)| rest.split_once("</main>")).map_or("", |(main, _)| main);
    let values = ["href=\"", "src=\""].into_iter().flat_map(|attribute| content.split(attribute).skip(1));
    let targets = values.filter_map(|rest| rest.split_once('"')).map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Checks that a link of a page leads somewhere.
fn follow(page: &Path, target: &str) -> Result<(), String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if file.is_empty() { page.to_owned() } else { page.with_file_name("").join(file) };
    if !to.is_file() {
        return Err("leads to no file".to_owned());
    }
    if !anchor.is_empty() && !read(&to)?.contains(&format!("id=\"{anchor}\"")) {
        return Err("leads to no heading".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_pages_are_searched_for_broken_links() {
        let site = tempfile::tempdir().expect("a temporary folder can be created");
        let page = |name: &str, content: &str| {
            let text = format!("<a href=\"outside.html\">menu</a><main>{content}</main>");
            sources::write(&site.path().join(name), text.as_bytes()).expect("the temporary folder can be written");
        };
        page("a.html", "<h1 id=\"top\">A</h1><a href=\"#top\"></a><a href=\"b/c.html#end\"></a><img src=\"i.svg\">");
        page("b/c.html", "<p id=\"end\"></p><a href=\"../a.html\"></a><a href=\"https://example.org/x\"></a>");
        page("i.svg", "");
        assert_eq!(check(site.path()), Ok(()));
        page("b/c.html", "<a href=\"../none.html\"></a><a href=\"../a.html#none\"></a>");
        let broken = check(site.path()).expect_err("three links are broken");
        let expected = ["a.html: the link b/c.html#end leads to no heading", "the link ../none.html leads to no file"];
        assert!(expected.iter().all(|line| broken.contains(line)), "{broken}");
        assert_eq!(broken.lines().count(), 3, "{broken}");
    }

    #[test]
    fn only_a_site_is_replaced() {
        let place = tempfile::tempdir().expect("a temporary folder can be created");
        let folder = place.path().join("site");
        assert!(is_free(&folder));
        sources::write(&folder.join("letter.txt"), b"x").expect("the temporary folder can be written");
        assert!(!is_free(&folder) && !is_free(&folder.join("letter.txt")));
        sources::write(&folder.join("toc.html"), b"").expect("the temporary folder can be written");
        assert!(is_free(&folder));
    }
}
