//! Views of made-up records, without HTML.

use doorbell_record::{Environment, PointResult};
use doorbell_study::experiment::{Effort, Point, all};
use serde_json::json;

use super::*;

pub(crate) fn environment() -> Environment {
    let environment = serde_json::from_value(json!({
        "doorbell": "0", "kernel": "6", "cpu": "a processor", "cpus": 2, "unix_time_s": 0, "device": "d",
        "provider": "soft", "udp_port": 4791, "active_mtu": 4096, "receive_buffer_bytes": 0,
    }));
    environment.expect("an environment")
}

/// Returns a run with two repetitions of each point of an experiment. Its rates are multiples of `rate`.
fn run(name: &str, experiment: &str, rate: f64) -> Run {
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
