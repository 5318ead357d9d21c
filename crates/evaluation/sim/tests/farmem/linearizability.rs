//! Checks that the histories of each key are linearizable, for each strategy on virtual time, with lost packets and
//! with clients that die at any step. `FARMEM_SEED` runs one seed. `FARMEM_SEEDS` runs this number of seeds, beginning
//! with `FARMEM_SEEDS_FROM`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::common::{self, Boxed, Failure, How, Store, close, progress, t3};
use doorbell_farmem::workload::history::{Event, NEVER, Span, is_linearizable};
use doorbell_farmem::{Client, ClientOptions, Geometry, Outcome, StoreError, StoreOperation, Strategy, Ticket};
use doorbell_sim::{Testbed, VirtualWaiter};
use doorbell_testing::Rng;

type Spans = BTreeMap<u32, Vec<Span>>;

/// Returns the value with this number: the number, repeated to a length that depends on the number.
fn value(number: u32, most: usize) -> Vec<u8> {
    let length = 4 + number as usize * 13 % (most - 3);
    number.to_le_bytes().into_iter().cycle().take(length).collect()
}

fn number(value_read: &[u8], most: usize) -> u32 {
    let number = value_read.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    assert_eq!(value_read, value(number, most), "the value is torn, or was never written");
    number
}

#[derive(Clone, Copy, Debug)]
struct Load {
    strategy: Strategy,
    keys: u64,
    operations: u32,
    outstanding: usize,
    /// Number of verbs after which a client dies. `None` if no client dies.
    death: Option<u64>,
    /// A middlebox between the memory node and all other hosts, if any.
    boxed: Option<Boxed>,
    /// Number of memory nodes.
    replicas: usize,
    /// Failure of one of two memory nodes, if any.
    failure: Option<Failure>,
}

impl Load {
    fn of(strategy: Strategy, seed: u64) -> Self {
        let (keys, outstanding) = (1 + seed % 4, 1 + seed as usize % 3);
        Self { strategy, keys, operations: 25, outstanding, death: None, boxed: None, replicas: 1, failure: None }
    }
}

const MOST: usize = 120;

/// Returns key `index`. Some keys are longer than 8 bytes.
fn key(index: u32) -> Vec<u8> {
    match index % 2 {
        0 => u64::from(index).to_le_bytes().to_vec(),
        _ => format!("the key of number {index}").into_bytes(),
    }
}

/// Returns the operation that leads to an event.
fn operation<'a>(event: Event, key: &'a [u8], value: &'a [u8]) -> StoreOperation<'a> {
    match event {
        Event::Put(..) => StoreOperation::Put { key, value },
        Event::Insert(..) => StoreOperation::Insert { key, value },
        Event::Delete(_) => StoreOperation::Delete { key },
        _ => StoreOperation::Get { key },
    }
}

async fn work(
    mut client: Client,
    load: Load,
    mut rng: Rng,
    first_value: u32,
    waiter: VirtualWaiter,
    spans: Rc<RefCell<Spans>>,
) -> Client {
    let mut running: BTreeMap<Ticket, (u32, u64, Event)> = BTreeMap::new();
    let (mut left, mut next_value, mut read) = (load.operations, first_value, Vec::new());
    let mut has_failed = false;
    while left > 0 || !running.is_empty() {
        while left > 0 && running.len() < load.outstanding {
            let index = rng.below(load.keys) as u32;
            let event = match rng.below(20) {
                0..8 => Event::Get(None),
                8..14 => Event::Put(next_value.into(), false),
                14..18 => Event::Insert(next_value.into(), false),
                _ => Event::Delete(false),
            };
            let (name, value) = (key(index), value(next_value, MOST));
            let from = waiter.now().0;
            let submitted = client.submit(operation(event, &name, &value)).expect("sizes are allowed");
            running.insert(submitted.expect("there is room"), (index, from, event));
            (left, next_value) = (left - 1, next_value + 1);
        }
        while let Some((ticket, result)) = client.finished(&mut read) {
            let (index, from, event) = running.remove(&ticket).expect("the operation was running");
            let (to, is_done) = (waiter.now().0, result == Ok(Outcome::Done));
            let event = match (event, result) {
                (Event::Get(_), Ok(_)) => Event::Get(is_done.then(|| number(&read, MOST).into())),
                (Event::Put(value, _), Ok(_)) => Event::Put(value, is_done),
                (Event::Insert(value, _), Ok(_)) => Event::Insert(value, is_done),
                (_, Ok(_)) => Event::Delete(is_done),
                (_, Err(StoreError::GaveUp { .. })) => continue, // this error means that the operation had no effect
                (event, Err(error)) => {
                    let is_expected = matches!(
                        error,
                        StoreError::Dead
                            | StoreError::Memory(_)
                            | StoreError::MetadataGone(_)
                            | StoreError::ServerGone(_)
                    );
                    assert!(is_expected, "{event:?}: {error}");
                    running.insert(ticket, (index, from, event));
                    has_failed = true;
                    break;
                }
            };
            spans.borrow_mut().entry(index).or_default().push(Span { from, to, event });
        }
        // Without the metadata service, a client could continue with the nodes that it already has. In this test, the
        // error means that the client was fenced.
        if client.is_over() || has_failed {
            break;
        }
        progress(&mut client, &waiter).await;
    }
    for (_, (index, from, event)) in running {
        let event = match event {
            Event::Put(value, _) => Event::PerhapsPut(value),
            Event::Insert(value, _) => Event::PerhapsInsert(value),
            Event::Delete(_) => Event::PerhapsDelete,
            _ => continue,
        };
        spans.borrow_mut().entry(index).or_default().push(Span { from, to: NEVER, event });
    }
    client
}

