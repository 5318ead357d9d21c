//! A directory of records that other users can write to.

use std::os::unix::fs::{PermissionsExt as _, chown};

use super::*;

/// A volume of a container belongs to root, and any user can write to it.
#[test]
fn an_open_directory_is_used_unless_it_has_records_of_others() {
    let scratch = Scratch::new("open");
    fs::create_dir(&scratch.0).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).unwrap();
    let (experiment, point, record) = one();
    let directory = RunDirectory::create(&scratch.0).unwrap();
    directory.add(&experiment, &point, &environment("soft", 2), record.repetitions[0].clone()).unwrap();
    let file = directory.file(&experiment, &point);
    drop(directory);
    drop(RunDirectory::create(&scratch.0).unwrap());
    if doorbell_testing::root_or_leave_out("tests that change the owner of files") {
        chown(&file, Some(65_534), None).unwrap();
        let error = RunDirectory::create(&scratch.0).unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()) && error.contains("belongs to user 65534"), "{error}");
        assert_eq!(RunDirectory::read(&scratch.0).unwrap().len(), 1, "others may still read the records");
    }
}
