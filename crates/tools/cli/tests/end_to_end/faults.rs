//! Fault plans of `doorbell bench`.

use std::fs;
use std::path::Path;

use doorbell_data::FAULT_PLANS;
use doorbell_fabric::FAULT_FIELDS;
use serde_json::Value;

use crate::bench::record;
use crate::command::{Running, doorbell, measuring, run};

#[test]
fn built_in_plans_fire_over_both_links() {
    let of_messages = [
        "lost-first",
        "lost-middle",
        "lost-last",
        "lost-ack",
        "lost-nak",
        "duplicate-requests",
        "rnr-then-success",
        "late-ack",
        "corrupted-icrc",
        "black-hole",
        "ghost-packets",
        "port-flap",
    ];
    for link in ["udp", "shm"] {
        for plan in of_messages {
            record(&format!("bw -n 300 -s 70000 --verify --link {link} --fault-plan {plan}"));
        }
        record(&format!("bw --op read -n 300 -s 70000 --verify --link {link} --fault-plan lost-read-response"));
        record(&format!("bw --op fetch-add -n 300 --verify --link {link} --fault-plan atomic-replay"));
    }
}

/// The rule of the plan is optional, so the journal shows that it fired.
#[test]
fn the_packet_after_the_wrap_is_lost_over_both_links() {
    let folder = tempfile::tempdir().unwrap();
    for link in ["udp", "shm"] {
        for op in ["send", "write"] {
            let journal = folder.path().join(format!("{link}-{op}"));
            record(&format!(
                "bw --op {op} -n 300 -s 70000 --verify --link {link} --first-psn 16777210 --fault-plan psn-wrap \
                 --fault-journal {}",
                journal.display()
            ));
            let text = fs::read_to_string(&journal).unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(!lines.is_empty(), "{op} over {link}: the plan never fired");
            assert!(lines.iter().all(|line| line["rule"] == 1 && line["psn"] == 0), "{text}");
        }
    }
    run("bench bw --first-psn 16777216").expect_complaint(2, &["--first-psn", "16777216", "16777215"]);
    run("bench bw --testbed connectx5-100g --first-psn 1").expect_complaint(2, &["--first-psn"]);
}

#[test]
fn a_capture_names_the_plan_and_its_rules() {
    let folder = tempfile::tempdir().unwrap();
    for link in ["udp", "shm"] {
        let capture = folder.path().join(format!("{link}.pcap"));
        record(&format!("bw -n 300 -s 16 --link {link} --fault-plan lost-ack --pcap {}", capture.display()));
        let bytes = fs::read(&capture).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("doorbell fault plan: ") && text.contains("name=lost-ack"), "{link}");
        assert!(text.contains("doorbell fault: dropped, rule 1 lost-ack"), "{link}");
    }
}

#[test]
fn packets_that_leave_are_struck_over_both_links() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    let rule = |action: &str, more: &str| format!("[[rule]]\naction = \"{action}\"\ndirection = \"out\"\n{more}\n");
    let rules = [
        rule("drop", "opcode = \"ack\"\nnth = 1"),
        rule("drop", "opcode = \"send\"\nnth = 5"),
        rule("corrupt", "opcode = \"send\"\nnth = 9"),
        rule("duplicate", "opcode = \"send\"\nnth = 20"),
        rule("delay", "opcode = \"send\"\nnth = 30\nfor = \"2ms\""),
    ];
    fs::write(&plan, format!("schema = \"doorbell-fault-plan/1\"\n{}", rules.concat())).unwrap();
    for link in ["udp", "shm"] {
        record(&format!("bw -n 300 -s 70000 --verify --link {link} --fault-plan {}", plan.display()));
    }
}

/// Writes a plan of one rule, and returns its path.
fn plan_of(folder: &Path, rule: &str) -> String {
    let path = folder.join("plan.toml");
    fs::write(&path, format!("schema = \"doorbell-fault-plan/1\"\n[[rule]]\n{rule}\n")).unwrap();
    path.display().to_string()
}

