use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use doorbell_counters::export::{json, openmetrics};
use doorbell_counters::{Common, Identity, Interval, Kind, Look, Name, Rates, Raw, Sample, Set};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::terminal::View;
use super::{mib, short, table};

mod dashboard;

const SECOND_NS: u64 = 1_000_000_000;

fn raw(values: &[(Set, &str, u64)]) -> Raw {
    values.iter().map(|&(set, name, value)| (Name::new(set, name), value)).collect()
}

fn identity(label: &str, kind: Kind) -> Identity {
    Identity {
        label: label.to_owned(),
        kind,
        name: label.split(['@', '/']).next().unwrap_or(label).to_owned(),
        port: None,
        address: None,
        gid: None,
        udp_port: None,
        program: None,
        pid: None,
        command: None,
        netdev: None,
        driver: None,
        board: None,
    }
}

/// Returns the sample of a software RNIC after `seconds` seconds, with 1000 packets of 1 KiB sent per second.
fn software(seconds: u64) -> Sample {
    let counters = [
        (Set::Published, "tx_vport_rdma_unicast_packets", 1000 * seconds),
        (Set::Published, "tx_vport_rdma_unicast_bytes", 1_048_576 * seconds),
        (Set::Published, "rx_vport_rdma_unicast_packets", seconds / 2),
        (Set::Published, "rx_vport_rdma_unicast_bytes", 62 * (seconds / 2)),
        (Set::Published, "tx_retransmitted_packets", 0),
        (Set::Published, "rx_send_requests", 0),
        (Set::Published, "early_retransmit", 7 * seconds),
    ];
    Sample {
        identity: Identity {
            address: Some([127, 0, 0, 2].into()),
            program: Some("a \"b\" \\ c".to_owned()),
            pid: Some(42),
            command: None,
            udp_port: Some(4791),
            ..identity("doorbell0@127.0.0.2", Kind::Software)
        },
        incarnation: 1,
        at_ns: seconds * SECOND_NS,
        born_ns: None,
        ended: false,
        raw: raw(&counters),
    }
}

/// Returns the sample of a kernel device that counts packets and queue pairs.
fn kernel(seconds: u64) -> Sample {
    let counters = [(Set::Hardware, "tx_pkts", 5 * seconds), (Set::Hardware, "active_qps", 3)];
    let identity = Identity { driver: Some("bnxt_en".to_owned()), ..identity("bnxt_re0", Kind::Kernel) };
    Sample { identity, incarnation: 9, at_ns: seconds * SECOND_NS, born_ns: None, ended: false, raw: raw(&counters) }
}

fn interval(before: Option<Sample>, sample: Sample) -> Interval {
    Interval { rates: before.map(|before| Rates::between(&before, &sample)), sample }
}

fn look(second: u64) -> Look {
    let before = |sample: fn(u64) -> Sample| (second > 0).then(|| sample(second - 1));
    let devices = vec![interval(before(kernel), kernel(second)), interval(before(software), software(second))];
    Look { devices, notes: Vec::new() }
}

#[test]
fn numbers_have_significant_digits() {
    for (rate, text) in [(0.0, "0"), (0.014, "0.01"), (7.0, "7"), (7.25, "7.2"), (99.96, "100.0"), (12345.6, "12346")] {
        assert_eq!(short(Some(rate)), text);
    }
    assert_eq!((short(None), mib(None), mib(Some(1_572_864.0))), ("-".to_owned(), "-".to_owned(), "1.50".to_owned()));
}

#[test]
fn header_repeats_and_absent_counters_are_no_zeros() {
    let mut table = table::Table::default();
    let lines = table.lines(&look(2));
    assert_eq!(lines.len(), 3);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert!(lines[0].starts_with("per second"));
    assert_eq!(words(&lines[1]), ["bnxt_re0", "5", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);
    let expected = ["doorbell0@127.0.0.2", "1000", "1.00", "-", "1", "0.00", "0", "0", "-", "-", "-", "-", "-"];
    assert_eq!(words(&lines[2]), expected);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{lines:#?}");
    let lines: Vec<String> = (3..30).flat_map(|second| table.lines(&look(second))).collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("per second")).count(), 2);
    let mut ended = look(3);
    ended.devices[1].sample.ended = true;
    assert!(table.lines(&ended)[1].ends_with("  closed"));
    assert!(table::Table::default().lines(&Look::default()).is_empty());
}

