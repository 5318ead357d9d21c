//! Sessions of the study in virtual time: both ends in one simulation, with threads that create threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_exchange::asynchronous::Waiter;
use doorbell_record::{Extent, Kind, Operation, Parameters, PointResult, Serving, SharedBy};
use doorbell_sim::session::{Point, PointError, simulate};
use doorbell_sim::{Ps, Simulation, SimulationError, Summary, Testbed, Topology, testbed};
use doorbell_study::complaints;
use doorbell_study::experiment::{Effort, all};
use doorbell_study::session::SessionError;
use doorbell_study::threads::Threads;

fn t1() -> &'static Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed")
}

fn stream(bytes: usize, messages: u64) -> Parameters {
    Parameters { extent: Extent::Messages(messages), ..Parameters::plain(Kind::Bandwidth, Operation::Send, bytes) }
}

fn point(parameters: &Parameters) -> Point {
    let bytes = parameters.sizes[0];
    simulate(t1(), parameters, bytes, 1).unwrap_or_else(|error| panic!("{error}\n{parameters:?}"))
}

#[test]
fn child_threads_have_separate_clocks() {
    let mut simulation = Simulation::new(t1(), Topology::Pair, 1).expect("a simulation");
    let (threads, waiter) = (simulation.threads(0), simulation.polling());
    let ended = simulation.spawn(0, "maker", async move {
        // The thread waits for a microsecond, so that its children do not begin at time zero.
        waiter.wait(None, Some(1000)).await;
        let clock = &waiter;
        let task = |ns: u64, waiter: doorbell_sim::VirtualWaiter| async move {
            let began = clock.now();
            // Wait in a loop, because a wake-up for another task of the thread also wakes this task.
            while clock.now() < began + Ps::from_ns(ns) {
                waiter.wait(None, Some(began.as_ns() + ns)).await;
            }
            (began, clock.now())
        };
        let hands = threads.deal(2, vec![100, 5000, 3000], task, || || Ok::<(), ()>(())).await;
        (hands, clock.now())
    });
    let summary = simulation.run().expect("the simulation ends");
    let (hands, after) = ended.take().expect("the thread has ended");
    let hands = hands.expect("the check does not fail");
    // Results are in the order of threads: the first thread has the first and the third item.
    let waited: Vec<u64> = hands.iter().map(|(began, ended)| (*ended - *began).as_ns()).collect();
    assert!(hands.iter().all(|(began, _)| *began >= Ps::from_ns(1000)), "{hands:?}");
    assert!(matches!(waited[..], [100..150, 3000..3050, 5000..5050]), "{waited:?}");
    assert!(after >= hands[2].1, "the parent waits until all children have ended");
    let names: Vec<&str> = summary.threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(names, ["maker", "maker, thread 0", "maker, thread 1"]);
}

#[test]
fn a_failed_check_ends_endless_threads() {
    let mut simulation = Simulation::new(t1(), Topology::Pair, 1).expect("a simulation");
    let (threads, waiter) = (simulation.threads(0), simulation.polling());
    let ended = simulation.spawn(0, "maker", async move {
        let endless = |(): (), waiter: doorbell_sim::VirtualWaiter| {
            let clock = waiter.clone();
            async move {
                loop {
                    waiter.wait(None, Some(clock.now().as_ns() + 100)).await;
                }
            }
        };
        let check = || {
            let mut rounds = 0;
            move || {
                rounds += 1;
                if rounds == 5 { Err("gone") } else { Ok(()) }
            }
        };
        let dealt: Result<Vec<()>, _> = threads.deal(2, vec![(); 3], endless, check).await;
        let run: Result<Vec<()>, _> = threads.run(&waiter, [endless((), waiter.clone())], check()).await;
        (dealt, run)
    });
    simulation.run().expect("the simulation ends");
    assert_eq!(ended.take(), Some((Err("gone"), Err("gone"))));
}

