//! The generated part of the page: the table of all figures, and the commands of each row.

use std::path::Path;

use super::record::Record;
use super::{Figure, Row, page, read_text, rows, write_text};

/// Lines around the generated part of the page.
const BEGIN: &str = "<!-- generated: `cargo xtask programs --write-docs` -->";
const END: &str = "<!-- end of generated part -->";

/// Text before the path of the record of figures.
const RAW: &str = "raw figures: `";

/// Updates the page, with the figures of the record that the page names.
pub(crate) fn write() -> Result<(), String> {
    write_from(&page(), None)
}

/// Updates the page with the figures of a record. The path of the record is relative to the root of the repository.
/// Without a record, the function uses the record that the page names.
pub(super) fn write_from(page: &Path, record: Option<&Path>) -> Result<(), String> {
    let old = read_text(page)?;
    let record = record.or_else(|| named_record(&old)).map(Record::read).transpose()?;
    write_text(page, &with_written(&old, record.as_ref())?)
}

/// Returns the path of the record that a page names.
fn named_record(page: &str) -> Option<&Path> {
    let (path, _) = page.split_once(RAW)?.1.split_once('`')?;
    Some(Path::new(path))
}

/// Returns the page with a new generated part.
fn with_written(page: &str, record: Option<&Record>) -> Result<String, String> {
    let no_mark = |mark| format!("the page has no line {mark:?}");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| no_mark(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| no_mark(END))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", written(record)))
}

fn written(record: Option<&Record>) -> String {
    let mut text = String::from("## How fast\n\n");
    text.push_str(&match record {
        Some(record) => format!(
            "Measured on {}{}, {} virtual processors, Linux {}. The figures are medians of {} rounds, and of the ratios\n\
             within each round. The load before was {} ({RAW}{}`). Debian's packages are {}{}.\n\n\
             A ratio with ~ may be 1. The interval that holds its median in 95 of 100 cases then holds 1 too, or there were\n\
             fewer than 6 rounds. Rates of fio {} the half second that its client sleeps after it has connected.\n\n\
             *buffers* are the bytes that messages use in turn, of both ends together. Times marked *asleep* are of ends over\n\
             TCP that sleep until bytes arrive, while those on Doorbell poll. Most of such a time is a wake-up. Times marked\n\
             *one way* exclude the acknowledgement, which those on Doorbell include. A row with `-` on Doorbell is not\n\
             measured yet.\n\n",
            record.text("date"),
            record.revision(),
            record.text("cpus"),
            record.text("kernel"),
            record.text("rounds"),
            record.text("load_before"),
            record.path.display(),
            record.versions(),
            record.wheels(),
            record.sleep_of_fio(),
        ),
        None => "Nothing has been measured yet: `cargo xtask compare --programs` does.\n\n".to_owned(),
    });
    text.push_str(
        "| program | what | figure | buffers | on Doorbell | over TCP | ratio |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows() {
        for figure in row.figures {
            let medians = record.and_then(|record| record.medians(row, figure.of, figure.unit));
            let cell = |value: Option<f64>| {
                value.map_or("-".to_owned(), |value| format!("{} {}", short(value), figure.unit.name()))
            };
            let ratio = medians.as_ref().and_then(|medians| medians.ratio);
            let tcp = medians.as_ref().and_then(|medians| medians.tcp);
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} |\n",
                row.program,
                row.what,
                figure.of,
                buffers(figure),
                cell(medians.as_ref().map(|medians| medians.ours)),
                cell(tcp) + tcp.map_or("", |_| marks(figure)),
                ratio.map_or("-".to_owned(), |ratio| format!("{}{}", ratio.mark(), short(ratio.median))),
            ));
        }
    }
    text.push_str("\n## The commands\n");
    let mut program = "";
    for row in rows() {
        if row.program != program {
            program = row.program;
            text.push_str(&format!("\n### {program}\n"));
        }
        text.push_str(&commands(row));
    }
    text
}

/// Returns the marks of a figure over TCP whose run differs from the one on Doorbell.
fn marks(figure: &Figure) -> &'static str {
    match (figure.tcp_sleeps, figure.tcp_is_one_way) {
        (false, false) => "",
        (true, false) => ", asleep",
        (false, true) => ", one way",
        (true, true) => ", asleep, one way",
    }
}

/// Returns the bytes of a figure's buffers: one number, or two if those over TCP differ.
fn buffers(figure: &Figure) -> String {
    let shown = |bytes: u64| match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    };
    match figure.buffer_bytes {
        None => "-".to_owned(),
        Some([ours, tcp]) if ours == tcp => shown(ours),
        Some([ours, tcp]) => format!("{}, over TCP {}", shown(ours), shown(tcp)),
    }
}

fn commands(row: &Row) -> String {
    let block = |lines: &mut dyn Iterator<Item = &str>| {
        let lines: String = lines.map(|line| format!("$ {line}\n")).collect();
        format!("```console\n{lines}```\n")
    };
    let mut text = format!("\n**{}.** Checked: {}.\n\n{}", row.what, row.checked, block(&mut row.ours.lines()));
    if let Some(tcp) = &row.tcp {
        text.push_str(&format!("\nOver TCP:\n\n{}", block(&mut tcp.lines())));
    }
    text
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the commands of the page against the table, and its figures against the record.
    #[test]
    fn the_page_matches_the_table_and_the_record() {
        let there = read_text(&page()).unwrap();
        let record = named_record(&there).map(|path| Record::read(path).unwrap());
        let written = with_written(&there, record.as_ref()).unwrap();
        assert!(there == written, "docs/programs.md is out of date: `cargo xtask programs --write-docs` updates it");
    }

    #[test]
    fn a_page_names_its_record() {
        assert_eq!(named_record("... raw figures: `benchmarks/x/y.json`)."), Some(Path::new("benchmarks/x/y.json")));
        assert_eq!(named_record("no figures"), None);
        assert!(with_written("no marks", None).unwrap_err().contains("no line"));
    }

    #[test]
    fn buffers_over_tcp_are_stated_if_they_differ() {
        let stated = |program: &str| {
            let row = rows().find(|row| row.program == program).unwrap();
            row.figures.iter().map(buffers).collect::<Vec<_>>()
        };
        assert_eq!(stated("fio"), ["2 MiB, over TCP 128 KiB"]);
        assert_eq!(stated("MPICH"), ["-", "3 MiB"]);
        assert_eq!(stated("qperf"), ["-", "-", "128 KiB", "128 KiB", "128 KiB"]);
    }

    #[test]
    fn times_over_tcp_are_marked_if_they_mean_something_else() {
        let marked = |program: &str| {
            let row = rows().find(|row| row.program == program).unwrap();
            row.figures.iter().map(marks).collect::<Vec<_>>()
        };
        assert_eq!(marked("librpma"), [", one way", ""]);
        assert_eq!(marked("qperf")[..2], [", asleep", ""]);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([1234.5, 45.67, 4.567, 0.1234].map(short), ["1234", "45.7", "4.57", "0.12"]);
    }
}
