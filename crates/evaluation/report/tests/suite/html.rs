//! Report pages of regular and irregular records.

use doorbell_claims::Finding;
use doorbell_machine::cpu::CpuTime;
use doorbell_machine::{Adapter, Machine};
use doorbell_model::parameters::{Parameters, RnicKind};
use doorbell_model::record::observations_of;
use doorbell_record::{
    Environment, FarPoint, Figure, HostResult, Kind, Latency, PointRecord, PointResult, Quantity, Strategy,
};
use doorbell_report::{Account, Fitted, Model, Prediction, Run, changes, html, verdicts};
use doorbell_study::experiment::{COMPARED_SIZES, Effort, Experiment, all};
use serde_json::Value;

fn environment() -> Environment {
    Environment {
        doorbell: "0.0.0".to_owned(),
        kernel: "0".to_owned(),
        cpu: "a processor".to_owned(),
        cpus: 2,
        unix_time_s: 0,
        device: "d".to_owned(),
        provider: "soft".to_owned(),
        udp_port: 4791,
        active_mtu: 4096,
        receive_buffer_bytes: 0,
        testbed: None,
        machine: Machine::default(),
        adapter: None,
        soft_options: None,
        fault_plan: None,
        pinning: None,
        peer: None,
        hosts: Vec::new(),
    }
}

/// Returns records with three repetitions of each point of an experiment.
fn records(experiment: &Experiment) -> Vec<PointRecord> {
    let of = |point: &doorbell_study::experiment::Point| {
        let mut record = point.record(experiment, environment());
        for repetition in 1..=3_u64 {
            let rate = 1000.0 * (repetition as f64 + point.x);
            let ns = 1000 * repetition + point.x as u64;
            let latency = Latency { min: ns, p50: ns, mean: ns as f64, p99: 2 * ns, p999: 3 * ns, max: 4 * ns };
            record.repetitions.push(PointResult {
                messages: 1000,
                seconds: 1.0,
                messages_per_s: rate,
                bytes_per_s: rate * record.bytes() as f64,
                latency_ns: experiment.name.ends_with("/latency").then_some(latency),
                sent_by_connection: vec![500, 500],
                ..PointResult::default()
            });
        }
        record
    };
    experiment.points.iter().map(of).collect()
}

fn run(name: &str) -> Run {
    Run { name: name.to_owned(), records: all(Effort::Quick).iter().flat_map(records).collect() }
}

/// Returns the data of all plots.
fn plots(page: &str) -> Vec<Value> {
    let pieces = page.split("<script type=\"application/json\">").skip(1);
    pieces.map(|piece| serde_json::from_str(piece.split("</script>").next().unwrap()).unwrap()).collect()
}

#[test]
fn every_point_is_in_a_plot_and_in_a_table() {
    let runs = [run("here"), run("there")];
    let page = html(&runs, None, None);
    let plots = plots(&page);
    let (compared, plots) = plots.split_at(2);
    assert_eq!(plots.len(), all(Effort::Quick).len());
    for (plot, variant) in compared.iter().zip(["fenced, awaited", "fenced, awaited, unbatched"]) {
        let series = plot["series"].as_array().unwrap();
        let named = |name: &str| series.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        let sizes = |name: &str| -> Vec<u64> {
            named(name)["points"].as_array().unwrap().iter().map(|it| it["x"].as_f64().unwrap() as u64).collect()
        };
        // One curve for each protocol and run is shown, and has all sizes. The variants are hidden.
        let shown: Vec<_> = series.iter().filter(|one| one["hidden"] == false).map(|one| &one["name"]).collect();
        let families =
            ["buffered-read", "buffered-write", "direct-read", "direct-write", "send-receive", "shared-write"];
        assert_eq!(shown, [families, families].concat(), "{plot}");
        for family in families {
            assert!(COMPARED_SIZES.iter().all(|size| sizes(family).contains(&(*size as u64))), "{family}: {plot}");
        }
        let variant = format!("direct-read, {variant}");
        assert_eq!(named(&variant)["hidden"], true, "{plot}");
        assert!(sizes(&variant).len() < sizes("direct-read").len(), "{plot}");
    }
    let points: usize = plots
        .iter()
        .flat_map(|plot| plot["series"].as_array().unwrap())
        .map(|series| series["points"].as_array().unwrap().len())
        .sum();
    assert_eq!(points, runs.iter().map(|run| run.records.len()).sum::<usize>());
    let first = &plots[0]["series"][0]["points"][0]["y"][0];
    assert_eq!((&first["median"], first["values"].as_array().unwrap().len()), (&Value::from(2.001), 3));
    assert_eq!(page.matches("<section id=").count(), 1 + plots.len());
    assert!(page.matches("<tr>").count() > points, "each has a row");
    assert!(
        page.contains("The lowest median latency is 2.00 us (ping-pong; message size 1 B)"),
        "sentences are computed"
    );
    let answers = between(&page, "id=\"answers\"", "</section>");
    for text in ["lowest latency", "highest throughput", "4 KiB", "window 1, batch 1", "best of 6 protocols; next "] {
        assert!(answers.contains(text), "{text}");
    }
    assert!(!answers.contains("not measured"), "every study has these sizes");
    assert!(page.find("id=\"answers\"") < page.find("id=\"glance\""), "the answers come first");
    for text in ["Protocols at a glance", "here: ", "there: ", "a processor on 2 CPUs", "1970-01-01"] {
        assert!(page.contains(text), "{text}");
    }
}

