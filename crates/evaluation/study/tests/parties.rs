//! Points about shared memory on several hosts. Each host is a thread with its own software RNIC and its own control
//! connection.
//!
//! These tests have a process of their own. A middlebox closes the device of its host and binds the device's address
//! again, so no other test may open a device meanwhile.

mod common;

use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread::JoinHandle;

use common::MEMORY_BYTES;
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_machine::{Machine, Root, cpu_list};
use doorbell_record::{
    FarPoint, Figure, Kind, Operation, OrderPoint, Parameters, PointResult, ScopePoint, StorePoint, Strategy,
    TearingPoint,
};
use doorbell_study::session::{self, HostError, Introduction, Parties, SessionError, Terms, measure_parties};
use doorbell_verbs::soft::{self, SoftOptions};

type Served = JoinHandle<Result<(), SessionError>>;

/// Starts a host that provides this amount of memory and serves until its connection ends.
fn host(memory_bytes: usize) -> (TcpStream, Served) {
    host_with(Terms::open(memory_bytes))
}

fn host_with(terms: Terms) -> (TcpStream, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let options = SoftOptions { publish: false, ..SoftOptions::default() };
    (stream, std::thread::spawn(move || session::serve(soft::open(&options).unwrap(), accepted, &terms)))
}

fn parameters(far: FarPoint, memory_bytes: usize) -> Parameters {
    let bytes = far.store().map_or(8, |store| store.value_bytes);
    let far = Some(Box::new(far));
    Parameters { far, memory_bytes, ..Parameters::plain(Kind::Bandwidth, Operation::Write, bytes) }
}

/// Lock that tests hold while they use devices, so that no two tests use devices at the same time.
static TURN: Mutex<()> = Mutex::new(());

/// Measures on `hosts` hosts. Returns the result of the point, and the result of each host that had a part in the
/// point.
fn try_to_measure(
    far: FarPoint,
    hosts: usize,
    memory_bytes: usize,
) -> (Result<PointResult, HostError>, Vec<Result<(), SessionError>>) {
    try_with(far, hosts, |_| Terms::open(memory_bytes), memory_bytes)
}

/// Measures on `hosts` hosts, each with the terms that `terms` returns for the host's number.
fn try_with(
    far: FarPoint,
    hosts: usize,
    terms: impl Fn(usize) -> Terms,
    memory_bytes: usize,
) -> (Result<PointResult, HostError>, Vec<Result<(), SessionError>>) {
    let parties = Parties::deal(hosts);
    let (streams, servers): (Vec<_>, Vec<Served>) = parties
        .duties(&far)
        .iter()
        .map(|(number, _)| {
            let (stream, server) = host_with(terms(*number));
            ((format!("host {number}"), stream, ProcessPosition::default()), server)
        })
        .unzip();
    let result = measure_parties(streams, &Introduction::default(), &parameters(far, memory_bytes), &parties);
    (result, servers.into_iter().map(|server| server.join().unwrap()).collect())
}

fn measure(far: FarPoint, hosts: usize) -> PointResult {
    let what = format!("{far:?} on {hosts} hosts");
    let (result, served) = try_to_measure(far, hosts, MEMORY_BYTES);
    let result = result.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(served.iter().all(Result::is_ok), "{what}: {served:?}");
    result
}

fn store(strategy: Strategy) -> StorePoint {
    StorePoint { strategy, clients: 3, keys: 64, warm_up_us: 5000.0, measure_us: 200_000.0, ..StorePoint::default() }
}

fn roles(result: &PointResult) -> Vec<(usize, &str, usize)> {
    result.hosts.iter().map(|host| (host.number, host.role.as_str(), host.connections)).collect()
}

