//! Published figures of RDMA message exchange as data: `published/*.toml`, one file per testbed.
//!
//! A [`Row`] is one published number, a [`Shape`] one published sentence with the numbers in it. Each says
//! which experiment it is of, in which configuration it was measured, where it stands, and what about it is
//! uncertain. The files are part of the program; [`all`] has them parsed.
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
    Amount, Configuration, Fence, Operation, Pace, PathMtuSaid, Receivers, Repost, Store, Subject,
};
pub use load::{LoadError, SCHEMA};
pub use quantity::{Dimension, Quantity, Relation, Unit, Value};

/// What was published of one testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Testbed {
    /// Its short name: T1.
    pub name: String,
    /// What was studied on it.
    pub about: String,
    /// What it is made of.
    pub hardware: String,
    /// The link's rate per direction, in 10^9 bits per second.
    pub link_gbps: f64,
    /// What is not known of all its figures: sentences.
    pub unknown: Vec<String>,
    /// Where figures stand, by the word that rows name it with.
    pub sources: BTreeMap<String, String>,
    /// Its numbers.
    pub rows: Vec<Row>,
    /// Its sentences.
    pub shapes: Vec<Shape>,
}

/// One published number.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Names it, over all testbeds.
    pub id: String,
    /// What is published, in a sentence.
    pub says: String,
    /// The experiment that it is of: FAMILY/WHAT.
    pub experiment: String,
    /// What was measured.
    pub subject: Subject,
    /// What the number is.
    pub quantity: Quantity,
    /// How exactly the source puts it.
    pub relation: Relation,
    /// The number as printed.
    pub value: Value,
    /// How it was measured.
    pub configuration: Configuration,
    /// Where it stands: a key of [`Testbed::sources`].
    pub source: String,
    /// What is uncertain: sentences.
    pub uncertain: Vec<String>,
}

/// One published sentence about how something depends on something.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Names it, over all testbeds.
    pub id: String,
    /// The sentence.
    pub says: String,
    /// The experiment that it is of: FAMILY/WHAT.
    pub experiment: String,
    /// What was measured.
    pub subject: Subject,
    /// The numbers in it, by a name that ends in the unit.
    pub numbers: BTreeMap<String, f64>,
    /// How it was measured.
    pub configuration: Configuration,
    /// Where it stands: a key of [`Testbed::sources`].
    pub source: String,
    /// What is uncertain: sentences.
    pub uncertain: Vec<String>,
}

impl Testbed {
    /// Reads a file's text. `file` is how errors call it.
    ///
    /// # Errors
    ///
    /// Something is missing, unknown, of the wrong type or out of range: the file, the row, the field and what is
    /// allowed.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, LoadError> {
        load::testbed(file, text)
    }

    /// The number of this id.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// The sentence of this id.
    pub fn shape(&self, id: &str) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.id == id)
    }
}

impl Shape {
    /// A number in the sentence.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }
}

/// The files, as they are built into the program.
const FILES: [(&str, &str); 3] = [
    ("published/t1.toml", include_str!("../data/t1.toml")),
    ("published/t2.toml", include_str!("../data/t2.toml")),
    ("published/t3.toml", include_str!("../data/t3.toml")),
];

static ALL: LazyLock<Vec<Testbed>> = LazyLock::new(|| {
    let load = |(file, text)| {
        Testbed::from_toml(file, text).unwrap_or_else(|error| unreachable!("the file is part of the crate: {error}"))
    };
    FILES.into_iter().map(load).collect()
});

/// All testbeds.
pub fn all() -> &'static [Testbed] {
    &ALL
}

/// The testbed of this name, in capitals or not.
pub fn testbed(name: &str) -> Option<&'static Testbed> {
    all().iter().find(|testbed| testbed.name.eq_ignore_ascii_case(name))
}

/// The number of this id.
pub fn row(id: &str) -> Option<&'static Row> {
    all().iter().find_map(|testbed| testbed.row(id))
}

/// The sentence of this id.
pub fn shape(id: &str) -> Option<&'static Shape> {
    all().iter().find_map(|testbed| testbed.shape(id))
}
