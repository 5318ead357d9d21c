//! Conversations, each of which uses one connection. The data of a message follow from a key and a number, so the
//! receiver detects lost and changed messages.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use doorbell::exchange::Submit;
use doorbell::verbs::{Completion, Payload, Region, SendFlags, SendOperation, SendRequest, Status};
use doorbell::{ConnectionError, MessageConnection, QueuePair, Received};

/// Maximum number of bytes of a message.
pub(crate) const LONGEST: usize = 4096;
/// Lengths in bytes from which the length of each message is chosen.
const LENGTHS: [usize; 8] = [16, 24, 64, 64, 256, 256, 1024, LONGEST];
/// Maximum number of messages that one step sends.
const SENDS: usize = 16;
/// Maximum number of messages that one step receives.
const RECEIVES: usize = 64;
/// Time within which this end must receive the goodbye of its peer or notice the death of its peer, even on a slow
/// machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Outcome of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Number of messages and operations with correct data.
    pub(crate) verified: u64,
    /// Whether both ends have finished the conversation.
    pub(crate) is_over: bool,
}

/// One end of a conversation. No call blocks.
pub(crate) trait Conversation: Send {
    /// Does one step of the conversation. With `is_ending`, this end sends its last message.
    fn step(&mut self, is_ending: bool) -> Result<Step, String>;
}

fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns word `at` of message `number` of the sender with this key.
fn word(key: u64, number: u64, at: u64) -> u64 {
    mixed(key ^ number).wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn length(key: u64, number: u64) -> usize {
    LENGTHS[(mixed(key ^ number ^ 0x5555) % LENGTHS.len() as u64) as usize]
}

/// Writes a message into `out`. The first word shows whether the message is the last, and the other words follow from
/// the key and the number.
fn fill(out: &mut [u8], key: u64, number: u64, is_last: bool) {
    for (at, chunk) in out.chunks_exact_mut(8).enumerate() {
        let value = if at == 0 { mixed(key) ^ u64::from(is_last) } else { word(key, number, at as u64) };
        chunk.copy_from_slice(&value.to_le_bytes());
    }
}

/// Checks every byte of a message. Returns whether the message is the last.
fn check(message: &[u8], key: u64, number: u64) -> Result<bool, String> {
    let expected = length(key, number);
    if message.len() != expected {
        return Err(format!("message {number} has {} B instead of {expected} B", message.len()));
    }
    let mut is_last = false;
    for (at, chunk) in message.chunks_exact(8).enumerate() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        let found = u64::from_le_bytes(bytes);
        if at == 0 {
            is_last = found == mixed(key) ^ 1;
        }
        let right = if at == 0 { mixed(key) ^ u64::from(is_last) } else { word(key, number, at as u64) };
        if found != right {
            return Err(format!("word {at} of message {number} is {found:#x} instead of {right:#x}"));
        }
    }
    Ok(is_last)
}

/// TCP stream over which a connection was set up. At the end of the conversation, each side sends a goodbye over the
/// stream. Before a side has the goodbye of its peer, the side must not exit: the network may have lost an
/// acknowledgement, which the side must then resend.
struct Goodbye {
    stream: TcpStream,
    since: Option<Instant>,
}

impl Goodbye {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, since: None })
    }

    /// Returns whether the peer has closed the stream or has sent its goodbye.
    fn is_heard(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The first call sends the goodbye. Returns whether the peer has also sent its goodbye.
    fn say(&mut self) -> Result<bool, String> {
        let since = *self.since.get_or_insert_with(|| {
            // If the write fails, the peer is gone and needs no goodbye.
            let _ = self.stream.write(&[1]);
            Instant::now()
        });
        match self.is_heard() {
            true => Ok(true),
            false if since.elapsed() < PATIENCE => Ok(false),
            false => Err(format!("the peer sent no goodbye within {} s", PATIENCE.as_secs())),
        }
    }
}

/// A conversation of messages in both directions.
pub(crate) struct Messages<C> {
    connection: C,
    goodbye: Goodbye,
    own_key: u64,
    peer_key: u64,
    sent: u64,
    received: u64,
    has_sent_last: bool,
    has_last: bool,
    buffer: Vec<u8>,
}

