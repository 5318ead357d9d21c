//! Thousands of seeded runs with faults, in which many clients share one queue pair of a memory node. A failing run
//! prints its seed, with which it can be repeated exactly.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::common::seeds::{self, Plan};
use crate::common::world::{KEY, NODE, Patience, World, address_of_box};
use crate::common::{Link, Rng, Tally};
use doorbell_steer::{Config, Held, Limits, Steer};
use doorbell_testing::seeded_test;
use doorbell_verbs_core::{SendOperation, Status};
use doorbell_wire::{PathMtu, Qpn};

/// Number of words on which all clients run CASes. `ADD_WORD` is the offset of the word to which all clients add.
const CAS_WORDS: usize = 3;
const ADD_WORD: usize = 64;

/// Number of bytes that only one client writes. `OWN_FROM` is the offset of the first client's bytes.
const OWN_BYTES: usize = 8192;
const OWN_FROM: usize = 4096;

/// Maximum length of a READ or WRITE in bytes, which needs several packets.
const MOST_BYTES: usize = 3000;

/// Number of slots in a client's memory, one for each work request.
const PLACES: usize = 32;
const PLACE_BYTES: usize = 3072;

#[derive(Clone, Debug)]
enum Work {
    CompareSwap { word: usize, compare: u64, swap: u64 },
    Add { amount: u64 },
    Write { offset: usize, bytes: Vec<u8> },
    Read { offset: usize, expected: Vec<Option<u8>> },
}

struct Program {
    index: usize,
    qpn: Qpn,
    box_qpn: Qpn,
    /// Outstanding work requests, in the order of their posts.
    open: VecDeque<(u64, Work)>,
    next: u64,
    left: usize,
    /// The latest value that the client saw in each word.
    seen: [u64; CAS_WORDS],
    /// Expected values of the client's own bytes; `None` after a WRITE that failed.
    own: Vec<Option<u8>>,
    failed: bool,
}

/// Known results of all CASes. No two CASes have the same swap value.
#[derive(Default)]
struct History {
    /// Maps swap value to compare value, for CASes that succeeded. `unknown` contains the CASes that may have
    /// succeeded.
    succeeded: [BTreeMap<u64, u64>; CAS_WORDS],
    unknown: [BTreeMap<u64, u64>; CAS_WORDS],
    /// Values that failed CASes found.
    found: [HashSet<u64>; CAS_WORDS],
    /// Results of additions that succeeded: the value before, and the addend.
    added: Vec<(u64, u64)>,
    maybe_added: Vec<u64>,
}

impl History {
    fn take(&mut self, work: &Work, result: Option<u64>) {
        match (work, result) {
            (&Work::CompareSwap { word, compare, swap }, Some(prior)) if prior == compare => {
                self.succeeded[word].insert(swap, compare);
            }
            (&Work::CompareSwap { word, .. }, Some(prior)) => {
                self.found[word].insert(prior);
            }
            (&Work::CompareSwap { word, compare, swap }, None) => {
                self.unknown[word].insert(swap, compare);
            }
            (&Work::Add { amount }, Some(prior)) => self.added.push((prior, amount)),
            (&Work::Add { amount }, None) => self.maybe_added.push(amount),
            (Work::Write { .. } | Work::Read { .. }, _) => {}
        }
    }

    /// Checks that some order of the CASes on a word explains all results and the final value.
    fn check_word(&self, word: usize, last: u64) {
        let (succeeded, unknown) = (&self.succeeded[word], &self.unknown[word]);
        let mut path = HashSet::new();
        let mut at = last;
        while at != 0 {
            assert!(path.insert(at), "word {word}: {at:#x} was swapped in twice");
            let before = succeeded.get(&at).or(unknown.get(&at));
            at = *before.unwrap_or_else(|| panic!("word {word}: no CAS swapped {at:#x} in"));
        }
        let lost: Vec<_> = succeeded.keys().filter(|value| !path.contains(value)).collect();
        assert!(lost.is_empty(), "word {word}: CASes that succeeded are lost: {lost:x?}");
        let wrong: Vec<_> = self.found[word].iter().filter(|value| **value != 0 && !path.contains(value)).collect();
        assert!(wrong.is_empty(), "word {word}: CASes found values that the word never had: {wrong:x?}");
    }

    /// Checks that each addition took effect exactly once.
    fn check_sum(&self, last: u64) {
        let mut added = self.added.clone();
        added.sort_unstable();
        for pair in added.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two additions overlap: {:?}", pair);
        }
        let sure: u64 = added.iter().map(|(_, amount)| amount).sum();
        let most = sure + self.maybe_added.iter().sum::<u64>();
        assert!((sure..=most).contains(&last), "the sum is {last}, expected {sure} to {most}");
    }
}

