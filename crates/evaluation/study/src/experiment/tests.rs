use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use doorbell_claims::{Finding, Verdict};
use doorbell_record::{Environment, FarPoint, Figure, Latency, PointRecord, PointResult, Quantity};

mod links;
mod open;

pub(crate) fn environment(provider: &str, cpus: usize) -> Environment {
    Environment {
        doorbell: "0.0.0".to_owned(),
        kernel: "0".to_owned(),
        cpu: "a processor".to_owned(),
        cpus,
        device: "d".to_owned(),
        provider: provider.to_owned(),
        udp_port: 4791,
        active_mtu: 4096,
        ..Environment::default()
    }
}

const EFFORTS: [Effort; 3] = [Effort::Quick, Effort::Usual, Effort::Full];

#[test]
fn every_point_can_be_measured_and_has_a_file_of_its_own() {
    let scratch = Scratch::new("files");
    let directory = RunDirectory::create(&scratch.0).unwrap();
    for effort in EFFORTS {
        let (mut names, mut files, mut points) = (BTreeSet::new(), BTreeSet::new(), 0);
        for experiment in all(effort) {
            assert!(!experiment.points.is_empty() && !experiment.quantities.is_empty(), "{}", experiment.name);
            for point in &experiment.points {
                point.parameters.check().unwrap_or_else(|error| panic!("{}, {point:?}: {error}", experiment.name));
                assert_eq!(point.parameters.sizes.len(), 1);
                files.insert(directory.file(&experiment, point));
                points += 1;
            }
            assert!(names.insert(experiment.name));
        }
        assert_eq!(files.len(), points, "{effort:?}");
    }
}

/// A default study may take three minutes, and `--standard` ten minutes. The start of two processes for a measurement
/// takes some tens of milliseconds.
#[test]
fn studies_fit_their_time() {
    for (effort, most) in [(Effort::Quick, 150.0), (Effort::Usual, 480.0)] {
        let unnamed = all(effort).into_iter().filter(|experiment| !experiment.has_to_be_named(2));
        let points: usize = unnamed.map(|experiment| experiment.points.len()).sum();
        let seconds = (points * effort.repetitions()) as f64 * (effort.seconds() + 0.1);
        assert!(seconds < most, "{points} points take {seconds} s");
    }
}

/// The first screen of a report answers for these sizes.
#[test]
fn every_study_measures_every_protocol_at_the_compared_sizes() {
    let families: BTreeSet<&str> = doorbell_protocols::Protocol::ALL.iter().map(|it| it.description().family).collect();
    for effort in EFFORTS {
        let experiments = all(effort);
        for (family, what) in families.iter().flat_map(|family| [(family, "latency"), (family, "bandwidth")]) {
            let name = format!("{family}/{what}");
            let experiment = experiments.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no {name}"));
            assert!(!experiment.has_to_be_named(2), "{name} is no part of the default study");
            let first = experiment.points[0].parameters.protocol;
            let points = experiment.points.iter().filter(|point| point.parameters.protocol == first);
            let sizes: BTreeSet<usize> = points.map(|point| point.parameters.sizes[0]).collect();
            assert!(COMPARED_SIZES.iter().all(|size| sizes.contains(size)), "{name}, {effort:?}: {sizes:?}");
        }
    }
}

/// Returns the record of a point with the rate, latency and counters of `measured`.
fn record(experiment: &Experiment, point: &Point, environment: Environment, measured: &PointResult) -> PointRecord {
    let mut record = point.record(experiment, environment);
    let bytes = record.bytes() as f64;
    let result = PointResult {
        bytes: record.bytes(),
        messages: 1,
        seconds: 1.0,
        bytes_per_s: measured.messages_per_s * bytes,
        ..measured.clone()
    };
    record.repetitions = vec![result.clone(), result];
    record
}

