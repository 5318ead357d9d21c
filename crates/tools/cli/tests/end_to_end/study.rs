//! `doorbell study` and `doorbell report`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_machine::{Machine, Root};
use doorbell_record::{Counted, Environment, Fitted, Latency, PointRecord, PointResult};

use crate::command::{PATIENCE, Running, doorbell, list, measuring, run};

/// A directory that is removed at the end of its test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-study-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn records(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).map(|entries| entries.map(|entry| entry.unwrap().path())).into_iter().flatten();
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    files
}

pub(crate) fn repetitions(file: &Path) -> usize {
    let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    record["repetitions"].as_array().unwrap().len()
}

#[test]
fn own_requests_are_measured_with_every_protocol() {
    let scratch = Scratch::new("requests");
    let out = scratch.0.join("out").display().to_string();
    let asked = "study --request 200 --reply 4K --clients 4";
    let listed = run(&format!("{asked} --list")).expect_status(0).stdout;
    assert!(listed.starts_with("requests/clients ") && listed.contains("12 points, each 3 times"), "{listed}");
    let notes = run(&format!("{asked} --testbed t1 --out {out}")).expect_status(0).stderr;
    assert!(notes.contains("200 B with replies of 4096 B, 4 clients: ") && notes.contains(" M requests/s."), "{notes}");
    let records = records(Path::new(&out));
    assert_eq!(records.len(), 12);
    for file in records {
        let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(record["experiment"], "requests/clients");
        assert_eq!(record["parameters"]["reply"], 4096);
        assert!(
            record["repetitions"][0]["latency_ns"]["mean"].as_f64().is_some_and(|mean| mean > 3000.0),
            "{record:#}"
        );
    }
    for (arguments, words) in [
        ("study --request 200 --reply 0", &["the reply size (--reply) is 0 B, allowed is 1 to"][..]),
        ("study --request 0", &["the message size (--request) is 0 B, allowed is at least 1 B without --reply"]),
        ("study --sizes 0", &["the message size (--sizes) is 0 B, allowed is at least 1 B without --reply"]),
        ("study --request 1G", &["the message memory is 268435456 B", "reduce --request, --reply or --clients"]),
        ("study --request 200 --clients 0", &["the number of connections (--clients) is 0, allowed is 1 to"]),
        (
            "study --request 200 send-receive/window",
            &["measures requests/clients alone: leave out send-receive/window"],
        ),
        ("study --reply 200", &["--request"]),
        ("study --clients 4", &["--request"]),
    ] {
        run(arguments).expect_complaint(2, words);
    }
}

