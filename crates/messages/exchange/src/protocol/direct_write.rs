//! Direct-Write: the receiver grants its free buffers, and the sender writes into them.
//!
//! ```text
//! sender                                              receiver
//!   send -> id   WRITE [message | length, signal byte]  ->   polls the signal byte of the buffer
//!                                                            that was granted first
//!                <-  WRITE {address, rkey} of free buffers into the sender's ring of grants,
//!                    WRITE of the number of granted buffers
//! ```
//!
//! One message costs one WRITE and a share of a grant. A grant covers several buffers and costs two WRITEs. The
//! receiver posts no receives for messages and gets no completions for them. It polls memory, so it cannot sleep. Each
//! buffer has the length of the longest message. The receiver grants buffers again in the order in which the program
//! frees them, so a message that the program holds for long blocks no other message.
//!
//! With [`Grants::Each`], the receiver grants each freed buffer at once, with one WRITE and without a number of granted
//! buffers. The last byte of the grant shows that the grant is new: it changes each time that the ring of grants wraps.
//!
//! The message ends at the end of its buffer, so the receiver knows the position of the last byte without knowing the
//! length. RNICs write the bytes of a WRITE in order. IBTA does not require this order, but published RDMA protocols
//! rely on it.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_protocols::Protocol;
use doorbell_verbs::{
    Access, MemoryKind, Payload, Pd, PostError, Qp, RKey, Region, SendFlags, SendOperation, SendRequest, Sge,
};
use smallvec::SmallVec;

use crate::connection::carrier::{Queues, Unconnected};
use crate::connection::config::Config;
use crate::connection::duplex::{Duplex, INCOMING_TAG, Incoming, Outgoing, WORD_RECEIVES};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::lent::Buffers as _;
use crate::connection::outbox::{Outbox, Source, Staged, Word};
use crate::connection::ring::WORD;
use crate::connection::slots::Slots;
use crate::connection::{Backpressure, MessageId, Received};
use crate::setup::{EndpointDescription, RemoteRegion};

/// Way in which the receiver grants its free buffers. Both ends must use the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grants {
    /// The receiver grants several buffers together, and then writes the number of granted buffers.
    #[default]
    Groups,
    /// The receiver grants each buffer separately, with one WRITE, as soon as the program frees the buffer.
    Each,
}

/// The protocol Direct-Write, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectWrite {
    /// Way in which both ends grant their free buffers.
    pub grants: Grants,
}

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<DirectWrite>;
/// A connection of this protocol.
pub type Connection = engine::Connection<DirectWrite>;

/// Bytes of a grant, which has the address and the key of a buffer.
const GRANT: usize = 16;
/// Offset of the ring of grants in the memory that the peer writes. The number of granted buffers lies before the ring.
const GRANTS: usize = 64;
/// Maximum number of requests of one grant: two WRITEs of grants if they wrap around the end of the ring, and a WRITE
/// of the number of granted buffers.
const GRANT_REQUESTS: usize = 3;
/// Maximum number of separate grants ([`Grants::Each`]) that are not acknowledged.
const SEPARATE_GRANTS: usize = 64;
/// Offset of the byte of a grant that [`lap`] returns.
const LAP: usize = GRANT - 1;

/// Returns the last byte of a separate grant: from 1 to 255, and another number each time that the ring wraps. RNICs
/// write the last byte of a WRITE last, so a sender that sees this byte has the whole grant.
fn lap(number: u64, places: u64) -> u8 {
    (number / places % 255) as u8 + 1
}

/// Returns the bytes of a buffer for a message of maximum length and its word, rounded up to a multiple of 64.
fn stride(max_message: usize) -> usize {
    (max_message + WORD).next_multiple_of(64)
}

/// Returns the [`stride`] of the peer's buffers, or `None` on overflow.
fn checked_stride(max_message: usize) -> Option<usize> {
    max_message.checked_add(WORD)?.checked_next_multiple_of(64)
}

/// Returns the number of grants that fit into memory of this length.
fn places(length: u64) -> u64 {
    (length.saturating_sub(GRANTS as u64) / GRANT as u64).min(1 << 20)
}

/// Memory that an endpoint allocates before it knows the description of the peer.
#[derive(Debug)]
pub struct Memory {
    grants: Region,
    buffers: Region,
}

impl Recipe for DirectWrite {
    type Memory = Memory;
    type Machine = Duplex<Granted, Buffers>;

    fn id(&self) -> Protocol {
        match self.grants {
            Grants::Groups => Protocol::DirectWrite,
            Grants::Each => Protocol::DirectWriteEach,
        }
    }

