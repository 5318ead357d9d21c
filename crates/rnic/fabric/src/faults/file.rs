//! Plans in TOML. Errors name the file, the line, the field and the allowed values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::FaultPlanError;
use super::plan::FaultPlan;
use super::rule::{RuleParser, RuleProblem};
use super::shares::FaultShares;

/// Value of the field `schema`.
const SCHEMA: &str = "doorbell-fault-plan/1";

/// Maximum size of a file in bytes.
const LONGEST: usize = 1 << 20;

/// Fields of a file outside its rules.
const FIELDS: [&str; 5] = ["schema", "about", "ibta", "seed", "rule"];

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn refuse(&self, at: usize, field: &str, problem: impl Into<String>) -> FaultPlanError {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        FaultPlanError::File {
            place: format!("{}:{line}", self.file),
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    /// Returns the fields of a table in the order of the file.
    fn fields<'t, 'v>(table: &'t DeTable<'v>) -> Vec<(usize, &'t str, &'t Spanned<DeValue<'v>>)> {
        let mut fields: Vec<_> = table.iter().map(|(key, value)| (key.span().start, &**key.get_ref(), value)).collect();
        fields.sort_unstable_by_key(|(at, ..)| *at);
        fields
    }

    /// Returns a value as it would be written in an inline rule.
    fn plain(&self, field: &str, value: &Spanned<DeValue<'_>>) -> Result<String, FaultPlanError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => {
                let literal = self.text.get(value.span()).unwrap_or_default();
                Ok(literal.trim().replace('_', ""))
            }
            other => {
                let problem = format!("the value is of type {}, allowed is a text or a number", other.type_str());
                Err(self.refuse(value.span().start, field, problem))
            }
        }
    }

    fn seed(&self, value: &Spanned<DeValue<'_>>) -> Result<u64, FaultPlanError> {
        let text = self.plain("seed", value)?;
        text.parse().map_err(|_| {
            let problem = format!("the value is {text:?}, allowed is a whole number from 0 to 2^64 - 1");
            self.refuse(value.span().start, "seed", problem)
        })
    }

    fn rule(&self, plan: &mut FaultPlan, rule: &Spanned<DeValue<'_>>) -> Result<(), FaultPlanError> {
        let start = rule.span().start;
        let Some(table) = rule.get_ref().as_table() else {
            return Err(self.refuse(start, "rule", "the value is no table, allowed is [[rule]] before the fields"));
        };
        let fields = Self::fields(table);
        // Errors of a whole rule point at the field in question, or at the rule if the field is missing.
        let at_field = |RuleProblem { field, problem }: RuleProblem| {
            let at = fields.iter().find(|(_, name, _)| *name == field).map_or(start, |(at, ..)| *at);
            self.refuse(at, &format!("rule.{field}"), problem)
        };
        let mut parser = RuleParser::default();
        for (_, name, value) in &fields {
            let value = self.plain(&format!("rule.{name}"), value)?;
            parser.set(name, &value).map_err(at_field)?;
        }
        parser.finish().and_then(|rule| plan.push(rule)).map_err(at_field)
    }
}

impl FaultPlan {
    /// Parses a plan in TOML. `file` is the name of the file in errors.
    ///
    /// # Errors
    ///
    /// The text is no TOML, a field is unknown or has a value that is not allowed, or rules contradict each other. The
    /// error names file, line and field.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, FaultPlanError> {
        let reader = Reader { file, text };
        if text.len() > LONGEST {
            let problem = format!("the size is {} bytes, allowed are {LONGEST}", text.len());
            return Err(reader.refuse(0, "the file", problem));
        }
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            reader.refuse(at, "the file", format!("the text is no TOML: {}", error.message()))
        })?;
        let fields = Reader::fields(table.get_ref());
        let mut plan = Self::default();
        if !fields.iter().any(|(_, name, _)| *name == "schema") {
            return Err(reader.refuse(0, "schema", format!("the field is missing, allowed is \"{SCHEMA}\"")));
        }
        for (at, name, value) in fields {
            match name {
                "schema" => {
                    let given = reader.plain(name, value)?;
                    if given != SCHEMA {
                        return Err(reader.refuse(
                            at,
                            name,
                            format!("the value is {given:?}, allowed is \"{SCHEMA}\""),
                        ));
                    }
                }
                "about" | "ibta" => drop(reader.plain(name, value)?),
                "seed" => plan.shares = FaultShares { seed: reader.seed(value)?, ..plan.shares },
                "rule" => {
                    let Some(rules) = value.get_ref().as_array() else {
                        return Err(reader.refuse(
                            at,
                            name,
                            "the value is no list, allowed is [[rule]] before each rule",
                        ));
                    };
                    rules.iter().try_for_each(|rule| reader.rule(&mut plan, rule))?;
                }
                _ => {
                    let problem = format!("the field is unknown, allowed are {}", FIELDS.join(", "));
                    return Err(reader.refuse(at, name, problem));
                }
            }
        }
        if plan.rules.is_empty() {
            return Err(reader.refuse(0, "rule", "the plan has no rule, allowed are 1 to 256"));
        }
        Ok(plan)
    }
}
