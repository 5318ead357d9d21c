//! Compares the operations that the connections of each protocol post with the steps of the protocol.
//!
//! The test counts packets on a wire between two devices. One thread drives both devices, so the test knows which
//! packets each end had received at each poll. Keepalives are off, and the ends send no goodbyes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::wire;
use doorbell_exchange::direct_write::{DirectWrite, Grants};
use doorbell_exchange::{Config, Connector, MessageConnection, Submit, with_connector};
use doorbell_protocols::{End, Protocol, Run, Size, Step, Store};
use doorbell_sync::IgnorePoison;
use doorbell_verbs::{Completion, Cq, Device};
use doorbell_wire::{BTH_LEN, BthPacket, MessageKind, Opcode, PacketOperation, RETH_LEN, RethRepr};

/// Time limit of a test, longer than any test takes on a slow machine.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Number of posted operations of each kind and length. The kind is an index into `MessageKind::ALL`, since map keys
/// need an order.
type Counts = BTreeMap<(usize, u64), u64>;

fn number(kind: MessageKind) -> usize {
    MessageKind::ALL.iter().position(|&other| other == kind).expect("a kind")
}

/// The operations that a device has posted, derived from its packets.
#[derive(Default)]
struct Seen {
    counts: Counts,
    /// Packets that the wire has already carried. The test must not count a retransmitted packet again.
    packets: BTreeSet<(u32, u32)>,
    total: u64,
    /// Sequence number of the latest request that this device sent.
    requested: Option<u32>,
    /// Sequence number of the latest request that this device answered.
    answered: Option<u32>,
}

