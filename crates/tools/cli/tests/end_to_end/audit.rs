//! `doorbell audit`.

use std::fs;

use crate::command::{Finished, Running, list, measuring, number, positive, run};
use crate::counters::World;

const TABLE: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             0.00               9375.00            0.150000
";

/// Runs the audit of a file in a fresh folder.
fn audited(output: &str, arguments: &str) -> Finished {
    let folder = tempfile::tempdir().expect("there is room for a directory");
    let file = folder.path().join("output.txt");
    fs::write(&file, output).expect("a file can be written");
    run(&format!("audit --from {} {arguments}", file.display()))
}

#[test]
fn an_output_from_elsewhere_has_a_verdict() {
    let fits = audited(TABLE, "--link 100G --json").expect_status(0).json();
    assert_eq!((&fits["schema"], &fits["verdict"]), (&"doorbell-audit/1".into(), &"consistent".into()));
    assert_eq!((number(&fits, "/claim/bytes"), number(&fits, "/arithmetic/packets")), (65_536, 16));
    let exceeds = audited(TABLE, "--link 25G").expect_status(1).stdout;
    assert!(exceeds.starts_with("contradicted"), "{exceeds}");
    assert!(exceeds.contains("exceed a link of 25.0 Gb/s"), "{exceeds}");
    let predicted = audited(TABLE, "--testbed t2 --json").expect_status(0).json();
    positive(&predicted, "/predicted/bytes_per_s");
}

#[test]
fn failed_completions_are_explained() {
    let failed = audited("Completion with error at client\n Failed status 12: wr_id 0\n", "").expect_status(1).stdout;
    assert!(failed.starts_with("failed"), "{failed}");
    assert!(failed.contains("12 (transport retry counter exceeded): perhaps the peer ended"), "{failed}");
}

#[test]
fn texts_without_a_benchmark_are_unknown() {
    let unknown = audited("hello\n", "--json").expect_status(0).json();
    assert_eq!(unknown["verdict"], "unknown");
    assert!(list(&unknown, "/notes")[0].as_str().is_some_and(|note| note.contains("perftest")), "{unknown:#}");
    let text = audited("hello\n", "--link 100G").expect_status(0).stdout;
    assert!(text.starts_with("unknown      the output has no figure"), "{text}");
}

#[test]
fn localised_outputs_are_read() {
    let folder = tempfile::tempdir().expect("there is room for a directory");
    let file = folder.path().join("output.txt");
    // A text in Latin-1, which is no UTF-8.
    fs::write(&file, [&b"Hostname: M\xfcnchen\n"[..], TABLE.as_bytes()].concat()).expect("a file can be written");
    let audit = run(&format!("audit --from {} --link 100G --json", file.display())).expect_status(0).json();
    assert_eq!(audit["verdict"], "consistent");
    let text = audited(&TABLE.replace("9375.00", "9 375.00"), "--link 25G").expect_status(0).stdout;
    assert!(text.starts_with("unknown") && text.contains("6 of 5 columns"), "{text}");
}

#[test]
fn given_counters_contradict_a_claim() {
    let folder = tempfile::tempdir().expect("there is room for a directory");
    let file = folder.path().join("readings.json");
    let look = |time: u32, packets: u32| {
        format!(
            "{{\"unix_time_s\": {time}, \"devices\": [{{\"device\": \"mlx5_0/1\", \
             \"totals\": {{\"tx_packets\": {packets}}}}}]}}\n"
        )
    };
    fs::write(&file, look(1, 0) + &look(2, 40_000)).expect("a file can be written");
    let text = audited(TABLE, &format!("--counters {}", file.display())).expect_status(1).stdout;
    assert!(text.contains("5000 messages need 80000 packets; mlx5_0/1 counted 40000, enough for 2500"), "{text}");
    fs::write(&file, look(1, 100_000) + &look(2, 5)).expect("a file can be written");
    let text = audited(TABLE, &format!("--counters {}", file.display())).expect_status(0).stdout;
    assert!(text.contains("tx_packets of mlx5_0/1 decreased"), "{text}");
}

