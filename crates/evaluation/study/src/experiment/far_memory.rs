//! Experiments on memory that several clients share. The CPU of the memory node takes no part in most of them.

use doorbell_farmem::Strategy;
use doorbell_farmem::workload::most_clients;

use super::operations::operation;
use super::sweep::{Effort, Experiment, FAR_MEMORY, Point};
use doorbell_record::Figure::{
    BytesOverLeast, ClientCores, ClientFairness, GetMedian, GetP99, GetP999, GetSuccess, InOrder, LargestGap, MeanGap,
    MemoryCores, OthersRate, ProbeLatency, PutAtOnce, PutAttempts, PutMedian, PutP99, PutP999, PutSuccess,
    SameAddressOutOfOrder, Torn, TornAt, TornAtPackets,
};
use doorbell_record::Quantity::{self, Far, MeanLatency, MessageRate};
use doorbell_record::{
    FarPoint, HotPoint, Kind, Operation, OrderPoint, Parameters, ScopePoint, StorePoint, TearingPoint, Way,
};

/// Number of queue pairs in experiments that do not sweep this number. It is the published number.
const PAIRS: usize = 20;

/// Numbers of clients in the published runs.
const PUBLISHED_CLIENTS: [usize; 2] = [64, 128];

const RATE: &[Quantity] = &[MessageRate, MeanLatency];
const ORDER: &[Quantity] = &[Far(InOrder), Far(LargestGap), Far(MeanGap), Far(SameAddressOutOfOrder), MessageRate];
const TEARING: &[Quantity] = &[Far(Torn), Far(TornAt), Far(TornAtPackets), MessageRate];
const SCOPE: &[Quantity] = &[Far(ProbeLatency), Far(OthersRate)];
const STORE: &[Quantity] = &[
    MessageRate,
    Far(PutP99),
    Far(GetP99),
    Far(PutMedian),
    Far(GetMedian),
    Far(PutP999),
    Far(GetP999),
    Far(BytesOverLeast),
    Far(PutAttempts),
    Far(PutAtOnce),
    Far(ClientFairness),
    Far(MemoryCores),
    Far(ClientCores),
];
const LOAD: &[Quantity] = &[
    Far(PutP99),
    Far(GetP99),
    MessageRate,
    Far(PutMedian),
    Far(GetMedian),
    Far(PutP999),
    Far(GetP999),
    Far(BytesOverLeast),
    Far(PutAttempts),
    Far(ClientFairness),
];
const CONTENTION: &[Quantity] = &[
    Far(PutSuccess),
    Far(GetSuccess),
    Far(BytesOverLeast),
    Far(PutP99),
    Far(GetP99),
    Far(PutAtOnce),
    MessageRate,
    Far(ClientFairness),
];

/// Returns all experiments on shared memory.
pub(super) fn experiments(effort: Effort) -> [Experiment; 13] {
    [
        concurrency(effort),
        queue_pairs(effort),
        reordering(effort),
        tearing(effort),
        atomics_scope(effort),
        hot_address(effort),
        contention(effort),
        strategies(effort),
        skew(effort),
        clients(effort),
        values(effort),
        keys(effort),
        load(effort),
    ]
}

fn concurrency(effort: Effort) -> Experiment {
    let outstanding = effort.pick(
        vec![1, 20, 80, 320],
        vec![1, 5, 20, 40, 80, 160, 320, 500],
        vec![1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 500],
    );
    let mut points = Vec::new();
    for (series, of, addresses) in [
        ("READ", Operation::Read, None),
        ("WRITE", Operation::Write, None),
        ("CAS", Operation::CompareSwap, None),
        ("CAS, one address", Operation::CompareSwap, Some(1)),
    ] {
        for &all in &outstanding {
            let pairs = all.min(PAIRS);
            let base = operation(effort, of, 8, all / pairs, pairs);
            points.push(Point::new(series, all, Parameters { addresses, ..on_threads(base) }));
        }
    }
    Experiment::new(
        "far-memory/concurrency",
        "How many operations on shared memory go through, and does CAS keep up?",
        "8 B, one operation per post. Up to 20 outstanding operations, each has its own queue pair; more are spread over \
         20. Each queue pair has a thread. CAS goes to one word per queue pair, or to a single word",
        "operations outstanding",
        RATE,
        points,
    )
}