impl Seen {
    fn take(&mut self, packet: &[u8]) {
        const ICRC_BYTES: usize = 4;
        self.total += 1;
        let bth = BthPacket::new_checked(packet).expect("a packet of RoCE");
        let opcode = bth.opcode();
        // The device has one queue pair, and each message is one packet. A packet that is no retransmission therefore
        // has the highest sequence number.
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

/// Returns whether a sequence number is equal to or after another one. Sequence numbers wrap at 2^24.
fn is_at_least(psn: u32, other: u32) -> bool {
    psn.wrapping_sub(other) & 0xff_ffff < 1 << 23
}

/// Returns the operation of a request packet, and whether the packet is the first packet of the operation.
fn kind(opcode: Opcode) -> Option<(MessageKind, bool)> {
    if !opcode.is_request() {
        return None;
    }
    let kind = match (opcode.operation()?, opcode.has_imm()) {
        (PacketOperation::Send, false) => MessageKind::Send,
        (PacketOperation::Send, true) => MessageKind::SendImm,
        (PacketOperation::Write, false) => MessageKind::Write,
        (PacketOperation::Write, true) => MessageKind::WriteImm,
        (PacketOperation::ReadRequest, _) => MessageKind::Read,
        (PacketOperation::FetchAdd, _) => MessageKind::FetchAdd,
        other => panic!("no protocol posts {other:?}"),
    };
    Some((kind, opcode.is_first() || opcode.is_only()))
}

/// Two devices, and the operations that each device has posted.
struct Stage {
    devices: [Device; 2],
    seen: [Arc<Mutex<Seen>>; 2],
    /// An empty completion queue for each device. Polling it drives the device, while the connections take no
    /// completions.
    idle: [Cq; 2],
}

impl Stage {
    fn new() -> Self {
        let seen: [Arc<Mutex<Seen>>; 2] = Default::default();
        let tap = |seen: &Arc<Mutex<Seen>>| -> wire::Tap {
            let seen = Arc::clone(seen);
            Box::new(move |packet| seen.lock().ignore_poison().take(packet))
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

    /// Returns the number of packets of both devices, and whether all requests were answered.
    fn packets(&self) -> (u64, bool) {
        let [a, b] = [0, 1].map(|index: usize| {
            let Seen { total, requested, answered, .. } = *self.seen[index].lock().ignore_poison();
            (total, requested, answered)
        });
        let is_answered = |requested: Option<u32>, answered: Option<u32>| {
            requested.is_none_or(|requested| answered.is_some_and(|answered| is_at_least(answered, requested)))
        };
        (a.0 + b.0, is_answered(a.1, b.2) && is_answered(b.1, a.2))
    }

    /// Drives both devices until all posted requests are answered and both devices have processed the answers.
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
        [0, 1].map(|index: usize| self.seen[index].lock().ignore_poison().counts.clone())
    }
}

/// Results of one end in a run: the messages that the end sent and received, and the operations that the end posted.
struct Done {
    sent: Run,
    received: Run,
    posted: Counts,
}

/// Class of operations: the kind, and the length if all operations of the class have the same length.
type Class = (usize, Option<u64>);

/// Allowed number of operations of a class.
#[derive(Clone, Copy)]
struct Allowed {
    least: u64,
    most: Option<u64>,
    /// Unit of which each length must be a multiple.
    unit: u64,
}

/// Compares the operations of an end with the steps of its protocol. All operations of one kind and length form one
/// class.
fn check(steps: &[Step], done: &Done) -> Result<(), String> {
    let mut classes: BTreeMap<Class, Allowed> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.is_part(done.sent.credits)) {
        let posts = step.posts(if step.by == End::Sender { &done.sent } else { &done.received });
        // An operation that covers several messages or buffers has the total length of them.
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

/// Bytes of a message that is so long that a ring of one page has no room for a second one.
const ALONE_BYTES: usize = 3500;

/// Sends one message at a time to a receiver with room for one message, and polls each end only after all requests are
/// complete. Each step is then posted once for each message, and the number of polls of each end is known. Returns the
/// results of the sender and of the receiver.
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
        assert!(polls[0] < 100 * messages, "no progress");
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
        // The receiver frees the message. It then reports the free space, or the sender reads the head.
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

/// Sends many messages in both directions at once, in batches. Each end holds some received messages for a while.
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
        // The test limits the time and not the number of rounds: rounds without progress also occur while the thread of
        // a device is preempted.
        assert!(device.now_ns() < until_ns, "no progress: {sent:?} sent, {received:?} received");
        for (index, end) in ends.iter_mut().enumerate() {
            // A round sends up to 32 messages, 1 message or up to 5 messages, in turn.
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
        // A ring has room for 40 or more messages, so the exact number is known only for slots.
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

/// Returns the settings of credits that the protocol allows: on, and possibly off.
fn credits_of(protocol: Protocol) -> &'static [bool] {
    if protocol.is_possible_without_credits() { &[true, false] } else { &[true] }
}

#[test]
fn connections_post_the_steps_of_their_protocol() {
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

/// If one step of a description is missing or doubled, the check must fail.
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
                assert!(check_both(&fewer, &done).is_err(), "{protocol} passes without {step:?}");
                let mut more = steps.to_vec();
                more.push(*step);
                assert!(check_both(&more, &done).is_err(), "{protocol} passes with another {step:?}");
            }
        }
    }
}

/// With a grant for each buffer, the receiver posts one WRITE for each freed buffer and nothing else.
#[test]
fn each_freed_buffer_is_granted_by_one_write() {
    // The ring of grants has 64 places, so it wraps several times.
    const MESSAGES: u64 = 200;
    let config = Config::default().window(32).depth(40).max_message(64).timeout_exponent(18).keepalive(Duration::ZERO);
    let stage = Stage::new();
    let [mut a, mut b] = stage.pair(&DirectWrite { grants: Grants::Each }, &config);
    for number in 0..MESSAGES {
        assert!(matches!(a.send(&[1; 64]).expect("a connection"), Submit::Accepted(_)), "message {number}");
        stage.settle();
        while b.take().is_none() {
            b.poll().expect("a connection");
        }
        b.poll().expect("a connection");
        stage.settle();
        b.poll().expect("a connection");
        a.poll().expect("a connection");
    }
    let [_, by_b] = stage.counts();
    assert_eq!(by_b, Counts::from([((number(MessageKind::Write), 16), MESSAGES)]));
}

/// A receiver that is faster than its sender frees one buffer at a time and is idle after each buffer. The receiver
/// must still grant buffers in groups, since a grant costs two WRITEs.
#[test]
fn an_idle_receiver_grants_buffers_in_groups() {
    const MESSAGES: u64 = 200;
    let config = Config::default().window(32).depth(40).max_message(64).timeout_exponent(18).keepalive(Duration::ZERO);
    let stage = Stage::new();
    let [mut a, mut b] = stage.pair(&DirectWrite::default(), &config);
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
    // Two WRITEs for each group, or three if the ring of grants wraps in between.
    assert!((2 * groups - 2..=3 * groups).contains(&posted), "{posted} WRITEs for {MESSAGES} buffers");
}
