//! A model fitted to simulated results finds the values of the testbed.

use std::sync::LazyLock;

use doorbell_model::fit::{Estimate, Fit, fit};
use doorbell_model::observation::{Load, Observation};
use doorbell_model::parameters::{Parameters, RnicKind};
use doorbell_model::workload::Workload;
use doorbell_sim::sweep::{Base, Sweep};
use doorbell_sim::{Ps, Testbed, testbed};

fn observation(testbed: &Testbed, bytes: u64, window: u32, batch: u32, is_latency: bool) -> Observation {
    let mut base = Base::new(testbed);
    let measure = if is_latency { "latency" } else { "bandwidth" };
    let messages = if is_latency { 100 } else { 2000 };
    let workload = Workload { path_mtu: Some(testbed.link.path_mtu), ..Workload::new(bytes, window, batch) };
    for (name, value) in [
        ("size", bytes),
        ("window", window.into()),
        ("batch", batch.into()),
        ("depth", workload.depth.into()),
        ("messages", messages),
    ] {
        base.set(name, &value.to_string()).unwrap_or_else(|error| panic!("{error}"));
    }
    base.set("measure", measure).expect("a measure");
    let sweep = Sweep::new(&base, Vec::new(), 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    let carried = sweep.points()[0].run(1, 1 << 30, None, None).unwrap_or_else(|error| panic!("{error}"));
    Observation {
        name: format!("{measure} of {bytes} B, window {window}, batch {batch}"),
        load: Load::Messages(workload),
        latency_ns: carried.latency_ns.map(|ns| ns as f64),
        messages_per_s: (!is_latency).then_some(carried.messages_per_s),
        weight: 1.0,
    }
}

fn t1() -> &'static Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed")
}

/// Fit to results of T1, which several tests compare.
static OF_T1: LazyLock<Fit> = LazyLock::new(|| fitted(t1()));

fn fitted(testbed: &Testbed) -> Fit {
    let latencies = [16, 256, 1024, 2048, 4096].map(|bytes| (bytes, 1, 1, true));
    let windows = [(16, 1, 1, false), (1024, 1, 1, false), (16, 64, 1, false), (16, 256, 4, false)];
    let batches = [2, 8, 16].map(|batch| (16, 256, batch, false));
    let lines = [2048, 4096, 8192, 16_384, 65_536].map(|bytes| (bytes, 64, 1, false));
    let all = latencies.into_iter().chain(windows).chain(batches).chain(lines);
    let observed: Vec<Observation> =
        all.map(|(bytes, window, batch, is_latency)| observation(testbed, bytes, window, batch, is_latency)).collect();
    fit(&Parameters::starting_point(RnicKind::Hardware), &observed).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the range that the data determines for a parameter, or else for the shortest sum that contains the
/// parameter.
fn found(fit: &Fit, name: &str) -> (f64, f64) {
    let has = |estimate: &&Estimate| estimate.interval.is_some() && estimate.name.split(" + ").any(|part| part == name);
    let estimate = fit.estimates.iter().chain(&fit.sums).find(has);
    estimate
        .and_then(|estimate| estimate.interval)
        .unwrap_or_else(|| panic!("the data does not determine {name} or a sum with it"))
}

fn finds(fit: &Fit, name: &str, put_in: f64) {
    let (least, most) = found(fit, name);
    assert!((least..=most).contains(&put_in), "{name}: the testbed has {put_in}, the fit found {least} to {most}");
}

#[test]
fn the_fit_finds_the_rate_of_the_link() {
    let slow = fitted(&t1().with("link.rate_gbps", "25").expect("an allowed value"));
    for (gbps, fit) in [(25, &slow), (100, &*OF_T1)] {
        finds(fit, "gap_bandwidth_ns_per_byte", 8.0 / f64::from(gbps));
        assert!(fit.median_error < 0.05, "{gbps} Gb/s: half of the figures are {} off", fit.median_error);
    }
}

/// Latency and the time until an acknowledgement are sums over many stations, so the test compares two testbeds. If
/// each cable takes 2 us longer, a message passes two cables and takes 4 us longer. Its acknowledgement comes 8 us
/// later.
#[test]
fn the_fit_finds_a_longer_cable_in_latency_and_gap() {
    let longer = t1().link.propagation + Ps::from_ns(2000);
    let longer = t1().with("link.propagation", &format!("{} ps", longer.0)).expect("an allowed value");
    let (before, after) = (&*OF_T1, fitted(&longer));
    for (name, put_in) in [("l_ns", 4000.0), ("g_fix_ns", 8000.0)] {
        let ((least, most), (least_after, most_after)) = (found(before, name), found(&after, name));
        let range = least_after - most..=most_after - least;
        assert!(range.contains(&put_in), "{name}: {put_in} was put in, found {range:?}");
        assert!(least_after > most, "{name}: the difference is seen: {least} to {most}, then {least_after}");
    }
}
