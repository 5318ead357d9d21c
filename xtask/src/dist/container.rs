//! Runs the instructions of `ci/Containerfile` in a chroot, and then the commands of `ci/kubernetes.yaml`.
//!
//! The parsers know only the form of these files. A line of another form is an error.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::chroot::Chroot;
use crate::action::{expect_device, read};
use crate::network;
use crate::shell::{command, output_of, root};

/// The image.
const IMAGE: &str = "ci/Containerfile";

/// The pod whose first container has this image.
const POD: &str = "ci/kubernetes.yaml";

/// Address of the pod, which is the only one in the chroot.
const ADDRESS: &str = "127.0.0.1";

/// A system in which the instructions of a Containerfile have run.
struct Image {
    chroot: Chroot,
    user: Option<String>,
    entry: Vec<String>,
    arguments: Vec<String>,
}

impl Image {
    /// Runs all instructions after FROM. COPY takes files of the folder `context`.
    fn build(instructions: &[(String, String)], context: &Path, chroot: Chroot) -> Result<Self, String> {
        let mut image = Self { chroot, user: None, entry: Vec::new(), arguments: Vec::new() };
        for (name, value) in instructions {
            match name.as_str() {
                "FROM" => {}
                "RUN" => {
                    let (chroot, user) = (&image.chroot, image.user.as_deref());
                    network::outside(|| chroot.output(user, &["sh", "-c", value]))?;
                }
                "COPY" => {
                    let (from, to) = value.split_once(' ').ok_or_else(|| format!("COPY {value}: must be FILE FILE"))?;
                    let to = image.chroot.path(to.trim_start_matches('/'));
                    // The shell expands the pattern in $0.
                    let mut copy = command("sh", &["-ec", "cp -- $0 \"$1\"", from, &to.to_string_lossy()]);
                    copy.current_dir(context);
                    output_of(copy)?;
                }
                "USER" => image.user = Some(value.clone()),
                "ENTRYPOINT" => image.entry = words(value)?,
                "CMD" => image.arguments = words(value)?,
                _ => return Err(format!("{name}: allowed are FROM, RUN, COPY, USER, ENTRYPOINT and CMD")),
            }
        }
        Ok(image)
    }

    /// Runs the command of the image, and returns its output.
    fn run(&self) -> Result<String, String> {
        self.chroot.output(self.user.as_deref(), &[texts(&self.entry), texts(&self.arguments)].concat())
    }
}

/// Returns the instructions of a Containerfile, each with its text.
fn instructions(text: &str) -> Result<Vec<(String, String)>, String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let instruction = |line: &str| {
        let (name, value) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no instruction"))?;
        Ok::<_, String>((name.to_owned(), value.trim().to_owned()))
    };
    lines.map(instruction).collect()
}

/// Parses a command, which is a list of JSON.
fn words(text: &str) -> Result<Vec<String>, String> {
    serde_json::from_str(text).map_err(|error| format!("{text}: must be a list of texts in JSON: {error}"))
}

fn texts(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// A pod whose first container copies the library, and whose second one has the program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pod {
    user: String,
    annotations: BTreeMap<String, String>,
    commands: Vec<Vec<String>>,
    environment: BTreeMap<String, String>,
}

