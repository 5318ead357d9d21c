//! Which testbed a command simulates.

use std::path::Path;

use clap::Args;
use doorbell_sim::{Testbed, testbed};

use crate::model::read_text;
use crate::{Failure, Usage};

/// The longest file of a testbed.
const MOST_BYTES: u64 = 1 << 20;

/// Simulates instead of measuring.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "In virtual time")]
pub(crate) struct Simulated {
    /// Simulate this testbed, with both ends in this process, and measure nothing: a name of `doorbell sim testbeds`, or a
    /// file
    #[arg(long, value_name = "NAME|FILE")]
    testbed: Option<String>,
    #[command(flatten)]
    replaced: Replaced,
}

impl Simulated {
    /// Is a testbed simulated?
    pub(crate) fn is_given(&self) -> bool {
        self.testbed.is_some()
    }

    /// The testbed to simulate, if one is. `others` are options that simulations do not have, and whether they were given.
    pub(crate) fn read(&self, others: &[(&str, bool)]) -> Result<Option<Testbed>, Failure> {
        match &self.testbed {
            Some(_) if let Some((option, _)) = others.iter().find(|(_, is_given)| *is_given) => {
                let problem = format!(
                    "{option} does not go with --testbed, which simulates both ends in this process: drop one of them"
                );
                Err(Usage(problem).into())
            }
            Some(name) => self.replaced.apply(&read_testbed(name)?).map(Some),
            None if self.replaced.is_empty() => Ok(None),
            None => Err(Usage("--set is about a testbed: name it with --testbed".to_owned()).into()),
        }
    }
}

/// Values given in place of those of a testbed's file.
#[derive(Args, Clone, Debug)]
pub(crate) struct Replaced {
    /// Another value for one parameter, as in link.rate=25Gb/s; may be given several times
    #[arg(long, value_name = "PART.NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

impl Replaced {
    /// The testbed with the values given.
    pub(crate) fn apply(&self, testbed: &Testbed) -> Result<Testbed, Failure> {
        let replace = |testbed: Testbed, (path, value): &(String, String)| {
            testbed.with(path, value).map_err(|error| Usage(format!("--set: {error}")).into())
        };
        self.set.iter().try_fold(testbed.clone(), replace)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }
}

pub(super) fn assignment(text: &str) -> Result<(String, String), String> {
    let (path, value) =
        text.split_once('=').ok_or("a parameter and its value are allowed, as in link.rate=25Gb/s".to_owned())?;
    Ok((path.trim().to_owned(), value.trim().to_owned()))
}

/// The testbed of a name, or of a file.
pub(crate) fn read_testbed(name: &str) -> Result<Testbed, Failure> {
    if let Some(testbed) = testbed::by_name(name) {
        return Ok(testbed.clone());
    }
    if !name.contains('/') && !Path::new(name).exists() {
        let names: Vec<&str> = testbed::all().iter().map(|testbed| testbed.name.as_str()).collect();
        let problem = format!("there is no testbed {name}; allowed is {}, or a file", names.join(", "));
        return Err(Usage(problem).into());
    }
    Ok(Testbed::from_toml(name, &read_text(Path::new(name), MOST_BYTES)?)?)
}