fn queue_pairs(effort: Effort) -> Experiment {
    let counts =
        effort.pick(vec![1, 4, 7, 16], vec![1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16], (1..=16).collect::<Vec<usize>>());
    let points = counts
        .into_iter()
        .map(|pairs| Point::new("WRITE, inline", pairs, on_threads(operation(effort, Operation::Write, 8, 64, pairs))));
    Experiment::new(
        "far-memory/queue-pairs",
        "How many queue pairs saturate a NIC?",
        "inline WRITEs of 8 B, 64 outstanding on each queue pair, one per post; each queue pair has a thread",
        "queue pairs",
        RATE,
        points.collect(),
    )
}

/// Sets the number of threads to the number of queue pairs.
fn on_threads(parameters: Parameters) -> Parameters {
    let mut parameters = parameters;
    parameters.serving.threads = parameters.connections;
    parameters
}

const WORDS: [(&str, Operation); 3] =
    [("READ", Operation::Read), ("WRITE", Operation::Write), ("CAS", Operation::CompareSwap)];

/// Returns a point on shared memory, with operations of `bytes` bytes.
fn far(effort: Effort, series: impl Into<String>, x: f64, bytes: usize, far: FarPoint) -> Point {
    let base = Point::parameters(effort, Kind::Bandwidth, Operation::Write, bytes);
    Point { series: series.into(), x, parameters: Parameters { far: Some(Box::new(far)), ..base } }
}

fn reordering(effort: Effort) -> Experiment {
    let requests = effort.pick(4000, 20_000, 200_000);
    let mut points = Vec::new();
    for (series, operation) in WORDS {
        for queue_pairs in [1, 8, 16, 32] {
            let order = OrderPoint {
                operation,
                queue_pairs,
                addresses: 1024,
                zipf: 0.99,
                rate_per_s: 1e6,
                outstanding: 16,
                requests,
            };
            points.push(far(effort, series, queue_pairs as f64, 8, FarPoint::Order(order)));
        }
    }
    Experiment::new(
        "far-memory/reordering",
        "In which order are requests of several queue pairs served?",
        "1 M requests/s of 8 B to 1,024 addresses, Zipf 0.99, numbered as they pass the switch. Each queue pair posts its \
         next request after a pause, uniform from 0 to twice its mean, if fewer than 16 are outstanding",
        "queue pairs",
        ORDER,
        points,
    )
}

fn tearing(effort: Effort) -> Experiment {
    let reads = effort.pick(1000, 5000, 50_000);
    let sizes = effort.pick(
        vec![8, 1024, 4096],
        vec![8, 64, 256, 1024, 2048, 4096],
        vec![8, 16, 64, 256, 512, 1024, 2048, 4096],
    );
    let mut points = Vec::new();
    for (series, mtu) in [("path MTU 256", 256), ("path MTU 1024", 1024), ("path MTU 4096", 4096)] {
        for &bytes in &sizes {
            let tearing = TearingPoint { bytes, mtu, reads };
            points.push(far(effort, series, bytes as f64, bytes, FarPoint::Tearing(tearing)));
        }
    }
    Experiment::new(
        "far-memory/tearing",
        "Does a READ return words of different WRITEs?",
        "one queue pair WRITEs an object without a pause, its number in every word; another READs it; one operation \
         outstanding on each",
        "object, B",
        TEARING,
        points,
    )
}

fn atomics_scope(effort: Effort) -> Experiment {
    let operations = effort.pick(200, 1000, 10_000);
    let distances = effort.pick(vec![0, 64], vec![0, 8, 64, 4096], vec![0, 8, 64, 512, 4096, 65_536]);
    let mut points = Vec::new();
    for (beside, others) in [("alone", 0), ("beside CASes", PAIRS - 1)] {
        for (word, operation) in WORDS {
            for &distance in &distances {
                let scope = ScopePoint { operation, distance, others, outstanding: 16, operations };
                points.push(far(effort, format!("{word} {beside}"), distance as f64, 8, FarPoint::Scope(scope)));
            }
        }
    }
    Experiment::new(
        "far-memory/atomics-scope",
        "Does a CAS block only its address, its neighbours too, or everything?",
        "one queue pair with one operation of 8 B at a time, alone or beside 19 queue pairs with 16 CASes each on one word",
        "bytes from the word that is CASed",
        SCOPE,
        points,
    )
}

