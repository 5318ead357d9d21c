//! Operations on bare memory, over verbs, for the microbenchmarks of shared memory. Each function runs one queue pair,
//! and waits with the caller's [`Waiter`].

use std::cell::Cell;
use std::net::IpAddr;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_farmem::workload::{Random, Zipf};
use doorbell_verbs::{
    Access, Completion, Cq, MemoryKind, PathMtu, Payload, Pd, Psn, Qp, QpCapacities, QpKind, QpOptions, Qpn, RKey,
    Region, SendFlags, SendOperation, SendRequest, Status,
};

pub use crate::one_sided::RemoteMemory;
use doorbell_record::{Figure, Figures, HotPoint, Operation, OrderPoint, PointResult, ScopePoint, TearingPoint};
use doorbell_wire::to_gid;

/// Distance between two words in bytes. Each word has its own cache line.
pub const WORD_STRIDE: usize = 64;
/// Interval in nanoseconds at which a waiting client checks whether it may begin.
const LOOK_NS: u64 = 1000;
/// Maximum pause of a reader between two READs, in nanoseconds. Each pause is random, and the maximum exceeds a round
/// trip. Without pauses, a WRITE loop and a READ loop of the same duration would always meet at the same offset.
const READERS_PAUSE_NS: u64 = 10_000;
/// Maximum number of completions per poll.
const POLL_LIST: usize = 32;
/// Settings of all queue pairs. The operations consume no receive, so the RNR settings have no effect.
const SETTINGS: RcSettings = RcSettings { timeout: 14, retry_count: 6, rnr_retry: 7, min_rnr_timer: 12 };
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Allocates memory that peers may READ, WRITE and CAS.
///
/// # Errors
///
/// The device cannot register `bytes` bytes.
pub fn memory(pd: &Pd, bytes: usize) -> Result<Region, ConnectError> {
    Ok(pd.allocate(bytes, REMOTE | Access::LOCAL_WRITE, MemoryKind::Plain)?)
}

/// One end of a connection to memory, with buffers for the operands of operations.
#[derive(Debug)]
pub struct Pair {
    qp: Qp,
    cq: Cq,
    psn: Psn,
    local: Region,
    slot_bytes: usize,
    slots: usize,
    path_mtu: Option<PathMtu>,
}

