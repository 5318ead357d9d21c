//! `doorbell advise`.

use serde_json::Value;

use crate::command::{positive, run};

fn first(arguments: &str) -> Value {
    run(&format!("advise --json {arguments}")).expect_status(0).json()["ranked"][0].clone()
}

#[test]
fn advice_follows_from_the_need() {
    // For large messages whose destination the receiver chooses, the receiver READs the messages.
    let large = first("-s 1048576 --place --first throughput");
    assert!(large["protocol"].as_str().is_some_and(|name| name.starts_with("direct-read")), "{large:#}");
    assert_eq!(large["bottleneck"], "link");
    // For small messages that the receiver keeps while it sleeps, only one protocol is possible.
    let kept = first("-s 64 --hold --sleep --first throughput");
    assert_eq!(kept["protocol"], "send-receive");
    assert!(positive(&kept, "/batch") > 1.0);
    assert_eq!(first("-s 64 --hold --sleep --rate 1000")["window"], 1);
    // For many senders and little memory, receives are shared.
    let many = first("-s 16384 --hold --sleep --peers 64:1 --memory 8 --first throughput");
    assert_eq!(many["srq"], true, "{many:#}");
    assert!(positive(&many, "/receiver_bytes") <= f64::from(8 << 20));
    // A smaller path MTU gives a higher latency.
    assert!(
        positive(&first("-s 4096 -m 256 --hold"), "/latency_ns") > positive(&first("-s 4096 --hold"), "/latency_ns")
    );
}

#[test]
fn rates_of_requests_have_their_unit() {
    for arguments in ["--reply 64K --simulate", "--reply 64K --testbed t1"] {
        let text = run(&format!("advise --request 200 --clients 2 {arguments}")).expect_status(0).stdout;
        assert!(text.contains(" M requests/s") && !text.contains("messages/s"), "{text}");
    }
}

#[test]
fn text_and_json_have_the_same_answer() {
    let arguments = "-s 64:9,8192:1 --rate 100000 --clients 2";
    let text = run(&format!("advise {arguments}")).expect_status(0);
    let json = run(&format!("advise --json {arguments}")).expect_status(0).json();
    // The first sentence says what to take.
    let answer = json["answer"].as_str().expect("an answer");
    assert!(answer.starts_with("Take ") && answer.contains(" us alone"), "{answer}");
    assert_eq!(text.stdout.lines().next(), Some(answer));
    let ranked = json["ranked"].as_array().expect("a list");
    let protocols: usize = ranked.iter().map(|row| 1 + row["ties"].as_array().expect("a list").len()).sum();
    assert!(protocols >= 5, "{json:#}");
    // The reason stands below the row of its protocol, broken at 100 columns.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for advice in ranked {
        let start = format!("\n{} ", advice["protocol"].as_str().expect("a name"));
        let (_, row) = text.stdout.split_once(&start).unwrap_or_else(|| panic!("no row {start}: {}", text.stdout));
        let (_, below) = row.split_once('\n').expect("a line below the row");
        let reason = advice["reason"].as_str().expect("a reason");
        assert!(reason.contains(" times the rate") && words(below).starts_with(reason), "{reason}: {below}");
    }
    let (table, _) = text.stdout.split_once("\nLeft out:").expect("a list");
    assert!(table.lines().skip(1).all(|line| line.chars().count() <= 104), "{table}");
    assert!(text.stdout.contains(&format!(" is described in {}.", json["page"].as_str().expect("a page"))));
    let left_out = json["left_out"].as_array().expect("a list");
    assert!(left_out.iter().any(|left| left["protocol"] == "direct-read"), "{json:#}");
    assert!(text.stdout.contains("  direct-read: its receiver must choose the place"), "{}", text.stdout);
    for change in ["twice the size", "twice the senders (4:1)", "a link of 400 Gb/s", "with an SRQ"] {
        assert!(text.stdout.contains(&format!("\n  {change} ")), "{change} is missing in: {}", text.stdout);
    }
    assert_eq!(json["changes"].as_array().map(Vec::len), Some(5));
    assert_eq!(json["pattern"], "2:1 (2 sending threads, 1 receiving thread, 2 connections)");
    assert!(text.stderr.starts_with("Parameters of T1"), "{}", text.stderr);
}