/// The records give each strategy a rate that is its position in `Strategy::ALL`, in millions of operations per second.
/// The 99th percentile of puts is the length of the strategy's name, in microseconds.
#[test]
fn one_picture_says_which_strategy_is_best_for_a_workload() {
    let mut run = run("here");
    for record in &mut run.records {
        let Some(store) = record.parameters.far.as_deref().and_then(FarPoint::store) else { continue };
        let place = Strategy::ALL.iter().position(|&strategy| strategy == store.strategy).unwrap();
        for result in &mut record.repetitions {
            result.messages_per_s = 1e6 * (place + 1) as f64;
            result.far.insert(Figure::PutP99, store.strategy.name().len() as f64);
        }
    }
    let page = html(&[run.clone()], None, None);
    let picture = page.split("id=\"strategies\"").nth(1).expect("a picture").split("</table>").next().unwrap();
    // `steered-write` is the last strategy and so the fastest one. `lock` has the shortest name and so the shortest
    // latency.
    assert!(picture.contains("\u{2605} 9.00") && picture.contains("\u{25c6} 4.00 us"), "{picture}");
    let picture = picture.split("<table>").nth(1).unwrap();
    let rows = picture.matches("scope=\"row\"").count() - 1;
    for mark in ["--heat: 100%", "\u{2605}", "\u{25c6}"] {
        assert_eq!(picture.matches(mark).count(), rows, "{mark} once in each row");
    }
    for text in ["share of puts", "skew (Zipf exponent)", "a middlebox", "queue-lock"] {
        assert!(picture.contains(text), "{text}");
    }
    run.records.retain(|record| record.parameters.far.is_none());
    assert!(!html(&[run], None, None).contains("id=\"strategies\""), "without workloads there is no choice");
}

