//! Two connected ends, of which the first one sends to the second one.

use doorbell_exchange::send_receive::{Connection, Endpoint};
use doorbell_exchange::{Config, MessageConnection, Submit};
use doorbell_verbs::soft::{self, LinkChoice, SoftOptions};
use doorbell_verbs::{Access, Device, MemoryKind, Region};

use super::turns::{Moved, Turn};
use super::wire;

/// Number of messages through a new connection before a measurement. Until then, the devices have found each other.
const FIRST_MESSAGES: u64 = 256;

/// Link between the two devices of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Wire in memory, which both devices fill and empty.
    Wire,
    SharedMemory,
}

impl Carrier {
    pub(crate) const ALL: [Self; 2] = [Self::Wire, Self::SharedMemory];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wire => "in process",
            Self::SharedMemory => "shared memory",
        }
    }

    /// Opens the devices of both ends, with one engine each.
    pub(crate) fn devices(self) -> [Device; 2] {
        match self {
            Self::Wire => wire::devices(),
            Self::SharedMemory => with_engines(Some(1)),
        }
    }

    /// Opens the devices of both ends with the default number of engines; `None` if the link has one engine only.
    pub(crate) fn default_devices(self) -> Option<[Device; 2]> {
        (self == Self::SharedMemory).then(|| with_engines(None))
    }
}

/// Opens two devices that reach each other through shared memory.
fn with_engines(engines: Option<usize>) -> [Device; 2] {
    let link = Some(LinkChoice::Shm);
    let options = SoftOptions { link, engines, publish: false, ..SoftOptions::default() };
    [(); 2].map(|()| soft::open(&options).expect("a software RNIC opens"))
}

/// Threads that drive the two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// One thread drives both ends.
    Both,
    /// Each end has a thread.
    Apart,
}

impl Ends {
    pub(crate) const ALL: [Self; 2] = [Self::Both, Self::Apart];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Apart => "apart",
        }
    }
}

/// Messages of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Messages {
    pub(crate) bytes: usize,
    /// Maximum number of unacknowledged messages.
    pub(crate) window: usize,
    /// Number of receive buffers.
    pub(crate) depth: usize,
    /// Number of send buffers, which the sender uses in turn.
    pub(crate) buffers: usize,
}

/// The two ends.
pub(crate) struct Pair {
    sender: Sender,
    receiver: Connection,
}

struct Sender {
    connection: Connection,
    messages: Messages,
    region: Region,
    /// Buffer of the next message.
    buffer: usize,
}

impl Pair {
    /// Connects two devices, and sends the first messages.
    pub(crate) fn new(devices: &[Device; 2], messages: Messages) -> Self {
        let Messages { bytes, window, depth, buffers } = messages;
        let config = Config::default().window(window).depth(depth).max_message(bytes).send_buffers(0);
        let domains = devices.each_ref().map(|device| device.create_pd().expect("room"));
        let region = domains[0].allocate(bytes * buffers, Access::empty(), MemoryKind::Plain).expect("room");
        let ends = domains.map(|pd| Endpoint::new(&pd, config.clone(), None).expect("an end"));
        let [of_sender, of_receiver] = ends.each_ref().map(Endpoint::description);
        let [sender, receiver] = ends;
        let connection = sender.connect(&of_receiver).expect("the ends fit");
        let mut pair = Self {
            sender: Sender { connection, messages, region, buffer: 0 },
            receiver: receiver.connect(&of_sender).expect("the ends fit"),
        };
        let mut received = 0;
        while received < FIRST_MESSAGES {
            pair.sender.send();
            received += receive(&mut pair.receiver);
        }
        pair
    }

    /// Divides the work of the connection among threads.
    pub(crate) fn turns(self, ends: Ends) -> Vec<Turn> {
        let Self { mut sender, mut receiver } = self;
        match ends {
            Ends::Both => vec![Box::new(move || {
                let accepted = sender.send();
                Moved { accepted, received: receive(&mut receiver) }
            })],
            Ends::Apart => vec![
                Box::new(move || Moved { accepted: sender.send(), received: 0 }),
                Box::new(move || Moved { accepted: 0, received: receive(&mut receiver) }),
            ],
        }
    }
}

impl Sender {
    /// Sends messages until the window is full, and polls. Returns the number of accepted messages.
    fn send(&mut self) -> u64 {
        let Self { connection, messages: Messages { bytes, buffers, .. }, region, buffer } = self;
        let mut accepted = 0;
        while let Submit::Accepted(_) = connection.send_from(region, *buffer * *bytes, *bytes).expect("a connection") {
            *buffer = (*buffer + 1) % *buffers;
            accepted += 1;
        }
        connection.poll().expect("a connection");
        accepted
    }
}

/// Polls, and takes all messages that have arrived. Returns their number.
fn receive(receiver: &mut Connection) -> u64 {
    receiver.poll().expect("a connection");
    let mut received = 0;
    while let Some(message) = receiver.take() {
        drop(message);
        received += 1;
    }
    received
}
