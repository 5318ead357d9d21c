//! The built-in fault plans on two RNICs on a virtual clock. Each test checks the behaviour that IBTA requires, which
//! the head of the plan's file names.

mod ports;

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use doorbell_fabric::{Acks, Driver, FaultPlan, Faults, MemoryLink, MemoryNetwork, MemoryOptions, VerbsFaults};
use doorbell_rnic::{CompletionQueue, Config, Policy, Region, Rnic};
use doorbell_testing::ConnectionEnd;
use doorbell_testing::memory::Block;
use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, Counters, Payload, QpAttributes, QpCapacities, QpInit, QpKind, QpState,
    RecvRequest, SendFlags, SendOperation, SendRequest, Sge, Status,
};
use doorbell_wire::{PathMtu, Psn, Qpn, ROCE_UDP_PORT};

/// First PSN of both ends. The sequence wraps within the first message.
const FIRST_PSN: Psn = Psn::new(0xff_fffe);

/// Bytes of a message of three packets.
const MESSAGE_BYTES: u32 = 768;

/// Offsets in the memory of an end.
const DATA: usize = 0;
const RECEIVED: [usize; 3] = [1024, 2048, 3072];
const WRITTEN: usize = 4096;
const READ: usize = 5120;
const WORD: usize = 6144;
const OLD_WORD: usize = 6152;
const MEMORY_BYTES: usize = 8192;

const ADDED: u64 = 5;
const WORD_BEFORE: u64 = 100;

/// Journal of both ends.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<u8>>>);

impl Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct End {
    driver: Driver<Faults<MemoryLink>>,
    qpn: Qpn,
    queue: Arc<CompletionQueue>,
    memory: Block,
    region: Arc<Region>,
}

impl End {
    fn new(network: &MemoryNetwork, host: u8, plan: &FaultPlan, journal: &Journal) -> Self {
        let address = IpAddr::from([10, 0, 0, host]);
        let config = Config { address, active_mtu: PathMtu::Mtu256, receive_buffer_bytes: 1 << 20, seed: [host; 32] };
        let mut rnic = Rnic::with_policy(config, Policy::UNBOUNDED, None);
        let pd = rnic.create_pd();
        let (cq, queue) = rnic.create_cq(64, None).unwrap();
        let capacities =
            QpCapacities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit { kind: QpKind::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
        let qpn = rnic.create_qp(init).unwrap();
        if let Some(faults) = VerbsFaults::new(plan) {
            let faults = faults.with_journal(journal.clone());
            faults.created(qpn);
            faults.completions().into_iter().for_each(|source| rnic.inject(source));
        }
        let memory = Block::new(MEMORY_BYTES);
        // SAFETY: the block lives as long as the end, and no reference to it is made.
        let region = unsafe { rnic.register(pd, memory.base(), memory.len(), memory.address(), Access::all(), None) };
        let link = Faults::new(network.attach(address), plan.clone()).of_device(address, ROCE_UDP_PORT);
        let link = link.with_journal(journal.clone());
        let driver = Driver::new(rnic, link, ROCE_UDP_PORT);
        Self { driver, qpn, queue, memory, region: region.unwrap() }
    }

    fn connect(&mut self, peer_host: u8, peer: Qpn, psn: Psn) {
        let end = ConnectionEnd {
            send_psn: psn,
            receive_psn: psn,
            rnr_retry: 3,
            min_rnr_timer: 12,
            ..ConnectionEnd::new(QpKind::Rc, ([10, 0, 0, peer_host].into(), peer), PathMtu::Mtu256)
        };
        for step in end.steps() {
            self.driver.rnic_mut().modify_qp(self.qpn, &step).unwrap();
        }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.memory.address() + offset as u64, length, lkey: self.region.lkey() }
    }

    fn post(&mut self, now_ns: u64, wr_id: u64, operation: SendOperation, sge: Sge) {
        let sges = [sge];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        let request = SendRequest { wr_id, operation, flags, payload, destination: None };
        self.driver.rnic_mut().post_send(now_ns, self.qpn, &[request]).unwrap();
    }

