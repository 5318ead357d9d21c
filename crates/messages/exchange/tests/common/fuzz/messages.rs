//! Fuzzing of messages. A bare queue pair is the peer of a connection, and sends operations of the protocol in
//! arbitrary order.

use std::cell::RefCell;
use std::collections::VecDeque;

use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{self, Acknowledge, DirectRead, Fence, Placement};
use doorbell_exchange::direct_write::Grants;
use doorbell_exchange::send_receive::{Endpoint, Hub, Reposting, SharedOptions, SharedReceives};
use doorbell_exchange::shared_write::Reserves;
use doorbell_exchange::{
    BufferedRead, Config, Connector, DirectWrite, MessageConnection, Received, SendReceive, SharedWrite,
};
use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, MemoryKind, RKey, Region, SendOperation as Op};

use super::super::bare::{Bare, OPEN_BYTES, Stage, config};
use super::Choices;

/// Names of the variants of a conversation.
pub const VARIANTS: [&str; 21] = [
    "send-receive",
    "send-receive without credits",
    "send-receive, shared receives",
    "send-receive, hub",
    "direct-read",
    "direct-read, fenced",
    "direct-read, send",
    "direct-read, send, fenced",
    "direct-read, by hand",
    "direct-write",
    "buffered-write immediate send",
    "buffered-write immediate read",
    "buffered-write tail send",
    "buffered-write tail read",
    "buffered-write reverse send",
    "buffered-write reverse read",
    "buffered-read",
    "shared-write",
    "direct-read, fenced, awaited",
    "direct-write, a grant for each buffer",
    "shared-write, a reservation for each message",
];

/// Names of the steps that a bare peer or its victim can take. The victim is the connection under test.
pub const STEPS: [&str; 16] = [
    "message of the protocol",
    "SEND",
    "SEND with immediate",
    "WRITE with immediate",
    "WRITE",
    "WRITE of a number",
    "number in its own memory",
    "READ",
    "atomic",
    "SEND with invalidate",
    "replay",
    "goodbye",
    "victim sends",
    "victim receives",
    "victim frees",
    "victim closes",
];

const MOST_STEPS: usize = 60;
/// Byte that fills the memory that a bare peer must not reach.
const SECRET: u8 = 0xee;
/// Number of such bytes in a row that no bare peer writes. A word of a peer, for example an address, may contain some.
const SECRET_RUN: usize = 9;

/// Result of a conversation.
#[derive(Debug)]
pub struct Ending {
    pub variant: usize,
    /// Number of times that each step was taken.
    pub steps: [u64; STEPS.len()],
    /// Number of messages that the victim received.
    pub received: u64,
    /// Number of messages that the victim sent.
    pub sent: u64,
    /// Reason for which the connection ended, or `None` if the connection did not end.
    pub over: Option<String>,
}

/// Runs the conversation whose choices the bytes determine.
pub fn fuzz_messages(data: &[u8]) {
    converse(data);
}

thread_local! {
    static STAGE: RefCell<(Stage, Region)> = RefCell::new({
        let stage = Stage::new();
        let secret = stage.pd.allocate(1 << 16, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
        secret.fill(0, 1 << 16, SECRET);
        (stage, secret)
    });
}

/// Runs the conversation whose choices the bytes determine, and returns the result.
pub fn converse(data: &[u8]) -> Ending {
    STAGE.with_borrow_mut(|(stage, secret)| {
        let mut choices = Choices(data);
        let variant = choices.below(VARIANTS.len());
        let ending = converse_about(stage, variant, &mut choices);
        stage.check_health();
        let mut bytes = vec![0; 1 << 16];
        secret.copy_out(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == SECRET), "memory that no peer may access was written");
        ending
    })
}

