//! Reports of tests that a machine cannot run.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

use doorbell_sync::IgnorePoison as _;

/// Reports a test that this machine cannot run, once for each reason. The report goes directly to standard error, since
/// the test harness would hide it. The report also goes to the file that `DOORBELL_LEFT_OUT` names.
///
/// # Panics
///
/// If `CI=true` is set, or if the file cannot be written.
pub fn leave_out(what: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "in CI nothing may be left out: {what}");
    if is_new(what) {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: {what}");
        if let Some(path) = std::env::var_os("DOORBELL_LEFT_OUT") {
            add(Path::new(&path), what);
        }
    }
}

/// Returns whether the process is root. Otherwise reports the test as left out.
///
/// # Panics
///
/// If `CI=true` is set and the process is not root.
pub fn root_or_leave_out(what: &str) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        leave_out(&format!("{what}: only root can do this"));
    }
    is_root
}

/// Returns whether this reason was not reported before.
fn is_new(what: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    SAID.lock().ignore_poison().insert(what.to_owned())
}

fn add(path: &Path, what: &str) {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{what}\n").as_bytes()).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once() {
        assert!(is_new("a kernel is too old") && is_new("no root"));
        assert!(!is_new("a kernel is too old") && !is_new("no root"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("left-out");
        add(&file, "a kernel is too old");
        add(&file, "no root");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a kernel is too old\nno root\n");
    }
}
