//! `doorbell model`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::{Finished, Running, doorbell, measuring, positive, run};

/// A folder that is removed at the end of its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the file can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command with these arguments, followed by these paths.
fn with_paths(arguments: &str, paths: &[&Path]) -> Finished {
    let mut command: Command = doorbell(arguments);
    command.args(paths);
    Running::start(command).finish()
}

#[test]
fn a_window_of_one_on_t1_is_explained_in_a_sentence() {
    let finished = run("model explain --params t1 -s 16 -t 1 -l 1 --no-credits").expect_status(0);
    let first = finished.stdout.lines().next().unwrap_or_default();
    assert_eq!(
        first,
        "16 B, window 1: round trip (0.284 M messages/s); a window of 30 would reach the bound of the sending CPU"
    );
    assert!(finished.stderr.starts_with("Parameters of T1: "), "{}", finished.stderr);
    let json = run("model explain -s 16 -t 1 --no-credits --json").expect_status(0).json();
    assert_eq!(json.pointer("/results/0/sentence").and_then(Value::as_str), Some(first));
    assert_eq!(json.pointer("/results/0/remedies/0/bottleneck"), Some(&Value::from("sending CPU")));
}

#[test]
fn published_rows_are_compared_with_predictions() {
    let finished = run("model check --testbed t1").expect_status(0);
    let text = &finished.stdout;
    assert!(finished.stderr.starts_with("Parameters of T1: "), "{}", finished.stderr);
    let json = run("model check --testbed t1 --json").expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-model-check/1");
    let report = &json["testbeds"][0];
    assert_eq!((&report["testbed"], &report["parameters"]["name"]), (&Value::from("T1"), &Value::from("T1")));
    let rows = report["rows"].as_array().expect("rows");
    let with = |status: &str| rows.iter().filter(|row| row["status"] == status).count();
    let summary = ["within", "beyond", "no model"].map(|status| format!("{} {status}", with(status))).join(", ");
    assert!(text.contains(&format!("T1: {summary} (")), "{summary:?} is missing in: {text}");
    for row in rows {
        let id = row["id"].as_str().expect("an id");
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(id)), "{id} is missing in: {text}");
        assert_eq!(row["status"] == "no model", row["predicted"].is_null(), "{row}");
        assert_eq!(row["status"] == "within", row["reason"].is_null(), "{row}");
    }
    let shapes = report["shapes"].as_array().expect("shapes");
    for verdict in ["yes", "no", "no model"] {
        let count = shapes.iter().filter(|shape| shape["model_has_it"] == verdict).count();
        assert!(count > 0 && text.contains(&format!("{count} {verdict}")), "{count} {verdict} is missing in: {text}");
    }
    assert!(text.contains("14.08 M/s") && text.contains("within, fitted to"), "{text}");
}

#[test]
fn a_testbed_has_the_same_names_in_all_commands() {
    let of = |arguments: &str| run(arguments).expect_status(0).stdout;
    for (command, short, long) in [
        ("model predict -s 16 --params", "t1", "connectx5-100g"),
        ("model predict --op write -s 16 --params", "T2", "counters-100g"),
        ("model check --testbed", "t3", "connectx5-100g-far"),
        ("sim testbeds", "t3", "connectx5-100g-far"),
        ("bench lat -s 64 -n 20 --testbed", "t1", "ConnectX5-100G"),
    ] {
        assert_eq!(of(&format!("{command} {short}")), of(&format!("{command} {long}")), "{command}");
    }
}

#[test]
fn all_testbeds_are_compared_and_unknown_ones_rejected() {
    let all = run("model check --json").expect_status(0).json();
    let testbeds = all["testbeds"].as_array().expect("testbeds");
    assert_eq!(testbeds.len(), 3);
    assert!(testbeds.iter().all(|testbed| testbed["parameters"].is_object() && testbed["summary"]["within"] != 0));
    let refused = run("model check --testbed t9").expect_status(2).stderr;
    assert!(
        refused.contains(
            "there is no testbed t9; allowed is connectx5-100g (t1), counters-100g (t2), connectx5-100g-far (t3)"
        ),
        "{refused}"
    );
}