#[test]
fn a_store_of_every_kind_works_with_each_party_on_a_host_of_its_own() {
    let _turn = TURN.lock();
    for strategy in [Strategy::Optimistic, Strategy::QueueLock, Strategy::Combine, Strategy::Server, Strategy::Steered]
    {
        let result = measure(FarPoint::Store(store(strategy)), 4);
        let what = format!("{}: {result:?}", strategy.name());
        let mut expected = vec![(0, "clients", 3), (1, "memory node", 3), (3, "metadata service", 3)];
        if strategy.is_steered() {
            expected.insert(2, (2, "middlebox", 3));
        }
        assert_eq!(roles(&result), expected, "{what}");
        let sent: u64 = result.sent_by_connection.iter().sum();
        assert!(result.messages > 0 && result.messages <= sent, "{what}");
        assert_eq!(result.sent_by_connection.len(), 3, "{what}");
        assert_eq!(result.hosts[0].sent, sent, "{what}");
        assert!(result.hosts[0].asks && result.hosts[0].late_ns.is_some(), "{what}");
        let packets = |host: usize| result.hosts[host].counted.data_packets;
        let answers = result.hosts[1].counted.response_packets + result.hosts[1].counted.ack_packets;
        assert!(packets(0) > 0 && answers > 0, "{what}");
        for figure in [Figure::GetMedian, Figure::PutP99, Figure::ClientFairness] {
            assert!(result.far.get(&figure).is_some_and(|value| *value > 0.0), "{figure:?}: {what}");
        }
    }
}

#[test]
fn clients_on_two_hosts_are_one_workload() {
    let _turn = TURN.lock();
    let result = measure(FarPoint::Store(store(Strategy::Lock)), 5);
    assert_eq!(
        roles(&result),
        [(0, "clients", 2), (1, "memory node", 3), (3, "metadata service", 3), (4, "clients", 1)]
    );
    // The rate refers to the time during which both hosts with clients measured.
    let sent: u64 = result.sent_by_connection.iter().sum();
    assert!(result.seconds > 0.0 && result.messages > 0 && result.messages <= sent, "{result:?}");
    assert!((result.messages_per_s * result.seconds - result.messages as f64).abs() < 1.0, "{result:?}");
    let result = measure(FarPoint::Store(store(Strategy::Backoff)), 2);
    assert_eq!(roles(&result), [(0, "clients", 3), (1, "memory node, metadata service", 3)]);
}

#[test]
fn queue_pairs_reach_bare_memory_straight_and_through_a_box() {
    let _turn = TURN.lock();
    let tearing = measure(FarPoint::Tearing(TearingPoint { bytes: 1024, mtu: 256, reads: 50 }), 2);
    assert_eq!((tearing.messages, tearing.mtu), (50, 256), "{tearing:?}");
    assert!(tearing.far.contains_key(&Figure::Torn), "{tearing:?}");
    let scope = ScopePoint { operation: Operation::Read, distance: 64, others: 2, outstanding: 4, operations: 50 };
    let scope = measure(FarPoint::Scope(scope), 2);
    assert!(scope.far[&Figure::ProbeLatency] > 0.0 && scope.far[&Figure::OthersRate] > 0.0, "{scope:?}");
    assert_eq!(roles(&scope), [(0, "clients", 3), (1, "memory node", 3)]);
    let (operation, queue_pairs, addresses, requests) = (Operation::CompareSwap, 2, 64, 200);
    let order = OrderPoint { operation, queue_pairs, addresses, zipf: 0.99, rate_per_s: 1e6, outstanding: 4, requests };
    let order = measure(FarPoint::Order(order), 3);
    assert_eq!(order.messages, 200, "{order:?}");
    assert!(order.far[&Figure::InOrder] > 0.0 && order.far[&Figure::LargestGap] >= 1.0, "{order:?}");
    assert_eq!(roles(&order), [(0, "clients", 2), (1, "memory node", 2), (2, "middlebox", 2)]);
}