impl Pair {
    /// Makes an unconnected end for `slots` outstanding operations of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// The device lacks resources for the end.
    pub fn new(pd: &Pd, slots: usize, bytes: usize, path_mtu: Option<PathMtu>) -> Result<Self, ConnectError> {
        let cq = pd.device().create_cq(slots)?;
        let capacities =
            QpCapacities { max_send_wr: slots, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (send_cq, recv_cq) = (&cq, &cq);
        let options = QpOptions { kind: QpKind::Rc, send_cq, recv_cq, srq: None, capacities, signal_all: true };
        let qp = pd.create_qp(options)?;
        rc::initialise(&qp, REMOTE)?;
        let slot_bytes = bytes.next_multiple_of(WORD_STRIDE);
        let local = pd.allocate(slots * slot_bytes, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        Ok(Self { psn: pd.device().random_psn(), qp, cq, local, slot_bytes, slots, path_mtu })
    }

    /// Makes two ends in one process, and connects them through a middlebox that forwards their packets. Each end uses
    /// the middlebox's address as the address of its peer. `relay` announces address and queue pair number of the two
    /// ends to the middlebox.
    ///
    /// # Errors
    ///
    /// A device or the middlebox lacks resources for the connection.
    pub(crate) fn relayed<E: From<ConnectError>>(
        [own, memory]: [&Pd; 2],
        slots: usize,
        at: IpAddr,
        relay: impl FnOnce([(IpAddr, Qpn); 2]) -> Result<(), E>,
    ) -> Result<(Self, Self), E> {
        let (own, other) = (Self::new(own, slots, 8, None)?, Self::new(memory, 1, 8, None)?);
        let gid = to_gid(at);
        let descriptions = [&own, &other].map(Self::description);
        own.connect(&EndpointDescription { gid, ..descriptions[1] })?;
        other.connect(&EndpointDescription { gid, ..descriptions[0] })?;
        relay(descriptions.map(|end| (end.gid.to_canonical(), end.qpn)))?;
        Ok((own, other))
    }

    /// Makes and connects two ends in one process. The client's end, which is returned first, supports `slots`
    /// outstanding operations of `bytes` bytes. The other end provides the memory.
    ///
    /// # Errors
    ///
    /// A device lacks resources for the connection.
    pub fn joined(
        [own, memory]: [&Pd; 2],
        slots: usize,
        bytes: usize,
        path_mtu: Option<PathMtu>,
    ) -> Result<(Self, Self), ConnectError> {
        let (own, other) = (Self::new(own, slots, bytes, path_mtu)?, Self::new(memory, 1, 8, path_mtu)?);
        own.connect(&other.description())?;
        other.connect(&own.description())?;
        Ok((own, other))
    }

    /// Connects with the peer.
    ///
    /// # Errors
    ///
    /// As [`rc::connect`].
    pub fn connect(&self, peer: &EndpointDescription) -> Result<(), ConnectError> {
        rc::connect(&self.qp, &self.description(), peer, &SETTINGS)
    }

    /// Returns the description of the queue pair for the peer.
    pub fn description(&self) -> EndpointDescription {
        let own = EndpointDescription::bare(&self.qp, self.psn);
        EndpointDescription { path_mtu: self.path_mtu.unwrap_or(own.path_mtu), ..own }
    }

    /// Returns the offset of the buffer for the operation with this number.
    fn slot(&self, number: u64) -> usize {
        (number % self.slots as u64) as usize * self.slot_bytes
    }

    fn now_ns(&self) -> u64 {
        self.qp.pd().device().now_ns()
    }

    fn post(
        &self,
        number: u64,
        operation: Operation,
        memory: RemoteMemory,
        offset: u64,
        bytes: usize,
    ) -> Result<(), ConnectionError> {
        let (remote_address, rkey) = (memory.address.wrapping_add(offset), RKey::new(memory.rkey));
        let operation = match operation {
            Operation::Read => SendOperation::Read { remote_address, rkey },
            // Any operands are suitable, since a failing CAS costs as much as a successful CAS.
            Operation::CompareSwap => {
                SendOperation::CompareSwap { remote_address, rkey, compare: number, swap: number.wrapping_add(1) }
            }
            _ => SendOperation::Write { remote_address, rkey },
        };
        let sges = [self.local.sge(self.slot(number), bytes)];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        let request = SendRequest { wr_id: number, operation, flags, payload, destination: None };
        self.qp.post_send(&[request]).map_err(ConnectionError::Post)
    }

    /// Returns the number of operations that have completed since the last call. Operations complete in the order of
    /// their posts.
    fn reap(&self) -> Result<u64, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = self.cq.poll(&mut list)?;
        match list[..count].iter().find(|completion| completion.status != Status::Success) {
            Some(failed) => Err(ConnectionError::from_send(failed.status)),
            None => Ok(count as u64),
        }
    }
}

/// Work of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of completed operations.
    pub operations: u64,
    /// Sum of the times of all operations, from post to completion.
    pub sum_ns: u64,
    /// Start of the work and time of the last completion.
    pub span_ns: (u64, u64),
}

impl Done {
    /// Returns operations per second.
    pub(crate) fn per_s(&self) -> f64 {
        self.operations as f64 * 1e9 / self.span_ns.1.saturating_sub(self.span_ns.0).max(1) as f64
    }

    /// Returns the mean time of an operation, in nanoseconds.
    pub(crate) fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.operations.max(1) as f64
    }
}