#[test]
fn bad_completions_and_refused_calls_end_a_measurement() {
    let _one_at_a_time = measuring();
    let folder = tempfile::tempdir().unwrap();
    let bad = "action = \"completion\"\noperation = \"send\"\nnth = 20\nstatus = \"rem-access-err\"";
    let refused = "action = \"call-error\"\ncall = \"create-qp\"\nerrno = \"ENOMEM\"";
    for link in ["udp", "shm"] {
        for (rule, part) in [(bad, "remote access"), (refused, "the fault plan refuses ibv_create_qp")] {
            let plan = plan_of(folder.path(), rule);
            let finished = run(&format!("bench bw -n 300 -s 16 --link {link} --fault-plan {plan}")).expect_status(1);
            assert!(finished.stderr.contains(part), "{}", finished.stderr);
        }
    }
    // The requester alone has completions of READs.
    for link in ["udp", "shm"] {
        for (plan, part) in
            [("bad-completion", "protection"), ("refused-post", "refuses"), ("qp-fatal-event", "flushed")]
        {
            let finished = run(&format!("bench bw --op read -n 300 -s 16 --link {link} --fault-plan {plan}"));
            let finished = finished.expect_status(1);
            assert!(finished.stderr.contains(part), "{plan}: {}", finished.stderr);
            assert!(!finished.stderr.contains("never fired"), "{plan}: {}", finished.stderr);
        }
        run(&format!("bench bw --op read -n 300 -s 16 --link {link} --fault-plan slow-completion")).expect_status(0);
    }
    let slow = plan_of(folder.path(), "action = \"slow-poll\"\noperation = \"receive\"\nnth = 5\nfor = \"3ms\"");
    run(&format!("bench bw -n 300 -s 16 --fault-plan {slow}")).expect_status(0);
    let testbed = format!("bench bw --testbed connectx5-100g --fault-plan {slow}");
    run(&testbed).expect_status(0);
    run(&format!("steer 127.0.0.1 --fault-plan {slow}")).expect_complaint(2, &["slow-poll", "middlebox"]);
    run("steer 127.0.0.1 --fault-plan port-flap").expect_complaint(2, &["port-down", "middlebox has no port"]);
}

#[test]
fn a_journal_has_the_rules_that_fired_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    record(&format!("bw -n 300 -s 70000 --fault-plan lost-nak --fault-journal {}", journal.display()));
    let text = fs::read_to_string(&journal).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_rule = |rule: u64| lines.iter().find(|line| line["rule"] == rule).unwrap_or_else(|| panic!("{text}"));
    // The request is lost at one side, and the NAK about it at the other side.
    let (request, nak) = (of_rule(1), of_rule(2));
    assert_eq!(request["name"], "lost-nak-1");
    assert_eq!((&request["from"], &request["to"]), (&nak["to"], &nak["from"]));
    assert_eq!(nak["opcode"], "RC Acknowledge");
}

#[test]
fn the_page_has_all_fields_and_plans() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/faults.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = |after: &str| {
        let table = page.split_once(after).expect("the table").1.lines().skip_while(|line| !line.starts_with('|'));
        table.take_while(|line| line.starts_with('|')).skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let fields = rows("<!-- fields:");
    assert_eq!(fields.len(), FAULT_FIELDS.len());
    for ((name, allowed), row) in FAULT_FIELDS.iter().zip(fields) {
        assert!(row.starts_with(&format!("| `{name}` | {allowed} | ")), "{row}");
    }
    let plans = rows("<!-- plans:");
    assert_eq!(plans.len(), FAULT_PLANS.len());
    for (file, row) in FAULT_PLANS.iter().zip(plans) {
        assert!(row.starts_with(&format!("| `{}` | ", file.name)), "{row}");
        let facts = row.split(" | ").skip(1).map(|fact| fact.trim_end_matches(" |"));
        facts.for_each(|fact| assert!(file.text.contains(&format!("= \"{fact}\"")), "{fact:?} of {}", file.path));
    }
}

