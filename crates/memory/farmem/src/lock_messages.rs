//! Datagrams between clients that hand locks over. A waiting client asks the client that is ahead in the queue, and
//! that client grants the lock. Datagrams may be lost, so a waiting client asks again. A lost datagram only costs time:
//! under the lock, a write uses the same CAS as without a lock.

use std::net::Ipv6Addr;
use std::sync::Arc;

use doorbell_verbs::{
    Access, AddressVector, Completion, Cq, Device, MemoryKind, Payload, Pd, QKey, Qp, QpAttributes, QpCapacities,
    QpKind, QpOptions, QpState, Qpn, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Status, UdDestination,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::{Entry, HostCache};
use crate::error::OpenError;
use crate::layout::{Geometry, NodeVersion};

/// The Q_Key of all clients. Its highest bit is 0, so it needs no privilege (IBTA Vol 1, 10.2.5).
const QKEY: u32 = 0x0d00_0be1;
/// Bytes of the global routing header in front of a datagram (IBTA Vol 1, 11.4.1.2).
const GRH_BYTES: usize = 40;
/// Maximum length of a key in bytes whose newest node a grant contains. For a longer key, the next holder of the lock
/// searches the newest node itself.
const MAX_KEY_BESIDE: usize = 64;
/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 88 + MAX_KEY_BESIDE;
/// Distance in bytes between the buffers of two messages.
const STRIDE: usize = 256;
const _: () = assert!(GRH_BYTES + MAX_MESSAGE <= STRIDE);
/// Number of messages that may arrive between two polls. For each lock of this client, at most one other client asks,
/// and that client repeats its message only after some time.
const RECEIVES: usize = 128;
/// Maximum number of sends that are not complete. Further messages are dropped, and the peer asks again.
const SENDS: usize = 64;
const POLL_LIST: usize = 32;
/// Maximum number of released locks whose next holder has not asked yet. Usually there are few of them; many such locks
/// mean that the next holders have died.
const MAX_OWED: usize = 1024;

/// The address at which a client receives its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) gid: Ipv6Addr,
    pub(crate) qpn: Qpn,
}

/// Kind of a message about the lock words of two clients. One client is ahead in the queue, and the other client waits
/// behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To the client ahead: the sender waits for the lock of that client.
    Ask,
    /// To the client behind: the sender is alive, and has recorded that the receiver of this message waits.
    Queued,
    /// To the client behind: the sender grants the lock to the receiver of this message.
    Grant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LockMessage {
    kind: Kind,
    ahead: u64,
    behind: u64,
    from: Address,
    /// In a [`Kind::Grant`]: entry and key of the key's newest node.
    newest: Option<(Entry, Vec<u8>)>,
}

impl LockMessage {
    fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend((self.kind as u64).to_le_bytes());
        out.extend(self.ahead.to_le_bytes());
        out.extend(self.behind.to_le_bytes());
        out.extend(self.from.gid.octets());
        out.extend(u64::from(self.from.qpn.get()).to_le_bytes());
        if let Some((entry, key)) = &self.newest {
            out.extend(entry.place.bits().to_le_bytes());
            for number in [entry.number.into(), u64::from(entry.is_tombstone), entry.length.into(), key.len() as u64] {
                out.extend(number.to_le_bytes());
            }
            out.extend(key);
        }
    }

    /// Parses a message. Returns `None` if the bytes are no message, for example from another program on the network.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.split_at_checked(48)?;
        let word = |bytes: &[u8], index: usize| bytes[8 * index..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let kind = [Kind::Ask, Kind::Queued, Kind::Grant].into_iter().find(|kind| *kind as u64 == word(words, 0))?;
        let gid = Ipv6Addr::from(*words[24..].first_chunk::<16>()?);
        let qpn = u32::try_from(word(words, 5)).ok().filter(|&qpn| qpn < 1 << 24).map(Qpn::new)?;
        let newest = match rest.split_at_checked(40) {
            None if rest.is_empty() => None,
            None => return None,
            Some((words, key)) => {
                let place = NodeVersion::from_bits(word(words, 0))?;
                let (number, length) = (u32::try_from(word(words, 1)).ok()?, u32::try_from(word(words, 3)).ok()?);
                if word(words, 4) != key.len() as u64 || word(words, 2) > 1 {
                    return None;
                }
                Some((Entry { place, number, is_tombstone: word(words, 2) == 1, length }, key.to_vec()))
            }
        };
        Some(Self { kind, ahead: word(words, 1), behind: word(words, 2), from: Address { gid, qpn }, newest })
    }
}

