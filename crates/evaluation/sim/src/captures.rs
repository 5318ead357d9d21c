//! Captures of simulated points, each in a file of one directory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use doorbell_output::files;

/// Directory for the captures of points.
#[derive(Clone, Debug)]
pub struct Captures {
    directory: PathBuf,
}

impl Captures {
    /// Creates the directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be made.
    pub fn create(directory: &Path) -> io::Result<Self> {
        files::own_directory(directory)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", directory.display())))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Returns the path of the capture of a point. Points are numbered from 1.
    pub fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("point-{number}.pcap"))
    }

    /// Creates the capture of a point.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn open(&self, number: usize) -> io::Result<Box<dyn Write + Send>> {
        let path = self.path(number);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Box::new(files::create(&path).map_err(named)?))
    }
}
