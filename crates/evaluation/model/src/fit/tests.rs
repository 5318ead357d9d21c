use doorbell_record::{self as record, Environment, Fitted, Kind, Latency, PointResult, RunRecord};
use proptest::prelude::*;

use super::*;
use crate::observation::Load;
use crate::operation::{Posted, PostedOperation, predict_operation};
use crate::parameters::{Batchable, RnicKind};
use crate::predict::predict;
use crate::workload::{Peers, Workload};

/// Reproducible noise with a normal distribution.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        };
        let (one, other) = (uniform(), uniform());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }
}

fn observe(truth: &Parameters, workload: Workload, latency: bool, noise: f64) -> Observation {
    let prediction = predict(truth, &workload).unwrap();
    let factor = noise.exp();
    Observation {
        name: format!("{} B, window {}, batch {}", workload.bytes, workload.window, workload.batch),
        load: Load::Messages(workload),
        latency_ns: latency.then_some(prediction.latency_ns * factor),
        messages_per_s: (!latency).then_some(prediction.messages_per_s * factor),
        weight: 1.0,
    }
}

/// Returns the measurements of a bench over all sizes and configurations.
fn bench(truth: &Parameters, relative_noise: f64, seed: u64) -> Vec<Observation> {
    let mut noise = Noise(seed);
    let mut observations = Vec::new();
    for bytes in [16, 64, 256, 1024, 4096, 16_384, 65_536] {
        observations.push(observe(truth, Workload::sequential(bytes), true, relative_noise * noise.next()));
        for (window, batch) in [(1, 1), (4, 1), (64, 1), (256, 8)] {
            let workload = Workload { credits: false, ..Workload::new(bytes, window, batch) };
            observations.push(observe(truth, workload, false, relative_noise * noise.next()));
        }
    }
    observations
}

fn software() -> Parameters {
    Parameters {
        o_snd_ns: Batchable { single: 400.0, batched: Some(90.0) },
        o_rcv_ns: Batchable { single: 150.0, batched: Some(40.0) },
        o_post_ns: Batchable { single: 60.0, batched: Some(20.0) },
        o_nsnd_ns: 300.0,
        o_nrcv_ns: 250.0,
        l_ns: 2200.0,
        g_fix_ns: 9000.0,
        g_var_ns_per_byte: 0.9,
        gap_latency_ns_per_byte: 0.6,
        gap_bandwidth_ns_per_byte: 0.25,
        ..Parameters::starting_point(RnicKind::Software)
    }
}

fn estimate<'a>(fit: &'a Fit, name: &str) -> &'a Estimate {
    let all = fit.estimates.iter().chain(&fit.sums);
    let names: Vec<&str> = all.clone().map(|estimate| estimate.name.as_str()).collect();
    all.clone().find(|estimate| estimate.name == name).unwrap_or_else(|| panic!("no {name} in {names:?}"))
}

#[test]
fn predictions_are_recovered_from_noisy_data_of_a_software_rnic() {
    let truth = software();
    for seed in 1..=4 {
        let mut observations = bench(&truth, 0.03, seed);
        // Runs of maximum length reveal little about the cost of shorter runs.
        for bytes in [16, 4096] {
            let workload = Workload { credits: false, ..Workload::new(bytes, 16, 1) };
            observations.push(observe(&truth, workload, false, 0.0));
        }
        let fit = fit(&Parameters::starting_point(RnicKind::Software), &observations).unwrap();
        assert!(fit.median_error <= 0.05, "seed {seed}: {}", fit.median_error);
        assert!(fit.p90_error <= 0.12, "seed {seed}: {}", fit.p90_error);
        // The fit also predicts loads that were not measured.
        for workload in [Workload::new(512, 2, 1), Workload::new(2048, 16, 1), Workload::new(512, 128, 8)] {
            let workload = Workload { credits: false, ..workload };
            let [found, expected] =
                [&fit.parameters, &truth].map(|set| predict(set, &workload).unwrap().messages_per_s);
            assert!((found / expected - 1.0).abs() < 0.15, "seed {seed}: {workload:?}: {found} for {expected}");
        }
    }
}

