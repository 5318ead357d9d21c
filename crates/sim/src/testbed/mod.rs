//! What a testbed's parts need, from `testbeds/*.toml`.
//!
//! A file has a table for each part, and in it each value with its unit, its source and whether it was fitted:
//!
//! ```toml
//! [cpu]
//! post_wr = { value = 1.143, unit = "ns", source = "..." }
//! ```
//!
//! Every value is needed, and none but those that [`Testbed::parameters`] lists is allowed. Numbers are read as
//! decimals: 0.1 ns are 100 ps, and not what a floating-point number makes of it.

mod fields;
mod load;
#[cfg(test)]
mod tests;
mod unit;

use std::sync::LazyLock;

pub use fields::{Cpu, Dimension, Forwarding, Link, LockScope, Nic, Pcie, Switch, WhenFull};
use fields::{FIELDS, Field, Groups};
pub(crate) use load::nearest;
pub use load::{SCHEMA, TestbedError};
use unit::Unit;

/// A testbed: what each of its parts needs.
///
/// All its nodes are equal, and so are its cables and its switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testbed {
    /// Its name on the command line: `connectx5-100g`.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// What it is made of.
    pub hardware: String,
    /// The published testbed that it stands for, by the name in `published/*.toml`.
    pub published: Option<String>,
    /// What is assumed, unknown or contradictory: sentences.
    pub open_points: Vec<String>,
    /// What a thread spends on verbs and memory.
    pub cpu: Cpu,
    /// What lies between a host's memory and its NIC.
    pub pcie: Pcie,
    /// What the NIC needs for requests, packets and answers.
    pub nic: Nic,
    /// Each cable.
    pub link: Link,
    /// Each switch.
    pub switch: Switch,
    entries: Vec<Entry>,
}

/// A value as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// In base units.
    raw: u64,
    /// `None` for a choice.
    unit: Option<Unit>,
    source: String,
    fitted: bool,
}

/// A value with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// PART.NAME.
    pub path: String,
    /// What it is, in words.
    pub about: &'static str,
    /// What it measures.
    pub dimension: Dimension,
    /// The number, or the word of a choice.
    pub value: String,
    /// The unit of the number; empty for a count and for a choice.
    pub unit: &'static str,
    /// What is allowed, in words.
    pub allowed: String,
    /// Where it is from.
    pub source: &'a str,
    /// It was chosen so that simulated rows come out as published ones.
    pub is_fitted: bool,
}

