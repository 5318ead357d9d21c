//! Combining of concurrent operations on one key by clients of one host. One operation, the leader, runs, and completes
//! all operations that joined before it began. Gets combine with gets, and puts with puts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_verbs::Region;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

use doorbell_sync::IgnorePoison;

use crate::layout::KeyBytes;
use crate::operation::{Kind, Outcome};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// A word of one client, which another client of the host changes after it has left a notice for this client. The word
/// is device memory, so the simulator detects the change and wakes the client.
#[derive(Debug)]
pub(crate) struct WakeWord {
    word: Region,
    changes: AtomicU64,
}

impl WakeWord {
    pub(crate) fn new(word: Region) -> Self {
        Self { word, changes: AtomicU64::new(0) }
    }

    fn change(&self) {
        // If two threads change the word at once, the thread with the smaller number may store last. That number still
        // differs from the value before the two changes.
        self.word.store_release_u64(0, self.changes.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Returns the value of the word, which differs after each change.
    pub(crate) fn value(&self) -> u64 {
        self.word.load_acquire_u64(0)
    }
}

/// Notice to a waiting operation.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The leader has completed the waiting operation.
    Done(Outcome),
    /// The waiting operation becomes the leader, and must complete this batch too.
    Lead(Batch),
    /// The leader has failed. The waiting operation must run by itself.
    Again,
}

#[derive(Debug, Default)]
struct Mailbox {
    /// Number of times that an operation began to wait or stopped waiting with this mailbox.
    turn: u64,
    notice: Option<Notice>,
    value: Vec<u8>,
}

/// Receiver of notices to a waiting operation. Each slot of a client has one.
#[derive(Debug)]
pub(crate) struct Waiter {
    mailbox: Mutex<Mailbox>,
    wake_word: Arc<WakeWord>,
}

impl Waiter {
    pub(crate) fn new(wake_word: &Arc<WakeWord>) -> Arc<Self> {
        Arc::new(Self { mailbox: Mutex::default(), wake_word: Arc::clone(wake_word) })
    }

    /// Begins to wait. Returns the number of this turn, which the sender of a notice must know.
    fn begin(&self) -> u64 {
        let mut mailbox = lock(&self.mailbox);
        mailbox.notice = None;
        mailbox.turn += 1;
        mailbox.turn
    }

    /// Takes the notice that has arrived, if any, and moves the value of the notice to `value`.
    pub(crate) fn take(&self, value: &mut Vec<u8>) -> Option<Notice> {
        let mut mailbox = lock(&self.mailbox);
        let notice = mailbox.notice.take();
        if matches!(notice, Some(Notice::Done(_))) {
            std::mem::swap(&mut mailbox.value, value);
            mailbox.value.clear();
        }
        notice
    }

    /// Stops waiting, so that later notices are refused. Returns a notice that arrived before.
    pub(crate) fn leave(&self) -> Option<Notice> {
        let mut mailbox = lock(&self.mailbox);
        mailbox.turn += 1;
        mailbox.notice.take()
    }
}

/// A waiting operation, and the number of its turn.
#[derive(Clone, Debug)]
struct Waiting {
    waiter: Arc<Waiter>,
    turn: u64,
}

impl Waiting {
    /// Delivers a notice and a value. Returns the notice if the operation has stopped waiting.
    fn notify(&self, notice: Notice, value: &[u8]) -> Result<(), Notice> {
        let mut mailbox = lock(&self.waiter.mailbox);
        if mailbox.turn != self.turn {
            return Err(notice);
        }
        mailbox.value.clear();
        mailbox.value.extend_from_slice(value);
        mailbox.notice = Some(notice);
        drop(mailbox);
        self.waiter.wake_word.change();
        Ok(())
    }
}

/// Operations that a leader completes together with its own, and the number of the leader's round.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    followers: Vec<Waiting>,
    round: u64,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.followers.len()
    }
}

/// Operations of one kind on one key.
#[derive(Debug, Default)]
struct Line {
    /// Number of the running round, and the time at which it began.
    running: Option<(u64, u64)>,
    waiting: Vec<Waiting>,
}

#[derive(Debug, Default)]
struct Lines {
    gets: Line,
    puts: Line,
}

impl Lines {
    fn of(&mut self, kind: Kind) -> &mut Line {
        if kind == Kind::Get { &mut self.gets } else { &mut self.puts }
    }

    fn are_idle(&self) -> bool {
        let is_idle = |line: &Line| line.running.is_none() && line.waiting.is_empty();
        is_idle(&self.gets) && is_idle(&self.puts)
    }
}

const SHARDS: usize = 64;
/// Maximum number of keys of a shard whose lines stay in memory while no operation uses them.
const KEPT: usize = 64;

type Shard = FxHashMap<KeyBytes, Lines>;

#[derive(Debug)]
pub(crate) struct Combiner {
    shards: Vec<Mutex<Shard>>,
    rounds: AtomicU64,
}

impl Default for Combiner {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), rounds: AtomicU64::new(0) }
    }
}

impl Combiner {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        lock(&self.shards[(hasher.finish() >> 58) as usize % SHARDS])
    }

    /// Adds an operation. The operation becomes the leader and gets a batch if there is no leader, or if the leader has
    /// not finished within `lease_ns`. Otherwise the operation waits for a notice.
    pub(crate) fn join(
        &self,
        key: &[u8],
        kind: Kind,
        waiter: &Arc<Waiter>,
        now_ns: u64,
        lease_ns: u64,
    ) -> Option<Batch> {
        let mut shard = self.shard(key);
        if !shard.contains_key(key) {
            if shard.len() >= KEPT {
                shard.retain(|_, lines| !lines.are_idle());
            }
            shard.insert(key.into(), Lines::default());
        }
        let line = shard.get_mut(key)?.of(kind);
        let is_led = line.running.is_some_and(|(_, since_ns)| now_ns.saturating_sub(since_ns) <= lease_ns);
        if is_led {
            line.waiting.push(Waiting { waiter: Arc::clone(waiter), turn: waiter.begin() });
            return None;
        }
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        line.running = Some((round, now_ns));
        Some(Batch { followers: std::mem::take(&mut line.waiting), round })
    }

    /// Ends the round of a leader that is done or has failed, and notifies its batch. If operations joined during the
    /// round, the last of them leads the next round.
    pub(crate) fn finish(&self, key: &[u8], kind: Kind, batch: Batch, done: Option<(Outcome, &[u8])>, now_ns: u64) {
        for follower in &batch.followers {
            let _ = match done {
                Some((outcome, value)) => follower.notify(Notice::Done(outcome), value),
                None => follower.notify(Notice::Again, &[]),
            };
        }
        let mut shard = self.shard(key);
        let Some(line) = shard.get_mut(key).map(|lines| lines.of(kind)) else { return };
        if line.running.is_none_or(|(round, _)| round != batch.round) {
            return; // this leader exceeded its lease, and another operation leads
        }
        line.running = None;
        let mut next = batch;
        next.followers.clear();
        std::mem::swap(&mut next.followers, &mut line.waiting);
        while let Some(leader) = next.followers.pop() {
            next.round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
            line.running = Some((next.round, now_ns));
            match leader.notify(Notice::Lead(next), &[]) {
                Ok(()) => return,
                Err(Notice::Lead(batch)) => next = batch,
                Err(_) => return,
            }
            line.running = None;
        }
    }
}