/// Pinning to a CPU that does not exist fails. The error shows which host tried to pin a thread.
#[test]
fn every_host_pins_the_threads_of_its_parties() {
    let _turn = TURN.lock();
    let cpu = Machine::of(&Root::default()).cpus[0];
    let pinned = |cpus: Vec<usize>| Terms {
        pinning: Pinning { cpus, because: "so".to_owned(), ..Pinning::default() },
        ..Terms::open(MEMORY_BYTES)
    };
    let point = |clients| FarPoint::Store(StorePoint { clients, hosts: 1, ..store(Strategy::Steered) });
    let measure = |clients, cpus: &dyn Fn(usize) -> Vec<usize>| {
        try_with(point(clients), 4, |number| pinned(cpus(number)), MEMORY_BYTES)
    };
    for host in 0..4 {
        let (result, _) = measure(1, &|number| vec![if number == host { usize::MAX } else { cpu }]);
        let error = result.unwrap_err().to_string();
        let expected = format!("host {host}: ");
        assert!(
            error.starts_with(&expected) && error.contains("cannot be pinned to CPU 18446744073709551615"),
            "{error}"
        );
    }
    // Host 0 has more clients than CPUs, so this host pins no thread.
    let (result, served) = measure(2, &|number| vec![if number == 0 { usize::MAX } else { cpu }]);
    assert!(result.unwrap().messages > 0 && served.iter().all(Result::is_ok), "{served:?}");

    // A client's thread is pinned to its CPU while the client works.
    let long = StorePoint { clients: 1, hosts: 1, measure_us: 300_000.0, ..store(Strategy::Lock) };
    let terms = move |_| pinned(vec![cpu]);
    let measuring = std::thread::spawn(move || try_with(FarPoint::Store(long), 2, terms, MEMORY_BYTES));
    let mut seen = Vec::new();
    while !measuring.is_finished() {
        seen.extend(cpus_of("client 1"));
        std::thread::yield_now();
    }
    assert!(measuring.join().unwrap().0.unwrap().messages > 0);
    assert!(seen.contains(&vec![cpu]), "{seen:?}");
}

/// Returns the allowed CPUs of each thread of this process with this name.
fn cpus_of(name: &str) -> Vec<Vec<usize>> {
    let root = Root::default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let allowed = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.ok()?.file_name().into_string().ok()?;
        let text = |file| root.text(format!("proc/self/task/{task}/{file}"));
        let status = text("comm").filter(|comm| comm.trim() == name).and_then(|_| text("status"))?;
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(cpu_list)
    };
    tasks.filter_map(allowed).collect()
}

#[test]
fn a_host_with_too_little_memory_is_named() {
    let _turn = TURN.lock();
    let far = FarPoint::Store(StorePoint { keys: 100_000, ..store(Strategy::Lock) });
    let (result, served) = try_to_measure(far, 2, 1 << 20);
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("host ") && error.contains("of message memory, but this side has 1048576 B"), "{error}");
    assert!(served.iter().any(Result::is_err), "{served:?}");
}

/// The memory node closes its connection during the measurement. The other hosts do not wait for the memory node.
#[test]
fn a_memory_node_that_goes_while_clients_work_is_named() {
    let _turn = TURN.lock();
    let far = FarPoint::Store(StorePoint { measure_us: 60e6, ..store(Strategy::Optimistic) });
    let parties = Parties::deal(4);
    let (mut streams, mut servers, mut cut) = (Vec::new(), Vec::new(), None);
    for (number, duties) in parties.duties(&far) {
        let (stream, server) = match duties.memory {
            false => host(MEMORY_BYTES),
            true => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (accepted, _) = listener.accept().unwrap();
                let device = soft::open(&SoftOptions { publish: false, ..SoftOptions::default() }).unwrap();
                cut = Some((accepted.try_clone().unwrap(), device.clone()));
                let terms = Terms::open(MEMORY_BYTES);
                (stream, std::thread::spawn(move || session::serve(device, accepted, &terms)))
            }
        };
        streams.push((format!("host {number}"), stream, ProcessPosition::default()));
        servers.push(server);
    }
    let (stream, device) = cut.expect("there is a memory node");
    let cutting = std::thread::spawn(move || {
        while device.counters().is_none_or(|counters| counters.tx_response_packets < 100) {
            std::thread::yield_now();
        }
        drop(device);
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let error =
        measure_parties(streams, &Introduction::default(), &parameters(far, MEMORY_BYTES), &parties).unwrap_err();
    cutting.join().unwrap();
    assert!(error.is_gone() && error.host == "host 1", "{error}");
    for server in servers {
        assert!(server.join().unwrap().is_err());
    }
}
