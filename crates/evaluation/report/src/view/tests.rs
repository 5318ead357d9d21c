//! Views of made-up records, without HTML.

use doorbell_record::{Environment, Latency, PointResult};
use doorbell_study::experiment::{Effort, Point, all};
use serde_json::json;

use super::*;
use crate::format::NOTHING;

pub(crate) fn environment() -> Environment {
    let environment = serde_json::from_value(json!({
        "doorbell": "0", "kernel": "6", "cpu": "a processor", "cpus": 2, "unix_time_s": 0, "device": "d",
        "provider": "soft", "udp_port": 4791, "active_mtu": 4096, "receive_buffer_bytes": 0,
    }));
    environment.expect("an environment")
}

/// Returns a run with two repetitions of each point of an experiment. Its rates are multiples of `rate`.
pub(crate) fn run(name: &str, experiment: &str, rate: f64) -> Run {
    let experiment = all(Effort::Quick).into_iter().find(|it| it.name == experiment).expect("an experiment");
    let record = |point: &Point| {
        let mut record = point.record(&experiment, environment());
        let result = |times: f64| PointResult {
            seconds: 1.0,
            messages_per_s: times * rate,
            bytes_per_s: times * rate * point.parameters.sizes[0] as f64,
            ..PointResult::default()
        };
        record.repetitions = vec![result(1.0), result(1.5)];
        record
    };
    Run { name: name.to_owned(), records: experiment.points.iter().map(record).collect() }
}

const WINDOW: &str = "send-receive/window";

fn column<'a>(table: &'a Table, name: &str) -> Vec<&'a Cell> {
    let at = table.columns.iter().position(|column| column.0 == name).unwrap_or_else(|| panic!("no column {name}"));
    table.rows.iter().map(|row| &row[at]).collect()
}