    fn memory(&self, pd: &Pd, config: &Config) -> Result<Memory, ConnectError> {
        let given = pd.device().attributes().limits.max_inline;
        if self.grants == Grants::Each && given < GRANT {
            let what = "the device's inline limit for grants";
            return Err(ConnectError::Setting { what, given: given as u64, allowed: "at least 16 B" });
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // The ring has room for twice the window: for grants that are in use, and for new grants that replace them.
        let grants = pd.allocate(GRANTS + 2 * config.window * GRANT, access, MemoryKind::Plain)?;
        let buffers = pd.allocate(config.depth * stride(config.max_message), access, MemoryKind::Plain)?;
        Ok(Memory { grants, buffers })
    }

    fn regions(memory: &Memory) -> [RemoteRegion; 2] {
        [RemoteRegion::of(&memory.grants), RemoteRegion::of(&memory.buffers)]
    }

    fn access(&self) -> Access {
        Access::REMOTE_WRITE
    }

    fn queues(&self, config: &Config) -> Queues {
        let (grants, longest) = match self.grants {
            Grants::Groups => (GRANT_REQUESTS, WORD),
            Grants::Each => (SEPARATE_GRANTS, GRANT),
        };
        Queues {
            sends: config.window + grants,
            receives: WORD_RECEIVES,
            inline: Outbox::inline_bytes(config).max(longest),
            sges: 2,
        }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Memory,
        peer: &EndpointDescription,
    ) -> Result<Duplex<Granted, Buffers>, ConnectError> {
        let pd = &carrier.pd;
        let Memory { grants, buffers } = memory;
        let [peer_grants, peer_buffers] = peer.regions;
        let given = |what, given, allowed| Err(ConnectError::Setting { what, given, allowed });
        let places = places(peer_grants.length);
        if places == 0 {
            return given("the peer's memory for grants", peer_grants.length, "at least 80 B");
        }
        // Distance between two buffers of the peer. All buffers must lie within the peer's region.
        let peer_stride = match usize::try_from(peer.max_message).ok().and_then(checked_stride) {
            Some(stride) if stride as u64 <= peer_buffers.length / u64::from(peer.depth.max(1)) => stride,
            _ => return given("the longest message of the peer", peer.max_message, "less than a buffer's length"),
        };
        // Both ends know the first buffers from the descriptions, so these buffers count as granted without a WRITE.
        let own_places = self::places(grants.len() as u64);
        let (of_peer, of_own) = (own_places.min(peer.depth.into()), places.min(config.depth as u64));
        for number in 0..of_peer {
            let address = peer_buffers.address.wrapping_add(number * peer_stride as u64);
            let at = GRANTS + number as usize * GRANT;
            grants.store_release_u64(at, address.to_le());
            grants.store_release_u64(at + 8, u64::from(peer_buffers.rkey.get()).to_le());
            if self.grants == Grants::Each {
                grants.store_release_u8(at + LAP, lap(number, own_places));
            }
        }
        let out = Granted {
            outbox: Outbox::new(pd, config, peer.max_message)?,
            peer_max_message: peer.max_message as usize,
            peer_stride,
            places: own_places,
            grants,
            way: self.grants,
            used: 0,
            known: of_peer,
            is_misled: false,
            batch: config.batch,
            pending: Vec::with_capacity(config.batch),
        };
        let depth = config.depth as u32;
        let incoming = Buffers {
            pool: Slots::new(buffers, stride(config.max_message), config.depth, of_own as u32..depth),
            max_message: config.max_message,
            waiting: (0..of_own as u32).collect(),
            inbox: VecDeque::with_capacity(config.depth),
            draft: pd.allocate(places as usize * GRANT, Access::empty(), MemoryKind::Plain)?,
            peer_grants,
            places,
            granted: of_own,
            way: self.grants,
            unacknowledged: 0,
            is_granting: false,
            regrant_at: match self.grants {
                Grants::Groups => (config.depth / 4).clamp(1, 16),
                Grants::Each => 1,
            },
        };
        Ok(Duplex::new(carrier, self.queues(config).receives, out, incoming)?)
    }
}

/// The sending half, which uses grants in order.
pub struct Granted {
    outbox: Outbox,
    peer_max_message: usize,
    peer_stride: usize,
    grants: Region,
    /// Number of grants for which the ring has room.
    places: u64,
    way: Grants,
    used: u64,
    known: u64,
    /// Whether the peer has written an impossible number of granted buffers.
    is_misled: bool,
    batch: usize,
    pending: Vec<(Staged, SendOperation)>,
}

impl Granted {
    /// Reads which buffers are granted. Returns the number of new grants.
    #[inline]
    fn learn(&mut self) -> u64 {
        match self.way {
            Grants::Groups => self.learn_number(),
            Grants::Each => self.learn_each(),
        }
    }

    /// Looks for separate grants, each of which shows by its last byte that it is new.
    fn learn_each(&mut self) -> u64 {
        let before = self.known;
        while self.known - self.used < self.places {
            let last = GRANTS + (self.known % self.places) as usize * GRANT + LAP;
            if self.grants.load_acquire_u8(last) != lap(self.known, self.places) {
                break;
            }
            self.known += 1;
        }
        self.known - before
    }

