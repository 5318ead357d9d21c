//! Settings of a measurement.
//!
//! [`SETTINGS`] has one entry for each setting. Ranges and their errors, options of commands, sweeps, and the reasons
//! why the model leaves a result out derive from it.

mod table;

use std::fmt;

use serde_json::Value as Json;

use crate::parameters::Parameters;
use crate::words::{Kind, Operation};

pub use table::*;

/// Value of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Whole number.
    Whole(u64),
    /// Real number.
    Real(f64),
    /// Index of a word in [`Range::Words`].
    Word(usize),
    /// Whether something is on.
    On(bool),
}

impl Value {
    /// Returns the value as a number; 0 for a word.
    pub fn number(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
            Self::Word(_) | Self::On(_) => 0.0,
        }
    }

    /// Returns the whole number or the index; 0 for other values.
    pub fn whole(self) -> u64 {
        match self {
            Self::Whole(number) => number,
            Self::Word(index) => index as u64,
            Self::Real(_) | Self::On(_) => 0,
        }
    }
}

/// Allowed values of a setting.
#[derive(Clone, Copy)]
pub enum Range {
    /// Whole numbers from the first to the second.
    Whole(u64, u64),
    /// Real numbers from the first to the second.
    Real(f64, f64),
    /// One of several whole numbers.
    OneOf(&'static [u64]),
    /// One of several words.
    Words(fn() -> Vec<&'static str>),
    /// On or off.
    OnOff,
}

/// Option of a command, with which the user gives a setting.
#[derive(Clone, Copy, Debug)]
pub struct CommandOption {
    /// Short name.
    pub short: Option<char>,
    /// Long name.
    pub long: &'static str,
    /// Name of the value in the help. An option without value turns the setting on, or off if it is on by default.
    pub value: Option<&'static str>,
    /// Default value. An option without default is left to the command.
    pub default: Option<&'static str>,
    /// Remainder of the help after [`Setting::about`].
    pub note: &'static str,
    /// Heading in the help.
    pub heading: &'static str,
}

/// Setting of `P`.
pub struct Setting<P: 'static = Parameters> {
    /// Name in errors, as in "the window".
    pub name: &'static str,
    /// Name in JSON. A dot separates the names of nested objects.
    pub field: &'static str,
    /// Description in help texts.
    pub about: &'static str,
    /// Unit of the value. A unit after a number begins with a space.
    pub unit: &'static str,
    /// Allowed values.
    pub range: Range,
    /// Upper bound that depends on other settings.
    pub bound: Option<fn(&P) -> u64>,
    /// Option of a measurement.
    pub option: Option<CommandOption>,
    /// Name in sweeps. A setting without name cannot be swept.
    pub sweep: Option<&'static str>,
    /// Reason why the model predicts no result of which the setting differs from its default.
    pub unmodelled: Option<&'static str>,
    /// Returns the values. An absent setting has none.
    pub get: fn(&P) -> Vec<Value>,
    /// Changes the value. [`set`](Self::set) checks the range before.
    pub put: fn(&mut P, Value),
}

impl<P> Setting<P> {
    /// Returns a setting that only errors name.
    pub const fn named(name: &'static str, unit: &'static str) -> Self {
        fn nothing<P>(_: &P) -> Vec<Value> {
            Vec::new()
        }
        fn ignore<P>(_: &mut P, _: Value) {}
        Self {
            name,
            field: "",
            about: "",
            unit,
            range: Range::OnOff,
            bound: None,
            option: None,
            sweep: None,
            unmodelled: None,
            get: nothing,
            put: ignore,
        }
    }

    /// Returns a value as text, with its unit.
    pub fn show(&self, value: Value) -> String {
        match (value, self.range) {
            (Value::Word(index), Range::Words(words)) => words().get(index).copied().unwrap_or_default().to_owned(),
            (Value::Word(index), _) => index.to_string(),
            (Value::Whole(number), _) => format!("{number}{}", self.unit),
            (Value::Real(number), _) => format!("{number}{}", self.unit),
            (Value::On(is_on), _) => if is_on { "on" } else { "off" }.to_owned(),
        }
    }

    /// Returns the allowed values as text. Some depend on `all`, if given.
    pub fn allowed(&self, all: Option<&P>) -> String {
        let unit = self.unit;
        match self.range {
            Range::Whole(least, most) => format!("{least} to {}{unit}", self.bounded(most, all)),
            Range::Real(least, most) => format!("{least} to {most}{unit}"),
            Range::OneOf(numbers) => match numbers {
                [first @ .., last] => {
                    let first: Vec<_> = first.iter().map(ToString::to_string).collect();
                    format!("{} or {last}{unit}", first.join(", "))
                }
                [] => String::new(),
            },
            Range::Words(words) => format!("one of {}", words().join(", ")),
            Range::OnOff => "on or off".to_owned(),
        }
    }

    fn bounded(&self, most: u64, all: Option<&P>) -> u64 {
        self.bound.zip(all).map_or(most, |(bound, all)| most.min(bound(all)))
    }

    /// Returns whether the range contains a value. Without `all`, bounds that depend on other settings do not matter.
    pub fn allows(&self, value: Value, all: Option<&P>) -> bool {
        match (self.range, value) {
            (Range::Whole(least, most), Value::Whole(number)) => (least..=self.bounded(most, all)).contains(&number),
            // NaN is in no range.
            (Range::Real(least, most), Value::Real(number)) => (least..=most).contains(&number),
            (Range::OneOf(numbers), Value::Whole(number)) => numbers.contains(&number),
            (Range::Words(words), Value::Word(index)) => index < words().len(),
            (Range::OnOff, Value::On(_)) => true,
            _ => false,
        }
    }