#[test]
fn every_command_with_plans_lists_them() {
    let names: String = FAULT_PLANS.iter().flat_map(|file| [file.name, "\n"]).collect();
    for command in ["bench bw", "study", "run", "env", "steer 127.0.0.1"] {
        let finished = run(&format!("{command} --fault-plan list")).expect_status(0);
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), (names.as_str(), ""), "{command}");
    }
}

#[test]
fn a_rule_that_never_fires_is_an_error() {
    let _one_at_a_time = measuring();
    let finished = run("bench bw -n 100 -s 16 --fault-plan lost-read-response").expect_status(1);
    assert!(finished.stderr.contains("fault rule 1 never fired"), "{}", finished.stderr);
    let unread = run("bench bw -n 100 -s 16 --fault-plan lost-ack --fault-journal /dev/null").expect_status(0);
    assert!(unread.stderr.contains("the journal /dev/null cannot be read back"), "{}", unread.stderr);
}

#[test]
fn simulated_hosts_take_plans() {
    let run_with = |plan: &str| run(&format!("bench bw -n 300 -s 64K --testbed connectx5-100g --fault-plan {plan}"));
    run_with("lost-middle").expect_status(0);
    let finished = run_with("lost-read-response").expect_status(1);
    assert!(finished.stderr.contains("fault rule 1 never fired"), "{}", finished.stderr);
    // Two runs have the same faults at the same virtual times.
    let folder = tempfile::tempdir().unwrap();
    let journals = ["one", "other"].map(|name| {
        let path = folder.path().join(name);
        run_with(&format!("lost-nak --fault-journal {}", path.display())).expect_status(0);
        fs::read_to_string(path).unwrap()
    });
    assert_eq!(journals[0], journals[1]);
    let lines = journals[0].lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rules: Vec<_> = lines.map(|line| line["rule"].as_u64()).collect();
    assert!(rules.contains(&Some(1)) && rules.contains(&Some(2)), "{}", journals[0]);
}

#[test]
fn each_action_strikes_simulated_hosts() {
    for (rule, status) in [
        ("corrupt opcode=send nth=3", 0),
        ("ecn opcode=send nth=3", 0),
        ("black-hole opcode=send nth=3 for=20ms", 0),
        ("port-down opcode=send nth=3 for=5ms", 0),
        ("slow-poll operation=send nth=3 for=2ms", 0),
        ("device-fatal opcode=send nth=3", 1),
        ("completion operation=send nth=3 status=rem-access-err", 1),
        ("post-error operation=send nth=3 errno=ENOMEM", 1),
        ("call-error call=create-qp errno=ENOMEM", 1),
        ("event operation=send nth=3 event=qp-fatal", 1),
    ] {
        let mut command = doorbell("bench bw -n 200 -s 16K --testbed connectx5-100g");
        command.args(["--fault", rule]);
        let finished = Running::start(command).finish().expect_status(status);
        assert!(!finished.stderr.contains("never fired"), "{rule}: {}", finished.stderr);
    }
}

#[test]
fn errors_of_plans_name_the_place() {
    run("bench bw --fault-plan lost-parcel").expect_complaint(2, &["--fault-plan", "lost-parcel", "lost-ack"]);
    run("bench bw --fault-journal x").expect_complaint(2, &["--fault-journal", "--fault-plan"]);
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, "schema = \"doorbell-fault-plan/1\"\n[[rule]]\naction = \"drop\"\nqp = -1\n").unwrap();
    let path = plan.display().to_string();
    run(&format!("bench bw --fault-plan {path}")).expect_complaint(2, &["plan.toml:4", "rule.qp", "0 to 16777215"]);
}
