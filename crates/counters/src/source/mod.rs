//! Where counters are read.

pub mod ethtool;
mod published;
mod sysfs;

pub use published::PublishedSource;
pub use sysfs::{SYSFS, SysfsSource};

use crate::sample::Reading;

/// A place where devices are found.
pub trait Source: Send {
    /// Reads all devices of it as they are now, and notes what cannot be read.
    fn read(&mut self, reading: &mut Reading);
}
