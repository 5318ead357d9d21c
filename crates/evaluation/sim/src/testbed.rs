//! Costs of the parts of a testbed, read from `data/testbeds/*.toml`.
//!
//! A file has a table for each part. Each value in a table has a unit and a source, and may be marked as fitted:
//!
//! ```toml
//! [cpu]
//! post_wr = { value = 1.143, unit = "ns", source = "..." }
//! ```
//!
//! Each value listed by [`Testbed::parameters`] is required, and no other is allowed. Numbers are read as exact
//! decimals: 0.1 ns are 100 ps, without rounding by floating-point arithmetic.

mod fields;
mod load;
#[cfg(test)]
mod tests;
mod unit;

use std::path::Path;
use std::sync::LazyLock;

use doorbell_claims::UnknownTestbed;
use doorbell_output::files;
use doorbell_study::{Failure, Usage};

pub use fields::{Acks, Cpu, Dimension, Forwarding, Link, LockScope, Nic, Pcie, Switch, WhenFull};
use fields::{FIELDS, Field, Groups};
pub(crate) use load::nearest;
pub use load::{SCHEMA, TestbedError};
use unit::Unit;

/// Maximum size of a testbed's file.
const MOST_BYTES: u64 = 1 << 20;

/// A testbed: the costs of each of its parts.
///
/// All nodes are equal, and so are all cables and all switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testbed {
    /// Name on the command line: `connectx5-100g`.
    pub name: String,
    /// Purpose of the testbed.
    pub about: String,
    /// Hardware of the testbed.
    pub hardware: String,
    /// Name in `data/published/*.toml` of the published testbed that this testbed models.
    pub published: Option<String>,
    /// Sentences about assumed, unknown or contradictory facts.
    pub open_points: Vec<String>,
    /// CPU time of a thread for verbs and memory.
    pub cpu: Cpu,
    /// PCIe between the memory of a host and its NIC.
    pub pcie: Pcie,
    /// Costs of the NIC for requests, packets and responses.
    pub nic: Nic,
    /// Properties of each cable.
    pub link: Link,
    /// Properties of each switch.
    pub switch: Switch,
    entries: Vec<Entry>,
}

/// A value from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Number in base units.
    raw: u64,
    /// Unit in the file; `None` for a choice.
    unit: Option<Unit>,
    source: String,
    fitted: bool,
}

/// A value with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Path of the parameter, in the form PART.NAME.
    pub path: String,
    /// Description of the parameter.
    pub about: &'static str,
    /// Dimension of the parameter.
    pub dimension: Dimension,
    /// The number, or the word of a choice.
    pub value: String,
    /// The unit of the number; empty for a count and for a choice.
    pub unit: &'static str,
    /// Description of the allowed values.
    pub allowed: String,
    /// Source of the value.
    pub source: &'a str,
    /// Whether the value was chosen so that simulated rows match published rows.
    pub is_fitted: bool,
}

impl Testbed {
    /// Parses the text of a testbed file. Errors name the file `file`.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is missing, unknown, of the wrong type or unit, or out of range. The error names the
    /// file, the line, the field and the allowed values.
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

    /// Returns all values, in the order of parts and fields.
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

    /// Returns a digest of all values, with 16 hexadecimal digits. Testbeds with the same name and different values
    /// have different digests.
    pub fn digest(&self) -> String {
        // FNV-1a of the output of `parameters`.
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for parameter in self.parameters() {
            for byte in format!("{} {} {}\n", parameter.path, parameter.value, parameter.unit).bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{digest:016x}")
    }

    /// Returns the testbed with one value replaced. The new value has to pass the checks for values of a file.
    ///
    /// `path` is PART.NAME, with or without a unit: `link.rate`, `link.rate_gbps`. `value` is a number, with or
    /// without a unit, or the word of a choice. A number without any unit has the unit of the testbed's file.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such field, or the value is not allowed.
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
                // A text that does not begin with a number has no unit, even if its letters name a unit.
                let (number, named) = match end {
                    0 => (value, ""),
                    _ => (value[..end].trim_end(), value[end..].trim()),
                };
                let unit = match (named, suffix) {
                    ("", suffix) => suffix.unwrap_or(of_file),
                    (named, None) => unit::by_name(named, field.dimension).ok_or_else(|| {
                        let units = unit::names_of(field.dimension);
                        refuse(format!("the unit is \"{named}\", allowed is one of {units}"))
                    })?,
                    (named, Some(suffix)) => {
                        let problem = format!(
                            "the value has the unit \"{named}\" and the name has the unit \"{}\": give only one unit",
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

/// Finds the field of a path, and the unit at the end of the path if there is one.
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

static ALL: LazyLock<Vec<Testbed>> = LazyLock::new(|| {
    let load = |file: &doorbell_data::File| {
        Testbed::from_toml(file.path, file.text)
            .unwrap_or_else(|error| unreachable!("a built-in testbed file is invalid: {error}"))
    };
    doorbell_data::TESTBEDS.iter().map(load).collect()
});

/// Returns the built-in testbeds.
pub fn all() -> &'static [Testbed] {
    &ALL
}

/// Returns the built-in testbed with this short or long name, independent of case.
pub fn by_name(name: &str) -> Option<&'static Testbed> {
    let long = doorbell_data::names(name)?.long;
    all().iter().find(|testbed| testbed.name == long)
}

/// Returns the testbed with this name, or the testbed in the file at this path.
///
/// # Errors
///
/// No testbed has this name, or the file has no valid testbed.
pub fn read(name: &str) -> Result<Testbed, Failure> {
    if let Some(testbed) = by_name(name) {
        return Ok(testbed.clone());
    }
    if !name.contains('/') && !Path::new(name).exists() {
        return Err(Usage(format!("{}, or a file", UnknownTestbed::new(name))).into());
    }
    Ok(Testbed::from_toml(name, &files::read_text(Path::new(name), MOST_BYTES)?)?)
}
