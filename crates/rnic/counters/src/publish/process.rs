//! State of the processes that published files.

use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// State of the process that published a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    Gone,
    /// The process belongs to another PID namespace, so its state is not visible.
    Unknown,
}

/// Returns the start time of a process in clock ticks since boot. A process number can be reused; together with the
/// start time it is unique. Returns `None` if the process does not exist or is a zombie.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name of the program in parentheses, and the name may contain any character. So split the
    // line after the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = fields.first()?;
    // If the first thread of a process has ended, the process is shown as a zombie, even while other threads run. Such
    // a process has not ended.
    let other_threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) > 1;
    if matches!(*state, "Z" | "X") && !other_threads() {
        return None;
    }
    fields.get(19)?.parse().ok() // field 22 of the whole line: the start time
}

/// Returns the PID namespace of this process.
pub(crate) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// Returns the state of the process with the number `pid` and the start time `start` in the PID namespace `namespace`.
pub(crate) fn life(pid: u32, start: Option<u64>, namespace: Option<u64>) -> Life {
    let Some(own) = pid_namespace() else { return Life::Unknown };
    if start.is_none() || namespace != Some(own) {
        return Life::Unknown;
    }
    if start_ticks(pid) == start { Life::Running } else { Life::Gone }
}

/// Returns the name of this process: its first argument without directories.
pub(crate) fn program() -> String {
    let first = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&first).file_name().unwrap_or(&first).to_string_lossy().into_owned();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Maximum number of bytes read from a command line.
const MAX_COMMAND_BYTES: u64 = 4096;

/// Returns the command line of a running process; `None` if the process shows no command line. The process controls
/// this text, so control characters are replaced.
pub(crate) fn command(pid: u32) -> Option<Vec<String>> {
    let mut bytes = Vec::new();
    std::fs::File::open(format!("/proc/{pid}/cmdline")).ok()?.take(MAX_COMMAND_BYTES).read_to_end(&mut bytes).ok()?;
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let word = |word: &[u8]| -> String {
        String::from_utf8_lossy(word).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    };
    (!bytes.is_empty()).then(|| bytes.split(|&byte| byte == 0).map(word).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let pid = std::process::id();
        let start = start_ticks(pid);
        assert!(start.is_some());
        assert_eq!(life(pid, start, pid_namespace()), Life::Running);
        assert_eq!(
            life(pid, start.map(|start| start + 1), pid_namespace()),
            Life::Gone,
            "another process with the same number must count as gone"
        );
        assert_eq!(life(u32::MAX, start, pid_namespace()), Life::Gone);
        assert_eq!(
            life(u32::MAX, start, Some(1)),
            Life::Unknown,
            "a process of another namespace must count as unknown"
        );
        assert_eq!(life(u32::MAX, None, pid_namespace()), Life::Unknown);
    }

    #[test]
    fn an_unreaped_process_counts_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while start_ticks(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_command_is_shown_word_by_word() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "read line", "0\u{1b}[2J"]).stdin(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // Until `exec` succeeds, the child shows the command line of this process.
        let found = loop {
            match command(child.id()) {
                Some(found) if found[0] == "sh" => break found,
                _ => std::thread::yield_now(),
            }
        };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found, ["sh", "-c", "read line", "0?[2J"]);
        assert_eq!(command(u32::MAX), None);
    }

    #[test]
    fn the_program_has_a_name() {
        assert!(program().starts_with("doorbell_counters"), "{}", program());
    }
}
