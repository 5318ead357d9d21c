//! The versions of a key's value as a chain of nodes, whose last node has the current value. A client starts at the
//! node that it believes to be the last one, and follows the chain if other nodes come after that node.

use crate::cache::Entry;
use crate::error::StoreError;
use crate::layout::{NodeVersion, Word};
use crate::operation::{Kind, Outcome};
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::worker::{Seen, Worker};

/// Number of damaged READs in a row after which a node counts as corrupted. While a node is being recycled, only a few
/// READs in a row return a damaged node.
const MAX_DAMAGED: u32 = 16;
/// Time before a client asks the metadata service again for the first node of a key. The time doubles with each
/// request, up to 2^[`MAX_DOUBLINGS`] times this value.
const AGAIN_NS: u64 = 20_000;
const MAX_DOUBLINGS: u32 = 8;
/// Maximum number of times in one operation that the service may name a node of another key. The requests then take
/// more than a second.
const MAX_RESTARTS: u32 = 256;

/// Time before the next attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    AtOnce,
    /// After a random time below a bound, which starts at `first_ns` and doubles with each attempt up to `most_ns`. The
    /// operation fails after `budget` attempts.
    Random {
        first_ns: u64,
        most_ns: u64,
        budget: u32,
    },
}

impl Pace {
    /// Bounds from about one round trip to about a hundred round trips.
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

/// Writes by following a key's chain and appending a node, with further attempts if other clients are faster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// Whether the client posts WRITE and CAS together.
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

/// State of following a key's chain.
struct Walk {
    entry: Entry,
    /// The shortcut that the client followed last. Shortcuts lag, so following this shortcut again could lead back to a
    /// node that the client has already passed.
    taken: Option<NodeVersion>,
    /// Whether a client of this host has seen the node `entry` in the chain. Otherwise the metadata service named it as
    /// the first node of the chain.
    is_seen: bool,
}

impl Walk {
    /// Continues at the place of the shortcut, or at the next node if there is no new shortcut.
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

/// Starts at the cached node of the key, or at the first node that the metadata service names. `gone` is a node that
/// another key uses by now: then the function removes the cached entry of this node and asks the service.
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
            continue; // READ the whole node now
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

/// Starts again after the walk has reached a node that another key uses. From the second time in a row on, waits before
/// that, since the metadata service may not know the new chain yet.
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
    // Remember the last shortcut, since that shortcut may have pointed to the wrong node.
    Ok(begin(worker, Some(place)).await?.map(|again| Walk { taken: walk.taken, ..again }))
}

/// Result of looking for the tail of a chain.
enum Tail {
    /// This node is the tail, to which the operation appends its node.
    Here(Entry),
    /// The operation ends with this outcome and without effect.
    Ends(Outcome),
    /// The key does not exist.
    NoKey,
}

/// Returns the outcome of an operation that the state of the tail leaves without effect. `None` if the operation can
/// append its node.
fn ending(kind: Kind, is_tombstone: bool) -> Option<Outcome> {
    match kind {
        Kind::Insert => (!is_tombstone).then_some(Outcome::Exists),
        _ => is_tombstone.then_some(Outcome::Absent),
    }
}

/// Follows the chain to its tail with READs of headers.
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
    /// Executes a put, insert or delete.
    pub(super) async fn write(self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        let new = worker.take_node().await?;
        let result = self.write_node(worker, new, false).await;
        keep_unused(worker, new, result)
    }

    /// Links the node `new`. WRITEs the node first if `is_written` is false.
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
            // A cached entry is good enough for an attempt. But an operation must not end without effect because of a
            // cached entry, so then the client reads the tail first.
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
            // The word names the next node, unless the place was recycled meanwhile. The walk notices that by the key
            // of the next node.
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

/// A link that another client has made at the second memory node, but not yet at the first one.
#[derive(Default)]
struct LockedLink {
    /// The node behind the locked word, and the time at which this client first saw the word.
    seen: Option<(NodeVersion, u64)>,
}

impl LockedLink {
    /// Records that another client's locked word delays this operation. After more than a lease, the metadata service
    /// shuts that client out and completes its link.
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

/// Keeps the operation's node for the next write if `result` shows that the node was not linked. Most errors leave
/// unknown whether it was linked, and such a node is not reused.
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

/// Creates a key whose first node is `place`. Returns the first node of the key's chain if the key exists already.
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
            _ => return Err(StoreError::Protocol("the metadata service sent an answer to another request")),
        }
    }
}