#[test]
fn latencies_are_split_for_messages_and_for_operations() {
    for arguments in ["-s 16", "-s 16 --protocol direct-read", "-s 16 --op read", "--op fetch-add -q 20"] {
        let json = run(&format!("model explain {arguments} --json")).expect_status(0).json();
        let parts = json.pointer("/results/0/latency_parts").and_then(Value::as_array).expect("parts").clone();
        let sum: f64 = parts.iter().map(|part| part["ns"].as_f64().expect("a time")).sum();
        assert!((sum / positive(&json, "/results/0/latency_ns") - 1.0).abs() < 1e-9, "{json}");
        let text = run(&format!("model explain {arguments}")).expect_status(0).stdout;
        for part in &parts {
            let meaning = part["meaning"].as_str().expect("a meaning");
            assert!(text.contains(meaning), "{meaning} is missing in: {text}");
        }
    }
    let json = run("model predict --op compare-swap -q 20 --params t3 --json").expect_status(0).json();
    assert_eq!(json["results"][0]["operation"], "compare-swap");
    assert_eq!((&json["results"][0]["bytes"], json["results"].as_array().map(Vec::len)), (&Value::from(8), Some(1)));
}

#[test]
fn predictions_are_tables_and_json_of_the_same_numbers() {
    let arguments = "model predict --params t1 -s 16,512 -t 64 -l 8 --peers 64:64";
    let table = run(arguments).expect_status(0).stdout;
    let json = run(&format!("{arguments} --json")).expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-model-predict/1");
    assert_eq!(json["parameters"]["name"], "T1");
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{table}");
    for (index, row) in rows.iter().enumerate() {
        let at = |field: &str| positive(&json, &format!("/results/{index}/{field}"));
        assert_eq!(row[0], format!("{}", at("bytes")));
        assert_eq!(row[1], format!("{:.2}", at("latency_ns") / 1000.0));
        assert_eq!(row[2], format!("{:.2}", at("loaded_ns") / 1000.0));
        assert_eq!(row[3], format!("{:.0}", at("messages_per_s")));
        assert!(at("next_factor") >= 1.0);
    }
    // Without credits, a message of 512 B takes 594 bytes of the link of 100 Gb/s.
    let bare = run(&format!("{arguments} --no-credits --json")).expect_status(0).json();
    assert!((positive(&bare, "/results/1/messages_per_s") / 21.04e6 - 1.0).abs() < 0.001);
    assert_eq!(bare["results"][1]["bottleneck"], "link");
}

#[test]
fn replies_of_no_bytes_mean_one_way_messages() {
    let of =
        |more: &str| run(&format!("model predict -s 200 --json {more}")).expect_status(0).json()["results"].clone();
    assert_eq!(of("--reply 0"), of(""));
}

#[test]
fn requests_with_replies_are_predicted_in_a_closed_loop() {
    let arguments = "model predict -s 200 --reply 64K -t 16 --peers 24:1";
    let json = run(&format!("{arguments} --json")).expect_status(0).json();
    let at = |field: &str| positive(&json, &format!("/results/0/{field}"));
    assert_eq!((at("reply_bytes"), &json["results"][0]["bottleneck"]), (65_536.0, &Value::from("link, backward")));
    // Little's law for 16 outstanding requests of each of 24 clients.
    assert!((at("loaded_ns") * at("messages_per_s") / 1e9 / 384.0 - 1.0).abs() < 1e-9, "{json:#}");
    assert!(at("loaded_ns") > at("latency_ns"));
    let notes = run(arguments).expect_status(0).stderr;
    for words in ["24:1 (24 sending threads, 1 receiving thread, 24 connections)", "is known up to 8192 B"] {
        assert!(notes.contains(words), "{words} is missing in: {notes}");
    }
    let explained = run("model explain -s 200 --reply 64K -t 16").expect_status(0).stdout;
    assert!(explained.contains("requests of 200 B with replies of 65536 B, 16 outstanding"), "{explained}");
}