/// Returns the work of several queue pairs with operations of `bytes` bytes as a result. Rates are the operations of
/// all queue pairs, divided by the time until the last queue pair has ended.
pub fn result(bytes: usize, all: &[Done], far: Figures) -> PointResult {
    let operations: u64 = all.iter().map(|done| done.operations).sum();
    let from_ns = all.iter().map(|done| done.span_ns.0).min().unwrap_or(0);
    let to_ns = all.iter().map(|done| done.span_ns.1).max().unwrap_or(0);
    let seconds = to_ns.saturating_sub(from_ns).max(1) as f64 / 1e9;
    let messages_per_s = operations as f64 / seconds;
    PointResult {
        bytes,
        messages: operations,
        seconds,
        messages_per_s,
        bytes_per_s: messages_per_s * bytes as f64,
        sent_by_connection: all.iter().map(|done| done.operations).collect(),
        far,
        ..PointResult::default()
    }
}

/// Returns the work of [`probe`] and of each [`crowd`] as a result.
pub fn scope_result(probe: &Done, others: &[Done]) -> PointResult {
    let mut far = Figures::from([(Figure::ProbeLatency, probe.mean_ns() / 1e3)]);
    if !others.is_empty() {
        far.insert(Figure::OthersRate, others.iter().map(Done::per_s).sum::<f64>() / 1e6);
    }
    result(8, std::slice::from_ref(probe), far)
}

/// Source of the operations of a queue pair, and handler of their results.
trait Plan {
    /// Returns the maximum number of outstanding operations.
    fn outstanding(&self) -> u64;

    /// Returns whether to post another operation after `posted` operations.
    fn goes_on(&mut self, posted: u64) -> bool;

    /// Returns the operation with this number, its offset in the remote memory, and its length in bytes.
    fn next(&mut self, number: u64, pair: &Pair) -> (Operation, u64, usize);

    /// Returns the minimum pause after a post, in nanoseconds.
    fn pause_ns(&mut self) -> u64 {
        0
    }

    /// Handles the completion of an operation.
    fn completed(&mut self, _number: u64, _pair: &Pair) {}
}

/// Runs a plan until all its operations have completed.
async fn run<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    plan: &mut impl Plan,
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let began_ns = pair.now_ns();
    let mut done = Done { span_ns: (began_ns, began_ns), ..Done::default() };
    let (mut posted, mut due_ns) = (0, began_ns + plan.pause_ns());
    let mut posted_ns = vec![0; pair.slots];
    loop {
        let completed = pair.reap()?;
        if completed > 0 {
            let now_ns = pair.now_ns();
            for number in done.operations..done.operations + completed {
                done.sum_ns += now_ns - posted_ns[(number % pair.slots as u64) as usize];
                plan.completed(number, pair);
            }
            done.operations += completed;
            done.span_ns.1 = now_ns;
            waiter.breathe().await;
            continue;
        }
        let goes_on = plan.goes_on(posted);
        if !goes_on && posted == done.operations {
            return Ok(done);
        }
        let mut until_ns = None;
        if goes_on && posted - done.operations < plan.outstanding() {
            let now_ns = pair.now_ns();
            if now_ns >= due_ns {
                let (operation, offset, bytes) = plan.next(posted, pair);
                pair.post(posted, operation, memory, offset, bytes)?;
                posted_ns[(posted % pair.slots as u64) as usize] = now_ns;
                posted += 1;
                due_ns = now_ns + plan.pause_ns();
                waiter.breathe().await;
                continue;
            }
            until_ns = Some(due_ns);
        }
        waiter.wait(None, until_ns).await;
    }
}

struct Requests {
    point: OrderPoint,
    each: u64,
    mean_pause_ns: u64,
    zipf: Zipf,
    random: Random,
}

impl Plan for Requests {
    fn outstanding(&self) -> u64 {
        self.point.outstanding as u64
    }

