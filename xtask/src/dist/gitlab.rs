//! Runs the job of `ci/gitlab.yml` in a chroot, as root, as GitLab's runner does in a container of the image.
//!
//! The parser knows only the form of this file, and rejects others.

use std::collections::BTreeMap;
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
    /// Parses a job whose keys are `image`, `before_script`, `script` and `artifacts`. Each command of a script is
    /// plain text in one line.
    fn parse(text: &str) -> Result<Self, String> {
        let mut values: BTreeMap<&str, String> = BTreeMap::new();
        let (mut job, mut key) = (None, "");
        for (line, number) in text.lines().zip(1..) {
            let wrong = |why: &str| format!("line {number}, {line:?}: {why}");
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(nested) = line.strip_prefix("    ") {
                if ["before_script", "script"].contains(&key) {
                    let command = nested.strip_prefix("- ").filter(|command| is_plain(command));
                    let command = command.ok_or_else(|| wrong("must be `- ` and a command without quotes"))?;
                    values.entry(key).or_default().push_str(&format!("{command}\n"));
                } else if key != "artifacts" {
                    return Err(wrong("only scripts and artifacts have lines of their own"));
                }
            } else if let Some((name, value)) = line.strip_prefix("  ").and_then(|pair| pair.split_once(':')) {
                key = name;
                match (key, value.trim()) {
                    ("image", image) if is_plain(image) => {
                        values.insert(key, image.to_owned());
                    }
                    ("before_script" | "script" | "artifacts", "") => {}
                    _ => return Err(wrong("must be `image: NAME`, `before_script:`, `script:` or `artifacts:`")),
                }
            } else if job.replace(line).is_some() {
                return Err(wrong("must be a key of the first job"));
            }
        }
        let mut value = |key: &str| values.remove(key).ok_or_else(|| format!("there is no key {key}"));
        Ok(Self { image: value("image")?, script: value("before_script")? + &value("script")? })
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

/// Returns whether YAML reads a text as these characters.
fn is_plain(text: &str) -> bool {
    text.starts_with(char::is_alphanumeric) && [": ", " #"].iter().all(|mark| !text.contains(mark))
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
        for (lines, key) in [
            ("  image: a:b\n", "image"),
            ("  before_script:\n    - one\n", "before_script"),
            ("  script:\n    - two\n    - three\n", "script"),
        ] {
            let why = Job::parse(&text.replace(lines, "")).unwrap_err();
            assert_eq!(why, format!("there is no key {key}"));
        }
    }

    #[test]
    fn other_forms_are_rejected() {
        let text = "job:\n  image: a:b\n  before_script:\n    - one\n  script:\n    - two\n";
        for other in [
            "  variables:\n",
            "  tags: [a]\n",
            "    three\n",
            "    - |\n",
            "      more\n",
            "    - \"three\"\n",
            "    - echo a: b\n",
            "  image:\n",
            "   script:\n",
            "another:\n",
        ] {
            let why = Job::parse(&format!("{text}{other}")).unwrap_err();
            assert!(why.starts_with("line 7, "), "{why}");
        }
        let why = Job::parse(&text.replace("a:b\n", "a:b\n    name: c\n")).unwrap_err();
        assert!(why.starts_with("line 3, "), "{why}");
    }
}
