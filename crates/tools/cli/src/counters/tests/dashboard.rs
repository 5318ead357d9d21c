//! The Grafana dashboard in `ci`: its form, and its queries against an exposition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use doorbell_counters::export::openmetrics;
use doorbell_counters::{Board, Identity, Interval, Kind, Look, Sample, Set};
use serde_json::Value;

use super::{exposition, identity, raw, software};

/// Labels that Prometheus adds to each sample.
const ADDED: [&str; 2] = ["instance", "job"];

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../ci/grafana.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns an adapter whose driver counts congestion, pauses and the traffic of the port.
fn adapter() -> Sample {
    let counters = [
        (Set::State, "state_id", 4),
        (Set::State, "rate_bytes_per_second", 12_500_000_000),
        (Set::Port, "port_xmit_data", 250),
        (Set::Port, "port_rcv_data", 25),
        (Set::Port, "port_xmit_packets", 10),
        (Set::Port, "port_rcv_packets", 9),
        (Set::Port, "port_rcv_discards", 1),
        (Set::Port, "port_xmit_discards", 2),
        (Set::Port, "port_rcv_errors", 3),
        (Set::Hardware, "tx_send_req", 4),
        (Set::Hardware, "rp_cnp_handled", 5),
        (Set::Hardware, "np_cnp_sent", 6),
        (Set::Hardware, "out_of_buffer", 7),
        (Set::Hardware, "rnr_nak_retry_err", 8),
        (Set::Hardware, "out_of_sequence", 11),
        (Set::Ethtool, "rx_pause_ctrl_phy", 12),
        (Set::Ethtool, "tx_prio3_pause", 13),
        (Set::Ethtool, "rx_prio3_pause_duration", 1_500_000),
    ];
    let board = Board { id: "MT_0000000008".to_owned(), firmware: "16.35.2000".to_owned(), hca_type: String::new() };
    Sample {
        identity: Identity { port: Some(2), board: Some(board), ..identity("mlx5_0/2", Kind::Kernel) },
        raw: raw(&counters),
        ..software(1)
    }
}

/// Labels of each metric of an exposition, by the name of the samples.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let devices = [software(1), adapter()].map(|sample| Interval { sample, rates: None });
    let text = openmetrics::text(Look { devices: devices.into(), notes: Vec::new() }).unwrap();
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, labels, _) in exposition(&text).into_values().flat_map(|family| family.samples) {
        metrics.entry(name).or_default().extend(labels.into_keys());
    }
    metrics
}

#[test]
fn ports_have_the_metrics_of_node_exporter() {
    let devices = [software(1), adapter()].map(|sample| Interval { sample, rates: None });
    let text = openmetrics::text(Look { devices: devices.into(), notes: Vec::new() }).unwrap();
    for line in [
        "node_infiniband_port_data_transmitted_bytes_total{device=\"mlx5_0\",port=\"2\"} 1000",
        "node_infiniband_port_data_received_bytes_total{device=\"mlx5_0\",port=\"2\"} 100",
        "node_infiniband_port_packets_transmitted_total{device=\"mlx5_0\",port=\"2\"} 10",
        "node_infiniband_port_discards_received_total{device=\"mlx5_0\",port=\"2\"} 1",
        "node_infiniband_out_of_buffer_drops_total{device=\"mlx5_0\",port=\"2\"} 7",
        "node_infiniband_state_id{device=\"mlx5_0\",port=\"2\"} 4",
        "node_infiniband_rate_bytes_per_second{device=\"mlx5_0\",port=\"2\"} 12500000000",
        "node_infiniband_info{device=\"mlx5_0\",board_id=\"MT_0000000008\",firmware_version=\"16.35.2000\"} 1",
        "# TYPE node_infiniband_port_data_transmitted_bytes counter",
        "# TYPE node_infiniband_state_id gauge",
        // A software RNIC has no counters of the kernel, so the metrics show those that all devices have.
        "node_infiniband_port_data_transmitted_bytes_total{device=\"doorbell0@127.0.0.2\",port=\"1\"} 1048576",
        "node_infiniband_port_packets_transmitted_total{device=\"doorbell0@127.0.0.2\",port=\"1\"} 1000",
        "doorbell_rdma_pause_frames_total{device=\"mlx5_0/2\",direction=\"rx\"} 12",
        "doorbell_rdma_pause_frames_total{device=\"mlx5_0/2\",direction=\"tx\",priority=\"3\"} 13",
        "doorbell_rdma_pause_seconds_total{device=\"mlx5_0/2\",direction=\"rx\",priority=\"3\"} 1.5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains("node_infiniband_symbol_error"), "a metric that no port has is left out");
    assert!(!text.contains("set=\"state\""), "the state of a port is no vendor's level");
}

/// Names in a query of Prometheus.
#[derive(Debug, Default)]
struct Query {
    /// Metrics, each with the labels of its matchers.
    metrics: Vec<(String, Vec<String>)>,
    /// Labels of groups and joins.
    groups: Vec<String>,
}

/// Splits a text that begins with `open` into the part until `close`, and the part after it.
fn between(text: &str, open: char, close: char) -> (&str, &str) {
    let inside = text.strip_prefix(open).unwrap_or_else(|| panic!("{open} is missing before {text:?}"));
    inside.split_once(close).unwrap_or_else(|| panic!("{close} is missing in {text:?}"))
}

/// Reads a query. The functions are those that the dashboard uses.
fn query(text: &str) -> Query {
    let mut query = Query::default();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if first == '[' {
            rest = between(rest, '[', ']').1;
        } else if first.is_ascii_alphabetic() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            rest = behind.trim_start();
            match word {
                "rate" | "sum" => {}
                "by" | "on" => {
                    let (labels, behind) = between(rest, '(', ')');
                    query.groups.extend(labels.split(", ").map(str::to_owned));
                    rest = behind;
                }
                metric => {
                    let (matchers, behind) = between(rest, '{', '}');
                    let label =
                        |matcher: &str| matcher.split_once("=~\"").expect("a matcher has a pattern").0.to_owned();
                    query.metrics.push((metric.to_owned(), matchers.split(", ").map(label).collect()));
                    rest = behind;
                }
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
        rest = rest.trim_start();
    }
    query
}

fn texts<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} is no text in {value:#}"))
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.unwrap_or_else(|| panic!("{pointer} is no list in {value:#}"))
}

