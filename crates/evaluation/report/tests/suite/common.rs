//! Stored records of a study, which tests of pages read.

use std::path::{Path, PathBuf};
use std::process::Command;

use doorbell_record::PointRecord;
use doorbell_study::experiment::RunDirectory;

/// Archive of the records of two runs, from the root of the repository.
pub(crate) const RECORDS: &str = "benchmarks/2026-11-23/study.tar.xz";
/// Run in the archive that was measured with the software RNIC.
pub(crate) const MEASURED: &str = "soft";
/// Run in the archive that was simulated on the testbed of T1.
pub(crate) const SIMULATED: &str = "sim";

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Returns the records of the runs [`MEASURED`] and [`SIMULATED`].
pub(crate) fn records() -> [Vec<PointRecord>; 2] {
    let unpacked = tempfile::tempdir().unwrap();
    let unpack = Command::new("tar").arg("-xJf").arg(root().join(RECORDS)).arg("-C").arg(unpacked.path()).status();
    assert!(unpack.unwrap().success(), "tar and xz must be able to unpack {RECORDS}: install tar and xz-utils");
    [MEASURED, SIMULATED].map(|run| RunDirectory::read(&unpacked.path().join(run)).unwrap())
}
