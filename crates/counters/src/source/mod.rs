//! Where counters are read.

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

/// A place where devices are found.
pub trait Source: Send {
    /// Reads all devices of it as they are now, and notes what cannot be read.
    fn read(&mut self, reading: &mut Reading);
}

/// Opens a regular file to read. Nothing that is made up to be a pipe keeps us waiting.
fn regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
    }
}