#[test]
fn published_figures_stand_beside_the_measurements() {
    let testbed = doorbell_claims::testbed("T1").unwrap();
    let page = html(&[run("here")], None, Some(testbed));
    let plots = plots(&page);
    let drawn: Vec<&Value> = plots
        .iter()
        .flat_map(|plot| plot["series"].as_array().unwrap())
        .filter(|series| testbed.row(series["name"].as_str().unwrap()).is_some())
        .collect();
    assert!(drawn.len() >= 6, "{drawn:?}");
    let ceiling = drawn.iter().find(|series| series["name"] == "send-receive/batch-ceiling-messages").unwrap();
    let [point] = ceiling["points"].as_array().unwrap().as_slice() else { panic!("{ceiling}") };
    // The published rate is 14 M messages/s with eight messages per post. The page draws it as the last run.
    assert_eq!((&point["x"], &point["y"][0]["median"], &ceiling["run"]), (&8.0.into(), &14.0.into(), &1.into()));
    assert!(point["y"].as_array().unwrap()[1..].iter().all(Value::is_null), "{point}");
    for plot in &plots {
        let several = plot["series"].as_array().unwrap().iter().any(|series| series["run"] == 1);
        assert_eq!(plot["runs"].as_array().unwrap().len(), if several { 2 } else { 1 });
    }
    for shape in &testbed.shapes {
        assert!(page.contains(&shape.says), "{}", shape.id);
    }
    // A published sentence is a curve at published values, or through the first point of the run's own curve.
    let curve = |name: &str| -> Vec<(f64, f64)> {
        let all = || plots.iter().flat_map(|plot| plot["series"].as_array().unwrap());
        let of_it = all().find(|series| series["run"] == 1 && series["name"].as_str().unwrap().starts_with(name));
        let points = of_it.unwrap_or_else(|| panic!("no curve {name}"))["points"].as_array().unwrap();
        let value = |point: &Value| {
            let values: Vec<f64> = point["y"].as_array().unwrap().iter().filter_map(|y| y["median"].as_f64()).collect();
            assert_eq!(values.len(), 1, "{point}");
            (point["x"].as_f64().unwrap(), values[0])
        };
        points.iter().map(value).collect()
    };
    let latency = curve("send-receive/latency-is-a-line (shape)");
    assert_eq!((latency[0].0, latency[latency.len() - 1]), (16.0, (8192.0, 2.0 + 8.0 * 0.2)));
    let window = curve("send-receive/window-linear-then-flat (shape, through the first point of one per post of here)");
    let at = |x: f64| window.iter().find(|point| point.0 == x).unwrap().1;
    // The second of three repetitions with a window of one had 3,000 messages/s.
    assert_eq!((at(1.0), at(16.0), at(256.0)), (0.003, 0.048, 0.096));
    assert!(curve("direct-read/latency-is-flat").iter().all(|point| point.1 == 6.0));
    assert!(page.contains("a little over 1.7"), "numbers are as published");
    let without = html(&[run("here")], None, None);
    assert!(!without.contains("(published)") && !without.contains("a little over 1.7"));
}

/// Returns a run with records of a few experiments.
fn small(name: &str) -> Run {
    let experiments =
        ["send-receive/latency", "send-receive/bandwidth", "send-receive/window", "send-receive/batch", "hosts/pairs"];
    let mut run = run(name);
    run.records.retain(|record| experiments.contains(&record.experiment.as_str()));
    run
}

/// Returns a run whose message rates of one experiment are multiplied by a factor.
fn faster(name: &str, experiment: &str, times: f64) -> Run {
    let mut run = small(name);
    for result in run.records.iter_mut().filter(|it| it.experiment == experiment).flat_map(|it| &mut it.repetitions) {
        (result.messages_per_s, result.bytes_per_s) = (result.messages_per_s * times, result.bytes_per_s * times);
    }
    run
}

/// Returns the part of a page between two texts.
fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let rest = page.split_once(from).unwrap_or_else(|| panic!("{from} is missing")).1;
    rest.split_once(to).unwrap_or_else(|| panic!("{to} is missing behind {from}")).0
}

