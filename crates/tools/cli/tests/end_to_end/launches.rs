//! Processes of a launch that find each other, or report why they do not. The tests act as the launcher, and set the
//! environment variables of Open MPI.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::command::{Running, doorbell};
use crate::study::{Scratch, records};

/// Time within which a process must report its error. It is shorter than the time for which processes wait for process
/// number 0.
const SOON: Duration = Duration::from_secs(40);

/// Starts process `rank` of two on this machine.
fn process(rank: usize, job: &str, arguments: &str) -> Running {
    let mut command = doorbell(&format!("study -d doorbell0 {arguments}"));
    command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
    command.envs([("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    command.env("PMIX_NAMESPACE", format!("{job}-{}", std::process::id()));
    Running::start(command)
}

#[test]
fn processes_report_a_failure_of_number_0_at_once() {
    // Not even root can write to /proc/sys.
    let study = "--out /proc/sys direct-write/latency";
    for is_first in [true, false] {
        let begun = Instant::now();
        let other = is_first.then(|| process(1, "fails", study));
        let zero = process(0, "fails", study);
        let other = other.unwrap_or_else(|| process(1, "fails", study));
        zero.finish().expect_complaint(1, &["/proc/sys: no records and no report can be written there"]);
        other.finish().expect_complaint(1, &["process 0 of the launch: /proc/sys: no records and no report"]);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
    // Each process checks the meeting point and the command line. Only process number 0 prints errors of the command
    // line.
    let begun = Instant::now();
    let wrong =
        |rank| process(rank, "wrong", "--out /proc/sys direct-write/latency --rendezvous /no/such/place").finish();
    wrong(1).expect_complaint(1, &["/no/such/place", "--rendezvous"]);
    wrong(0).expect_complaint(1, &["/no/such/place", "--rendezvous"]);
    assert_eq!(process(1, "wrong", "localhost").finish().expect_status(2).stderr, "");
    assert!(begun.elapsed() < SOON);
}

/// A killed launch has left its file, and another service now listens at the address in the file. The service waits for
/// data of its client, or sends a greeting.
#[test]
fn a_foreign_service_at_a_stale_address_blocks_no_launch() {
    for (job, greeting) in [("silent", &b""[..]), ("greets", b"SSH-2.0-OpenSSH_9.2\r\n")] {
        let (scratch, meeting) = (Scratch::new(job), tempfile::tempdir().unwrap());
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let file = meeting.path().join(format!("doorbell-{job}-{}", std::process::id()));
        let told = format!("{{\"address\":\"{}\",\"token\":\"secret\"}}", stranger.local_addr().unwrap());
        fs::write(&file, told).unwrap();
        // Lock the file, so that processes believe that its launch still runs.
        let believed = fs::File::open(&file).unwrap();
        believed.lock().unwrap();
        let study =
            format!("--out {} --rendezvous {}/ wire/request-response", scratch.path(), meeting.path().display());
        let begun = Instant::now();
        let other = process(1, job, &study);
        let (mut never_answers, _) = stranger.accept().unwrap();
        never_answers.write_all(greeting).unwrap();
        let zero = process(0, job, &study);
        zero.finish().expect_status(0);
        other.finish().expect_status(0);
        assert!(begun.elapsed() < SOON && !records(&scratch.0).is_empty());
        assert!(!file.exists());
    }
}
