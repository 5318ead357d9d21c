//! What the connections of each protocol really post, against the steps that its description has.
//!
//! Packets are counted on a wire between two devices of one thread, so that it is known what each end had seen when it
//! polled. The keep-alive is off, and nobody says goodbye.

#[path = "../benches/protocols/wire.rs"]
#[allow(dead_code, missing_docs, reason = "benches use the rest")]
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use doorbell_exchange::{Config, Connector, MessageConnection, Submit, with_connector};
use doorbell_protocols::{End, Protocol, Run, Size, Step, Store};
use doorbell_verbs::{Completion, Cq, Device};
use doorbell_wire::{BTH_LEN, BthPacket, MessageKind, Opcode, Operation, RETH_LEN, RethRepr};

/// Longer than anything here takes, however slow the machine: protection against hanging.
const PATIENCE_NS: u64 = 120_000_000_000;

/// How often each operation of each length was posted. A kind is a number, since kinds have no order.
type Counts = BTreeMap<(usize, u64), u64>;

fn number(kind: MessageKind) -> usize {
    MessageKind::ALL.iter().position(|&other| other == kind).expect("a kind")
}

/// The operations of a device, from its packets.
#[derive(Default)]
struct Seen {
    counts: Counts,
    /// Packets that were seen already: a busy machine may send some again.
    packets: BTreeSet<(u32, u32)>,
    total: u64,
    /// Sequence numbers of the last request that this device sent, and of the last that it answered.
    requested: Option<u32>,
    answered: Option<u32>,
}

impl Seen {
    fn take(&mut self, packet: &[u8]) {
        const ICRC_BYTES: usize = 4;
        self.total += 1;
        let bth = BthPacket::new_checked(packet).expect("a packet of RoCE");
        let opcode = bth.opcode();
        // One queue pair and one packet per message: what is last is highest, but for what is sent again.
        let last = if opcode.is_request() { &mut self.requested } else { &mut self.answered };
        let psn = bth.psn().get();
        if last.is_none_or(|last| is_at_least(psn, last)) {
            *last = Some(psn);
        }
        let Some((kind, is_new)) = kind(opcode) else { return };
        assert!(opcode.is_only() || kind == MessageKind::Read, "messages of this test have one packet: {opcode:?}");
        if !is_new || !self.packets.insert((bth.dest_qpn().get(), bth.psn().get())) {
            return;
        }
        let behind = &packet[BTH_LEN..];
        let bytes = match behind.first_chunk::<RETH_LEN>() {
            Some(reth) if opcode.has_reth() => u64::from(RethRepr::read(reth).dma_length),
            _ if opcode.has_atomic_eth() => 8,
            _ => (behind.len() - opcode.extension_len() - usize::from(bth.pad_count()) - ICRC_BYTES) as u64,
        };
        *self.counts.entry((number(kind), bytes)).or_default() += 1;
    }
}

/// Compares sequence numbers, which wrap.
fn is_at_least(psn: u32, other: u32) -> bool {
    psn.wrapping_sub(other) & 0xff_ffff < 1 << 23
}

/// The operation that a request packet belongs to, and whether it is the first of it.
fn kind(opcode: Opcode) -> Option<(MessageKind, bool)> {
    if !opcode.is_request() {
        return None;
    }
    let kind = match (opcode.operation()?, opcode.has_imm()) {
        (Operation::Send, false) => MessageKind::Send,
        (Operation::Send, true) => MessageKind::SendImm,
        (Operation::Write, false) => MessageKind::Write,
        (Operation::Write, true) => MessageKind::WriteImm,
        (Operation::ReadRequest, _) => MessageKind::Read,
        (Operation::FetchAdd, _) => MessageKind::FetchAdd,
        other => panic!("no protocol posts {other:?}"),
    };
    Some((kind, opcode.is_first() || opcode.is_only()))
}

/// Two devices, and what each has posted.
struct Stage {
    devices: [Device; 2],
    seen: [Arc<Mutex<Seen>>; 2],
    /// Empty queues: polling them lets a device work without its connections noticing.
    idle: [Cq; 2],
}

