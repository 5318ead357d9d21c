//! Fault plans of commands: files, built-in plans, and the check that each rule fired.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use clap::error::{ContextKind, ContextValue};
use doorbell_fabric::FaultPlan;
use doorbell_output::files;

use crate::failure::{Failure, Usage};
use crate::output::{note, wrapped};

/// Maximum size of a plan in bytes.
const PLAN_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a journal that is read back, in bytes. The first firing of each rule is early in a journal.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Files of fault plans, beside an inline plan.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FaultFiles {
    /// Fault plan in a TOML file, or a built-in plan such as lost-ack. `list` prints the names of the built-in plans
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "fault", value_parser = read_plan)]
    pub(crate) fault_plan: Option<FaultPlan>,
    /// Write one line of JSON for each rule of the fault plan that fires
    #[arg(long, value_name = "FILE")]
    pub(crate) fault_journal: Option<PathBuf>,
}

impl FaultFiles {
    /// Creates the journal of a simulation, if one is requested.
    pub(crate) fn simulated_journal(&self, plan: Option<&FaultPlan>) -> Result<Option<Arc<File>>, Failure> {
        match (&self.fault_journal, plan) {
            (Some(path), Some(_)) => Ok(Some(Arc::new(create_journal(path)?))),
            (Some(_), None) => Err(journal_without_plan().into()),
            (None, _) => Ok(None),
        }
    }
}

