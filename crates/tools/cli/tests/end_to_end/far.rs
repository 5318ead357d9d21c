//! `doorbell far`.

use std::net::TcpListener;

use serde_json::Value;

use crate::command::{Running, doorbell, measuring, run};

#[test]
fn a_workload_is_simulated_with_several_strategies_and_clients() {
    let arguments = "far run --testbed connectx5-100g-far --strategy optimistic,server --clients 2,4 -D 200us --mix b";
    let text = run(arguments).expect_status(0).stdout;
    assert!(text.contains("1024 keys, Zipf 0.99, 5 % puts, values of 128 B, 2 hosts"), "{text}");
    let (_, legend) = text.split_once("\n\n").expect("a legend after the table");
    for column in ["get/op, put/op ", "ok % ", "p50, p99, p99.9 ", "B/op, x ", "fair "] {
        assert!(legend.lines().any(|line| line.starts_with(column)), "{column:?} is missing in: {legend}");
    }
    assert!(legend.lines().all(|line| line.chars().count() <= 100), "{legend}");
    assert!(legend.replace('\n', " ").contains("optimistic clients collapse. A middlebox"), "{legend}");
    let json = run(&format!("{arguments} --json")).expect_status(0).json();
    assert_eq!((&json["schema"], &json["simulated"]), (&Value::from("doorbell-far/1"), &Value::from(true)));
    let runs = json["runs"].as_array().expect("runs");
    let named: Vec<_> = runs.iter().map(|run| (run["strategy"].as_str(), run["clients"].as_u64())).collect();
    let (optimistic, server) = (Some("optimistic"), Some("server"));
    assert_eq!(named, [(optimistic, Some(2)), (server, Some(2)), (optimistic, Some(4)), (server, Some(4))]);
    for run in runs {
        let puts = run["puts"]["operations"].as_u64().expect("puts");
        let all = run["operations"].as_u64().expect("operations");
        assert!(all > 20 && puts * 5 < all, "{run}");
        assert!(text.contains(run["strategy"].as_str().expect("a name")), "{text}");
        assert_eq!(run["absent"], 0, "{run}");
    }
}

#[test]
fn a_workload_runs_here_with_every_part_in_threads() {
    let json = run("far run -d doorbell0 --clients 2 -D 100ms --keys 64 --json").expect_status(0).json();
    let run = &json["runs"][0];
    assert_eq!(json["simulated"], false);
    assert!(run["gets"]["operations"].as_u64() > Some(10) && run["puts"]["operations"].as_u64() > Some(10), "{run}");
    assert!(run["bytes_per_operation"].as_f64() > run["least_bytes_per_operation"].as_f64().map(|b| b * 0.9), "{run}");
}

/// Without `--clients` a run starts two clients per processor. With more it names the commands that work.
#[test]
fn a_run_here_has_as_many_clients_as_the_machine_bears() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let finished = {
        let _one_at_a_time = measuring();
        run("far run -d doorbell0 -D 50ms --keys 64 --json").expect_status(0)
    };
    let picked = (2 * cpus).min(64);
    assert_eq!(finished.json()["runs"][0]["clients"], picked, "{}", finished.stdout);
    assert!(finished.stderr.contains(&format!("{picked} clients, since they poll")), "{}", finished.stderr);
    if 2 * cpus >= 1024 {
        return eprintln!("left out: this machine bears the maximum number of clients");
    }
    let fewer = format!("`doorbell far run --strategy steered --clients {}`", 2 * cpus);
    run("far run -d doorbell0 --strategy steered --clients 1024").expect_complaint(
        2,
        &[
            "--clients is 1024, allowed is 1 to",
            &fewer,
            "`doorbell far run --strategy steered --testbed connectx5-100g-far --clients 1024`",
        ],
    );
}

/// Runs `far verify`, which kills a client, and returns the result. Checks that the history is linearizable and long.
fn verified(arguments: &str) -> Value {
    let json = run(&format!("far verify -d doorbell0 {arguments} --json")).expect_status(0).json();
    assert_eq!((&json["linearizable"], &json["killed"]), (&Value::from(true), &Value::from(1)), "{arguments}: {json}");
    assert!(json["operations"].as_u64() > Some(30), "{arguments}: {json}");
    json
}

/// Every client is a process, and the test kills the first one.
#[test]
fn a_killed_client_leaves_a_linearizable_history() {
    for strategy in ["optimistic", "queue-lock", "server"] {
        verified(&format!("--strategy {strategy} --clients 3 --keys 32 -D 200ms"));
    }
}

/// The command kills a client, and then the middlebox. Another middlebox without state replaces the first one. Both
/// boxes lose, duplicate and reorder packets all the time. Requests in flight at the kill get no answer, and no result
/// is wrong. The remaining clients continue through the second box, each at its own pace.
/// In the store's tests, `a_box_that_took_anothers_place_steers_and_converts_again` runs clients in lockstep, and shows
/// that a second box steers and converts.
#[test]
fn a_lossy_replaced_middlebox_leaves_a_linearizable_history() {
    for strategy in ["steered", "steered-write"] {
        let json = verified(&format!(
            "--strategy {strategy} --clients 3 --keys 8 --writes 70 -D 1500ms --kill-box \
             --fault drop=0.003,duplicate=0.003,reorder=0.003,seed=1"
        ));
        // Counters of the second box.
        let counted = |name: &str| json["box"][name].as_u64();
        assert!(counted("requests") > Some(0), "{strategy}: clients went on through the second box: {json}");
        assert!(strategy == "steered" || counted("reads_steered") == Some(0), "{strategy}: {json}");
    }
}