impl Stage {
    fn new() -> Self {
        let seen: [Arc<Mutex<Seen>>; 2] = Default::default();
        let tap = |seen: &Arc<Mutex<Seen>>| -> wire::Tap {
            let seen = Arc::clone(seen);
            Box::new(move |packet| seen.lock().unwrap_or_else(PoisonError::into_inner).take(packet))
        };
        let devices = wire::tapped_devices([Some(tap(&seen[0])), Some(tap(&seen[1]))]);
        let idle = [0, 1].map(|index: usize| devices[index].create_cq(1).expect("a completion queue"));
        Self { devices, seen, idle }
    }

    fn pair<P: Connector>(&self, connector: &P, config: &Config) -> [P::Connection; 2] {
        let [a, b] = [0, 1].map(|index: usize| {
            let pd = self.devices[index].create_pd().expect("a protection domain");
            connector.endpoint(&pd, config, None).expect("an endpoint")
        });
        let (of_a, of_b) = (connector.describe(&a), connector.describe(&b));
        [connector.connect(a, &of_b).expect("a connection"), connector.connect(b, &of_a).expect("a connection")]
    }

    /// Packets so far, and whether all requests among them were answered.
    fn packets(&self) -> (u64, bool) {
        let [a, b] = [0, 1].map(|index: usize| {
            let Seen { total, requested, answered, .. } =
                *self.seen[index].lock().unwrap_or_else(PoisonError::into_inner);
            (total, requested, answered)
        });
        let is_answered = |requested: Option<u32>, answered: Option<u32>| {
            requested.is_none_or(|requested| answered.is_some_and(|answered| is_at_least(answered, requested)))
        };
        (a.0 + b.0, is_answered(a.1, b.2) && is_answered(b.1, a.2))
    }

    /// Lets both devices work until all that was posted is answered, and the answers have been taken.
    fn settle(&self) {
        const POLLS: u32 = 50;
        let (mut quiet, mut before) = (0, 0);
        while quiet < POLLS {
            for cq in &self.idle {
                cq.poll(&mut [Completion::default()]).expect("an empty queue");
            }
            let (packets, is_answered) = self.packets();
            quiet = if is_answered && packets == before { quiet + 1 } else { 0 };
            before = packets;
        }
    }

    fn counts(&self) -> [Counts; 2] {
        [0, 1].map(|index: usize| self.seen[index].lock().unwrap_or_else(PoisonError::into_inner).counts.clone())
    }
}

/// What an end did in a run: the messages that it sent and those that it received, and what it posted.
struct Done {
    sent: Run,
    received: Run,
    posted: Counts,
}

/// An operation by its number, and its length if that is one for all.
type Class = (usize, Option<u64>);

/// How often operations of a class may be posted.
#[derive(Clone, Copy)]
struct Allowed {
    least: u64,
    most: Option<u64>,
    /// Their length is a multiple of this.
    unit: u64,
}

/// Holds what an end posted against steps. All operations of one kind and length belong together.
fn check(steps: &[Step], done: &Done) -> Result<(), String> {
    let mut classes: BTreeMap<Class, Allowed> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.is_part(done.sent.credits)) {
        let posts = step.posts(if step.by == End::Sender { &done.sent } else { &done.received });
        // One operation may be for several messages or buffers: then it is as long as all of these.
        let (bytes, unit) = match step.size {
            Size::AllNew { unit, .. } => (None, unit),
            Size::Entries(entry) => (None, entry),
            Size::Message { .. } | Size::Fixed(_) => (Some(posts.bytes), 1),
        };
        let class = classes.entry((number(step.operation), bytes)).or_insert(Allowed { least: 0, most: Some(0), unit });
        class.least += posts.least;
        class.most = class.most.zip(posts.most).map(|(all, most)| all + most);
    }
    let mut counts: BTreeMap<Class, u64> = classes.keys().map(|&class| (class, 0)).collect();
    for (&(kind, bytes), count) in &done.posted {
        let whole = |class: &Class| classes.get(class).is_some_and(|allowed| bytes.is_multiple_of(allowed.unit));
        let class = [(kind, Some(bytes)), (kind, None)].into_iter().find(|class| whole(class));
        let class = class.ok_or_else(|| format!("no step posts {:?} of {bytes} B", MessageKind::ALL[kind]))?;
        *counts.entry(class).or_default() += count;
    }
    for (class, count) in counts {
        let Allowed { least, most, .. } = classes[&class];
        if count < least || most.is_some_and(|most| count > most) {
            let (kind, bytes) = (MessageKind::ALL[class.0], class.1);
            return Err(format!("{kind:?} of {bytes:?} B was posted {count} times, not {least} to {most:?} times"));
        }
    }
    Ok(())
}