#[test]
fn each_record_is_one_row_and_one_point() {
    let mut here = run("here", WINDOW, 1e6);
    here.records[0].repetitions[0].counted.client.data_packets = 7;
    let view = View::new(&[here.clone()], None, None);
    assert_eq!((view.names.as_str(), view.origins[0].prefix.as_str()), ("here", ""));
    assert_eq!(view.tiles.measured, Some((here.records.len(), 2 * here.records.len())));
    assert!(view.changes.is_none() && view.hosts.is_none() && view.links.is_empty() && view.models.is_none());
    let [section] = view.sections.as_slice() else { panic!("{:?}", view.sections) };
    assert_eq!(section.points.rows.len(), here.records.len());
    assert!(section.points.rows.iter().all(|row| row.len() == section.points.columns.len()));
    let rates = column(&section.points, "message rate, M messages/s");
    assert!(rates.iter().all(|cell| **cell == Cell::Number(1.25, "1.25".to_owned())), "{rates:?}");
    let counted = column(&section.points, "data packets");
    let odd: Vec<_> = counted.iter().filter(|cell| ***cell != Cell::count(0)).collect();
    assert_eq!(odd, [&&Cell::shown(7.0, "7 \u{2260}")]);
    let series = section.plot["series"].as_array().expect("series");
    let points: usize = series.iter().map(|one| one["points"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(points, here.records.len());
    assert_eq!(section.verdicts.len(), view.shapes.map_or(0, |table| table.rows.len()));
}

/// Returns a run of Send-Receive and Direct-Write, of which the latter is twice as fast.
fn two_protocols() -> Run {
    let [one, other] =
        [("send-receive/bandwidth", 1e6), ("direct-write/bandwidth", 2e6)].map(|(name, rate)| run("here", name, rate));
    Run { name: "here".to_owned(), records: [one.records, other.records].concat() }
}

#[test]
fn first_screen_has_the_best_protocol_of_each_size() {
    let mut here = two_protocols();
    here.records.retain(|record| record.bytes() != 512);
    // Send-Receive in lists is the fastest at 64 KiB.
    for record in here.records.iter_mut().filter(|it| it.series == "batched" && it.x == 65_536.0) {
        record.repetitions.iter_mut().for_each(|result| result.bytes_per_s *= 10.0);
    }
    let view = View::new(std::slice::from_ref(&here), None, None);
    assert_eq!(view.unanswered, None);
    let answers = view.answers.expect("answers");
    let [of] = answers.runs.as_slice() else { panic!("{answers:?}") };
    assert_eq!(of.run, None);
    let sizes: Vec<&str> = of.rows.iter().map(|row| row.0.as_str()).collect();
    assert_eq!(sizes, ["64 B", "512 B", "4 KiB", "64 KiB", "1 MiB"]);
    assert!(of.rows.iter().all(|row| row.1[0].is_none()), "no latency was measured");
    let found = |size: usize| of.rows[size].1[1].as_ref();
    let answer = |figure: &str, protocol, configuration: &str, others: &str| Answer {
        figure: figure.to_owned(),
        protocol,
        configuration: configuration.to_owned(),
        others: others.to_owned(),
    };
    // 2.5 million messages per second of 64 B, and 12.5 million of 64 KiB.
    let next = "best of 2 protocols; next Send-Receive, 0.640 Gb/s";
    assert_eq!(found(0), Some(&answer("1.28 Gb/s", "Direct-Write", "window 64, batch 1", next)));
    assert_eq!(found(1), None);
    let next = "best of 2 protocols; next Direct-Write, 1311 Gb/s";
    assert_eq!(found(3), Some(&answer("6554 Gb/s", "Send-Receive", "window 256, batch 8", next)));

    let said = sentences(&here);
    assert_eq!(said[0], "64 B: Direct-Write with window 64, batch 1 has the highest throughput, 1.28 Gb/s.");
    let large = "64 KiB: Send-Receive with window 256, batch 8 has the highest throughput, 6554 Gb/s.";
    assert!(said.len() == 4 && said.iter().any(|sentence| sentence == large), "{said:?}");

    let [Question { plot, .. }] = answers.plots.as_slice() else { panic!("{answers:?}") };
    let series = plot["series"].as_array().expect("series");
    let are_hidden = |wanted: bool| -> Vec<(&str, usize)> {
        let of = series.iter().filter(|one| one["hidden"] == wanted);
        let points = |one: &Value| one["points"].as_array().map_or(0, Vec::len);
        of.map(|one| (one["name"].as_str().unwrap_or_default(), points(one))).collect()
    };
    assert_eq!(are_hidden(false), [("direct-write", 4), ("send-receive", 6)]);
    let variants = ["batched", "sequential", "unbatched"].map(|variant| format!("send-receive, {variant}"));
    assert_eq!(are_hidden(true), variants.each_ref().map(|variant| (variant.as_str(), 6)));
}

#[test]
fn throughput_that_was_not_measured_has_a_dash() {
    let mut here = run("here", "send-receive/latency", 1e6);
    let latency = Latency { min: 2000, p50: 2000, mean: 2000.0, p99: 3000, p999: 3000, max: 3000 };
    here.records.iter_mut().flat_map(|it| &mut it.repetitions).for_each(|result| result.latency_ns = Some(latency));
    let glance = View::new(&[here], None, None).glance.expect("a table");
    assert_eq!(column(&glance, "median latency, us"), [&Cell::number(2.0); 5]);
    for name in ["M messages/s", "Gb/s"] {
        let cells = column(&glance, name);
        let is_dash = |cell: &&Cell| matches!(cell, Cell::Number(value, text) if value.is_nan() && text == NOTHING);
        assert!(cells.iter().all(is_dash), "{name}: {cells:?}");
    }
}

#[test]
fn requests_have_a_latency_alone_and_loaded() {
    let mut here = run("here", REQUESTS, 1e5);
    for record in &mut here.records {
        let clients = record.parameters.connections;
        for result in &mut record.repetitions {
            (result.fitted.window, result.sent_by_connection) = (1, vec![10; clients]);
        }
    }
    let table = View::new(&[here], None, None).requests.expect("a table");
    assert_eq!(column(&table, "clients"), [&Cell::count(1), &Cell::count(16)]);
    assert_eq!(column(&table, "reply"), [&Cell::shown(65_536.0, "64 KiB"); 2]);
    // Both points have the same rate. By Little's law, 16 clients then wait 16 times as long as one client.
    assert_eq!(column(&table, "mean, times alone"), [&Cell::number(1.0), &Cell::number(16.0)]);
    assert!(View::new(&[run("here", WINDOW, 1e6)], None, None).requests.is_none());
}

#[test]
fn equal_protocols_are_within_the_spread() {
    let mut here = two_protocols();
    for result in here.records.iter_mut().flat_map(|record| &mut record.repetitions) {
        result.bytes_per_s = result.messages_per_s.min(1.5e6) * 64.0;
    }
    let said = |run: &Run| {
        let answers = View::new(std::slice::from_ref(run), None, None).answers.expect("answers");
        answers.runs[0].rows[0].1[1].as_ref().expect("an answer").others.clone()
    };
    assert!(said(&here).ends_with(", within the spread of repetitions"), "{}", said(&here));
    // A simulation has one repetition, without a spread.
    for record in &mut here.records {
        record.repetitions.truncate(1);
        record.repetitions[0].bytes_per_s = 1e8;
    }
    assert!(said(&here).ends_with(", as good"), "{}", said(&here));
}

#[test]
fn page_without_sizes_says_that_no_protocol_is_best() {
    let view = View::new(&[run("here", WINDOW, 1e6)], None, None);
    assert!(view.answers.is_none() && view.unanswered.is_some());
    assert!(View::new(&[], None, None).unanswered.is_none());
}

#[test]
fn sentence_states_how_quiet_the_machine_was() {
    let said = |run: &Run| View::new(std::slice::from_ref(run), None, None).quiet;
    let mut here = two_protocols();
    let quiet = said(&here);
    assert!(
        quiet[0].1.contains("was quiet: the repetitions of a typical point span 40 % of their median"),
        "{quiet:?}"
    );
    for record in here.records.iter_mut().filter(|it| it.experiment == "direct-write/bandwidth") {
        record.repetitions[1].bytes_per_s *= 3.0;
    }
    let restless = said(&here);
    assert!(restless[0].1.contains("not quiet in 1 of 2 experiments"), "{restless:?}");
    here.records.iter_mut().for_each(|record| record.repetitions.truncate(1));
    assert!(said(&here)[0].1.contains("is unknown"));
    assert_eq!(View::new(&[], None, None).quiet, []);
}

#[test]
fn verdicts_come_after_plots_and_are_grey_if_the_machine_was_not_quiet() {
    let [window, batch] = [WINDOW, "send-receive/batch"].map(|name| run("here", name, 1e6).records);
    let mut here = Run { name: "here".to_owned(), records: [window, batch].concat() };
    let page = crate::html(&[here.clone()], None, None);
    assert!(page.rfind("<figure") < page.find("id=\"verdicts\""), "a plot comes after the verdicts");
    assert!(!page.contains("badge restless") && !page.contains(Tally::RESTLESS));
    let quiet = crate::verdicts(&[here.clone()]);
    assert!(quiet.iter().all(|found| !found.is_restless), "{quiet:?}");

    here.records.iter_mut().filter(|it| it.experiment == WINDOW).for_each(|it| it.repetitions[1].messages_per_s *= 3.0);
    let found = crate::verdicts(&[here.clone()]);
    let restless: Vec<&Found> = found.iter().filter(|found| found.is_restless).collect();
    let is_noisy = |it: &&Found| it.experiment == WINDOW && it.verdict.because.contains("the machine was not quiet");
    assert!(restless.iter().all(is_noisy), "{restless:?}");
    assert!(!restless.is_empty() && restless.len() < found.len() && found.len() == quiet.len(), "{found:?}");
    assert_eq!(View::new(&[here.clone()], None, None).tiles.verdicts, Tally::of(&found));
    let page = crate::html(&[here], None, None);
    let (_, verdicts) = page.split_once("id=\"verdicts\"").expect("verdicts");
    let verdicts = verdicts.split("</table>").next().unwrap_or_default();
    assert_eq!(verdicts.matches("badge restless").count(), restless.len(), "{verdicts}");
    assert!(verdicts.contains(&format!("<b>{}</b> {}", restless.len(), Tally::RESTLESS)), "{verdicts}");
}

#[test]
fn plot_shows_the_best_variant_of_a_protocol() {
    let mut here = run("here", "direct-read/bandwidth", 1e6);
    let is_best = |record: &PointRecord| record.parameters.protocol.name() == "direct-read-send";
    for record in here.records.iter_mut().filter(|record| is_best(record)) {
        record.repetitions.iter_mut().for_each(|result| result.bytes_per_s *= 2.0);
    }
    let view = View::new(&[here.clone()], None, None);
    let series = view.sections[0].plot["series"].as_array().expect("series");
    let shown: Vec<_> = series.iter().filter(|one| one["hidden"] == false).map(|one| &one["name"]).collect();
    let best = here.records.iter().find(|record| is_best(record)).expect("the variant");
    assert_eq!(shown, [&best.series]);
    assert_eq!(series.len(), 3, "the other variants can be chosen");
}

#[test]
fn two_runs_have_a_row_for_each_change() {
    let (before, mut after) = (run("before", WINDOW, 1e6), run("after", WINDOW, 4e6));
    after.records.iter_mut().for_each(|record| record.environment.active_mtu = 1024);
    let view = View::new(&[before.clone(), after], None, None);
    let changes = view.changes.expect("changes");
    let lines = changes.environments.expect("differences").rows;
    assert_eq!(
        lines,
        [["largest path MTU", "4096 B", "1024 B"].map(str::to_owned)]
            .map(|[name, one, other]| { vec![Cell::Head(name), Cell::Text(one), Cell::Text(other)] })
    );
    let [row] = changes.experiments.rows.as_slice() else { panic!("{:?}", changes.experiments) };
    let all = before.records.len() as u64;
    assert_eq!(row[2..6], [Cell::count(all), Cell::number(4.0), Cell::count(all), Cell::count(0)]);
    let common = view.sections[0].changes.as_ref().and_then(|it| it.points.as_ref()).expect("points");
    assert!(column(common, "difference").iter().any(|cell| **cell == Cell::text("more")));
    assert_eq!(view.sections[0].summaries.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["before: ", "after: "]);

    let apart = View::new(&[before, run("other", "send-receive/batch", 1e6)], None, None);
    assert!(apart.sections.iter().all(|it| it.changes.as_ref().is_some_and(|common| common.points.is_none())));
    assert!(apart.changes.expect("changes").environments.is_none());
}

#[test]
fn sections_name_the_page_about_their_protocol() {
    for (experiment, page) in [
        (WINDOW, Some("docs/protocols/send-receive.md")),
        ("buffered-write/latency", Some("docs/protocols/buffered-write.md")),
        ("all/latency", Some("docs/protocols/README.md")),
        ("one-sided/write", None),
        ("unknown", None),
    ] {
        assert_eq!(page_about(experiment), page, "{experiment}");
    }
    let view = View::new(&[run("here", WINDOW, 1e6)], None, None);
    assert_eq!(view.sections[0].page, page_about(WINDOW));
    assert!(crate::page::page(&view).contains("<code>docs/protocols/send-receive.md</code>"));
}

#[test]
fn tables_without_rows_are_missing() {
    let view = View::new(&[], None, None);
    assert!(view.glance.is_none() && view.shapes.is_none() && view.sections.is_empty());
    assert_eq!(Table::default().texts(["a"]).numbers(["b"]).with_rows([]), None);
}