#[test]
fn a_mix_of_sizes_has_one_prediction() {
    let of = |load: &str| run(&format!("model predict --json {load}")).expect_status(0).json()["results"].clone();
    let mix = of("--sizes 64:9,64K:1");
    assert_eq!(mix.as_array().map(Vec::len), Some(1), "{mix:#}");
    assert_eq!((&mix[0]["bytes"], &mix[0]["sizes"][0][1]), (&Value::from(65_536), &Value::from(9.0)));
    let latency = |results: &Value| positive(results, "/0/latency_ns");
    let expected = 0.9 * latency(&of("-s 64")) + 0.1 * latency(&of("-s 64K"));
    assert!((latency(&mix) / expected - 1.0).abs() < 1e-9, "{mix:#}");
    let folder = Folder::new("mix");
    let file = folder.with("sizes.csv", "bytes,weight\n64,9\n65536,1\n");
    assert_eq!(of(&format!("--sizes-from {}", file.display())), mix);
    let explained = run("model explain --sizes 64:9,64K:1 --reply 4K").expect_status(0);
    assert!(explained.stdout.starts_with("mix of 2 sizes: "), "{}", explained.stdout);
    assert!(explained.stderr.contains("One mix of 2 sizes"), "{}", explained.stderr);
}

#[test]
fn thinking_clients_and_offered_rates_have_their_latency() {
    let of = |load: &str| {
        let json = run(&format!("model predict --json --request 200 --reply 64K --clients 24 {load}"));
        let result = json.expect_status(0).json()["results"][0].clone();
        ["loaded_ns", "latency_ns", "messages_per_s"].map(|field| positive(&result, &format!("/{field}")))
    };
    let [full, paced, thinking] = ["-t 1", "-t 16 --rate 100k", "-t 1 --think 1000"].map(of);
    assert!(full[0] > 5.0 * full[1], "{full:?}");
    for [loaded, alone, _] in [paced, thinking] {
        assert!(loaded >= alone && loaded < 1.2 * alone, "{paced:?} {thinking:?}");
    }
    assert!((23e3..24e3).contains(&thinking[2]), "{thinking:?}");
    let beyond = run("model predict --json -s 200 --reply 64K --rate 1G").expect_status(0).json();
    assert!(beyond["results"][0]["loaded_ns"].is_null(), "{beyond:#}");
}

#[test]
fn clients_are_described_as_for_advice() {
    let of = |load: &str| run(&format!("model predict --json --reply 64K -t 1 {load}")).expect_status(0).stdout;
    assert_eq!(of("--request 200 --clients 24"), of("-s 200 --peers 24:1"));
    assert_eq!(of("--request 200 --clients 24 --server-threads 4"), of("-s 200 --peers 24:4"));
    let of = |load: &str| run(&format!("model predict --json {load}")).expect_status(0).stdout;
    assert_eq!(of("-s 200 --outstanding 4"), of("-s 200 -t 4"));
    assert_eq!(of("--op cas"), of("--op compare-swap"));
    assert_eq!(of("--op read -s 64 --clients 24 -t 1"), of("--op read -s 64 -q 24 -t 1"));
    let read = run("model predict --json --op read -s 64 --clients 24 -t 1").expect_status(0).json();
    let [loaded, rate] = ["loaded_ns", "messages_per_s"].map(|field| positive(&read, &format!("/results/0/{field}")));
    assert!((loaded * rate / 1e9 / 24.0 - 1.0).abs() < 1e-9, "{read:#}");
}