#[test]
fn only_separable_parameters_have_intervals() {
    let truth = software();
    let exact = quantities_of(&truth);
    let (mut inside, mut all) = (0, 0);
    for seed in 1..=10 {
        let fit = fit(&Parameters::starting_point(RnicKind::Software), &bench(&truth, 0.02, seed)).unwrap();
        // The CPU does the work of a software RNIC, so no external measurement separates these parameters.
        for hidden in ["o_nsnd_ns", "o_nrcv_ns", "o_snd_ns.batched", "l_ns", "o_post_ns.single"] {
            assert_eq!(
                estimate(&fit, hidden).interval,
                None,
                "seed {seed}: {hidden} has an interval without a measurement that shows it"
            );
        }
        assert!(estimate(&fit, "g_var_ns_per_byte").interval.is_some(), "seed {seed}");
        assert!(estimate(&fit, "gap_latency_ns_per_byte").interval.is_some(), "seed {seed}");
        assert!(!fit.sums.is_empty(), "seed {seed}");
        // If batches are posted, the sending or the receiving CPU may be the bottleneck.
        let receiving = "o_rcv_ns.batched + o_post_ns.batched + o_nrcv_ns";
        assert!(
            fit.sums.iter().all(|sum| sum.name != receiving),
            "seed {seed}: the sum is known, although the sender may be the bottleneck"
        );
        for estimate in fit.estimates.iter().chain(&fit.sums) {
            let Some((low, high)) = estimate.interval else { continue };
            let value: f64 = estimate.name.split(" + ").map(&exact).sum();
            all += 1;
            inside += usize::from((low..=high).contains(&value));
            assert!(low < high && low <= estimate.value && estimate.value <= high);
        }
    }
    // The intervals should hold 95 % of the values, but the linear algebra only approximates the problem.
    assert!(inside * 100 >= all * 90, "only {inside} of {all} lie within their intervals");
}

fn quantities_of(parameters: &Parameters) -> impl Fn(&str) -> f64 {
    let table: toml::Table = parameters.to_toml().parse().unwrap();
    move |name| {
        let mut value = toml::Value::Table(table.clone());
        for part in name.split('.') {
            value = value[part].clone();
        }
        value.as_float().unwrap()
    }
}

#[test]
fn latencies_alone_determine_their_sum_and_the_gap() {
    // The values of T1, with slopes that hold for all sizes.
    let truth = Parameters::starting_point(RnicKind::Hardware);
    let sizes = [16, 64, 256, 1024, 4096, 16_384];
    let mut noise = Noise(5);
    let observations: Vec<Observation> =
        sizes.iter().map(|&bytes| observe(&truth, Workload::sequential(bytes), true, 0.01 * noise.next())).collect();
    let fit = fit(&Parameters::starting_point(RnicKind::Hardware), &observations).unwrap();
    // The cost of the shortest messages in completions is too small to be known.
    assert_eq!(fit.rank, 3);
    let known: Vec<&str> = fit
        .estimates
        .iter()
        .filter(|estimate| estimate.interval.is_some())
        .map(|estimate| estimate.name.as_str())
        .collect();
    assert_eq!(known, ["gap_latency_ns_per_byte"]);
    let sum = estimate(&fit, "o_snd_ns.single + o_rcv_ns.single + o_nsnd_ns + o_nrcv_ns + l_ns");
    let (low, high) = sum.interval.unwrap();
    assert!(low < 2112.0 && 2112.0 < high && high / low < 1.1, "{sum:?}");
    assert_eq!(fit.sums.len(), 1);
    assert!(fit.parameters.open_points[0].contains("o_snd_ns.single"), "{:?}", fit.parameters.open_points);
}

#[test]
fn the_bounds_of_a_software_rnic_determine_sums_of_cpu_and_nic() {
    let truth = Parameters { gap_bandwidth_ns_per_byte: 0.02, ..software() };
    let mut observations = Vec::new();
    // More receiving threads do not help, so the sender is the bottleneck.
    for receivers in [8, 64] {
        let peers = Peers::one_to_many(receivers);
        for bytes in [16, 256, 1024, 4096, 65_536] {
            for (window, batch) in [(512, 1), (512, 8)] {
                let workload = Workload { credits: false, peers, ..Workload::new(bytes, window, batch) };
                observations.push(observe(&truth, workload, false, 0.0));
            }
        }
    }
    let fit = fit(&Parameters::starting_point(RnicKind::Software), &observations).unwrap();
    let names: Vec<&str> = fit.sums.iter().map(|sum| sum.name.as_str()).collect();
    assert!(names.contains(&"o_snd_ns.single + o_nsnd_ns"), "{names:?}");
    assert!(names.contains(&"o_snd_ns.batched + o_nsnd_ns"), "{names:?}");
    assert!((estimate(&fit, "o_snd_ns.single + o_nsnd_ns").value / 700.0 - 1.0).abs() < 0.01);
    assert!((estimate(&fit, "o_snd_ns.batched + o_nsnd_ns").value / 390.0 - 1.0).abs() < 0.01);
}

