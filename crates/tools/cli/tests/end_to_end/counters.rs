//! `doorbell counters`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{PATIENCE, Running, doorbell, list, measuring, number, positive};
use crate::terminal::{Session, Terminal};

/// A directory for published counters, and a directory in place of sysfs with devices of the kernel.
pub(crate) struct World {
    root: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().expect("there is room for a directory") }
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = doorbell(arguments);
        command.env("DOORBELL_COUNTERS_DIR", self.root.path().join("published")).env_remove("DOORBELL_PUBLISH");
        command
    }

    /// Returns a command that finds only the devices in these directories.
    pub(crate) fn looking(&self, arguments: &str) -> Command {
        let mut command = self.command(arguments);
        command.arg("--sysfs").arg(self.root.path());
        command
    }

    /// Waits until both sides of a measurement send packets.
    pub(crate) fn wait_for_packets(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let look = Running::start(self.counters("--json -n 1 -i 0.1")).finish().expect_status(0).json();
            let sends = |device: &&Value| device["totals"]["tx_packets"].as_u64().is_some_and(|packets| packets > 0);
            if list(&look, "/devices").iter().filter(sends).count() >= 2 {
                return;
            }
            assert!(Instant::now() < until, "no packets flow: {look:#}");
        }
    }

    fn counters(&self, arguments: &str) -> Command {
        self.looking(&format!("counters {arguments}"))
    }

    /// Writes a file in the directory in place of sysfs. Readers always see a complete file.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.root.path().join("class/infiniband").join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a directory can be made");
        let new = self.root.path().join("new");
        std::fs::write(&new, content).expect("a file can be written");
        std::fs::rename(new, path).expect("a file can be renamed");
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

/// Parses the lines of a killed command, whose last line may be incomplete.
fn whole_lines(text: &str) -> Vec<Value> {
    lines(&text[..text.rfind('\n').map_or(0, |end| end + 1)])
}

#[test]
fn packets_of_a_running_measurement_are_counted() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let mut watching = Running::start(world.counters("--interval 0.5 --json"));
    watching.wait_for("waiting for one");
    let bench = Running::start(world.command("bench bw -s 4096 -D 3 --json"));
    let bench = bench.finish().expect_status(0).json();
    // After both devices have closed, wait for two errors in two readings, so that at least one whole reading is
    // printed.
    for late in ["late1", "late2"] {
        world.write(&format!("{late}/ports/1/hw_counters/sent_pkts"), "garbage");
        watching.wait_for(late);
    }
    let seen = watching.interrupt().stdout;
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut rates = 0;
    for look in whole_lines(&seen) {
        assert_eq!(look["schema"], "doorbell-counters/1");
        for device in list(&look, "/devices") {
            let label = device["device"].as_str().expect("the device has a name").to_owned();
            if label.starts_with("late") {
                continue;
            }
            assert_eq!((&device["kind"], &device["program"]), (&"software".into(), &"doorbell".into()));
            assert!(device["per_second"]["cnp_sent"].is_null(), "a software RNIC sends none and does not count them");
            if !device["seconds"].is_null() {
                positive(device, "/seconds");
                rates += 1;
                *counted.entry(label.clone()).or_default() += number(device, "/counted/tx_packets");
            }
            totals.insert(label, number(device, "/totals/tx_packets"));
        }
    }
    assert_eq!(totals.len(), 2, "both sides: {totals:?}");
    assert!(rates >= 4, "{seen}");
    // The sums of all intervals contain all packets between the opening and the closing of a device.
    assert_eq!(counted, totals);
    let counter = |side: &str| number(&bench, &format!("/results/0/counters/{side}/tx_vport_rdma_unicast_packets"));
    let (client, server) = (counter("client"), counter("server"));
    let most = totals.values().max().copied().unwrap_or(0);
    assert!(most >= client.max(server), "{most} packets seen, {client} and {server} measured");
}