#[test]
fn two_runs_are_compared_point_by_point() {
    let (before, mut after) = (small("before"), faster("after", "send-receive/window", 10.0));
    for record in &mut after.records {
        record.environment.active_mtu = 1024;
        let link = |packets: u64| [("tx_shared_memory_packets".to_owned(), packets)].into();
        record.repetitions.iter_mut().for_each(|result| result.link.client = link(result.messages));
    }
    // One point has other parameters, another point has one repetition, and a third point is missing.
    let window = |run: &mut Run, x: f64| -> usize {
        run.records.iter().position(|it| it.experiment == "send-receive/window" && it.x == x).unwrap()
    };
    let other = window(&mut after, 1.0);
    after.records[other].parameters.batch += 1;
    let once = window(&mut after, 4.0);
    after.records[once].repetitions.truncate(1);
    let gone = window(&mut after, 16.0);
    after.records.remove(gone);
    let runs = [before.clone(), after];
    let page = html(&runs, None, None);
    let differences = between(&page, "id=\"differences\"", "</table>");
    assert!(
        differences.contains("largest path MTU") && differences.contains("4096 B") && differences.contains("1024 B")
    );
    assert!(differences.contains("link of software RNICs") && differences.contains("shared memory"), "{differences}");
    assert_eq!(differences.matches("scope=\"row\"").count(), 2, "nothing else differs: {differences}");
    let found = changes(&runs);
    let of = |name: &str| found.iter().find(|it| it.experiment == name).unwrap_or_else(|| panic!("no {name}"));
    let changed = of("send-receive/window");
    let points = before.records.iter().filter(|it| it.experiment == "send-receive/window").count() - 2;
    assert_eq!((changed.points, changed.more, changed.less), (points, points - 1, 0), "{changed:?}");
    // Each point has three figures in each run. In two of the twenty orders of these six figures, the runs lie apart.
    assert!((changed.by_chance - 0.1 * (points - 1) as f64).abs() < 1e-9, "{changed:?}");
    let ratio = changed.ratio.unwrap();
    assert!((5.0..=10.0).contains(&ratio), "{changed:?}");
    let same = of("send-receive/batch");
    assert_eq!((same.more, same.less), (0, 0), "{same:?}");
    assert!((same.ratio.unwrap() - 1.0).abs() < 1e-9, "{same:?}");
    let section = between(&page, "id=\"x-send-receive-window\"", "</section>");
    for words in ["other parameters", "one repetition: unknown", ">more<", "the least"] {
        let is_there = section.contains(words);
        assert_eq!(is_there, words != "the least", "{words}");
    }
    // The first run has 2,000 to 4,000 messages/s, and the second run 20,000 to 40,000. The ratio of medians is 10, and
    // the ratios of single repetitions are 5 to 20.
    let row = |x: &str| {
        section.split("<tr>").find(|row| row.contains(&format!("data-value=\"{x}\"")) && row.contains("10.0"))
    };
    let row = row("256").or_else(|| row("64")).expect("a row of a large window");
    assert!(row.contains("M messages/s") && row.contains("more"), "{row}");
    let untouched = between(&page, "id=\"x-send-receive-batch\"", "</section>");
    assert!(untouched.contains("within the spread") && !untouched.contains(">more<"));

    // Environments that are equal have no table of differences, and a page of three runs has no comparison.
    let alike = html(&[before.clone(), small("after")], None, None);
    assert!(alike.contains("The environments of both are the same") && !alike.contains("id=\"differences\""));
    let three = [before.clone(), small("after"), small("later")];
    assert!(changes(&three).is_empty() && !html(&three, None, None).contains("id=\"changes\""));
    assert!(changes(&[before]).is_empty());
}

#[test]
fn table_compares_links_and_names_stray_packets() {
    let mut run = run("here");
    run.records.retain(|record| record.parameters.link.is_some() || record.experiment == "send-receive/window");
    for (index, record) in run.records.iter_mut().enumerate() {
        let is_shared = record.series.ends_with(", shared memory");
        // One point that should use shared memory has sent one packet over UDP.
        let udp = if is_shared { u64::from(record.series.starts_with("READ") && record.x == 1.0) } else { 7 };
        for result in &mut record.repetitions {
            let ns = if is_shared { 700 } else { 3500 };
            result.latency_ns = Some(Latency { min: ns, p50: ns, mean: 0.0, p99: ns, p999: ns, max: ns });
            result.messages_per_s = if is_shared { 9e6 } else { 3e6 };
            result.bytes_per_s = result.messages_per_s * 16.0;
            let counted = [("tx_udp_packets", udp), ("tx_shared_memory_packets", if is_shared { 9 } else { 0 })];
            result.link.client = counted.map(|(name, count)| (name.to_owned(), count)).into();
        }
        assert!(index < 100);
    }
    let page = html(&[run.clone()], None, None);
    let section = between(&page, "id=\"links\"", "<h2");
    let head = between(section, "<thead>", "</thead>");
    assert_eq!((head.matches("UDP").count(), head.matches("memory").count()), (5, 5), "{head}");
    for words in
        [">send-receive<", ">direct-read-fenced-awaited<", ">WRITE<", "5.00\u{d7}", "3.00\u{d7}", "9.00 \u{2020}"]
    {
        assert!(section.contains(words), "{words}: {section}");
    }
    let stray = "READ, shared memory (links/rate, 1): shared memory (27 packets) and UDP (3 packets)";
    assert!(section.contains(stray), "{section}");
    // Verdicts on goals come after the plots, and are not in the table of published shapes.
    let goals = between(&page, "id=\"goals\"", "<h2");
    assert!(goals.contains("at most half as long") && goals.contains("5.00 times (send-receive)"), "{goals}");
    assert!(!section.contains("at most half as long"), "{section}");
    assert!(!between(&page, "id=\"verdicts\"", "</table>").contains("half as long"));
    let rate = between(&page, "id=\"x-links-rate\"", "</section>");
    assert!(rate.contains("carried by") && rate.contains("shared memory (27 packets) and UDP (3 packets)"), "{rate}");
    assert!(between(&page, "id=\"x-send-receive-window\"", "</section>").contains("All packets went over UDP."));
    assert!(page.contains("UDP (") && page.contains("shared memory (") && page.contains("both, as their tables say ("));
    // In a plot, both curves of a protocol have the same name, and each link is drawn as a run.
    let plots = plots(&page);
    let time = plots.iter().find(|plot| plot["runs"] == serde_json::json!(["UDP", "shared memory"])).unwrap();
    let series = time["series"].as_array().unwrap();
    let runs_of = |name: &str| -> Vec<u64> {
        series.iter().filter(|one| one["name"] == name).map(|one| one["run"].as_u64().unwrap()).collect()
    };
    assert_eq!(runs_of("send-receive"), [0, 1], "{series:?}");
    run.records.retain(|record| record.parameters.link.is_none());
    let without = html(&[run], None, None);
    assert!(!without.contains("id=\"links\"") && without.contains("All packets went over UDP."));
}