    fn receive(&mut self, wr_id: u64, offset: usize) {
        let request = RecvRequest { wr_id, sges: &[self.sge(offset, MESSAGE_BYTES)] };
        self.driver.rnic_mut().post_recv(self.qpn, &[request]).unwrap();
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.memory.read(offset, 8).try_into().unwrap())
    }

    fn reap(&self) -> Vec<Completion> {
        let mut all = [Completion::default(); 32];
        let count = self.queue.poll(&mut all).unwrap();
        all[..count].to_vec()
    }

    fn counters(&self) -> Counters {
        *self.driver.rnic().counters()
    }

    fn state(&self) -> QpState {
        self.driver.rnic().query_qp(self.qpn).unwrap().state
    }
}

struct Pair {
    requester: End,
    responder: End,
    now_ns: u64,
    journal: Journal,
}

impl Pair {
    fn new(plan: &FaultPlan) -> Self {
        let network = MemoryNetwork::new(MemoryOptions::default());
        let journal = Journal::default();
        let [requester, responder] = [1, 2].map(|host| End::new(&network, host, plan, &journal));
        let mut pair = Self { requester, responder, now_ns: 1, journal };
        pair.connect(FIRST_PSN);
        pair
    }

    fn connect(&mut self, psn: Psn) {
        let (own, peer) = (self.requester.qpn, self.responder.qpn);
        self.requester.connect(2, peer, psn);
        self.responder.connect(1, own, psn);
    }

    /// Runs until `until_ns`, or until no packet and no timer is left.
    fn run_until(&mut self, until_ns: u64) {
        for _ in 0..100_000 {
            for end in [&mut self.requester, &mut self.responder] {
                end.driver.pump(self.now_ns, Acks::Now).unwrap();
            }
            let ends = [&self.requester, &self.responder];
            let next_ns = ends.into_iter().filter_map(|end| end.driver.poll_timeout()).min();
            match next_ns {
                Some(next_ns) if next_ns <= until_ns => self.now_ns = self.now_ns.max(next_ns),
                _ => return,
            }
        }
        panic!("the pair does not come to rest");
    }

    /// Posts each operation once, and three SENDs.
    fn post_all(&mut self) {
        let (now_ns, responder) = (self.now_ns, &mut self.responder);
        for (wr_id, offset) in (100..).zip(RECEIVED) {
            responder.receive(wr_id, offset);
        }
        let payload: Vec<u8> = (0..MESSAGE_BYTES).map(|at| (at * 7 + 3) as u8).collect();
        responder.memory.write(WORD, &WORD_BEFORE.to_ne_bytes());
        responder.memory.write(DATA, &payload);
        self.requester.memory.write(DATA, &payload);
        let (base, rkey) = (responder.memory.address(), responder.region.rkey());
        let remote = |offset: usize| base + offset as u64;
        let own = &mut self.requester;
        let data = own.sge(DATA, MESSAGE_BYTES);
        own.post(now_ns, 0, SendOperation::Send, data);
        own.post(now_ns, 1, SendOperation::Send, data);
        own.post(now_ns, 2, SendOperation::Write { remote_address: remote(WRITTEN), rkey }, data);
        let into = own.sge(READ, MESSAGE_BYTES);
        own.post(now_ns, 3, SendOperation::Read { remote_address: remote(DATA), rkey }, into);
        let old = own.sge(OLD_WORD, 8);
        own.post(now_ns, 4, SendOperation::FetchAdd { remote_address: remote(WORD), rkey, add: ADDED }, old);
        own.post(now_ns, 5, SendOperation::Send, data);
    }

    /// Checks that each operation was executed exactly once and completed in order.
    #[track_caller]
    fn assert_done(&self, plan: &str) {
        let of = |found: &[Completion]| -> Vec<_> { found.iter().map(|it| (it.wr_id, it.status)).collect() };
        let success = |ids: std::ops::Range<u64>| -> Vec<_> { ids.map(|id| (id, Status::Success)).collect() };
        assert_eq!(of(&self.requester.reap()), success(0..6), "{plan}");
        let received = self.responder.reap();
        assert_eq!(of(&received), success(100..103), "{plan}");
        assert!(received.iter().all(|it| it.byte_len == MESSAGE_BYTES), "{plan}");
        let expected = self.requester.memory.read(DATA, MESSAGE_BYTES as usize);
        for offset in RECEIVED.into_iter().chain([WRITTEN]) {
            assert_eq!(self.responder.memory.read(offset, MESSAGE_BYTES as usize), expected, "{plan} at {offset}");
        }
        assert_eq!(self.requester.memory.read(READ, MESSAGE_BYTES as usize), expected, "{plan}");
        let words = (self.responder.word(WORD), self.requester.word(OLD_WORD));
        assert_eq!(words, (WORD_BEFORE + ADDED, WORD_BEFORE), "{plan}");
    }

