//! `doorbell run` and `doorbell env`. The library itself is tested with real programs, by
//! `cargo xtask test`; a file stands for it here, which the dynamic linker ignores.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{Running, doorbell, run};

/// A file where a library should be; it goes with its handle.
struct Library(PathBuf);

impl Library {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-{}-{name}.so", std::process::id()));
        fs::write(&path, "no library").expect("the temporary folder can be written");
        Self(path)
    }

    fn with(&self, mut command: Command) -> Command {
        command.env("DOORBELL_PRELOAD_LIB", &self.0).env_remove("LD_PRELOAD");
        command
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_program_gets_its_environment_and_gives_its_status() {
    let library = Library::new("run");
    let mut command = library
        .with(doorbell("run --bind 127.0.0.9 --stats --vendor-id 0x2c9:4119 --check-memory --fault drop=0.5 --"));
    command.args([
        "sh",
        "-c",
        "echo $DOORBELL_BIND $DOORBELL_STATS $DOORBELL_VENDOR_ID $DOORBELL_FAULT $DOORBELL_CHECK_MEMORY $LD_PRELOAD; exit 7",
    ]);
    let finished = Running::start(command).finish().expect_status(7);
    let expected = format!("127.0.0.9 1 0x2c9:4119 drop=0.5,seed=0 1 {}\n", library.0.display());
    assert_eq!(finished.stdout, expected);
}

#[test]
fn a_program_is_the_same_process() {
    let library = Library::new("process");
    let mut command = library.with(doorbell("run --"));
    command.args(["sh", "-c", "echo $$"]);
    let running = Running::start(command);
    let id = running.id();
    assert_eq!(running.finish().expect_status(0).stdout, format!("{id}\n"));
}

#[test]
fn the_environment_is_printed_for_a_shell_and_as_json() {
    let library = Library::new("env");
    let mut command = library.with(doorbell("env --udp-port 5000 --explain"));
    command.env("LD_PRELOAD", "/lib/other.so");
    let text = Running::start(command).finish().expect_status(0).stdout;
    let path = library.0.display();
    assert_eq!(
        text,
        format!("export LD_PRELOAD={path}:/lib/other.so\nexport DOORBELL_PORT=5000\nexport DOORBELL_LOG=debug\n")
    );
    let json = Running::start(library.with(doorbell("env --udp-port 5000 --json"))).finish().expect_status(0).json();
    assert_eq!(json["DOORBELL_PORT"], "5000");
    assert_eq!(json["LD_PRELOAD"], path.to_string());
}

#[test]
fn what_cannot_be_run_is_explained() {
    run("run").expect_complaint(2, &["PROGRAM"]);
    run("run --vendor-id mellanox -- true").expect_complaint(2, &["mellanox", "0x2c9:4119"]);
    run("run --udp-port 0 -- true").expect_complaint(2, &["0"]);
    let library = Library::new("none");
    let missing = Running::start(library.with(doorbell("run -- /no/such/program"))).finish();
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.stderr.contains("/no/such/program could not be started"), "{}", missing.stderr);
    let mut command = doorbell("env");
    command.env("DOORBELL_PRELOAD_LIB", "/no/such/library.so");
    let finished = Running::start(command).finish();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("/no/such/library.so, which is not a file"), "{}", finished.stderr);
}