/// Bytes of a message of which a ring of one page has room for one.
const ALONE_BYTES: usize = 3500;

/// One message at a time, into room for one, each end polled only once all is complete: then every step is posted for
/// every message, and it is known how often an end asks. Returns what the sender did and what the receiver did.
fn one_by_one<P: Connector>(connector: &P, credits: bool, messages: u64) -> [Done; 2] {
    let config = Config::default()
        .window(1)
        .depth(1)
        .max_message(ALONE_BYTES)
        .credits(credits)
        .timeout_exponent(18)
        .keepalive(Duration::ZERO);
    let stage = Stage::new();
    let [mut a, mut b] = stage.pair(connector, &config);
    let mut polls = [0_u64; 2];
    let mut poll_a = |a: &mut P::Connection| {
        assert!(polls[0] < 100 * messages, "nothing moves any more");
        polls[0] += 1;
        a.poll().expect("a connection");
        stage.settle();
    };
    let mut polls_of_b = 0;
    let mut poll_b = |b: &mut P::Connection| {
        polls_of_b += 1;
        b.poll().expect("a connection");
        stage.settle();
    };
    let message = vec![7; ALONE_BYTES];
    for _ in 0..messages {
        let id = loop {
            match a.send(&message).expect("a connection") {
                Submit::Accepted(id) => break id,
                Submit::Full(_) => poll_a(&mut a),
            }
        };
        stage.settle();
        let received = loop {
            poll_a(&mut a);
            poll_b(&mut b);
            if let Some(received) = b.take() {
                break received;
            }
        };
        drop(received);
        // Now it is free: the receiver reports that, or lets itself be asked.
        poll_b(&mut b);
        while a.last_done() < id {
            poll_a(&mut a);
        }
    }
    polls[1] = polls_of_b;
    let run = |messages, end: usize| Run {
        messages,
        bytes: ALONE_BYTES as u64,
        space: Some(1),
        credits,
        polls: Some(polls[end]),
        ..Run::default()
    };
    let [by_a, by_b] = stage.counts();
    [
        Done { sent: run(messages, 0), received: run(0, 0), posted: by_a },
        Done { sent: run(0, 1), received: run(messages, 1), posted: by_b },
    ]
}

/// Many messages unacknowledged, in batches, each way as many as asked for, some held for a while.
fn many_at_once<P: Connector>(connector: &P, credits: bool, messages: [u64; 2], bytes: usize) -> [Done; 2] {
    let config = Config::default()
        .window(32)
        .batch(4)
        .depth(40)
        .max_message(2000)
        .credits(credits)
        .timeout_exponent(18)
        .keepalive(Duration::ZERO);
    let stage = Stage::new();
    let mut ends = stage.pair(connector, &config);
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut held = [Vec::new(), Vec::new()];
    let message = vec![7; bytes];
    let device = ends[0].qp().pd().device().clone();
    let (until_ns, mut rounds) = (device.now_ns() + PATIENCE_NS, 0);
    while received != [messages[1], messages[0]] || ends.iter().any(|end| end.unacknowledged() > 0) {
        rounds += 1;
        // Not so many rounds: while a device's thread is in the midst of its work and does not run, polling takes no
        // time.
        assert!(device.now_ns() < until_ns, "nothing moves any more: {sent:?} sent, {received:?} received");
        for (index, end) in ends.iter_mut().enumerate() {
            // In one round as many as go, in another a few.
            for _ in 0..[32, 1, 5][rounds % 3] {
                if sent[index] == messages[index] {
                    break;
                }
                let Submit::Accepted(id) = end.send(&message).expect("a connection") else { break };
                sent[index] = id;
            }
            end.poll().expect("a connection");
            while let Some(message) = end.take() {
                received[index] += 1;
                held[index].push(message);
            }
            if rounds % 4 == index || held[index].len() > 20 {
                held[index].clear();
            }
        }
    }
    stage.settle();
    let slots = connector.protocol().description().received_into == Store::Slots;
    let run = |messages, answers| Run {
        messages,
        bytes: bytes as u64,
        window: 32,
        batch: 4,
        depth: 40,
        // A ring has room for more than that.
        space: slots.then_some(40),
        credits,
        is_answered: answers > 0,
        polls: None,
    };
    let [to_b, to_a] = messages;
    let [by_a, by_b] = stage.counts();
    [
        Done { sent: run(to_b, to_a), received: run(to_a, to_b), posted: by_a },
        Done { sent: run(to_a, to_b), received: run(to_b, to_a), posted: by_b },
    ]
}

