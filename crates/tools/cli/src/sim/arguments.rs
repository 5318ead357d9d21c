//! Testbed that a command simulates.

use std::path::PathBuf;

use clap::Args;
use doorbell_sim::Testbed;
use doorbell_sim::captures::Captures;
pub(crate) use doorbell_sim::testbed::read as read_testbed;

use crate::failure::{Failure, Usage};
use crate::quantity::mebibytes;

/// Options of a simulation instead of a measurement.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "In virtual time")]
pub(crate) struct Simulated {
    /// Simulate this testbed, with both ends in this process, instead of measuring: a name that `doorbell sim testbeds`
    /// lists, a short name such as t1, or a file
    #[arg(long, value_name = "NAME|FILE")]
    testbed: Option<String>,
    #[command(flatten)]
    replaced: Replaced,
}

impl Simulated {
    /// Returns whether a testbed is simulated.
    pub(crate) fn is_given(&self) -> bool {
        self.testbed.is_some()
    }

    /// Returns the testbed to simulate, if the user gave one. `others` are options that simulations do not have, each
    /// with whether the user gave this option.
    pub(crate) fn read(&self, others: &[(&str, bool)]) -> Result<Option<Testbed>, Failure> {
        match &self.testbed {
            Some(_) if let Some((option, _)) = others.iter().find(|(_, is_given)| *is_given) => {
                let problem = format!(
                    "{option} does not go with --testbed, which simulates both ends in this process: drop one option"
                );
                Err(Usage(problem).into())
            }
            Some(name) => self.replaced.apply(&read_testbed(name)?).map(Some),
            None if self.replaced.is_empty() => Ok(None),
            None => Err(Usage("--set changes a parameter of a testbed: add --testbed".to_owned()).into()),
        }
    }
}

/// Values that replace parameters of a testbed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Replaced {
    /// Another value for one parameter, as in link.rate=25Gb/s; may be given several times
    #[arg(long, value_name = "PART.NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

impl Replaced {
    /// Returns the testbed with the given values.
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

/// Memory limit of simulated points, and the directory for their captures.
#[derive(Args, Clone, Debug)]
pub(super) struct Bounds {
    /// Maximum memory of a point, in MiB or with a unit, by an estimate before the point is simulated
    #[arg(long, value_name = "MIB", value_parser = mebibytes, default_value = "4G")]
    memory: usize,
    /// Write the packets of each point to DIR/point-NUMBER.pcap, with virtual timestamps
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
}

impl Bounds {
    /// Returns the maximum memory of a point in bytes.
    pub(super) fn memory(&self) -> u64 {
        (self.memory as u64) << 20
    }

    /// Creates and returns the directory for captures, if the user has requested captures.
    pub(super) fn captures(&self) -> Result<Option<Captures>, Failure> {
        Ok(self.pcap.as_deref().map(Captures::create).transpose()?)
    }
}

pub(super) fn assignment(text: &str) -> Result<(String, String), String> {
    let (path, value) =
        text.split_once('=').ok_or("must be a parameter and its value, as in link.rate=25Gb/s".to_owned())?;
    Ok((path.trim().to_owned(), value.trim().to_owned()))
}