#[test]
fn json_has_rates_totals_and_null_for_absent_counters() {
    let json = json::of(&look(2));
    assert_eq!(json["schema"], json::SCHEMA);
    let (kernel, software) = (&json["devices"][0], &json["devices"][1]);
    assert_eq!(software["device"], "doorbell0@127.0.0.2");
    assert_eq!((&software["pid"], &software["address"]), (&42.into(), &"127.0.0.2".into()));
    assert_eq!(software["seconds"], 1.0);
    assert_eq!(software["per_second"]["tx_bytes"], 1_048_576.0);
    assert_eq!(software["counted"]["tx_packets"], 1000);
    assert_eq!(software["totals"]["tx_packets"], 2000);
    assert_eq!(software["others_per_second"]["published/early_retransmit"], 7.0);
    assert!(kernel["per_second"]["tx_bytes"].is_null() && kernel["pid"].is_null());
    assert_eq!(kernel["levels"]["hw_counters/active_qps"], 3);
    for part in ["per_second", "counted", "totals"] {
        let names: Vec<_> = Common::ALL.iter().map(|common| common.name()).collect();
        assert!(names.iter().all(|name| kernel[part].get(name).is_some()), "{part}");
    }
    let first = json::of(&look(0));
    assert!(first["devices"][0]["seconds"].is_null() && first["devices"][0]["per_second"]["tx_packets"].is_null());
    assert_eq!(json.to_string().lines().count(), 1);
}

/// Metrics of one family in an exposition.
#[derive(Default)]
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses labels between braces in the format of OpenMetrics 1.0.
fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, behind) = rest.split_once("=\"").expect("a label has a value");
        assert!(is_name(name), "{name:?}");
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next().expect("a value ends") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("something is escaped").1 {
                    'n' => value.push('\n'),
                    escaped @ ('\\' | '"') => value.push(escaped),
                    other => panic!("\\{other} means nothing"),
                },
                (_, '\n') => panic!("a line ends within a value"),
                (_, plain) => value.push(plain),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} appears twice");
        rest = &behind[end + 1..];
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').expect("a comma between labels");
            assert!(!rest.is_empty());
        }
    }
    labels
}

/// Parses an exposition strictly by OpenMetrics 1.0.
fn exposition(text: &str) -> BTreeMap<String, Family> {
    let text = text.strip_suffix("# EOF\n").expect("an exposition ends with # EOF");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut described = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        assert_eq!(line, line.trim());
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a help text");
            assert!(is_name(name) && !help.is_empty());
            assert!(described.insert(name.to_owned()), "{name} is described twice");
            current = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, current, "type and help belong together");
            assert!(["counter", "gauge", "info"].contains(&kind), "{kind}");
            families.insert(name.to_owned(), Family { kind: kind.to_owned(), samples: Vec::new() });
        } else {
            assert!(!line.starts_with('#'), "{line}");
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "{line} appears twice");
            let (name, rest) = line.split_once('{').expect("each sample has labels");
            let (inside, value) = rest.rsplit_once("} ").expect("a value");
            let family = families.get_mut(&current).expect("a type comes first");
            let suffix = match family.kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            assert_eq!(name, format!("{current}{suffix}"));
            family.samples.push((name.to_owned(), labels(inside), value.parse().expect("a number")));
        }
    }
    families
}