/// Memory node and clients use a box that another command runs at the address that the store prints.
#[test]
fn an_external_middlebox_leaves_a_linearizable_history() {
    // No other test listens on this address of loopback.
    let free = TcpListener::bind("127.0.0.79:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let mut store = Running::start(doorbell(&format!(
        "far verify -d doorbell0 --strategy steered --through {free} --node-at 127.0.0.1:0 --clients 2 --keys 8 -D 200ms --json"
    )));
    let node = store.text_after("now: doorbell steer ");
    let sizes = store.text_after("--store ");
    let mut steer =
        Running::start(doorbell(&format!("steer {node} --exclusive --json --store {sizes} --listen {free}")));
    let json = store.finish().expect_status(0).json();
    assert_eq!((&json["linearizable"], &json["box"]), (&Value::from(true), &Value::Null), "{json}");
    steer.wait_for("has ended its connection");
    steer.kill();
}

/// The command kills one of two memory nodes, each a process, and then a client. The other clients continue with the
/// remaining memory node.
#[test]
fn a_killed_memory_node_leaves_a_linearizable_history() {
    for (node, strategy) in [("primary", "optimistic"), ("replica", "chained")] {
        let json = verified(&format!(
            "--strategy {strategy} --clients 3 --keys 32 --replicas 2 --kill-node {node} --client-time 500us -D 2s"
        ));
        assert_eq!(json["memory_nodes"], 1, "{node}: {json}");
    }
    let json = verified("--clients 3 --keys 32 --replicas 2 -D 200ms");
    assert_eq!(json["memory_nodes"], 2, "{json}");
}

/// A put on two memory nodes costs twice as much as on one, in virtual time. The same store works on this machine.
#[test]
fn a_put_on_two_memory_nodes_takes_four_round_trips() {
    let run = |replicas: u32| {
        let of = "--testbed connectx5-100g-far --clients 1 --hosts 1 --mix writes -D 200us --json";
        run(&format!("far run {of} --replicas {replicas}")).expect_status(0).json()
    };
    let figures = |json: &Value| {
        let verbs = &json["runs"][0];
        (verbs["puts"]["latency_ns"]["p50"].as_f64(), verbs["bytes_per_operation"].as_f64())
    };
    let (one, two) = (run(1), run(2));
    assert_eq!((&one["replicas"], &two["replicas"]), (&Value::from(1), &Value::from(2)));
    let ((Some(one_ns), Some(one_bytes)), (Some(two_ns), Some(two_bytes))) = (figures(&one), figures(&two)) else {
        panic!("{one} {two}")
    };
    // In virtual time, a put takes only its round trips, and its node is written to both memory nodes.
    assert!((1.8..2.3).contains(&(two_ns / one_ns)), "{one_ns} and {two_ns} ns");
    assert!((1.6..2.2).contains(&(two_bytes / one_bytes)), "{one_bytes} and {two_bytes} B");
    let json = crate::command::run("far run -d doorbell0 --clients 2 -D 100ms --keys 64 --replicas 2 --json");
    let json = json.expect_status(0).json();
    assert!(json["runs"][0]["puts"]["operations"].as_u64() > Some(10), "{json}");
}

#[test]
fn invalid_far_arguments_are_rejected() {
    for (arguments, words) in [
        ("far run --strategy hope", "\"hope\" is no strategy: must be one of optimistic, chained, backoff, lock"),
        ("far run --mix d", "\"d\" is no mix: must be one of a (YCSB A"),
        ("far run --zipf 4", "must be 0 (uniform) to 3"),
        ("far run --clients 0", "must be 1 to 1024"),
        ("far verify -d doorbell0 --kill-box", "--kill-box configures a middlebox, and strategy optimistic has none"),
        (
            "far verify -d doorbell0 --through 127.0.0.1:9 --node-at 127.0.0.1:0",
            "--through configures a middlebox, and strategy optimistic has none",
        ),
        (
            "far verify -d doorbell0 --strategy steered --kill-box --through 127.0.0.1:9 --node-at 127.0.0.1:0",
            "--kill-box is for a middlebox started here: drop --kill-box or --through",
        ),
        (
            "far run -d doorbell0 --strategy steered,steered-write --through 127.0.0.1:9 --node-at 127.0.0.1:0",
            "--through must be given with one strategy and one number of clients",
        ),
        ("far run -d doorbell0 -t 65", "must be 1 to 64 operations"),
        ("far run -d doorbell0 --keys 0", "must be 1 to 2^27"),
        ("far run -d doorbell0 -r 0", "-r is 0 operations per second: must be above 0 and finite"),
        ("far run --testbed connectx5-100g-far -d doorbell0", "-d does not go with --testbed"),
        ("far run --strategy optimistic,server --replicas 2", "strategy server works with one memory node"),
        ("far verify -d doorbell0 --strategy steered --replicas 2", "strategy steered works with one memory node"),
        ("far run --replicas 3", "must be 1 or 2"),
        ("far verify -d doorbell0 --kill-node primary", "--kill-node leaves no memory node: add --replicas 2"),
        ("far verify -d doorbell0 -s 4", "values must have at least 8 B to be checked"),
    ] {
        let finished = run(arguments).expect_status(2);
        assert!(finished.stderr.contains(words), "{words:?} is missing in: {}", finished.stderr);
    }
}