    fn goes_on(&mut self, posted: u64) -> bool {
        posted < self.each
    }

    fn next(&mut self, _: u64, _: &Pair) -> (Operation, u64, usize) {
        let rank = self.zipf.draw(|| self.random.unit());
        (self.point.operation, rank * WORD_STRIDE as u64, 8)
    }

    fn pause_ns(&mut self) -> u64 {
        self.random.below(2 * self.mean_pause_ns)
    }
}

/// Runs queue pair `number` of a point about order. `seed` determines the addresses of requests and the pauses.
///
/// # Errors
///
/// The connection breaks.
pub async fn request<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &OrderPoint,
    (number, seed): (u64, u64),
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let pairs = point.queue_pairs as u64;
    let mut requests = Requests {
        point: point.clone(),
        each: (point.requests / pairs).max(1),
        mean_pause_ns: (point.queue_pairs as f64 * 1e9 / point.rate_per_s) as u64,
        zipf: Zipf::new(point.addresses, point.zipf),
        random: Random::new(seed.wrapping_mul(0x0100_0000_01b3).wrapping_add(number)),
    };
    run(pair, memory, &mut requests, waiter).await
}

/// Counts of READs of an object and of torn READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Torn {
    /// Number of READs.
    pub reads: u64,
    /// Number of torn READs, which returned words of more than one WRITE.
    pub torn: u64,
    /// Sum of offsets over all torn READs. The offset of a torn READ is that of the first word that differs from word
    /// 0.
    pub offsets: u64,
    /// Number of torn READs whose offset, as defined for `offsets`, is a multiple of the path MTU.
    pub at_packets: u64,
    /// Highest number of a WRITE that a READ has found.
    pub newest: u64,
}

impl From<Torn> for Figures {
    fn from(found: Torn) -> Self {
        let torn = found.torn as f64;
        let mut figures = Self::from([(Figure::Torn, 100.0 * torn / found.reads.max(1) as f64)]);
        if found.torn > 0 {
            figures.insert(Figure::TornAt, found.offsets as f64 / torn);
            figures.insert(Figure::TornAtPackets, 100.0 * found.at_packets as f64 / torn);
        }
        figures
    }
}

/// Plan that WRITEs the object repeatedly until `is_over`. Each WRITE stores its number in all words.
struct Writer<'a> {
    bytes: usize,
    is_over: &'a Cell<bool>,
    scratch: Vec<u8>,
}

impl Plan for Writer<'_> {
    fn outstanding(&self) -> u64 {
        1
    }

    fn goes_on(&mut self, _: u64) -> bool {
        !self.is_over.get()
    }

    fn next(&mut self, number: u64, pair: &Pair) -> (Operation, u64, usize) {
        for word in self.scratch.chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        pair.local.copy_in(pair.slot(number), &self.scratch);
        (Operation::Write, 0, self.bytes)
    }
}

struct Reader<'a> {
    point: &'a TearingPoint,
    is_over: &'a Cell<bool>,
    scratch: Vec<u8>,
    torn: Torn,
    random: Random,
}

impl Plan for Reader<'_> {
    fn outstanding(&self) -> u64 {
        1
    }

    fn goes_on(&mut self, posted: u64) -> bool {
        posted < self.point.reads
    }

    fn next(&mut self, _: u64, _: &Pair) -> (Operation, u64, usize) {
        (Operation::Read, 0, self.point.bytes)
    }

    fn pause_ns(&mut self) -> u64 {
        self.random.below(READERS_PAUSE_NS)
    }

    fn completed(&mut self, number: u64, pair: &Pair) {
        pair.local.copy_out(pair.slot(number), &mut self.scratch);
        let torn = &mut self.torn;
        torn.reads += 1;
        let (first, _) = self.scratch.split_at(8);
        torn.newest = torn.newest.max(first.try_into().map_or(0, u64::from_le_bytes));
        if let Some(word) = self.scratch.chunks_exact(8).position(|word| word != first) {
            let offset = 8 * word as u64;
            torn.torn += 1;
            torn.offsets += offset;
            torn.at_packets += u64::from(offset.is_multiple_of(self.point.mtu as u64));
        }
    }
}

