//! A worse value of a station of the testbed makes this station the bottleneck. A better value of the bottleneck makes
//! another station the bottleneck.

use doorbell_sim::sweep::{Base, Sweep};
use doorbell_sim::traffic::Carried;
use doorbell_sim::{Station, testbed};

/// Runs one sender and one receiver, unless the settings state otherwise.
fn run(settings: &[&str]) -> Carried {
    let mut base = Base::new(testbed::by_name("connectx5-100g").expect("a built-in testbed"));
    for setting in settings {
        let (name, value) = setting.split_once('=').expect("a setting");
        base.set(name, value).unwrap_or_else(|error| panic!("{error}"));
    }
    let sweep = Sweep::new(&base, Vec::new(), 1 << 30).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    sweep.points()[0].run(1, 1 << 30, None, None).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

const SMALL: [&str; 5] = ["size=16", "batch=8", "window=256", "depth=512", "messages=6000"];
const FETCHED: [&str; 6] = ["size=16", "inline=0", "batch=8", "window=256", "depth=512", "messages=6000"];
const LARGE: [&str; 2] = ["size=4096", "messages=3000"];

#[test]
fn a_slowed_station_is_the_bottleneck() {
    let cases: [(&[&str], &str, Station); 10] = [
        (&SMALL, "nic.unit_inline=500ns", Station::Unit),
        (&SMALL, "nic.send_packet=500ns", Station::Send),
        (&FETCHED, "nic.gather=500ns", Station::Gather),
        (&SMALL, "nic.receive_packet=500ns", Station::Receive),
        (&SMALL, "cpu.post_wr=500ns", Station::Thread),
        (&SMALL, "cpu.poll_completion=500ns", Station::Thread),
        (&SMALL, "link.rate=1Gb/s", Station::Port),
        (&LARGE, "link.rate=10Gb/s", Station::Port),
        // The NIC writes more bytes than it fetches, because headers of writes are longer and it also writes
        // completions.
        (&LARGE, "pcie.rate=20Gb/s", Station::Write),
        // The headers of read completions are longer than their payload.
        (&LARGE, "pcie.completion_header=4096B", Station::Fetch),
    ];
    for (traffic, change, station) in cases {
        let before = run(traffic);
        let after = run(&[traffic, &[change][..]].concat());
        let (was, is) = (before.bottleneck, after.bottleneck);
        assert!(is.station == station && is.binds(), "{change}: {is}, before {was}");
        assert!(after.messages_per_s * 1.5 < before.messages_per_s, "{change}: the bottleneck must cost throughput");
        assert!(was.station != station || was.share < 1.0, "{change}: {was}");
    }
}

#[test]
fn a_sped_up_station_is_no_longer_the_bottleneck() {
    let (unit, line) = (run(&SMALL), run(&LARGE));
    assert_eq!((unit.bottleneck.station, unit.bottleneck.binds()), (Station::Unit, true), "{}", unit.bottleneck);
    assert_eq!((line.bottleneck.station, line.bottleneck.binds()), (Station::Port, true), "{}", line.bottleneck);
    let faster = run(&[&SMALL[..], &["nic.unit_inline=1ns"]].concat());
    assert_ne!(faster.bottleneck.station, Station::Unit);
    assert!(faster.messages_per_s > 1.1 * unit.messages_per_s);
    let faster = run(&[&LARGE[..], &["link.rate=400Gb/s"]].concat());
    assert!(matches!(faster.bottleneck.station, Station::Fetch | Station::Write), "{}", faster.bottleneck);
    // Values of stations that are not the bottleneck change nothing.
    for change in ["nic.units=16", "pcie.reads_in_flight=128", "nic.cached_queue_pairs=2048"] {
        assert_eq!(run(&[&SMALL[..], &[change]].concat()).messages_per_s, unit.messages_per_s, "{change}");
    }
}

#[test]
fn latency_limits_a_run_without_busy_stations() {
    let carried = run(&["size=16", "window=1", "messages=500"]);
    assert!(!carried.bottleneck.binds(), "{}", carried.bottleneck);
    assert!(carried.bottleneck.to_string().starts_with("latency ("), "{}", carried.bottleneck);
    let farther = run(&["size=16", "window=1", "messages=500", "link.propagation=10us"]);
    assert!(farther.messages_per_s * 2.0 < carried.messages_per_s);
}

#[test]
fn the_receivers_switch_port_limits_many_senders() {
    let carried = run(&["pattern=N:1", "senders=4", "size=4096", "messages=1000"]);
    assert!(carried.bottleneck.station == Station::SwitchPort && carried.bottleneck.binds(), "{}", carried.bottleneck);
}