#[test]
fn the_thread_beside_reacts_to_threads_of_its_host() {
    let mut simulation = Simulation::new(t1(), Topology::Pair, 1).expect("a simulation");
    let (threads, waiter) = (simulation.threads(0), simulation.polling());
    let ended = simulation.spawn(0, "worker", async move {
        let (left, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let again = || {
            let found = left.swap(0, Ordering::Relaxed);
            taken.fetch_add(found, Ordering::Relaxed);
            Ok::<_, &str>(found)
        };
        let body = async {
            for _ in 0..10 {
                waiter.wait(None, Some(waiter.now().as_ns() + 1000)).await;
                left.fetch_add(1, Ordering::Relaxed);
                waiter.breathe().await;
            }
            waiter.wait(None, Some(waiter.now().as_ns() + 1000)).await;
            taken.load(Ordering::Relaxed)
        };
        let all = threads.beside(again, body).await;
        let failed =
            threads.beside(|| Err("no queue"), async { waiter.wait(None, Some(waiter.now().as_ns() + 9)).await }).await;
        (all, failed)
    });
    let summary = simulation.run().expect("the simulation ends");
    assert_eq!(ended.take(), Some((Ok(10), Err("no queue"))));
    // The thread beside does not poll while the other threads do no work.
    assert!(summary.counts.turns < 200, "{:?}", summary.counts);
}

#[test]
fn a_thread_beside_does_not_hide_a_deadlock() {
    let mut simulation = Simulation::new(t1(), Topology::Pair, 1).expect("a simulation");
    let threads = simulation.threads(0);
    let _ = simulation
        .spawn(0, "worker", async move { threads.beside(|| Ok::<_, ()>(0), std::future::pending::<()>()).await });
    let error = simulation.run().expect_err("no event wakes the worker");
    assert!(matches!(error, SimulationError::Deadlock { waiting: 2, threads: 2, .. }), "{error}");
    assert!(error.to_string().contains("thread worker, beside on node 0"), "{error}");
}

#[test]
fn threads_that_are_dealt_connections_add_to_the_rate() {
    let rate = |threads: usize| {
        let serving = Serving { threads, ..Serving::default() };
        let parameters =
            Parameters { window: 256, depth: 512, batch: 8, connections: threads, serving, ..stream(16, 5000) };
        let Point { result, summary } = point(&parameters);
        assert_eq!(result.messages, 5000 * threads as u64);
        // Each end has one thread, which creates the other threads of the end.
        assert_eq!(summary.threads.len(), if threads == 1 { 2 } else { 2 + 2 * threads });
        result.messages_per_s
    };
    let (one, four) = (rate(1), rate(4));
    // The stage that all units of the receiving NIC share limits four threads.
    assert!(four > 2.5 * one, "{one} with one thread, {four} with four");
}

#[test]
fn shared_receives_are_posted_under_a_lock_or_by_a_thread() {
    let with = |shared_receives, threads| {
        let serving = Serving { threads, shared_receives, repost_list: 1, ..Serving::default() };
        let parameters = Parameters { depth: 1024, connections: 8, serving, credits: false, ..stream(16, 2000) };
        let Point { result, summary } = point(&parameters);
        assert_eq!(result.messages, 16_000);
        (result, summary)
    };
    let (own, alone) = with(None, 8);
    let (locked, _) = with(Some(SharedBy::Lock), 8);
    let (_, summary) = with(Some(SharedBy::Thread), 8);
    assert!(summary.threads.iter().any(|thread| thread.name == "answering, beside" && thread.worked > Ps::ZERO));
    // A thread that waits for a lock spins, so a shared lock makes the receiving threads work longer. With a reposting
    // thread, a part of their work moves to this thread.
    let work = |result: &PointResult| result.cpu.server.useful_ns().expect("virtual time is known");
    assert!(work(&locked) > work(&own), "{} {}", work(&locked), work(&own));
    let of_receivers = |summary: &Summary| -> Ps {
        let receivers = summary.threads.iter().filter(|thread| thread.name.starts_with("answering, thread"));
        receivers.map(|thread| thread.worked).sum()
    };
    assert!(of_receivers(&summary) < of_receivers(&alone), "{summary:?}");
}

#[test]
fn a_receiver_that_pauses_spends_its_own_time() {
    let paused = Parameters { slow_receiver_us: 10, ..stream(16, 500) };
    let result = point(&paused).result;
    let per_message_us = 1e6 / result.messages_per_s;
    // At the end, messages in the receive buffers count as sent, although the receiver has not taken them yet.
    assert!((7.0..10.5).contains(&per_message_us), "{per_message_us}");
    let cpu = result.cpu.server;
    assert!(cpu.useful_ns().is_some_and(|ns| ns > 500 * 10_000), "{cpu:?}");
}

/// 24 clients send requests of 200 B and get replies of 64 KiB, from as many server threads as clients or from one.
#[test]
fn clients_wait_for_replies_of_another_size() {
    const LINE_NS: f64 = 65_536.0 * 8.0 / 100.0;
    let with = |server_threads| {
        let parameters = Parameters {
            operation: Operation::RequestResponse,
            reply: Some(65_536),
            connections: 24,
            serving: Serving { threads: 24, server_threads, ..Serving::default() },
            window: 1,
            verify: true,
            ..stream(200, 40)
        };
        let Point { result, summary } = point(&parameters);
        assert_eq!((result.messages, result.damaged), (24 * 40, 0));
        assert_eq!(complaints(&parameters, None, &result), [""; 0]);
        let answering = summary.threads.iter().filter(|thread| thread.name.starts_with("answering, thread"));
        assert_eq!(answering.count(), if server_threads == 1 { 0 } else { 24 });
        let latency = result.latency_ns.expect("requests have latencies");
        // All replies leave over one line, so a client waits for the replies of the other clients.
        assert!(result.messages_per_s < 1e9 / LINE_NS, "{}", result.messages_per_s);
        assert!(latency.p50 as f64 > 12.0 * LINE_NS && latency.min as f64 > LINE_NS, "{latency:?}");
        // In a closed loop, the number of clients is the rate times the mean latency (Little's law).
        let clients = result.messages_per_s * latency.mean / 1e9;
        assert!((20.0..24.5).contains(&clients), "{clients}");
        result.messages_per_s
    };
    let (many, one) = (with(0), with(1));
    assert!(one < 1.05 * many, "{one} with one server thread, {many} with 24");
}

#[test]
fn think_time_and_rate_determine_the_load() {
    let asked = Parameters { operation: Operation::RequestResponse, window: 1, ..stream(16, 200) };
    let of = |parameters: &Parameters| {
        let result = point(parameters).result;
        (result.messages_per_s, result.latency_ns.expect("requests have latencies"))
    };
    let (alone, latency) = of(&asked);
    let (thinking, _) = of(&Parameters { think_us: 100, ..asked.clone() });
    assert!((thinking * (100_000.0 + latency.mean) / 1e9 - 1.0).abs() < 0.05, "{thinking} {latency:?}");
    // At half of the highest rate, a request waits for no other. At twice that rate, requests wait longer and longer.
    let (_, half) = of(&Parameters { rate: Some(alone / 2.0), ..asked.clone() });
    let (reached, twice) = of(&Parameters { rate: Some(2.0 * alone), ..asked });
    assert!((half.p50 as f64) < 1.2 * latency.p50 as f64, "{half:?} {latency:?}");
    assert!(reached < 1.05 * alone && twice.max > 50 * latency.p50, "{reached} of {alone}, {twice:?}");
}

/// Four clients at a fixed rate send in turn, so no request waits for that of another client.
#[test]
fn requests_of_an_open_loop_are_spread_over_the_clients() {
    let serving = Serving { threads: 4, server_threads: 1, ..Serving::default() };
    let plain = Parameters { operation: Operation::RequestResponse, window: 1, ..stream(16, 100) };
    let latency = |parameters: &Parameters| point(parameters).result.latency_ns.expect("requests have latencies");
    let alone = latency(&plain);
    let spread = latency(&Parameters { connections: 4, serving, rate: Some(400_000.0), ..plain });
    assert!((spread.p50 as f64) < 1.2 * alone.p50 as f64, "{spread:?} {alone:?}");
}

#[test]
fn an_offered_rate_is_kept_with_few_turns() {
    let paced = Parameters { rate: Some(1000.0), ..stream(16, 200) };
    let Point { result, summary } = point(&paced);
    assert!((990.0..1010.0).contains(&result.messages_per_s), "{}", result.messages_per_s);
    assert!(summary.counts.turns < 20_000, "{:?}", summary.counts);
}

#[test]
fn errors_of_either_end_are_reported() {
    let few = Parameters { rnr_retry: 0, credits: false, depth: 4, slow_receiver_us: 50, ..stream(16, 1000) };
    let error = simulate(t1(), &few, 16, 1).expect_err("RNR NAKs are not retried");
    assert!(
        matches!(error, PointError::Session(SessionError::Both { .. } | SessionError::Connection { .. })),
        "{error}"
    );
    let none = Parameters { connections: 0, ..stream(16, 1) };
    let error = simulate(t1(), &none, 16, 1).expect_err("no connection");
    assert!(error.to_string().starts_with("the number of connections is 0, allowed is "), "{error}");
}

#[test]
fn every_experiment_of_the_study_is_simulated() {
    for experiment in all(Effort::Quick) {
        // Points of several clients on shared memory do not run in a session. `far_points.rs` tests these points.
        for point in experiment.points.into_iter().filter(|point| point.parameters.far.is_none()) {
            let parameters = Parameters { extent: Extent::Messages(60), ..point.parameters };
            let result = simulate(t1(), &parameters, parameters.sizes[0], 1)
                .unwrap_or_else(|error| panic!("{}, {}, {}: {error}", experiment.name, point.series, point.x))
                .result;
            let both_ways = if parameters.bidirectional { 2 } else { 1 };
            assert_eq!(result.messages, 60 * both_ways * parameters.connections as u64, "{}", experiment.name);
            let is_timed = parameters.kind == Kind::Latency
                || parameters.operation == Operation::RequestResponse
                || parameters.operation.is_one_sided();
            assert_eq!((result.damaged, result.latency_ns.is_some()), (0, is_timed));
            // The number of counted packets equals the prediction.
            for (counted, predicted) in
                [(&result.counted.client, &result.predicted.client), (&result.counted.server, &result.predicted.server)]
            {
                let most = if predicted.asks { u64::MAX } else { predicted.data_packets_max };
                let what = format!("{}, {}, {}: {counted:?} {predicted:?}", experiment.name, point.series, point.x);
                assert!((predicted.data_packets..=most).contains(&counted.data_packets), "{what}");
            }
        }
    }
}
