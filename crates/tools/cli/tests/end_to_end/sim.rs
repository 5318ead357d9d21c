//! `doorbell sim`.

use serde_json::Value;

use crate::command::run;

#[test]
fn testbeds_are_listed_and_printed_with_the_source_of_each_value() {
    let list = run("sim testbeds").expect_status(0).stdout;
    let json = run("sim testbeds --json").expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-sim-testbeds/1");
    assert!(list.lines().any(|line| line.starts_with("connectx5-100g ") && line.contains(" t1 ")), "{list}");
    for testbed in json["testbeds"].as_array().expect("testbeds") {
        let name = testbed["name"].as_str().expect("a name");
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} is missing in: {list}");
        let text = run(&format!("sim testbeds {name}")).expect_status(0).stdout;
        let json = run(&format!("sim testbeds {name} --json")).expect_status(0).json();
        let parameters = json.pointer("/testbed/parameters").and_then(Value::as_array).expect("parameters");
        assert_eq!(Some(parameters.len() as u64), testbed["values"].as_u64());
        let fitted = parameters.iter().filter(|parameter| parameter["fitted"] == true).count();
        assert_eq!(Some(fitted as u64), testbed["fitted"].as_u64());
        for parameter in parameters {
            let source = parameter["source"].as_str().expect("a source");
            assert!(text.contains(source), "{source:?} is missing in: {text}");
        }
    }
}

#[test]
fn values_are_replaced_and_invalid_ones_rejected() {
    let json = run("sim testbeds connectx5-100g --set link.rate_gbps=25 --json").expect_status(0).json();
    let parameters = json.pointer("/testbed/parameters").and_then(Value::as_array).expect("parameters");
    let rate = parameters.iter().find(|parameter| parameter["path"] == "link.rate").expect("a rate");
    assert_eq!((&rate["value"], &rate["unit"]), (&Value::from("25"), &Value::from("Gb/s")));
    for (arguments, words) in [
        ("connectx5-100g --set link.rate=-1", "link.rate: the value is -1 Gb/s, which is negative; allowed is"),
        ("connectx5-100g --set link.rat=1", "the nearest is link.rate"),
        ("connectx5-100g --set link.rate", "as in link.rate=25Gb/s"),
        ("connectx9", "there is no testbed connectx9; allowed is connectx5-100g (t1), "),
        ("--set link.rate=1", "--set must be given with a testbed: name one"),
    ] {
        let finished = run(&format!("sim testbeds {arguments}")).expect_status(2);
        assert!(finished.stderr.contains(words), "{words:?} is missing in: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_file_that_is_wrong_is_named_with_the_line() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "schema = \"doorbell-testbed/1\"\nname = \"mine\"\n[cqu]\n";
    std::fs::write(file.path(), text).expect("the file can be written");
    let path = file.path().display();
    let finished = run(&format!("sim testbeds {path}")).expect_status(1);
    let words = format!("{path}:3: cqu: there is no such field; the nearest is cpu");
    assert!(finished.stderr.contains(&words), "{words:?} is missing in: {}", finished.stderr);
    let finished = run("sim testbeds /nothing/here.toml").expect_status(1);
    assert!(finished.stderr.contains("/nothing/here.toml cannot be read"), "{}", finished.stderr);
}

/// The simulations take seconds. So the text is of the testbed itself, and JSON, page and captures are of a testbed
/// with a changed value.
#[test]
fn published_rows_are_simulated_and_compared() {
    let arguments = "sim reproduce --testbed connectx5-100g-far --quick";
    let text = run(arguments).expect_status(0).stdout;
    assert!(
        text.contains("far-memory/one-address-is-slow               holds         2.68 M/s on one address at most"),
        "{text}"
    );

    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    let captured = format!(
        "{arguments} --set nic.atomic=400ns --json --pcap {} --out {}",
        directory.path().display(),
        page.display()
    );
    let json = run(&captured).expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-sim-reproduce/1");
    let report = &json["testbeds"][0];
    assert_eq!((&report["testbed"], &report["published"]), (&Value::from("connectx5-100g-far"), &Value::from("T3")));
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        let id = row["id"].as_str().expect("an id");
        assert!(text.contains(id), "{id} is missing in: {text}");
        assert_eq!(row["simulated"].is_null(), row["reason"].is_string(), "{row}");
        assert_eq!(row["status"] == "not simulated", row["simulated"].is_null(), "{row}");
    }
    let shapes = report["shapes"].as_array().expect("shapes");
    let status_of = |id: &str| shapes.iter().find(|shape| shape["id"] == id).map(|shape| &shape["status"]);
    assert_eq!(status_of("far-memory/one-address-is-slow"), Some(&Value::from("holds")));
    assert_eq!(status_of("far-memory/long-reads-tear"), Some(&Value::from("not simulated")));
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("far-memory/cas-one-pair") && html.contains("nothing here was measured"), "{page:?}");

    let cas = rows.iter().find(|row| row["id"] == "far-memory/cas-one-pair").expect("a row");
    let file = cas["captures"][0].as_str().expect("a capture");
    let decoded = run(&format!("wire decode {file}")).expect_status(0).stdout;
    assert!(decoded.contains("CmpSwap"), "{}", decoded.lines().take(5).collect::<Vec<_>>().join("\n"));
    let judged = run(&format!("wire check --json {file}")).expect_status(0).json();
    assert_eq!(judged["findings"], Value::Array(Vec::new()), "{file}");
}