impl<C: MessageConnection> Messages<C> {
    /// Creates one end. `keys` has the key of this end and the key of the peer.
    pub(crate) fn new(connection: C, stream: TcpStream, keys: [u64; 2]) -> io::Result<Self> {
        let goodbye = Goodbye::new(stream)?;
        let [own_key, peer_key] = keys;
        let buffer = vec![0; LONGEST];
        let (sent, received, has_sent_last, has_last) = (0, 0, false, false);
        Ok(Self { connection, goodbye, own_key, peer_key, sent, received, has_sent_last, has_last, buffer })
    }

    fn send(&mut self, is_ending: bool) -> Result<(), ConnectionError> {
        for _ in 0..SENDS {
            if self.has_sent_last {
                break;
            }
            let message = &mut self.buffer[..length(self.own_key, self.sent)];
            fill(message, self.own_key, self.sent, is_ending);
            match self.connection.send(message)? {
                Submit::Full(_) => break,
                Submit::Accepted(_) => self.sent += 1,
            }
            if is_ending {
                self.has_sent_last = true;
                self.connection.close();
            }
        }
        Ok(())
    }
}

impl<C: MessageConnection + Send> Conversation for Messages<C> {
    fn step(&mut self, is_ending: bool) -> Result<Step, String> {
        let failed = |error: ConnectionError| error.to_string();
        // The client decides when a conversation ends. The server answers the last message of the client with its own
        // last message.
        self.send(is_ending || self.has_last).map_err(failed)?;
        // Read the state of the peer before receiving. If the state were read later, the peer could send its last
        // message and close in between, and this message would seem to be missing.
        let was_closed = self.connection.is_peer_closed();
        let (mut verified, mut is_drained) = (0, false);
        for _ in 0..RECEIVES {
            let message = match self.connection.receive() {
                Ok(Some(message)) => message,
                Ok(None) | Err(ConnectionError::PeerClosed) => {
                    is_drained = true;
                    break;
                }
                Err(error) => return Err(failed(error)),
            };
            let bytes = &mut self.buffer[..message.len().min(LONGEST)];
            message.copy_to(bytes);
            self.has_last |= check(bytes, self.peer_key, self.received)?;
            self.received += 1;
            verified += 1;
        }
        if self.connection.is_peer_closed() {
            if was_closed && is_drained && !self.has_last {
                return Err(format!("the peer closed after {} messages without a last message", self.received));
            }
            // The peer has closed its side. Poll until this side is closed too.
            match self.connection.poll() {
                Ok(_) | Err(ConnectionError::PeerClosed | ConnectionError::Closed) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let is_done = self.has_sent_last && self.has_last && self.connection.is_closed();
        Ok(Step { verified, is_over: is_done && self.goodbye.say()? })
    }
}

/// Number of slots that one batch writes and reads back.
const SLOTS: usize = 4;
/// Bytes of the memory that the active side accesses: the slots, a counter, and a word for compare-and-swap.
pub(crate) const SHARED_BYTES: usize = SLOTS * LONGEST + 16;
/// Bytes of the memory of the active side: data to write, data from READs, and the old values that two atomics return.
pub(crate) const OWN_BYTES: usize = 2 * SLOTS * LONGEST + 16;
const OLD: usize = 2 * SLOTS * LONGEST;

/// A conversation of one-sided operations on memory of a passive peer: WRITEs, READs that check the written data, and
/// atomics.
pub(crate) struct OneSided {
    pair: QueuePair,
    own: Region,
    goodbye: Goodbye,
    key: u64,
    batch: u64,
    since: Option<Instant>,
    buffer: Vec<u8>,
}

impl OneSided {
    pub(crate) fn new(pair: QueuePair, own: Region, stream: TcpStream, key: u64) -> io::Result<Self> {
        let goodbye = Goodbye::new(stream)?;
        Ok(Self { pair, own, goodbye, key, batch: 0, since: None, buffer: vec![0; LONGEST] })
    }

    fn number(&self, slot: usize) -> u64 {
        self.batch * SLOTS as u64 + slot as u64
    }

    fn post(&mut self) -> Result<(), String> {
        let (address, rkey) = (self.pair.peer.address, self.pair.peer.rkey);
        let mut sges = Vec::with_capacity(2 * SLOTS + 2);
        let mut operations = Vec::with_capacity(2 * SLOTS + 2);
        for slot in 0..SLOTS {
            let (number, at) = (self.number(slot), slot * LONGEST);
            let bytes = length(self.key, number);
            fill(&mut self.buffer[..bytes], self.key, number, false);
            self.own.copy_in(at, &self.buffer[..bytes]);
            let remote_address = address + at as u64;
            operations.push(SendOperation::Write { remote_address, rkey });
            sges.push([self.own.sge(at, bytes)]);
            operations.push(SendOperation::Read { remote_address, rkey });
            sges.push([self.own.sge(SLOTS * LONGEST + at, bytes)]);
        }
        let counter = address + (SLOTS * LONGEST) as u64;
        operations.push(SendOperation::FetchAdd { remote_address: counter, rkey, add: 1 });
        sges.push([self.own.sge(OLD, 8)]);
        let (compare, swap) = (self.batch, self.batch + 1);
        operations.push(SendOperation::CompareSwap { remote_address: counter + 8, rkey, compare, swap });
        sges.push([self.own.sge(OLD + 8, 8)]);
        let last = operations.len() - 1;
        let requests = operations.into_iter().zip(&sges).enumerate();
        let requests: Vec<_> = requests
            .map(|(at, (operation, sge))| SendRequest {
                wr_id: at as u64,
                operation,
                flags: if at == last { SendFlags::SIGNALED } else { SendFlags::empty() },
                payload: Payload::Sges(sge),
                destination: None,
            })
            .collect();
        self.since = Some(Instant::now());
        self.pair.qp.post_send(&requests).map_err(|error| error.to_string())
    }

    fn check(&mut self) -> Result<u64, String> {
        for slot in 0..SLOTS {
            let number = self.number(slot);
            let bytes = length(self.key, number);
            self.own.copy_out((SLOTS + slot) * LONGEST, &mut self.buffer[..bytes]);
            check(&self.buffer[..bytes], self.key, number)?;
        }
        for (what, at) in [("counter", OLD), ("compared word", OLD + 8)] {
            let old = self.own.load_acquire_u64(at);
            if old != self.batch {
                return Err(format!("the {what} was {old} instead of {}", self.batch));
            }
        }
        self.batch += 1;
        Ok(2 * SLOTS as u64 + 2)
    }
}

impl Conversation for OneSided {
    fn step(&mut self, is_ending: bool) -> Result<Step, String> {
        let Some(since) = self.since else {
            if is_ending {
                return Ok(Step { verified: 0, is_over: self.goodbye.say()? });
            }
            self.post()?;
            return Ok(Step::default());
        };
        let mut out = [Completion::default(); 4];
        let found = self.pair.cq.poll(&mut out).map_err(|error| error.to_string())?;
        if found == 0 {
            let is_late = since.elapsed() > PATIENCE;
            return if is_late { Err("one-sided operations do not complete".to_owned()) } else { Ok(Step::default()) };
        }
        if let Some(failed) = out[..found].iter().find(|completion| completion.status != Status::Success) {
            return Err(format!("a one-sided operation ended with {}", failed.status.describe()));
        }
        self.since = None;
        Ok(Step { verified: self.check()?, is_over: false })
    }
}

/// The passive side, whose memory its peer accesses. The passive side ends when its peer ends.
pub(crate) struct Passive {
    goodbye: Goodbye,
    _pair: QueuePair,
    _shared: Region,
}

impl Passive {
    pub(crate) fn new(pair: QueuePair, shared: Region, stream: TcpStream) -> io::Result<Self> {
        Ok(Self { goodbye: Goodbye::new(stream)?, _pair: pair, _shared: shared })
    }
}

impl Conversation for Passive {
    fn step(&mut self, _is_ending: bool) -> Result<Step, String> {
        let is_over = self.goodbye.is_heard();
        if is_over {
            self.goodbye.say()?;
        }
        Ok(Step { verified: 0, is_over })
    }
}