#[test]
fn plots_of_throughput_show_the_line_rate() {
    let with_rate = |name: &str, gbps: u64| {
        let mut run = small(name);
        for record in &mut run.records {
            record.environment.adapter = Some(Adapter { rate_bps: Some(gbps * 1_000_000_000), ..Adapter::default() });
        }
        run
    };
    let lines = |runs: &[Run]| -> Vec<(String, f64, String)> {
        let plots = plots(&html(runs, None, None));
        let lines = plots.iter().flat_map(|plot| {
            plot["limits"].as_array().unwrap().iter().map(|limit| {
                let quantity = &plot["quantities"][limit["quantity"].as_u64().unwrap() as usize];
                (
                    quantity["unit"].as_str().unwrap().to_owned(),
                    limit["value"].as_f64().unwrap(),
                    limit["name"].as_str().unwrap().to_owned(),
                )
            })
        });
        lines.collect()
    };
    let one = lines(&[with_rate("here", 100)]);
    assert!(one.len() > 2 && one.iter().all(|(unit, rate, _)| unit == "Gb/s" && *rate == 100.0), "{one:?}");
    assert!(
        one.iter().any(|it| it.2 == "line rate: 100 Gb/s")
            && one.iter().any(|it| it.2 == "line rate of one link: 100 Gb/s")
    );
    assert_eq!(lines(&[with_rate("before", 100), with_rate("after", 100)]).len(), one.len(), "one line for both");
    let two = lines(&[with_rate("before", 100), with_rate("after", 25)]);
    assert_eq!(two.len(), 2 * one.len());
    assert!(two.iter().any(|it| it.1 == 25.0 && it.2 == "line rate: 25.0 Gb/s, after"), "{two:?}");
    assert!(lines(&[small("here")]).is_empty(), "a software RNIC over loopback has none");
}

#[test]
fn environment_names_hosts_that_differ() {
    let mut run = small("here");
    let machine = |host: &str, governor: &str, memlock_bytes| Machine {
        host: host.to_owned(),
        governors: vec![governor.to_owned()],
        memlock_bytes,
        receive_buffer_max_bytes: Some(212_992),
        ..Machine::default()
    };
    for record in &mut run.records {
        let own = Environment { machine: machine("node6", "performance", None), active_mtu: 4096, ..environment() };
        let other =
            Environment { machine: machine("node7", "powersave", Some(65536)), active_mtu: 1024, ..environment() };
        record.environment = Environment { hosts: vec![other], ..own };
    }
    let page = html(&[run], None, None);
    for told in [
        "host 0 (node6): performance; host 1 (node7): powersave",
        "host 0 (node6): unlimited; host 1 (node7): 65536 B",
        "host 0 (node6): 4096 B; host 1 (node7): 1024 B",
        // All hosts have the same receive buffer.
        "<td>212992 B</td>",
    ] {
        assert!(page.contains(told), "{told} is missing");
    }
}

