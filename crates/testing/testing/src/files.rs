//! Directories of files for tests, such as parts of `/proc` and `/sys`.

use std::fs;

use tempfile::TempDir;

/// Creates a temporary directory with these files. Each entry is the path and the contents of a file.
///
/// # Panics
///
/// If a file cannot be created.
pub fn folder_with(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
        fs::write(path, text).expect("a new file");
    }
    folder
}