/// Returns a result with this rate and the counters of both ends after a thousand operations. Each pair has packets per
/// operation and bytes per packet.
fn counted(rate: f64, requests: (f64, f64), responses: (f64, f64)) -> PointResult {
    let mut result = PointResult { messages_per_s: rate, sent_by_connection: vec![1000], ..PointResult::default() };
    result.counted.client.data_packets = (requests.0 * 1000.0) as u64;
    result.counted.server.ack_packets = (responses.0 * 1000.0) as u64;
    for (rates, (packets, bytes)) in [(&mut result.rates.client, requests), (&mut result.rates.server, responses)] {
        (rates.tx_packets, rates.tx_bytes) = (rate * packets, rate * packets * bytes);
    }
    result
}

/// Sets the CPU time per message of both ends in microseconds. No part of that time is empty polls.
fn spent(result: PointResult, asking_us: f64, answering_us: f64) -> PointResult {
    let mut result = PointResult { sent_by_connection: vec![1000], ..result };
    for (cpu, us) in [(&mut result.cpu.client, asking_us), (&mut result.cpu.server, answering_us)] {
        (cpu.all_ns, cpu.empty_ns) = (Some((us * 1e6) as u64), Some(0));
    }
    result
}

/// Returns a result with the published values for a point on shared memory.
fn far_as_published(experiment: &str, series: &str, x: f64) -> PointResult {
    let rate = |messages_per_s| PointResult { messages_per_s, ..PointResult::default() };
    let with = |figures: &[(Figure, f64)]| PointResult { far: figures.iter().copied().collect(), ..rate(1e6) };
    match experiment {
        "concurrency" if series == "CAS, one address" => rate(2.9e6),
        "concurrency" => rate((0.4e6 * x).min(if series == "CAS" { 51e6 } else { f64::MAX })),
        "queue-pairs" => rate(6e6 * x.min(8.0)),
        "reordering" => {
            let late = if x == 16.0 { 3.0 } else { 0.25 * x };
            let (in_order, gap) = if x == 1.0 { (100.0, 1.0) } else { (97.0, 15.0) };
            with(&[(Figure::InOrder, in_order), (Figure::LargestGap, gap), (Figure::SameAddressOutOfOrder, late)])
        }
        "tearing" => with(&[(Figure::Torn, if x <= 8.0 { 0.0 } else { 5.0 })]),
        "contention" if series.starts_with("steered") => {
            with(&[(Figure::PutSuccess, 90.0), (Figure::BytesPerOperation, 1000.0), (Figure::PutP99, 115.0)])
        }
        "contention" => {
            let bytes = if x < 50.0 { 1.2 } else { 1.9 + 0.008 * (x - 50.0) };
            with(&[
                (Figure::PutSuccess, 26.0),
                (Figure::GetSuccess, 47.0),
                (Figure::BytesPerOperation, 1000.0 * bytes),
                (Figure::PutP99, 4179.0),
            ])
        }
        _ => rate(1e6),
    }
}