#[test]
fn the_cpu_time_of_each_host_is_shown_for_each_point() {
    let mut run = small("here");
    let is_window = |record: &&mut PointRecord| record.experiment == "send-receive/window";
    for record in run.records.iter_mut().filter(is_window) {
        record.environment.hosts =
            vec![Environment { machine: Machine { host: "node7".to_owned(), ..Machine::default() }, ..environment() }];
        for result in &mut record.repetitions {
            let host = |number: usize, role: &str, all_ns: u64| HostResult {
                number,
                role: role.to_owned(),
                asks: number == 0,
                sent: if number == 0 { 1000 } else { 0 },
                received: if number == 0 { 0 } else { 500 },
                cpu: CpuTime { all_ns: Some(all_ns), empty_ns: Some(all_ns / 2) },
                ..HostResult::default()
            };
            result.hosts = vec![host(0, "sender", 3_000_000), host(1, "receiver", 4_000_000)];
        }
    }
    // Records of a study between two machines have no list of hosts.
    for record in run.records.iter_mut().filter(|it| it.experiment == "send-receive/batch") {
        record.environment.peer = Some(Box::new(Environment {
            machine: Machine { host: "node8".to_owned(), ..Machine::default() },
            ..environment()
        }));
        for result in &mut record.repetitions {
            result.cpu.server = CpuTime { all_ns: Some(7_000_000), empty_ns: None };
        }
    }
    let page = html(&[run], None, None);
    let table = |section: &str| {
        let section = between(&page, &format!("id=\"x-{section}\""), "</section>").to_owned();
        section.split_once("CPU time of each host").map(|(_, table)| table.to_owned())
    };
    let window = table("send-receive-window").expect("a table");
    for words in [
        "node7",
        "sender",
        "receiver",
        "data-value=\"3\"",
        "data-value=\"1.5\"",
        "data-value=\"8\"",
        "data-value=\"4\"",
    ] {
        assert!(window.contains(words), "{words}: {window}");
    }
    let batch = table("send-receive-batch").expect("a table");
    assert!(batch.contains("node8") && batch.contains("data-value=\"7\""), "{batch}");
    assert_eq!(table("send-receive-latency"), None, "all of it was on one machine");
    let hosts = between(&page, "id=\"hosts\"", "</table>");
    assert!(hosts.contains("node7") && hosts.contains("pinned threads"), "{hosts}");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = html(&[run("here")], None, None);
    for load in ["src=", "@import", "url(", "fetch(", "XMLHttpRequest", "<link", "<iframe"] {
        assert!(!page.contains(load), "{load}");
    }
    // The only address on the page is that of the SVG namespace, which is not loaded.
    assert_eq!(page.matches("http").count(), 1 + page.matches("http-equiv").count());
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn text_of_records_stays_text() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u{0}";
    let mut run = run(hostile);
    for record in &mut run.records {
        record.series = hostile.to_owned();
        record.environment.cpu = hostile.to_owned();
    }
    for record in run.records.iter_mut().step_by(2) {
        record.experiment = hostile.to_owned();
    }
    let page = html(&[run.clone(), run], None, None);
    assert!(!page.contains("<img") && !page.contains("<script>alert"));
    let plots = plots(&page);
    assert!(plots.iter().any(|plot| plot["series"][0]["name"] == hostile));
    assert!(page.contains("This release does not know this experiment."));
    assert_eq!(page.matches("<script").count(), plots.len() + 1);
}

struct Fixed;

impl Model for Fixed {
    fn predict(&self, _: &Run, record: &PointRecord, quantity: Quantity) -> Option<Prediction> {
        let known = quantity == Quantity::MessageRate && record.experiment == "send-receive/window";
        known.then(|| Prediction { value: 4.25, bottleneck: "sending <CPU>".to_owned() })
    }

    fn account(&self, _: &Run) -> Result<&Account, &str> {
        Err("it is <made up>")
    }
}

