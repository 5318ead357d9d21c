//! Parser and validation of a file of published figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value as Toml};

use super::configuration::{FIELDS, Range};
use super::{
    Amount, Configuration, PublishedOperation, Quantity, Relation, Row, Shape, Store, Subject, Testbed, Unit, Value,
};

/// Schema of a file of published figures.
pub const SCHEMA: &str = "doorbell-published/1";

/// Maximum depth of a chain of configurations in which each inherits the fields of the next.
const DEEPEST: usize = 8;
/// Maximum value of a number in a row or a sentence.
const LARGEST: f64 = 1e15;

/// Error for a rejected file of published figures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {place}: {problem}")]
pub struct LoadError {
    /// Name of the file.
    pub file: String,
    /// Row and field, or number of the line, where the defect is.
    pub place: String,
    /// Description of the defect, and the allowed values.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[expect(dead_code, reason = "read before everything else, since it says what to expect")]
    schema: String,
    testbed: String,
    about: String,
    hardware: String,
    link_gbps: f64,
    unknown: Vec<String>,
    sources: BTreeMap<String, String>,
    configurations: BTreeMap<String, Table>,
    row: Vec<Table>,
    shape: Vec<Table>,
}

/// Common fields of a row and a sentence.
#[derive(Deserialize)]
struct Common {
    id: String,
    says: String,
    experiment: String,
    protocol: Option<String>,
    operation: Option<PublishedOperation>,
    store: Option<Store>,
    configuration: Table,
    source: String,
    uncertain: Vec<String>,
}

const COMMON: [&str; 9] =
    ["id", "says", "experiment", "protocol", "operation", "store", "configuration", "source", "uncertain"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    quantity: Quantity,
    relation: Relation,
    value: f64,
    unit: Unit,
    #[serde(default)]
    fitted: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    numbers: BTreeMap<String, f64>,
}

struct Loader<'a> {
    file: &'a str,
    sources: &'a BTreeMap<String, String>,
    configurations: &'a BTreeMap<String, Table>,
    ids: BTreeSet<String>,
}

pub(crate) fn testbed(file: &str, text: &str) -> Result<Testbed, LoadError> {
    let refuse = |place: &str, problem: String| LoadError { file: file.to_owned(), place: place.to_owned(), problem };
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        refuse(&format!("line {line}"), error.message().to_owned())
    })?;
    match table.get("schema") {
        Some(Toml::String(schema)) if schema == SCHEMA => {}
        Some(other) => return Err(refuse("schema", format!("it is {other}, allowed is \"{SCHEMA}\""))),
        None => return Err(refuse("schema", format!("it is missing, allowed is \"{SCHEMA}\""))),
    }
    let File { testbed, about, hardware, link_gbps, unknown, sources, configurations, row, shape, .. } =
        typed(file, "", Toml::Table(table))?;
    for (field, text) in [("testbed", &testbed), ("about", &about), ("hardware", &hardware)] {
        if text.trim().is_empty() {
            return Err(refuse(field, "it is empty, allowed is a text".to_owned()));
        }
    }
    if !(0.001..=1e6).contains(&link_gbps) {
        return Err(refuse("link_gbps", format!("it is {link_gbps}, allowed is 0.001 to 1000000")));
    }
    let mut loader = Loader { file, sources: &sources, configurations: &configurations, ids: BTreeSet::new() };
    let rows = row.into_iter().enumerate().map(|(index, table)| loader.row(index, table)).collect::<Result<_, _>>()?;
    let shapes =
        shape.into_iter().enumerate().map(|(index, table)| loader.shape(index, table)).collect::<Result<_, _>>()?;
    Ok(Testbed { name: testbed, about, hardware, link_gbps, unknown, sources, rows, shapes })
}

/// Converts a TOML value into a type. Errors name the field.
fn typed<T: DeserializeOwned>(file: &str, within: &str, value: Toml) -> Result<T, LoadError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let place = match (within, path.as_str()) {
            ("", ".") => "the file".to_owned(),
            ("", path) => path.to_owned(),
            (within, ".") => within.to_owned(),
            (within, path) => format!("{within}: {path}"),
        };
        LoadError { file: file.to_owned(), place, problem: error.inner().message().to_owned() }
    })
}

