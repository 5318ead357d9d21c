//! Core files of programs that crashed in a step, and their backtraces.
//!
//! The setting `core_pattern` determines where the kernel writes core files. The setting applies to the whole machine,
//! so this module only reads it. With the pattern `core`, a core file lies in the working directory of its program.
//! This is the root of the workspace, the folder of a crate, or a folder of this run.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::place;
use crate::shell::{command, output_of, root};

/// Maximum number of lines of a backtrace in the report.
const LINES_MAX: usize = 200;

/// Raises the limit of core files for all processes that this process starts, up to the hard limit.
pub(crate) fn allow() {
    let own = std::process::id().to_string();
    let raise = |limit: &str| output_of(command("prlimit", &["--pid", &own, limit]));
    // Only root may raise the hard limit.
    if let Err(why) = raise("--core=unlimited:unlimited").or_else(|_| raise("--core=unlimited:")) {
        eprintln!("the limit of core files could not be raised, so crashed programs leave no core: {why}");
    }
}

/// Moves the core files that were written since `since` to this run's folder, and returns their backtraces.
pub(crate) fn backtraces(since: SystemTime) -> String {
    let mut text = String::new();
    for core in written(since) {
        let kept = place::own_file("core");
        let core = if place::publish(&core, &kept).is_ok() { kept } else { core };
        text += &format!("\na program died; its core is {}\n{}", core.display(), backtrace(&core));
    }
    text
}

/// Removes the core files that were written since `since`. Tests that pass may crash programs on purpose.
pub(crate) fn discard(since: SystemTime) {
    for core in written(since) {
        if let Err(error) = fs::remove_file(&core) {
            eprintln!("{}: {error}", core.display());
        }
    }
}

fn written(since: SystemTime) -> Vec<PathBuf> {
    let mut found = in_packages(&root(), since);
    let mut folders = vec![place::own().to_path_buf()];
    while let Some(folder) = folders.pop() {
        let (cores, below) = cores_in(&folder, since);
        found.extend(cores);
        folders.extend(below);
    }
    found
}

/// Returns the core files in the root of a workspace and in the folders of its packages that were written since
/// `since`. Crates are at `crates/FLOOR/NAME`.
fn in_packages(root: &Path, since: SystemTime) -> Vec<PathBuf> {
    let (_, floors) = cores_in(&root.join("crates"), since);
    let crates = floors.iter().flat_map(|floor| cores_in(floor, since).1);
    let packages = [root.to_owned(), root.join("data"), root.join("xtask")];
    packages.into_iter().chain(crates).flat_map(|folder| cores_in(&folder, since).0).collect()
}

/// Returns the core files in a folder that were written since `since`, and the subfolders of the folder.
fn cores_in(folder: &Path, since: SystemTime) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut cores, mut folders) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        // Another program may remove the file at the same time.
        let Ok(metadata) = entry.metadata() else { continue };
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if metadata.is_dir() {
            folders.push(path);
        } else if metadata.is_file()
            && (name == "core" || name.starts_with("core."))
            && metadata.modified().is_ok_and(|modified| modified >= since)
            && is_core(&path)
        {
            cores.push(path);
        }
    }
    (cores, folders)
}

/// Returns whether the file is an ELF file of type `ET_CORE`.
fn is_core(path: &Path) -> bool {
    let mut header = [0; 18];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header.starts_with(b"\x7fELF") && header[16..] == 4u16.to_le_bytes()
}

/// Returns the backtraces of all threads in a core file, as gdb prints them.
fn backtrace(core: &Path) -> String {
    let gdb = |arguments: &[&str]| {
        let mut gdb = command("gdb", &["--batch", "--nx"]);
        gdb.args(arguments).arg("--core").arg(core);
        output_of(gdb)
    };
    let program = gdb(&["-ex", "info proc mappings"]).ok().and_then(|text| first_file(&text));
    let mut arguments = vec!["-ex", "thread apply all backtrace 40"];
    arguments.extend(program.iter().flat_map(|program| ["--exec", program, "--symbols", program]));
    match gdb(&arguments) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("[New LWP")).collect();
            lines[..lines.len().min(LINES_MAX)].join("\n")
        }
        Err(why) => format!("there is no backtrace: {why}"),
    }
}

/// Returns the file that is mapped at the lowest address, which is the program itself.
fn first_file(mappings: &str) -> Option<String> {
    let lines = mappings.lines().filter(|line| line.trim_start().starts_with("0x"));
    lines.filter_map(|line| line.find(" /").map(|at| line[at + 1..].trim_end().to_owned())).next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_program_is_the_file_at_the_lowest_address() {
        let text = "Mapped address spaces:\n\n          Start Addr           End Addr       Size     Offset objfile\n      \
                    0x5555000          0x5556000   0x1000        0x0 /usr/bin/a program\n      0x7f00000  0x7f01000 \
                    0x1000 0x0 /lib/libc.so.6\n";
        assert_eq!(first_file(text).as_deref(), Some("/usr/bin/a program"));
        assert_eq!(first_file("warning: none"), None);
    }

    #[test]
    fn cores_are_found_in_the_root_and_in_the_folders_of_packages() {
        let root = tempfile::tempdir().unwrap();
        let header = [&b"\x7fELF"[..], &[0; 12], &4u16.to_le_bytes()].concat();
        let write = |folder: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("core"), &header).unwrap();
            folder.join("core")
        };
        let expected = ["", "data", "xtask", "crates/rnic/wire", "crates/tools/cli"].map(write);
        write("crates/tools/cli/src");
        let mut found = in_packages(root.path(), SystemTime::UNIX_EPOCH);
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected);
    }

    /// Runs only if this machine writes cores into the working directory, and has gdb.
    #[test]
    fn a_core_in_the_working_directory_names_the_function() {
        let folder = tempfile::tempdir().unwrap();
        let before = SystemTime::now() - std::time::Duration::from_secs(5);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -c unlimited && exec sh -c 'kill -SEGV $$'"]).current_dir(folder.path());
        assert!(!shell.status().unwrap().success());
        fs::write(folder.path().join("core.txt"), "no core file, although its name begins with `core.`").unwrap();
        let (cores, _) = cores_in(folder.path(), before);
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
        if pattern.trim() != "core" || !crate::peers::has("gdb") {
            eprintln!("left out: cores go to {pattern:?}");
            return;
        }
        assert_eq!(cores.len(), 1);
        assert!(backtrace(&cores[0]).contains("kill"), "{}", backtrace(&cores[0]));
        assert!(cores_in(folder.path(), SystemTime::now() + std::time::Duration::from_secs(60)).0.is_empty());
    }
}