#[test]
fn counters_end_after_the_given_intervals() {
    let world = World::new();
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "5");
    let finished = Running::start(world.counters("rxe0 -n 3 -i 0.1 --json")).finish().expect_status(0);
    let looks = lines(&finished.stdout);
    assert_eq!(looks.len(), 3);
    for look in &looks {
        assert_eq!(number(look, "/devices/0/totals/tx_packets"), 5);
        assert_eq!(look.pointer("/devices/0/per_second/tx_packets"), Some(&0.0.into()));
        assert!(look["devices"][0]["per_second"]["tx_bytes"].is_null());
    }
    let finished = Running::start(world.counters("-n 2 -i 0.1")).finish().expect_status(0);
    let rows: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(rows.len(), 3, "a header and two lines: {rows:?}");
    assert!(rows[0].starts_with("per second") && rows[1].starts_with("rxe0"));
    assert_eq!(rows[1].split_whitespace().collect::<Vec<_>>()[1..4], ["0", "-", "-"]);
    assert_eq!(finished.stderr, "");
}

#[test]
fn a_late_device_appears_and_a_bad_file_is_reported_once() {
    let world = World::new();
    let mut watching = Running::start(world.counters("-i 0.1 --json"));
    watching.wait_for("waiting for one");
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "garbage");
    watching.wait_for("sent_pkts is no number: \"garbage\"");
    let (done, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            // Keep each value long enough that even a slow machine reads it at some time.
            let mut values = ["1000", "10"].into_iter().cycle();
            while ended.recv_timeout(Duration::from_millis(250)) == Err(RecvTimeoutError::Timeout) {
                world.write("rxe0/ports/1/hw_counters/sent_pkts", values.next().unwrap_or_default());
            }
        });
        watching.wait_for("the device was reset");
        // The other thread ends when this closure drops `done`, also by a panic.
        drop(done);
    });
    let finished = watching.interrupt();
    assert_eq!(finished.stderr.matches("is no number").count(), 1, "{}", finished.stderr);
    let looks = whole_lines(&finished.stdout);
    assert!(!looks.is_empty());
    for device in looks.iter().flat_map(|look| list(look, "/devices")) {
        let rate = &device["per_second"]["tx_packets"];
        assert!(rate.is_null() || rate.as_f64().is_some_and(|rate| rate >= 0.0), "{rate}");
    }
}

#[test]
fn an_unknown_device_error_lists_known_devices() {
    let world = World::new();
    Running::start(world.counters("mlx5_7"))
        .finish()
        .expect_complaint(1, &["no RDMA device \"mlx5_7\"", "none at all"]);
    world.write("mlx5_0/ports/1/counters/port_xmit_data", "1");
    world.write("mlx5_1/ports/1/counters/port_xmit_data", "1");
    Running::start(world.counters("mlx5_7 --json"))
        .finish()
        .expect_complaint(1, &["no RDMA device \"mlx5_7\"; there are: mlx5_0, mlx5_1"]);
}

#[test]
fn the_list_explains_counters() {
    let world = World::new();
    world.write("mlx5_0/ports/1/counters/port_xmit_data", "25");
    let text = Running::start(world.counters("--list")).finish().expect_status(0).stdout;
    let row = text.lines().find(|line| line.trim().starts_with("tx_bytes")).unwrap_or_default();
    assert!(row.contains("counters/port_xmit_data: 4-octet words"), "{text}");
    assert!(text.lines().any(|line| line.trim() == "rx_bytes         -"), "{text}");
    let json = Running::start(world.counters("--list --json")).finish().expect_status(0).json();
    assert_eq!(json["devices"][0]["counters"]["tx_bytes"]["from"][0], "counters/port_xmit_data");
    assert_eq!(number(&json, "/devices/0/raw/counters~1port_xmit_data"), 25);
    assert!(json["devices"][0]["counters"]["rx_bytes"].is_null());
}

/// Sends these bytes to a server. Returns the head and the content of its answer.
fn ask(address: &str, request: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    // The server may close the connection before it has read all bytes.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("the answer is text");
    let (head, content) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), content.to_owned())
}