/// Returns a NIC whose units, ceiling, shared queue and receivers each bind in some load, with values unlike T1's.
fn nic() -> Parameters {
    Parameters {
        o_unit_ns: 95.0,
        o_nic_ns: 31.0,
        o_pairs_ns: 40.0,
        o_srq_ns: 380.0,
        o_repost_thread_ns: 900.0,
        ..Parameters::starting_point(RnicKind::Hardware)
    }
}

/// Returns measurements that reveal the bounds of [`nic`]: batches over threads, many senders to one receiver, and
/// shared queues.
fn shared(truth: &Parameters, relative_noise: f64, seed: u64) -> Vec<Observation> {
    let mut noise = Noise(seed);
    let mut observations = bench(truth, relative_noise, seed);
    let mut add = |workload: Workload| {
        let workload = Workload { credits: false, ..workload };
        observations.push(observe(truth, workload, false, relative_noise * noise.next()));
    };
    for bytes in [16, 64, 100] {
        for threads in [1, 2, 3, 8, 16, 64] {
            add(Workload { peers: Peers::pairs(threads), ..Workload::batched(bytes) });
        }
        for senders in [2, 4, 8, 16, 64] {
            let peers = Peers::many_to_one(senders);
            add(Workload { peers, receive_batch: 1, repost_batch: 1, ..Workload::batched(bytes) });
        }
    }
    for bytes in [100, 512, 1024] {
        for senders in [4, 16] {
            let peers = Peers::many_to_one(senders);
            add(Workload { peers, srq: true, ..Workload::unbatched(bytes) });
            add(Workload { peers, srq: true, repost_thread: true, ..Workload::unbatched(bytes) });
        }
    }
    observations
}

#[test]
fn units_ceiling_and_shared_queues_are_recovered() {
    let truth = nic();
    let exact = quantities_of(&truth);
    let (mut inside, mut known, mut all) = (0, 0, 0);
    let start = Parameters::starting_point(RnicKind::Hardware);
    let (start, truth) = (&start, &truth);
    // A fit takes seconds, so all fits run at the same time.
    let fits: Vec<Fit> = std::thread::scope(|scope| {
        let one = |seed| scope.spawn(move || fit(start, &shared(truth, 0.01, seed)).unwrap());
        let fits: Vec<_> = (1..=4).map(one).collect();
        fits.into_iter().map(|fit| fit.join().unwrap()).collect()
    });
    for (seed, fit) in (1..).zip(fits) {
        assert!(fit.median_error <= 0.03, "seed {seed}: {}", fit.median_error);
        for name in ["o_unit_ns", "o_nic_ns", "o_pairs_ns", "o_srq_ns", "o_repost_thread_ns"] {
            let Estimate { value, interval, .. } = estimate(&fit, name);
            all += 1;
            // Sometimes a second explanation fits the noise, and the fit reports no interval.
            let Some((low, high)) = *interval else { continue };
            let expected = exact(name);
            assert!((value / expected - 1.0).abs() < 0.15, "seed {seed}: {name} is {value}, not {expected}");
            known += 1;
            inside += usize::from((low..=high).contains(&expected));
        }
        // No measured operation is atomic, so the data does not determine this parameter.
        assert_eq!(estimate(&fit, "o_atomic_ns").interval, None, "seed {seed}");
    }
    assert!(known * 4 >= all * 3, "only {known} of {all} parameters have an interval");
    assert!(inside * 100 >= known * 80, "only {inside} of {known} lie within their intervals");
}

/// Measurements with many threads only cannot show which parameter limits the rate: the ceiling of the NIC, or the sum
/// of the rates of its processing units.
#[test]
fn parameters_that_threads_do_not_separate_have_no_interval() {
    let truth = nic();
    let observations: Vec<Observation> = [8, 16, 32, 64]
        .into_iter()
        .flat_map(|threads| [16, 32, 64].map(|bytes| (threads, bytes)))
        .map(|(threads, bytes)| {
            let workload = Workload { peers: Peers::pairs(threads), credits: false, ..Workload::batched(bytes) };
            observe(&truth, workload, false, 0.0)
        })
        .collect();
    let fit = fit(&Parameters::starting_point(RnicKind::Hardware), &observations).unwrap();
    assert!(fit.p90_error < 0.02, "{}", fit.p90_error);
    for name in ["o_unit_ns", "o_nic_ns", "o_srq_ns", "o_pairs_ns"] {
        assert_eq!(estimate(&fit, name).interval, None, "{name} has an interval without a measurement that shows it");
    }
    let open = &fit.parameters.open_points[0];
    assert!(open.contains("o_unit_ns") && open.contains("o_nic_ns"), "{open}");
}