    #[track_caller]
    fn assert_fired(&self, name: &str, plan: &FaultPlan) {
        let text = String::from_utf8(self.journal.0.lock().unwrap().clone()).unwrap();
        assert_eq!(plan.unfired(&text), Vec::<String>::new(), "{name}");
        // The operations of this test cover the optional rules too.
        for number in 1..=plan.rules().len() {
            assert!(text.contains(&format!("{{\"rule\":{number},")), "rule {number} of {name} did not fire");
        }
    }
}

fn built_in(name: &str) -> FaultPlan {
    let file = doorbell_data::FAULT_PLANS.iter().find(|file| file.name == name).unwrap();
    FaultPlan::from_toml(file.path, file.text).unwrap()
}

/// Runs all operations under a plan, and returns the pair at rest.
fn under(name: &str) -> Pair {
    let plan = built_in(name);
    let mut pair = Pair::new(&plan);
    pair.post_all();
    pair.run_until(u64::MAX);
    pair.assert_done(name);
    pair.assert_fired(name, &plan);
    pair
}

#[test]
fn each_plan_parses_and_its_operations_complete_exactly_once() {
    for file in doorbell_data::FAULT_PLANS {
        // A plan that reaches another process as text stays the same.
        let plan = built_in(file.name);
        assert_eq!(plan.to_string().parse(), Ok(plan.clone()), "{}", file.name);
        // Plans of calls and completions fail requests, and have their own tests.
        if !plan.strikes_calls() {
            under(file.name);
        }
    }
}

#[test]
fn lost_requests_cause_one_nak() {
    for name in ["lost-first", "lost-middle", "corrupted-icrc", "psn-wrap"] {
        let pair = under(name);
        assert_eq!(pair.requester.counters().packet_seq_err, 1, "{name}");
        assert!(pair.responder.counters().out_of_sequence >= 1, "{name}");
        assert!(pair.requester.counters().tx_retransmitted_packets >= 1, "{name}");
    }
    assert_eq!(under("corrupted-icrc").responder.counters().rx_icrc_encapsulated, 1);
}

#[test]
fn a_lost_nak_is_not_repeated() {
    let pair = under("lost-nak");
    assert_eq!(pair.requester.counters().packet_seq_err, 0);
    assert!(pair.requester.counters().local_ack_timeout_err + pair.requester.counters().early_retransmit >= 1);
}

#[test]
fn a_lost_read_response_is_an_implied_nak() {
    let pair = under("lost-read-response");
    assert!(pair.requester.counters().implied_nak_seq_err >= 1);
    assert!(pair.responder.counters().duplicate_request >= 1, "the requester asks for the missing bytes again");
}

#[test]
fn duplicates_are_acknowledged_and_not_executed() {
    assert!(under("duplicate-requests").responder.counters().duplicate_request >= 4);
    assert!(under("atomic-replay").responder.counters().duplicate_request >= 1);
}

#[test]
fn an_rnr_nak_delays_the_requester() {
    let pair = under("rnr-then-success");
    assert_eq!(pair.requester.counters().rnr_nak_received, 1);
    assert_eq!(pair.responder.counters().rnr_nak_sent, 0, "the NAK is the plan's");
    assert!(pair.now_ns >= 640_000, "the requester waited for {} ns only", pair.now_ns);
}