struct Run {
    world: World,
    programs: Vec<Program>,
    history: History,
    depth: usize,
    patience: Patience,
    rng: Rng,
    limits: Limits,
}

impl Run {
    fn new(seed: u64, clients: usize, work: usize, patience: Patience, exclusive: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x7374_6565);
        let mtu = *rng.pick(&[PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096]);
        let limits = match rng.below(3) {
            // Limits so small that the box drops packets.
            0 => Limits {
                client_requests: 3,
                client_bytes: 8000,
                held_bytes: 20_000,
                window_bytes: 6_000,
                ..Limits::default()
            },
            _ => Limits::default(),
        };
        let steer = Steer::new(Config { seed: rng.next(), limits, ..Config::at(address_of_box()) });
        let node_bytes = OWN_FROM + clients * OWN_BYTES;
        let mut world = World::new(seed, clients, node_bytes, PLACES * PLACE_BYTES, steer, mtu);
        world.max_rd_atomic = rng.within(1, 8) as u8;
        world.exclusive = exclusive;
        world.marks = rng.below(2) * 100;
        let depth = rng.within(1, 8) as usize;
        let programs = (1..=clients)
            .map(|index| Program {
                index,
                qpn: Qpn::new(0),
                box_qpn: Qpn::new(0),
                open: VecDeque::new(),
                next: 0,
                left: work,
                seen: [0; CAS_WORDS],
                own: vec![Some(0); OWN_BYTES],
                failed: false,
            })
            .collect();
        let mut run = Self { world, programs, history: History::default(), depth, patience, rng, limits };
        run.world.attach();
        run.connect_all();
        run
    }

    fn connect_all(&mut self) {
        for at in 0..self.programs.len() {
            if self.world.devices[at + 1].alive {
                let (qpn, box_qpn) = self.world.connect(at + 1, self.patience);
                let program = &mut self.programs[at];
                (program.qpn, program.box_qpn, program.failed) = (qpn, box_qpn, false);
            }
        }
    }

    fn disturb(&mut self, most_loss: u64) {
        for at in 0..2 {
            let link = Link {
                latency_ns: self.rng.within(100, 20_000),
                jitter_ns: if self.rng.chance(500) { self.rng.below(40_000) } else { 0 },
                loss: if self.rng.chance(600) { self.rng.below(most_loss) } else { 0 },
                duplicate: if self.rng.chance(500) { self.rng.below(200) } else { 0 },
            };
            *(if at == 0 { &mut self.world.client_link } else { &mut self.world.node_link }) = link;
        }
    }

    /// Makes a client post requests while it has room.
    fn post(&mut self, at: usize) {
        while !self.programs[at].failed
            && self.world.devices[at + 1].alive
            && self.programs[at].left > 0
            && self.programs[at].open.len() < self.depth
        {
            let work = self.choose(at);
            let program = &mut self.programs[at];
            let (wr_id, index, qpn) = (program.next, program.index, program.qpn);
            let place = (wr_id as usize % PLACES) * PLACE_BYTES;
            let own = OWN_FROM + at * OWN_BYTES;
            let rkey = KEY;
            let (operation, length) = match &work {
                &Work::CompareSwap { word, compare, swap } => {
                    let remote_address = self.world.node_address(word * 8);
                    (SendOperation::CompareSwap { remote_address, rkey, compare, swap }, 8)
                }
                &Work::Add { amount } => (
                    SendOperation::FetchAdd { remote_address: self.world.node_address(ADD_WORD), rkey, add: amount },
                    8,
                ),
                Work::Write { offset, bytes } => {
                    self.world.devices[index].memory.write(place, bytes);
                    (SendOperation::Write { remote_address: self.world.node_address(own + offset), rkey }, bytes.len())
                }
                Work::Read { offset, expected } => (
                    SendOperation::Read { remote_address: self.world.node_address(own + offset), rkey },
                    expected.len(),
                ),
            };
            self.world.post(index, qpn, wr_id, operation, place, length);
            let program = &mut self.programs[at];
            program.next += 1;
            program.left -= 1;
            program.open.push_back((wr_id, work));
        }
    }

    fn choose(&mut self, at: usize) -> Work {
        let rng = &mut self.rng;
        let program = &mut self.programs[at];
        match rng.below(4) {
            0 => {
                let word = rng.below(CAS_WORDS as u64) as usize;
                let swap = (program.index as u64) << 32 | (program.next + 1);
                Work::CompareSwap { word, compare: program.seen[word], swap }
            }
            1 => Work::Add { amount: rng.within(1, 5) },
            kind => {
                let length = rng.below(MOST_BYTES as u64) as usize;
                let offset = rng.below((OWN_BYTES - length) as u64) as usize;
                // A repeated READ may return the result of a later WRITE.
                let reads = program.open.iter().any(|(_, work)| matches!(work, Work::Read { .. }));
                if kind == 2 && !reads {
                    let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
                    let own = &mut program.own[offset..offset + length];
                    own.iter_mut().zip(&bytes).for_each(|(own, byte)| *own = Some(*byte));
                    Work::Write { offset, bytes }
                } else {
                    Work::Read { offset, expected: program.own[offset..offset + length].to_vec() }
                }
            }
        }
    }

    /// Handles the completions of a client.
    fn reap(&mut self, at: usize) {
        for completion in self.world.devices[at + 1].reap() {
            let program = &mut self.programs[at];
            let (wr_id, work) = program.open.pop_front().expect("a completion for what was posted");
            assert_eq!(wr_id, completion.wr_id, "work requests complete in order");
            let memory = &self.world.devices[at + 1].memory;
            let place = (wr_id as usize % PLACES) * PLACE_BYTES;
            if completion.status != Status::Success {
                program.failed = true;
                if let Work::Write { offset, bytes } = &work {
                    program.own[*offset..offset + bytes.len()].fill(None);
                }
                self.history.take(&work, None);
                continue;
            }
            self.history.take(&work, Some(memory.word(place)));
            match &work {
                Work::CompareSwap { word, compare, swap } => {
                    let prior = memory.word(place);
                    program.seen[*word] = if prior == *compare { *swap } else { prior };
                }
                Work::Read { expected, .. } => {
                    let found = memory.read(place, expected.len());
                    let is_right = expected.iter().zip(&found).all(|(want, got)| want.is_none_or(|want| want == *got));
                    assert!(is_right, "client {}: a READ of {} bytes returned wrong bytes", at + 1, found.len());
                }
                Work::Add { .. } | Work::Write { .. } => {}
            }
        }
    }

    fn act(&mut self) {
        for at in 0..self.programs.len() {
            if self.world.devices[at + 1].alive {
                self.reap(at);
                self.post(at);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.programs.iter().enumerate().all(|(at, program)| {
            !self.world.devices[at + 1].alive || program.failed || (program.left == 0 && program.open.is_empty())
        })
    }

    fn step(&mut self) {
        self.act();
        self.check_bounds();
        assert!(self.world.step(), "no event remains, but the clients have work left");
    }

    fn finish(&mut self) {
        let mut steps = 0;
        self.act();
        while !self.is_done() {
            self.step();
            self.act();
            steps += 1;
            assert!(steps < 400_000, "the clients did not finish");
        }
    }

    /// Records that the outstanding requests of removed clients may have taken effect.
    fn bury(&mut self) {
        for program in &mut self.programs {
            program.open.drain(..).for_each(|(_, work)| self.history.take(&work, None));
        }
    }

    fn check_bounds(&self) {
        let Held { bytes, waiting, clients, .. } = self.world.steer.held();
        assert!(bytes <= self.limits.held_bytes, "the box holds {bytes} bytes, above its limit");
        assert!(waiting <= clients * self.limits.client_requests, "{waiting} requests wait, above the limit");
    }

    fn check_memory(&mut self) {
        self.bury();
        // Let late packets of removed clients arrive.
        for _ in 0..1000 {
            if !self.world.step() {
                break;
            }
        }
        let memory = &self.world.devices[NODE].memory;
        for word in 0..CAS_WORDS {
            self.history.check_word(word, memory.word(word * 8));
        }
        self.history.check_sum(memory.word(ADD_WORD));
        for (at, program) in self.programs.iter().enumerate().filter(|(at, _)| self.world.devices[at + 1].alive) {
            let found = memory.read(OWN_FROM + at * OWN_BYTES, OWN_BYTES);
            let is_right = program.own.iter().zip(&found).all(|(want, got)| want.is_none_or(|want| want == *got));
            assert!(is_right, "the node lacks bytes that client {} wrote", at + 1);
        }
    }

    fn tally(mut self) -> Tally {
        self.world.tally.counters(self.world.steer.counters());
        self.world.tally
    }
}

const PATIENT: Patience = Patience { timeout: 14, retry_count: 7 };

fn faults(seed: u64) -> Tally {
    let mut rng = Rng::new(seed);
    let clients = rng.within(1, 5) as usize;
    let mut run = Run::new(seed, clients, 60 / clients + 3, PATIENT, rng.chance(500));
    run.disturb(120);
    run.finish();
    let failed: Vec<_> = run.programs.iter().filter(|program| program.failed).map(|program| program.index).collect();
    assert!(failed.is_empty(), "clients failed: {failed:?}");
    run.check_memory();
    let held = run.world.steer.held();
    assert_eq!(held, Held { clients, ..Held::default() }, "the box holds answered requests");
    run.tally()
}

/// Removes a client at a random moment. The other clients must not be affected.
fn vanish(seed: u64) -> Tally {
    let mut rng = Rng::new(seed ^ 0x7661);
    let clients = rng.within(2, 4) as usize;
    let mut run = Run::new(seed, clients, 20, PATIENT, rng.chance(500));
    run.disturb(80);
    for _ in 0..rng.below(150) {
        if run.is_done() {
            break;
        }
        run.step();
    }
    let victim = rng.below(clients as u64) as usize;
    run.world.devices[victim + 1].alive = false;
    run.world.tally.hit("life: client vanished");
    let open = run.world.steer.held().incomplete;
    run.world.tally.add("life: with a message that is incomplete", open as u64);
    if rng.chance(500) {
        run.world.steer.disconnect(run.programs[victim].box_qpn);
        run.world.tally.hit("life: client disconnected");
    }
    run.finish();
    let failed = run.programs.iter().enumerate().filter(|(at, program)| *at != victim && program.failed).count();
    assert_eq!(failed, 0, "another client failed");
    run.check_memory();
    run.tally()
}

/// Replaces the box by a new one without state. The queue pairs of all clients fail, the clients connect again, and all
/// results must still be correct.
fn restart(seed: u64) -> Tally {
    let mut rng = Rng::new(seed ^ 0x7265);
    let clients = rng.within(1, 4) as usize;
    let mut run = Run::new(seed, clients, 25, Patience { timeout: 8, retry_count: 5 }, rng.chance(500));
    run.disturb(30);
    for _ in 0..rng.below(200) {
        run.step();
        if run.is_done() {
            break;
        }
    }
    run.world.tally.hit("life: box restarted");
    let counters = *run.world.steer.counters();
    run.world.tally.counters(&counters);
    let config = *run.world.steer.config();
    run.world.steer = Steer::new(Config { seed: rng.next(), ..config });
    run.finish();
    for program in &mut run.programs {
        assert!(program.failed || program.left == 0, "a client of the lost box neither failed nor was done");
    }
    // Outstanding requests at the node are lost, since the node gets a new queue pair.
    run.world.attach();
    run.patience = PATIENT;
    run.bury();
    run.connect_all();
    run.finish();
    run.check_memory();
    run.tally()
}

#[test]
fn clients_behind_one_queue_pair_are_served_once_and_in_order() {
    let met = seeds::for_seeds(
        seeded_test!("clients_behind_one_queue_pair"),
        Plan { fixed: 2_000, fresh: 400, stored: &[] },
        faults,
    );
    if let Some(met) = met {
        met.assert_met(&[
            "fault: packet lost",
            "fault: packet duplicated",
            "packets of requests sent to the memory node again",
            "acknowledgements of the memory node for requests of several clients",
            "requests that a client sent again",
            "READs executed again because a client lost the response",
            "requests that arrived ahead of a lost request",
            "NAKs for lost requests sent to clients",
            "NAKs for lost requests received from the memory node",
            "responses of the memory node that were lost and requested again",
            "times that the memory node did not answer in time",
            "CASes sent to the memory node as WRITEs",
            "requests dropped because a limit of the client or of the box was reached",
        ]);
    }
}

#[test]
fn a_client_that_vanishes_does_not_affect_others() {
    let met = seeds::for_seeds(
        seeded_test!("a_client_that_vanishes"),
        Plan { fixed: 1_000, fresh: 200, stored: &[] },
        vanish,
    );
    if let Some(met) = met {
        met.assert_met(&["life: client vanished", "life: with a message that is incomplete"]);
    }
}

#[test]
fn a_box_that_loses_its_state_only_ends_connections() {
    let met = seeds::for_seeds(
        seeded_test!("a_box_that_loses_its_state"),
        Plan { fixed: 600, fresh: 120, stored: &[] },
        restart,
    );
    if let Some(met) = met {
        met.assert_met(&["life: box restarted", "packets for a queue pair that the box does not have"]);
    }
}