#[test]
fn published_rows_have_a_limit_of_memory_and_valid_values() {
    let refused = run("sim reproduce --testbed connectx5-100g --quick --memory 4").expect_status(0).stdout;
    assert!(refused.contains("MiB of memory, allowed are 4 MiB"), "{refused}");
    let wrong = run("sim reproduce --testbed connectx5-100g-far --set nic.atomic=fast").expect_status(2);
    assert!(wrong.stderr.contains("nic.atomic: fast is no decimal number"), "{}", wrong.stderr);
}

/// The test simulates a study on a testbed with changed parameters. A fit to the records finds the changed parameters
/// within the intervals of the fit. The gap `g_fix_ns` is a sum over many stations of the simulated path, so the test
/// checks only its difference between two testbeds. Cables that are 1 us longer add 4 us: a message and its
/// acknowledgement cross four cables.
#[test]
fn a_fit_of_a_simulated_study_finds_what_the_testbed_has() {
    let scratch = tempfile::tempdir().expect("a directory");
    let fitted = |name: &str, value: &str| {
        let directory = scratch.path().join(name);
        let experiments =
            ["latency", "window", "batch", "bandwidth"].map(|name| format!("send-receive/{name}")).join(" ");
        let study = format!("study --testbed connectx5-100g --set {value} --out {} {experiments}", directory.display());
        run(&study).expect_status(0);
        run(&format!("model fit {} --json", directory.display())).expect_status(0).json()
    };
    let interval = |fit: &Value, name: &str| -> (f64, f64) {
        let estimates = fit["estimates"].as_array().expect("estimates");
        let estimate = estimates.iter().find(|estimate| estimate["name"] == name).expect("a parameter");
        let bound = |at: usize| estimate["interval_95"][at].as_f64();
        bound(0).zip(bound(1)).unwrap_or_else(|| panic!("{name} is not determined: {estimate}"))
    };
    let slow = fitted("slow", "link.rate=25Gb/s");
    let long = fitted("long", "link.propagation=1100ns");
    for (fit, name, put_in) in [
        (&slow, "gap_bandwidth_ns_per_byte", 0.32),
        (&long, "gap_bandwidth_ns_per_byte", 0.08),
        (&slow, "o_snd_ns.single", 120.0),
    ] {
        let (least, most) = interval(fit, name);
        assert!((least..=most).contains(&put_in), "{name}: {put_in} was put in, found {least} to {most}");
    }
    let ((least, most), (least_long, most_long)) = (interval(&slow, "g_fix_ns"), interval(&long, "g_fix_ns"));
    let range = least_long - most..=most_long - least;
    assert!(range.contains(&4000.0) && least_long > most, "4000 ns were put in, found {range:?}");
}

