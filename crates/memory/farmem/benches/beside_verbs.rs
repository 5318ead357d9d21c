//! Durations of a get and a put of the store on the software RNIC, compared with the durations of the verbs that they
//! use.
//!
//! For a get, the bench measures a bare READ of the same number of bytes, alone and together with a READ of 8 bytes
//! like that of the key's shortcut. For a put, it measures a bare WRITE of a node and, after its completion, a bare
//! CAS.
//!
//! All operations run in turn, in one process and against one memory node, whose device has its own thread. The bench
//! prints one JSON object.
//!
//! Arguments: rounds, operations of each kind per round, bytes of a value (`cargo bench -p doorbell-farmem -- 40 2000
//! 1024`).

use std::cell::RefCell;
use std::sync::Arc;

use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::workload::{Load, key};
use doorbell_farmem::{
    Client, ClientDescription, ClientEnd, ClientOptions, Geometry, HostCache, MemoryDescription, MemoryNode, Metadata,
    MetadataEnd, MetadataOptions, Outcome, StoreOperation, Strategy,
};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{
    Access, Completion, Cq, Device, MemoryKind, Payload, Qp, QpCapacities, QpKind, QpOptions, Region, SendFlags,
    SendOperation, SendRequest, Status,
};

/// Number of keys in the store.
const KEYS: u64 = 64;
/// Number of operations of one kind in one turn. A put takes a node, and a client keeps more unused nodes than this.
const TURN: usize = 8;
/// Pause before each operation, in nanoseconds.
const PAUSE_NS: u64 = 30_000;
/// Bytes of a node without its value: header and key.
const NODE_BYTES: usize = 32 + 8;

fn device() -> Device {
    soft::open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a device")
}

/// A queue pair to the memory node, as in a program that uses only verbs.
struct Bare {
    qp: Qp,
    cq: Cq,
    memory: Region,
    remote: MemoryDescription,
}

impl Bare {
    fn connect(device: &Device, node: &mut MemoryNode, number: u32, bytes: usize) -> Self {
        let pd = device.create_pd().expect("a protection domain");
        let cq = device.create_cq(16).expect("a completion queue");
        let capacities =
            QpCapacities { max_send_wr: 16, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let options =
            QpOptions { kind: QpKind::Rc, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: true };
        let qp = pd.create_qp(options).expect("a queue pair");
        rc::initialise(&qp, Access::empty()).expect("initialised");
        let own = EndpointDescription::bare(&qp, device.random_psn());
        let remote = node.accept(number, &ClientDescription { lane: own, calls: None }).expect("accepted");
        let settings = RcSettings { timeout: 14, retry_count: 6, rnr_retry: 7, min_rnr_timer: 12 };
        rc::connect(&qp, &own, &remote.endpoint, &settings).expect("connected");
        let memory = pd.allocate(bytes, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
        Self { qp, cq, memory, remote }
    }

    /// Posts operations, each with its number of bytes, in one list. Waits for the first completion.
    fn perform<const N: usize>(&self, operations: [(SendOperation, usize); N]) {
        let sges = operations.map(|(_, bytes)| [self.memory.sge(0, bytes)]);
        let requests: [SendRequest<'_>; N] = std::array::from_fn(|index| SendRequest {
            wr_id: 1,
            operation: operations[index].0,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges[index]),
            destination: None,
        });
        self.qp.post_send(&requests).expect("posted");
        while self.completions() == 0 {}
    }

    /// Takes the available completions and returns their number. During a pause, this is at most one: the completion of
    /// the last operation in a list, for which `perform` does not wait.
    fn completions(&self) -> usize {
        let mut list = [Completion::default(); 16];
        let count = self.cq.poll(&mut list).expect("no overrun");
        assert!(list[..count].iter().all(|completion| completion.status == Status::Success));
        count
    }

    fn read(&self, remote_address: u64, bytes: usize) {
        self.perform([(SendOperation::Read { remote_address, rkey: self.remote.region.rkey }, bytes)]);
    }

    /// Posts two READs in one list, the second one of 8 bytes, as a get does.
    fn read_both(&self, remote_address: u64, bytes: usize) {
        let read = SendOperation::Read { remote_address, rkey: self.remote.region.rkey };
        self.perform([(read, bytes), (read, 8)]);
    }

    fn write(&self, remote_address: u64, bytes: usize) {
        self.perform([(SendOperation::Write { remote_address, rkey: self.remote.region.rkey }, bytes)]);
    }

    fn swap(&self, remote_address: u64) {
        let rkey = self.remote.region.rkey;
        self.perform([(SendOperation::CompareSwap { remote_address, rkey, compare: 0, swap: 0 }, 8)]);
    }
}

/// Runs an operation to its end.
fn run(client: &mut Client, operation: StoreOperation<'_>, value: &mut Vec<u8>) {
    client.submit(operation).expect("sizes are allowed").expect("no other operation runs");
    loop {
        if let Some((_, result)) = client.finished(value) {
            assert_eq!(result, Ok(Outcome::Done));
            return;
        }
        client.poll();
    }
}

/// Returns the durations of `count` calls of `body` in nanoseconds. A pause comes before each call, in which `rest` is
/// called repeatedly. A put leaves a WRITE of the key's shortcut in progress, which must end before the next operation
/// begins.
fn timed(device: &Device, count: usize, mut rest: impl FnMut(), mut body: impl FnMut(usize)) -> Vec<u64> {
    let time = |index| {
        let paused_ns = device.now_ns();
        while device.now_ns() < paused_ns + PAUSE_NS {
            rest();
        }
        let begun_ns = device.now_ns();
        body(index);
        device.now_ns() - begun_ns
    };
    (0..count).map(time).collect()
}

