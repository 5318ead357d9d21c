//! Folders that processes of this user have for themselves, beside the files of counters, and how those are found that
//! nobody needs any more.

use std::path::{Path, PathBuf};

use doorbell_output::files;
use nix::unistd::geteuid;

use super::PublishError;
use super::directory::{Directory, DirectoryError, candidates};
use super::process::{Life, life, pid_namespace, start_ticks};

/// The folder of this process.
#[derive(Debug)]
pub struct ProcessFolder {
    /// Where it is: it exists, belongs to this user alone, and no other process uses it.
    pub path: PathBuf,
    /// Folders of processes that are gone, to be removed with all that is in them.
    pub left_behind: Vec<PathBuf>,
}

/// Finds or makes the folder `kind` of this process. A program that this process ran before may have left it.
///
/// # Errors
///
/// Where there is no directory that this user can use.
pub fn process_folder(kind: &str) -> Result<ProcessFolder, PublishError> {
    let mut reasons = Vec::new();
    // Where there is no /dev/shm, counters are not published, but this is needed.
    let last = files::private_path(Path::new("/tmp"), &format!("doorbell-{}", geteuid()));
    for path in candidates().into_iter().chain(last.ok()) {
        match within(path, kind) {
            Ok(folder) => return Ok(folder),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(PublishError(reasons.join("; ")))
}

fn within(path: PathBuf, kind: &str) -> Result<ProcessFolder, DirectoryError> {
    let above = Directory::create(&path)?;
    let all = Directory::create(&above.path.join(kind))?;
    let pid = std::process::id();
    let own = format!("{pid}-{}-{}", start_ticks(pid).unwrap_or(0), pid_namespace().unwrap_or(0));
    let path = Directory::create(&all.path.join(&own))?.path;
    let names = all.list().unwrap_or_default();
    let left_behind = names.iter().filter(|name| **name != own && is_left_behind(name)).map(|name| all.path.join(name));
    Ok(ProcessFolder { path, left_behind: left_behind.collect() })
}

/// Does a name say whose folder it is, and is that process gone?
fn is_left_behind(name: &str) -> bool {
    let mut numbers = name.split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(start)), Some(Ok(namespace)), None) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    else {
        return false;
    };
    u32::try_from(pid).is_ok_and(|pid| life(pid, Some(start), Some(namespace)) == Life::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_its_folder_again_and_those_of_the_dead() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("doorbell");
        let first = within(place.clone(), "trees").unwrap();
        assert!(first.path.is_dir() && first.left_behind.is_empty());
        std::fs::write(first.path.join("file"), "kept").unwrap();
        let trees = first.path.parent().unwrap();
        let namespace = pid_namespace().unwrap();
        let pid = std::process::id();
        // Another process had the number before; another's namespace is not ours to judge; neither is a foreign name.
        let dead = [format!("{pid}-1-{namespace}"), format!("{}-5-{namespace}", u32::MAX)];
        let others = [format!("{pid}-1-1"), format!("{pid}-1"), "1-2-3-4".to_owned(), "x".to_owned()];
        for name in dead.iter().chain(&others) {
            std::fs::create_dir(trees.join(name)).unwrap();
        }
        let second = within(place, "trees").unwrap();
        assert_eq!(second.path, first.path);
        assert!(second.path.join("file").exists());
        let mut expected: Vec<_> = dead.iter().map(|name| trees.join(name)).collect();
        expected.sort();
        assert_eq!(second.left_behind, expected);
    }

    #[test]
    fn a_folder_that_others_could_enter_is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let first = within(root.path().join("doorbell"), "trees").unwrap();
        std::fs::set_permissions(&first.path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(within(root.path().join("doorbell"), "trees"), Err(DirectoryError::Open { .. })));
    }
}