#[test]
fn a_sweep_gives_a_table_json_plots_and_captures() {
    let directory = tempfile::tempdir().expect("a directory");
    let (page, pcap) = (directory.path().join("sweep.html"), directory.path().join("pcap"));
    let sweep = "sim sweep --set messages=200 --vary link.rate_gbps=25,100 --vary size=16,4096";
    let text = run(&format!("{sweep} --out {}", page.display())).expect_status(0).stdout;
    assert!(text.starts_with("simulated on connectx5-100g"), "{text}");
    assert_eq!(
        text.lines().count(),
        2 + 4 + 1,
        "a line of what, one of headings, one for each point, the file: {text}"
    );
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(
        html.contains("Doorbell, simulated") && html.contains("link.rate_gbps"),
        "the page must say that the figures are simulated"
    );

    let json = run(&format!("{sweep} --json --pcap {}", pcap.display())).expect_status(0).json();
    assert_eq!((&json["schema"], &json["simulated"]), (&Value::from("doorbell-sim-sweep/1"), &Value::from(true)));
    let points = json["points"].as_array().expect("points");
    let rates: Vec<f64> = points.iter().map(|point| point["messages_per_s"].as_f64().expect("a rate")).collect();
    assert!(rates[1] * 2.0 < rates[3], "4096 B at 25 and at 100 Gb/s: {rates:?}");
    assert_eq!(points[3]["values"]["link.rate_gbps"], "100");
    for point in points {
        let capture = point["capture"].as_str().expect("a capture");
        let decoded = run(&format!("wire decode --json {capture}")).expect_status(0).json();
        // The capture may have more packets than the counters: acknowledgements may be in flight when the last thread
        // ends.
        assert!(decoded["packets"].as_u64() >= point["packets"].as_u64(), "{capture}");
        assert_eq!(decoded["icrc"]["right"], decoded["packets"], "{capture}");
        let judged = run(&format!("wire check --json {capture}")).expect_status(0).json();
        assert_eq!(judged["findings"], Value::Array(Vec::new()), "{capture}");
    }
    let again = run(&format!("{sweep} --json")).expect_status(0).json();
    let digests = |json: &Value| {
        json["points"].as_array().map(|all| all.iter().map(|it| it["digest"].clone()).collect::<Vec<_>>())
    };
    assert_eq!(digests(&again), digests(&json), "a capture changes nothing, and neither does another process");
}

#[test]
fn many_to_one_records_queues_pauses_retransmissions_and_fairness() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("many-to-one.html");
    let sweep = "sim sweep --many-to-one --vary senders=3,7 --set protocol=send-receive --set total_messages=3000 \
                 --set switch.resume_at=8KiB --set switch.pause_at=24KiB --set switch.queue=64KiB";
    let json = run(&format!("{sweep} --json --out {}", page.display())).expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-sim-sweep/1");
    assert_eq!((&json["settings"]["pattern"], &json["replaced"]["switch.queue"]), (&"N:1".into(), &"64KiB".into()));
    let points = json["points"].as_array().expect("points");
    assert_eq!(points.len(), 4);
    for point in points {
        let number = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {point}"));
        let senders: f64 = point["values"]["senders"].as_str().expect("a text").parse().expect("a number");
        assert!((1.0 / senders..1.0 + 1e-9).contains(&number("fairness")), "{point}");
        let [to_nodes, to_spines, to_leaves] = ["to_nodes", "to_spines", "to_leaves"]
            .map(|group| point["longest_queues_bytes"][group].as_u64().unwrap_or_else(|| panic!("{group}: {point}")));
        assert!(to_nodes <= 64 << 10 && to_spines.max(to_leaves) <= to_nodes, "one leaf: {point}");
        assert_eq!((&point["broke"], number("messages")), (&Value::Null, 3000.0 - 3000.0 % senders), "{point}");
        let (paused, again) = (number("paused_ps"), number("retransmitted"));
        match point["values"]["switch.when_full"].as_str() {
            Some("pause") => assert_eq!((again, number("dropped")), (0.0, 0.0), "{point}"),
            _ => assert_eq!((paused, number("pauses")), (0.0, 0.0), "{point}"),
        }
    }
    let text = std::fs::read_to_string(&page).expect("a page");
    for quantity in ["fairness (Jain)", "time in pauses", "longest queue", "packets sent again"] {
        assert!(text.contains(quantity), "{quantity} is missing");
    }
}

