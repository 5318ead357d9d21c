//! Runs the commands of the pages for users as a reader would, and compares their outputs with the pages.

mod blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::programs::built;
use crate::shell::{Running, command, output_of, root};
use crate::{network, place};

use blocks::Command;

/// Maximum time for all commands of a page.
const PATIENCE: Duration = Duration::from_secs(300);

/// Character around the status of a command, which no output has.
const MARK: char = '\x1e';

/// Pages with commands, as patterns of git. Records of past measurements are not among them.
const PAGES: [&str; 4] = ["README.md", "docs/*.md", "crates/*/README.md", "python/README.md"];

/// Runs the commands of all pages.
pub(crate) fn check() -> Result<(), String> {
    let mut failures = Vec::new();
    for page in pages()? {
        if let Err(why) = check_page(&page) {
            failures.push(format!("{}: {why}", page.display()));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Returns the pages for users.
fn pages() -> Result<Vec<PathBuf>, String> {
    let mut list = command("git", &["ls-files", "--cached", "--others", "--exclude-standard"]);
    list.args(PAGES);
    let list = output_of(list)?;
    Ok(list.lines().map(PathBuf::from).collect())
}

/// Runs the commands of a page. Most pages have none, so they need no network of their own.
fn check_page(page: &Path) -> Result<(), String> {
    let text = fs::read_to_string(root().join(page)).map_err(|error| error.to_string())?;
    let commands = blocks::commands(&text)?;
    if commands.is_empty() { Ok(()) } else { network::apart(|| run(page, &commands)) }
}

/// Runs the commands of a page in one shell and a new folder.
fn run(page: &Path, commands: &[Command]) -> Result<(), String> {
    let folder = place::own_file("guide");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // A program that outlives the shell keeps this file open, but no pipe that must end.
    let printed = folder.with_extension("txt");
    let script = format!("exec > '{}'\n{}", printed.display(), script(commands));
    let mut shell = command("bash", &["-c", &script]);
    shell.current_dir(&folder);
    shell.env("PATH", format!("{}:{}", built().display(), std::env::var("PATH").unwrap_or_default()));
    Running::start(shell)?.finish(PATIENCE)?;
    let output = fs::read_to_string(&printed).map_err(|error| format!("{}: {error}", printed.display()))?;
    judge(commands, &output)?;
    eprintln!("{}: {} commands", page.display(), commands.len());
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns a script that runs all commands and prints their statuses. At its end it kills the processes in the
/// background, which must be single programs.
fn script(commands: &[Command]) -> String {
    let mut script = String::from("exec 2>&1\n");
    for Command { line, text, in_background, .. } in commands {
        if *in_background {
            // `exec` makes the program itself the job. A server listens within the pause.
            script.push_str(&format!("(exec env {text}\n) > terminal-{line}.txt 2>&1 &\nsleep 2"));
        } else {
            script.push_str(text);
        }
        script.push_str("\nprintf '\\036%d\\036' $?\n");
    }
    script + "kill $(jobs -p) 2>/dev/null\nwait\nexit 0\n"
}

/// Compares status and output of each command with the page.
fn judge(commands: &[Command], output: &str) -> Result<(), String> {
    let mut parts = output.split(MARK);
    for command in commands {
        let place = format!("line {}, `{}`", command.line, command.text);
        let (Some(output), Some(status)) = (parts.next(), parts.next()) else {
            return Err(format!("{place}: the shell ended before this command"));
        };
        let expected = command.properties.status;
        if status != expected.to_string() {
            return Err(format!("{place} ended with status {status}, the page has {expected}:\n{output}"));
        }
        command.compare(output).map_err(|why| format!("{place}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_valid_blocks() {
        let pages = pages().expect("git lists the pages");
        assert!(!pages.is_empty());
        for page in pages {
            let text = fs::read_to_string(root().join(&page)).expect("git has listed the page");
            blocks::commands(&text).unwrap_or_else(|why| panic!("{}: {why}", page.display()));
        }
    }

    #[test]
    fn a_shell_runs_the_commands_of_a_page() {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let ends = |page: &str| {
            let commands = blocks::commands(page).expect("the page is valid");
            let mut shell = command("bash", &["-c", &script(&commands)]);
            shell.current_dir(folder.path());
            judge(&commands, &output_of(shell).expect("the script ends well"))
        };
        let page = "```console\n$ sleep 60 &\n$ x=2; echo $x\n2\n$ echo a >&2\na\n```\n";
        assert_eq!(ends(page), Ok(()));
        let page =
            "<!-- commands: in terminals -->\n```console\n$ sleep 60 # one\n$ ls; cat *.txt\nterminal-3.txt\n```\n";
        assert_eq!(ends(page), Ok(()));
        assert_eq!(ends("<!-- commands: status 3 -->\n```console\n$ (exit 3)\n```\n"), Ok(()));
        assert!(ends("```console\n$ echo 1\n2\n```\n").expect_err("other output").starts_with("line 2, `echo 1`"));
        assert!(ends("```console\n$ false\n```\n").expect_err("other status").contains("status 1"));
        assert!(ends("```console\n$ exit\n```\n").expect_err("the shell ends").contains("the shell ended before"));
    }
}