/// Returns the record that a bench of one-sided operations would write for an RNIC with these parameters.
fn record_of(truth: &Parameters, posted: &Posted, is_latency: bool, noise: f64) -> String {
    let prediction = predict_operation(truth, posted).unwrap();
    let kind = if is_latency { Kind::Latency } else { Kind::Bandwidth };
    let operation = serde_json::from_value(posted.operation.name().replace('-', "_").into()).unwrap();
    let parameters = record::Parameters {
        connections: posted.connections as usize,
        inline: posted.inline_bytes as usize,
        ..record::Parameters::plain(kind, operation, posted.bytes as usize)
    };
    let ns = (prediction.latency_ns * noise.exp()).round() as u64;
    let result = PointResult {
        bytes: posted.bytes as usize,
        messages_per_s: prediction.messages_per_s * noise.exp(),
        latency_ns: is_latency.then_some(Latency { min: ns, p50: ns, mean: ns as f64, p99: ns, p999: ns, max: ns }),
        mtu: 4096,
        fitted: Fitted { window: posted.window as usize, batch: posted.batch as usize, ..Fitted::default() },
        ..PointResult::default()
    };
    let environment = Environment { provider: "system".to_owned(), ..Environment::default() };
    let schema = RunRecord::SCHEMA.to_owned();
    serde_json::to_string(&RunRecord { schema, environment, parameters, results: vec![result] }).unwrap()
}

/// Returns the measurements of `bench` over one-sided operations: single operations, lists, and many queue pairs.
fn operations(truth: &Parameters, relative_noise: f64, seed: u64) -> Vec<Observation> {
    let mut noise = Noise(seed);
    let mut observations = Vec::new();
    let mut add = |posted: Posted, is_latency: bool| {
        let Posted { window, batch, connections, .. } = posted;
        let posted = Posted {
            signals_last: true,
            poll_list: window.div_ceil(batch).min(32),
            addresses: connections,
            path_mtu: Some(doorbell_wire::PathMtu::Mtu4096),
            ..posted
        };
        let text = record_of(truth, &posted, is_latency, relative_noise * noise.next());
        let observed = crate::record::observations("a.json", &text).unwrap();
        assert_eq!((observed.left_out.len(), observed.observations[0].load), (0, Load::Operations(posted)));
        observations.extend(observed.observations);
    };
    for operation in
        [PostedOperation::Write, PostedOperation::Read, PostedOperation::CompareSwap, PostedOperation::FetchAdd]
    {
        let sizes: &[u64] = if operation.is_atomic() { &[8] } else { &[0, 8, 64, 512, 4096, 65_536] };
        for &bytes in sizes {
            add(Posted::new(operation, bytes, 1), true);
            for window in [1, 4, 16, 64] {
                add(Posted::new(operation, bytes, window), false);
            }
            add(Posted { batch: 8, ..Posted::new(operation, bytes, 256) }, false);
        }
        for connections in [2, 4, 8, 20] {
            add(Posted { connections, ..Posted::new(operation, 8, 64) }, false);
        }
    }
    observations
}

#[test]
fn single_operation_parameters_lie_within_their_intervals() {
    let truth = Parameters { o_atomic_ns: 520.0, g_fix_ns: 2700.0, l_ns: 1400.0, ..nic() };
    let exact = quantities_of(&truth);
    let (mut inside, mut all) = (0, 0);
    for seed in 1..=4 {
        let fit = fit(&Parameters::starting_point(RnicKind::Hardware), &operations(&truth, 0.01, seed)).unwrap();
        assert!(fit.median_error <= 0.03, "seed {seed}: {}", fit.median_error);
        for (name, expected) in [("o_atomic_ns", 520.0), ("g_fix_ns", 2700.0)] {
            let Estimate { value, interval, .. } = estimate(&fit, name);
            assert!(interval.is_some(), "seed {seed}: {name} has no interval");
            assert!((value / expected - 1.0).abs() < 0.1, "seed {seed}: {name} is {value}, not {expected}");
        }
        // The measurements post no receives and share no queue, so the data does not determine these parameters.
        for name in ["o_post_ns.single", "o_srq_ns", "o_repost_thread_ns"] {
            assert_eq!(
                estimate(&fit, name).interval,
                None,
                "seed {seed}: {name} has an interval without a measurement that shows it"
            );
        }
        for estimate in fit.estimates.iter().chain(&fit.sums) {
            let Some((low, high)) = estimate.interval else { continue };
            let value: f64 = estimate.name.split(" + ").map(&exact).sum();
            all += 1;
            inside += usize::from((low..=high).contains(&value));
        }
    }
    assert!(inside * 100 >= all * 85, "only {inside} of {all} lie within their intervals");
}

