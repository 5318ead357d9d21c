//! A store of version chains behind a box that steers. The clients never update their caches. At the end, the test
//! checks the chains, and that each get returned a value that was current at some time during the get.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::seeds::{self, Plan};
use crate::common::world::{KEY, NODE, Patience, World, address_of_box};
use crate::common::{Link, Rng, Tally};
use doorbell_steer::{Config, Layout, Limits, Steer};
use doorbell_testing::seeded_test;
use doorbell_verbs_core::{SendOperation, Status};
use doorbell_wire::{PathMtu, Qpn, RKey};

/// Length of a node in bytes: word, own address, key, version, checksum, and a payload. A node is longer than the
/// smallest path MTU.
const NODE_BYTES: usize = 320;
const HEADER_BYTES: usize = 40;

const TAIL: u64 = 1 << 62;
const LINK: u64 = 2 << 62;
const KIND: u64 = 3 << 62;

/// Number of nodes of each client.
const NODES_PER_CLIENT: usize = 40;

#[derive(Debug)]
struct Chains;

impl Layout for Chains {
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]> {
        (start.len() >= HEADER_BYTES).then(|| &start[16..24])
    }

    fn word_offset(&self) -> u64 {
        0
    }

    fn least_read(&self, _: usize) -> u32 {
        HEADER_BYTES as u32
    }

    fn is_tail(&self, word: u64) -> bool {
        word & KIND == TAIL
    }

    fn next(&self, word: u64) -> Option<u64> {
        (word & KIND == LINK).then_some(word & !KIND)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cached {
    address: u64,
    version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    /// The client has posted the WRITE of a node and, with `chained`, the CAS after the WRITE.
    Writing,
    Swapping,
    Reading,
}

/// An append of a node to a chain. The times are those of its first CAS and of the completion that showed the outcome.
#[derive(Clone, Copy, Debug)]
struct Append {
    key: u64,
    from_ns: u64,
    to_ns: u64,
    /// Address of the previous node in the chain, if the append succeeded.
    behind: Option<u64>,
}

struct Program {
    index: usize,
    qpn: Qpn,
    rkey: RKey,
    step: Step,
    key: u64,
    /// Address of the node that the client appends now. `version` is this node's version.
    node: u64,
    version: u64,
    started_ns: u64,
    cache: Vec<Cached>,
    used: usize,
    left: usize,
    next: u64,
    retries: usize,
    vanished: bool,
}

struct Store {
    world: World,
    programs: Vec<Program>,
    rng: Rng,
    first: Vec<u64>,
    appends: BTreeMap<u64, Append>,
    /// Each get: time of its begin, time of its end, the key, and the address of the node that it returned as the
    /// newest.
    gets: Vec<(u64, u64, u64, u64)>,
    chained: bool,
}

/// Returns the word that marks a node as the last one of its chain.
fn tail(address: u64, version: u64) -> u64 {
    assert!(address < 1 << 48 && version < 1 << 14, "address and version fit into one word");
    TAIL | version << 48 | address
}

/// Returns the address in a word, which either marks the last node or names the next node.
fn address_in(word: u64) -> u64 {
    word & ((1 << 48) - 1)
}

fn lay_out(address: u64, key: u64, version: u64) -> Vec<u8> {
    let mut node = vec![0; NODE_BYTES];
    for (at, word) in [tail(address, version), address, key, version, address ^ key ^ version].into_iter().enumerate() {
        node[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    node[HEADER_BYTES..].fill((address >> 6 ^ version) as u8);
    node
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"))
}

/// Returns the parts of a node that a READ returned, if the node is intact: address, key, version and word.
fn parse(node: &[u8]) -> Option<(u64, u64, u64, u64)> {
    let (address, key, version) = (word(node, 1), word(node, 2), word(node, 3));
    let body = node[HEADER_BYTES..].iter().all(|byte| *byte == (address >> 6 ^ version) as u8);
    (body && word(node, 4) == address ^ key ^ version).then_some((address, key, version, word(node, 0)))
}

impl Store {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7374_6f72);
        let (clients, keys) = (rng.within(2, 5) as usize, rng.within(1, 3));
        let mtu = *rng.pick(&[PathMtu::Mtu256, PathMtu::Mtu1024]);
        // In some runs, the tables are so small that entries replace each other all the time.
        let limits = Limits { keys: *rng.pick(&[1, 2, 64]), words: *rng.pick(&[1, 4, 256]), ..Limits::default() };
        let config = Config { seed: rng.next(), limits, ..Config::at(address_of_box()) };
        let steer = Steer::with_layout(config, Box::new(Chains));
        let node_bytes = (1 + clients * NODES_PER_CLIENT + keys as usize) * 512;
        let mut world = World::new(seed, clients, node_bytes, (NODES_PER_CLIENT + 8) * 512, steer, mtu);
        let past_box = rng.chance(250);
        world.exclusive = !past_box && rng.chance(500);
        world.attach();
        let patience = Patience { timeout: 14, retry_count: 7 };
        let mut programs = Vec::new();
        for index in 1..=clients {
            // The last client may bypass the box. Then some knowledge of the box is wrong.
            let (qpn, rkey) = if past_box && index == clients {
                world.tally.hit("life: client past the box");
                (world.connect_past_box(index, patience), world.devices[NODE].region.rkey())
            } else {
                (world.connect(index, patience).0, KEY)
            };
            let (step, left) = (Step::Idle, rng.within(8, NODES_PER_CLIENT as u64 - 4) as usize);
            let (cache, vanished) = (Vec::new(), false);
            programs.push(Program {
                index,
                qpn,
                rkey,
                step,
                key: 0,
                node: 0,
                version: 0,
                started_ns: 0,
                cache,
                used: 0,
                left,
                next: 0,
                retries: 0,
                vanished,
            });
        }
        // Blocks of memory are aligned to 16 bytes, but nodes need 64 bytes.
        let base = world.node_address(0).next_multiple_of(64);
        let chained = rng.chance(500);
        let (appends, gets) = (BTreeMap::new(), Vec::new());
        let first: Vec<_> = (0..keys).map(|key| base + (clients * NODES_PER_CLIENT) as u64 * 512 + key * 512).collect();
        let mut store = Self { world, programs, rng, first, appends, gets, chained };
        store.populate();
        store
    }

    /// WRITEs the first node of each key through the box, as the first client.
    fn populate(&mut self) {
        for key in 0..self.first.len() as u64 {
            let node = self.first[key as usize];
            self.write(0, node, key, 1);
            while self.world.devices[1].reap().is_empty() {
                assert!(self.world.step(), "the WRITE did not complete");
            }
        }
        let cache: Vec<_> = self.first.iter().map(|address| Cached { address: *address, version: 1 }).collect();
        self.programs.iter_mut().for_each(|program| program.cache = cache.clone());
    }

    /// Returns the offset of the buffer for a client's next request. Eight buffers are used in turn.
    fn place(&self, at: usize) -> usize {
        (self.programs[at].next as usize % 8) * 512
    }

    fn post(&mut self, at: usize, operation: SendOperation, length: usize) {
        let (index, qpn, wr_id, place) =
            (self.programs[at].index, self.programs[at].qpn, self.programs[at].next, self.place(at));
        self.world.post(index, qpn, wr_id, operation, place, length);
        self.programs[at].next += 1;
    }

    fn write(&mut self, at: usize, address: u64, key: u64, version: u64) {
        let place = self.place(at);
        self.world.devices[at + 1].memory.write(place, &lay_out(address, key, version));
        let rkey = self.programs[at].rkey;
        self.post(at, SendOperation::Write { remote_address: address, rkey }, NODE_BYTES);
    }

    fn read(&mut self, at: usize) {
        let program = &self.programs[at];
        let (rkey, remote_address) = (program.rkey, program.cache[program.key as usize].address);
        self.post(at, SendOperation::Read { remote_address, rkey }, NODE_BYTES);
    }

    fn swap(&mut self, at: usize) {
        let Program { rkey, key, node, .. } = self.programs[at];
        let Cached { address, version } = self.programs[at].cache[key as usize];
        let (compare, swap) = (tail(address, version), LINK | node);
        self.post(at, SendOperation::CompareSwap { remote_address: address, rkey, compare, swap }, 8);
    }

    fn begin(&mut self, at: usize) {
        let clients = self.world.node_address(0).next_multiple_of(64);
        let now_ns = self.world.now_ns;
        let keys = self.first.len() as u64;
        let program = &mut self.programs[at];
        program.left -= 1;
        program.started_ns = now_ns;
        program.retries = 0;
        program.key = self.rng.below(keys);
        if self.rng.chance(500) {
            program.step = Step::Reading;
            return self.read(at);
        }
        program.node = clients + (at * NODES_PER_CLIENT + program.used) as u64 * 512;
        program.version += 2;
        program.used += 1;
        program.step = Step::Writing;
        let (node, key, version) = (program.node, program.key, program.version);
        self.write(at, node, key, version);
        if self.chained {
            self.swap(at);
        }
    }

    fn end_append(&mut self, at: usize, behind: Option<u64>) {
        let Program { node, key, version, started_ns, .. } = self.programs[at];
        let append = Append { key, from_ns: started_ns, to_ns: self.world.now_ns, behind };
        self.appends.insert(node, append);
        let program = &mut self.programs[at];
        program.step = Step::Idle;
        if behind.is_some() {
            program.cache[key as usize] = Cached { address: node, version };
        } else {
            // No client has read the node, so the client's next append may use it again, for any key.
            program.used -= 1;
        }
    }

    /// Handles the completion of a client's request. The request's buffer is at offset `place`.
    fn completed(&mut self, at: usize, place: usize) {
        let now_ns = self.world.now_ns;
        let found = self.world.devices[at + 1].memory.read(place, NODE_BYTES);
        let key = self.programs[at].key;
        let cached = self.programs[at].cache[key as usize];
        match self.programs[at].step {
            Step::Writing => {
                self.programs[at].step = Step::Swapping;
                if !self.chained {
                    self.swap(at);
                }
            }
            Step::Swapping => {
                let prior = word(&found, 0);
                self.world.tally.hit("store: CAS");
                // If the word is the tail word of another node, the box steered the CAS to that node, and the CAS
                // succeeded.
                let behind = address_in(prior);
                if prior & KIND == TAIL && (prior == tail(cached.address, cached.version) || behind != cached.address) {
                    self.world.tally.hit(if behind == cached.address {
                        "store: CAS here"
                    } else {
                        "store: CAS elsewhere"
                    });
                    return self.end_append(at, Some(behind));
                }
                self.world.tally.hit("store: CAS that failed");
                self.programs[at].retries += 1;
                if self.programs[at].retries > 2 {
                    return self.end_append(at, None);
                }
                if prior & KIND == LINK {
                    self.programs[at].cache[key as usize].address = prior & !KIND;
                }
                // The word does not contain the version of the next node, so read the node.
                self.programs[at].step = Step::Reading;
                self.read(at);
            }
            Step::Reading => {
                let is_append = self.programs[at].retries > 0;
                match parse(&found) {
                    Some((address, of, version, tail)) if of == key => {
                        self.programs[at].cache[key as usize] = Cached { address, version };
                        if tail & KIND == LINK {
                            self.programs[at].cache[key as usize].address = tail & !KIND;
                            return self.read(at);
                        }
                        if is_append {
                            self.programs[at].step = Step::Swapping;
                            return self.swap(at);
                        }
                        self.gets.push((self.programs[at].started_ns, now_ns, key, address));
                        self.programs[at].step = Step::Idle;
                    }
                    Some((address, of, ..)) => {
                        panic!("client {}: {address:#x} is a node of key {of}, not of {key}", at + 1)
                    }
                    None => {
                        self.world.tally.hit("store: torn READ");
                        self.read(at);
                    }
                }
            }
            Step::Idle => panic!("a completion without a request"),
        }
    }

    fn act(&mut self) {
        for at in 0..self.programs.len() {
            if self.programs[at].vanished {
                continue;
            }
            for completion in self.world.devices[at + 1].reap() {
                assert_eq!(completion.status, Status::Success, "client {}", at + 1);
                self.completed(at, (completion.wr_id as usize % 8) * 512);
            }
            let program = &self.programs[at];
            if program.step == Step::Idle && program.left > 0 {
                self.begin(at);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.programs.iter().all(|program| program.vanished || (program.step == Step::Idle && program.left == 0))
    }

    fn finish(&mut self) {
        let mut steps = 0;
        self.act();
        while !self.is_done() {
            assert!(self.world.step(), "no event remains, but the clients have work left");
            self.act();
            steps += 1;
            assert!(steps < 400_000, "the clients did not finish");
        }
    }

    /// Removes a client. Its outstanding requests may have taken effect.
    fn vanish(&mut self, at: usize) {
        self.programs[at].vanished = true;
        self.world.devices[at + 1].alive = false;
        self.world.tally.hit("life: client vanished");
    }

    fn check(&mut self) {
        for _ in 0..2000 {
            if !self.world.step() {
                break;
            }
        }
        let base = self.world.node_address(0);
        let maybe: BTreeSet<u64> = self.programs.iter().filter(|program| program.vanished).map(|p| p.node).collect();
        let mut linked = BTreeSet::new();
        for key in 0..self.first.len() as u64 {
            let mut chain = Vec::new();
            let mut at = self.first[key as usize];
            loop {
                let node = self.world.devices[NODE].memory.read((at - base) as usize, NODE_BYTES);
                let (address, of, _, tail) = parse(&node).expect("a node of a chain is intact");
                assert_eq!((address, of), (at, key), "a chain has a node of another key");
                assert!(linked.insert(at), "a node is in a chain twice or in two chains");
                chain.push(at);
                if tail & KIND != LINK {
                    break;
                }
                at = tail & !KIND;
            }
            for at in &chain[1..] {
                let told = self.appends.get(at).is_some_and(|append| append.behind.is_some() && append.key == key);
                assert!(
                    told || maybe.contains(at),
                    "node {at:#x} is in the chain of key {key}, but its client did not append it"
                );
            }
            for pair in chain.windows(2) {
                let behind = self.appends.get(&pair[1]).and_then(|append| append.behind);
                assert!(
                    behind.is_none_or(|behind| behind == pair[0]),
                    "key {key}: by its CAS {:#x} follows {behind:#x?}, but in the chain it follows {:#x}",
                    pair[1],
                    pair[0]
                );
            }
            // If one append ended before another began, the first append's node must come first in the chain.
            let known: Vec<_> =
                chain.iter().filter_map(|at| self.appends.get(at).filter(|append| append.behind.is_some())).collect();
            for (place, earlier) in known.iter().enumerate() {
                for later in &known[place + 1..] {
                    assert!(
                        later.to_ns >= earlier.from_ns,
                        "key {key}: {later:?} ended before {earlier:?} began, but follows it"
                    );
                }
            }
            // A get must see each append that ended before the get began, and no append that began after the get ended.
            for &(from_ns, to_ns, _, found) in self.gets.iter().filter(|(_, _, of, _)| *of == key) {
                let place = chain.iter().position(|at| *at == found).expect("a get finds a node of the chain");
                if let Some(append) = self.appends.get(&found) {
                    assert!(append.from_ns <= to_ns, "key {key}: a get found a node before its append began");
                }
                for later in chain[place + 1..].iter().filter_map(|at| self.appends.get(at)) {
                    assert!(
                        later.behind.is_none() || later.to_ns >= from_ns,
                        "key {key}: a get from {from_ns} to {to_ns} missed {later:?}"
                    );
                }
            }
        }
        let lost: Vec<_> =
            self.appends.iter().filter(|(at, append)| append.behind.is_some() && !linked.contains(at)).collect();
        assert!(lost.is_empty(), "appends that succeeded are in no chain: {lost:?}");
    }
}

fn run(seed: u64) -> Tally {
    let mut rng = Rng::new(seed);
    let mut store = Store::new(seed);
    if !seed.is_multiple_of(4) {
        for at in 0..2 {
            let link = Link {
                latency_ns: rng.within(100, 20_000),
                jitter_ns: if rng.chance(500) { rng.below(40_000) } else { 0 },
                loss: if rng.chance(600) { rng.below(100) } else { 0 },
                duplicate: if rng.chance(500) { rng.below(200) } else { 0 },
            };
            *(if at == 0 { &mut store.world.client_link } else { &mut store.world.node_link }) = link;
        }
    }
    if rng.chance(250) {
        for _ in 0..rng.below(300) {
            store.act();
            if store.is_done() || !store.world.step() {
                break;
            }
        }
        let victim = rng.below(store.programs.len() as u64) as usize;
        store.vanish(victim);
    }
    store.finish();
    store.check();
    store.world.tally.counters(store.world.steer.counters());
    store.world.tally
}

#[test]
fn a_store_behind_the_box_is_linearizable() {
    let met =
        seeds::for_seeds(seeded_test!("a_store_behind_the_box"), Plan { fixed: 3_000, fresh: 600, stored: &[] }, run);
    if let Some(met) = met {
        met.assert_met(&[
            "READs steered to the newest node of their key",
            "CASes steered to the newest node of their key",
            "CASes sent to the memory node as WRITEs",
            "CASes held until another CAS to the same key was answered",
            "keys forgotten because another key took their place in the table",
            "life: client past the box",
            "life: client vanished",
            "store: CAS that failed",
        ]);
    }
}
