//! Runs the job of `ci/gitlab.yml` in a chroot, as root, as GitLab's runner does in a container of the image.
//!
//! The parser knows only the form of this file.

use std::path::Path;

use super::chroot::Chroot;
use super::copy;
use crate::action::{expect_device, read, served};
use crate::network;
use crate::shell::root;

/// The job.
const JOB: &str = "ci/gitlab.yml";

/// Script that the user of the job copies into the repository.
const INSTALL: &str = "ci/install.sh";

/// Folder of the repository in the container.
const PROJECT: &str = "builds/project";

/// A job of GitLab.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    image: String,
    /// Lines of both scripts, which one shell runs.
    script: String,
}

impl Job {
    fn parse(text: &str) -> Result<Self, String> {
        let image = text.lines().find_map(|line| line.strip_prefix("  image: ")).ok_or("there is no key image")?;
        let mut script = String::new();
        for key in ["before_script", "script"] {
            let (_, rest) =
                text.split_once(&format!("\n  {key}:\n")).ok_or_else(|| format!("there is no key {key}"))?;
            let lines = rest.lines().map_while(|line| line.strip_prefix("    - "));
            lines.for_each(|line| script.push_str(&format!("{line}\n")));
        }
        Ok(Self { image: image.to_owned(), script })
    }

    /// Runs the job with the archive at this address, and returns its output.
    fn run(&self, chroot: &Chroot, address: &str) -> Result<String, String> {
        let folder = format!("--chdir=/{PROJECT}");
        let exempt = std::env::var("no_proxy").unwrap_or_default();
        let variables = [format!("no_proxy={exempt},127.0.0.1"), format!("DOORBELL_ARCHIVE={address}")];
        let [proxy, archive] = &variables;
        chroot.output(None, &["env", &folder, proxy, archive, "bash", "-eo", "pipefail", "-c", &self.script])
    }
}

/// Runs the job, which fetches the archive from an address. Returns the reason if this machine cannot do so.
pub(super) fn check(archive: &Path) -> Result<Option<String>, String> {
    let job = Job::parse(&read(&root().join(JOB))?).map_err(|why| format!("{JOB}: {why}"))?;
    let chroot = match Chroot::of_image(&job.image, "gitlab") {
        Ok(chroot) => chroot,
        Err(why) => return Ok(Some(format!("{JOB}: {why}"))),
    };
    copy(&root().join(INSTALL), &chroot.path(PROJECT).join(INSTALL))?;
    // The job installs packages from the network, and fetches the archive from this program in the same network.
    let ran = network::outside(|| job.run(&chroot, &served(archive, "archive.tar.gz")?));
    ran.and_then(|output| expect_device(&output, JOB)).map_err(|why| format!("{JOB}: {why}"))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_the_repository_has_the_known_form() {
        let job = Job::parse(&read(&root().join(JOB)).unwrap()).unwrap();
        assert!(job.image.starts_with("debian:"), "{job:?}");
        assert_eq!(job.script.lines().count(), 5, "{job:?}");
        assert!(job.script.contains(INSTALL), "{job:?}");
    }

    #[test]
    fn both_scripts_are_one() {
        let text = "job:\n  image: a:b\n  before_script:\n    - one\n  script:\n    - two\n    - three\n  artifacts:\n";
        let expected = Job { image: "a:b".to_owned(), script: "one\ntwo\nthree\n".to_owned() };
        assert_eq!(Job::parse(text), Ok(expected));
        for key in ["image", "before_script", "script"] {
            let why = Job::parse(&text.replace(&format!("  {key}:"), "  other:")).unwrap_err();
            assert_eq!(why, format!("there is no key {key}"));
        }
    }
}