/// Returns results with which every published shape holds.
fn as_published(experiment: &str, series: &str, x: f64) -> PointResult {
    if experiment.starts_with("links/") {
        return links::as_links_should(experiment, series, x);
    }
    if let Some(experiment) = experiment.strip_prefix("far-memory/") {
        return far_as_published(experiment, series, x);
    }
    let bytes: f64 = series.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(16.0);
    let line = |bytes: f64| 12.5e9 / (bytes + 82.0);
    let latency = |ns: f64| {
        let ns = ns as u64;
        PointResult {
            latency_ns: Some(Latency { min: ns, p50: ns, mean: 0.0, p99: ns, p999: ns, max: ns }),
            ..PointResult::default()
        }
    };
    let rate = match experiment.trim_start_matches("send-receive/") {
        "direct-read/latency" => return latency(if series.starts_with("fenced") { 8700.0 } else { 5800.0 } + 0.02 * x),
        "direct-read/bandwidth" if series.starts_with("fenced") => (0.1e6_f64).min(0.5 * line(x)),
        "direct-read/threads" => (3e6 * x).min(line(bytes)),
        "direct-read/n-to-1" if bytes > 512.0 => (1.3e6 + 0.04e6 * x).min(line(bytes)),
        "direct-read/n-to-1" => 3e6,
        "one-sided/write" => {
            return match series {
                "0 B" => counted(0.5e6 * x, (1.0, 74.0), (1.0, 62.0)),
                "1 B" => counted(0.5e6 * x, (1.0, 78.0), (1.0, 62.0)),
                _ => counted(12e3, (256.0, 4154.0625), (9.0, 62.0)),
            };
        }
        "one-sided/read" => return counted(0.5e6 * x, (1.0, 74.0), (1.0, 62.0)),
        "one-sided/atomics" => return counted(x * if series == "CAS" { 2.7e6 } else { 5e6 }, (1.0, 86.0), (1.0, 70.0)),
        "wire/request-response" => return counted(0.23e6, (1.0 + 1.0 / x, 64.0), (1.0 + 1.0 / x, 64.0)),
        "wire/frames" => {
            let padded = 4.0 * (x / 4.0).ceil();
            let request = if series == "WRITE" { 74.0 + padded } else { 62.0 };
            return counted(0.5e6, (1.0, request), (1.0, 62.0));
        }
        other if other.ends_with("/latency") => return latency(2500.0 + 0.2 * x),
        other if other.contains('/') => (5e6_f64).min(line(x)),
        "latency" => return latency(2100.0 + 0.2 * x),
        "inline" if series == "inline" => return spent(latency(2100.0 + 0.2 * x), 0.2 + 0.001 * x, 0.2 + 0.001 * x),
        "inline" => return spent(latency(2600.0 + 0.2 * x), 0.2, 0.2),
        "events" => {
            let result = PointResult { messages_per_s: 1e3 * x, ..PointResult::default() };
            return spent(result, 1e3 / x, if series == "sleeping" { 3.0 } else { 1e3 / x });
        }
        "window" => 0.28e6 * x.min(32.0),
        "batch" if series == "4 posts in flight" => 1.2e6 * x,
        "batch" => {
            let most = if series == "window 256" { 14e6 } else { 10e6 };
            7e6 + (most - 7e6) * (x.min(8.0) - 1.0) / 7.0
        }
        "bandwidth" => match series {
            "sequential" => (0.28e6_f64).min(0.6 * line(x)),
            "unbatched" => (8e6_f64).min(line(x)),
            _ => (14e6_f64).min(line(x)),
        },
        "large-or-batch" => {
            let of_one = (8e6_f64).min(line(x));
            if series == "one message" { of_one } else { 8.0 * of_one / 1.5 }
        }
        "receive-batching" => 8e6 * if x == 1.0 && series == "reposted in lists" { 0.6 } else { 1.0 },
        "threads" => (14e6 * x).min(line(bytes)).min(50e6),
        "threads-srq" => {
            if series.ends_with("lock") {
                2e6
            } else {
                1.5e6
            }
        }
        "n-to-1" => {
            let few = if bytes == 16.0 { 8e6 } else { 10e6 } / (1.0 + 0.05 * x);
            (few * if series.ends_with("in turn") { 0.7 } else { 1.0 }).min(line(bytes))
        }
        "n-to-1-srq" => match bytes {
            ..=32.0 => 9.5e6,
            _ if x == 1.0 => (10e6 / 1.05_f64).min(line(bytes)),
            _ => (2e6_f64).min(line(bytes)),
        },
        "rnr" => {
            let refused = series.ends_with("none") && x >= 100.0;
            let mut result = PointResult {
                messages_per_s: if refused { 20e3 } else { (x * 1e3).min(100e3) },
                ..PointResult::default()
            };
            result.counted.server.rnr_naks = if !refused {
                0
            } else if series.starts_with('8') {
                900
            } else {
                100
            };
            return result;
        }
        other => panic!("no published values for {other}"),
    };
    let mut result = PointResult { messages_per_s: rate, ..PointResult::default() };
    result.counted.server.rnr_naks = u64::from(experiment.ends_with("threads-srq"));
    if experiment == "send-receive/batch" { spent(result, 0.016 + 0.1 / x.min(8.0), 0.02) } else { result }
}

fn records(environment: &Environment, measured: impl Fn(&str, &str, f64) -> PointResult) -> Vec<PointRecord> {
    let mut records = Vec::new();
    for experiment in &all(Effort::Usual) {
        for point in &experiment.points {
            let result = measured(&experiment.name, &point.series, point.x);
            records.push(record(experiment, point, environment.clone(), &result));
        }
    }
    records
}