    /// Parses a value as a sweep writes it: a number, or a word. Only a number of bytes may have a unit, as in `64K`.
    pub fn parse(&self, text: &str) -> Option<Value> {
        let value = match self.range {
            Range::Whole(..) | Range::OneOf(_) if self.unit == BYTES => Value::Whole(bytes(text)?),
            Range::Whole(..) | Range::OneOf(_) => Value::Whole(text.parse().ok()?),
            Range::Real(..) => Value::Real(text.parse().ok()?),
            Range::Words(words) => Value::Word(words().iter().position(|word| word.eq_ignore_ascii_case(text))?),
            Range::OnOff => Value::On(["off", "on"].iter().position(|word| *word == text)? == 1),
        };
        self.allows(value, None).then_some(value)
    }

    /// Changes the setting, unless the value is out of range. [`check`](Setting::check) compares it with other
    /// settings.
    pub fn set(&self, all: &mut P, value: Value) -> bool {
        let is_allowed = self.allows(value, None);
        if is_allowed {
            (self.put)(all, value);
        }
        is_allowed
    }
}

/// Unit of numbers of bytes.
const BYTES: &str = " B";

/// Parses a number of bytes, with a binary unit or without: `65536`, `64K`, `1MiB`.
fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("K", 10), ("MiB", 20), ("M", 20), ("GiB", 30), ("G", 30), ("", 0)];
    let (digits, shift) = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(*unit)?, *shift)))?;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl Setting {
    /// Returns the error of a value.
    pub fn refuse(&'static self, given: impl Into<String>, allowed: impl Into<String>) -> ParametersError {
        ParametersError { setting: self, given: given.into(), allowed: allowed.into() }
    }

    /// Checks that a value is in the range of the setting. Bounds that depend on other settings do not matter.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    pub fn check_value(&'static self, value: Value) -> Result<(), ParametersError> {
        match self.allows(value, None) {
            true => Ok(()),
            false => Err(self.refuse(self.show(value), self.allowed(None))),
        }
    }

    /// Checks that the values of the setting are in its range.
    ///
    /// # Errors
    ///
    /// A value is out of range.
    pub fn check(&'static self, parameters: &Parameters) -> Result<(), ParametersError> {
        let wrong = (self.get)(parameters).into_iter().find(|&value| !self.allows(value, Some(parameters)));
        wrong.map_or(Ok(()), |value| Err(self.refuse(self.show(value), self.allowed(Some(parameters)))))
    }

    /// Returns whether the setting differs from its default value.
    pub fn differs(&self, parameters: &Parameters) -> bool {
        (self.get)(parameters) != (self.get)(&Parameters::plain(parameters.kind, parameters.operation, 0))
    }
}

impl<P> fmt::Debug for Setting<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Setting").field(&self.name).finish()
    }
}

impl<P> fmt::Display for Setting<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<P> PartialEq for Setting<P> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<P> Eq for Setting<P> {}

/// Error about a setting whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {given}, allowed is {allowed}")]
pub struct ParametersError {
    /// The setting.
    pub setting: &'static Setting,
    /// The given value, with its unit.
    pub given: String,
    /// The allowed values, with their unit.
    pub allowed: String,
}

impl ParametersError {
    /// Returns the text of the error, with the name of the option that sets the value.
    pub fn in_options(&self) -> String {
        match self.setting.option {
            Some(CommandOption { short: Some(short), .. }) => self.in_option(&format!("-{short}")),
            Some(CommandOption { long, .. }) => self.in_option(&format!("--{long}")),
            None => self.to_string(),
        }
    }

    /// Returns the text of the error, with this option as the one that sets the value.
    pub fn in_option(&self, option: &str) -> String {
        let Self { setting, given, allowed } = self;
        format!("{setting} ({option}) is {given}, allowed is {allowed}")
    }
}

/// Replaces a word in the JSON of parameters that this release does not know by the default. Returns its setting and
/// the word.
pub fn replace_unknown_word(parameters: &mut Json) -> Option<(&'static Setting, String)> {
    let plain = serde_json::to_value(Parameters::plain(Kind::Bandwidth, Operation::Send, 0)).ok()?;
    for setting in SETTINGS.iter().filter(|setting| matches!(setting.range, Range::Words(_))) {
        let (parent, field) = setting.field.rsplit_once('.').unwrap_or(("", setting.field));
        let parent = if parent.is_empty() { String::new() } else { format!("/{parent}") };
        let Some(word) = parameters.pointer(&parent).and_then(|parent| parent.get(field)?.as_str()).map(str::to_owned)
        else {
            continue;
        };
        let mut with_word = plain.clone();
        with_word.pointer_mut(&parent)?.as_object_mut()?.insert(field.to_owned(), word.clone().into());
        if serde_json::from_value::<Parameters>(with_word).is_err() {
            let default = plain.pointer(&parent).and_then(|parent| parent.get(field)).cloned().unwrap_or_default();
            parameters.pointer_mut(&parent)?.as_object_mut()?.insert(field.to_owned(), default);
            return Some((*setting, word));
        }
    }
    None
}

/// Checks that a number is in a range that belongs to no entry of the table.
pub(crate) fn within<T: PartialOrd + fmt::Display>(
    setting: &'static Setting,
    given: T,
    least: T,
    most: T,
    unit: &str,
) -> Result<(), ParametersError> {
    if given >= least && given <= most {
        return Ok(()); // NaN fails both comparisons
    }
    Err(setting.refuse(format!("{given}{unit}"), format!("{least} to {most}{unit}")))
}

#[cfg(test)]
mod tests;