fn quantile(samples: &mut [u64], of: f64) -> u64 {
    samples.sort_unstable();
    samples[((samples.len() - 1) as f64 * of) as usize]
}

/// Serves the client's requests until the client has enough unused nodes for a turn. This time is not measured, since
/// the service normally has its own processor.
fn settle(client: &mut Client, metadata: &mut Metadata) {
    for _ in 0..50 {
        client.poll();
        metadata.poll();
    }
    while client.spare_nodes().len() < TURN {
        client.poll();
        metadata.poll();
        std::thread::yield_now();
    }
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [rounds, operations, value_bytes] = [(0, 20), (1, 500), (2, 128)]
        .map(|(index, default): (usize, usize)| given.get(index).copied().unwrap_or(default).max(1));
    let load = Load { keys: KEYS, value_bytes, ..Load::default() };
    let geometry = load.geometry(1);
    let [of_memory, of_metadata, of_client] = [device(), device(), device()];
    // The bare verbs use other nodes than the store, and the same number of them, in turn. Otherwise they would be
    // faster, since recently used memory is in the CPU's cache.
    let with_spare = Geometry { nodes: 2 * geometry.nodes, ..geometry };
    let mut node = MemoryNode::new(&of_memory.create_pd().expect("a domain"), with_spare).expect("a node");
    node.fill(Strategy::Optimistic, KEYS, value_bytes).expect("filled");
    let end =
        MetadataEnd::new(&of_metadata.create_pd().expect("a domain"), MetadataOptions::default()).expect("an end");
    let description = node.accept(0, &end.to_memory()).expect("accepted");
    let mut metadata = end.connect(&MemoryDescription { geometry, ..description }).expect("connected");
    metadata.fill(KEYS).expect("filled");
    let end =
        ClientEnd::new(&of_client.create_pd().expect("a domain"), geometry, ClientOptions::default()).expect("end");
    let of_node = node.accept(1, &end.to_memory()).expect("accepted");
    let of_node = MemoryDescription { geometry, ..of_node };
    let of_service = metadata.accept(1, &end.to_metadata()).expect("accepted");
    let cache = Arc::new(HostCache::new(4 * KEYS as usize));
    cache.fill(KEYS, value_bytes);
    let mut client = end.connect(1, &of_node, &of_service, &cache).expect("connected");
    let node_bytes = NODE_BYTES + value_bytes;
    let bare = Bare::connect(&of_client, &mut node, 2, node_bytes);
    let first = bare.remote.region.address + geometry.region_bytes();
    let spare = |index: usize| first + (index % geometry.nodes as usize * geometry.node_bytes()) as u64;
    let mut written = 0;
    let (mut read, value) = (Vec::new(), vec![7; value_bytes]);
    let mut all: [Vec<u64>; 5] = Default::default();
    let mut ratios: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        let mut round: [Vec<u64>; 5] = Default::default();
        for _ in 0..operations.div_ceil(TURN) {
            settle(&mut client, &mut metadata);
            written += TURN;
            let key = |index: usize| key(index as u64 % KEYS);
            // Both closures borrow the same client.
            let client = RefCell::new(&mut client);
            let poll = || {
                let _ = client.borrow_mut().poll();
            };
            let beside = |body: &dyn Fn(u64)| {
                let rest = || {
                    bare.completions();
                };
                timed(&of_client, TURN, rest, |index| body(spare(written + index)))
            };
            round[0].extend(timed(&of_client, TURN, poll, |index| {
                run(&mut client.borrow_mut(), StoreOperation::Get { key: &key(index) }, &mut read);
            }));
            round[1].extend(beside(&|address| bare.read(address, node_bytes)));
            round[4].extend(beside(&|address| bare.read_both(address, node_bytes)));
            round[2].extend(timed(&of_client, TURN, poll, |index| {
                run(&mut client.borrow_mut(), StoreOperation::Put { key: &key(index), value: &value }, &mut read);
            }));
            round[3].extend(beside(&|address| {
                bare.write(address, node_bytes);
                bare.swap(address);
            }));
        }
        let medians = [0, 1, 2, 3, 4].map(|kind: usize| quantile(&mut round[kind], 0.5) as f64);
        ratios[0].push(medians[0] / medians[1]);
        ratios[1].push(medians[2] / medians[3]);
        ratios[2].push(medians[4] / medians[1]);
        all.iter_mut().zip(round).for_each(|(all, round)| all.extend(round));
    }
    let names = ["get", "read", "put", "write_and_cas", "both_reads"];
    println!("{{\n  \"schema\": \"doorbell-farmem-beside-verbs/1\",");
    println!("  \"rounds\": {rounds}, \"operations\": {operations}, \"value_bytes\": {value_bytes},");
    for (name, samples) in names.iter().zip(&mut all) {
        let [p10, p50, p90] = [0.1, 0.5, 0.9].map(|of| quantile(samples, of));
        println!("  \"{name}_ns\": {{ \"p10\": {p10}, \"p50\": {p50}, \"p90\": {p90} }},");
    }
    let names = ["get_over_read", "put_over_write_and_cas", "both_reads_over_read"];
    for (index, (name, ratios)) in names.into_iter().zip(&mut ratios).enumerate() {
        ratios.sort_by(f64::total_cmp);
        let at = |of: f64| ratios[((ratios.len() - 1) as f64 * of) as usize];
        let end = if index + 1 < names.len() { "," } else { "" };
        println!(
            "  \"{name}\": {{ \"least\": {:.3}, \"median\": {:.3}, \"most\": {:.3} }}{end}",
            at(0.0),
            at(0.5),
            at(1.0)
        );
    }
    println!("}}");
    client.close();
    while !client.is_closed() {
        client.poll();
        metadata.poll();
    }
}