    #[inline]
    fn learn_number(&mut self) -> u64 {
        let granted = u64::from_le(self.grants.load_acquire_u64(0));
        if granted == self.known || granted == 0 {
            return 0; // the peer writes no number for the first grants
        }
        // With more unused grants than the ring has room for, the peer has overwritten unused grants.
        if granted < self.known || granted - self.used > self.places {
            self.is_misled = true;
            return 0;
        }
        granted - std::mem::replace(&mut self.known, granted)
    }
}

impl Outgoing for Granted {
    fn max_send(&self) -> usize {
        self.outbox.max_message()
    }

    fn max_received(&self) -> usize {
        self.peer_max_message
    }

    #[inline]
    fn refusal(&mut self, _length: usize) -> Option<Backpressure> {
        if self.outbox.is_full() {
            return Some(Backpressure::Window);
        }
        (self.used == self.known && self.learn() == 0).then_some(Backpressure::Credits)
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        let at = GRANTS + (self.used % self.places) as usize * GRANT;
        let address = u64::from_le(self.grants.load_acquire_u64(at));
        let rkey = RKey::new(u64::from_le(self.grants.load_acquire_u64(at + 8)) as u32);
        self.used += 1;
        let end = address.wrapping_add(self.peer_stride as u64);
        let length = source.len();
        let remote_address = end.wrapping_sub((length + WORD) as u64);
        let staged = self.outbox.stage(source, Word::Behind(Word::signal(length)));
        let id = staged.id;
        self.pending.push((staged, SendOperation::Write { remote_address, rkey }));
        if self.pending.len() >= self.batch {
            self.flush(qp)?;
        }
        Ok(id)
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        let result = self.outbox.post(qp, self.pending.iter().map(|(staged, operation)| (staged, *operation)), None);
        self.pending.clear();
        result
    }

    /// Looks for new grants if all known grants are used.
    #[inline]
    fn poll(&mut self, _qp: &Qp) -> Result<usize, ConnectionError> {
        let newly = if self.used == self.known { self.learn() as usize } else { 0 };
        if self.is_misled {
            return Err(ConnectionError::Protocol(
                "a number of grants that is less than before, or more than the ring of grants can hold",
            ));
        }
        Ok(newly)
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        self.outbox.complete(wr_id);
        Ok(true)
    }

    fn last_done(&self) -> MessageId {
        self.outbox.last_done()
    }

    fn last_accepted(&self) -> MessageId {
        self.outbox.last_accepted()
    }

    fn notifies(&self) -> bool {
        // New grants arrive by WRITEs, which raise no notification. So this side can sleep only while it has unused
        // grants.
        self.used != self.known
    }
}

/// Returns the offset of the word at the end of a buffer.
fn word_of(slots: &Slots, slot: u32) -> usize {
    slots.offset(slot + 1) - WORD
}

/// The receiving half, which grants buffers and polls the buffer that was granted first.
pub struct Buffers {
    pool: Arc<Slots>,
    max_message: usize,
    /// Granted buffers without a message, in the order of their grants.
    waiting: VecDeque<u32>,
    inbox: VecDeque<(u32, usize)>,
    /// Local copy of the peer's ring of grants.
    draft: Region,
    peer_grants: RemoteRegion,
    places: u64,
    granted: u64,
    way: Grants,
    /// Number of separate grants that are not acknowledged.
    unacknowledged: usize,
    /// Whether no further grant may be posted before the completion of an earlier one.
    is_granting: bool,
    /// Number of free buffers at which the receiver grants them. An idle receiver also grants fewer buffers if the peer
    /// has fewer unused grants than this number.
    regrant_at: usize,
}

impl Buffers {
    /// Takes a free buffer and empties it for a message. Returns the grant, and its offset in the ring of grants.
    #[inline]
    fn next_grant(&mut self) -> Option<(usize, [u8; GRANT])> {
        let slot = self.pool.get()?;
        let region = self.pool.region();
        region.store_release_u64(word_of(&self.pool, slot), 0);
        let mut grant = [0; GRANT];
        grant[..8].copy_from_slice(&(region.address() + self.pool.offset(slot) as u64).to_le_bytes());
        grant[8..].copy_from_slice(&u64::from(region.rkey().get()).to_le_bytes());
        let at = (self.granted % self.places) as usize * GRANT;
        self.waiting.push_back(slot);
        self.granted += 1;
        Some((at, grant))
    }