#[test]
fn the_first_three_recommendations_are_checked_by_simulation() {
    let arguments = "advise -s 512 --clients 2 --first throughput --simulate";
    let json = run(&format!("{arguments} --json")).expect_status(0).json();
    assert_eq!(json["testbed"], "connectx5-100g");
    let ranked = json["ranked"].as_array().expect("a list");
    for (index, row) in ranked.iter().enumerate() {
        assert_eq!(row["departs_in"].is_array(), index < 3, "{row:#}");
        if index < 3 {
            assert!(positive(row, "/simulated/messages_per_s") > 1e5, "{row:#}");
        }
    }
    let text = run(arguments).expect_status(0).stdout;
    assert!(text.contains("Simulated on connectx5-100g, with the same pattern:"), "{text}");
    assert!(text.contains("the model agrees within 25 %") || text.contains("the model's "), "{text}");
    run("advise -s 512 --simulate --ipv6").expect_complaint(2, &["--ipv6 does not go with --simulate"]);
}

#[test]
fn advice_is_tried_on_a_testbed() {
    let arguments = "-s 64 --first throughput --testbed connectx5-100g";
    let json = run(&format!("advise --json {arguments}")).expect_status(0).json();
    assert_eq!(json["testbed"], "connectx5-100g");
    let ranked = json["ranked"].as_array().expect("a list");
    assert!(ranked.len() >= 5, "{json:#}");
    let rates: Vec<f64> = ranked.iter().map(|advice| positive(advice, "/simulated/messages_per_s")).collect();
    assert!(rates.is_sorted_by(|one, other| one >= other), "{rates:?}");
    assert!(ranked.iter().all(|advice| positive(advice, "/simulated/latency_ns") > 500.0), "{json:#}");
    let table = run(&format!("advise {arguments}")).expect_status(0);
    let first = table.stdout.lines().nth(3).and_then(|row| row.split_whitespace().next());
    assert_eq!(first, ranked[0]["protocol"].as_str());
    assert_eq!(table.stdout.lines().next(), json["answer"].as_str());
    let answer = json["answer"].as_str().unwrap_or_default();
    let limit = ranked[0]["simulated"]["bottleneck"]["station"].as_str().expect("a station");
    assert!(answer.contains("; the limit is ") && answer.contains(limit), "{limit}: {answer}");
    assert!(answer.contains("; the next best, ") && answer.ends_with('.'), "{answer}");
    for words in ["  equal within 5 %: ", "\nLeft out:\n", "\nAfter a change of the need, by the model:\n"] {
        assert!(table.stdout.contains(words), "{words} is missing in: {}", table.stdout);
    }
    assert!(json["left_out"].is_array() && json["changes"].is_array(), "{json:#}");
    // The simulated testbed determines the ranking: with a slow link, all rates are low.
    let slow = run(&format!("advise --json {arguments} --set link.rate=100Mb/s")).expect_status(0).json();
    assert!(positive(&slow["ranked"][0], "/simulated/messages_per_s") < rates[0] / 10.0, "{slow:#}");
}

#[test]
fn requests_with_replies_from_clients_are_advised() {
    let arguments = "--request 200 --reply 64K --clients 24";
    let advice = first(&format!("{arguments} --outstanding 16"));
    assert_eq!((advice["window"].as_u64(), advice["bottleneck"].as_str()), (Some(16), Some("link, backward")));
    // Little's law for 16 outstanding requests of each client.
    let in_flight = positive(&advice, "/loaded_ns") * positive(&advice, "/messages_per_s") / 1e9;
    assert!((in_flight / 384.0 - 1.0).abs() < 1e-9, "{advice:#}");
    assert!(positive(&advice, "/loaded_ns") > 10.0 * positive(&advice, "/latency_ns"), "{advice:#}");
    // The advice chooses the window, if the need states none.
    assert!(positive(&first(arguments), "/window") >= 1.0);
    // More threads of the server help where its CPU binds.
    let rate = |more: &str| positive(&first(&format!("-s 64 --reply 64 --clients 24 {more}")), "/messages_per_s");
    assert!(rate("--first throughput --server-threads 4") > 1.5 * rate("--first throughput"));
}