/// With a think time, Little's law would give at least the think time.
#[test]
fn own_requests_have_a_mix_of_sizes_a_think_time_and_a_rate() {
    let scratch = Scratch::new("shaped-requests");
    fs::create_dir_all(&scratch.0).unwrap();
    let file = scratch.0.join("sizes.csv");
    fs::write(&file, "bytes,weight\n64,9\n5000,1\n").unwrap();
    let from_file = format!("--sizes-from {} --reply 64 --rate 100k", file.display());
    for (index, (load, parameters, said)) in [
        ("--sizes 64:9,5000:1 --think 500", ["think_us", "500"], "closed loop with 500 us of think time"),
        (from_file.as_str(), ["rate", "100000.0"], "open loop of 100000 requests/s"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = scratch.0.join(index.to_string()).display().to_string();
        let notes = run(&format!("study {load} --clients 4 --testbed t1 --out {out}")).expect_status(0).stderr;
        let notes = notes.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(notes.contains(&format!("{said}, 4 clients: ")), "{notes}");
        let records = records(Path::new(&out));
        assert_eq!(records.len(), 10, "Buffered-Read supports one size");
        for file in records {
            let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
            assert_eq!(record["parameters"]["mix"], serde_json::json!([[64, 9.0], [5000, 1.0]]));
            let [name, value] = parameters;
            if record["parameters"]["connections"] == 4 {
                assert_eq!(record["parameters"][name].to_string(), value);
            }
        }
        let curves = run(&format!("report --csv {out}")).expect_status(0).stdout;
        let median =
            |line: &str| line.rsplit(',').nth(4).and_then(|field| field.parse::<f64>().ok()).expect("a median");
        let means: Vec<f64> = curves.lines().filter(|line| line.contains(",mean latency,")).map(median).collect();
        assert_eq!(means.len(), 10, "{curves}");
        assert!(means.iter().all(|mean| (2.0..400.0).contains(mean)), "{means:?}");
    }
    for (arguments, words) in [
        ("study --request 64 --sizes 64,128", &["cannot be used with"][..]),
        ("study --request 64 --think 5 --rate 5", &["cannot be used with"]),
        ("study --sizes 64:0", &["the mix of sizes (--sizes) is 64 B with a weight of 0, allowed is"]),
        ("study --request 64 --rate 0", &["the rate (--rate) is 0 messages/s, allowed is 0.001 to"]),
        (
            "study --request 64 --rate 0.001",
            &["the rate of one of 16 clients, its share of --rate, is 0.0000625 messages/s"],
        ),
        ("study --sizes 64:1,128:1 all", &["--sizes measures requests/clients alone: leave out all"]),
        ("study --think 5", &["--request"]),
    ] {
        run(arguments).expect_complaint(2, words);
    }
}

#[test]
fn an_unusable_directory_is_rejected_before_measuring() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("unusable");
    fs::create_dir_all(&scratch.0).unwrap();
    let study = |out: &str| format!("study -d doorbell0 direct-write/latency --out {out}");
    let refused = |out: &str, words: &[&str]| run(&study(out)).expect_complaint(1, &[&[out], words].concat());
    let file = scratch.0.join("file").display().to_string();
    fs::write(&file, "").unwrap();
    refused(&file, &["is a file", "--out names a directory"]);
    // Not even root can write to /proc/sys.
    refused("/proc/sys", &["no records and no report can be written there"]);
    let taken = scratch.0.join("taken");
    fs::create_dir_all(taken.join("report.html")).unwrap();
    refused(&taken.display().to_string(), &["report.html is a directory", "another --out"]);
    assert!(records(&taken).is_empty());

    // A running study locks its directory against other studies. The lock ends with the process, also if it is killed.
    let out = scratch.0.join("shared").display().to_string();
    let first = Running::start(doorbell(&format!("study --full -d doorbell0 direct-write/latency --out {out}")));
    let until = Instant::now() + PATIENCE;
    while records(Path::new(&out)).is_empty() {
        assert!(Instant::now() < until, "no records");
        std::thread::sleep(Duration::from_millis(5));
    }
    refused(&out, &["another study writes to", "another --out"]);
    first.kill();
    run(&format!("study -d doorbell0 wire/request-response --out {out}")).expect_status(0);
}

