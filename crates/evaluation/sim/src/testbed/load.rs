//! Parser of testbed files, which checks all values. Errors name the file, the line, the field and the allowed
//! values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::{Dimension, FIELDS, Field, Groups};
use super::unit::{self, NoNumber, Unit};
use super::{Entry, Testbed};

/// Value of the field `schema` in testbed files.
pub const SCHEMA: &str = "doorbell-testbed/1";
/// Value of the field `schema` in hardware files.
const HARDWARE_SCHEMA: &str = "doorbell-hardware/1";

/// Maximum size of a file in bytes, about a hundred times the size of a file with all fields.
const LONGEST: usize = 1 << 20;

/// Error of an invalid testbed file or replaced value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {field}: {problem}")]
pub struct TestbedError {
    /// File and line, or the source of the replaced value.
    pub place: String,
    /// Name of the field.
    pub field: String,
    /// The problem and the allowed values.
    pub problem: String,
}

/// Text fields outside the groups.
const TEXTS: [&str; 4] = ["schema", "name", "about", "hardware"];
const LISTS: [&str; 1] = ["open_points"];
const OPTIONAL: [&str; 2] = ["published", "parts"];
/// Text fields of hardware.
const HARDWARE_TEXTS: [&str; 2] = ["schema", "about"];
const ENTRY: [&str; 4] = ["value", "unit", "source", "fitted"];

/// A file whose layout was checked.
struct Layer<'a> {
    reader: Reader<'a>,
    table: DeTable<'a>,
}

impl<'a> Layer<'a> {
    /// Parses a file and checks that its schema is `schema`. The file may have all groups, and the fields `others`
    /// outside the groups.
    fn new(file: &'a str, text: &'a str, schema: &str, others: &[&str]) -> Result<Self, TestbedError> {
        let reader = Reader { file, text };
        if text.len() > LONGEST {
            return Err(reader.refuse(
                0,
                "the file",
                format!("the size is {} bytes, allowed are {LONGEST}", text.len()),
            ));
        }
        let table = DeTable::parse(text)
            .map_err(|error| {
                let at = error.span().map_or(0, |span| span.start);
                reader.refuse(at, "the file", format!("the text is no TOML: {}", error.message()))
            })?
            .into_inner();
        let given = reader.text(&table, "schema")?;
        if given != schema {
            let at = table.get("schema").map_or(0, |value| value.span().start);
            return Err(reader.refuse(at, "schema", format!("the value is \"{given}\", allowed is \"{schema}\"")));
        }
        let mut groups: Vec<&str> = FIELDS.iter().map(|field| field.group).collect();
        groups.dedup();
        reader.only(&table, "", &[others, &groups].concat())?;
        for group in groups.into_iter().filter(|group| table.contains_key(*group)) {
            let names: Vec<&str> = FIELDS.iter().filter(|it| it.group == group).map(|it| it.name).collect();
            let (_, of_group) = reader.table(&table, group)?;
            reader.only(of_group, &format!("{group}."), &names)?;
        }
        Ok(Self { reader, table })
    }

    /// Parses the built-in hardware file with this name. Returns `None` if there is no such file.
    fn hardware(name: &str) -> Option<Result<Self, TestbedError>> {
        let file = doorbell_data::HARDWARE.iter().find(|file| file.name == name)?;
        Some(Layer::new(file.path, file.text, HARDWARE_SCHEMA, &HARDWARE_TEXTS))
    }

    fn has(&self, field: &Field) -> bool {
        self.reader.table(&self.table, field.group).is_ok_and(|(_, group)| group.contains_key(field.name))
    }

    /// Parses all hardware files that the field `parts` of this file names.
    fn parts(&self) -> Result<Vec<Layer<'static>>, TestbedError> {
        let Some(list) = self.table.get("parts") else { return Ok(Vec::new()) };
        let refuse = |problem| self.reader.refuse(list.span().start, "parts", problem);
        let names = self.reader.texts(&self.table, "parts")?;
        let mut parts: Vec<Layer<'static>> = Vec::new();
        for name in names {
            let known = doorbell_data::HARDWARE.iter().map(|file| file.name);
            let part = Layer::hardware(&name)
                .ok_or_else(|| refuse(format!("there is no hardware \"{name}\"; {}", nearest(&name, known))))??;
            let twice = FIELDS.iter().find(|field| part.has(field) && parts.iter().any(|earlier| earlier.has(field)));
            if let Some(field) = twice {
                return Err(refuse(format!("two parts have {}, allowed is one part", field.path())));
            }
            parts.push(part);
        }
        Ok(parts)
    }
}