#[test]
fn needs_are_described_as_for_measurements() {
    let of = |arguments: &str| run(&format!("advise --json {arguments}")).expect_status(0).json();
    let mix = of("--sizes 64:9,512:1");
    assert_eq!(mix, of("-s 64:9,512:1"));
    assert_eq!(of("-s 64 -t 16"), of("-s 64 --outstanding 16"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sizes.csv");
    std::fs::write(&file, "bytes,weight\n64,9\n512,1\n").expect("a file");
    assert_eq!(mix, of(&format!("--sizes-from {}", file.display())));
    let notes = run("advise -s 64:9,512:1").expect_status(0).stderr;
    assert!(notes.contains("All figures are means over one mix of 2 sizes."), "{notes}");
    // Clients that think, and an offered rate, leave most of the link free.
    let requests = "--request 200 --reply 64K --clients 24";
    for load in ["--think 1000 --outstanding 1", "--rate 20k --outstanding 16"] {
        let json = of(&format!("{requests} {load}"));
        let first = &json["ranked"][0];
        let (alone, loaded) = (positive(first, "/latency_ns"), positive(first, "/loaded_ns"));
        assert!(loaded >= alone && loaded < 1.2 * alone, "{first:#}");
        assert!(json["answer"].as_str().is_some_and(|answer| answer.contains(" us with this load; ")), "{json:#}");
    }
    let text = run(&format!("advise {requests} --think 1000 --outstanding 1")).expect_status(0).stdout;
    assert!(text.lines().last().is_some_and(|line| line.ends_with(" --think 1000")), "{text}");
}

#[test]
fn the_last_line_measures_the_advice() {
    for (arguments, options) in [
        ("--request 200 --reply 4K --clients 2", "--reply 4096"),
        ("--request 200 --reply 4K --clients 2", "-q 2 --threads 2 --server-threads 1"),
        ("-s 64:9,512:1 --clients 2 --server-threads 2 --hold", "--sizes 64:9,512:1"),
    ] {
        let text = run(&format!("advise {arguments}")).expect_status(0).stdout;
        let command = text.lines().last().and_then(|line| line.trim().strip_prefix("doorbell ")).expect("a command");
        assert!(command.starts_with("bench bw ") && command.contains(options), "{command}");
        run(&format!("{command} --testbed t1 -n 10")).expect_status(0);
    }
}

#[test]
fn many_senders_to_one_thread_are_simulated() {
    let json = run("advise --json -s 200 --clients 8 --hold --sleep --testbed t1").expect_status(2).stderr;
    assert!(json.contains("8 sending and 1 receiving threads cannot be simulated"), "{json}");
    let simulated = first("-s 200 --clients 8 --hold --memory 64 --testbed t1");
    assert!(positive(&simulated, "/simulated/messages_per_s") > 1e6, "{simulated:#}");
    // Requests with replies have a latency with load.
    let requests = "--request 200 --reply 4K --clients 4 --outstanding 4 --hold --simulate";
    let simulated = first(requests);
    assert!(positive(&simulated, "/simulated/loaded_ns") > positive(&simulated, "/simulated/latency_ns"));
    assert!(run(&format!("advise {requests}")).expect_status(0).stdout.contains(" us loaded; "));
    let table = run("advise --request 200 --reply 4K --clients 4 --outstanding 4 --hold --testbed t1").expect_status(0);
    let answer = table.stdout.lines().next().unwrap_or_default();
    assert!(answer.contains(" us loaded, simulated on connectx5-100g; the limit is "), "{answer}");
}

#[test]
fn impossible_needs_are_wrong_usage() {
    for (arguments, words) in [
        ("advise", &["--size"][..]),
        ("advise -s 16:much", &["BYTES:WEIGHT"]),
        ("advise -s 16:-1", &["-s: the weight of a message size is -1"]),
        ("advise -s 2000000000", &["-s: the message size is 2000000000, allowed is 0 to 1073741824"]),
        ("advise -s 16 --rate 0", &["--rate: the rate is 0 messages/s, allowed is"]),
        ("advise -s 16 --memory 0", &["--memory: the memory of a thread is 0 B, and the least"]),
        ("advise -s 16 --peers 0:3", &["--peers: the number of senders is 0"]),
        ("advise -s 16 --peers 4:1 -q 2", &["-q: the number of connections is 2, allowed is 4 to"]),
        ("advise -s 16 --peers 4:1 -b --testbed t1", &["4 sending and 1 receiving threads cannot be simulated"]),
        ("advise -s 16 --reply 16 -b", &["--reply", "--bidirectional"]),
        ("advise -s 16 --reply 2147483648", &["--reply: the reply size is 2147483648, allowed is 0 to"]),
        ("advise -s 16 --clients 0", &["--clients: the number of senders is 0"]),
        ("advise -s 16 --clients 4 --peers 4:1", &["--clients", "--peers"]),
        ("advise -s 16 --clients 4 --server-threads 0", &["--server-threads: the number of receivers is 0"]),
        ("advise -s 16 --server-threads 2", &["--clients"]),
        ("advise -s 16 --outstanding 0", &["--outstanding: the number of outstanding messages is 0"]),
        ("advise -s 16 --ipv6 --testbed connectx5-100g", &["--ipv6 does not go with --testbed"]),
        ("advise -s 16 --set link.rate=1Gb/s", &["add --testbed"]),
        ("advise -s 16 --first cost", &["latency, throughput"]),
        ("advise -s 16 --reply 64 --hosts 4", &["--hosts", "--reply"]),
        ("advise -s 16 --reply 64 --think 5 --rate 1k", &["--think", "--rate"]),
        ("advise -s 16 --reply 64 --think 1000001", &["--think: the think time is 1000001, allowed is 0 to 1000000"]),
        (
            "advise -s 16 --reply 0 --think 5",
            &["--think: the think time is 5 us, allowed is 0 us for messages without"],
        ),
        ("advise --sizes-from /no/such.csv", &["--sizes-from /no/such.csv: "]),
        ("advise --sizes-from sizes.csv -s 16", &["--sizes-from", "--size"]),
        ("advise -s 16 --simulate --testbed t1 --set link.rate=25Gb/s", &["add --params, or drop --simulate"]),
        ("advise -s 16 --clients 100 --simulate", &["100 sending threads cannot be simulated: must be 1 to 64"]),
        ("bench --clients 100", &["--clients 100: must be at most 64", "use -q 100 --threads 64"]),
    ] {
        run(arguments).expect_complaint(2, words);
    }
    run("advise -s 16 --params /no/such/file").expect_complaint(1, &["/no/such/file cannot be read"]);
}

/// Shared memory has no messages, so no option of messages is ignored beside it.
#[test]
fn shared_memory_excludes_the_options_of_messages() {
    for given in [
        "--params t1",
        "--sizes-from sizes.csv",
        "--reply 64",
        "--think 5",
        "--server-threads 2",
        "--outstanding 4",
        "--rate 1k",
        "--peers 4:1",
        "--connections 4",
        "--bidirectional",
        "--place",
        "--sleep",
        "--hold",
        "--memory 64",
        "--mtu 1024",
        "--ipv6",
        "--simulate",
    ] {
        let option = given.split(' ').next().expect("an option");
        run(&format!("advise --shared-memory {given}")).expect_complaint(2, &["--shared-memory", option, "cannot be"]);
        run(&format!("advise -s 16 --keys 4 {given}")).expect_complaint(2, &[]);
    }
}
