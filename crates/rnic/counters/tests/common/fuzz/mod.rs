//! Fuzz bodies: functions of bytes that create files as another process does, and change the files between looks of a
//! monitor. A test on stable Rust runs the bodies over a corpus, and on mutations of it for a bounded time.

mod published;
mod sysfs;

use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use doorbell_counters::{Common, Interval, Look, Rates};
pub use doorbell_testing::fuzz::Choices;
use nix::sys::stat::Mode;
pub use published::fuzz_published;
pub use sysfs::fuzz_sysfs;
use tempfile::TempDir;

/// Maximum number of steps for one input.
const MOST_STEPS: usize = 24;

/// Creates a directory that only this user can access. The directory is in memory if possible, since the bodies create
/// many files.
fn directory() -> TempDir {
    let alone = Permissions::from_mode(0o700);
    let memory = Path::new("/dev/shm");
    let within = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().permissions(alone).tempdir_in(within).expect("a temporary directory")
}

/// Removes any file or directory at the path.
fn remove(path: &Path) {
    // `remove_file` failed, so the path names a directory or does not exist.
    if std::fs::remove_file(path).is_err() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Replaces any file or directory at the path with a new file.
fn write(path: &Path, bytes: &[u8]) {
    remove(path);
    // If the parent directory does not exist or is a file, nothing is written.
    if path.parent().is_some_and(|parent| std::fs::create_dir_all(parent).is_ok()) {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.and_then(|mut file| file.write_all(bytes)).expect("room for a file");
    }
}

/// Changes a regular file while a reader may have it open.
fn change(path: &Path, choices: &mut Choices<'_>) {
    // Skip pipes, which would block, and links, whose target may be another file of the machine.
    if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return;
    }
    let file = OpenOptions::new().write(true).open(path).expect("a file of ours");
    let bytes = file.metadata().expect("a file that is open").len();
    match choices.below(4) {
        0 => file.set_len(choices.below(1 << 16) as u64),
        1 => file.set_len((bytes / 8).saturating_sub(choices.below(4) as u64) * 8),
        2 => file.set_len(bytes + choices.byte() as u64),
        _ => {
            let at = choices.below(1 + (bytes / 8) as usize) as u64 * 8;
            file.write_all_at(&word(choices).to_ne_bytes(), at)
        }
    }
    .expect("room for a file");
}

/// Replaces any file at the path with a file that is not regular, or with a file that never ends.
fn replace(path: &Path, choices: &mut Choices<'_>) {
    remove(path);
    let parent = path.parent().expect("each path has a parent");
    if std::fs::create_dir_all(parent).is_err() {
        return;
    }
    match choices.below(5) {
        0 => std::fs::create_dir(path),
        1 => nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(std::io::Error::from),
        2 => symlink("/dev/zero", path),
        3 => symlink(path, path),
        _ => symlink("nowhere", path),
    }
    .expect("room for the file");
}

/// Returns a word at some boundary value, or an arbitrary word.
fn word(choices: &mut Choices<'_>) -> u64 {
    match choices.below(8) {
        0 => u64::from(choices.byte()),
        1 => choices.short() as u64,
        2 => u64::MAX - u64::from(choices.byte()),
        3 => 1 << choices.below(64),
        4 => (1 << choices.below(64)) - 1,
        _ => choices.word(),
    }
}

/// Checks the properties that every look must have.
fn check(look: &Look) {
    for note in &look.notes {
        check_text(note, 4096);
    }
    let mut labels = Vec::new();
    for Interval { sample, rates } in &look.devices {
        let identity = &sample.identity;
        let texts = [Some(&identity.label), Some(&identity.name), identity.program.as_ref()];
        let texts = texts.into_iter().chain([identity.netdev.as_ref(), identity.driver.as_ref()]).flatten();
        texts.for_each(|text| check_text(text, 512));
        sample.raw.keys().for_each(|name| check_text(&name.name, 512));
        if !sample.ended {
            assert!(!labels.contains(&&identity.label), "two devices have the label {:?}", identity.label);
            labels.push(&identity.label);
        }
        if let Some(rates) = rates {
            check_rates(rates);
        }
    }
}

/// Checks that a text has at most `most` bytes and no control characters.
fn check_text(text: &str, most: usize) {
    assert!(!text.contains(char::is_control), "{text:?} has a control character");
    assert!(text.len() <= most, "a text has {} B", text.len());
}

fn check_rates(rates: &Rates) {
    let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
    assert!(is_rate(rates.seconds), "{} s", rates.seconds);
    for common in Common::ALL {
        let rate = rates.per_second(common);
        assert!(rate.is_none_or(is_rate), "{}: {rate:?} per second", common.name());
    }
    rates.others_per_second().for_each(|(name, rate)| assert!(is_rate(rate), "{name}: {rate} per second"));
    rates.remarks.iter().for_each(|remark| check_text(remark, 1024));
}

/// Returns one of the places below `root`, as the input chooses.
fn place(root: &Path, places: &[&str], choices: &mut Choices<'_>) -> PathBuf {
    root.join(places[choices.below(places.len())])
}