/// Runs the queue pair that WRITEs the object, until the queue pair that READs is done.
///
/// # Errors
///
/// The connection breaks.
pub async fn overwrite<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &TearingPoint,
    is_over: &Cell<bool>,
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let mut writer = Writer { bytes: point.bytes, is_over, scratch: vec![0; point.bytes] };
    run(pair, memory, &mut writer, waiter).await
}

/// Runs the queue pair that READs the object, and counts torn READs.
///
/// # Errors
///
/// The connection breaks.
pub async fn look<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &TearingPoint,
    is_over: &Cell<bool>,
    waiter: &W,
) -> Result<(Done, Torn), ConnectionError> {
    let mut reader =
        Reader { point, is_over, scratch: vec![0; point.bytes], torn: Torn::default(), random: Random::new(1) };
    let done = run(pair, memory, &mut reader, waiter).await;
    reader.is_over.set(true);
    Ok((done?, reader.torn))
}

/// Plan that repeats one operation on one word.
struct Repeated<'a> {
    operation: Operation,
    offset: u64,
    outstanding: usize,
    /// Maximum number of operations. `None` means that operations continue until `is_over`.
    most: Option<u64>,
    is_over: &'a Cell<bool>,
}

impl Plan for Repeated<'_> {
    fn outstanding(&self) -> u64 {
        self.outstanding as u64
    }

    fn goes_on(&mut self, posted: u64) -> bool {
        self.most.map_or(!self.is_over.get(), |most| posted < most)
    }

    fn next(&mut self, _: u64, _: &Pair) -> (Operation, u64, usize) {
        (self.operation, self.offset, 8)
    }
}

/// Runs the queue pair with the timed operations, one operation at a time.
///
/// # Errors
///
/// The connection breaks.
pub async fn probe<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &ScopePoint,
    is_over: &Cell<bool>,
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let (operation, offset, most) = (point.operation, point.distance, Some(point.operations));
    let done = run(pair, memory, &mut Repeated { operation, offset, outstanding: 1, most, is_over }, waiter).await;
    is_over.set(true);
    done
}

/// Runs a queue pair that CASes the first word of the memory until [`probe`] has ended.
///
/// # Errors
///
/// The connection breaks.
pub async fn crowd<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &ScopePoint,
    is_over: &Cell<bool>,
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let (operation, outstanding) = (Operation::CompareSwap, point.outstanding);
    run(pair, memory, &mut Repeated { operation, offset: 0, outstanding, most: None, is_over }, waiter).await
}

/// Runs one of the clients that CAS the first word of the memory. The first client WRITEs the word before the clients
/// begin, so that a middlebox knows the word's value.
///
/// # Errors
///
/// The connection breaks.
pub async fn compete<W: Waiter>(
    pair: &Pair,
    memory: RemoteMemory,
    point: &HotPoint,
    (is_first, is_written): (bool, &Cell<bool>),
    waiter: &W,
) -> Result<Done, ConnectionError> {
    let is_over = &Cell::new(false);
    if is_first {
        let most = Some(1);
        run(
            pair,
            memory,
            &mut Repeated { operation: Operation::Write, offset: 0, outstanding: 1, most, is_over },
            waiter,
        )
        .await?;
        is_written.set(true);
    }
    while !is_written.get() {
        waiter.wait(None, Some(pair.now_ns() + LOOK_NS)).await;
    }
    let (operation, outstanding) = (Operation::CompareSwap, point.outstanding);
    let most = Some((point.operations / point.clients as u64).max(1));
    run(pair, memory, &mut Repeated { operation, offset: 0, outstanding, most, is_over }, waiter).await
}