impl Loader<'_> {
    fn refuse(&self, place: &str, field: &str, problem: String) -> LoadError {
        LoadError { file: self.file.to_owned(), place: format!("{place}: {field}"), problem }
    }

    fn row(&mut self, index: usize, table: Table) -> Result<Row, LoadError> {
        let (place, common, own) = self.common("row", index, table)?;
        let (subject, configuration) = self.subject(&place, &common)?;
        let Number { quantity, relation, value, unit, fitted } = typed(self.file, &place, Toml::Table(own))?;
        if !(value.is_finite() && value > 0.0 && value <= LARGEST) {
            return Err(self.refuse(&place, "value", format!("it is {value}, allowed is above 0 to {LARGEST}")));
        }
        if unit.dimension() != quantity.dimension() {
            let problem = format!("it is \"{unit}\", which does not measure {:?}", quantity.dimension());
            return Err(self.refuse(&place, "unit", problem));
        }
        let is_stated =
            |name: &String| FIELDS.iter().any(|field| field.name == name && (field.is_there)(&configuration));
        if let Some(name) = fitted.iter().find(|name| !is_stated(name)) {
            let problem = format!("it has \"{name}\", allowed are fields of the row's configuration");
            return Err(self.refuse(&place, "fitted", problem));
        }
        let Common { id, says, experiment, source, uncertain, .. } = common;
        let value = Value { number: value, unit };
        Ok(Row { id, says, experiment, subject, quantity, relation, value, configuration, fitted, source, uncertain })
    }

    fn shape(&mut self, index: usize, table: Table) -> Result<Shape, LoadError> {
        let (place, common, own) = self.common("shape", index, table)?;
        let (subject, configuration) = self.subject(&place, &common)?;
        let Numbers { numbers } = typed(self.file, &place, Toml::Table(own))?;
        for (name, number) in &numbers {
            if !(number.is_finite() && *number > 0.0 && *number <= LARGEST) {
                let field = format!("numbers.{name}");
                return Err(self.refuse(&place, &field, format!("it is {number}, allowed is above 0 to {LARGEST}")));
            }
        }
        let Common { id, says, experiment, source, uncertain, .. } = common;
        Ok(Shape { id, says, experiment, subject, numbers, configuration, source, uncertain })
    }

    /// Splits a row or a sentence into the common fields and the other fields.
    fn common(&mut self, kind: &str, index: usize, mut table: Table) -> Result<(String, Common, Table), LoadError> {
        let place = match table.get("id").and_then(Toml::as_str) {
            Some(id) => format!("{kind} {id}"),
            None => format!("{kind} {} of the file", index + 1),
        };
        let common: Table = COMMON.iter().filter_map(|field| table.remove_entry(*field)).collect();
        let common: Common = typed(self.file, &place, Toml::Table(common))?;
        for (field, text) in [("id", &common.id), ("says", &common.says)] {
            if text.trim().is_empty() {
                return Err(self.refuse(&place, field, "it is empty, allowed is a text".to_owned()));
            }
        }
        for (field, name) in [("id", &common.id), ("experiment", &common.experiment)] {
            let is_name = |part: &str| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            };
            if !name.split_once('/').is_some_and(|(family, what)| is_name(family) && is_name(what)) {
                let problem = format!("it is \"{name}\", allowed is FAMILY/WHAT in small letters, digits and dashes");
                return Err(self.refuse(&place, field, problem));
            }
        }
        if !self.ids.insert(common.id.clone()) {
            return Err(self.refuse(&place, "id", "another row or shape has it too".to_owned()));
        }
        if !self.sources.contains_key(&common.source) {
            let problem = format!("it is \"{}\", allowed is {}", common.source, words(self.sources.keys()));
            return Err(self.refuse(&place, "source", problem));
        }
        Ok((place, common, table))
    }

    fn subject(&self, place: &str, common: &Common) -> Result<(Subject, Configuration), LoadError> {
        let subject = match (&common.protocol, common.operation, common.store) {
            (Some(name), None, None) => Subject::Protocol(name.clone()),
            (None, Some(operation), None) => Subject::Operation(operation),
            (None, None, Some(store)) => Subject::Store(store),
            _ => {
                let problem = "exactly one of protocol, operation and store must be given".to_owned();
                return Err(self.refuse(place, "protocol", problem));
            }
        };
        let table = self.resolve(place, &common.configuration, 0)?;
        let configuration: Configuration = typed(self.file, &format!("{place}: configuration"), Toml::Table(table))?;
        let (required, optional) = subject.fields();
        for field in &FIELDS {
            let (is_required, is_there) = (required.contains(&field.name), (field.is_there)(&configuration));
            let name = format!("configuration.{}", field.name);
            if is_required && !is_there {
                return Err(self.refuse(place, &name, format!("it is missing: {} has one", subject.name())));
            }
            if is_there && !is_required && !optional.contains(&field.name) {
                let problem =
                    format!("{} has none, allowed is {}", subject.name(), words(required.iter().chain(optional)));
                return Err(self.refuse(place, &name, problem));
            }
            let Some(Range { of, least, most, is_whole }) = field.amount else { continue };
            let numbers = match of(&configuration) {
                None | Some(Amount::Unknown) => continue,
                Some(Amount::Is(number)) => [number, number],
                Some(Amount::Span(from, to)) => [from, to],
            };
            let is_allowed = |number: &f64| (least..=most).contains(number) && (!is_whole || number.fract() == 0.0);
            if !numbers.iter().all(is_allowed) || numbers[0] > numbers[1] {
                let whole = if is_whole { "whole numbers of " } else { "" };
                let [from, to] = numbers;
                let problem = format!("it is {from} to {to}, allowed is {whole}{least} to {most}, the least first");
                return Err(self.refuse(place, &name, problem));
            }
        }
        Ok((subject, configuration))
    }

    /// Returns a configuration with the fields that it inherits.
    fn resolve(&self, place: &str, table: &Table, depth: usize) -> Result<Table, LoadError> {
        let mut table = table.clone();
        let Some(like) = table.remove("like") else { return Ok(table) };
        let base = like.as_str().and_then(|name| self.configurations.get(name)).filter(|_| depth < DEEPEST);
        let Some(base) = base else {
            let names = words(self.configurations.keys());
            let problem = format!("it is {like}, allowed is {names}, {DEEPEST} deep at most");
            return Err(self.refuse(place, "configuration.like", problem));
        };
        let mut resolved = self.resolve(place, base, depth + 1)?;
        resolved.extend(table);
        Ok(resolved)
    }
}

fn words<S: std::fmt::Display>(names: impl Iterator<Item = S>) -> String {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}