/// Runs two hosts with two clients each. Returns the number of operations without an answer, and the number of dropped
/// frames.
fn run(testbed: &Testbed, load: Load, seed: u64) -> (usize, u64) {
    let (unanswered, dropped, _) = run_counted(testbed, load, seed);
    (unanswered, dropped)
}

/// Runs the same as `run`. Also returns the number of READs and CASes that a middlebox steered, and of CASes that the
/// middlebox turned into WRITEs.
fn run_counted(testbed: &Testbed, load: Load, seed: u64) -> (usize, u64, [u64; 3]) {
    // With few nodes, clients reuse each node often.
    let nodes = if seed.is_multiple_of(2) { 400 } else { 160 };
    let geometry = Geometry { nodes, keys: 8, max_key: 32, max_value: MOST };
    let mut store = match load.boxed {
        Some(_) => Store::behind(load.boxed, testbed, 2, geometry, seed),
        None => Store::replicated(load.replicas, testbed, 2, geometry, seed),
    };
    if let Some(failure) = load.failure {
        store.fail(failure);
    }
    let spans = Rc::new(RefCell::new(Spans::new()));
    let mut rng = Rng::new(seed);
    for index in 0..4_u32 {
        let options = ClientOptions {
            strategy: load.strategy,
            outstanding: load.outstanding,
            seed: rng.next(),
            lease_ns: 2_000_000,
            shortcut_delay_ns: seed % 3 * 4_000,
            verbs_until_death: load.death.filter(|_| index == 0),
            ..ClientOptions::default()
        };
        let host = index as usize % 2;
        let client = store.client(host, options);
        let (waiter, working) = (store.simulation.polling(), Rc::clone(&store.working));
        let worker = work(client, load, Rng::new(rng.next()), index * 10_000 + 1, waiter.clone(), Rc::clone(&spans));
        store.simulation.spawn(common::FIRST_HOST + host, format!("client {index}"), async move {
            let client = worker.await;
            if client.is_over() {
                drop(client);
                working.set(working.get() - 1);
            } else {
                close(client, &waiter, &working).await;
            }
        });
    }
    let rest = store.serve();
    let summary = store.simulation.run().unwrap_or_else(|error| panic!("{load:?}, seed {seed}: {error}"));
    let spans = spans.borrow();
    for (index, spans) in spans.iter() {
        assert!(is_linearizable(spans), "{load:?}, seed {seed}: key {index} is not linearizable:\n{spans:#?}");
    }
    let rest = rest.take().expect("the service has ended");
    rest.check_all(&store);
    if load.failure.is_some_and(|failure| rest.alone == Some(failure.node)) {
        panic!("{load:?}, seed {seed}: the failed node still serves");
    }
    let unanswered = spans.values().flatten().filter(|span| span.to == NEVER).count();
    let counters = store.through.as_ref().map(|through| through.0.with(|steer| *steer.counters()));
    let steered = counters.map(|counters| [counters.reads_steered, counters.cas_steered, counters.cas_converted]);
    (unanswered, summary.counts.dropped, steered.unwrap_or_default())
}

/// Seeds that failed once. With seed 136, a client did not report that its close message was acknowledged.
const STORED: [u64; 1] = [136];

/// Returns only the seed of `FARMEM_SEED`, if set. Otherwise returns a number of seeds from `FARMEM_SEEDS_FROM` on, and
/// the seeds that failed once.
fn seeds(default: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (range, stored) = match number("FARMEM_SEED") {
        Some(seed) => (seed..seed + 1, &STORED[..0]),
        None => {
            let from = number("FARMEM_SEEDS_FROM").unwrap_or(0);
            (from..from + number("FARMEM_SEEDS").unwrap_or(default), &STORED[..])
        }
    };
    let stored = stored.iter().copied().filter({
        let range = range.clone();
        move |seed| !range.contains(seed)
    });
    range.clone().chain(stored)
}

