//! Each data file exists only once in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that the test skips, since they hold no sources.
const LEFT_OUT: [&str; 3] = [".git", "target", "benchmarks"];

fn visit(folder: &Path, file: &mut dyn FnMut(PathBuf)) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        // `file_type` reports a link to a folder as a link, so the recursion cannot loop.
        if entry.file_type().unwrap().is_dir() { visit(&entry.path(), file) } else { file(entry.path()) }
    }
}

/// Returns a sentence about the first file that is a copy of a data file or a link to a data file.
fn violation(files: &[PathBuf], data: &Path) -> Option<String> {
    let is_data = |path: &Path| path.starts_with(data) && path.extension().is_some_and(|extension| extension == "toml");
    let own: BTreeMap<Vec<u8>, &PathBuf> =
        files.iter().filter(|path| is_data(path)).map(|path| (fs::read(path).unwrap(), path)).collect();
    // Read only files with the length of a data file. A folder may hold large files, and also pipes, which would block
    // the test.
    let lengths: BTreeSet<u64> = own.keys().map(|text| text.len() as u64).collect();
    files.iter().find_map(|path| {
        let target = path.canonicalize().ok()?;
        if path.is_symlink() && is_data(&target) {
            return Some(format!("{} is a link to {}", path.display(), target.display()));
        }
        lengths.contains(&fs::metadata(path).ok()?.len()).then_some(())?;
        let original = own.get(&fs::read(path).ok()?)?;
        (*original != path).then(|| format!("{} is a copy of {}", path.display(), original.display()))
    })
}

#[test]
fn data_is_neither_copied_nor_linked() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    // An unpacked package has no workspace around it, so the test then searches only the package.
    let root = data.parent().filter(|root| root.join("Cargo.lock").exists()).unwrap_or(data);
    let mut files = Vec::new();
    visit(&root.canonicalize().unwrap(), &mut |path| files.push(path));
    assert!(files.len() > 10, "{files:?}");
    assert_eq!(violation(&files, &data.canonicalize().unwrap()), None);
}

#[test]
fn copies_and_links_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (data, copy, link) = (root.join("data"), root.join("copy.toml"), root.join("link.toml"));
    let original = data.join("nic.toml");
    fs::create_dir(&data).unwrap();
    fs::write(&original, "value = 1").unwrap();
    assert_eq!(violation(std::slice::from_ref(&original), &data), None);
    fs::write(&copy, "value = 1").unwrap();
    assert!(violation(&[original.clone(), copy], &data).unwrap().contains("is a copy of"));
    std::os::unix::fs::symlink(&original, &link).unwrap();
    assert!(violation(&[original, link], &data).unwrap().contains("is a link to"));
}

#[test]
fn each_testbed_has_a_short_and_a_long_name() {
    let named = |files: &[doorbell_data::File], of: fn(&doorbell_data::Names) -> &'static str| {
        let files: BTreeSet<&str> = files.iter().map(|file| file.name).collect();
        assert_eq!(files, doorbell_data::NAMES.iter().map(of).collect::<BTreeSet<&str>>());
    };
    named(doorbell_data::PUBLISHED, |names| names.short);
    named(doorbell_data::PARAMETERS, |names| names.short);
    named(doorbell_data::TESTBEDS, |names| names.long);
    let t1 = doorbell_data::names("T1").unwrap();
    assert_eq!((t1, t1.long), (doorbell_data::names("ConnectX5-100g").unwrap(), "connectx5-100g"));
    assert_eq!(doorbell_data::names("t9"), None);
}

#[test]
fn every_file_of_the_folders_is_built_in() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, files) in [
        ("published", doorbell_data::PUBLISHED),
        ("testbeds", doorbell_data::TESTBEDS),
        ("hardware", doorbell_data::HARDWARE),
        ("parameters", doorbell_data::PARAMETERS),
        ("fault-plans", doorbell_data::FAULT_PLANS),
    ] {
        assert_eq!(fs::read_dir(data.join(folder)).unwrap().count(), files.len(), "{folder}");
        for file in files {
            let path = data.join(folder).join(file.name).with_extension("toml");
            assert_eq!(fs::read_to_string(path).unwrap(), file.text, "{}", file.path);
        }
    }
}
