//! Observations for a fit of the model, from records and directories of records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use doorbell_model::record::{Observed, observations, observations_of};
use doorbell_output::files;
use doorbell_study::experiment::RunDirectory;
use doorbell_study::{Failure, Usage};

/// Maximum size of a record.
const MOST_RECORD_BYTES: u64 = 256 << 20;

/// Reads records of `doorbell bench --json` and `doorbell study`, and directories of `doorbell study`.
///
/// # Errors
///
/// A record is unreadable, there is no record, or the records are of several kinds of RNICs or several testbeds.
pub fn read_observations(paths: &[PathBuf]) -> Result<Observed, Failure> {
    let mut all: Option<Observed> = None;
    for path in paths {
        let name = path.display().to_string();
        let mut observed = if path.is_dir() {
            of_directory(path)?
        } else {
            observations(&name, &files::read_text(path, MOST_RECORD_BYTES)?)?
        };
        let first = paths[0].display();
        match &mut all {
            None => all = Some(observed),
            Some(all) if all.rnic != observed.rnic => {
                return Err(Usage(format!("{name} has records of another kind of RNIC than {first}")).into());
            }
            Some(all) if all.testbed != observed.testbed => {
                return Err(Usage(format!("{name} is {}, and {first} is not", substrate(&observed))).into());
            }
            Some(all) => {
                all.observations.append(&mut observed.observations);
                all.left_out.append(&mut observed.left_out);
            }
        }
    }
    Ok(all.ok_or_else(|| Usage("there is no record".to_owned()))?)
}

/// Reads the records of a study, as `doorbell report` does. Results that are left out for the same reason are counted
/// and reported in one sentence.
fn of_directory(path: &Path) -> Result<Observed, Failure> {
    let directory = path.display();
    let mut all: Option<Observed> = None;
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for record in RunDirectory::read(path)? {
        let name = format!("{directory}: {}, {}, {}", record.experiment, record.series, record.x);
        let mut observed = observations_of(&name, &record)?;
        for why in std::mem::take(&mut observed.left_out) {
            let reason = why.split_once("left out: ").map_or(why.as_str(), |(_, reason)| reason);
            *reasons.entry(reason.to_owned()).or_default() += 1;
        }
        match &mut all {
            None => all = Some(observed),
            Some(all) if all.testbed != observed.testbed => {
                return Err(Usage(format!("{name} is {}, and the records before are not", substrate(&observed))).into());
            }
            Some(all) if all.rnic == observed.rnic => all.observations.append(&mut observed.observations),
            Some(_) => return Err(Usage(format!("{name} is of another kind of RNIC than the records before")).into()),
        }
    }
    let mut all = all.ok_or_else(|| Usage(format!("{directory} has no record")))?;
    all.left_out = reasons
        .into_iter()
        .map(|(reason, count)| {
            let results = if count == 1 { "result" } else { "results" };
            format!("{directory}: {count} {results} left out: {reason}")
        })
        .collect();
    Ok(all)
}

/// Returns `measured`, or the name of the simulated testbed. All records of a fit must have the same substrate.
fn substrate(observed: &Observed) -> String {
    observed.testbed.as_ref().map_or("measured".to_owned(), |testbed| format!("simulated, of the testbed {testbed}"))
}