fn verdicts(records: &[PointRecord]) -> Vec<(&'static str, Verdict)> {
    let judge = |experiment: Experiment| {
        let claims = experiment.claims();
        claims.into_iter().map(move |claim| (claim.id, claim.judge(View::new(records), &experiment)))
    };
    all(Effort::Usual).into_iter().flat_map(judge).collect()
}

/// Each published shape of T1 and T2 has exactly one claim.
#[test]
fn every_published_shape_of_an_experiment_is_judged() {
    let claims: Vec<&str> = all(Effort::Usual).iter().flat_map(Experiment::claims).map(|claim| claim.id).collect();
    assert_eq!(claims.iter().collect::<BTreeSet<_>>().len(), claims.len(), "{claims:?}");
    for name in ["T1", "T2"] {
        for shape in &doorbell_claims::testbed(name).unwrap().shapes {
            assert!(claims.contains(&shape.id.as_str()), "{} is judged by nothing", shape.id);
        }
    }
    // Check that shapes have numbers. A claim that needs a missing number would never get a verdict.
    let numbers: usize = doorbell_claims::testbed("T1").unwrap().shapes.iter().map(|it| it.numbers.len()).sum();
    assert!(numbers > 30, "{numbers}");
}

#[test]
fn published_shapes_hold_in_matching_data() {
    let records = records(&environment("system", 64), as_published);
    let mut holds = 0;
    for (id, verdict) in verdicts(&records) {
        // This claim contradicts another claim, since the publications measured different programs.
        let contradicts = id == "send-receive/receiver-never-binds";
        // No experiment has unreliable queue pairs.
        let exempt = contradicts || id == "far-memory/unreliable-have-no-order";
        assert!(exempt || verdict.finding == Finding::Holds, "{id}: {verdict:?}");
        holds += usize::from(verdict.finding == Finding::Holds);
    }
    assert!(holds > 50, "{holds}");
}

/// A quotient may be zero by zero, for example if CPU times consist only of empty polls. Verdicts must not contain such
/// a quotient.
#[test]
fn no_verdict_contains_nan_or_infinity() {
    let nothing = |_: &str, _: &str, _: f64| spent(PointResult::default(), 0.0, 0.0);
    for (id, verdict) in verdicts(&records(&environment("system", 64), nothing)) {
        let text = format!("{verdict:?}");
        assert!(!text.contains("NaN") && !text.contains("inf "), "{id}: {text}");
    }
}

/// Claims that hold if all results are equal, since they state that something does not change or does not matter.
const SAMENESS: [&str; 11] = [
    "send-receive/batch-flat-above-8",
    "send-receive/sequential-is-slow",
    "send-receive/unbatched-is-linear",
    "send-receive/large-beats-batch",
    "send-receive/receiver-never-binds",
    "send-receive/srq-short-is-free",
    "send-receive/srq-does-not-decline",
    "send-receive/srq-one-pair-is-free",
    "direct-read/latency-is-flat",
    "direct-read/window-of-32",
    "direct-read/n-to-1-small-flat",
];

fn holding(measured: impl Fn(&str, &str, f64) -> PointResult) -> Vec<&'static str> {
    let records = records(&environment("system", 64), measured);
    verdicts(&records).iter().filter(|(_, it)| it.finding == Finding::Holds).map(|(id, _)| *id).collect()
}

fn timed(ns: u64) -> PointResult {
    let latency = Latency { min: ns, p50: ns, mean: 0.0, p99: ns, p999: ns, max: ns };
    PointResult { latency_ns: Some(latency), ..PointResult::default() }
}

#[test]
fn no_shape_holds_in_equal_data() {
    let mut holding = holding(|experiment, _, _| {
        let is_timed = experiment.ends_with("latency") || experiment.ends_with("inline");
        let result = PointResult { messages_per_s: 1e6, ..if is_timed { timed(5000) } else { PointResult::default() } };
        // Results of other experiments have no packets, as with a device without counters.
        if experiment.starts_with("send-receive") { spent(result, 1.0, 1.0) } else { result }
    });
    holding.sort_unstable();
    let mut expected = SAMENESS;
    expected.sort_unstable();
    assert_eq!(holding, expected);
}