#[test]
fn packets_that_leave_are_struck_once() {
    let text = "drop direction=out opcode=ack nth=1;drop direction=out opcode=send position=middle nth=1;\
                corrupt direction=out opcode=write field=icrc nth=1;duplicate direction=out opcode=read-response nth=1";
    let plan: FaultPlan = text.parse().unwrap();
    let mut pair = Pair::new(&plan);
    pair.post_all();
    pair.run_until(u64::MAX);
    pair.assert_done(text);
    pair.assert_fired(text, &plan);
    // Each kind of packet leaves one end only.
    let journal = String::from_utf8(pair.journal.0.lock().unwrap().clone()).unwrap();
    assert_eq!(journal.lines().count(), 4, "{journal}");
    assert!(journal.lines().all(|line| line.contains("\"direction\":\"out\"")), "{journal}");
    let sender = |rule: usize| {
        let line = journal.lines().find(|line| line.starts_with(&format!("{{\"rule\":{rule},"))).unwrap();
        line.split("\"from\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned()
    };
    assert_eq!([1, 2, 3, 4].map(sender), ["10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2"]);
    assert_eq!(pair.responder.counters().rx_icrc_encapsulated, 1);
}

/// Posts all operations under an inline plan, and runs until `until_ns`.
fn struck(plan: &str, until_ns: u64) -> Pair {
    struck_by(&plan.parse().unwrap(), until_ns)
}

/// Posts all operations under a plan, and runs until `until_ns`.
fn struck_by(plan: &FaultPlan, until_ns: u64) -> Pair {
    let mut pair = Pair::new(plan);
    pair.post_all();
    pair.run_until(until_ns);
    pair
}

fn statuses(end: &End) -> Vec<(u64, Status)> {
    end.reap().iter().map(|it| (it.wr_id, it.status)).collect()
}

#[test]
fn a_bad_completion_ends_its_queue_pair_and_flushes_the_rest() {
    use Status::{RemoteAccess, Success, WorkRequestFlushed};
    let text = "completion operation=write qp-order=1 nth=1 status=rem-access-err";
    let pair = struck(text, u64::MAX);
    let flushed = (3..6).map(|wr_id| (wr_id, WorkRequestFlushed));
    let expected: Vec<_> = [(0, Success), (1, Success), (2, RemoteAccess)].into_iter().chain(flushed).collect();
    assert_eq!(statuses(&pair.requester), expected);
    assert_eq!((pair.requester.state(), pair.responder.state()), (QpState::Error, QpState::ReadyToSend));
    let journal = String::from_utf8(pair.journal.0.lock().unwrap().clone()).unwrap();
    let qp = pair.requester.qpn.get();
    let ends = format!("\"operation\":\"write\",\"qp\":{qp},\"wr_id\":2,\"status\":\"rem-access-err\"}}\n");
    assert!(journal.starts_with("{\"rule\":1,\"action\":\"completion\",\"count\":1,") && journal.ends_with(&ends));
    assert_eq!(text.parse::<FaultPlan>().unwrap().unfired(&journal), Vec::<String>::new());
}

#[test]
fn built_in_plans_strike_the_fourth_completion() {
    use Status::{LocalProtection, Success, WorkRequestFlushed};
    let numbered = |statuses: [Status; 6]| (0..6).zip(statuses).collect::<Vec<_>>();
    // The responder has three completions only, so the plans strike the requester.
    let plan = built_in("bad-completion");
    let pair = struck_by(&plan, u64::MAX);
    let expected = [Success, Success, Success, LocalProtection, WorkRequestFlushed, WorkRequestFlushed];
    assert_eq!(statuses(&pair.requester), numbered(expected));
    assert_eq!((pair.requester.state(), pair.responder.state()), (QpState::Error, QpState::ReadyToSend));
    pair.assert_fired("bad-completion", &plan);

    let plan = built_in("qp-fatal-event");
    let mut pair = struck_by(&plan, u64::MAX);
    let expected = [Success, Success, Success, Success, WorkRequestFlushed, WorkRequestFlushed];
    assert_eq!(statuses(&pair.requester), numbered(expected));
    let event = pair.requester.driver.rnic_mut().poll_event();
    assert_eq!(event, Some(AsyncEvent::QpFatal(pair.requester.qpn)));
    assert_eq!((pair.requester.state(), pair.responder.state()), (QpState::Error, QpState::ReadyToSend));
    pair.assert_fired("qp-fatal-event", &plan);

    let plan = built_in("slow-completion");
    let mut pair = struck_by(&plan, 20_000_000 - 1);
    assert_eq!(statuses(&pair.requester), numbered([Success; 6])[..3]);
    pair.run_until(u64::MAX);
    assert_eq!(statuses(&pair.requester), numbered([Success; 6])[3..]);
    pair.assert_fired("slow-completion", &plan);
}

#[test]
fn a_bad_completion_may_keep_its_queue_pair() {
    let pair = struck("completion operation=write nth=1 status=loc-prot-err queue-pair=kept", u64::MAX);
    let status = |wr_id| if wr_id == 2 { Status::LocalProtection } else { Status::Success };
    assert_eq!(statuses(&pair.requester), (0..6).map(|wr_id| (wr_id, status(wr_id))).collect::<Vec<_>>());
    assert_eq!(pair.requester.state(), QpState::ReadyToSend);
}

#[test]
fn a_bad_receive_flushes_the_receives_behind_it() {
    let pair = struck("completion operation=receive nth=2 status=loc-len-err", u64::MAX);
    let expected = [(100, Status::Success), (101, Status::LocalLength), (102, Status::WorkRequestFlushed)];
    assert_eq!(statuses(&pair.responder), expected);
    assert_eq!(pair.responder.state(), QpState::Error);
    // The message had arrived, so its sender notices nothing.
    assert_eq!(statuses(&pair.requester)[1], (1, Status::Success));
}

#[test]
fn a_slow_completion_holds_back_those_behind_it() {
    const DELAY_NS: u64 = 5_000_000;
    let text = "slow-poll operation=send nth=2 for=5ms";
    let mut pair = struck(text, DELAY_NS - 1);
    assert_eq!(statuses(&pair.requester), [(0, Status::Success)]);
    assert_eq!(statuses(&pair.responder).len(), 3, "the other end has its completions");
    let armed = &pair.requester.queue;
    armed.request_notification(doorbell_verbs_core::Notify::Next);
    pair.run_until(u64::MAX);
    assert!(pair.now_ns > DELAY_NS);
    assert!(!pair.requester.queue.is_armed(), "the queue notifies when the program can see the completion");
    let expected: Vec<_> = (1..6).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(statuses(&pair.requester), expected);
}

#[test]
fn an_event_comes_with_its_completion() {
    let mut pair = struck("event operation=receive nth=1 event=comm-est", u64::MAX);
    let expected = AsyncEvent::CommunicationEstablished(pair.responder.qpn);
    assert_eq!(pair.responder.driver.rnic_mut().poll_event(), Some(expected));
    assert_eq!((pair.responder.state(), statuses(&pair.requester).len()), (QpState::ReadyToSend, 6));

    let mut pair = struck("event operation=send nth=1 event=qp-access-err", u64::MAX);
    let expected = AsyncEvent::QpAccessError(pair.requester.qpn);
    assert_eq!(pair.requester.driver.rnic_mut().poll_event(), Some(expected));
    assert_eq!(pair.requester.state(), QpState::Error);
    let statuses = statuses(&pair.requester);
    assert_eq!((statuses[0].1, statuses[5].1), (Status::Success, Status::WorkRequestFlushed));

    // Without a shared receive queue, nothing can raise its event, so the rule does not fire.
    let text = "event nth=1.. event=srq-limit-reached";
    let pair = struck(text, u64::MAX);
    let journal = String::from_utf8(pair.journal.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.parse::<FaultPlan>().unwrap().unfired(&journal).len(), 1, "{journal}");
}

#[test]
fn a_black_hole_ends() {
    let pair = under("black-hole");
    assert!(pair.now_ns >= 20_000_000);
    assert!(pair.requester.counters().tx_retransmitted_packets >= 1);
}

#[test]
fn a_ghost_of_an_earlier_connection_delivers_nothing() {
    let plan = built_in("ghost-packets");
    let mut pair = Pair::new(&plan);
    pair.post_all();
    pair.run_until(100_000_000);
    pair.assert_done("ghost-packets");
    // Both queue pairs begin a new connection under the same numbers, with PSNs half the space away.
    for end in [&mut pair.requester, &mut pair.responder] {
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        end.driver.rnic_mut().modify_qp(end.qpn, &reset).unwrap();
    }
    pair.connect(Psn::new(0x7f_0000));
    pair.responder.receive(200, RECEIVED[0]);
    pair.run_until(u64::MAX);
    assert!(pair.now_ns >= 500_000_000, "the ghost has not arrived");
    assert_eq!(pair.responder.reap(), Vec::new(), "the ghost was delivered");
    let data = pair.requester.sge(DATA, MESSAGE_BYTES);
    pair.requester.post(pair.now_ns, 201, SendOperation::Send, data);
    pair.run_until(u64::MAX);
    let ids = |end: &End| end.reap().iter().map(|it| (it.wr_id, it.status)).collect::<Vec<_>>();
    assert_eq!(ids(&pair.requester), [(201, Status::Success)]);
    assert_eq!(ids(&pair.responder), [(200, Status::Success)]);
    pair.assert_fired("ghost-packets", &plan);
}