fn check_both(steps: &[Step], done: &[Done; 2]) -> Result<(), String> {
    check(steps, &done[0]).and_then(|()| check(steps, &done[1]))
}

/// With credits, and without where that is possible.
fn credits_of(protocol: Protocol) -> &'static [bool] {
    if protocol.is_possible_without_credits() { &[true, false] } else { &[true] }
}

#[test]
fn connections_post_what_their_steps_say() {
    for protocol in Protocol::ALL {
        for &credits in credits_of(protocol) {
            for (messages, bytes) in [([500, 0], 100), ([300, 400], 1000), ([0, 200], 2000)] {
                let done = with_connector!(protocol, connector => many_at_once(&connector, credits, messages, bytes));
                check_both(protocol.steps(), &done)
                    .unwrap_or_else(|error| panic!("{protocol}, {messages:?} messages of {bytes} B: {error}"));
            }
        }
    }
}

/// The check sees every step: without one of them, or with one of them twice, a description does not fit what
/// connections post.
#[test]
fn a_step_too_few_or_too_many_is_noticed() {
    for protocol in Protocol::ALL {
        for &credits in credits_of(protocol) {
            let done = with_connector!(protocol, connector => one_by_one(&connector, credits, 12));
            let steps = protocol.steps();
            check_both(steps, &done).unwrap_or_else(|error| panic!("{protocol}: {error}"));
            for (index, step) in steps.iter().enumerate().filter(|(_, step)| step.is_part(credits)) {
                let mut fewer = steps.to_vec();
                fewer.remove(index);
                assert!(check_both(&fewer, &done).is_err(), "{protocol} without {step:?}");
                let mut more = steps.to_vec();
                more.push(*step);
                assert!(check_both(&more, &done).is_err(), "{protocol} with another {step:?}");
            }
        }
    }
}

/// A receiver that is faster than its sender frees one buffer at a time and is idle after each. It grants them in
/// groups all the same: a grant costs two WRITEs.
#[test]
fn an_idle_receiver_does_not_grant_each_buffer_by_itself() {
    const MESSAGES: u64 = 200;
    let config = Config::default().window(32).depth(40).max_message(64).timeout_exponent(18).keepalive(Duration::ZERO);
    let stage = Stage::new();
    let [mut a, mut b] = stage.pair(&doorbell_exchange::DirectWrite, &config);
    for number in 0..MESSAGES {
        assert!(matches!(a.send(&[1; 64]).expect("a connection"), Submit::Accepted(_)), "message {number}");
        stage.settle();
        while b.take().is_none() {
            b.poll().expect("a connection");
        }
        for _ in 0..5 {
            b.poll().expect("a connection");
            stage.settle();
            a.poll().expect("a connection");
        }
    }
    let [_, by_b] = stage.counts();
    let (posted, groups) = (by_b.values().sum::<u64>(), MESSAGES / 10);
    // Two WRITEs each, three where the ring of grants ends in between.
    assert!((2 * groups - 2..=3 * groups).contains(&posted), "{posted} WRITEs for {MESSAGES} buffers");
}