pub(super) fn testbed(file: &str, text: &str) -> Result<Testbed, TestbedError> {
    let own = Layer::new(file, text, SCHEMA, &[&TEXTS[..], &LISTS, &OPTIONAL].concat())?;
    let parts = own.parts()?;
    // The testbed's own values replace the values of its hardware.
    let layer_of = |field: &Field| {
        if own.has(field) { &own } else { parts.iter().find(|part| part.has(field)).unwrap_or(&own) }
    };
    let entry = |field| {
        let Layer { reader, table } = layer_of(field);
        reader.entry(table, field)
    };
    let entries = FIELDS.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    let groups = build(&entries).map_err(|(index, problem)| {
        let field = &FIELDS[index];
        let Layer { reader, table } = layer_of(field);
        reader.refuse(reader.at_field(table, field), &field.path(), problem)
    })?;
    let Layer { reader, table } = &own;
    let published = match table.get("published") {
        Some(_) => Some(reader.text(table, "published")?),
        None => None,
    };
    let open_points = reader.texts(table, "open_points")?;
    let (name, about, hardware) =
        (reader.text(table, "name")?, reader.text(table, "about")?, reader.text(table, "hardware")?);
    Ok(Testbed::new(name, about, hardware, published, open_points, entries, groups))
}

/// Builds the groups from the values. The error has the index of a value that contradicts another value, and the
/// reason.
pub(super) fn build(entries: &[Entry]) -> Result<Groups, (usize, String)> {
    let raw: Vec<u64> = entries.iter().map(|entry| entry.raw).collect();
    let groups = Groups::from_raw(&raw).map_err(|index| (index, format!("allowed is {}", allowed(&FIELDS[index]))))?;
    let index_of = |group: &str, name: &str| {
        FIELDS.iter().position(|field| field.group == group && field.name == name).unwrap_or_default()
    };
    let switch = &groups.switch;
    if switch.pause_at > switch.queue {
        let problem =
            format!("the value is {} B, allowed is at most switch.queue, {} B", switch.pause_at, switch.queue);
        return Err((index_of("switch", "pause_at"), problem));
    }
    if switch.resume_at > switch.pause_at {
        let problem =
            format!("the value is {} B, allowed is at most switch.pause_at, {} B", switch.resume_at, switch.pause_at);
        return Err((index_of("switch", "resume_at"), problem));
    }
    Ok(groups)
}

/// Describes the allowed values of a field.
pub(super) fn allowed(field: &Field) -> String {
    if !field.words.is_empty() {
        return match field.dimension {
            Dimension::Choice => format!("one of \"{}\"", field.words.join("\", \"")),
            _ => format!("one of {} B", field.words.join(", ")),
        };
    }
    let words = |base| unit::words(field.dimension, base);
    format!("{} to {}", words(field.least), words(field.most))
}

/// Converts a number of a field to base units. The error states the problem.
pub(super) fn number(field: &Field, written: &str, unit: Unit) -> Result<u64, String> {
    let shown = if field.dimension == Dimension::Count { String::new() } else { format!(" {}", unit.name) };
    let range = allowed(field);
    let raw = unit.base_of(written).map_err(|why| match why {
        NoNumber::NotANumber => format!("{written} is no decimal number, allowed is {range}"),
        NoNumber::Negative => format!("the value is {written}{shown}, which is negative; allowed is {range}"),
        NoNumber::TooLarge => format!("the value is {written}{shown}, allowed is {range}"),
        NoNumber::TooFine => {
            let finest = unit::units_of(field.dimension).next().map_or("one", |unit| unit.name);
            format!("the value is {written}{shown}, allowed are whole numbers of {finest}, {range}")
        }
    })?;
    let is_word = field.words.is_empty() || field.words.iter().any(|word| *word == raw.to_string());
    if !(field.least..=field.most).contains(&raw) || !is_word {
        return Err(format!("the value is {written}{shown}, allowed is {range}"));
    }
    Ok(raw)
}

/// Converts a word of a choice to its index.
pub(super) fn word(field: &Field, written: &str) -> Result<u64, String> {
    let found = field.words.iter().position(|word| *word == written);
    let index = found.ok_or_else(|| format!("the value is \"{written}\", allowed is {}", allowed(field)))?;
    u64::try_from(index).map_err(|_| format!("allowed is {}", allowed(field)))
}

/// Returns the error text for an unknown name.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    format!("there is no such field; {}", nearest(name, known))
}