#[test]
fn options_change_predictions() {
    let base = "model predict --json -s 4096";
    let rate = |more: &str| positive(&run(&format!("{base} {more}")).expect_status(0).json(), "/results/0/latency_ns");
    for more in ["--mtu 256", "--ipv6", "--vlan", "--protocol direct-read", "--protocol buffered-write-tail-send"] {
        assert!(rate(more) > rate(""), "{more} adds to latency");
    }
    let json = run("model predict --json -s 33 -q 8 --use-srq").expect_status(0).json();
    assert_eq!(json["results"][0]["bottleneck"], "shared receive queue");
    let json = run("model predict --json -s 16 --config batched -t 4").expect_status(0).json();
    assert_eq!((positive(&json, "/results/0/window"), positive(&json, "/results/0/batch")), (4.0, 4.0));
}

/// On T2, the acknowledgement of a message comes before the receiver finds the message.
#[test]
fn no_message_is_faster_under_load_than_alone() {
    let json = run("model predict --json --params t2 --protocol direct-write -s 0 -t 1").expect_status(0).json();
    let [loaded, alone] = ["loaded_ns", "latency_ns"].map(|name| positive(&json, &format!("/results/0/{name}")));
    assert!(loaded >= alone, "{loaded} {alone}");
}

#[test]
fn impossible_workloads_are_wrong_usage() {
    for (arguments, words) in [
        ("model predict -t 0", &["the window (-t) is 0, allowed is 1 to"][..]),
        ("model predict -t 4 -l 5", &["the batch (-l) is 5, allowed is 1 to 4"]),
        ("model predict -r 0", &["the receive depth (-r) is 0"]),
        ("model predict -s 1073741825", &["the message size (-s) is 1073741825, allowed is 0 to 1073741824"]),
        ("model predict -s 16 --reply 2147483648", &["the reply size (--reply) is 2147483648, allowed is 0 to"]),
        ("model predict -s 16 --reply 16 -b", &["--reply", "--bidirectional"]),
        ("model predict -s 16 --reply 16 --think 1000001", &["the think time (--think) is 1000001, allowed is 0 to"]),
        ("model predict -s 16 --reply 16 --think 5 --rate 1k", &["--think", "--rate"]),
        ("model predict -s 16 --reply 0 --think 5", &["--reply with at least 1"]),
        ("model predict -s 16 --rate 1k", &["--reply"]),
        ("model predict -s 16 --reply 16 --rate 0", &["the rate (--rate) is 0 messages/s, allowed is 0.001 to"]),
        ("model predict -s 16 --reply 16 --rate 1e400", &["the rate (--rate) is inf messages/s"]),
        ("model predict --op read --clients 24 -q 3", &["-q is 3, allowed is 24 with --clients 24"]),
        ("model predict --op read --clients 0", &["the number of queue pairs (-q, --clients) is 0"]),
        ("model predict --op ud-send -s 64K", &["(-s) is 65536, allowed is 0 to 4096"]),
        ("model predict --sizes 16:0", &["the mix of sizes (--sizes) is 16 B with a weight of 0, allowed is"]),
        ("model predict --sizes 16,2G", &["the mix of sizes (--sizes) is 2147483648 B with a weight of 1, allowed is"]),
        ("model predict --sizes 16:1 -s 16", &["--sizes", "--size"]),
        ("model predict --sizes-from /no/such.csv", &["--sizes-from /no/such.csv: "]),
        ("model predict -s -5", &["-5"]),
        ("model predict --peers 0:1", &["the number of senders (--peers, --clients) is 0"]),
        ("model predict --clients 2 --peers 2:1", &["cannot be used with"]),
        ("model predict --peers 3:1 -q 2", &["the number of connections (-q) is 2, allowed is 3 to"]),
        ("model predict --peers many", &["SENDERS:RECEIVERS"]),
        ("model predict --receive-batch 0", &["--receive-batch) is 0"]),
        ("model predict --protocol telepathy", &["the protocol must be one of send-receive, direct-read,"]),
        ("model predict --protocol direct-read --use-srq", &["--use-srq configures the receives of send-receive"]),
        ("model predict --protocol buffered-read -s 1073741824 -l 2", &["(-l) is 2, allowed is 1 to 1"]),
        ("model explain -m 1500", &["256, 512, 1024, 2048 or 4096"]),
        ("model fit", &["RECORD"]),
        ("model predict --op telepathy", &["must be one of send, ud-send, write, read,"]),
        ("model predict --op read --bidirectional", &["cannot be used with"]),
        ("model predict --op ud-send -s 8192", &["(-s) is 8192, allowed is"]),
        ("model measure -n 5", &["-n: the number of rounds is 5: must be 10 to 1000000"]),
        ("model fit --every 0 x", &["0 is not in 1..=1000"]),
    ] {
        run(arguments).expect_complaint(2, words);
    }
}