#[test]
fn prometheus_gets_help_type_and_only_known_counters() {
    let mut ended = look(2);
    ended.devices.push(Interval { sample: Sample { ended: true, ..software(9) }, rates: None });
    let text = openmetrics::text(ended).unwrap();
    let families = exposition(&text);
    let value = |family: &str, device: &str| {
        let samples = &families[family].samples;
        let found: Vec<f64> = samples.iter().filter(|(_, labels, _)| labels["device"] == device).map(|s| s.2).collect();
        assert!(found.len() <= 1, "{family} of {device}: {found:?}");
        found.first().copied()
    };
    for common in Common::ALL {
        assert_eq!(families[&format!("doorbell_rdma_{}", common.name())].kind, "counter");
    }
    assert_eq!(value("doorbell_rdma_tx_packets", "doorbell0@127.0.0.2"), Some(2000.0));
    assert_eq!(value("doorbell_rdma_tx_packets", "bnxt_re0"), Some(10.0));
    assert_eq!(value("doorbell_rdma_tx_bytes", "bnxt_re0"), None, "absent is not zero");
    assert_eq!(value("doorbell_rdma_retransmissions", "doorbell0@127.0.0.2"), Some(0.0), "and zero is not absent");
    assert_eq!(value("doorbell_rdma_vendor_level", "bnxt_re0"), Some(3.0));
    let vendor = &families["doorbell_rdma_vendor"].samples;
    assert!(vendor.iter().any(|(_, labels, value)| labels["counter"] == "early_retransmit" && *value == 14.0));
    assert!(!vendor.iter().any(|(_, labels, _)| labels["counter"] == "active_qps"));
    let devices = &families["doorbell_rdma_device"];
    assert_eq!((devices.kind.as_str(), devices.samples.len()), ("info", 2));
    assert_eq!(devices.samples[1].1["program"], "a \"b\" \\ c");
    assert!(!devices.samples[0].1.contains_key("program"));
    assert!(exposition(&openmetrics::text(Look::default()).unwrap()).values().all(|family| family.samples.is_empty()));
}

fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.render(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(usize::from(width)).map(|row| row.concat().trim_end().to_owned()).collect()
}

#[test]
fn the_screen_shows_devices_and_the_history_of_one() {
    let mut view = View::new(Duration::from_secs(1));
    view.update(Look::default());
    assert!(screen(&view, 120, 24)[1].starts_with("no RDMA device"));
    (0..4).for_each(|second| view.update(look(second)));
    view.press(KeyEvent::from(KeyCode::Down));
    let expected = [
        "RDMA counters per second, every 1 s",
        "device                   tx packets    tx MiB  rx packets    rx MiB   resent",
        "bnxt_re0                          5         -           -         -        -",
        "doorbell0@127.0.0.2            1000      1.00           0      0.00        0",
        "doorbell0@127.0.0.2: a \"b\" \\ c (42)",
        "tx_bytes             1.00 MiB ·███",
        "tx_packets               1000 ·███",
        "tx_operations               - ····",
        "rx_bytes             0.00 MiB · █",
        "rx_packets                  0 · █",
        "rx_operations               0 ·",
        "retransmissions             0 ·",
        "rnr_sent                    - ····",
        "rnr_received                - ····",
        "out_of_sequence             - ····",
        "cnp_sent                    - ····",
        "cnp_received                - ····",
        "",
        "                            7 published/early_retransmit",
        "q quits, up and down select",
    ];
    assert_eq!(screen(&view, 76, 20), expected);
    // A closed device stays on the screen for a while. Then the view removes that device and selects the other one.
    let mut closed = look(4);
    closed.devices[1].sample.ended = true;
    closed.notes.push("something is odd".to_owned());
    view.update(closed);
    assert!(screen(&view, 90, 20)[3].starts_with("doorbell0@127.0.0.2 (closed)"));
    assert!(screen(&view, 90, 20)[19].ends_with("| something is odd"));
    for second in 5..30 {
        let mut one = look(second);
        one.devices.truncate(1);
        view.update(one);
    }
    let shown = screen(&view, 80, 20);
    assert!(shown[3].starts_with("bnxt_re0: bnxt_en"), "{shown:#?}");
}

#[test]
fn keys_select_and_quit() {
    let mut view = View::new(Duration::from_secs(1));
    view.update(look(1));
    let mut press = |code| view.press(KeyEvent::from(code));
    assert!(press(KeyCode::Up) && press(KeyCode::Down) && press(KeyCode::Down) && press(KeyCode::Char('x')));
    assert!(!press(KeyCode::Char('q')) && !press(KeyCode::Esc));
    assert!(!view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(screen(&view, 80, 20)[3].starts_with("doorbell0"));
}

#[test]
fn the_view_fits_any_screen_size() {
    let mut view = View::new(Duration::from_millis(100));
    for size in [(1, 1), (3, 2), (20, 5), (79, 23), (300, 100)] {
        screen(&view, size.0, size.1);
        view.update(look(u64::from(size.0)));
        screen(&view, size.0, size.1);
    }
}
