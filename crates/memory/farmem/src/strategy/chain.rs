//! The versions of a key as a chain of nodes, of which the last is the key's value. A client believes to know the last
//! one; if it is wrong, it follows the chain.

use crate::cache::Entry;
use crate::client::{Kind, Outcome};
use crate::error::StoreError;
use crate::layout::{NodeVersion, Word};
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::worker::{Seen, Worker};

/// Number of damaged READs in a row after which a node counts as corrupted. A node that is being recycled is another
/// one, or intact again, at one of the next READs.
const MAX_DAMAGED: u32 = 16;
/// Time to wait before a question without an answer is asked again. It doubles each time, up to 2^[`MAX_DOUBLINGS`]
/// times this value.
const AGAIN_NS: u64 = 20_000;
const MAX_DOUBLINGS: u32 = 8;
/// Maximum times in one operation that the service may name a node that is none of the key: more than a second of
/// asking.
const MAX_RESTARTS: u32 = 256;

/// The time of the next try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    AtOnce,
    /// After a random time below a bound, which doubles with each attempt up to `most_ns`; `budget` attempts at most.
    Random {
        first_ns: u64,
        most_ns: u64,
        budget: u32,
    },
}

impl Pace {
    /// From about a round trip to about the time of a hundred.
    pub(super) const BACKOFF: Self = Self::Random { first_ns: 4_000, most_ns: 512_000, budget: 64 };

    async fn wait(self, worker: &Worker, attempts: u32) -> Result<(), StoreError> {
        match self {
            Self::AtOnce => Ok(()),
            Self::Random { budget, .. } if attempts >= budget => Err(StoreError::GaveUp { attempts }),
            Self::Random { first_ns, most_ns, .. } => {
                let bound = first_ns.checked_shl(attempts.saturating_sub(1)).unwrap_or(most_ns).min(most_ns);
                worker.sleep(worker.random_below(bound)).await
            }
        }
    }
}

/// Follows the chain, and where a client cannot have its way, tries again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// WRITE and CAS in one post.
    pub(super) is_chained: bool,
    pub(super) pace: Pace,
}

impl Rules for Chain {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        match worker.kind() {
            Kind::Get => get(worker).await,
            _ => self.write(worker).await,
        }
    }
}

/// A walk from node to node of one key.
struct Walk {
    entry: Entry,
    /// The shortcut that was taken last: to take it again would be to go in circles, since shortcuts lag.
    taken: Option<NodeVersion>,
    /// The entry is a node that a client of this host has seen, and not only the beginning of the key's chain.
    is_seen: bool,
}

impl Walk {
    /// Goes on to the next node, or to where the shortcut points.
    fn go_on(&mut self, next: NodeVersion, shortcut: Option<NodeVersion>) {
        match shortcut {
            Some(shortcut) if shortcut != self.entry.place && self.taken != Some(shortcut) => {
                self.taken = Some(shortcut);
                self.entry.place = shortcut;
            }
            _ => self.entry.place = next,
        }
    }
}

/// Begins a walk along a key's chain. A walk that has come to a node which another key uses by now begins anew.
async fn begin(worker: &Worker, gone: Option<NodeVersion>) -> Result<Option<Walk>, StoreError> {
    if let Some(place) = gone {
        worker.count(|counts| counts.recycled += 1);
        worker.core.cache.forget(&worker.key(), place);
    } else if let Some(entry) = worker.known() {
        return Ok(Some(Walk { entry, taken: None, is_seen: true }));
    }
    Ok(worker.look_up().await?.map(|entry| Walk { entry, taken: None, is_seen: false }))
}