/// The command is a program that prints a table. No device counts packets meanwhile.
#[test]
fn a_command_is_run_and_its_output_is_read() {
    let world = World::new();
    let script = world.root().join("fake_bw");
    fs::write(&script, format!("printf '%s\\n' 'to stderr' >&2\ncat <<'END'\n{TABLE}END\nexit $1\n"))
        .expect("a file can be written");
    let audit = |status: i32| {
        let mut command = world.command("audit --link 25G --json --sysfs");
        command.arg(world.root()).args(["--", "sh"]).arg(&script).arg(status.to_string());
        Running::start(command).finish()
    };
    let finished = audit(0).expect_status(1);
    assert_eq!(finished.json()["verdict"], "contradicted");
    for line in ["to stderr", "9375.00"] {
        assert!(finished.stderr.contains(line), "{}", finished.stderr);
    }
    let failed = audit(3).expect_status(1).json();
    let ended = |note: &serde_json::Value| note.as_str().is_some_and(|note| note.contains("exit status: 3"));
    assert!(list(&failed, "/notes").iter().any(ended), "{failed:#}");
}

#[test]
fn software_devices_of_other_programs_count_only_if_they_are_selected() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let bench = Running::start(world.command("bench bw -s 4096 -D 100"));
    world.wait_for_packets();
    let audit = |options: &[&str]| {
        let mut command = world.command("audit --json --sysfs");
        command.arg(world.root()).args(options);
        command.args(["--", "sh", "-c", &format!("sleep 2; printf '%s' '{TABLE}'")]);
        Running::start(command).finish()
    };
    let is_left_out = |note: &serde_json::Value| note.as_str().is_some_and(|note| note.contains("left out: select"));
    let report = audit(&[]).expect_status(0).json();
    assert!(report["counters"].is_null(), "{report:#}");
    assert!(list(&report, "/notes").iter().any(is_left_out), "{report:#}");
    let pid = bench.id().to_string();
    for selector in ["doorbell0", pid.as_str()] {
        // The command claims another rate than that of the bench.
        let report = audit(&["--device", selector]).json();
        let device = report["counters"]["device"].as_str().unwrap_or_default();
        assert!(device.contains("doorbell0@"), "{selector}: {report:#}");
        assert_eq!(device.contains(" and "), selector == "doorbell0", "{selector}: {report:#}");
        assert!(!list(&report, "/notes").iter().any(is_left_out), "{report:#}");
    }
    bench.kill();
}

/// The command leaves a program that keeps its output open.
#[test]
fn the_audit_ends_with_its_command() {
    let world = World::new();
    let mut command = world.command("audit --json --sysfs");
    let script = format!("sleep 600 & echo $! >&2; printf '%s' '{TABLE}'");
    command.arg(world.root()).args(["--", "sh", "-c", &script]);
    let finished = Running::start(command).finish().expect_status(0);
    let id = finished.stderr.lines().find_map(|line| line.trim().parse::<u32>().ok()).expect("the program's id");
    let kill = format!("kill {id}");
    std::process::Command::new("sh").args(["-c", &kill]).status().expect("a shell can be started");
    let report = finished.json();
    let is_open = |note: &serde_json::Value| note.as_str().is_some_and(|note| note.contains("keeps the output open"));
    assert!(list(&report, "/notes").iter().any(is_open), "{report:#}");
    assert_eq!(number(&report, "/claim/iterations"), 5000);
}

#[test]
fn wrong_usage_and_missing_programs_have_a_sentence() {
    run("audit").expect_complaint(2, &["COMMAND"]);
    run("audit --from /no/such/file").expect_complaint(1, &["/no/such/file"]);
    run("audit --testbed nowhere -- true").expect_complaint(2, &["--testbed", "nowhere"]);
    run("audit -- /no/such/program").expect_complaint(1, &["/no/such/program could not be started"]);
}