/// In these data, every quantity that is constant in publications changes.
#[test]
fn no_shape_of_sameness_holds_in_changing_data() {
    let holding = holding(|experiment, series, x| {
        let rate = match experiment {
            "direct-read/latency" => return timed(1000 + 10 * x as u64),
            "direct-read/window" | "direct-read/n-to-1" | "send-receive/batch" => 1e5 * x,
            "send-receive/bandwidth" => 1e9 / x,
            "send-receive/threads" | "send-receive/n-to-1" => {
                1e9 / series.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1.0)
            }
            "send-receive/large-or-batch" if series == "list of 8" => 1e8,
            "send-receive/receive-batching" if series == "reposted one by one" => 1e5,
            "send-receive/n-to-1-srq" => 1e5 / x,
            "send-receive/rnr" => {
                let mut result = PointResult { messages_per_s: 1e5, ..PointResult::default() };
                result.counted.server.rnr_naks = 7;
                return result;
            }
            _ if experiment.starts_with("one-sided/") || experiment.starts_with("wire/") => {
                return counted(1e6, (3.0, 100.0), (3.0, 100.0));
            }
            _ if experiment.ends_with("latency") || experiment.ends_with("inline") => return timed(5000),
            _ => 1e6,
        };
        PointResult { messages_per_s: rate, ..PointResult::default() }
    });
    for id in SAMENESS {
        assert!(!holding.contains(&id), "{id} holds although the data lack this shape");
    }
    let counted: Vec<_> = holding.iter().filter(|id| id.starts_with("wire/") || id.contains("one-sided")).collect();
    assert!(counted.is_empty(), "{counted:?} hold, though no packet is as published");
}

/// The published gain of lists is a factor of two. Neither no gain nor a gain in proportion to the batch has the
/// published shape.
#[test]
fn gain_of_lists_above_the_published_is_another_shape() {
    for (gain, holds) in [(0.5, false), (1.0, true), (3.0, false)] {
        let holding = holding(|experiment, series, x| match experiment {
            "send-receive/batch" if series == "window 256" => {
                let share = gain * (x.min(8.0) - 1.0) / 7.0;
                PointResult {
                    messages_per_s: 7e6 * if gain < 1.0 { 1.0 } else { 1.0 + share },
                    ..PointResult::default()
                }
            }
            _ => as_published(experiment, series, x),
        });
        assert_eq!(holding.contains(&"send-receive/batch-gains"), holds, "{gain}");
    }
}

#[test]
fn verdicts_need_points_and_mention_noise() {
    for (id, verdict) in verdicts(&[]) {
        assert_eq!(verdict.finding, Finding::NoValues, "{id}");
    }
    let mut records = records(&environment("soft", 2), as_published);
    for record in &mut records {
        record.repetitions[0].messages_per_s *= 3.0;
    }
    let of_window: Vec<_> =
        verdicts(&records).into_iter().filter(|(id, _)| id.starts_with("send-receive/window")).collect();
    assert!(of_window[0].1.because.contains("the machine was not quiet"), "{of_window:?}");
}

#[test]
fn verdicts_need_a_clean_link() {
    let struck = Environment { fault_plan: Some("seed=0;drop nth=1".to_owned()), ..environment("soft", 2) };
    for (id, verdict) in verdicts(&records(&struck, as_published)) {
        assert!(matches!(verdict.finding, Finding::CannotShow | Finding::NoValues), "{id}: {verdict:?}");
        if verdict.finding == Finding::CannotShow {
            assert!(verdict.because.ends_with("faults were injected: seed=0;drop nth=1"), "{id}: {verdict:?}");
        }
    }
    // A fault at the other end counts too.
    let peer = Environment { peer: Some(Box::new(struck)), ..environment("soft", 2) };
    assert_eq!(View::new(&records(&peer, as_published)).fault_plan(), Some("seed=0;drop nth=1"));
}