fn hot_address(effort: Effort) -> Experiment {
    let operations = effort.pick(2000, 10_000, 100_000);
    let counts = effort.pick(vec![1, 16], vec![1, 2, 4, 8, 16, 32], vec![1, 2, 4, 8, 16, 32, 64]);
    let mut points = Vec::new();
    for (series, way) in [
        ("straight", Way::Straight),
        ("through a middlebox", Way::Box),
        ("through a middlebox, as WRITEs", Way::BoxToWrite),
    ] {
        for &clients in &counts {
            let hot = HotPoint { clients, outstanding: 16, operations, way };
            points.push(far(effort, series, clients as f64, 8, FarPoint::Hot(hot)));
        }
    }
    Experiment::new(
        "far-memory/hot-address",
        "How much does a middlebox gain if it turns CASes on one address into WRITEs?",
        "each client on its own host, 16 CASes outstanding, all on one word that was written before; the middlebox has one \
         queue pair to the memory",
        "clients",
        &[MessageRate],
        points,
    )
}

fn store(effort: Effort, series: String, x: f64, point: StorePoint) -> Point {
    let measure_us = effort.pick(500.0, 4000.0, 10_000.0);
    let point = StorePoint { warm_up_us: measure_us / 10.0, measure_us, ..point };
    far(effort, series, x, point.value_bytes, FarPoint::Store(point))
}

fn contention(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for clients in PUBLISHED_CLIENTS {
        for strategy in [Strategy::Optimistic, Strategy::Steered] {
            for write_percent in effort.pick(vec![50.0], vec![5.0, 50.0, 100.0], vec![5.0, 25.0, 50.0, 75.0, 100.0]) {
                let load = StorePoint { write_percent, ..StorePoint::published(strategy, clients) };
                points.push(store(effort, format!("{}, {clients} clients", strategy.name()), write_percent, load));
            }
        }
    }
    Experiment::new(
        "far-memory/contention",
        "How much do clients lose if all of them try at the same time?",
        "1,024 keys, Zipf 0.99, values of 1 KiB, two hosts. Between two operations a client pauses for 0.2 us for each \
         client, fitted to the published shares of CASes that succeed",
        "puts, %",
        CONTENTION,
        points,
    )
}

/// Returns the points of a sweep over one parameter of a workload, for all strategies. `with` sets the parameter.
fn sweep(effort: Effort, values: Vec<f64>, with: impl Fn(f64, StorePoint) -> StorePoint) -> Vec<Point> {
    let of = |strategy: Strategy| {
        let base = StorePoint { strategy, ..StorePoint::default() };
        values.iter().map(|&x| store(effort, strategy.name().to_owned(), x, with(x, base.clone()))).collect::<Vec<_>>()
    };
    Strategy::ALL.into_iter().flat_map(of).collect()
}

fn strategies(effort: Effort) -> Experiment {
    let puts = effort.pick(vec![5.0, 100.0], vec![0.0, 5.0, 50.0, 100.0], vec![0.0, 5.0, 25.0, 50.0, 75.0, 100.0]);
    Experiment::new(
        "far-memory/strategies",
        "Which strategy, by the share of puts?",
        "64 clients on two hosts, 1,024 keys, Zipf 0.99, values of 128 B, one operation at a time; YCSB C has no puts, B \
         5 %, A 50 %",
        "puts, %",
        STORE,
        sweep(effort, puts, |write_percent, base| StorePoint { write_percent, ..base }),
    )
}

fn skew(effort: Effort) -> Experiment {
    let skews =
        effort.pick(vec![0.0, 1.2], vec![0.0, 0.6, 0.9, 0.99, 1.2, 1.5], vec![0.0, 0.3, 0.6, 0.9, 0.99, 1.2, 1.5]);
    Experiment::new(
        "far-memory/skew",
        "Which strategy, by how unlike the keys are?",
        "half puts, 64 clients on two hosts, 1,024 keys, values of 128 B, one operation at a time",
        "Zipf exponent",
        STORE,
        sweep(effort, skews, |zipf, base| StorePoint { zipf, ..base }),
    )
}

fn clients(effort: Effort) -> Experiment {
    let counts = effort.pick(
        vec![16.0],
        vec![1.0, 4.0, 16.0, 64.0, 128.0, 256.0],
        vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
    );
    Experiment::new(
        "far-memory/clients",
        "Which strategy, by the number of clients?",
        "half puts, two hosts, 1,024 keys, Zipf 0.99, values of 128 B, one operation at a time",
        "clients",
        STORE,
        sweep(effort, counts, |clients, base| {
            let clients = clients as usize;
            StorePoint { clients, hosts: base.hosts.min(clients), ..base }
        }),
    )
}

