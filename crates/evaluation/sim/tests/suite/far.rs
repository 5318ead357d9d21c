//! The store on passive memory, on the testbed of the published study (T3).

use doorbell_farmem::Strategy;
use doorbell_farmem::workload::Load;
use doorbell_sim::far::{Far, FarRun, run};
use doorbell_sim::testbed;

fn t3(far: &Far) -> FarRun {
    run(testbed::by_name("connectx5-100g-far").expect("a built-in testbed"), far, 1).expect("the run ends")
}

fn far(strategy: Strategy, clients: usize) -> Far {
    let load = Load { value_bytes: 1024, warm_up_ns: 500_000, measure_ns: 2_000_000, ..Load::default() };
    Far { strategy, clients, load, ..Far::default() }
}

/// Prints how the share of successful operations depends on the pause between two operations of a client. The variable
/// `FAR_CLIENT_US=0,5,10` sets the pauses in microseconds.
#[test]
#[ignore = "prints a table"]
fn success_by_client_time() {
    let times = std::env::var("FAR_CLIENT_US").unwrap_or_else(|_| "0,2,5,10,20".to_owned());
    let names = std::env::var("FAR_STRATEGY").unwrap_or_else(|_| "optimistic".to_owned());
    for name in names.split(',') {
        for clients in [64, 128] {
            for time in times.split(',') {
                let time: f64 = time.parse().expect("FAR_CLIENT_US must be numbers");
                let mut far = far(Strategy::by_name(name).expect("a strategy"), clients);
                far.load.client_ns = (time * 1000.0) as u64;
                let from = std::time::Instant::now();
                let run = t3(&far);
                let took = from.elapsed().as_secs_f64();
                let report = &run.report;
                println!(
                    "{name} {clients} clients, {time} us: {:.3} M/s, writes {:.1} %, reads {:.1} %, {:.2} x bytes, get p50 {} \
                     p99 {} put p50 {} p99 {} ns; {:.0} thousand operations per second of host time, {} turns",
                    report.operations_per_s / 1e6,
                    report.puts.success_percent(),
                    report.gets.success_percent(),
                    report.bytes_per_operation.unwrap_or(0.0) / report.least_bytes_per_operation,
                    report.gets.latency_ns.value_at_quantile(0.5),
                    report.gets.latency_ns.value_at_quantile(0.99),
                    report.puts.latency_ns.value_at_quantile(0.5),
                    report.puts.latency_ns.value_at_quantile(0.99),
                    report.operations as f64 / took / 1e3,
                    run.summary.counts.long_turns,
                );
            }
        }
    }
}

#[test]
fn each_strategy_runs_a_workload_reproducibly() {
    for strategy in Strategy::ALL {
        let mut small = far(strategy, 6);
        small.load = Load { value_bytes: 100, warm_up_ns: 50_000, measure_ns: 200_000, ..small.load };
        let (one, other) = (t3(&small), t3(&small));
        let report = &one.report;
        assert_eq!(one.summary.digest, other.summary.digest, "{strategy:?}");
        assert!(report.operations > 20, "{strategy:?}: {report:?}");
        assert_eq!((report.absent, report.skipped), (0, 0), "{strategy:?}");
        assert!(report.fairness > 0.5 && report.fairness <= 1.0, "{strategy:?}: {}", report.fairness);
        let bytes =
            report.bytes_per_operation.expect("the simulated RNIC counts bytes") / report.least_bytes_per_operation;
        // `least_bytes_per_operation` assumes that each operation succeeds at its first attempt and accesses a
        // shortcut. Combined operations, and steered clients without shortcuts, need fewer bytes.
        let least = match strategy {
            Strategy::Combine => 0.3,
            Strategy::Steered => 0.6,
            _ => 0.9,
        };
        assert!((least..20.0).contains(&bytes), "{strategy:?}: {bytes} times the least");
        let is_served = strategy == Strategy::Server;
        assert_eq!(one.memory_cpu > 0.01, is_served, "{strategy:?}: {} cores", one.memory_cpu);
    }
}

#[test]
fn without_writes_first_attempts_succeed_with_minimum_bytes() {
    let mut gets = far(Strategy::Optimistic, 4);
    gets.load = Load { write_percent: 0.0, measure_ns: 300_000, ..gets.load };
    let report = t3(&gets).report;
    assert_eq!(report.gets.attempts.at_once, report.gets.attempts.operations);
    assert!((report.gets.attempts_per_operation() - 1.0).abs() < 1e-9);
    let ratio = report.bytes_per_operation.expect("the simulated RNIC counts bytes") / report.least_bytes_per_operation;
    // The measurement counts only a part of the bytes of an operation at its begin or end.
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
}

#[test]
fn an_open_loop_keeps_the_offered_rate() {
    let mut open = far(Strategy::Optimistic, 4);
    open.load.rate_per_client = Some(50_000.0);
    open.load.outstanding = 8;
    let report = t3(&open).report;
    let per_s = report.operations_per_s;
    assert!((per_s / 200_000.0 - 1.0).abs() < 0.05, "{per_s} operations per second of 200 thousand");
}