    /// Grants up to `count` free buffers, each with a WRITE of its own. Returns the number of grants.
    fn grant_each(&mut self, qp: &Qp, count: usize) -> Result<usize, ConnectionError> {
        let mut posted = 0;
        while posted < count && self.unacknowledged < SEPARATE_GRANTS {
            let number = self.granted;
            let Some((at, mut grant)) = self.next_grant() else { break };
            grant[LAP] = lap(number, self.places);
            let RemoteRegion { address, rkey, .. } = self.peer_grants;
            qp.post_send(&[SendRequest {
                wr_id: INCOMING_TAG,
                operation: SendOperation::Write { remote_address: address.wrapping_add((GRANTS + at) as u64), rkey },
                flags: SendFlags::SIGNALED,
                payload: Payload::Inline(&grant),
                destination: None,
            }])?;
            self.unacknowledged += 1;
            posted += 1;
        }
        self.is_granting = self.unacknowledged == SEPARATE_GRANTS;
        Ok(posted)
    }
}

impl Incoming for Buffers {
    type Message = Message;

    #[inline]
    fn look(&mut self) -> Result<usize, ConnectionError> {
        let mut count = 0;
        while let Some(&slot) = self.waiting.front() {
            let word = word_of(&self.pool, slot);
            if self.pool.region().load_acquire_u8(word + WORD - 1) == 0 {
                break;
            }
            let mut bytes = [0; WORD];
            self.pool.region().copy_out(word, &mut bytes);
            let length = Word::number(bytes);
            if length > self.max_message {
                return Err(ConnectionError::TooLong { length, most: self.max_message });
            }
            self.waiting.pop_front();
            self.inbox.push_back((slot, length));
            count += 1;
        }
        Ok(count)
    }

    /// Grants the free buffers.
    #[inline]
    fn tell(&mut self, qp: &Qp, is_idle: bool) -> Result<usize, ConnectionError> {
        let room = (self.places as usize).saturating_sub(self.waiting.len());
        let count = self.pool.free().min(room);
        // A receiver that is faster than its sender is idle after nearly every message. An idle receiver therefore
        // posts a small grant only if the peer may soon have no grants left.
        let is_due = count >= self.regrant_at || is_idle && self.waiting.len() < self.regrant_at;
        if self.is_granting || count == 0 || !is_due {
            return Ok(0);
        }
        let first = self.granted;
        if self.way == Grants::Each {
            return self.grant_each(qp, count);
        }
        for _ in 0..count {
            let Some((at, grant)) = self.next_grant() else { break };
            let (address, rkey) = grant.split_at(8);
            self.draft.copy_in(at, address);
            self.draft.copy_in(at + 8, rkey);
        }
        let from = (first % self.places) as usize;
        let straight = ((self.granted - first) as usize).min(self.places as usize - from);
        let around = (self.granted - first) as usize - straight;
        let pieces: SmallVec<[(usize, Sge); 2]> = [(from, straight), (0, around)]
            .into_iter()
            .filter(|&(_, count)| count > 0)
            .map(|(from, count)| (from, self.draft.sge(from * GRANT, count * GRANT)))
            .collect();
        let RemoteRegion { address, rkey, .. } = self.peer_grants;
        let number = self.granted.to_le_bytes();
        let mut list: SmallVec<[SendRequest<'_>; GRANT_REQUESTS]> = pieces
            .iter()
            .map(|(from, sge)| SendRequest {
                wr_id: INCOMING_TAG,
                operation: SendOperation::Write {
                    remote_address: address.wrapping_add((GRANTS + from * GRANT) as u64),
                    rkey,
                },
                flags: SendFlags::empty(),
                payload: Payload::Sges(std::slice::from_ref(sge)),
                destination: None,
            })
            .collect();
        // WRITEs take effect in order (IBTA Vol 1, 10.8.3.3), so the number arrives after the grants.
        list.push(SendRequest {
            wr_id: INCOMING_TAG,
            operation: SendOperation::Write { remote_address: address, rkey },
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&number),
            destination: None,
        });
        qp.post_send(&list)?;
        self.is_granting = true;
        Ok(count)
    }

    fn take_completion(&mut self, _wr_id: u64) -> Result<bool, ConnectionError> {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
        self.is_granting = false;
        Ok(true)
    }

    #[inline]
    fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        Some(Message { pool: Arc::clone(&self.pool), slot, length })
    }

    /// Messages arrive by WRITEs, which raise no notification.
    fn notifies(&self) -> bool {
        false
    }
}

/// A received message, which holds one buffer of its connection. Dropping the message gives the buffer back, from any
/// thread and in any order.
pub struct Message {
    pool: Arc<Slots>,
    slot: u32,
    length: usize,
}

impl Received for Message {
    fn len(&self) -> usize {
        self.length
    }

    #[inline]
    fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = out.len().min(self.length);
        self.pool.region().copy_out(word_of(&self.pool, self.slot) - self.length, &mut out[..length]);
        length
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        self.pool.give_back(self.slot);
    }
}