#[test]
fn the_jacobian_is_the_derivative() {
    let truth = software();
    let data = Data::new(&truth, &bench(&truth, 0.1, 3)).unwrap();
    let start = truth.values();
    let free: Vec<usize> = (0..TERMS).filter(|&index| start[index] > 0.0).collect();
    let at = DVector::from_iterator(free.len(), free.iter().map(|&index| start[index].ln()));
    let mut problem = Problem { data: &data, free: &free, start, origin: at.clone(), at, hardness: 10.0 };
    let numeric = levenberg_marquardt::differentiate_numerically(&mut problem).unwrap();
    let analytic = problem.jacobian().unwrap();
    assert!((numeric - analytic).abs().max() < 1e-6);
}

#[test]
fn too_little_and_nonsense_is_refused() {
    let t1 = Parameters::t1();
    let good = bench(&t1, 0.0, 1);
    let error =
        |observations: &[Observation]| fit(&t1, observations).expect_err("the observations are invalid").to_string();
    assert_eq!(error(&[]), "0 measured figures (latencies and rates); a fit needs 4 to 20000");
    assert!(error(&good[..3]).starts_with("3 measured figures"));
    let with = |change: &dyn Fn(&mut Observation)| {
        let mut observations = good.clone();
        change(&mut observations[2]);
        error(&observations)
    };
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        let text = with(&|observation| observation.messages_per_s = Some(wrong));
        assert!(text.contains("16 B, window 4, batch 1: messages_per_s is"), "{text}");
        assert!(with(&|observation| observation.latency_ns = Some(wrong)).contains("latency_ns is"));
        assert!(with(&|observation| observation.weight = wrong).contains("the weight is"));
    }
    let empty = Load::Messages(Workload { window: 0, ..Workload::sequential(16) });
    assert!(with(&|observation| observation.load = empty).contains("the window is 0"));
    let broken = Parameters { l_ns: f64::NAN, ..t1.clone() };
    assert!(fit(&broken, &good).expect_err("no start").to_string().contains("l_ns is NaN"));
}

#[test]
fn a_perfect_fit_reproduces_every_figure() {
    let t1 = Parameters::t1();
    let fit = fit(&Parameters { l_ns: 4000.0, g_fix_ns: 1000.0, ..t1.clone() }, &bench(&t1, 0.0, 1)).unwrap();
    assert!(fit.p90_error < 0.01, "{}", fit.p90_error);
    assert_eq!(fit.residuals.len(), 35);
    assert_eq!(Parameters::from_toml("fit", &fit.parameters.to_toml()), Ok(fit.parameters));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any finite figures give a fit or an error. No fit panics or has parameters out of range.
    #[test]
    fn fits_never_panic(
        figures in prop::collection::vec((any::<f64>(), 1e-3..1e12_f64, any::<bool>(), 0..1_u64 << 30, 1..5000_u32), 0..12),
        software in any::<bool>(),
        wild in prop::bool::weighted(0.2),
    ) {
        let rnic = if software { RnicKind::Software } else { RnicKind::Hardware };
        let observations: Vec<Observation> = figures.iter().map(|&(any, tame, latency, bytes, window)| {
            let figure = if wild { any } else { tame };
            Observation {
                name: "any".to_owned(),
                load: Load::Messages(Workload::new(bytes, window, 1 + window / 2)),
                latency_ns: latency.then_some(figure),
                messages_per_s: (!latency).then_some(figure),
                weight: 1.0,
            }
        }).collect();
        match fit(&Parameters::starting_point(rnic), &observations) {
            Ok(fit) => {
                prop_assert_eq!(fit.parameters.check("fit"), Ok(()));
                prop_assert!(fit.median_error.is_finite() && fit.median_error <= fit.p90_error);
                prop_assert_eq!(fit.residuals.len(), observations.len());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
