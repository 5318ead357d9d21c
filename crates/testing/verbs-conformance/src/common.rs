//! Helpers of tests of providers, such as pairs of connected queue pairs and functions that wait.

pub mod peer;

use std::time::{Duration, Instant};

use doorbell_verbs::soft::{self, LinkChoice, SoftOptions};
use doorbell_verbs::system::{self, SystemOptions};
use doorbell_verbs::{
    Access, AddressVector, Completion, Counters, Cq, Device, MemoryKind, PathMtu, Payload, Pd, Psn, QKey, Qp,
    QpAttributes, QpCapacities, QpKind, QpOptions, QpState, RKey, RecvRequest, Region, SendFlags, SendOperation,
    SendRequest, Sge, Srq, Status, UdDestination, Window, WindowBinding, WindowKind,
};

use crate::departures;

/// Time after which a wait fails the test. It is longer than any step takes on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Q_Key of all UD queue pairs of these tests.
pub const QKEY: QKey = QKey::new(0x1111_2222);

pub const ALL_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Opens a software RNIC.
pub fn open_soft(options: SoftOptions) -> Device {
    soft::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// Opens two software RNICs that reach each other over UDP.
pub fn soft_pair() -> (Device, Device) {
    let open = || open_soft(SoftOptions { link: Some(LinkChoice::Udp), ..SoftOptions::default() });
    (open(), open())
}

/// Opens two software RNICs with several engines each, which reach each other over UDP.
pub fn engines_pair() -> (Device, Device) {
    engines_over(LinkChoice::Udp)
}

/// Opens two software RNICs with several engines each, which reach each other only through shared memory.
pub fn engines_shm_pair() -> (Device, Device) {
    engines_over(LinkChoice::Shm)
}

fn engines_over(link: LinkChoice) -> (Device, Device) {
    let open = |engines| open_soft(SoftOptions { link: Some(link), engines: Some(engines), ..SoftOptions::default() });
    (open(2), open(4))
}

/// Opens two software RNICs that reach each other only through shared memory.
pub fn shm_pair() -> (Device, Device) {
    let open = || open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    (open(), open())
}

/// Opens two handles to the machine's device with the name in `DOORBELL_TEST_DEVICE`. Messages between both handles
/// pass through the device as between two devices. If `DOORBELL_TEST_PEER_DEVICE` is set, the second handle opens the
/// device with that name, which a network connects with the first device.
pub fn system_pair() -> (Device, Device) {
    let name = std::env::var("DOORBELL_TEST_DEVICE").expect("DOORBELL_TEST_DEVICE names a device of the machine");
    let peer = std::env::var("DOORBELL_TEST_PEER_DEVICE").unwrap_or_else(|_| name.clone());
    let open = |name| {
        let options = SystemOptions { device: Some(name), ..SystemOptions::default() };
        system::open(&options).unwrap_or_else(|error| panic!("{error}"))
    };
    (open(name), open(peer))
}

/// Returns the number of work requests of the long case: the value of `DOORBELL_MESSAGES`, or 10,000.
pub fn long_case() -> usize {
    std::env::var("DOORBELL_MESSAGES").ok().map_or(10_000, |text| text.parse().expect("a number of work requests"))
}

/// Returns whether the network between the devices of [`system_pair`] loses packets.
pub fn system_is_lossy() -> bool {
    std::env::var_os("DOORBELL_TEST_PEER_DEVICE").is_some()
}

/// Returns whether the device is rdma_rxe, Linux's software RNIC. If so, prints the kernel version and `how` rdma_rxe
/// departs from the specification, and notes the departure. The caller then skips the check.
pub fn rxe_departs(device: &Device, how: &str) -> bool {
    let is_rxe = device.attributes().name.starts_with("rxe");
    if is_rxe {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        println!("rdma_rxe of Linux {}: {how}", kernel.trim());
        departures::note(how);
    }
    is_rxe
}

/// Runs a test that needs no special environment.
pub fn as_it_is(test: impl FnOnce()) {
    test();
}

/// Checks that a device reports no event for the preceding action. Waits as long as devices need to report an event.
#[track_caller]
pub fn assert_no_event(device: &Device) {
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(device.poll_event(), None, "the device reports an event that it should not report");
}

/// Checks that `ended` is the status of a refused request. The responder sends the refusal only once, since its queue
/// pair is in error afterwards and sends no more answers (IBTA Vol 1, 9.9.3). If the refusal is lost, the requester
/// uses up its retries and does not learn the reason.
#[track_caller]
pub fn assert_refusal(ended: Status, reason: Status, what: &str) {
    if system_is_lossy() && ended == Status::RetryExceeded {
        println!("the refusal of {what} got lost, and the retries were spent");
    } else {
        assert_eq!(ended, reason, "{what}");
    }
}

/// Options for creating and connecting queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub kind: QpKind,
    pub mtu: PathMtu,
    pub depth: usize,
    pub sges: usize,
    pub inline: usize,
    pub cq_depth: usize,
    pub signal_all: bool,
    pub access: Access,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
}