#[test]
fn a_study_writes_its_report_and_repeats_no_measurement() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("twice");
    let study = format!("study send-receive/receive-batching --out {}", scratch.path());
    let finished = run(&study).expect_status(0);
    let report = scratch.0.join("report.html");
    assert_eq!(finished.stdout.trim(), report.display().to_string());
    assert!(finished.stderr.contains("published shapes: "), "{}", finished.stderr);
    assert!(finished.stderr.contains("100 %  send-receive/receive-batching\n"), "{}", finished.stderr);
    let files = records(&scratch.0);
    assert_eq!(files.len(), 6);
    assert!(files.iter().all(|file| repetitions(file) == 3));
    assert!(fs::read_to_string(&report).unwrap().starts_with("<!DOCTYPE html>"));

    // Each end is pinned to a CPU if the machine has two. A study with another pinning does not add to these records.
    let allowed = Machine::of(&Root::default()).cpus;
    let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    let (pinned, is_pinned) = (list(&record, "/environment/pinning/cpus").len(), allowed.len() > 1);
    assert_eq!(pinned, if is_pinned { 2 } else { 0 }, "{record}");
    let said = if is_pinned { "threads are pinned to CPU " } else { "threads are not pinned (" };
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    if is_pinned {
        run(&format!("{study} --cpus none"))
            .expect_complaint(1, &["field `environment.pinning` differs", "--cpus none"]);
    }

    let before: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let again = run(&format!("{study} --json")).expect_status(0);
    let json: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((&json["points"], &json["measured"]), (&6.into(), &0.into()));
    assert_eq!(json["verdicts"].as_array().unwrap().len(), 2);
    assert_eq!(files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>(), before);

    // The first line of the CSV has the names of columns, and each quantity of a point has a line.
    let curves = run(&format!("report --csv {}", scratch.path())).expect_status(0).stdout;
    let mut lines = curves.lines();
    assert!(lines.next().is_some_and(|names| names.starts_with("run,testbed,experiment,curve,axis,x,")), "{curves}");
    let rates = lines.filter(|line| line.contains("send-receive/receive-batching,") && line.contains(",message rate,"));
    assert_eq!(rates.count(), 6, "{curves}");
    run(&format!("report --csv --json {}", scratch.path())).expect_complaint(2, &["cannot be used with"]);

    let record = fs::read(&files[0]).unwrap();
    run(&format!("report {} --out {}", scratch.path(), files[0].display()))
        .expect_complaint(2, &["--out: ", "is a record"]);
    assert_eq!(fs::read(&files[0]).unwrap(), record);

    let both = scratch.0.join("both.html");
    let report = |other: &Scratch| run(&format!("report {} {} --out {}", scratch.path(), other.path(), both.display()));
    report(&scratch).expect_complaint(2, &["are the same directory", "name each run once"]);
    // Copy the run as if from a machine with another MTU: every difference is within the spread of repetitions.
    let after = Scratch::new("after");
    fs::create_dir_all(&after.0).unwrap();
    for file in &files {
        let record = fs::read_to_string(file).unwrap().replace("\"active_mtu\":", "\"active_mtu\":1024,\"was\":");
        fs::write(after.0.join(file.file_name().unwrap()), record).unwrap();
    }
    assert_eq!(report(&after).expect_status(0).stdout.trim(), both.display().to_string());
    let page = fs::read_to_string(&both).unwrap();
    assert!(page.contains("send-receive/receive-batching") && page.contains("within the spread"));
    assert!(page.contains("Changes from ") && page.contains("largest path MTU"), "no differences");
    let json = run(&format!("report {} {} --out {} --json", scratch.path(), after.path(), both.display()));
    let changed = json.expect_status(0).json()["changes"].clone();
    assert_eq!((&changed[0]["points"], &changed[0]["more"], &changed[0]["less"]), (&6.into(), &0.into(), &0.into()));
    // Two runs without a common experiment are not compared, and no page is written.
    let other = fs::read_to_string(&files[0]).unwrap();
    for file in records(&after.0) {
        fs::remove_file(file).unwrap();
    }
    fs::write(after.0.join("other.json"), other.replace("send-receive/receive-batching", "send-receive/other"))
        .unwrap();
    report(&after).expect_complaint(2, &["no experiment in common", "send-receive/other", &after.path()]);
    assert_eq!(fs::read_to_string(&both).unwrap(), page);

    // Records with other parameters are rejected, although their points would have other files.
    run(&format!("study --standard send-receive/receive-batching --out {}", scratch.path()))
        .expect_complaint(1, &["field `parameters` differs", "another --out"]);
    assert_eq!(files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>(), before);
}

/// Without a terminal, each experiment has a line once its last repetition is done. The best protocols follow.
#[test]
fn a_study_states_its_progress_and_answers_for_five_sizes() {
    let _one_at_a_time = measuring();
    let (scratch, names) = (Scratch::new("answers"), ["send-receive/latency", "direct-read/latency"]);
    let said = run(&format!("study {} --out {}", names.join(" "), scratch.path())).expect_status(0).stderr;
    let places = |end: &str| -> Vec<usize> {
        let lines = said.lines().enumerate();
        lines.filter(|(_, line)| line.ends_with(&format!(" %  {end}"))).map(|(place, _)| place).collect()
    };
    let rounds = ["round 1 of 3", "round 2 of 3"].map(places);
    assert!(rounds[0].len() == 1 && rounds[1].len() == 1 && rounds[0] < rounds[1], "{said}");
    assert!(places("round 3 of 3").is_empty(), "{said}");
    for name in names {
        let found = places(name);
        assert!(found.len() == 1 && found > rounds[1], "{name}: {said}");
    }
    assert_eq!(said.matches(" has the lowest latency, ").count(), 5, "{said}");
}

#[test]
fn an_interrupted_study_continues() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("interrupted");
    let study = format!("study send-receive/inline --out {}", scratch.path());
    let first = Running::start(doorbell(&study));
    let until = Instant::now() + PATIENCE;
    while records(&scratch.0).len() < 3 {
        assert!(Instant::now() < until, "no records");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(first); // kills the process
    let files = records(&scratch.0);
    assert!(files.iter().all(|file| repetitions(file) >= 1), "what is there is whole");
    run(&format!("report {} --out {}", scratch.path(), scratch.0.join("part.html").display())).expect_status(0);
    run(&study).expect_status(0);
    let files = records(&scratch.0);
    assert_eq!((files.len(), files.iter().map(|file| repetitions(file)).collect::<Vec<_>>()), (4, vec![3; 4]));
}