fn converse_about(stage: &mut Stage, variant: usize, choices: &mut Choices<'_>) -> Ending {
    let write = |notification, acknowledge| BufferedWrite { notification, acknowledge };
    let read = |fence, acknowledge| DirectRead { fence, acknowledge, ..DirectRead::default() };
    use Notification::{Immediate, Reverse, TailOffset};
    use buffered_write::Acknowledge as Tell;
    match variant {
        0 => plain(stage, variant, choices, SendReceive),
        1 => {
            let config = config().credits(false);
            let (bare, connection) = Bare::meet(&SendReceive, &stage.pd, &stage.other, &config, |_| {});
            Talk::new(variant, bare, connection.expect("a connection")).run(choices, |_, _| {})
        }
        2 => {
            let options = SharedOptions { depth: 8, connections: 2, max_message: 500, reposting: Reposting::Locked };
            let shared = SharedReceives::new(&stage.pd, options).expect("shared receives");
            let endpoint = Endpoint::sharing(&shared, config(), None).expect("an endpoint");
            let peer = endpoint.description();
            let (bare, connection) = Bare::join(&stage.other, peer, |_| {}, |own| endpoint.connect(own));
            let talk = Talk::new(variant, bare, connection.expect("a connection"));
            let ending = talk.run(choices, |_, _| {});
            shared.repost().expect("receives are posted again");
            assert_eq!(shared.srq().posted(), Some(8 + 2 * 3), "a receive is lost");
            ending
        }
        3 => hub(stage, choices),
        4 => plain(stage, variant, choices, read(Fence::Nothing, Acknowledge::SignalByte)),
        5 => plain(stage, variant, choices, read(Fence::ReadCompletion, Acknowledge::SignalByte)),
        6 => plain(stage, variant, choices, read(Fence::Nothing, Acknowledge::Send)),
        7 => plain(stage, variant, choices, read(Fence::ReadCompletion, Acknowledge::Send)),
        8 => {
            let protocol = DirectRead { placement: Placement::ByHand, ..DirectRead::default() };
            let (bare, connection) = Bare::meet(&protocol, &stage.pd, &stage.other, &config(), |_| {});
            let place = stage.pd.allocate(1 << 14, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
            Talk::new(variant, bare, connection.expect("a connection")).run(
                choices,
                |connection: &mut direct_read::Connection, choices| {
                    // Any read request of the peer may make this call fail with a misuse or with the end of the
                    // connection.
                    let _ = connection.read_into(&place, choices.below(1 << 14));
                },
            )
        }
        9 => plain(stage, variant, choices, DirectWrite::default()),
        10 => plain(stage, variant, choices, write(Immediate, Tell::Send)),
        11 => plain(stage, variant, choices, write(Immediate, Tell::Read)),
        12 => plain(stage, variant, choices, write(TailOffset, Tell::Send)),
        13 => plain(stage, variant, choices, write(TailOffset, Tell::Read)),
        14 => plain(stage, variant, choices, write(Reverse, Tell::Send)),
        15 => plain(stage, variant, choices, write(Reverse, Tell::Read)),
        16 => plain(stage, variant, choices, BufferedRead),
        17 => plain(stage, variant, choices, SharedWrite::default()),
        18 => plain(stage, variant, choices, read(Fence::AcknowledgementCompletion, Acknowledge::SignalByte)),
        19 => plain(stage, variant, choices, DirectWrite { grants: Grants::Each }),
        _ => plain(stage, variant, choices, SharedWrite { reserves: Reserves::Each }),
    }
}

fn plain<P: Connector>(stage: &mut Stage, variant: usize, choices: &mut Choices<'_>, protocol: P) -> Ending {
    let (bare, connection) = Bare::meet(&protocol, &stage.pd, &stage.other, &config(), |_| {});
    Talk::new(variant, bare, connection.expect("a connection")).run(choices, |_, _| {})
}

/// Runs a conversation with a connection of a hub, while another connection leaves the hub.
fn hub(stage: &mut Stage, choices: &mut Choices<'_>) -> Ending {
    let mut hub = Hub::for_connections(&stage.pd, &config(), 2, None).expect("a hub");
    let join = |hub: &mut Hub| {
        let endpoint = hub.endpoint(config(), None).expect("an endpoint");
        let peer = endpoint.description();
        let (bare, connection) = Bare::join(&stage.other, peer, |_| {}, |own| endpoint.connect(own));
        (bare, hub.add(connection.expect("a connection")).expect("a connection of this hub"))
    };
    let (mut bare, key) = join(&mut hub);
    let (_quiet, other) = join(&mut hub);
    let mut ending = Ending { variant: 3, steps: [0; STEPS.len()], received: 0, sent: 0, over: None };
    let mut steps = 0;
    let mut held = Vec::new();
    while !choices.is_empty() && steps < MOST_STEPS {
        steps += 1;
        let step = choices.below(STEPS.len());
        ending.steps[step] += 1;
        match step {
            0 => drop(bare.post(Op::SendImmediate(4), &vec![1; choices.below(420)])),
            1 => drop(bare.post(Op::Send, &vec![1; choices.below(420)])),
            2 | 11 => {
                let length = if choices.chance() { 0 } else { choices.below(420) };
                bare.post(Op::SendImmediate(word(choices)), &vec![1; length]);
            }
            3 => drop(bare.post(write_immediate_nowhere(choices), &[])),
            9 => drop(bare.post(Op::SendInvalidate(RKey::new(choices.word() as u32)), &[])),
            12 => {
                if let Some(connection) = hub.get_mut(key) {
                    ending.sent += u64::from(connection.send(&vec![2; choices.below(401)]).is_ok());
                }
            }
            13 | 10 => {
                while let Some((_, message)) = hub.receive().expect("a queue that is long enough") {
                    assert!(message.len() <= 400 && message.iter().all(|&byte| byte == 1));
                    ending.received += 1;
                    held.push(message);
                }
            }
            14 => held.clear(),
            15 if choices.byte() < 32 => drop(hub.remove(other)),
            _ => drop(hub.poll().expect("a queue that is long enough")),
        }
    }
    bare.settle(|| _ = hub.poll().expect("a queue that is long enough"));
    ending.over = hub.get(key).and_then(|connection| connection.over()).map(|error| error.to_string());
    hub.remove(key);
    drop(hub);
    assert!(held.iter().all(|message| message.iter().all(|&byte| byte == 1)), "a held message has changed");
    ending
}

/// Returns immediate data: a flag bit of a protocol with a small number, or an arbitrary value.
fn word(choices: &mut Choices<'_>) -> u32 {
    let high = u32::from(choices.byte() & 0xf) << 28;
    match choices.byte() % 4 {
        0 => high,
        1 | 2 => high | u32::from(choices.byte() % 24),
        _ => choices.word() as u32,
    }
}

fn write_immediate_nowhere(choices: &mut Choices<'_>) -> Op {
    Op::WriteImmediate { remote_address: 0, rkey: RKey::new(0), immediate: word(choices) }
}

/// A conversation of a bare peer with the connection under test.
struct Talk<C: MessageConnection> {
    bare: Bare,
    connection: C,
    held: Vec<(C::Message, Vec<u8>)>,
    /// Messages that the bare peer has sent by SEND or announced by a read request. The victim may receive only these
    /// messages.
    expected: Option<VecDeque<Vec<u8>>>,
    said: Vec<(Op, Vec<u8>)>,
    /// Position in the ring of the next valid message.
    tail: u64,
    /// Number of valid messages that the bare peer has sent.
    messages: u64,
    /// Number of arbitrary steps in 256 steps, on average.
    mischief: u8,
    ending: Ending,
}

impl<C: MessageConnection> Talk<C> {
    fn new(variant: usize, bare: Bare, connection: C) -> Self {
        let pattern: Vec<u8> = (0..OPEN_BYTES / 2).map(pattern).collect();
        let is_read = matches!(bare.peer.protocol.protocol(), Some(Protocol::DirectRead | Protocol::DirectReadSend));
        if is_read {
            bare.open.copy_in(0, &pattern);
        }
        let expected = (is_read || bare.peer.protocol == Protocol::SendReceive.wire_id()).then(VecDeque::new);
        let ending = Ending { variant, steps: [0; STEPS.len()], received: 0, sent: 0, over: None };
        Self {
            bare,
            connection,
            held: Vec::new(),
            expected,
            said: Vec::new(),
            tail: 0,
            messages: 0,
            mischief: 0,
            ending,
        }
    }

    fn run(mut self, choices: &mut Choices<'_>, mut by_hand: impl FnMut(&mut C, &mut Choices<'_>)) -> Ending {
        self.mischief = [255, 100, 30, 10][choices.below(4)];
        let mut steps = 0;
        while !choices.is_empty() && steps < MOST_STEPS {
            steps += 1;
            self.step(choices);
            by_hand(&mut self.connection, choices);
            if choices.byte() < 96 {
                self.bare.settle(|| _ = self.connection.poll());
            }
        }
        self.receive();
        self.bare.settle(|| _ = self.connection.poll());
        self.receive();
        self.connection.close();
        for _ in 0..20 {
            self.bare.poll();
            let _ = self.connection.poll();
        }
        self.receive();
        let Self { bare, connection, held, mut ending, .. } = self;
        ending.over = connection.over().map(|error| error.to_string());
        drop(connection);
        drop(bare);
        // A message that the program holds must keep its bytes after the peer is gone.
        assert!(held.iter().all(|(message, bytes)| message.len() == bytes.len()));
        ending
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        // Indices in `STEPS` of the steps that follow the protocol. Most conversations take them often, since otherwise
        // the first check would end every connection.
        const LAWFUL: [usize; 8] = [0, 0, 12, 12, 13, 14, 13, 15];
        let step = match choices.byte() < self.mischief {
            true => choices.below(STEPS.len()),
            false => LAWFUL[choices.below(LAWFUL.len())],
        };
        self.ending.steps[step] += 1;
        match step {
            0 => self.say_message(choices),
            1 => {
                let bytes = if choices.chance() { Vec::new() } else { bytes(choices, 500) };
                self.say(Op::Send, bytes);
            }
            2 => {
                let bytes = if choices.chance() { Vec::new() } else { bytes(choices, 500) };
                self.say(Op::SendImmediate(word(choices)), bytes);
            }
            3 => {
                let immediate = word(choices);
                let (remote_address, rkey) = self.place(choices);
                let bytes = if choices.chance() { Vec::new() } else { bytes(choices, 500) };
                self.say(Op::WriteImmediate { remote_address, rkey, immediate }, bytes);
            }
            4 => {
                let (remote_address, rkey) = self.place(choices);
                let bytes = bytes(choices, 500);
                self.say(Op::Write { remote_address, rkey }, bytes);
            }
            5 => {
                let region = self.bare.peer.regions[choices.below(2)];
                let remote_address = region.address.wrapping_add(8 * choices.below(17) as u64);
                let number = self.number(choices).to_le_bytes().to_vec();
                self.say(Op::Write { remote_address, rkey: region.rkey }, number);
            }
            6 => {
                // This offset lies after the memory that read requests announce.
                let at = OPEN_BYTES / 2 + 8 * choices.below(OPEN_BYTES / 16);
                let at = if choices.chance() { OPEN_BYTES / 2 + (at & 0x78) } else { at };
                let number = self.number(choices);
                self.bare.open.store_release_u64(at, number.to_le());
            }
            7 => {
                let (remote_address, rkey) = self.place(choices);
                let bytes = vec![0; choices.below(500)];
                self.say(Op::Read { remote_address, rkey }, bytes);
            }
            8 => {
                let words = self.bare.peer.regions[1];
                let remote_address = words.address.wrapping_add(8 * choices.below(3) as u64);
                let rkey = words.rkey;
                let add = self.number(choices);
                let swap = Op::CompareSwap { remote_address, rkey, compare: self.tail, swap: add };
                let operation = if choices.chance() { Op::FetchAdd { remote_address, rkey, add } } else { swap };
                self.say(operation, vec![0; 8]);
            }
            9 => {
                let rkey =
                    if choices.chance() { self.bare.peer.regions[0].rkey } else { RKey::new(choices.word() as u32) };
                let bytes = bytes(choices, 20);
                self.say(Op::SendInvalidate(rkey), bytes);
            }
            10 => {
                if !self.said.is_empty() {
                    let (operation, bytes) = self.said[choices.below(self.said.len())].clone();
                    self.say(operation, bytes);
                }
            }
            11 => {
                let is_words = self.bare.peer.protocol == Protocol::SendReceive.wire_id();
                let word = if is_words { 3 << 30 | u32::from(choices.byte() % 8) } else { 1 << 31 };
                self.say(Op::SendImmediate(word), Vec::new());
            }
            12 => {
                let message = bytes(choices, 410);
                self.ending.sent += u64::from(self.connection.send(&message).is_ok());
                if choices.chance() {
                    let _ = self.connection.flush();
                }
            }
            13 => self.receive(),
            14 => {
                if !self.held.is_empty() {
                    let at = choices.below(self.held.len());
                    drop(self.held.swap_remove(at));
                }
            }
            _ if choices.byte() < 16 => self.connection.close(),
            _ => drop(self.connection.poll()),
        }
    }

    fn say(&mut self, operation: Op, bytes: Vec<u8>) {
        if self.bare.post(operation, &bytes) {
            if let Some(expected) = &mut self.expected
                && matches!(operation, Op::Send | Op::SendImmediate(_))
            {
                expected.push_back(match self.bare.peer.protocol.protocol() {
                    Some(Protocol::SendReceive) => bytes.clone(),
                    _ => self.bare.named(&bytes),
                });
            }
            if self.said.len() < 32 {
                self.said.push((operation, bytes));
            }
        }
    }

    /// Sends a message as the protocol requires. The victim accepts the message if the earlier steps were valid.
    fn say_message(&mut self, choices: &mut Choices<'_>) {
        let message = bytes(choices, 410);
        let length = message.len();
        let [first, second] = self.bare.peer.regions;
        let mut word = (length as u64).to_le_bytes();
        word[7] = 1;
        let ring = first.length / 2;
        let space = |bytes: usize| bytes.next_multiple_of(16).max(16) as u64;
        let at = |position: u64| first.address.wrapping_add(position % ring.max(1));
        let rkey = first.rkey;
        self.messages += 1;
        let Some(protocol) = self.bare.peer.protocol.protocol() else { return };
        match protocol {
            Protocol::SendReceive if self.bare.peer.credits => self.say(Op::SendImmediate(4), message),
            Protocol::SendReceive => self.say(Op::Send, message),
            Protocol::DirectRead | Protocol::DirectReadSend => {
                let offset = choices.below(OPEN_BYTES / 2 - 500) as u64;
                let mut request = (self.bare.open.address() + offset).to_be_bytes().to_vec();
                request.extend(self.bare.open.rkey().get().to_be_bytes());
                request.extend((length as u32).to_be_bytes());
                request.extend(&message[..length.min(choices.below(70))]);
                self.say(Op::Send, request);
            }
            Protocol::DirectWrite | Protocol::DirectWriteEach => {
                let stride = 448;
                let slot = (self.messages - 1) % 4;
                let end = second.address.wrapping_add((slot + 1) * stride);
                let remote_address = end.wrapping_sub(length as u64 + 8);
                self.say(Op::Write { remote_address, rkey: second.rkey }, [&message[..], &word].concat());
            }
            Protocol::BufferedWriteImmediateSend | Protocol::BufferedWriteImmediateRead => {
                self.say(Op::WriteImmediate { remote_address: at(self.tail), rkey, immediate: 0 }, message);
                self.tail += space(length);
            }
            Protocol::BufferedWriteTailSend | Protocol::BufferedWriteTailRead => {
                self.say(Op::Write { remote_address: at(self.tail), rkey }, [&word, &message[..]].concat());
                self.tail += space(length + 8);
                let tail = self.tail.to_le_bytes().to_vec();
                self.say(Op::Write { remote_address: second.address, rkey: second.rkey }, tail);
            }
            Protocol::BufferedWriteReverseSend | Protocol::BufferedWriteReverseRead => {
                let end = first.address.wrapping_add(2 * ring - self.tail % ring);
                let remote_address = end.wrapping_sub(length as u64 + 8);
                self.say(Op::Write { remote_address, rkey }, [&message[..], &word].concat());
                self.tail += space(length + 8);
            }
            Protocol::SharedWrite => {
                let (remote_address, words) = (second.address, second.rkey);
                self.say(Op::FetchAdd { remote_address, rkey: words, add: space(length) }, vec![0; 8]);
                let immediate = (self.tail % ring / 16) as u32;
                self.say(Op::WriteImmediate { remote_address: at(self.tail), rkey, immediate }, message);
                self.tail += space(length);
            }
            Protocol::BufferedRead => {
                let offset = (self.tail % (OPEN_BYTES as u64 / 4)) as usize;
                self.bare.open.copy_in(offset, &word);
                self.bare.open.copy_in(offset + 8, &message);
                self.tail += space(length + 8);
                self.bare.open.store_release_u64(OPEN_BYTES / 2, self.tail.to_le());
            }
            other => unreachable!("{other} is not a variant of this test"),
        }
    }

    /// Returns an address and a key, inside or near the memory that the victim has opened.
    fn place(&self, choices: &mut Choices<'_>) -> (u64, RKey) {
        let region = self.bare.peer.regions[choices.below(2)];
        let offset = if choices.chance() { choices.below(256) } else { choices.below(8192) };
        let address = match choices.byte() {
            0..8 => choices.word(),
            8..16 => region.address.wrapping_add(region.length).wrapping_sub(offset as u64),
            _ => region.address.wrapping_add(offset as u64),
        };
        let rkey = if choices.byte() < 8 { RKey::new(choices.word() as u32) } else { region.rkey };
        (address, rkey)
    }

    /// Returns a number for a tail, a head, a count of grants, an address or a length: near a valid value, or
    /// arbitrary.
    fn number(&mut self, choices: &mut Choices<'_>) -> u64 {
        match choices.byte() % 8 {
            0 => 0,
            1 => u64::from(choices.byte() % 32),
            2 => u64::from(choices.byte()) * 16,
            3 => self.tail,
            4 => self.tail + u64::from(choices.byte()) * 16,
            5 => u64::MAX - u64::from(choices.byte()),
            6 => self.bare.open.address() + u64::from(choices.byte()),
            _ => choices.word(),
        }
    }

    /// Takes all messages of the victim, and checks that the peer has sent each message.
    fn receive(&mut self) {
        while let Some(message) = self.connection.take() {
            let bytes = message.to_vec();
            assert!(bytes.len() <= 400, "a message of {} B, the maximum is 400 B", bytes.len());
            let is_secret = |bytes: &[u8]| bytes.iter().all(|&byte| byte == SECRET);
            assert!(!bytes.windows(SECRET_RUN).any(is_secret), "the message has bytes that the peer did not write");
            if let Some(expected) = &mut self.expected {
                // A received byte of 1 matches every sent byte: the receiver may have written a signal byte, which is
                // 1, into a message that was announced but not yet read.
                let is_it = |sent: &Vec<u8>| {
                    sent.len() == bytes.len() && sent.iter().zip(&bytes).all(|(a, b)| a == b || *b == 1)
                };
                while !is_it(&expected.pop_front().expect("a message that was sent")) {}
            }
            self.ending.received += 1;
            self.held.push((message, bytes));
            if self.held.len() > 48 {
                self.held.clear();
            }
        }
        let _ = self.connection.poll();
    }
}

fn pattern(at: usize) -> u8 {
    (at % 200) as u8
}

fn bytes(choices: &mut Choices<'_>, most: usize) -> Vec<u8> {
    let length = choices.below(most);
    let fill = choices.byte() % 0x80;
    (0..length).map(|at| fill ^ (at as u8 & 0x3f)).collect()
}
