//! Published figures of RDMA message exchange as data: `data/published/*.toml`, one file per testbed.
//!
//! A [`Row`] is one published number, a [`Shape`] one published sentence with the numbers in it. Each states
//! its experiment, its configuration, its source, and its uncertainties. The files are part of the program. [`all`]
//! returns them parsed.
//!
//! ```
//! use doorbell_published::{Unit, row};
//!
//! let ceiling = row("send-receive/batch-ceiling").ok_or("a row of T1")?;
//! // Printed as Gbit/s, but divided by 1024^3.
//! assert_eq!(ceiling.value.unit, Unit::Gibit);
//! assert!((ceiling.value.in_unit(Unit::Gb).ok_or("a throughput")? - 1.825).abs() < 0.001);
//! # Ok::<(), &str>(())
//! ```
#![forbid(unsafe_code)]

mod configuration;
mod load;
mod quantity;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub use configuration::{
    Amount, Configuration, Fence, Pace, PathMtuSaid, PublishedOperation, Receivers, Repost, Store, Subject,
};
pub use load::{LoadError, SCHEMA};
pub use quantity::{Dimension, Quantity, Relation, Unit, Value};

/// Published figures of one testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Testbed {
    /// Its short name: T1.
    pub name: String,
    /// The subject of the study.
    pub about: String,
    /// The hardware of the testbed.
    pub hardware: String,
    /// The link's rate per direction, in 10^9 bits per second.
    pub link_gbps: f64,
    /// Unknown facts about all its figures, as sentences.
    pub unknown: Vec<String>,
    /// Sources of figures, by the key that rows name.
    pub sources: BTreeMap<String, String>,
    /// Its numbers.
    pub rows: Vec<Row>,
    /// Its sentences.
    pub shapes: Vec<Shape>,
}

/// One published number.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Identifier, unique over all testbeds.
    pub id: String,
    /// The published fact, as a sentence.
    pub says: String,
    /// Its experiment: FAMILY/WHAT.
    pub experiment: String,
    /// The subject of the measurement.
    pub subject: Subject,
    /// The quantity of the number.
    pub quantity: Quantity,
    /// Precision with which the source states the number.
    pub relation: Relation,
    /// The number as printed.
    pub value: Value,
    /// Configuration of the measurement.
    pub configuration: Configuration,
    /// Its source: a key of [`Testbed::sources`].
    pub source: String,
    /// Uncertainties, as sentences.
    pub uncertain: Vec<String>,
}

/// One published sentence about the dependence of one quantity on another.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Identifier, unique over all testbeds.
    pub id: String,
    /// The sentence.
    pub says: String,
    /// Its experiment: FAMILY/WHAT.
    pub experiment: String,
    /// The subject of the measurement.
    pub subject: Subject,
    /// The numbers in it, by a name that ends in the unit.
    pub numbers: BTreeMap<String, f64>,
    /// Configuration of the measurement.
    pub configuration: Configuration,
    /// Its source: a key of [`Testbed::sources`].
    pub source: String,
    /// Uncertainties, as sentences.
    pub uncertain: Vec<String>,
}

impl Testbed {
    /// Parses the text of a file. Errors call it `file`.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing, unknown, of the wrong type or out of range. The error names the file,
    /// the row, the field and the allowed values.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, LoadError> {
        load::testbed(file, text)
    }

    /// Returns the number of this id.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// Returns the sentence of this id.
    pub fn shape(&self, id: &str) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.id == id)
    }
}

impl Shape {
    /// Returns a number in the sentence.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }
}

static ALL: LazyLock<Vec<Testbed>> = LazyLock::new(|| {
    let load = |file: &doorbell_data::File| {
        Testbed::from_toml(file.path, file.text)
            .unwrap_or_else(|error| unreachable!("tests read the built-in files: {error}"))
    };
    doorbell_data::PUBLISHED.iter().map(load).collect()
});

/// Returns all testbeds.
pub fn all() -> &'static [Testbed] {
    &ALL
}

/// Returns the testbed of this name, ignoring case.
pub fn testbed(name: &str) -> Option<&'static Testbed> {
    all().iter().find(|testbed| testbed.name.eq_ignore_ascii_case(name))
}

/// Returns the number of this id.
pub fn row(id: &str) -> Option<&'static Row> {
    all().iter().find_map(|testbed| testbed.row(id))
}

/// Returns the sentence of this id.
pub fn shape(id: &str) -> Option<&'static Shape> {
    all().iter().find_map(|testbed| testbed.shape(id))
}