#[test]
fn a_model_is_drawn_over_the_measurements_and_named_in_the_table() {
    let run = [run("here")];
    let page = html(&run, Some(&Fixed), None);
    assert!(page.contains("There is none of this run: it is &lt;made up&gt;."));
    assert!(page.contains("sending &lt;CPU&gt;") && page.contains(">bottleneck</button>"));
    let predicted: Vec<_> = plots(&page)
        .iter()
        .flat_map(|plot| plot["series"].as_array().unwrap().clone())
        .flat_map(|series| series["points"].as_array().unwrap().clone())
        .map(|point| point["y"][0]["model"].clone())
        .filter(|model| !model.is_null())
        .collect();
    assert_eq!(predicted, vec![Value::from(4.25); 6]);
    assert!(!html(&run, None, None).contains("bottleneck</button>"));
}

/// Returns a run whose figures are predictions of the model.
fn modelled() -> Run {
    let truth = Parameters::starting_point(RnicKind::Software);
    let mut run = run("made by a model");
    for record in &mut run.records {
        let (window, batch, depth) = (record.parameters.window, record.parameters.batch, record.parameters.depth);
        let bytes = record.bytes();
        for result in &mut record.repetitions {
            (result.bytes, result.mtu) = (bytes, 4096);
            let latency = Latency { min: 1, p50: 1, mean: 1.0, p99: 1, p999: 1, max: 1 };
            result.latency_ns = (record.parameters.kind == Kind::Latency).then_some(latency);
            (result.fitted.window, result.fitted.batch, result.fitted.depth) = (window, batch, depth);
        }
        let observed = observations_of("", record).unwrap();
        let Some(one) = observed.observations.first() else { continue };
        let prediction = one.load.predict(&truth).unwrap();
        for result in &mut record.repetitions {
            (result.messages_per_s, result.bytes_per_s) = (prediction.messages_per_s, prediction.bytes_per_s);
            result.latency_ns =
                result.latency_ns.map(|latency| Latency { p50: prediction.latency_ns as u64, ..latency });
        }
    }
    run
}

#[test]
fn fit_to_a_quarter_predicts_the_rest() {
    let runs = [modelled(), run("too slow to be true")];
    let fitted = Fitted::new(&runs);
    let account = fitted.account(&runs[0]).unwrap();
    assert!(account.fitted.figures > 20 && account.predicted.figures > 2 * account.fitted.figures);
    assert!(account.predicted.median < 0.05, "{:?}", account.predicted);
    let agree = account.interventions.iter().filter(|one| one.agrees).count();
    assert!(account.interventions.len() > 5 && 10 * agree >= 9 * account.interventions.len());
    assert!(account.left_out.contains_key("its rate was given"), "{:?}", account.left_out);
    assert!(fitted.account(&runs[1]).is_err(), "its records lack the path MTU");
    let page = html(&runs, Some(&fitted), None);
    for text in ["id=\"parameters\"", "id=\"interventions\"", "its rate was given", "There is none of this run: "] {
        assert!(page.contains(text), "{text}");
    }
    assert!(between(&page, "id=\"requests\"", "</table>").contains("mean of the model, us"));
    let is_drawn = |plot: &Value| !plot["series"][0]["points"][0]["y"][0]["model"].is_null();
    assert!(plots(&page).iter().take(2).all(is_drawn), "also where protocols are compared");
}

#[test]
fn odd_numbers_yield_no_nan_or_infinity() {
    let mut run = run("odd");
    for (index, record) in run.records.iter_mut().enumerate() {
        for result in &mut record.repetitions {
            let odd = [0.0, 1e-9, 1e15, 5.0][index % 4];
            (result.messages_per_s, result.bytes_per_s) = (odd, odd);
            result.counted.client.data_packets = u64::MAX;
            result.counted.server.data_packets = u64::MAX;
        }
        if index % 5 == 0 {
            record.repetitions.truncate(1);
        }
    }
    let page = html(&[run], None, None);
    assert!(plots(&page).len() > 5);
    let tables = page.split("<script>").next().unwrap();
    assert!(!tables.contains("NaN") && !tables.contains("inf "));
    html(&[Run { name: String::new(), records: Vec::new() }], None, None);
    html(&[], None, None);
}

#[test]
fn verdicts_cover_measured_experiments_only() {
    let mut run = run("here");
    run.records.retain(|record| record.experiment == "send-receive/window");
    let found = verdicts(&[run]);
    let outcomes: Vec<_> = found.iter().map(|found| found.verdict.finding).collect();
    assert_eq!(outcomes, [Finding::DoesNotHold, Finding::Holds], "{found:?}");
}