impl Plan {
    pub fn new(kind: QpKind) -> Self {
        Self {
            kind,
            mtu: PathMtu::Mtu1024,
            depth: 64,
            sges: 4,
            inline: 64,
            cq_depth: 256,
            signal_all: false,
            access: ALL_ACCESS,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            rd_atomic: 16,
        }
    }

    pub fn rc() -> Self {
        Self::new(QpKind::Rc)
    }

    /// Returns a plan with six retries. Requests to a peer that refuses requests or has stopped then fail. Seven
    /// retries mean unlimited on rxe.
    pub fn with_an_end() -> Self {
        Self { retry_count: 6, ..Self::rc() }
    }

    pub fn capacities(&self) -> QpCapacities {
        QpCapacities {
            max_send_wr: self.depth,
            max_recv_wr: self.depth,
            max_send_sge: self.sges,
            max_recv_sge: self.sges,
            max_inline: self.inline,
        }
    }

    pub fn to_init(self) -> QpAttributes {
        let ud = self.kind == QpKind::Ud;
        QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: ud.then_some(QKEY),
            access: (!ud).then_some(self.access),
            ..QpAttributes::default()
        }
    }

    pub fn to_rtr(self, peer: &Side, receive_psn: Psn) -> QpAttributes {
        let state = Some(QpState::ReadyToReceive);
        if self.kind == QpKind::Ud {
            return QpAttributes { state, ..QpAttributes::default() };
        }
        let rc = self.kind == QpKind::Rc;
        QpAttributes {
            state,
            address: Some(AddressVector::to(peer.device.attributes().address)),
            path_mtu: Some(self.mtu),
            dest_qpn: Some(peer.qp.qpn()),
            receive_psn: Some(receive_psn),
            max_dest_rd_atomic: rc.then_some(self.rd_atomic),
            min_rnr_timer: rc.then_some(self.min_rnr_timer),
            ..QpAttributes::default()
        }
    }

    pub fn to_rts(self, send_psn: Psn) -> QpAttributes {
        let rc = self.kind == QpKind::Rc;
        QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(send_psn),
            timeout: rc.then_some(self.timeout),
            retry_count: rc.then_some(self.retry_count),
            rnr_retry: rc.then_some(self.rnr_retry),
            max_rd_atomic: rc.then_some(self.rd_atomic),
            ..QpAttributes::default()
        }
    }

    /// Creates both ends and connects them.
    pub fn connect(&self, devices: &(Device, Device)) -> (Side, Side) {
        let (a, b) = (self.side(&devices.0), self.side(&devices.1));
        self.join(&a, &b);
        (a, b)
    }

    /// Creates one end in the reset state.
    pub fn side(&self, device: &Device) -> Side {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(self.cq_depth).unwrap();
        self.side_on(&pd, &cq, None)
    }

    pub fn side_on(&self, pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Side {
        let qp = pd
            .create_qp(QpOptions {
                kind: self.kind,
                send_cq: cq,
                recv_cq: cq,
                srq,
                capacities: self.capacities(),
                signal_all: self.signal_all,
            })
            .unwrap();
        Side { device: pd.device().clone(), pd: pd.clone(), cq: cq.clone(), qp }
    }

    /// Connects two new ends by modifying their queue pairs to RTS.
    pub fn join(&self, a: &Side, b: &Side) {
        self.join_at(a, b, [a.device.random_psn(), b.device.random_psn()]);
    }

    /// Connects two new ends. `psns` has the first PSN of each end.
    pub fn join_at(&self, a: &Side, b: &Side, [from_a, from_b]: [Psn; 2]) {
        for (one, other, send, receive) in [(a, b, from_a, from_b), (b, a, from_b, from_a)] {
            one.qp.modify(&self.to_init()).unwrap();
            one.qp.modify(&self.to_rtr(other, receive)).unwrap();
            one.qp.modify(&self.to_rts(send)).unwrap();
        }
    }
}

