//! Tables as plain data.

use std::fmt::Display;

use doorbell_claims::Finding;
use doorbell_record::Spread;

use crate::format::number;

/// Table with named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// Names of the columns, each with whether its cells are numbers.
    pub(crate) columns: Vec<(String, bool)>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// Cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Name of the row.
    Head(String),
    Text(String),
    /// Number by which rows are sorted, and its text. Rows without a finite number are last.
    Number(f64, String),
    /// Number with a bar that covers this percentage of the cell.
    Bar(f64, f64),
    /// Name of an experiment, with a link to its section.
    Experiment(String),
    /// Outcome of a verdict, and whether the machine was not quiet.
    Verdict(Finding, bool),
}

impl Table {
    /// Adds columns of texts.
    pub(crate) fn texts(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.columns.extend(names.into_iter().map(|name| (name.into(), false)));
        self
    }

    /// Adds columns of numbers.
    pub(crate) fn numbers(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.columns.extend(names.into_iter().map(|name| (name.into(), true)));
        self
    }

    /// Returns the table, or `None` if it has no rows.
    pub(crate) fn with_rows(self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Option<Self> {
        let rows: Vec<_> = rows.into_iter().collect();
        (!rows.is_empty()).then_some(Self { rows, ..self })
    }
}

impl Cell {
    pub(crate) fn text(text: impl Display) -> Self {
        Self::Text(text.to_string())
    }

    /// Returns a number with three significant digits, or a dash if the number is missing or not finite.
    pub(crate) fn number(value: impl Into<Option<f64>>) -> Self {
        let value = value.into().unwrap_or(f64::NAN);
        Self::Number(value, number(value))
    }

    /// Returns a number with all its digits, or a dash if the number is missing.
    pub(crate) fn count(count: impl Into<Option<u64>>) -> Self {
        match count.into() {
            Some(count) => Self::Number(count as f64, count.to_string()),
            None => Self::number(None),
        }
    }

    pub(crate) fn shown(value: f64, text: impl Display) -> Self {
        Self::Number(value, text.to_string())
    }

    /// Returns the median of figures, and their range.
    pub(crate) fn spread(spread: Option<Spread>) -> [Self; 2] {
        let range =
            |it: Spread| Self::Number(it.most - it.least, format!("{} \u{2013} {}", number(it.least), number(it.most)));
        [Self::number(spread.map(|it| it.median)), spread.map_or_else(|| Self::number(None), range)]
    }
}