/// A lock word of this client. The entry exists from before the client puts the word into memory until the client has
/// granted the lock to the next client or forgets the word.
#[derive(Debug)]
struct Held {
    word: u64,
    state: LockState,
    /// Address and lock word of the client that waits behind this word.
    successor: Option<(Address, u64)>,
    newest: Option<(Entry, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    /// This client waits behind the word of another client. That client's last sign of life came at `heard_ns`.
    Waits {
        heard_ns: u64,
    },
    Holds,
    /// This client has released the lock, but the next client in the queue has not asked for it yet.
    Owes {
        since_ns: u64,
    },
}

/// Sender and receiver of a client's lock messages.
#[derive(Debug)]
pub(crate) struct LockMessenger {
    qp: Qp,
    cq: Cq,
    memory: Region,
    own: Address,
    /// Number of posted sends without a completion.
    leaving: usize,
    next_place: usize,
    held: Vec<Held>,
    /// Addresses at which the other clients receive messages, by client number.
    addresses: FxHashMap<u32, Address>,
    /// Numbers of clients that were shut out. No client waits for them any more.
    gone: FxHashSet<u32>,
    scratch: Vec<u8>,
    geometry: Geometry,
    cache: Arc<HostCache>,
    sent: (u64, u64),
}

impl LockMessenger {
    pub(crate) fn new(pd: &Pd, geometry: Geometry, cache: &Arc<HostCache>) -> Result<Self, OpenError> {
        let cq = pd.device().create_cq(SENDS + RECEIVES)?;
        let capacities =
            QpCapacities { max_send_wr: SENDS, max_recv_wr: RECEIVES, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (send_cq, recv_cq) = (&cq, &cq);
        let qp =
            pd.create_qp(QpOptions { kind: QpKind::Ud, send_cq, recv_cq, srq: None, capacities, signal_all: true })?;
        let nothing = QpAttributes::default();
        let (state, qkey) = (Some(QpState::Init), Some(QKey::new(QKEY)));
        qp.modify(&QpAttributes { state, qkey, pkey_index: Some(0), port: Some(1), ..nothing })?;
        qp.modify(&QpAttributes { state: Some(QpState::ReadyToReceive), ..nothing })?;
        let send_psn = Some(pd.device().random_psn());
        qp.modify(&QpAttributes { state: Some(QpState::ReadyToSend), send_psn, ..nothing })?;
        let memory = pd.allocate((SENDS + RECEIVES) * STRIDE, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let own = Address { gid: pd.device().attributes().gid, qpn: qp.qpn() };
        let messenger = Self {
            qp,
            cq,
            memory,
            own,
            leaving: 0,
            next_place: 0,
            held: Vec::new(),
            addresses: FxHashMap::default(),
            gone: FxHashSet::default(),
            scratch: Vec::with_capacity(STRIDE),
            geometry,
            cache: Arc::clone(cache),
            sent: (0, 0),
        };
        for place in 0..RECEIVES {
            messenger.post_receive(place)?;
        }
        Ok(messenger)
    }

    /// Returns the number of sent messages, and the sum of their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.sent
    }

    pub(crate) fn address(&self) -> Address {
        self.own
    }

    /// Posts a receive. If the queue pair has failed, the post fails without harm: then the client takes locks without
    /// messages.
    fn post_receive(&self, place: usize) -> Result<(), OpenError> {
        let sge = self.memory.sge((SENDS + place) * STRIDE, STRIDE);
        let request = RecvRequest { wr_id: (SENDS + place) as u64, sges: std::slice::from_ref(&sge) };
        Ok(self.qp.post_recv(&[request]).map_err(doorbell_exchange::ConnectError::Post)?)
    }

    fn send(&mut self, to: Address, message: &LockMessage) {
        if to == self.own {
            return self.take(message.clone(), None);
        }
        if self.leaving == SENDS {
            return;
        }
        message.encode(&mut self.scratch);
        let offset = self.next_place * STRIDE;
        self.memory.copy_in(offset, &self.scratch);
        let sge = self.memory.sge(offset, self.scratch.len());
        let address = AddressVector::to(to.gid.to_canonical());
        let request = SendRequest {
            wr_id: 0,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(std::slice::from_ref(&sge)),
            destination: Some(UdDestination { address, qpn: to.qpn, qkey: QKey::new(QKEY) }),
        };
        if self.qp.post_send(&[request]).is_ok() {
            self.leaving += 1;
            self.next_place = (self.next_place + 1) % SENDS;
            self.sent = (self.sent.0 + 1, self.sent.1 + self.scratch.len() as u64);
        }
    }

    /// Processes completions and received messages. Returns whether there were any.
    pub(crate) fn poll(&mut self, device: &Device) -> bool {
        let mut list = [Completion::default(); POLL_LIST];
        let count = self.cq.poll(&mut list).unwrap_or(0);
        if count == 0 {
            return false;
        }
        let now_ns = device.now_ns();
        for completion in &list[..count] {
            let Some(place) = (completion.wr_id as usize).checked_sub(SENDS) else {
                self.leaving -= 1;
                continue;
            };
            if completion.status != Status::Success {
                continue;
            }
            let length = (completion.byte_len as usize).saturating_sub(GRH_BYTES).min(MAX_MESSAGE);
            let mut bytes = [0; MAX_MESSAGE];
            self.memory.copy_out((SENDS + place) * STRIDE + GRH_BYTES, &mut bytes[..length]);
            let _ = self.post_receive(place);
            if let Some(message) = LockMessage::decode(&bytes[..length]) {
                self.take(message, Some(now_ns));
            }
        }
        true
    }

    fn find(&mut self, word: u64) -> Option<usize> {
        self.held.iter().position(|held| held.word == word)
    }

    fn take(&mut self, message: LockMessage, now_ns: Option<u64>) {
        let LockMessage { kind, ahead, behind, from, newest } = message;
        let own = self.own;
        let reply = |kind, newest| LockMessage { kind, ahead, behind, from: own, newest };
        match kind {
            Kind::Ask => match self.find(ahead) {
                Some(at) if matches!(self.held[at].state, LockState::Owes { .. }) => {
                    let newest = self.held.swap_remove(at).newest;
                    self.send(from, &reply(Kind::Grant, newest));
                }
                Some(at) => {
                    self.held[at].successor = Some((from, behind));
                    self.send(from, &reply(Kind::Queued, None));
                }
                // This client has released that lock and has forgotten its successor, so the grant was lost: grant
                // again.
                None => self.send(from, &reply(Kind::Grant, None)),
            },
            Kind::Queued | Kind::Grant => {
                let Some(at) = self.find(behind) else { return };
                let LockState::Waits { heard_ns } = self.held[at].state else { return };
                if kind == Kind::Queued {
                    self.held[at].state = LockState::Waits { heard_ns: now_ns.unwrap_or(heard_ns) };
                    return;
                }
                self.held[at].state = LockState::Holds;
                if let Some((entry, key)) = newest
                    && self.geometry.has(entry.place)
                    && entry.number < self.geometry.keys
                {
                    self.cache.set(&key, entry);
                }
            }
        }
    }

    /// Records a lock word that this client is about to put behind the word in memory.
    pub(crate) fn begin(&mut self, word: u64, now_ns: u64) {
        let state = LockState::Waits { heard_ns: now_ns };
        self.held.push(Held { word, state, successor: None, newest: None });
    }

    /// Records that this word waits behind another word from now on, and restarts its time: putting the word into
    /// memory may have taken long, if a memory node failed.
    pub(crate) fn waits(&mut self, word: u64, now_ns: u64) {
        if let Some(at) = self.find(word)
            && let LockState::Waits { heard_ns } = &mut self.held[at].state
        {
            *heard_ns = now_ns;
        }
    }

    /// Records that this word holds the lock: no other word is ahead of it.
    pub(crate) fn own(&mut self, word: u64) {
        if let Some(at) = self.find(word) {
            self.held[at].state = LockState::Holds;
        }
    }

    /// Returns whether this word holds the lock.
    pub(crate) fn owns(&mut self, word: u64) -> bool {
        self.find(word).is_none_or(|at| self.held[at].state == LockState::Holds)
    }

    /// Returns the time of the last sign of life from the client ahead of this word.
    pub(crate) fn heard_ns(&mut self, word: u64) -> u64 {
        match self.find(word).map(|at| self.held[at].state) {
            Some(LockState::Waits { heard_ns }) => heard_ns,
            _ => u64::MAX,
        }
    }

    pub(crate) fn ask(&mut self, to: Address, ahead: u64, behind: u64) {
        let message = LockMessage { kind: Kind::Ask, ahead, behind, from: self.own, newest: None };
        self.send(to, &message);
    }

    /// Stores the place of the key's newest node, which the grant to the next holder of the lock contains.
    pub(crate) fn set_newest(&mut self, word: u64, newest: Option<(Entry, &[u8])>) {
        if let Some(at) = self.find(word) {
            let newest = newest.filter(|(_, key)| key.len() <= MAX_KEY_BESIDE);
            self.held[at].newest = newest.map(|(entry, key)| (entry, key.to_vec()));
        }
    }

    /// Grants the lock to the client behind this word. Returns false if no client has asked for the lock. Then this
    /// word may still be the lock's word in memory.
    pub(crate) fn hand_over(&mut self, word: u64) -> bool {
        let Some(at) = self.find(word) else { return true };
        let Some((to, behind)) = self.held[at].successor else { return false };
        let newest = self.held.swap_remove(at).newest;
        self.send(to, &LockMessage { kind: Kind::Grant, ahead: word, behind, from: self.own, newest });
        true
    }

    /// Forgets this word: no client is behind it, or no client behind it will ask for the lock.
    pub(crate) fn forget(&mut self, word: u64) {
        self.held.retain(|held| held.word != word);
    }

    /// Keeps this released word for the next client in the queue. That client has changed the lock's word in memory,
    /// but it has not asked for the lock yet.
    pub(crate) fn owe(&mut self, word: u64, now_ns: u64) {
        let owed = self.held.iter().filter(|held| matches!(held.state, LockState::Owes { .. })).count();
        match self.find(word) {
            Some(at) if owed < MAX_OWED => self.held[at].state = LockState::Owes { since_ns: now_ns },
            _ => self.forget(word), // a client that asks about a forgotten word gets the lock
        }
    }

    /// Returns whether another client may still ask this client for a released lock. No client asks for longer than a
    /// lease.
    pub(crate) fn owes(&self, now_ns: u64, lease_ns: u64) -> bool {
        let is_due = |held: &Held| matches!(held.state, LockState::Owes { since_ns } if now_ns < since_ns + lease_ns);
        self.held.iter().any(is_due)
    }

    /// Returns the earliest time at which a released lock needs no further waiting for the next client's message.
    pub(crate) fn deadline_ns(&self, lease_ns: u64) -> Option<u64> {
        let until = |held: &Held| match held.state {
            LockState::Owes { since_ns } => Some(since_ns + lease_ns),
            _ => None,
        };
        self.held.iter().filter_map(until).min()
    }

    pub(crate) fn known(&self, client: u32) -> Option<Address> {
        self.addresses.get(&client).copied()
    }

    pub(crate) fn learn(&mut self, client: u32, address: Address) {
        self.addresses.insert(client, address);
    }

    pub(crate) fn is_gone(&self, client: u32) -> bool {
        self.gone.contains(&client)
    }

    pub(crate) fn is_shut_out(&mut self, client: u32) {
        self.gone.insert(client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_and_shorter_or_longer_bytes_are_rejected() {
        let from = Address { gid: Ipv6Addr::LOCALHOST, qpn: Qpn::new(77) };
        let entry = Entry { place: NodeVersion::new(5, 6), number: 7, is_tombstone: true, length: 64 };
        for (kind, newest) in [
            (Kind::Ask, None),
            (Kind::Queued, None),
            (Kind::Grant, Some((entry, vec![3; MAX_KEY_BESIDE]))),
            (Kind::Grant, Some((entry, b"k".to_vec()))),
        ] {
            let message = LockMessage { kind, ahead: 1 << 33, behind: 2 << 33, from, newest };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert!(bytes.len() <= MAX_MESSAGE);
            assert_eq!(LockMessage::decode(&bytes).as_ref(), Some(&message));
            for length in 0..bytes.len() {
                assert_ne!(LockMessage::decode(&bytes[..length]).as_ref(), Some(&message));
            }
            bytes.push(0);
            assert_ne!(LockMessage::decode(&bytes).as_ref(), Some(&message));
        }
    }
}