/// If this machine supports shared memory, each point uses the link of its column. On a busy machine, the first packets
/// may go over UDP before both ends share memory.
#[test]
fn repetitions_with_other_rnic_options_are_not_mixed() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("options");
    let study =
        |options: &str| run(&format!("study -d doorbell0 --out {} {options} wire/request-response", scratch.path()));
    study("--link udp").expect_status(0);
    study("--link udp").expect_status(0);
    for options in ["", "--link udp --ack strict"] {
        let refused = study(options).expect_status(1);
        let said = ["environment.soft_options", "instead of link udp, acknowledgements answer, IPv4"];
        assert!(said.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    }
    assert!(records(&scratch.0).iter().all(|file| repetitions(file) == 3));
}

#[test]
fn records_state_their_fault_plan_and_plans_are_not_mixed() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("faults");
    let study = |options: &str, name: &str| run(&format!("study --quick --out {} {options} {name}", scratch.path()));
    study("-d doorbell0 --fault-plan lost-ack", "wire/request-response").expect_status(0);
    let files = records(&scratch.0);
    assert!(!files.is_empty());
    for file in files {
        let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let plan = record["environment"]["fault_plan"].as_str().unwrap_or_else(|| panic!("{record}"));
        assert!(plan.contains("drop") && plan.contains("opcode=ack"), "{plan}");
    }
    study("-d doorbell0", "wire/request-response").expect_complaint(2, &["has points with the faults", "not none"]);
    study("--fault-plan lost-ack", "far-memory").expect_complaint(2, &["far memory", "no fault plan"]);

    let simulated = Scratch::new("simulated-faults");
    let out = format!("study --quick --testbed connectx5-100g wire/request-response --out {}", simulated.path());
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    run(&format!("{out} --fault-plan lost-ack --fault-journal {}", journal.display())).expect_status(0);
    let journal = fs::read_to_string(journal).unwrap();
    assert!(journal.contains("\"name\":\"lost-ack\"") && journal.lines().count() > 1, "{journal}");
    let finished = run(&format!("{out} --fault-plan lost-ack --json")).expect_status(0).json();
    assert_eq!(finished["measured"], 0, "{finished}");
    for verdict in finished["verdicts"].as_array().unwrap() {
        let outcome = verdict["outcome"].as_str().unwrap_or_else(|| panic!("{verdict}"));
        assert!(["cannot show on this provider", "not measured"].contains(&outcome), "{verdict}");
    }
}

#[test]
fn links_are_compared_only_on_one_machine() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("links");
    let study = format!("study links/time --out {}", scratch.path());
    let finished = run(&format!("{study} -d doorbell0 --json")).expect_status(0).json();
    assert_eq!((&finished["points"], &finished["missing"]), (&10.into(), &0.into()), "{finished}");
    assert_eq!(finished["verdicts"].as_array().unwrap().len(), 1, "{finished}");
    assert!(finished["verdicts"][0]["goal"].as_str().unwrap().contains("at most half as long"), "{finished}");
    let rows = finished["links"].as_array().unwrap();
    assert_eq!(rows.len(), 5, "{finished}");
    for row in rows {
        let median = |link: &str| row[link]["median"].as_f64().unwrap();
        let gain = median("udp") / median("shared_memory");
        assert!((row["gain"].as_f64().unwrap() / gain - 1.0).abs() < 1e-9, "{row}");
        assert_eq!(row["udp"]["shared_memory_packets"], 0, "{row}");
        assert!(row["shared_memory"]["shared_memory_packets"].as_u64().unwrap() > 0, "{row}");
    }
    let record = scratch.0.join("links-time-send-receive--shared-memory-16.json");
    let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(record).unwrap()).unwrap();
    assert_eq!(record["parameters"]["link"], "shared_memory", "{record}");
    assert!(["shared_memory", "both"].contains(&record["repetitions"][0]["carried_by"].as_str().unwrap()), "{record}");
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert!(page.contains("The links beside each other") && page.contains("carried by"));
    let text = run(&format!("report {} --out {}", scratch.path(), scratch.0.join("again.html").display()));
    let said = text.expect_status(0).stderr;
    assert!(said.contains("16 B, one at a time, us") && said.contains("goals: "), "{said}");
    // The study is rejected with --link, which sets one link for all points, and on a testbed, which has only one link.
    run(&format!("{study} --link udp")).expect_complaint(2, &["links/time compares links", "drop --link udp"]);
    let alone = "links are compared between two software RNICs of one machine alone: in virtual time";
    let elsewhere = Scratch::new("links-simulated");
    run(&format!("study links --testbed connectx5-100g --out {}", elsewhere.path())).expect_complaint(2, &[alone]);
}

