//! Sources of counters.

pub mod ethtool;
mod published;
mod sysfs;

pub use published::{Answered, AskError, PublishedSource};
pub use sysfs::{SYSFS, SysfsSource};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sample::Reading;

/// A source of devices and their counters.
pub trait Source: Send {
    /// Adds the current values of all devices of this source to `reading`, and a note for each problem.
    fn read(&mut self, reading: &mut Reading);
}

/// Opens a regular file for reading. If the path names a pipe, the function fails instead of blocking.
fn regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
    }
}