/// Returns text with the name that the user probably meant, or with all names.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let distance = |other: &&str| strsim::damerau_levenshtein(name, other);
    // If more than half of the letters differ, the user probably meant another name.
    let nearest = known.clone().min_by_key(distance).filter(|other| 2 * distance(other) <= name.len().max(other.len()));
    match nearest {
        Some(nearest) => format!("the nearest is {nearest}"),
        None => format!("allowed is {}", known.collect::<Vec<_>>().join(", ")),
    }
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn refuse(&self, at: usize, field: &str, problem: String) -> TestbedError {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        TestbedError { place: format!("{}:{line}", self.file), field: field.to_owned(), problem }
    }

    fn wrong_type(&self, value: &Value<'_>, field: &str, expected: &str) -> TestbedError {
        let problem = format!("the value is {}, allowed is {expected}", a(value.get_ref().type_str()));
        self.refuse(value.span().start, field, problem)
    }

    fn only(&self, table: &DeTable<'_>, within: &str, known: &[&str]) -> Result<(), TestbedError> {
        let is_unknown = |key: &str| !known.contains(&key);
        // Take the first unknown key in the file; the table has no order.
        let strange = table.keys().filter(|key| is_unknown(key.get_ref())).min_by_key(|key| key.span().start);
        strange.map_or(Ok(()), |key| {
            let field = format!("{within}{}", key.get_ref());
            Err(self.refuse(key.span().start, &field, unknown(key.get_ref(), known.iter().copied())))
        })
    }

    fn needed<'t, 'v>(
        &self,
        table: &'t DeTable<'v>,
        at: usize,
        path: &str,
        name: &str,
        expected: &str,
    ) -> Result<&'t Value<'v>, TestbedError> {
        table.get(name).ok_or_else(|| self.refuse(at, path, format!("the field is missing, allowed is {expected}")))
    }

    fn text(&self, table: &DeTable<'_>, name: &str) -> Result<String, TestbedError> {
        let value = self.needed(table, 0, name, name, "a text")?;
        let text = value.get_ref().as_str().ok_or_else(|| self.wrong_type(value, name, "a text"))?;
        if text.trim().is_empty() {
            return Err(self.refuse(value.span().start, name, "the text is empty, which is not allowed".to_owned()));
        }
        Ok(text.to_owned())
    }

    fn texts(&self, table: &DeTable<'_>, name: &str) -> Result<Vec<String>, TestbedError> {
        let expected = "a list of texts";
        let value = self.needed(table, 0, name, name, expected)?;
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong_type(value, name, expected))?;
        let text = |value: &Value<'_>| {
            value.get_ref().as_str().map(str::to_owned).ok_or_else(|| self.wrong_type(value, name, "a text"))
        };
        list.iter().map(text).collect()
    }

    fn table<'t, 'v>(&self, table: &'t DeTable<'v>, name: &str) -> Result<(usize, &'t DeTable<'v>), TestbedError> {
        let value = self.needed(table, 0, name, name, "a table of values")?;
        let inner = value.get_ref().as_table().ok_or_else(|| self.wrong_type(value, name, "a table of values"))?;
        Ok((value.span().start, inner))
    }

    /// Returns the position of a field, or of its group if the field is missing.
    fn at_field(&self, table: &DeTable<'_>, field: &Field) -> usize {
        let Ok((start, group)) = self.table(table, field.group) else { return 0 };
        group.get(field.name).map_or(start, |value| value.span().start)
    }

    fn entry(&self, table: &DeTable<'_>, field: &Field) -> Result<Entry, TestbedError> {
        let path = field.path();
        let (start, group) = self.table(table, field.group)?;
        let expected = match field.dimension {
            Dimension::Choice => format!("{{ value = {}, source = \"...\" }}", allowed(field)),
            dimension => {
                let units = unit::names_of(dimension);
                format!("{{ value = {}, unit = one of {units}, source = \"...\" }}", allowed(field))
            }
        };
        let value = self.needed(group, start, &path, field.name, &expected)?;
        let at = value.span().start;
        let inner = value.get_ref().as_table().ok_or_else(|| self.wrong_type(value, &path, &expected))?;
        self.only(inner, &format!("{path}."), &ENTRY)?;

        let source_path = format!("{path}.source");
        let source = self.needed(inner, at, &source_path, "source", "a sentence that says where the value is from")?;
        let source = match source.get_ref().as_str() {
            Some(text) if !text.trim().is_empty() => text.to_owned(),
            _ => return Err(self.wrong_type(source, &source_path, "a sentence that says where the value is from")),
        };
        let fitted = match inner.get("fitted") {
            None => false,
            Some(value) => value
                .get_ref()
                .as_bool()
                .ok_or_else(|| self.wrong_type(value, &format!("{path}.fitted"), "true or false"))?,
        };
        let given = self.needed(inner, at, &format!("{path}.value"), "value", &allowed(field))?;
        let refuse = |problem| self.refuse(given.span().start, &path, problem);
        let unit_path = format!("{path}.unit");
        if field.dimension == Dimension::Choice {
            if let Some(unit) = inner.get("unit") {
                let problem = "a choice has no unit, so none is allowed here".to_owned();
                return Err(self.refuse(unit.span().start, &unit_path, problem));
            }
            let written = given.get_ref().as_str().ok_or_else(|| self.wrong_type(given, &path, &allowed(field)))?;
            let raw = word(field, written).map_err(refuse)?;
            return Ok(Entry { raw, unit: None, source, fitted });
        }
        let units = unit::names_of(field.dimension);
        let unit = self.needed(inner, at, &unit_path, "unit", &units)?;
        let named = unit.get_ref().as_str().ok_or_else(|| self.wrong_type(unit, &unit_path, &units))?;
        let unit = unit::by_name(named, field.dimension).ok_or_else(|| {
            let measures = format!("the unit is \"{named}\", allowed is one of {units}");
            self.refuse(unit.span().start, &unit_path, measures)
        })?;
        let written = match given.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            _ => return Err(self.wrong_type(given, &path, &format!("a decimal number, {}", allowed(field)))),
        };
        let raw = number(field, written, unit).map_err(refuse)?;
        Ok(Entry { raw, unit: Some(unit), source, fitted })
    }
}

/// Returns the name of a type with its article.
fn a(name: &str) -> String {
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}
