//! What a get and a put of the store take on the software RNIC, beside the verbs that they are made of: a bare READ of as
//! many bytes, and a bare WRITE of a node that is waited for and a bare CAS behind it. All four in turns, in one process
//! and against one memory node, whose device's own thread answers. It prints one JSON object.
//!
//! Arguments: rounds, operations per round and kind, bytes of a value (`cargo bench -p doorbell-farmem -- 40 2000 1024`).

use std::sync::Arc;

use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::workload::{Load, key};
use doorbell_farmem::{
    Client, ClientDescription, ClientEnd, ClientOptions, HostCache, MemoryDescription, MemoryNode, Metadata,
    MetadataEnd, MetadataOptions, Operation, Outcome, Strategy,
};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{
    Access, Completion, Cq, Device, MemoryKind, Payload, Qp, QpCapacities, QpKind, QpOptions, Region, SendFlags,
    SendOperation, SendRequest, Status,
};

/// Keys of the store.
const KEYS: u64 = 64;
/// Bytes of a node beside its value: header and key.
const NODE_BYTES: usize = 32 + 8;

fn device() -> Device {
    soft::open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a device")
}

/// A queue pair to the memory node, as a program has it that uses verbs alone.
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

    fn perform(&self, operation: SendOperation, bytes: usize) {
        let sge = [self.memory.sge(0, bytes)];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sge));
        self.qp.post_send(&[SendRequest { wr_id: 1, operation, flags, payload, destination: None }]).expect("posted");
        let mut list = [Completion::default(); 16];
        while self.cq.poll(&mut list).expect("no overrun") == 0 {}
        assert_eq!(list[0].status, Status::Success);
    }

    fn read(&self, remote_address: u64, bytes: usize) {
        self.perform(SendOperation::Read { remote_address, rkey: self.remote.region.rkey }, bytes);
    }

    fn write(&self, remote_address: u64, bytes: usize) {
        self.perform(SendOperation::Write { remote_address, rkey: self.remote.region.rkey }, bytes);
    }

    fn swap(&self, remote_address: u64) {
        let rkey = self.remote.region.rkey;
        self.perform(SendOperation::CompareSwap { remote_address, rkey, compare: 0, swap: 0 }, 8);
    }
}

/// Runs an operation to its end.
fn run(client: &mut Client, operation: Operation<'_>, value: &mut Vec<u8>) {
    client.submit(operation).expect("sizes are allowed").expect("nothing else runs");
    loop {
        if let Some((_, result)) = client.finished(value) {
            assert_eq!(result, Ok(Outcome::Done));
            return;
        }
        client.poll();
    }
}

/// Nanoseconds of each of so many calls.
fn timed(device: &Device, count: usize, mut body: impl FnMut(usize)) -> Vec<u64> {
    let time = |index| {
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

/// Serves the client's questions, so that a put finds nodes. Not timed: the service has a processor of its own elsewhere.
fn settle(client: &mut Client, metadata: &mut Metadata) {
    for _ in 0..200 {
        client.poll();
        metadata.poll();
    }
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [rounds, operations, value_bytes] = [(0, 20), (1, 500), (2, 128)]
        .map(|(index, default): (usize, usize)| given.get(index).copied().unwrap_or(default).max(1));
    let load = Load { keys: KEYS, value_bytes, ..Load::default() };
    let geometry = load.geometry(1);
    let [of_memory, of_metadata, of_client] = [device(), device(), device()];
    let mut node = MemoryNode::new(&of_memory.create_pd().expect("a domain"), geometry).expect("a node");
    node.fill(Strategy::Optimistic, KEYS, value_bytes).expect("filled");
    let end =
        MetadataEnd::new(&of_metadata.create_pd().expect("a domain"), MetadataOptions::default()).expect("an end");
    let description = node.accept(0, &end.to_memory()).expect("accepted");
    let mut metadata = end.connect(&description).expect("connected");
    metadata.fill(KEYS).expect("filled");
    let end =
        ClientEnd::new(&of_client.create_pd().expect("a domain"), geometry, ClientOptions::default()).expect("end");
    let of_node = node.accept(1, &end.to_memory()).expect("accepted");
    let of_service = metadata.accept(1, &end.to_metadata()).expect("accepted");
    let cache = Arc::new(HostCache::new(4 * KEYS as usize));
    cache.fill(KEYS, value_bytes);
    let mut client = end.connect(1, &of_node, &of_service, &cache).expect("connected");
    let node_bytes = NODE_BYTES + value_bytes;
    let bare = Bare::connect(&of_client, &mut node, 2, node_bytes);
    // A node that no key needs, at the region's end.
    let spare = bare.remote.region.address + geometry.region_bytes() - geometry.node_bytes() as u64;
    let (mut read, value) = (Vec::new(), vec![7; value_bytes]);
    let mut all: [Vec<u64>; 4] = Default::default();
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds {
        // A put takes a node, and a client has 16 of them: so many, and then the service has its turn.
        let mut round: [Vec<u64>; 4] = Default::default();
        for _ in 0..operations.div_ceil(8) {
            settle(&mut client, &mut metadata);
            let key = |index: usize| key(index as u64 % KEYS);
            round[0]
                .extend(timed(&of_client, 8, |index| run(&mut client, Operation::Get { key: &key(index) }, &mut read)));
            round[1].extend(timed(&of_client, 8, |_| bare.read(spare, node_bytes)));
            round[2].extend(timed(&of_client, 8, |index| {
                run(&mut client, Operation::Put { key: &key(index), value: &value }, &mut read);
            }));
            round[3].extend(timed(&of_client, 8, |_| {
                bare.write(spare, node_bytes);
                bare.swap(spare);
            }));
        }
        let medians = [0, 1, 2, 3].map(|kind: usize| quantile(&mut round[kind], 0.5) as f64);
        ratios[0].push(medians[0] / medians[1]);
        ratios[1].push(medians[2] / medians[3]);
        all.iter_mut().zip(round).for_each(|(all, round)| all.extend(round));
    }
    let names = ["get", "read", "put", "write_and_cas"];
    println!("{{\n  \"schema\": \"doorbell-farmem-beside-verbs/1\",");
    println!("  \"rounds\": {rounds}, \"operations\": {operations}, \"value_bytes\": {value_bytes},");
    for (name, samples) in names.iter().zip(&mut all) {
        let [p10, p50, p90] = [0.1, 0.5, 0.9].map(|of| quantile(samples, of));
        println!("  \"{name}_ns\": {{ \"p10\": {p10}, \"p50\": {p50}, \"p90\": {p90} }},");
    }
    for (index, (name, of)) in [("get_over_read", 0), ("put_over_write_and_cas", 1)].into_iter().enumerate() {
        let ratios = &mut ratios[of];
        ratios.sort_by(f64::total_cmp);
        let at = |of: f64| ratios[((ratios.len() - 1) as f64 * of) as usize];
        let end = if index == 0 { "," } else { "" };
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
        settle(&mut client, &mut metadata);
    }
}