#[test]
fn experiments_fit_a_machine_without_testbed() {
    for cpus in [1, 2, 64] {
        for mut experiment in all(Effort::Usual) {
            experiment.fit_to_machine(Effort::Usual, cpus);
            for point in &experiment.points {
                point.parameters.check().unwrap_or_else(|error| panic!("{}, {point:?}: {error}", experiment.name));
                let Some(FarPoint::Store(store)) = point.parameters.far.as_deref() else { continue };
                assert!(store.clients <= 2 * cpus.max(1) && store.hosts <= store.clients, "{point:?}");
                assert!(store.keys <= 1_000_000 && store.client_us == 0.0, "{point:?}");
                if let Some(rate_per_s) = store.rate_per_s {
                    assert_eq!(rate_per_s, point.x * 1e6, "the axis has the rate that is asked for");
                }
            }
            let hot = |point: &Point| matches!(point.parameters.far.as_deref(), Some(FarPoint::Hot(_)));
            assert!(!experiment.points.iter().any(hot));
        }
    }
}

#[test]
fn shared_memory_point_round_trips_or_is_rejected() {
    let experiment = all(Effort::Quick).into_iter().find(|one| one.name == "far-memory/strategies").unwrap();
    let (point, measured) = (&experiment.points[0], far_as_published("contention", "optimistic", 50.0));
    let written = record(&experiment, point, environment("soft", 2), &measured);
    let good = serde_json::to_value(&written).unwrap();
    let read = PointRecord::parse(good.to_string().as_bytes()).unwrap();
    assert_eq!((&read.parameters, &read.repetitions[0].far), (&written.parameters, &measured.far));
    assert_eq!(read.values(Quantity::Far(Figure::PutP99)), [4179.0, 4179.0]);
    for (field, value, words) in [
        ("strategy", json!("fast"), "\"fast\" is not a strategy: must be one of optimistic"),
        ("clients", json!(0), "the number of clients is 0, allowed is 1 to 1024"),
        ("hosts", json!(65), "the number of hosts is 65, allowed is 1 to 64"),
        ("zipf", json!(9.0), "the exponent of Zipf's law is 9, allowed is 0 to 3"),
        ("write_percent", json!(101.0), "the share of puts is 101 %"),
        ("measure_us", json!(-1.0), "the duration is -1 us"),
    ] {
        let mut bad = good.clone();
        bad["parameters"]["far"]["store"][field] = value;
        let error = PointRecord::parse(bad.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}\nhas not: {words}");
    }
}

fn one() -> (Experiment, Point, PointRecord) {
    let experiment = all(Effort::Quick).remove(1);
    let point = experiment.points[0].clone();
    let measured = PointResult { messages_per_s: 5.0, ..PointResult::default() };
    let record = record(&experiment, &point, environment("soft", 2), &measured);
    (experiment, point, record)
}

#[test]
fn damaged_record_error_names_the_field() {
    let good = serde_json::to_value(one().2).unwrap();
    PointRecord::parse(good.to_string().as_bytes()).unwrap();
    type Change = fn(&mut Value);
    let wrong: [(Change, &str); 14] = [
        (|v| v["format"] = json!("doorbell-bench/1"), "field `format` is \"doorbell-bench/1\""),
        (|v| _ = v.as_object_mut().unwrap().remove("format"), "field `format` is missing"),
        (|v| v["schema"] = json!(2), "field `schema` is 2, this release reads up to 1: use a newer release"),
        (|v| v["schema"] = json!(0), "field `schema` is 0"),
        (|v| v["schema"] = json!("1"), "field `schema` is \"1\""),
        (|v| v["experiment"] = json!(""), "field `experiment` has 0 B"),
        (|v| v["series"] = json!("x".repeat(500)), "field `series` has 500 B"),
        (|v| v["x"] = json!(-1), "field `x` is -1"),
        (|v| v["parameters"]["window"] = json!("wide"), "field `parameters.window`"),
        (|v| v["parameters"]["window"] = json!(0), "the window is 0"),
        (|v| v["parameters"]["sizes"] = json!([]), "has 0 sizes"),
        (|v| v["repetitions"] = json!([]), "field `repetitions` has 0"),
        (|v| v["repetitions"][1]["seconds"] = json!(0), "field `repetitions[1].seconds` is 0"),
        (|v| v["repetitions"][1]["messages"] = json!(-5), "field `repetitions[1].messages`"),
    ];
    for (change, words) in wrong {
        let mut value = good.clone();
        change(&mut value);
        let error = PointRecord::parse(value.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}\nhas not: {words}");
    }
    for json in [&b""[..], b"{", b"[]", b"null", b"\xff", b"{\"format\":", &good.to_string().as_bytes()[..500]] {
        PointRecord::parse(json).unwrap_err();
    }
    assert!(PointRecord::parse("[".repeat(100_000).as_bytes()).is_err(), "deep nesting is no overflow");
}

