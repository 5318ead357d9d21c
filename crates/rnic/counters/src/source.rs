//! Sources of counters.

pub mod ethtool;
mod published;
mod sysfs;

pub use published::PublishedSource;
pub use sysfs::{SYSFS, SysfsSource};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sample::Reading;

/// Source of devices.
pub trait Source: Send {
    /// Reads the current values of all its devices, and notes each problem.
    fn read(&mut self, reading: &mut Reading);
}

/// Opens a regular file for reading. A pipe in its place does not block the caller.
fn regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
    }
}