#[test]
fn experiments_are_listed_and_unknown_ones_rejected() {
    let list = run("study --list").expect_status(0).stdout;
    for name in ["send-receive/latency", "send-receive/n-to-1-srq", "send-receive/rnr", "points, each 3 times 0.1 s"] {
        assert!(list.contains(name), "{list}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&run("study --list --json send-receive/window").expect_status(0).stdout).unwrap();
    assert_eq!((json[0]["experiment"].as_str(), json[0]["points"].as_u64()), (Some("send-receive/window"), Some(6)));
    run("study send-receive/win").expect_complaint(2, &["no experiment send-receive/win", "send-receive/window"]);
    assert!(run("study --list --standard").expect_status(0).stdout.contains("points, each 3 times 0.2 s"));
    for options in ["--quick --full", "--quick --standard", "--standard --full"] {
        run(&format!("study {options}")).expect_complaint(2, &["cannot be used with"]);
    }
    let former = run("study --list --quick").expect_status(0);
    assert_eq!((former.stdout, former.stderr.contains("leave it out")), (list, true), "{}", former.stderr);
}

/// Checks that an object of a record has the fields that a structure describes, without some of `optional`.
#[track_caller]
fn expect_fields(object: &serde_json::Value, described: &[(&str, &str)], optional: &[&str]) {
    let written: BTreeSet<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    let described: BTreeSet<&str> = described.iter().map(|(name, _)| *name).collect();
    assert!(written.is_subset(&described), "{written:?} are not all in {described:?}");
    let missing: Vec<&&str> = described.difference(&written).filter(|name| !optional.contains(name)).collect();
    assert!(missing.is_empty(), "{object} has no {missing:?}");
}

#[test]
fn records_have_the_fields_of_the_reference() {
    let scratch = Scratch::new("record-fields");
    run(&format!("study --quick --testbed t1 wire/request-response --out {}", scratch.path())).expect_status(0);
    let file = records(&scratch.0).into_iter().next().expect("a study has records");
    let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let result = &record["repetitions"][0];
    expect_fields(&record, PointRecord::FIELDS, &[]);
    expect_fields(result, PointResult::FIELDS, &["carried_by", "far", "hosts"]);
    expect_fields(&result["latency_ns"], Latency::FIELDS, &[]);
    expect_fields(&result["fitted"], Fitted::FIELDS, &[]);
    expect_fields(&result["counted"]["client"], Counted::FIELDS, &[]);
    let of_other_machines = ["adapter", "soft_options", "fault_plan", "pinning", "peer", "hosts"];
    expect_fields(&record["environment"], Environment::FIELDS, &of_other_machines);
}

/// On a line of 100 Gb/s, a reply of 64 KiB takes 5.2 us, so 16 clients wait for each other.
#[test]
fn requests_are_studied_alone_and_loaded() {
    let scratch = Scratch::new("requests");
    let study = format!("study --quick --testbed t1 requests --json --out {}", scratch.path());
    let finished = run(&study).expect_status(0).json();
    assert_eq!((&finished["points"], &finished["missing"]), (&2.into(), &0.into()), "{finished}");
    let curves = run(&format!("report --csv {}", scratch.path())).expect_status(0).stdout;
    // The name of the curve contains a comma, so count the fields from the end.
    let median =
        |line: &str| -> f64 { line.rsplit(',').nth(4).and_then(|field| field.parse().ok()).expect("a median") };
    let of_means = curves.lines().filter(|line| line.contains(",200,65536,") && line.contains(",mean latency,"));
    let means: Vec<f64> = of_means.map(median).collect();
    let [alone, loaded] = means[..] else { panic!("{curves}") };
    assert!((8.0..15.0).contains(&alone) && (16.0 * 5.0..16.0 * 6.0).contains(&loaded), "{means:?}");
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert!(
        page.contains("Requests with replies") && page.contains("id=\"x-requests-clients\""),
        "no table or no plot"
    );
}

#[test]
fn a_report_without_valid_records_is_not_written() {
    let scratch = Scratch::new("wrong");
    fs::create_dir_all(&scratch.0).unwrap();
    let out = scratch.0.join("kept.html");
    fs::write(&out, "as it was").unwrap();
    let report = format!("report {} --out {}", scratch.path(), out.display());
    run("report").expect_complaint(2, &["Usage"]);
    run("report /no/such/directory").expect_complaint(2, &["/no/such/directory is no directory"]);
    run(&report).expect_complaint(1, &["the directory has no records"]);
    let file = scratch.0.join("a.json");
    for (text, words) in [
        ("{", "the text is not JSON"),
        ("{\"schema\": \"doorbell-bench/1\"}", "field `format` is missing"),
        ("{\"format\": \"doorbell-study-point\", \"schema\": 7}", "field `schema` is 7, this release reads up to 1"),
        ("{\"format\": \"doorbell-study-point\", \"schema\": 1, \"experiment\": 5}", "field `experiment`"),
    ] {
        fs::write(&file, text).unwrap();
        run(&report).expect_complaint(1, &[&file.display().to_string(), words]);
        let study = format!("study send-receive/rnr --out {}", scratch.path());
        run(&study).expect_complaint(1, &[&file.display().to_string(), words]);
        assert_eq!(records(&scratch.0), std::slice::from_ref(&file), "nothing was measured");
    }
    assert_eq!(fs::read_to_string(&out).unwrap(), "as it was");
}

#[test]
fn simulated_and_measured_studies_are_never_mixed() {
    let (simulated, measured) = (Scratch::new("simulated"), Scratch::new("measured"));
    let study = "study send-receive/receive-batching";
    let simulate = format!("{study} --testbed connectx5-100g --out {}", simulated.path());
    run(&simulate).expect_status(0);
    let files = records(&simulated.0);
    assert_eq!(files.len(), 6);
    assert!(files.iter().all(|file| repetitions(file) == 1), "to simulate a point again gives the same");
    let page = fs::read_to_string(simulated.0.join("report.html")).unwrap();
    assert!(page.contains("simulated, not measured") && page.contains("simulated: connectx5-100g"));

    // A measurement is rejected in the directory of a simulation, and so is a simulation of another testbed.
    for other in [study.to_owned(), format!("{study} --testbed counters-100g")] {
        let refused = run(&format!("{other} --out {}", simulated.path())).expect_status(2);
        assert!(refused.stderr.contains("has points of another kind (simulated testbed"), "{}", refused.stderr);
    }
    let changed = run(&format!("{simulate} --set link.rate=25Gb/s")).expect_status(2);
    assert!(changed.stderr.contains("choose another --out"), "{}", changed.stderr);

    {
        let _one_at_a_time = measuring();
        run(&format!("{study} --out {}", measured.path())).expect_status(0);
    }
    // Copy the measured records into the directory of the simulated records: the report separates both kinds.
    for file in records(&measured.0) {
        let name = format!("measured-{}", file.file_name().unwrap().to_string_lossy());
        fs::copy(&file, simulated.0.join(name)).unwrap();
    }
    let out = simulated.0.join("both.html");
    let both = run(&format!("report {} --out {} --json", simulated.path(), out.display())).expect_status(0).json();
    let runs: Vec<&str> = both["verdicts"].as_array().unwrap().iter().filter_map(|it| it["run"].as_str()).collect();
    assert!(runs.iter().any(|run| run.ends_with("(simulated connectx5-100g)")), "{runs:?}");
    assert!(runs.iter().any(|run| !run.contains("simulated connectx5")), "{runs:?}");
    let page = fs::read_to_string(&out).unwrap();
    assert!(page.contains("6</b> points, simulated") && page.contains("6</b> points, measured 18 times"));
    let fit = run(&format!("model fit {}", simulated.path())).expect_status(2);
    assert!(fit.stderr.contains("and the records before are not"), "{}", fit.stderr);
}

/// One machine measures some experiments on shared memory. The other ones require virtual time.
#[test]
fn shared_memory_is_studied_on_one_machine() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("far-here");
    let study = format!("study -d doorbell0 --out {}", scratch.path());
    let finished = run(&format!("{study} far-memory/tearing far-memory/atomics-scope --json")).expect_status(0).json();
    assert_eq!((&finished["points"], &finished["missing"]), (&21.into(), &0.into()), "{finished}");
    let torn = fs::read_to_string(scratch.0.join("far-memory-tearing-path-mtu-1024-8.json")).unwrap();
    let torn: serde_json::Value = serde_json::from_str(&torn).unwrap();
    assert_eq!(torn["repetitions"][0]["far"]["torn"], 0.0, "a word is read at once");
    // One thread polls all queue pairs of the point, so one CPU is pinned.
    assert_eq!(list(&torn, "/environment/pinning/cpus").len(), 1, "{torn}");
    let complaint = "far-memory/hot-address has parts that exist only in virtual time: add --testbed";
    run(&format!("{study} far-memory/hot-address")).expect_complaint(2, &[complaint]);
    let listed = run("study --list far-memory").expect_status(0).stdout;
    assert!(listed.contains("far-memory/skew") && !listed.contains("far-memory/hot-address"), "{listed}");
}

#[test]
fn a_simulated_study_of_shared_memory_supports_advice() {
    let scratch = Scratch::new("far-simulated");
    let testbed = "--testbed connectx5-100g-far";
    let study = format!("study far-memory/clients far-memory/queue-pairs {testbed} --out {}", scratch.path());
    let finished = run(&format!("{study} --json")).expect_status(0).json();
    assert_eq!((&finished["points"], &finished["missing"]), (&13.into(), &0.into()), "{finished}");
    let verdicts = finished["verdicts"].as_array().expect("verdicts");
    let pairs = verdicts.iter().find(|verdict| verdict["experiment"] == "far-memory/queue-pairs").expect("a verdict");
    assert_eq!(pairs["outcome"], "holds", "{pairs}");
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert!(page.contains("Which strategy for my workload?") && page.contains("simulated, not measured"));

    let from_records = format!("advise --shared-memory --clients 30 --records {} --json", scratch.path());
    let advice = run(&from_records).expect_status(0).json();
    assert_eq!(advice["workload"]["clients"], 16, "the workload that is most like it: {advice}");
    let ranked = advice["ranked"].as_array().expect("strategies");
    let tails: Vec<f64> = ranked.iter().map(|one| one["figures"]["put_p99"].as_f64().expect("a time")).collect();
    assert!(ranked.len() == 9 && tails.is_sorted(), "the shortest 99 % first: {tails:?}");
    run(&format!("advise --shared-memory --records {} {testbed}", scratch.path()))
        .expect_complaint(2, &["cannot be used with"]);
}

#[test]
fn advice_on_shared_memory_simulates_the_given_workload() {
    let text = run("advise --shared-memory --clients 2 --keys 16 -s 64 --first throughput").expect_status(0).stdout;
    let answer = text.lines().next().unwrap_or_default();
    let first = text.lines().nth(4).and_then(|row| row.split_whitespace().next()).expect("a row");
    assert!(
        answer.starts_with(&format!("Take {first}: ")) && answer.ends_with("simulated on connectx5-100g-far."),
        "{text}"
    );
    assert!(text.contains("2 clients on 2 hosts, 16 keys, Zipf 0.99, 50 % puts, values of 64 B"), "{text}");
    for word in ["optimistic", "steered-write", "a core of the memory node", "a middlebox"] {
        assert!(text.contains(word), "{text}");
    }
    let rates: Vec<f64> =
        text.lines().skip(4).filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect();
    assert!(rates.len() == 9 && rates.is_sorted_by(|one, next| one >= next), "the most operations first: {text}");
    for (arguments, words) in [
        ("advise", &["--size"][..]),
        ("advise --shared-memory -s 1,2", &["all values have one size"]),
        ("advise --shared-memory --zipf 7", &["no exponent of Zipf's law"]),
        ("advise -s 16 --keys 4", &["--shared-memory"]),
        ("advise --shared-memory --keys 0", &["the number of keys (--keys) is 0, allowed is 1 to"]),
        ("advise --shared-memory -s 1G", &["the message size (-s) is 1073741824 B, allowed is 0 to"]),
    ] {
        run(arguments).expect_complaint(2, words);
    }
}