pub(super) async fn get(worker: &mut Worker) -> Result<Outcome, StoreError> {
    let (mut attempts, mut damaged, mut gone) = (0, 0, 0);
    let Some(mut walk) = begin(worker, None).await? else { return Ok(Outcome::Absent) };
    loop {
        let seen = worker.read(&mut walk.entry).await?;
        if let Seen::Longer { length } = seen {
            walk.entry.length = length;
            continue; // the node was found, and is read again as a whole
        }
        let is_tail = matches!(seen, Seen::Tail { .. });
        worker.attempt(attempts, is_tail);
        attempts += 1;
        match seen {
            Seen::Tail { is_tombstone, length } => {
                worker.core.cache.set(&worker.key(), Entry { is_tombstone, length, ..walk.entry });
                return Ok(if is_tombstone { Outcome::Absent } else { Outcome::Done });
            }
            Seen::Followed { next, shortcut } => walk.go_on(next, shortcut),
            Seen::Damaged if damaged >= MAX_DAMAGED => {
                return Err(StoreError::Corrupted { index: walk.entry.place.index() });
            }
            Seen::Damaged => damaged += 1,
            Seen::Gone | Seen::Longer { .. } => {
                let Some(again) = restart(worker, &walk, &mut gone).await? else {
                    return Ok(Outcome::Absent);
                };
                walk = again;
            }
        }
    }
}

/// Begins anew; the second time in a row and later, after a moment, since the service may not know yet either.
async fn restart(worker: &Worker, walk: &Walk, times: &mut u32) -> Result<Option<Walk>, StoreError> {
    let place = walk.entry.place;
    if *times >= MAX_RESTARTS {
        if !worker.waits_for_the_service().await {
            return Err(StoreError::Corrupted { index: place.index() });
        }
        *times = 0;
    }
    if *times > 0 {
        worker.sleep(AGAIN_NS << (*times).min(MAX_DOUBLINGS)).await?;
    }
    *times += 1;
    // The shortcut may have pointed to a wrong node.
    Ok(begin(worker, Some(place)).await?.map(|again| Walk { taken: walk.taken, ..again }))
}

/// State of a write.
enum Tail {
    /// The new node belongs after this node.
    Here(Entry),
    /// The operation ends without effect.
    Ends(Outcome),
    /// There is no such key.
    NoKey,
}

/// Returns the outcome of an operation without effect, given whether the tail is a tombstone.
fn ending(kind: Kind, is_tombstone: bool) -> Option<Outcome> {
    match kind {
        Kind::Insert => (!is_tombstone).then_some(Outcome::Exists),
        _ => is_tombstone.then_some(Outcome::Absent),
    }
}

/// Follows the chain to its tail, by READs of headers.
async fn find_tail(worker: &mut Worker, mut walk: Walk) -> Result<Tail, StoreError> {
    let mut gone = 0;
    loop {
        match worker.look(&mut walk.entry).await? {
            Seen::Tail { is_tombstone, length } => {
                let entry = Entry { is_tombstone, length, ..walk.entry };
                return Ok(match ending(worker.kind(), is_tombstone) {
                    Some(outcome) => {
                        worker.core.cache.set(&worker.key(), entry);
                        Tail::Ends(outcome)
                    }
                    None => Tail::Here(entry),
                });
            }
            Seen::Followed { next, shortcut } => walk.go_on(next, shortcut),
            _ => match restart(worker, &walk, &mut gone).await? {
                Some(again) => walk = again,
                None => return Ok(Tail::NoKey),
            },
        }
    }
}

impl Chain {
    /// Runs puts, inserts and deletes.
    pub(super) async fn write(self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        let new = worker.take_node().await?;
        let result = self.write_node(worker, new, false).await;
        keep_unused(worker, new, result)
    }

