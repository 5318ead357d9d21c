//! Tests of comparisons of links.

use super::*;

/// Returns results with which every goal for links holds.
pub(super) fn as_links_should(experiment: &str, series: &str, x: f64) -> PointResult {
    let (is_shared, packets) = (series.ends_with(", shared memory"), 1000);
    let mut result = match experiment {
        "links/time" => timed(if is_shared { 800 } else { 3200 } + x as u64),
        "links/rate" => PointResult { messages_per_s: if is_shared { 8e6 } else { 4e6 }, ..PointResult::default() },
        "links/throughput" => {
            PointResult { messages_per_s: if is_shared { 9e9 } else { 4e9 } / x, ..PointResult::default() }
        }
        other => panic!("no values that reach the goals of {other}"),
    };
    for (name, count) in [
        ("tx_udp_packets", if is_shared { 0 } else { packets }),
        ("tx_shared_memory_packets", if is_shared { packets } else { 0 }),
    ] {
        result.link.client.insert(name.to_owned(), count);
    }
    result
}

/// If memory cannot be shared, all packets go over UDP, and the study must not compare the links.
#[test]
fn links_are_compared_only_with_their_own_packets() {
    let outcomes = |measured: &dyn Fn(&str, &str, f64) -> PointResult| -> Vec<(Finding, String)> {
        let records = records(&environment("soft", 2), measured);
        for claim in all(Effort::Usual).iter().flat_map(Experiment::claims) {
            assert_eq!(claim.is_goal(), claim.id.starts_with("links/"), "{}", claim.id);
        }
        let goals = verdicts(&records).into_iter().filter(|(id, _)| id.starts_with("links/"));
        goals.map(|(_, verdict)| (verdict.finding, verdict.because)).collect()
    };
    let good = outcomes(&as_published);
    assert_eq!(good.len(), 3);
    assert!(good.iter().all(|(outcome, _)| *outcome == Finding::Holds), "{good:?}");
    assert!(good[1].1.starts_with("2.00 times (send-receive) to 2.00 times ("), "{good:?}");
    // One protocol is as slow through shared memory as over UDP.
    let slow = outcomes(&|experiment, series, x| match series {
        "direct-read, shared memory" => {
            let over_udp = as_published(experiment, "direct-read, UDP", x);
            PointResult { link: as_published(experiment, series, x).link, ..over_udp }
        }
        _ => as_published(experiment, series, x),
    });
    assert!(
        slow.iter().all(|(outcome, because)| *outcome == Finding::DoesNotHold
            && because.starts_with("1.00 times (direct-read) to ")),
        "{slow:?}"
    );
    // For one protocol, one in fifty packets went over UDP, or no packet was counted.
    for lost in ["tx_udp_packets", "tx_shared_memory_packets"] {
        let elsewhere = outcomes(&|experiment, series, x| {
            let mut result = as_published(experiment, series, x);
            if series == "direct-read, shared memory" {
                result.link.client.insert(lost.to_owned(), if lost == "tx_udp_packets" { 20 } else { 0 });
            }
            result
        });
        assert!(
            elsewhere
                .iter()
                .all(|(outcome, because)| *outcome == Finding::CannotShow && because.contains("but packets of ")),
            "{elsewhere:?}"
        );
    }
}

#[test]
fn each_protocol_has_all_figures_with_both_links() {
    let of = |effort| {
        let mut records = Vec::new();
        for experiment in all(effort).into_iter().filter(Experiment::compares_links) {
            assert!(experiment.has_to_be_named(2) && experiment.name.starts_with("links/"));
            for point in &experiment.points {
                let result = as_published(&experiment.name, &point.series, point.x);
                records.push(record(&experiment, point, environment("soft", 2), &result));
            }
        }
        records
    };
    for (effort, subjects) in [(Effort::Quick, 5), (Effort::Usual, 18), (Effort::Full, 18)] {
        let records = of(effort);
        let rows = compared(View::new(&records));
        assert_eq!(rows.len(), subjects, "{effort:?}");
        for row in &rows {
            let missing = row.points.iter().flatten().filter(|point| point.is_none()).count();
            // Atomics are measured only with short messages.
            assert_eq!(missing, if row.subject == "CAS (8 B)" { 4 } else { 0 }, "{}", row.subject);
            for (figure, [udp, memory]) in LINK_FIGURES.iter().zip(row.points) {
                let (Some(udp), Some(memory)) = (udp, memory) else { continue };
                assert_eq!((udp.x, &udp.experiment), (memory.x, &memory.experiment));
                assert!(udp.series.ends_with(", UDP") && memory.series.ends_with(", shared memory"), "{figure:?}");
                let value = |record: &PointRecord| record.spread(figure.quantity).unwrap().median;
                assert!(figure.gain([value(udp), value(memory)]) > 1.9, "{figure:?}");
            }
        }
    }
}

/// The line rate is the rate that the link reports. If the link reports none, the highest throughput of any
/// configuration replaces the line rate.
#[test]
fn line_rate_is_that_of_the_slowest_reported_link() {
    use doorbell_machine::Adapter;
    let host = |rate_bps: Option<u64>| Environment {
        adapter: Some(Adapter { rate_bps, ..Adapter::default() }),
        ..environment("system", 64)
    };
    let threads = all(Effort::Usual).into_iter().find(|one| one.name == "send-receive/threads").unwrap();
    let verdict = |own: Option<u64>, other: Option<u64>| {
        let environment = Environment { hosts: vec![host(other)], ..host(own) };
        let rate = |point: &Point| PointResult { messages_per_s: 1e6 * point.x, ..PointResult::default() };
        let records: Vec<_> =
            threads.points.iter().map(|point| record(&threads, point, environment.clone(), &rate(point))).collect();
        let claim = threads.claims().into_iter().find(|claim| claim.id == "send-receive/threads-line-rate").unwrap();
        (View::new(&records).line_rate(), claim.judge(View::new(&records), &threads))
    };
    // 4 million messages of 8192 B are 262 Gb/s.
    let (rate, found) = verdict(Some(400_000_000_000), Some(270_000_000_000));
    assert_eq!((rate, found.finding), (Some(270.0), Finding::Holds), "{}", found.because);
    assert!(found.because.contains("97 % of the link's 270 Gb/s"), "{}", found.because);
    let (_, found) = verdict(Some(400_000_000_000), Some(400_000_000_000));
    assert_eq!(found.finding, Finding::DoesNotHold, "{}", found.because);
    let (rate, found) = verdict(Some(400_000_000_000), None);
    assert_eq!((rate, found.finding), (None, Finding::Holds), "{}", found.because);
    assert!(found.because.contains("highest throughput of any configuration"), "{}", found.because);
}