fn create_journal(path: &Path) -> Result<File, String> {
    files::create(path).map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

fn journal_without_plan() -> Usage {
    Usage("--fault-journal needs a plan: add --fault or --fault-plan".to_owned())
}

/// Value of `--fault-plan` that asks for the names of the built-in plans.
const LIST: &str = "list";

/// Returns whether an error of the command line is a request for the names of the built-in plans.
pub(crate) fn is_request_for_names(error: &clap::Error) -> bool {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    text(ContextKind::InvalidValue) == LIST && text(ContextKind::InvalidArg).starts_with("--fault-plan ")
}

/// Returns the names of the built-in plans, each on a line.
pub(crate) fn names() -> String {
    doorbell_data::FAULT_PLANS.iter().flat_map(|file| [file.name, "\n"]).collect()
}

/// Reads a plan from a file, or returns the built-in plan with this name.
pub(crate) fn read_plan(text: &str) -> Result<FaultPlan, String> {
    let built_in = doorbell_data::FAULT_PLANS;
    if let Some(file) = built_in.iter().find(|file| file.name == text) {
        return FaultPlan::from_toml(file.path, file.text).map_err(|error| error.to_string());
    }
    if !Path::new(text).exists() {
        let names: Vec<&str> = built_in.iter().map(|file| file.name).collect();
        return Err(format!("there is no such file; the built-in plans are {}", names.join(", ")));
    }
    let contents = files::read_text(Path::new(text), PLAN_BYTES_MAX).map_err(|error| error.to_string())?;
    FaultPlan::from_toml(text, &contents).map_err(|error| error.to_string())
}

/// Rejects a plan that a middlebox cannot apply: no program calls a middlebox, and it has no port.
pub(crate) fn check_middlebox(plan: Option<&FaultPlan>) -> Result<(), Usage> {
    if plan.is_some_and(FaultPlan::strikes_calls) {
        let what = "completion, post-error, call-error, slow-poll and event";
        return Err(Usage(format!(
            "the fault plan has a rule of calls or completions ({what}), but a middlebox applies only rules of packets"
        )));
    }
    if plan.is_some_and(FaultPlan::orders_port) {
        let why = "the fault plan has port-down or device-fatal, but a middlebox has no port: remove these rules";
        return Err(Usage(why.to_owned()));
    }
    Ok(())
}

/// The journal of a plan, and the check at the end that each rule fired.
#[derive(Debug)]
pub(crate) struct FaultCheck {
    plan: FaultPlan,
    journal: PathBuf,
    /// Whether the journals are temporary files of this command.
    is_temporary: bool,
    /// Plans of single devices, each with its journal.
    of_devices: Vec<(PathBuf, FaultPlan)>,
}

impl FaultCheck {
    /// Creates the journal. Returns `None` if the plan has no rules and no journal is requested.
    pub(crate) fn begin(plan: Option<&FaultPlan>, journal: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(plan) = plan else {
            return match journal {
                Some(_) => Err(journal_without_plan().into()),
                None => Ok(None),
            };
        };
        if journal.is_none() && plan.rules().is_empty() {
            return Ok(None);
        }
        Self::of_program(Some(plan), Vec::new(), journal).map(Some)
    }

    /// Creates the journals of a program: one for the common plan, and one for each device with its own plan. The
    /// journal of a device has the name of the common journal and, after a dot, that of the device.
    pub(crate) fn of_program(
        common: Option<&FaultPlan>,
        devices: Vec<(String, FaultPlan)>,
        journal: Option<&Path>,
    ) -> Result<Self, Failure> {
        let (journal, is_temporary) = match journal {
            Some(path) => {
                create_journal(path)?;
                // Other processes may have another working directory.
                (std::path::absolute(path)?, false)
            }
            None => {
                let path = std::env::temp_dir().join(format!("doorbell-faults-{}", files::random_name()?));
                files::create_new(&path, 0o600)?;
                (path, true)
            }
        };
        let plan = common.cloned().unwrap_or_default();
        let mut check = Self { plan, journal, is_temporary, of_devices: Vec::new() };
        // Without a regular file, the rules cannot be checked.
        let is_regular = check.journal.is_file();
        for (name, plan) in devices.into_iter().filter(|_| is_regular) {
            let mut path = check.journal.clone();
            path.as_mut_os_string().push(format!(".{name}"));
            if is_temporary {
                files::create_new(&path, 0o600)?;
            } else {
                create_journal(&path)?;
            }
            check.of_devices.push((path, plan));
        }
        Ok(check)
    }

    /// Returns the path of the journal.
    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// Prints a sentence for each rule that never fired. Returns whether all required rules fired.
    pub(crate) fn finish(self) -> Result<bool, Failure> {
        if !self.journal.is_file() {
            let why = "cannot be read back, so rules that never fired are not reported";
            note!("{}", wrapped(&format!("doorbell: the journal {} {why}", self.journal.display())));
            return Ok(true);
        }
        let mut unfired = self.plan.unfired(&files::read_text(&self.journal, JOURNAL_BYTES_MAX)?);
        for (journal, plan) in &self.of_devices {
            unfired.extend(plan.unfired(&files::read_text(journal, JOURNAL_BYTES_MAX)?));
        }
        for sentence in &unfired {
            note!("{}", wrapped(&format!("doorbell: {sentence}")));
        }
        Ok(unfired.is_empty())
    }
}

impl Drop for FaultCheck {
    fn drop(&mut self) {
        if self.is_temporary {
            let of_devices = self.of_devices.iter().map(|(journal, _)| journal);
            for journal in of_devices.chain([&self.journal]) {
                let _ = fs::remove_file(journal); // the file may be gone already
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_plans_and_files_are_read() {
        assert!(!read_plan("lost-ack").unwrap().rules().is_empty());
        let error = read_plan(LIST).unwrap_err();
        assert!(error.contains("built-in plans are") && error.contains("lost-ack"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        fs::write(&path, "schema = \"doorbell-fault-plan/1\"\n[[rule]]\naction = \"drop\"\nnth = 0\n").unwrap();
        let text = path.to_str().unwrap();
        let error = read_plan(text).unwrap_err();
        assert!(error.starts_with(&format!("{text}:4: rule.nth:")), "{error}");
    }

    #[test]
    fn rules_that_never_fired_fail_the_check() {
        let plan: FaultPlan = "drop nth=1;drop nth=2 optional".parse().unwrap();
        let check = FaultCheck::begin(Some(&plan), None).unwrap().unwrap();
        let journal = check.journal().to_owned();
        assert!(!check.finish().unwrap());
        assert!(!journal.exists(), "the temporary journal is left");
        let check = FaultCheck::begin(Some(&plan), None).unwrap().unwrap();
        fs::write(check.journal(), "{\"rule\":1,\"action\":\"drop\"}\n").unwrap();
        assert!(check.finish().unwrap());
        assert!(FaultCheck::begin(Some(&"drop=0.5".parse().unwrap()), None).unwrap().is_none());
        assert!(FaultCheck::begin(None, Some(Path::new("x"))).is_err());
    }

    #[test]
    fn plans_of_devices_have_their_own_journals() {
        let plan: FaultPlan = "drop nth=1".parse().unwrap();
        let begin = || FaultCheck::of_program(None, vec![("doorbell1".to_owned(), plan.clone())], None).unwrap();
        let check = begin();
        let mut own = check.journal().to_owned();
        own.as_mut_os_string().push(".doorbell1");
        // A firing in the common journal is one of another plan.
        fs::write(check.journal(), "{\"rule\":1,\"action\":\"drop\"}\n").unwrap();
        assert!(!check.finish().unwrap());
        assert!(!own.exists(), "the temporary journal is left");
        let check = begin();
        fs::write(&check.of_devices[0].0, "{\"rule\":1,\"action\":\"drop\"}\n").unwrap();
        assert!(check.finish().unwrap());
    }
}