impl Testbed {
    /// Reads a file's text. `file` is how errors call it.
    ///
    /// # Errors
    ///
    /// Something is missing, unknown, of the wrong type or unit, or out of range: the file, the line, the field and
    /// what is allowed.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, TestbedError> {
        load::testbed(file, text)
    }

    fn new(
        name: String,
        about: String,
        hardware: String,
        published: Option<String>,
        open_points: Vec<String>,
        entries: Vec<Entry>,
        groups: Groups,
    ) -> Self {
        let Groups { cpu, pcie, nic, link, switch } = groups;
        Self { name, about, hardware, published, open_points, cpu, pcie, nic, link, switch, entries }
    }

    /// All values, in the order of parts and fields.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
        FIELDS.iter().zip(&self.entries).map(|(field, entry)| {
            let (value, unit) = match entry.unit {
                Some(unit) if field.dimension == Dimension::Count => (unit.number_of(entry.raw), ""),
                Some(unit) => (unit.number_of(entry.raw), unit.name),
                None => {
                    let word = usize::try_from(entry.raw).ok().and_then(|index| field.words.get(index));
                    (word.copied().unwrap_or_default().to_owned(), "")
                }
            };
            Parameter {
                path: field.path(),
                about: field.doc.trim(),
                dimension: field.dimension,
                value,
                unit,
                allowed: load::allowed(field),
                source: &entry.source,
                is_fitted: entry.fitted,
            }
        })
    }

    /// A number of 16 digits that differs where any value does: of two testbeds with one name, say.
    pub fn digest(&self) -> String {
        // FNV-1a, of what `parameters` prints.
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for parameter in self.parameters() {
            for byte in format!("{} {} {}\n", parameter.path, parameter.value, parameter.unit).bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{digest:016x}")
    }

    /// The same testbed with another value, under the checks that files are under.
    ///
    /// `path` is PART.NAME, with or without a unit: `link.rate`, `link.rate_gbps`. `value` is a number, with or
    /// without a unit, or the word of a choice. Without any unit the number has the one of the testbed's file.
    ///
    /// # Errors
    ///
    /// There is no such field, or the value is not allowed.
    pub fn with(&self, path: &str, value: &str) -> Result<Self, TestbedError> {
        let refuse = |problem| TestbedError { place: self.name.clone(), field: path.to_owned(), problem };
        let (index, suffix) = find(path).ok_or_else(|| {
            let paths: Vec<String> = FIELDS.iter().map(Field::path).collect();
            refuse(load::unknown(path, paths.iter().map(String::as_str)))
        })?;
        let (field, entry) = (&FIELDS[index], &self.entries[index]);
        let value = value.trim();
        let (raw, unit) = match entry.unit {
            None => (load::word(field, value).map_err(refuse)?, None),
            Some(of_file) => {
                let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_');
                let end = value.find(|c: char| !is_of_number(c) && !matches!(c, 'e' | 'E')).unwrap_or(value.len());
                // What does not begin as a number is none, whatever its letters would name.
                let (number, named) = match end {
                    0 => (value, ""),
                    _ => (value[..end].trim_end(), value[end..].trim()),
                };
                let unit = match (named, suffix) {
                    ("", suffix) => suffix.unwrap_or(of_file),
                    (named, None) => unit::by_name(named, field.dimension).ok_or_else(|| {
                        let units = unit::names_of(field.dimension);
                        refuse(format!("it has the unit \"{named}\", allowed is one of {units}"))
                    })?,
                    (named, Some(suffix)) => {
                        let problem = format!(
                            "the value has the unit \"{named}\" and the name has the unit \"{}\": give one of them",
                            suffix.name
                        );
                        return Err(refuse(problem));
                    }
                };
                (load::number(field, number, unit).map_err(refuse)?, Some(unit))
            }
        };
        let mut entries = self.entries.clone();
        entries[index] = Entry { raw, unit, source: "Given in place of the file's value.".to_owned(), fitted: false };
        let groups = load::build(&entries).map_err(|(index, problem)| TestbedError {
            place: self.name.clone(),
            field: FIELDS[index].path(),
            problem,
        })?;
        let Self { name, about, hardware, published, open_points, .. } = self.clone();
        Ok(Self::new(name, about, hardware, published, open_points, entries, groups))
    }
}

/// The field of a path, and the unit behind its name if there is one.
fn find(path: &str) -> Option<(usize, Option<Unit>)> {
    let (group, name) = path.split_once('.')?;
    FIELDS.iter().enumerate().filter(|(_, field)| field.group == group).find_map(|(index, field)| {
        let rest = name.strip_prefix(field.name)?;
        if rest.is_empty() {
            return Some((index, None));
        }
        let suffix = rest.strip_prefix('_')?;
        unit::units_of(field.dimension).find(|unit| unit.suffix == suffix).map(|unit| (index, Some(unit)))
    })
}

/// The files, as they are built into the program.
const FILES: [(&str, &str); 3] = [
    ("testbeds/connectx5-100g.toml", include_str!("../../data/connectx5-100g.toml")),
    ("testbeds/counters-100g.toml", include_str!("../../data/counters-100g.toml")),
    ("testbeds/connectx5-100g-far.toml", include_str!("../../data/connectx5-100g-far.toml")),
];

static ALL: LazyLock<Vec<Testbed>> = LazyLock::new(|| {
    let load = |(file, text)| {
        Testbed::from_toml(file, text).unwrap_or_else(|error| unreachable!("the file is part of the crate: {error}"))
    };
    FILES.into_iter().map(load).collect()
});

/// The testbeds that are part of the program.
pub fn all() -> &'static [Testbed] {
    &ALL
}

/// The testbed of this name.
pub fn by_name(name: &str) -> Option<&'static Testbed> {
    all().iter().find(|testbed| testbed.name == name)
}