/// Memory that one peer can access through a window of type 2, until the peer or the owner invalidates its key.
pub struct Lent {
    pub region: Region,
    window: Window,
    binding: WindowBinding,
}

impl Lent {
    pub fn rkey(&self) -> RKey {
        self.binding.rkey
    }

    /// Chooses another key for the next binding of the window.
    fn renew(&mut self) {
        self.binding.rkey = self.window.key((self.binding.rkey.get() as u8).wrapping_add(1));
    }
}

/// One end of a connection, with its device, queues and queue pair.
pub struct Side {
    pub qp: Qp,
    pub cq: Cq,
    pub pd: Pd,
    pub device: Device,
}

impl Side {
    pub fn memory(&self, length: usize) -> Region {
        self.pd.allocate(length, ALL_ACCESS, MemoryKind::Plain).unwrap()
    }

    /// Opens new memory to the peer of this queue pair, and to no other peer.
    pub fn lend(&self, length: usize) -> Lent {
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = self.pd.allocate(length, access, MemoryKind::Plain).unwrap();
        let window = self.pd.create_window(WindowKind::Type2).unwrap();
        let binding = WindowBinding {
            rkey: window.rkey(),
            lkey: region.lkey(),
            address: region.address(),
            length: length as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            zero_based: false,
        };
        let mut lent = Lent { region, window, binding };
        self.lend_again(&mut lent);
        lent
    }

    /// After the key was invalidated, opens the memory to the peer again under another key.
    pub fn lend_again(&self, lent: &mut Lent) {
        const NUMBER: u64 = 0x1e4d;
        lent.renew();
        self.post(NUMBER, SendOperation::BindWindow(lent.binding), &[]);
        self.expect(NUMBER);
    }

    /// Allocates memory, and fills it with [`pattern`].
    pub fn patterned(&self, length: usize, seed: u64) -> Region {
        let region = self.memory(length);
        region.copy_in(0, &pattern(length, seed));
        region
    }

    /// Posts one signalled work request.
    pub fn post(&self, wr_id: u64, operation: SendOperation, sges: &[Sge]) {
        self.qp.post_send(&[signalled(wr_id, operation, sges)]).unwrap();
    }

    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&[RecvRequest { wr_id, sges }]).unwrap();
    }

    /// Returns the next `count` completions.
    pub fn reap(&self, count: usize) -> Vec<Completion> {
        reap(&self.cq, count)
    }

    /// Returns the next completion, and checks that it is the success of the work request `wr_id`.
    pub fn expect(&self, wr_id: u64) -> Completion {
        let completion = self.reap(1)[0];
        assert_eq!((completion.wr_id, completion.status), (wr_id, Status::Success), "{completion:?}");
        completion
    }

    /// Checks that the next completion is the failure of the work request `wr_id` with `status`.
    pub fn expect_failure(&self, wr_id: u64, status: Status) {
        let completion = self.reap(1)[0];
        assert_eq!((completion.wr_id, completion.status), (wr_id, status));
    }

    /// Checks that the next completion is the failure of a work request that the peer refused with `status`.
    pub fn expect_refusal(&self, wr_id: u64, status: Status) {
        let completion = self.reap(1)[0];
        assert_eq!(completion.wr_id, wr_id);
        assert_refusal(completion.status, status, &format!("work request {wr_id}"));
    }

    pub fn state(&self) -> QpState {
        self.qp.query().attributes.state.unwrap()
    }

    pub fn to_error(&self) {
        self.qp.modify(&to_state(QpState::Error)).unwrap();
    }

    /// Returns the destination that reaches this end with datagrams.
    pub fn as_destination(&self) -> UdDestination {
        let address = AddressVector::to(self.device.attributes().address);
        UdDestination { address, qpn: self.qp.qpn(), qkey: QKEY }
    }
}

pub fn to_state(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

pub fn signalled(wr_id: u64, operation: SendOperation, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges), destination: None }
}

pub fn inline(wr_id: u64, operation: SendOperation, bytes: &[u8]) -> SendRequest<'_> {
    SendRequest { payload: Payload::Inline(bytes), ..signalled(wr_id, operation, &[]) }
}

pub fn datagram<'a>(wr_id: u64, operation: SendOperation, sges: &'a [Sge], to: &Side) -> SendRequest<'a> {
    SendRequest { destination: Some(to.as_destination()), ..signalled(wr_id, operation, sges) }
}

