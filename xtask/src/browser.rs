//! Checks of pages in a real browser, headless Chromium.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::peers::chromium;
use crate::place;
use crate::programs::doorbell;
use crate::shell::{Running, command, run};
use crate::test::StepEnd;

/// Text of a record that a page must show as text, not as markup.
const HOSTILE: &str = "</script><script>window.owned=1</script><img src=x onerror=owned=1> & 'quoted'";

/// Measures a few experiments, and opens their report at the width of a desktop and of a phone, light and dark. This
/// check adds a script to the page that presses every button.
pub(crate) fn report() -> StepEnd {
    let Some(browser) = chromium() else {
        return StepEnd::LeftOut("there is no chromium".to_owned());
    };
    let directory = place::own().join("report");
    measure(&directory)
        .and_then(|()| {
            let page = directory.join("report.html");
            let sizes = [(1300, 900), (420, 900)].into_iter();
            let mut all = sizes.flat_map(|size| Scheme::ALL.map(|scheme| (size, scheme)));
            all.try_for_each(|(size, scheme)| open(browser, &page, include_str!("browser.js"), size, scheme))
        })
        .into()
}

/// Measures a run and writes its records. Also writes a copy of the run whose names contain markup ([`HOSTILE`]).
fn measure(directory: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{}: {error}", directory.display());
    let (measured, hostile) = (directory.join("measured"), directory.join("hostile"));
    let doorbell = doorbell();
    let mut study = command(
        &doorbell,
        &[
            "study",
            "send-receive/inline",
            "send-receive/rnr",
            "send-receive/window",
            "send-receive/batch",
            "send-receive/bandwidth",
            "direct-read/latency",
            "--out",
        ],
    );
    study.arg(&measured);
    run(study)?;
    fs::create_dir_all(&hostile).map_err(said)?;
    for entry in fs::read_dir(&measured).map_err(said)? {
        let path = entry.map_err(said)?.path();
        if let (Some(name), true) = (path.file_name(), path.extension().is_some_and(|extension| extension == "json")) {
            let record = fs::read_to_string(&path).map_err(said)?;
            let record = record.replace("not inline", HOSTILE);
            // The rate of the link becomes a line in plots of throughput.
            let record = record.replacen("\"machine\":", "\"adapter\":{\"rate_bps\":25000000000},\"machine\":", 1);
            fs::write(hostile.join(name), record).map_err(said)?;
        }
    }
    let mut report = command(&doorbell, &["report"]);
    report.arg(&measured).arg(&hostile).arg("--out").arg(directory.join("report.html"));
    run(report)
}

/// Colours that the reader prefers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub(crate) const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// Returns the option of Chromium. Its numbers are those of `blink::mojom::PreferredColorScheme`.
    fn option(self) -> String {
        let number = match self {
            Self::Dark => 0,
            Self::Light => 1,
        };
        format!("--blink-settings=preferredColorScheme={number}")
    }
}

/// Opens a page with a script at its end. The script replaces the page by an element `result`, whose text must begin
/// with `sound: `. Errors of scripts before it are in `window.problems`.
pub(crate) fn open(
    browser: &str,
    page: &Path,
    script: &str,
    (width, height): (u32, u32),
    scheme: Scheme,
) -> Result<(), String> {
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let before = "<script>window.problems = []; addEventListener(\"error\", (event) => problems.push(event.message));\
                  </script><meta charset";
    let after = format!("<script>{script}</script></body>");
    let tested = page.with_extension("tested.html");
    let text = text.replacen("<meta charset", before, 1).replacen("</body>", &after, 1);
    fs::write(&tested, text).map_err(|error| format!("{}: {error}", tested.display()))?;
    let mut chromium: Command = command(
        browser,
        &[
            "--headless",
            "--no-sandbox", // Chromium refuses its sandbox to root
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            "--dump-dom",
        ],
    );
    let profile = page.with_extension("profile");
    chromium.arg(format!("--user-data-dir={}", profile.display())).arg(scheme.option());
    chromium.arg(format!("--window-size={width},{height}")).arg(format!("file://{}", tested.display()));
    let (dom, said) = Running::start(chromium)?.finish(Duration::from_secs(300))?;
    if let Some(line) = said.lines().find(|line| line.contains("CONSOLE")) {
        return Err(format!("at {width} pixels, {scheme:?}, the console has: {line}"));
    }
    let (_, found) = dom.split_once("<pre id=\"result\">").ok_or("the page did not run its scripts")?;
    let found = found.split_once("</pre>").map_or(found, |(found, _)| found);
    if !found.starts_with("sound: ") {
        return Err(format!("at {width} pixels, {scheme:?}, {found}"));
    }
    println!("{width} x {height}, {scheme:?}: {found}");
    Ok(())
}
