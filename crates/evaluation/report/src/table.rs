//! Drawing of tables.

use std::fmt::Display;

use doorbell_claims::Finding;
use maud::{Markup, display, html};

use crate::format::number;
use crate::view::table::{Cell, Table};

/// Renders a heading of a sortable table.
pub(crate) fn heading(text: &str, is_number: bool) -> Markup {
    html! { th scope="col" class=[is_number.then_some("number")] { button type="button" { (text) } } }
}

/// Renders a cell of a sortable table that is sorted by its text.
pub(crate) fn text(text: impl Display) -> Markup {
    html! { td { (display(text)) } }
}

/// Renders a cell of a sortable table that is sorted by a number. Cells without a finite number are sorted last.
pub(crate) fn value(value: f64, text: impl Display) -> Markup {
    let key = if value.is_finite() { value.to_string() } else { String::new() };
    html! { td.number data-value=(key) { (display(text)) } }
}

/// Renders a table that the reader can sort.
pub(crate) fn sortable(table: &Table) -> Markup {
    draw(table, "scroll", Some("sortable"), None)
}

/// Renders a table in a frame. A table without classes is not sortable.
pub(crate) fn draw(table: &Table, frame: &str, classes: Option<&str>, id: Option<&str>) -> Markup {
    html! {
        div class=(frame) tabindex="0" { table class=[classes] id=[id] {
            thead { tr {
                @for (name, is_number) in &table.columns {
                    @if classes.is_some() { (heading(name, *is_number)) } @else { th scope="col" { (name) } }
                }
            } }
            tbody { @for row in &table.rows { tr { @for one in row { (cell(one)) } } } }
        } }
    }
}

fn cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Head(name) => html! { th scope="row" { (name) } },
        Cell::Text(words) => text(words),
        Cell::Number(number, words) => value(*number, words),
        Cell::Bar(value, percent) => html! {
            td.number.bar data-value=(value) { span style=(format_args!("--share:{percent:.1}%")) { (number(*value)) } }
        },
        Cell::Experiment(name) => html! { td { a href={ "#" (anchor(name)) } { (name) } } },
        Cell::Verdict(finding, is_restless) => html! { td { (badge(*finding, *is_restless)) } },
    }
}

/// Returns the anchor of a name for links within the page. The anchor has only letters, digits and dashes.
pub(crate) fn anchor(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    std::iter::once('x').chain(std::iter::once('-')).chain(plain).collect()
}

/// Renders the outcome of a verdict. An outcome from a machine that was not quiet is grey.
pub(crate) fn badge(finding: Finding, is_restless: bool) -> Markup {
    let (class, mark) = if is_restless { (RESTLESS, "\u{2248}") } else { (class(finding), mark(finding)) };
    html! { span class={ "badge " (class) } { (mark) " " (finding.name()) } }
}

/// Class of verdicts from a machine that was not quiet.
pub(crate) const RESTLESS: &str = "restless";

pub(crate) fn class(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "differs",
        Finding::CannotShow => "cannot",
        Finding::NoValues => "missing",
    }
}

/// Returns the mark of a verdict, by which readers who see no colours tell verdicts apart.
fn mark(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "\u{2713}",
        Finding::DoesNotHold => "\u{2717}",
        Finding::CannotShow => "\u{2205}",
        Finding::NoValues => "\u{2026}",
    }
}