#[test]
fn invalid_sweep_parameters_are_rejected_at_the_start() {
    for (arguments, words) in [
        ("--vary link.rat=1", "link.rat: there is no such field; the nearest is link.rate"),
        ("--vary sise=1", "sise: there is no such parameter; the nearest is size"),
        ("--set rate=1k", "rate: the value is 1k, allowed is 0 to 1000000000000 messages/s"),
        ("--vary sizes=64:1+2G:1", "sizes: the value is 64:1+2G:1, allowed is none, or sizes with weights"),
        ("--vary window=0,1", "window: the value is 0, allowed is 1 to 16384"),
        ("--vary link.rate_gbps=0", "link.rate_gbps: the value is 0 Gb/s, allowed is 1 Mb/s to 100000 Gb/s"),
        ("--set network=clos --vary oversubscription=3", "at oversubscription=3: the oversubscription is 3"),
        ("--vary size=16,2G", "size: the value is 2G, allowed is 0 to 1073741824"),
        ("--vary size=16,1000000 --memory 16", "of memory, allowed are 16 MiB"),
        ("--many-to-one --vary senders=0", "senders: the value is 0, allowed is 1 to 1023"),
        ("--many-to-one --vary senders=1024", "senders: the value is 1024, allowed is 1 to 1023"),
        ("--many-to-one --set total_messages=-1", "total_messages: the value is -1, allowed is 0 to 1000000000000"),
        ("--many-to-one --set switch.queue=1KiB", "allowed is at most switch.queue, 1024 B"),
        ("--many-to-one --memory 16", "of memory, allowed are 16 MiB"),
    ] {
        let finished = run(&format!("sim sweep {arguments}")).expect_status(2);
        assert!(finished.stderr.contains(words), "{words:?} is missing in: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn sweep_lists_its_parameters() {
    let text = run("sim sweep --list").expect_status(0).stdout;
    let json = run("sim sweep --list --json").expect_status(0).json();
    let parameters = json["parameters"].as_array().expect("parameters");
    for needed in ["size", "sizes", "rate", "oversubscription", "link.rate", "switch.when_full"] {
        assert!(parameters.iter().any(|parameter| parameter["name"] == needed), "{needed}");
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(needed)), "{needed} in: {text}");
    }
}

#[test]
fn bench_simulates_a_testbed_and_says_so() {
    let command = "bench bw --testbed connectx5-100g -s 16,4096 -n 300 --json";
    let one = run(command).expect_status(0).json();
    assert_eq!(one["environment"]["provider"], "sim");
    assert_eq!(one["environment"]["testbed"]["name"], "connectx5-100g");
    assert_eq!(one["results"], run(command).expect_status(0).json()["results"], "the same seed gives the same result");
    let faster = run(&format!("{command} --set link.rate=400Gb/s")).expect_status(0).json();
    assert_ne!(one["environment"]["testbed"]["values"], faster["environment"]["testbed"]["values"]);
    for other in ["bench lat --op read -s 64", "bench lat -e -s 64", "bench bw --op cas", "bench bw --threads 2 -s 64"]
    {
        let finished = run(&format!("{other} -n 50 --testbed connectx5-100g")).expect_status(0);
        assert!(finished.stderr.contains("simulated, testbed connectx5-100g in virtual time"), "{}", finished.stderr);
        assert!(finished.stdout.lines().count() >= 3, "{}", finished.stdout);
    }
}

#[test]
fn bench_chooses_a_default_simulated_duration() {
    let json = run("bench lat -s 64 --testbed connectx5-100g --json").expect_status(0).json();
    assert!(json["results"][0]["messages"].as_u64().is_some_and(|messages| messages > 1000), "{json:#}");
}

#[test]
fn options_incompatible_with_a_simulation_are_rejected() {
    for (arguments, words) in [
        ("bench bw 192.0.2.7 --testbed connectx5-100g", "a HOST does not go with --testbed"),
        ("bench bw --listen --testbed connectx5-100g", "--listen does not go with --testbed"),
        ("bench lat -d doorbell0 --testbed connectx5-100g", "-d does not go with --testbed"),
        ("bench lat --pcap x --testbed connectx5-100g", "--pcap does not go with --testbed"),
        ("bench lat --fault-journal x --testbed connectx5-100g", "--fault-journal needs a plan"),
        ("study --ack strict --testbed connectx5-100g", "--ack does not go with --testbed"),
        ("bench bw --set link.rate=1Gb/s", "--set changes a parameter of a testbed: add --testbed"),
        ("bench bw --testbed connectx9", "there is no testbed connectx9; allowed is connectx5-100g (t1), "),
        ("study --testbed connectx5-100g --set link.rate=-1", "link.rate: the value is -1 Gb/s, which is negative"),
    ] {
        let finished = run(arguments).expect_status(2);
        assert!(finished.stderr.contains(words), "{words:?} is missing in: {}", finished.stderr);
    }
}