/// Temporary directory that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn directory_keeps_records_and_overwrites_no_other_file() {
    let scratch = Scratch::new("directory");
    let directory = RunDirectory::create(&scratch.0).unwrap();
    assert!(matches!(RunDirectory::read(&scratch.0), Err(DirectoryError::Empty(_))));
    // No other process can open the directory at the same time.
    assert!(matches!(RunDirectory::create(&scratch.0), Err(DirectoryError::InUse(_))));
    let (experiment, point, record) = one();
    let (environment, result) = (environment("soft", 2), record.repetitions[0].clone());
    assert!(directory.get(&experiment, &point, &environment).unwrap().is_none());
    for count in 1..=2 {
        directory.add(&experiment, &point, &environment, result.clone()).unwrap();
        let record = directory.get(&experiment, &point, &environment).unwrap().unwrap();
        assert_eq!((record.repetitions.len(), &record.parameters), (count, &point.parameters));
    }
    // An interrupted study and other programs may leave files in the directory.
    fs::write(scratch.0.join("x.tmp"), "half").unwrap();
    fs::write(scratch.0.join("report.html"), "<html>").unwrap();
    assert_eq!(RunDirectory::read(&scratch.0).unwrap().len(), 1);

    // The same machine at a later time may add to the record.
    let later = Environment { unix_time_s: 9, kernel: "1".to_owned(), ..environment.clone() };
    directory.get(&experiment, &point, &later).unwrap().unwrap();
    let elsewhere = Environment { cpus: 3, ..environment.clone() };
    let error = directory.add(&experiment, &point, &elsewhere, result.clone()).unwrap_err().to_string();
    assert!(error.contains("field `environment` differs") && error.contains("another --out"), "{error}");
    // If another host has the same name, the error states further properties of the host.
    let with_peer =
        |cpus| Environment { peer: Some(Box::new(Environment { cpus, ..environment.clone() })), ..environment.clone() };
    let pair = RunDirectory::create(&scratch.0.join("pair")).unwrap();
    pair.add(&experiment, &point, &with_peer(2), result.clone()).unwrap();
    let error = pair.get(&experiment, &point, &with_peer(8)).unwrap_err().to_string();
    assert!(error.contains("environment.peer") && error.contains(" 8 CPUs") && error.contains(" 2 CPUs"), "{error}");
    let mut longer = point.clone();
    longer.parameters.extent = doorbell_record::Extent::Seconds(9.0);
    let error = directory.get(&experiment, &longer, &environment).unwrap_err().to_string();
    assert!(error.contains("field `parameters` differs"), "{error}");
    assert!(error.contains("the duration is 9 s instead of "), "{error}");
    let mut paced = point.clone();
    paced.parameters.rate = Some(5.0);
    let error = directory.get(&experiment, &paced, &environment).unwrap_err().to_string();
    assert!(error.contains("(the rate is 5 messages/s instead of none): choose another --out"), "{error}");
    let mut mixed = point.clone();
    mixed.parameters.mix = Some(doorbell_record::SizeMix(vec![(16, 1.0), (64, 1.0)]));
    let error = directory.get(&experiment, &mixed, &environment).unwrap_err().to_string();
    assert!(error.contains("(the mix of sizes is another one): choose another --out"), "{error}");

    let file = directory.file(&experiment, &point);
    fs::write(&file, "{\"format\": \"something else\"}").unwrap();
    let error = directory.add(&experiment, &point, &environment, result).unwrap_err().to_string();
    assert!(error.contains(&file.display().to_string()) && error.contains("field `format`"), "{error}");
    assert!(RunDirectory::read(&scratch.0).unwrap_err().to_string().contains("field `format`"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"format\": \"something else\"}");
}