fn values(effort: Effort) -> Experiment {
    let sizes = effort.pick(vec![1024.0], vec![8.0, 128.0, 1024.0], vec![8.0, 128.0, 1024.0, 4096.0]);
    Experiment::new(
        "far-memory/values",
        "Which strategy, by the bytes of a value?",
        "half puts, 64 clients on two hosts, 1,024 keys, Zipf 0.99, one operation at a time",
        "value, B",
        STORE,
        sweep(effort, sizes, |bytes, base| StorePoint { value_bytes: bytes as usize, ..base }),
    )
}

fn keys(effort: Effort) -> Experiment {
    let counts = effort.pick(vec![100_000.0], vec![1024.0, 100_000.0], vec![64.0, 1024.0, 10_000.0, 100_000.0, 1e7]);
    Experiment::new(
        "far-memory/keys",
        "Which strategy, by the number of keys?",
        "half puts, 64 clients on two hosts, Zipf 0.99, values of 128 B, one operation at a time",
        "keys",
        STORE,
        sweep(effort, counts, |keys, base| StorePoint { keys: keys as u64, ..base }),
    )
}

/// Maximum number of keys of a store on real machines.
const MOST_KEYS_HERE: u64 = 1_000_000;
/// Rate of a testbed divided by the rate of a real machine.
const TIMES_A_MACHINE: f64 = 100.0;
/// Maximum number of concurrent operations of an open-loop client. Further arriving operations wait.
const OPEN_WINDOW: usize = 16;

fn load(effort: Effort) -> Experiment {
    let rates =
        effort.pick(vec![1.0], vec![0.5, 1.0, 2.0, 4.0, 6.0], vec![0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]);
    Experiment::new(
        "far-memory/load",
        "How long do operations take at a given rate?",
        "half puts, 1,024 keys, Zipf 0.99, values of 128 B, 64 clients on two hosts. Operations arrive by a Poisson \
         process, with up to 16 at a time per client. Latency counts from the arrival of an operation",
        "operations that come, M/s",
        LOAD,
        sweep(effort, rates, |rate, base| StorePoint {
            rate_per_s: Some(rate * 1e6),
            outstanding: OPEN_WINDOW,
            ..base
        }),
    )
}

impl Experiment {
    /// Reduces an experiment for a real machine with `cpus` processors:
    ///
    /// - a store has at most twice as many clients as the machine has processors,
    /// - published runs have no pauses between operations,
    /// - an end has at most half as many threads as the machine has processors, and offered rates are a hundredth of a
    ///   testbed's rates,
    /// - points with more than a million keys and points that need virtual time are left out.
    pub fn fit_to_machine(&mut self, effort: Effort, cpus: usize) {
        let most_clients = most_clients(cpus);
        let sweeps_clients = self.name == "far-memory/clients";
        let published = self.name == "far-memory/contention";
        let [fitted_clients, _] = PUBLISHED_CLIENTS;
        self.points.retain(|point| match point.parameters.far.as_deref() {
            None => true,
            Some(far) if far.is_virtual() => false,
            Some(FarPoint::Store(store)) if published => store.clients == fitted_clients,
            Some(FarPoint::Store(store)) => {
                store.keys <= MOST_KEYS_HERE && (!sweeps_clients || store.clients <= most_clients)
            }
            Some(_) => true,
        });
        if published {
            self.setting = "1,024 keys, Zipf 0.99, values of 1 KiB, two hosts; clients do not pause between operations";
        }
        for Point { series, x, parameters } in &mut self.points {
            if self.name.starts_with(FAR_MEMORY) {
                parameters.serving.threads = parameters.serving.threads.min((cpus / 2).max(1));
            }
            if let Some(FarPoint::Store(store)) = parameters.far.as_deref_mut() {
                if let Some(rate_per_s) = &mut store.rate_per_s {
                    *rate_per_s /= TIMES_A_MACHINE;
                    *x /= TIMES_A_MACHINE;
                }
                store.clients = store.clients.min(most_clients);
                if published {
                    (store.client_us, store.shortcut_us) = (0.0, 0.0);
                    *series = format!("{}, {} clients", store.strategy.name(), store.clients);
                }
                store.hosts = store.hosts.min(store.clients);
                store.measure_us = effort.seconds() * 1e6;
                store.warm_up_us = store.measure_us / 10.0;
            }
        }
    }
}

/// Experiments that compare strategies, with the parameter that each experiment varies.
pub const COMPARING: [(&str, &str); 5] = [
    ("far-memory/strategies", "share of puts, %"),
    ("far-memory/skew", "skew (Zipf exponent)"),
    ("far-memory/clients", "clients"),
    ("far-memory/values", "bytes of a value"),
    ("far-memory/keys", "keys"),
];