#[test]
fn damaged_files_are_rejected_and_existing_files_stay() {
    let folder = Folder::new("damaged");
    let t1 = doorbell_data::PARAMETERS[0].text;
    for (from, to, words) in [
        ("l_ns = 1900.0", "l_ns = -3.0", &["wrong.toml: l_ns is -3, allowed is"][..]),
        ("l_ns = 1900.0", "", &["wrong.toml", "missing field `l_ns`"]),
        ("parameters/1", "parameters/9", &["wrong.toml: schema is \"doorbell-parameters/9\", allowed is"]),
    ] {
        assert!(t1.contains(from));
        let path = folder.with("wrong.toml", &t1.replacen(from, to, 1));
        with_paths("model predict --params", &[&path]).expect_complaint(1, words);
    }
    let unknown = "--params: there is no testbed connectx5; allowed is connectx5-100g (t1), ";
    run("model predict --params connectx5").expect_complaint(2, &[unknown, ", or a file"]);
    run("model predict --params /no/such/file").expect_complaint(1, &["/no/such/file cannot be read"]);
    run("model predict --params /").expect_complaint(1, &["/ cannot be read"]);

    let empty = folder.with("empty.json", "");
    with_paths("model fit", &[&empty]).expect_complaint(1, &["empty.json: the record: "]);
    let newer = folder.with("newer.json", r#"{"schema": "doorbell-bench/7"}"#);
    with_paths("model fit", &[&newer]).expect_complaint(1, &["newer.json: schema is", "bench/7", "doorbell-bench/1"]);
    let none = r#"{"schema": "doorbell-bench/1", "results": [],
        "environment": {"doorbell": "0", "kernel": "", "cpu": "", "cpus": 2, "unix_time_s": 0, "device": "",
            "provider": "soft", "udp_port": 4791, "active_mtu": 4096, "receive_buffer_bytes": 0},
        "parameters": {"kind": "latency", "sizes": [16], "extent": {"messages": 1}, "window": 1, "depth": 64,
            "depths_are_defaults": true, "batch": 1, "inline": 64, "connections": 1, "bidirectional": false,
            "events": false, "credits": true, "slow_receiver_us": 0, "timeout": 14, "retry_count": 7, "rnr_retry": 7,
            "verify": false, "memory_bytes": 268435456}}"#;
    let none = folder.with("none.json", none);
    with_paths("model fit", &[&none]).expect_complaint(1, &["0 measured figures", "needs 4 to"]);
    with_paths("model fit --params t1", &[&none]).expect_complaint(2, &["of a hardware RNIC", "of a software RNIC"]);
    let nothing = folder.0.join("nothing");
    std::fs::create_dir(&nothing).expect("a folder");
    with_paths("model fit", &[&nothing]).expect_complaint(1, &["the directory has no records (*.json)"]);
    with_paths("model fit", &[&folder.0]).expect_complaint(1, &["empty.json: "]);
    with_paths("model fit", &[&folder.0.join("missing")]).expect_complaint(1, &["cannot be read"]);
}

#[test]
fn parameters_are_timed_call_by_call() {
    let _one_at_a_time = measuring();
    let table = run("model measure -n 50").expect_status(0);
    for name in ["o_snd_ns.single ", "o_snd_ns.batched ", "o_rcv_ns.single ", "o_post_ns.batched ", "g_fix_ns "] {
        assert!(table.stdout.lines().any(|line| line.starts_with(name)), "{name} is missing in:\n{}", table.stdout);
    }
    assert!(table.stderr.contains("soft provider"), "{}", table.stderr);
    run("model measure --bind 192.0.2.77").expect_complaint(1, &["192.0.2.77 is not an address of this machine"]);
}