pub fn write_to(region: &Region, offset: usize) -> SendOperation {
    SendOperation::Write { remote_address: region.address().wrapping_add(offset as u64), rkey: region.rkey() }
}

pub fn read_from(region: &Region, offset: usize) -> SendOperation {
    SendOperation::Read { remote_address: region.address().wrapping_add(offset as u64), rkey: region.rkey() }
}

pub fn fetch_add(region: &Region, offset: usize, add: u64) -> SendOperation {
    SendOperation::FetchAdd { remote_address: region.address().wrapping_add(offset as u64), rkey: region.rkey(), add }
}

/// Posts `lists` lists one after the other, and waits for each list. A list has `pairs` pairs of a READ with the flags
/// `read_flags` and a fenced WRITE of the bytes read. Returns how many lists were done before one list took longer than
/// `patience`.
pub fn fenced_lists(a: &Side, b: &Side, pairs: usize, read_flags: SendFlags, lists: u64, patience: Duration) -> u64 {
    const BYTES: usize = 1500;
    let (mine, theirs) = (a.memory(pairs * BYTES), b.memory(2 * pairs * BYTES));
    for list in 0..lists {
        theirs.copy_in(0, &pattern(pairs * BYTES, list));
        let sges: Vec<_> = (0..pairs).map(|pair| [mine.sge(pair * BYTES, BYTES)]).collect();
        let pair = |pair: usize| {
            let read = signalled(pair as u64, read_from(&theirs, pair * BYTES), &sges[pair]);
            let write = signalled(pair as u64, write_to(&theirs, (pairs + pair) * BYTES), &sges[pair]);
            [
                SendRequest { flags: read.flags | read_flags, ..read },
                SendRequest { flags: write.flags | SendFlags::FENCE, ..write },
            ]
        };
        a.qp.post_send(&(0..pairs).flat_map(pair).collect::<Vec<_>>()).unwrap();
        let done = reap_within(&a.cq, 2 * pairs, patience);
        for (index, completion) in done.iter().enumerate() {
            let expected = (index as u64 / 2, Status::Success);
            assert_eq!((completion.wr_id, completion.status), expected, "list {list}: {completion:?}");
        }
        if done.len() < 2 * pairs {
            return list;
        }
        assert_bytes(&theirs, pairs * BYTES, &pattern(pairs * BYTES, list), "the bytes that fenced WRITEs copied");
    }
    lists
}

pub fn wrong(rkey: RKey) -> RKey {
    RKey::new(rkey.get() ^ 0x5a5a_5a00)
}

/// Returns bytes that depend on their position and on `seed`.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as u8
        })
        .collect()
}

pub fn bytes_of(region: &Region, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.copy_out(offset, &mut bytes);
    bytes
}

/// Compares bytes of a region with the expected bytes. If they differ, only prints the first difference.
#[track_caller]
pub fn assert_bytes(region: &Region, offset: usize, expected: &[u8], what: &str) {
    let found = bytes_of(region, offset, expected.len());
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{what}: index of the first of {} bytes that differs", expected.len());
}

/// Returns the next `count` completions of a queue. Fails the test if fewer arrive in time.
#[track_caller]
pub fn reap(cq: &Cq, count: usize) -> Vec<Completion> {
    let reaped = reap_within(cq, count, PATIENCE);
    assert_eq!(reaped.len(), count, "completions missing, found only {reaped:?}");
    reaped
}

/// Returns up to `count` completions that arrive within `patience`.
#[track_caller]
pub fn reap_within(cq: &Cq, count: usize, patience: Duration) -> Vec<Completion> {
    let mut reaped = Vec::with_capacity(count);
    let mut out = [Completion::default(); 32];
    let start = Instant::now();
    while reaped.len() < count {
        let most = out.len().min(count - reaped.len());
        let polled = cq.poll(&mut out[..most]).unwrap();
        reaped.extend_from_slice(&out[..polled]);
        if polled == 0 {
            if start.elapsed() >= patience {
                break;
            }
            std::thread::yield_now();
        }
    }
    reaped
}

/// Waits until the counters of the device meet a condition. For devices of the machine, only the kernel counts, so the
/// function waits for a fixed time instead.
#[track_caller]
pub fn eventually_counted(what: &str, device: &Device, holds: impl Fn(&Counters) -> bool) {
    match device.counters() {
        Some(_) => eventually(what, || device.counters().is_some_and(|counted| holds(&counted))),
        None => std::thread::sleep(Duration::from_millis(200)),
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