#[test]
fn prometheus_scrapes_the_exporter() {
    let world = World::new();
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "7");
    let mut exporter = Running::start(world.counters("--prometheus 0"));
    let url = exporter.text_after("serving http://");
    let address = url.strip_suffix("/metrics").expect("the URL of what is served");
    let (head, content) = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", content.len())), "{head}");
    assert!(content.ends_with("# EOF\n"));
    for line in [
        "# HELP doorbell_rdma_tx_packets RDMA packets transmitted",
        "# TYPE doorbell_rdma_tx_packets counter",
        "doorbell_rdma_tx_packets_total{device=\"rxe0\"} 7",
        "# TYPE doorbell_rdma_device info",
    ] {
        assert!(content.lines().any(|found| found == line), "{line} is missing in\n{content}");
    }
    assert!(!content.contains("doorbell_rdma_tx_bytes_total{"), "absent is not zero");
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "9");
    let (_, content) = ask(address, b"GET /metrics?x=y HTTP/1.0\r\n\r\n");
    assert!(content.contains("doorbell_rdma_tx_packets_total{device=\"rxe0\"} 9\n"), "each scrape reads anew");
    let (head, content) = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && content.is_empty());
    // Requests for other paths and malformed requests get an error, and do not disturb other clients.
    for (request, status) in [
        (&b"GET /else HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\xff\xfe\x00 \r\n\r\n", "400"),
        (&[b'x'; 100_000], "431"),
    ] {
        let (head, _) = ask(address, request);
        // The server does not read a request that is too long to its end, so its answer may be lost.
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) || (status == "431" && head.is_empty()), "{head}");
    }
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).expect("the server listens")).collect();
    drop(silent);
    let until = Instant::now() + PATIENCE;
    while !ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < until, "silent clients keep others out");
    }
    exporter.kill();
}

#[test]
fn the_exporter_has_the_metrics_of_node_exporter_and_pauses() {
    let world = World::new();
    for (path, content) in [
        ("fw_ver", "16.35.2000\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("ports/1/counters/port_xmit_data", "25\n"),
        ("ports/1/gid_attrs/ndevs/0", "ens1f0np0\n"),
    ] {
        world.write(&format!("mlx5_0/{path}"), content);
    }
    let statistics = world.root().join("ethtool");
    std::fs::create_dir(&statistics).expect("a directory can be made");
    std::fs::write(statistics.join("ens1f0np0"), "     rx_prio3_pause: 7\n     rx_packets: 8\n").expect("a file");
    let mut exporter = Running::start(world.counters("--prometheus 0"));
    let url = exporter.text_after("serving http://");
    let address = url.strip_suffix("/metrics").expect("the URL of what is served");
    let (_, content) = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    for line in [
        "node_infiniband_info{device=\"mlx5_0\",firmware_version=\"16.35.2000\"} 1",
        "node_infiniband_state_id{device=\"mlx5_0\",port=\"1\"} 4",
        "node_infiniband_rate_bytes_per_second{device=\"mlx5_0\",port=\"1\"} 12500000000",
        "node_infiniband_port_data_transmitted_bytes_total{device=\"mlx5_0\",port=\"1\"} 100",
        "doorbell_rdma_pause_frames_total{device=\"mlx5_0\",direction=\"rx\",priority=\"3\"} 7",
        "doorbell_rdma_vendor_total{device=\"mlx5_0\",set=\"ethtool\",counter=\"rx_prio3_pause\"} 7",
    ] {
        assert!(content.lines().any(|found| found == line), "{line} is missing in\n{content}");
    }
    assert!(!content.contains("counter=\"rx_packets\""), "a statistic of other traffic");
    exporter.kill();
}

#[test]
fn an_unusable_exporter_address_is_an_error() {
    let world = World::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, _listener) = taken.expect("there is a free port");
    Running::start(world.counters(&format!("--prometheus {address}")))
        .finish()
        .expect_complaint(1, &[&format!("cannot listen on {address}")]);
    for address in ["nowhere", ":9464", "localhost:70000", "70000"] {
        Running::start(world.counters(&format!("--prometheus {address}")))
            .finish()
            .expect_complaint(2, &["allowed is HOST:PORT or a port"]);
    }
}

/// On a terminal the command draws a screen, and restores the terminal when it ends.
#[test]
fn counters_draw_on_a_terminal() {
    let world = World::new();
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "7");
    let terminal = Terminal::new();
    let mut drawing = terminal.start(world.counters("-n 3 -i 0.1"), Session::Own);
    assert!(drawing.end().success());
    terminal.expect_restored();
    for word in ["\u{1b}[?1049h", "RDMA counters per second", "rxe0", "tx_packets", "retransmissions"] {
        terminal.expect(word);
    }
}

#[test]
fn a_key_ends_the_live_view() {
    let world = World::new();
    for key in ["q", "\u{1b}", "\u{3}"] {
        let terminal = Terminal::new();
        let mut drawing = terminal.start(world.counters("-i 3600"), Session::Own);
        terminal.wait_for("q quits");
        terminal.press(key);
        assert!(drawing.end().success());
        terminal.expect_restored();
    }
}