impl Pod {
    fn parse(text: &str) -> Result<Self, String> {
        let mut pod = Self::default();
        let mut name = "";
        for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with('#')) {
            let Some((key, value)) = line.trim_start_matches("- ").split_once(": ") else { continue };
            let plain = value.trim_matches('"');
            match key {
                "runAsUser" => plain.clone_into(&mut pod.user),
                "command" => pod.commands.push(words(value)?),
                "name" => name = plain,
                "value" => drop(pod.environment.insert(name.to_owned(), plain.to_owned())),
                "fieldPath" => {
                    let field = pod.field(plain)?;
                    pod.environment.insert(name.to_owned(), field);
                }
                _ if key.contains('/') => drop(pod.annotations.insert(key.to_owned(), plain.to_owned())),
                _ => {}
            }
        }
        Ok(pod)
    }

    /// Returns the value of a field of the pod.
    fn field(&self, path: &str) -> Result<String, String> {
        let annotation = path.strip_prefix("metadata.annotations['").and_then(|rest| rest.strip_suffix("']"));
        let value = match annotation {
            Some(name) => self.annotations.get(name).cloned(),
            None => (path == "status.podIP").then(|| ADDRESS.to_owned()),
        };
        value.ok_or_else(|| format!("{path}: allowed are status.podIP and the pod's annotations"))
    }

    /// Runs both containers in a built image. The second one only has the files that the first one copied.
    fn run(&self, image: &Chroot) -> Result<String, String> {
        let [copy, program] = &self.commands[..] else {
            return Err(format!("there are {} commands, must be 2", self.commands.len()));
        };
        let volume = image.path("doorbell");
        let made = fs::create_dir(&volume).and_then(|()| {
            // Any user may write to an empty volume of Kubernetes.
            fs::set_permissions(&volume, fs::Permissions::from_mode(0o777))
        });
        made.map_err(|error| format!("{}: {error}", volume.display()))?;
        image.output(Some(&self.user), &texts(copy))?;
        let library = image.path("usr/local/lib/libdoorbell_ibverbs.so");
        fs::remove_file(&library).map_err(|error| format!("{}: {error}", library.display()))?;
        let variables: Vec<String> = self.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        image.output(Some(&self.user), &[vec!["env"], texts(&variables), texts(program)].concat())
    }
}

/// Builds the image from the archive, and runs its command and the pod's commands. Returns the reason if this machine
/// cannot do so.
pub(super) fn check(archive: &Path) -> Result<Option<String>, String> {
    let instructions = instructions(&read(&root().join(IMAGE))?).map_err(|why| format!("{IMAGE}: {why}"))?;
    let base = instructions.first().filter(|(name, _)| name == "FROM").map(|(_, base)| base);
    let base = base.ok_or_else(|| format!("{IMAGE} does not begin with FROM"))?;
    let chroot = match Chroot::of_image(base, "image") {
        Ok(chroot) => chroot,
        Err(why) => return Ok(Some(format!("{IMAGE}: {why}"))),
    };
    let context = archive.parent().unwrap_or(Path::new("/"));
    let image = Image::build(&instructions, context, chroot).map_err(|why| format!("{IMAGE}: {why}"))?;
    image.run().and_then(|output| expect_device(&output, IMAGE))?;
    let pod = Pod::parse(&read(&root().join(POD))?).map_err(|why| format!("{POD}: {why}"))?;
    pod.run(&image.chroot).and_then(|output| expect_device(&output, POD))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_may_continue_on_the_next_line() {
        let text = "# comment\nFROM debian:x\nRUN a \\\n    && b\nCMD [\"c\", \"d e\"]\n";
        let expected = [("FROM", "debian:x"), ("RUN", "a      && b"), ("CMD", "[\"c\", \"d e\"]")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(instructions(text).unwrap(), expected);
        assert_eq!(words("[\"c\", \"d e\"]").unwrap(), ["c", "d e"]);
        assert!(instructions("FROM\n").unwrap_err().contains("\"FROM\" is no instruction"));
        assert!(words("ibv_devinfo").unwrap_err().contains("must be a list of texts in JSON"));
    }

    #[test]
    fn the_files_of_the_repository_have_the_known_form() {
        let image = instructions(&read(&root().join(IMAGE)).unwrap()).unwrap();
        let names: Vec<&str> = image.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["FROM", "RUN", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"]);
        let pod = Pod::parse(&read(&root().join(POD)).unwrap()).unwrap();
        let names: Vec<&str> = pod.environment.keys().map(String::as_str).collect();
        assert_eq!(names, ["DOORBELL_BIND", "DOORBELL_FAULT", "LD_PRELOAD"]);
        assert_eq!((pod.user.as_str(), pod.commands.len()), ("65534", 2));
        assert_eq!(pod.environment["DOORBELL_FAULT"], pod.annotations["doorbell/fault"]);
    }

    #[test]
    fn fields_of_a_pod_that_the_runner_lacks_are_errors() {
        let pod = |field: &str| Pod::parse(&format!("a/b: \"c\"\n- name: X\n  fieldPath: {field}\n"));
        assert_eq!(pod("metadata.annotations['a/b']").unwrap().environment["X"], "c");
        assert_eq!(pod("status.podIP").unwrap().environment["X"], ADDRESS);
        for field in ["metadata.annotations['b']", "spec.nodeName"] {
            assert!(pod(field).unwrap_err().contains(field));
        }
    }
}