#[test]
fn local_records_are_fitted_and_predicted() {
    let _one_at_a_time = measuring();
    let folder = Folder::new("fit");
    let mut records = Vec::new();
    for (name, arguments) in [
        ("lat.json", "bench lat -n 300 -s 16,4096,16384 --json"),
        ("window.json", "bench bw -n 3000 -s 16,512,4096 -t 2 --json"),
        ("batched.json", "bench bw -n 20000 -s 16,512,4096 --config batched --json"),
        // A record that the model must leave out.
        ("answered.json", "bench bw -n 1000 -s 16 --op request-response --json"),
    ] {
        records.push(folder.with(name, &run(arguments).expect_status(0).stdout));
    }
    let paths: Vec<&Path> = records.iter().map(PathBuf::as_path).collect();
    let finished = with_paths("model fit --json", &paths).expect_status(0);
    assert!(finished.stderr.contains("\"request_response\" is neither a message"), "{}", finished.stderr);
    let json = finished.json();
    let count = |field: &str| json[field].as_array().map_or(0, Vec::len);
    // On a busy machine packets may be lost. The fit then leaves results out, and reports the reason.
    assert_eq!(count("residuals") + count("left_out"), 10, "{json:#}");
    assert!(positive(&json, "/median_error") < 10.0);
    assert!(json["estimates"].as_array().is_some_and(|all| all.iter().any(|one| one["interval_95"].is_null())));

    // With --measured, directly timed values appear beside the fitted values.
    let timed = run("model measure -n 50 --json").expect_status(0);
    assert_eq!(timed.json()["schema"], "doorbell-measure/1");
    let timed = folder.with("timed.json", &timed.stdout);
    let mut both: Vec<&Path> = paths.clone();
    both.extend([Path::new("--measured"), &timed]);
    let json = with_paths("model fit --json", &both).expect_status(0).json();
    assert_eq!(json["estimates"][0]["name"], "o_snd_ns.single");
    positive(&json, "/estimates/0/measured");
    assert!(with_paths("model fit", &both).expect_status(0).stdout.contains("timed directly"));
    let (last, wrong) = (both.len() - 1, folder.with("wrong.json", r#"{"schema": "doorbell-measure/9"}"#));
    both[last] = &wrong;
    with_paths("model fit", &both).expect_complaint(1, &["wrong.json: schema is \"doorbell-measure/9\", allowed is"]);

    // `model fit` reads the directory of a study like `report`, also together with other records.
    let study = folder.0.join("study");
    with_paths("study send-receive/window --out", &[&study]).expect_status(0);
    let json = with_paths("model fit --json", &[&study, paths[1]]).expect_status(0).json();
    let names = json["residuals"].to_string();
    assert!(names.contains("study: send-receive/window, "), "{names}");
    let of_both = format!("{names}{}", json["left_out"]);
    assert!(of_both.contains("window.json: "), "{of_both}");

    let out = folder.0.join("here.toml");
    let mut all: Vec<&Path> = paths.clone();
    all.extend([Path::new("--out"), &out]);
    let table = with_paths("model fit --every 2", &all).expect_status(0).stdout;
    assert!(table.contains("figures not fitted to: median error"), "{table}");
    let written = std::fs::read_to_string(&out).expect("the parameters were written");
    with_paths("model fit", &all).expect_complaint(1, &["here.toml exists already: choose a new file"]);
    assert_eq!(std::fs::read_to_string(&out).ok(), Some(written));
    let prediction = with_paths("model predict --json -s 16 --params", &[&out]).expect_status(0).json();
    positive(&prediction, "/results/0/messages_per_s");
    assert_eq!(prediction["parameters"]["rnic"], "software");
}
