//! Datagrams between clients, with which they hand locks over: one says "I wait behind your lock", the other one "it
//! is yours". Datagrams may be lost, so a waiting client asks again. Only time depends on them, since below a lock a
//! write is the same CAS as without.

use std::net::Ipv6Addr;
use std::sync::Arc;

use doorbell_verbs::{
    Access, AddressVector, Completion, Cq, Device, MemoryKind, Payload, Pd, QKey, Qp, QpAttributes, QpCapacities,
    QpKind, QpOptions, QpState, Qpn, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Status, UdDestination,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::{Entry, HostCache};
use crate::error::OpenError;
use crate::layout::{Geometry, Place};

/// All clients have this Q_Key; its highest bit is clear, so no privilege is needed (IBTA Vol 1, 10.2.5).
const QKEY: u32 = 0x0d00_0be1;
/// Bytes of the global routing header in front of a datagram (IBTA Vol 1, 11.4.1.2).
const GRH_BYTES: usize = 40;
/// Bytes of the longest key that goes with a lock. With longer ones the next holder looks for the tail itself.
const MAX_KEY_BESIDE: usize = 64;
/// Bytes of the longest letter.
const MAX_LETTER: usize = 88 + MAX_KEY_BESIDE;
/// From one letter's place to the next.
const STRIDE: usize = 256;
const _: () = assert!(GRH_BYTES + MAX_LETTER <= STRIDE);
/// Letters that may arrive between two polls. Each lock of this client has one client behind it, which asks again only
/// after some time.
const RECEIVES: usize = 128;
/// Maximum of letters that are being sent. Beyond it, a letter is not sent, and the peer asks for it again.
const SENDS: usize = 64;
const POLL_LIST: usize = 32;
/// Successors that may be awaited by locks that were let go of. A few wait at a time; more are successors that died.
const MAX_OWED: usize = 1024;

/// The address at which a client receives its letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) gid: Ipv6Addr,
    pub(crate) qpn: Qpn,
}

/// Statement of a letter about the lock words of two clients, of which one waits behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// To the one ahead: I wait behind you.
    Behind,
    /// To the one behind: the sender lives, and has recorded that the receiver waits.
    Patience,
    /// To the one behind: it is yours.
    Yours,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Letter {
    says: Says,
    ahead: u64,
    behind: u64,
    from: Address,
    /// With `Yours`: where the key's newest node is.
    newest: Option<(Entry, Vec<u8>)>,
}

impl Letter {
    fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend((self.says as u64).to_le_bytes());
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

    /// Parses a letter. Returns `None` if the bytes are no letter: other programs on the network may send here.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.split_at_checked(48)?;
        let word = |bytes: &[u8], index: usize| bytes[8 * index..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let says =
            [Says::Behind, Says::Patience, Says::Yours].into_iter().find(|says| *says as u64 == word(words, 0))?;
        let gid = Ipv6Addr::from(*words[24..].first_chunk::<16>()?);
        let qpn = u32::try_from(word(words, 5)).ok().filter(|&qpn| qpn < 1 << 24).map(Qpn::new)?;
        let newest = match rest.split_at_checked(40) {
            None if rest.is_empty() => None,
            None => return None,
            Some((words, key)) => {
                let place = Place::from_bits(word(words, 0))?;
                let (number, length) = (u32::try_from(word(words, 1)).ok()?, u32::try_from(word(words, 3)).ok()?);
                if word(words, 4) != key.len() as u64 || word(words, 2) > 1 {
                    return None;
                }
                Some((Entry { place, number, is_tombstone: word(words, 2) == 1, length }, key.to_vec()))
            }
        };
        Some(Self { says, ahead: word(words, 1), behind: word(words, 2), from: Address { gid, qpn }, newest })
    }
}