#[test]
fn every_strategy_is_linearizable_and_loses_no_node() {
    for strategy in Strategy::ALL {
        for seed in seeds(120) {
            let load = Load::of(strategy, seed);
            let (unanswered, dropped) = run(&t3(), load, seed);
            assert_eq!((unanswered, dropped), (0, 0), "{load:?}, seed {seed}");
        }
    }
}

#[test]
fn a_client_death_at_any_verb_keeps_the_store_linearizable() {
    for strategy in Strategy::ALL {
        for seed in seeds(180) {
            let outstanding = 1 + seed as usize % 2;
            let death = Some(seed % 100);
            let load = Load { keys: 1 + seed % 3, operations: 20, outstanding, death, ..Load::of(strategy, seed) };
            run(&t3(), load, seed);
        }
    }
}

/// The box steers, turns CASes into WRITEs in a part of the runs, and remembers all keys or only one key.
#[test]
fn steered_strategies_are_linearizable_behind_a_middlebox() {
    let losing = losing();
    let (mut lost, mut steered) = (0, [0; 3]);
    for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.is_steered()) {
        for seed in seeds(80) {
            let (is_exclusive, keys) = (seed % 2 == 0, if seed % 3 == 0 { 1 } else { 64 });
            let boxed = Some(Boxed { is_exclusive, steers_reads: strategy.steers_reads(), keys });
            let death = (seed % 5 < 2).then_some(seed % 70);
            let load = Load { death, boxed, ..Load::of(strategy, seed) };
            let testbed = if seed % 4 == 3 { &losing } else { &t3() };
            let (unanswered, dropped, counters) = run_counted(testbed, load, seed);
            assert!(unanswered == 0 || death.is_some() || dropped > 0, "{load:?}, seed {seed}");
            lost += dropped;
            for (sum, count) in steered.iter_mut().zip(counters) {
                *sum += count;
            }
        }
    }
    let [reads, swaps, converted] = steered;
    assert!(lost > 0 && reads > 100 && swaps > 100 && converted > 100, "{lost} frames lost, {steered:?} steered");
}

/// Returns a testbed with slow links, and with a switch whose queues hold few frames. When two hosts send at once, the
/// switch drops some of the frames.
fn losing() -> Testbed {
    let replaced = [
        ("link.rate", "1 Gb/s"),
        ("switch.resume_at", "0 B"),
        ("switch.pause_at", "600 B"),
        ("switch.queue", "600 B"),
        ("switch.when_full", "drop"),
    ];
    let with =
        |testbed: Testbed, &(field, value): &(&str, &str)| testbed.with(field, value).expect("a value of the field");
    replaced.iter().fold(t3(), with)
}

#[test]
fn lost_packets_change_nothing() {
    let testbed = losing();
    let mut lost = 0;
    for strategy in Strategy::ALL {
        for seed in seeds(30) {
            let death = (seed % 2 == 1).then_some(seed * 3);
            let load = Load { keys: 2, operations: 20, outstanding: 4, death, ..Load::of(strategy, seed) };
            lost += run(&testbed, load, seed).1;
        }
    }
    assert!(lost > 0, "the run lost no packets");
}

/// Returns a load for two memory nodes. One memory node, chosen by the seed, may fail at any time and in any way.
fn replicated(strategy: Strategy, seed: u64) -> Load {
    let mut rng = Rng::new(seed ^ 0x7e91_1ca7);
    let how = match rng.below(4) {
        0 | 1 => How::Dies,
        2 => How::CutOff { clients: rng.below(32) as u32 },
        _ => How::Told,
    };
    let failure = Failure { node: rng.below(2) as usize, at_ns: rng.below(200_000), how };
    Load {
        operations: 20,
        death: (seed % 5 < 2).then_some(rng.below(100)),
        replicas: 2,
        failure: (!seed.is_multiple_of(4)).then_some(failure),
        ..Load::of(strategy, seed)
    }
}

fn replicable() -> impl Iterator<Item = Strategy> {
    Strategy::ALL.into_iter().filter(|strategy| strategy.is_replicable())
}

#[test]
fn a_memory_node_failure_keeps_the_store_linearizable() {
    for strategy in replicable() {
        for seed in seeds(200) {
            let load = replicated(strategy, seed);
            let (unanswered, dropped) = run(&t3(), load, seed);
            // Each client that does not die must get all its answers, whichever memory node fails.
            assert!(unanswered == 0 || load.death.is_some(), "{load:?}, seed {seed}: {unanswered}, {dropped}");
        }
    }
}

#[test]
fn two_memory_nodes_and_lost_packets() {
    let testbed = losing();
    let mut lost = 0;
    for strategy in replicable() {
        for seed in seeds(20) {
            lost += run(&testbed, replicated(strategy, seed), seed).1;
        }
    }
    assert!(lost > 0, "the run lost no packets");
}