    /// Links a node that is written, or writes and links it.
    pub(super) async fn write_node(
        self,
        worker: &mut Worker,
        new: NodeVersion,
        is_written: bool,
    ) -> Result<Outcome, StoreError> {
        let kind = worker.kind();
        let mut attempts = 0;
        let mut is_written = is_written;
        let mut locked = LockedLink::default();
        let mut tail = match begin(worker, None).await? {
            None => Tail::NoKey,
            // A cached entry is enough to try. If it would end the operation, the tail has to be read first.
            Some(walk) if walk.is_seen && ending(kind, walk.entry.is_tombstone).is_none() => Tail::Here(walk.entry),
            Some(walk) => find_tail(worker, walk).await?,
        };
        loop {
            let old = match tail {
                Tail::Ends(outcome) => return Ok(outcome),
                Tail::NoKey if kind != Kind::Insert => return Ok(Outcome::Absent),
                Tail::NoKey => {
                    if !std::mem::replace(&mut is_written, true) {
                        worker.write(new, None).await?;
                    }
                    match create(worker, new).await? {
                        None => return Ok(Outcome::Done),
                        Some(entry) => {
                            tail = find_tail(worker, Walk { entry, taken: None, is_seen: false }).await?;
                            continue;
                        }
                    }
                }
                Tail::Here(entry) => entry,
            };
            let first = match std::mem::replace(&mut is_written, true) {
                true => None,
                false => worker.write(new, self.is_chained.then_some(&old)).await?,
            };
            let found = worker.link(&old, new, first).await?;
            let predecessor = found.predecessor(old.place);
            worker.attempt(attempts, predecessor.is_some());
            attempts += 1;
            if predecessor.is_some() {
                worker.publish(predecessor, new, old.number);
                return Ok(Outcome::Done);
            }
            self.pace.wait(worker, attempts).await?;
            if let Word::Locked(next) = found {
                locked.meet(worker, next).await?;
                tail = Tail::Here(old);
                continue;
            }
            // The word names the next node, if the place is still in the same use: the walk checks that by the next
            // node's key.
            let walk = match found {
                Word::Link(next) if worker.core.nodes.geometry.has(next) => {
                    Some(Walk { entry: Entry { place: next, ..old }, taken: None, is_seen: false })
                }
                _ => begin(worker, Some(old.place)).await?,
            };
            tail = match walk {
                Some(walk) => find_tail(worker, walk).await?,
                None => Tail::NoKey,
            };
        }
    }
}

/// A link that another client makes at the second memory node just now, and has not made at the first one.
#[derive(Default)]
struct LockedLink {
    /// The node that it leads to, and when that was seen first.
    seen: Option<(NodeVersion, u64)>,
}

impl LockedLink {
    /// Handles a client that is in the way. After more than a lease, that client is shut out, and the service makes
    /// the link.
    async fn meet(&mut self, worker: &Worker, next: NodeVersion) -> Result<(), StoreError> {
        let now_ns = worker.core.device.now_ns();
        match self.seen {
            Some((seen, since_ns)) if seen == next => {
                if now_ns.saturating_sub(since_ns) > worker.core.lease_ns {
                    self.seen = None;
                    worker.count(|counts| counts.suspects += 1);
                    worker.ask(|tag| Request::Stuck { tag, place: next }).await?;
                }
            }
            _ => self.seen = Some((next, now_ns)),
        }
        Ok(())
    }
}

/// Keeps a node that was not linked for the next write. After another error it is unknown whether the node was
/// linked.
pub(super) fn keep_unused(
    worker: &Worker,
    new: NodeVersion,
    result: Result<Outcome, StoreError>,
) -> Result<Outcome, StoreError> {
    if matches!(
        result,
        Ok(Outcome::Absent | Outcome::Exists) | Err(StoreError::GaveUp { .. } | StoreError::TooManyKeys)
    ) {
        worker.put_back(new);
    }
    result
}

/// Makes a key whose first node is `place`. Returns where its chain begins if the key exists already.
async fn create(worker: &Worker, place: NodeVersion) -> Result<Option<Entry>, StoreError> {
    loop {
        let key = worker.key().clone();
        match worker.ask(|tag| Request::Create { tag, key, place }).await? {
            Reply::Created { number, .. } => {
                worker.first_entry(place, number)?;
                worker.publish(None, place, number);
                return Ok(None);
            }
            Reply::Found { place, number, .. } => return worker.first_entry(place, number).map(Some),
            Reply::Again { .. } => worker.sleep(AGAIN_NS).await?,
            Reply::TooManyKeys { .. } => return Err(StoreError::TooManyKeys),
            _ => return Err(StoreError::Protocol("it sent an answer to another question")),
        }
    }
}