/// A lock word of this client, from before it may be in memory until another client has the lock.
#[derive(Debug)]
struct Held {
    word: u64,
    stands: Stands,
    /// The client that waits behind it, and its word.
    successor: Option<(Address, u64)>,
    newest: Option<(Entry, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// Behind another one; when that one last gave a sign of life.
    Waits {
        heard_ns: u64,
    },
    Holds,
    /// Released: a client is behind that has not said so yet.
    Owes {
        since_ns: u64,
    },
}

/// A client's post.
#[derive(Debug)]
pub(crate) struct Mail {
    qp: Qp,
    cq: Cq,
    memory: Region,
    own: Address,
    /// Letters that were posted and have not left.
    leaving: usize,
    next_place: usize,
    held: Vec<Held>,
    /// Addresses at which the other clients receive their letters, by client number.
    addresses: FxHashMap<u32, Address>,
    /// Clients that were shut out: no client waits for them again.
    gone: FxHashSet<u32>,
    scratch: Vec<u8>,
    geometry: Geometry,
    cache: Arc<HostCache>,
    sent: (u64, u64),
}

impl Mail {
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
        let mail = Self {
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
            mail.post_receive(place)?;
        }
        Ok(mail)
    }

    /// Letters that were sent, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.sent
    }

    pub(crate) fn address(&self) -> Address {
        self.own
    }

    /// Posts a receive. A queue pair that is over rejects it, without harm: locks are then taken without letters.
    fn post_receive(&self, place: usize) -> Result<(), OpenError> {
        let sge = self.memory.sge((SENDS + place) * STRIDE, STRIDE);
        let request = RecvRequest { wr_id: (SENDS + place) as u64, sges: std::slice::from_ref(&sge) };
        Ok(self.qp.post_recv(&[request]).map_err(doorbell_exchange::ConnectError::Post)?)
    }

    fn send(&mut self, to: Address, letter: &Letter) {
        if to == self.own {
            return self.take(letter.clone(), None);
        }
        if self.leaving == SENDS {
            return;
        }
        letter.encode(&mut self.scratch);
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

    /// Takes what has arrived. Returns whether anything happened.
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
            let length = (completion.byte_len as usize).saturating_sub(GRH_BYTES).min(MAX_LETTER);
            let mut bytes = [0; MAX_LETTER];
            self.memory.copy_out((SENDS + place) * STRIDE + GRH_BYTES, &mut bytes[..length]);
            let _ = self.post_receive(place);
            if let Some(letter) = Letter::decode(&bytes[..length]) {
                self.take(letter, Some(now_ns));
            }
        }
        true
    }

    fn find(&mut self, word: u64) -> Option<usize> {
        self.held.iter().position(|held| held.word == word)
    }

    fn take(&mut self, letter: Letter, now_ns: Option<u64>) {
        let Letter { says, ahead, behind, from, newest } = letter;
        let own = self.own;
        let reply = |says, newest| Letter { says, ahead, behind, from: own, newest };
        match says {
            Says::Behind => match self.find(ahead) {
                Some(at) if matches!(self.held[at].stands, Stands::Owes { .. }) => {
                    let newest = self.held.swap_remove(at).newest;
                    self.send(from, &reply(Says::Yours, newest));
                }
                Some(at) => {
                    self.held[at].successor = Some((from, behind));
                    self.send(from, &reply(Says::Patience, None));
                }
                // This client has released that lock and forgot its successor: the letter was lost.
                None => self.send(from, &reply(Says::Yours, None)),
            },
            Says::Patience | Says::Yours => {
                let Some(at) = self.find(behind) else { return };
                let Stands::Waits { heard_ns } = self.held[at].stands else { return };
                if says == Says::Patience {
                    self.held[at].stands = Stands::Waits { heard_ns: now_ns.unwrap_or(heard_ns) };
                    return;
                }
                self.held[at].stands = Stands::Holds;
                if let Some((entry, key)) = newest
                    && self.geometry.has(entry.place)
                    && entry.number < self.geometry.keys
                {
                    self.cache.set(&key, entry);
                }
            }
        }
    }

    /// Records a lock word that is about to be put behind the word in memory.
    pub(crate) fn begin(&mut self, word: u64, now_ns: u64) {
        let stands = Stands::Waits { heard_ns: now_ns };
        self.held.push(Held { word, stands, successor: None, newest: None });
    }

    /// Records that this word is behind another one from now on. This may have taken long, if a memory node failed.
    pub(crate) fn waits(&mut self, word: u64, now_ns: u64) {
        if let Some(at) = self.find(word)
            && let Stands::Waits { heard_ns } = &mut self.held[at].stands
        {
            *heard_ns = now_ns;
        }
    }

    /// Marks the lock as belonging to this word: no other client was before it, or none is any more.
    pub(crate) fn own(&mut self, word: u64) {
        if let Some(at) = self.find(word) {
            self.held[at].stands = Stands::Holds;
        }
    }

    /// Returns whether the lock belongs to this word.
    pub(crate) fn owns(&mut self, word: u64) -> bool {
        self.find(word).is_none_or(|at| self.held[at].stands == Stands::Holds)
    }

    /// Returns the time of the last sign of life from the client ahead of this word.
    pub(crate) fn heard_ns(&mut self, word: u64) -> u64 {
        match self.find(word).map(|at| self.held[at].stands) {
            Some(Stands::Waits { heard_ns }) => heard_ns,
            _ => u64::MAX,
        }
    }

    pub(crate) fn ask(&mut self, to: Address, ahead: u64, behind: u64) {
        let letter = Letter { says: Says::Behind, ahead, behind, from: self.own, newest: None };
        self.send(to, &letter);
    }

    /// Stores the place of the key's newest node for the next holder of the lock.
    pub(crate) fn say_newest(&mut self, word: u64, newest: Option<(Entry, &[u8])>) {
        if let Some(at) = self.find(word) {
            let newest = newest.filter(|(_, key)| key.len() <= MAX_KEY_BESIDE);
            self.held[at].newest = newest.map(|(entry, key)| (entry, key.to_vec()));
        }
    }

    /// Gives the lock to the client behind. Returns false if no client has said that it waits: then the lock's word
    /// in memory may still be this one.
    pub(crate) fn hand_over(&mut self, word: u64) -> bool {
        let Some(at) = self.find(word) else { return true };
        let Some((to, behind)) = self.held[at].successor else { return false };
        let newest = self.held.swap_remove(at).newest;
        self.send(to, &Letter { says: Says::Yours, ahead: word, behind, from: self.own, newest });
        true
    }

    /// Forgets this word: no client is behind it, or none will ever ask.
    pub(crate) fn forget(&mut self, word: u64) {
        self.held.retain(|held| held.word != word);
    }

    /// Keeps this word for a client that is behind and has not said so yet, as the word in memory is another one.
    pub(crate) fn owe(&mut self, word: u64, now_ns: u64) {
        let owed = self.held.iter().filter(|held| matches!(held.stands, Stands::Owes { .. })).count();
        match self.find(word) {
            Some(at) if owed < MAX_OWED => self.held[at].stands = Stands::Owes { since_ns: now_ns },
            _ => self.forget(word), // a client that asks gets the lock all the same
        }
    }

    /// Returns whether a client still waits for a letter of this one. No client waits for longer than a lease.
    pub(crate) fn owes(&self, now_ns: u64, lease_ns: u64) -> bool {
        let is_due = |held: &Held| matches!(held.stands, Stands::Owes { since_ns } if now_ns < since_ns + lease_ns);
        self.held.iter().any(is_due)
    }

    /// Returns the time until which the client waits for those that have not asked.
    pub(crate) fn deadline_ns(&self, lease_ns: u64) -> Option<u64> {
        let until = |held: &Held| match held.stands {
            Stands::Owes { since_ns } => Some(since_ns + lease_ns),
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
    fn letters_are_what_they_were_and_what_is_cut_or_longer_is_none() {
        let from = Address { gid: Ipv6Addr::LOCALHOST, qpn: Qpn::new(77) };
        let entry = Entry { place: Place::new(5, 6), number: 7, is_tombstone: true, length: 64 };
        for (says, newest) in [
            (Says::Behind, None),
            (Says::Patience, None),
            (Says::Yours, Some((entry, vec![3; MAX_KEY_BESIDE]))),
            (Says::Yours, Some((entry, b"k".to_vec()))),
        ] {
            let letter = Letter { says, ahead: 1 << 33, behind: 2 << 33, from, newest };
            let mut bytes = Vec::new();
            letter.encode(&mut bytes);
            assert!(bytes.len() <= MAX_LETTER);
            assert_eq!(Letter::decode(&bytes).as_ref(), Some(&letter));
            for length in 0..bytes.len() {
                assert_ne!(Letter::decode(&bytes[..length]).as_ref(), Some(&letter));
            }
            bytes.push(0);
            assert_ne!(Letter::decode(&bytes).as_ref(), Some(&letter));
        }
    }
}