#[test]
fn a_query_is_read() {
    let query = query("sum by (a, b) (rate(x_total{c=~\"$c\", d=~\"($d)(/[0-9]+)?\"}[5m])) / on (e) y{f=~\"1\"}");
    let name = |text: &str| text.to_owned();
    assert_eq!(query.groups, ["a", "b", "e"]);
    let expected = [(name("x_total"), vec![name("c"), name("d")]), (name("y"), vec![name("f")])];
    assert_eq!(query.metrics, expected);
}

#[test]
fn all_metrics_and_labels_of_the_dashboard_exist() {
    let (dashboard, metrics) = (dashboard(), metrics());
    let check = |metric: &str, label: &str, place: &str| {
        let labels = metrics.get(metric).unwrap_or_else(|| panic!("{place}: there is no metric {metric}"));
        let is_known = ADDED.contains(&label) || labels.contains(label);
        assert!(is_known, "{place}: {metric} has no label {label}, it has {labels:?}");
    };
    let mut checked = 0;
    for panel in list(&dashboard, "/panels") {
        for target in list(panel, "/targets") {
            let (expr, legend) = (texts(target, "/expr"), texts(target, "/legendFormat"));
            let query = query(expr);
            assert!(!query.metrics.is_empty(), "{expr}");
            let legends = legend.split("{{").skip(1).map(|part| part.split_once("}}").expect("a label ends").0);
            let common: Vec<&str> = query.groups.iter().map(String::as_str).chain(legends).collect();
            for (metric, labels) in &query.metrics {
                let all = labels.iter().map(String::as_str).chain(common.iter().copied());
                all.for_each(|label| check(metric, label, expr));
                checked += 1;
            }
        }
    }
    assert!(checked >= 20, "{checked}");
    for variable in list(&dashboard, "/templating/list").iter().filter(|variable| variable["type"] == "query") {
        let text = texts(variable, "/query/query");
        let inside =
            text.strip_prefix("label_values(").and_then(|text| text.strip_suffix(')')).expect("a list of values");
        let (metric, label) = inside.split_once(", ").expect("a metric and a label");
        check(metric, label, text);
    }
}

#[test]
fn the_dashboard_has_the_form_that_grafana_reads() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    assert!((1..=40).contains(&texts(&dashboard, "/uid").len()), "Grafana allows 40 characters");
    assert!(!texts(&dashboard, "/title").is_empty());
    assert_eq!((texts(&dashboard, "/time/from"), texts(&dashboard, "/time/to")), ("now-1h", "now"));
    let variables = list(&dashboard, "/templating/list");
    let names: Vec<&str> = variables.iter().map(|variable| texts(variable, "/name")).collect();
    assert_eq!(variables[0]["type"], "datasource", "the other variables and the panels use it");
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in list(&dashboard, "/panels") {
        let title = texts(panel, "/title");
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{title}: its number is taken");
        assert!(["timeseries", "table"].contains(&texts(panel, "/type")), "{title}");
        assert_eq!(texts(panel, "/datasource/type"), "prometheus", "{title}");
        assert!(!texts(panel, "/fieldConfig/defaults/unit").is_empty(), "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}: the grid has 24 columns");
        let free = (x..x + w).all(|x| (y..y + h).all(|y| cells.insert((x, y))));
        assert!(free, "{title} covers another panel");
        let mut letters = BTreeSet::new();
        for target in list(panel, "/targets") {
            assert!(letters.insert(texts(target, "/refId")), "{title}: two queries have one letter");
            assert_eq!(target["datasource"], panel["datasource"], "{title}");
            for part in texts(target, "/expr").split('$').skip(1) {
                let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
                let name = &part[..end];
                assert!(name == "__rate_interval" || names.contains(&name), "{title}: no variable {name}");
            }
        }
    }
}
