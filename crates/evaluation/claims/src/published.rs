//! Published figures of RDMA message exchange as data: `data/published/*.toml`, one file per testbed.
//!
//! A [`Row`] is one published number. A [`Shape`] is one published sentence with the numbers in the sentence. Rows and
//! shapes state their experiment, configuration, source and uncertainties. The files are built into the crate, and
//! [`all`] returns the parsed testbeds.
//!
//! ```
//! use doorbell_claims::{Unit, row};
//!
//! let ceiling = row("send-receive/batch-ceiling").ok_or("a row of T1")?;
//! // The source prints Gbit/s, but its number is bit/s divided by 1024^3.
//! assert_eq!(ceiling.value.unit, Unit::Gibit);
//! assert!((ceiling.value.in_unit(Unit::Gb).ok_or("a throughput")? - 1.825).abs() < 0.001);
//! # Ok::<(), &str>(())
//! ```

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

use crate::names::UnknownTestbed;

/// Published figures of one testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Testbed {
    /// Short name, such as T1.
    pub name: String,
    /// The subject of the study.
    pub about: String,
    /// The hardware of the testbed.
    pub hardware: String,
    /// The link's rate per direction, in 10^9 bits per second.
    pub link_gbps: f64,
    /// Unknown facts that concern all figures of the testbed, as sentences.
    pub unknown: Vec<String>,
    /// Sources of figures, by the key in the `source` field of rows and shapes.
    pub sources: BTreeMap<String, String>,
    /// Published numbers.
    pub rows: Vec<Row>,
    /// Published sentences.
    pub shapes: Vec<Shape>,
}

/// One published number.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Identifier, unique over all testbeds.
    pub id: String,
    /// The published fact, as a sentence.
    pub says: String,
    /// Name of the experiment in the form FAMILY/WHAT.
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
    /// Fields of the configuration that the publication does not state, and that were chosen so that a simulation
    /// gives this number. A comparison with the number is then no test.
    pub fitted: Vec<String>,
    /// Key of the source in [`Testbed::sources`].
    pub source: String,
    /// Uncertainties of the published fact, as sentences.
    pub uncertain: Vec<String>,
}

/// One published sentence about the dependence of one quantity on another.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Identifier, unique over all testbeds.
    pub id: String,
    /// The sentence.
    pub says: String,
    /// Name of the experiment in the form FAMILY/WHAT.
    pub experiment: String,
    /// The subject of the measurement.
    pub subject: Subject,
    /// Numbers in the sentence, by a name that ends in the unit.
    pub numbers: BTreeMap<String, f64>,
    /// Configuration of the measurement.
    pub configuration: Configuration,
    /// Key of the source in [`Testbed::sources`].
    pub source: String,
    /// Uncertainties of the published fact, as sentences.
    pub uncertain: Vec<String>,
}

impl Testbed {
    /// Parses the text of a file. `file` is the name of the file in errors.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing, unknown, of the wrong type or out of range. The error names the file,
    /// the row, the field and the allowed values.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, LoadError> {
        load::testbed(file, text)
    }

    /// Returns the published number with this id.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// Returns the published sentence with this id.
    pub fn shape(&self, id: &str) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.id == id)
    }
}

impl Shape {
    /// Returns the number in the sentence with this name.
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

/// Returns the testbed with this short or long name, independent of case.
pub fn testbed(name: &str) -> Option<&'static Testbed> {
    let short = doorbell_data::names(name)?.short;
    all().iter().find(|testbed| testbed.name.eq_ignore_ascii_case(short))
}

/// Returns the testbed with this short or long name, independent of case.
///
/// # Errors
///
/// Returns an error with the names of all testbeds if none has this name.
pub fn known_testbed(name: &str) -> Result<&'static Testbed, UnknownTestbed> {
    testbed(name).ok_or_else(|| UnknownTestbed::new(name))
}

/// Returns the published number with this id.
pub fn row(id: &str) -> Option<&'static Row> {
    all().iter().find_map(|testbed| testbed.row(id))
}

/// Returns the published sentence with this id.
pub fn shape(id: &str) -> Option<&'static Shape> {
    all().iter().find_map(|testbed| testbed.shape(id))
}
