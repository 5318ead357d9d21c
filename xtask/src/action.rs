//! Runs `action.yml`, with which other projects use Doorbell in their CI, and `ci/install.sh`, which it runs.
//!
//! The parser knows only the form of this file. A line of another form is an error.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::shell::{command, output_of, root};

/// The action of GitHub.
const ACTION: &str = "action.yml";

/// Values of expressions of GitHub in the tests.
const GITHUB: [(&str, &str); 3] =
    [("github.server_url", "https://github.com"), ("github.action_repository", REPOSITORY), ("github.action_ref", TAG)];

/// Repository of the action.
const REPOSITORY: &str = "owner/doorbell";

/// Tag of this release.
const TAG: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Texts by name.
type Texts = BTreeMap<String, String>;

/// A step of the action.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    name: String,
    /// Condition of the form `inputs.NAME == 'VALUE'`.
    condition: Option<String>,
    environment: Texts,
    script: String,
}

/// The action: defaults of its inputs, by names such as `inputs.archive`, and its steps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Action {
    defaults: Texts,
    steps: Vec<Step>,
}

impl Action {
    fn parse(text: &str) -> Result<Self, String> {
        let mut action = Self::default();
        let (inputs, steps) = text.split_once("\n  steps:\n").ok_or("there is no line `  steps:`")?;
        let mut input = "";
        for line in inputs.lines() {
            if let Some(default) = line.strip_prefix("    default: ") {
                action.defaults.insert(format!("inputs.{input}"), default.trim_matches('"').to_owned());
            } else if let Some(name) = line.strip_prefix("  ").and_then(|line| line.strip_suffix(':')) {
                input = name;
            }
        }
        let mut lines = steps.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("    - name: ") {
                action.steps.push(Step { name: name.to_owned(), ..Step::default() });
                continue;
            }
            let step = action.steps.last_mut().ok_or_else(|| format!("{line:?} is before the first step"))?;
            let key = line.strip_prefix("      ").and_then(|line| line.split_once(':'));
            match key.map(|(key, value)| (key, value.trim())) {
                Some(("shell", "bash")) => {}
                Some(("if", condition)) => step.condition = Some(condition.to_owned()),
                Some(("env", "")) => {
                    while let Some((name, value)) = lines.peek().and_then(|line| inner(line)?.split_once(": ")) {
                        step.environment.insert(name.to_owned(), value.to_owned());
                        lines.next();
                    }
                }
                Some(("run", "|")) => {
                    while let Some(line) = lines.peek().and_then(|line| inner(line)) {
                        step.script.push_str(&format!("{line}\n"));
                        lines.next();
                    }
                }
                Some(("run", script)) => script.clone_into(&mut step.script),
                _ => return Err(format!("{line:?} has no form of a step")),
            }
        }
        Ok(action)
    }

    /// Reads the action of the repository.
    fn own() -> Result<Self, String> {
        Self::parse(&read(&root().join(ACTION))?).map_err(|why| format!("{ACTION}: {why}"))
    }

    /// Runs the steps in a new folder, and then a script that lists the devices.
    fn lists_devices(&self, given: &[(&str, &str)], folder: &Path, script: &str) -> Result<(), String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let later = self.run(given, folder)?;
        expect_device(&output_of(shell(&later, folder, script))?, script)
    }

    /// Runs the steps as GitHub's runner does, with these values of expressions such as `inputs.archive`. Returns the
    /// environment of later steps.
    fn run(&self, given: &[(&str, &str)], folder: &Path) -> Result<Texts, String> {
        let mut values = self.defaults.clone();
        let all = GITHUB.iter().chain(given);
        values.extend(all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let (path_file, environment_file) = (folder.join("path"), folder.join("environment"));
        for file in [&path_file, &environment_file] {
            write(file, "")?;
        }
        let mut environment = Texts::new();
        environment.insert("RUNNER_TEMP".to_owned(), folder.to_string_lossy().into_owned());
        for step in &self.steps {
            if !step.condition.as_ref().map_or(Ok(true), |condition| holds(condition, &values))? {
                continue;
            }
            let mut shell = shell(&environment, folder, &step.script);
            shell.env("GITHUB_ACTION_PATH", root()).env("no_proxy", "127.0.0.1");
            shell.env("GITHUB_PATH", &path_file).env("GITHUB_ENV", &environment_file);
            for (name, value) in &step.environment {
                shell.env(name, filled(value, &values)?);
            }
            output_of(shell).map_err(|why| format!("{ACTION}, {}: {why}", step.name))?;
            let paths = read(&path_file)?;
            let own = std::env::var("PATH").unwrap_or_default();
            environment
                .insert("PATH".to_owned(), paths.lines().rev().chain([own.as_str()]).collect::<Vec<_>>().join(":"));
            let added = read(&environment_file)?;
            let pairs = added.lines().filter_map(|line| line.split_once('='));
            environment.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Ok(environment)
    }
}

/// Returns a line within a key of a step.
fn inner(line: &str) -> Option<&str> {
    line.strip_prefix("        ")
}

/// Returns a shell that runs a script as a step does.
fn shell(environment: &Texts, folder: &Path, script: &str) -> Command {
    let mut shell = command("bash", &["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
    shell.current_dir(folder).env_remove("DOORBELL_PRELOAD_LIB").env_remove("LD_PRELOAD").envs(environment);
    shell
}

/// Returns whether a condition of a step holds.
fn holds(condition: &str, values: &Texts) -> Result<bool, String> {
    let parts = condition.split_once(" == ").filter(|(name, _)| name.starts_with("inputs."));
    let (name, value) = parts.ok_or_else(|| format!("{condition:?}: must be inputs.NAME == 'VALUE'"))?;
    Ok(values.get(name).is_some_and(|given| given == value.trim_matches('\'')))
}

/// Returns a text with the values of its expressions.
fn filled(text: &str, values: &Texts) -> Result<String, String> {
    let Some((before, rest)) = text.split_once("${{ ") else { return Ok(text.to_owned()) };
    let (name, after) = rest.split_once(" }}").ok_or_else(|| format!("{text:?}: the expression has no end"))?;
    let value = values.get(name).ok_or_else(|| format!("{text:?}: {name} has no value"))?;
    Ok(format!("{before}{value}{}", filled(after, values)?))
}

/// Runs the action with this archive, with and without its environment in later steps.
pub(crate) fn check(archive: &Path, folder: &Path) -> Result<(), String> {
    let (action, archive) = (Action::own()?, archive.to_string_lossy());
    for (name, environment, script) in
        [("plain", "false", "doorbell run -- ibv_devices"), ("with-environment", "true", "ibv_devices")]
    {
        let given = [("inputs.archive", &*archive), ("inputs.environment", environment)];
        action.lists_devices(&given, &folder.join(name), script)?;
    }
    Ok(())
}

/// Runs the action with a wheel: without an archive, as a file of the release, and at an address with a query.
pub(crate) fn check_wheel(wheel: &Path, folder: &Path) -> Result<(), String> {
    let action = Action::own()?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let (release, with_query) = (format!("{REPOSITORY}/releases/download/{TAG}/{name}"), format!("{name}?token=1"));
    let script = "doorbell run -- ibv_devices";
    let address = served(wheel, &release)?;
    let server = address.strip_suffix(&format!("/{release}")).unwrap_or_default();
    action.lists_devices(&[("github.server_url", server)], &folder.join("release"), script)?;
    let address = served(wheel, &with_query)?;
    action.lists_devices(&[("inputs.archive", &*address)], &folder.join("query"), script)
}

/// Serves a file over HTTP at the path `path`, and returns its address. The server answers one request.
pub(crate) fn served(file: &Path, path: &str) -> Result<String, String> {
    let failed = |error| format!("{} could not be served: {error}", file.display());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let bytes = fs::read(file).map_err(failed)?;
    let wanted = format!("GET /{path} ");
    std::thread::spawn(move || -> io::Result<()> {
        let (stream, _) = listener.accept()?;
        let mut request = BufReader::new(stream);
        let (mut first, mut line) = (String::new(), String::new());
        request.read_line(&mut first)?;
        // The request ends with an empty line.
        while request.read_line(&mut line)? > 2 {
            line.clear();
        }
        let mut stream = request.into_inner();
        let status = if first.starts_with(&wanted) { "200 OK" } else { "404 Not Found" };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len())?;
        stream.write_all(&bytes)
    });
    Ok(format!("http://127.0.0.1:{port}/{path}"))
}

/// Checks that the output of a program has the name of the device.
pub(crate) fn expect_device(output: &str, name: &str) -> Result<(), String> {
    if output.contains("doorbell0") { Ok(()) } else { Err(format!("{name} finds no doorbell0:\n{output}")) }
}

pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TWO_STEPS: &str = "inputs:\n  a:\n    required: true\n  b:\n    default: \"no\"\nruns:\n  steps:\n    - name: First\n      \
        shell: bash\n      env:\n        A: ${{ inputs.a }}\n      run: echo \"$A\" >> \"$GITHUB_PATH\"\n    - name: Second\n      \
        if: inputs.b == 'yes'\n      shell: bash\n      run: |\n        echo \"X=1\" >> \"$GITHUB_ENV\"\n        true\n";

    #[test]
    fn the_action_of_the_repository_has_the_known_form() {
        let action = Action::own().unwrap();
        assert!(action.steps.len() == 2 && action.steps.iter().all(|step| !step.script.is_empty()), "{action:?}");
        let default = |name: &str| action.defaults.get(name).map(String::as_str);
        assert_eq!([default("inputs.archive"), default("inputs.environment")], [Some(""), Some("false")]);
    }

    #[test]
    fn steps_run_with_their_inputs_and_pass_on_their_environment() {
        let action = Action::parse(TWO_STEPS).unwrap();
        assert_eq!(action.steps[1].script, "echo \"X=1\" >> \"$GITHUB_ENV\"\ntrue\n");
        let folder = tempfile::tempdir().unwrap();
        for (given, expected) in [("yes", "/a:1"), ("no", "/a:")] {
            let later = action.run(&[("inputs.a", "/a"), ("inputs.b", given)], folder.path()).unwrap();
            let printed = output_of(shell(&later, folder.path(), "echo \"${PATH%%:*}:${X:-}\"")).unwrap();
            assert_eq!(printed.trim(), expected);
        }
    }

    #[test]
    fn wrong_arguments_of_the_installation_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (file, with_space) = (folder.path().join("none.tar.gz"), folder.path().join("a b"));
        let (file, with_space) = (file.to_string_lossy(), with_space.to_string_lossy());
        for (arguments, why) in [
            (&[][..], "usage: install.sh ARCHIVE [FOLDER]"),
            (&[""][..], "usage: install.sh ARCHIVE [FOLDER]"),
            (&[&*file, &*with_space][..], "must have no space and no colon"),
            (&[&*file, "/proc/none"][..], "/proc/none"),
        ] {
            let install = command("sh", &[&["ci/install.sh"][..], arguments].concat());
            let error = output_of(install).unwrap_err();
            assert!(error.contains(why), "{arguments:?}: {error}");
        }
    }

    /// An archive of a program for another processor, and a system whose `ldd` is that of another C library.
    #[test]
    fn an_archive_that_does_not_start_has_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let program = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        program(&folder.path().join("doorbell-1/bin/doorbell"), "#!/none\n");
        let (home, archive) = (folder.path().to_string_lossy(), folder.path().join("archive.tar.gz"));
        let archive = archive.to_string_lossy();
        output_of(command("tar", &["-czf", &archive, "-C", &home, "doorbell-1"])).unwrap();
        let tools = folder.path().join("tools");
        for (libc, remedy) in
            [("GNU libc", "a glibc that is not newer"), ("musl libc (x86_64)", "debian or python:3-slim")]
        {
            program(&tools.join("ldd"), &format!("#!/bin/sh\necho '{libc}' >&2\nexit 1\n"));
            let mut install = command("sh", &["ci/install.sh", &archive, &format!("{home}/installed")]);
            install.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
            let error = output_of(install).unwrap_err();
            assert!(error.contains("does not start here") && error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_served_file_arrives_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("archive");
        fs::write(&file, "bytes").unwrap();
        for (path, status) in [("archive.tar.gz", "200"), ("other", "404")] {
            let address = served(&file, "archive.tar.gz").unwrap();
            let port = address.strip_prefix("http://127.0.0.1:").and_then(|rest| rest.split('/').next()).unwrap();
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse::<u16>().unwrap())).unwrap();
            write!(stream, "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let expected = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&expected) && answer.ends_with("\r\n\r\nbytes"), "{answer}");
        }
    }

    #[test]
    fn other_forms_are_errors() {
        let parse = |text: &str| Action::parse(text).unwrap_err();
        assert!(parse("name: a\n").contains("steps:"));
        assert!(parse("runs:\n  steps:\n    - name: A\n      uses: b\n").contains("uses: b"));
        assert!(parse("runs:\n  steps:\n      run: b\n").contains("before the first step"));
        assert!(holds("always()", &Texts::new()).unwrap_err().contains("inputs.NAME"));
        assert!(holds("github.ref == 'a'", &Texts::new()).unwrap_err().contains("inputs.NAME"));
        for name in ["inputs.c", "github.token"] {
            let why = filled(&format!("${{{{ {name} }}}}"), &Texts::new()).unwrap_err();
            assert!(why.contains(&format!("{name} has no value")), "{why}");
        }
    }
}
