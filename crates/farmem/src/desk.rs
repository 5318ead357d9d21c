//! A desk at which operations of one host's clients on one key meet: one of them runs, and answers for those that
//! came before it began. Gets meet gets, and puts meet puts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_verbs::Region;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

use crate::client::{Kind, Outcome};
use crate::layout::KeyBytes;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A word of one client. Other clients change it when they leave something for that client. The word lies in memory of
/// the device, so that the simulator sees the change and wakes the client.
#[derive(Debug)]
pub(crate) struct Bell {
    word: Region,
    rings: AtomicU64,
}

impl Bell {
    pub(crate) fn new(word: Region) -> Self {
        Self { word, rings: AtomicU64::new(0) }
    }

    fn ring(&self) {
        // If two ring at once, the earlier number may be stored last. It still differs from the number before.
        self.word.store_release_u64(0, self.rings.fetch_add(1, Ordering::Relaxed) + 1);
    }

    pub(crate) fn rings(&self) -> u64 {
        self.word.load_acquire_u64(0)
    }
}

/// Message to an operation that waits.
#[derive(Debug)]
pub(crate) enum Word {
    /// The operation is done: another one did it too.
    Done(Outcome),
    /// The operation takes its turn, and answers for these.
    Lead(Batch),
    /// The leader has failed: the operation tries itself.
    Again,
}

#[derive(Debug, Default)]
struct Place {
    /// Rises with each operation that sits down here, and when one leaves.
    turn: u64,
    word: Option<Word>,
    value: Vec<u8>,
}

/// The place at which an operation waits: one for each slot of a client.
#[derive(Debug)]
pub(crate) struct Seat {
    place: Mutex<Place>,
    bell: Arc<Bell>,
}

impl Seat {
    pub(crate) fn new(bell: &Arc<Bell>) -> Arc<Self> {
        Arc::new(Self { place: Mutex::default(), bell: Arc::clone(bell) })
    }

    /// Sits down.
    fn take(&self) -> u64 {
        let mut place = lock(&self.place);
        place.word = None;
        place.turn += 1;
        place.turn
    }

    /// Takes the message to this seat, if there is one. A value goes to `value`.
    pub(crate) fn hear(&self, value: &mut Vec<u8>) -> Option<Word> {
        let mut place = lock(&self.place);
        let word = place.word.take();
        if matches!(word, Some(Word::Done(_))) {
            std::mem::swap(&mut place.value, value);
            place.value.clear();
        }
        word
    }

    /// Leaves the seat: later messages are not received. Returns a message that had arrived before.
    pub(crate) fn leave(&self) -> Option<Word> {
        let mut place = lock(&self.place);
        place.turn += 1;
        place.word.take()
    }
}

/// An operation that waits, in this turn of the seat.
#[derive(Clone, Debug)]
struct Waiting {
    seat: Arc<Seat>,
    turn: u64,
}

impl Waiting {
    /// Gives back the word if the one who waited has left.
    fn say(&self, word: Word, value: &[u8]) -> Result<(), Word> {
        let mut place = lock(&self.seat.place);
        if place.turn != self.turn {
            return Err(word);
        }
        place.value.clear();
        place.value.extend_from_slice(value);
        place.word = Some(word);
        drop(place);
        self.seat.bell.ring();
        Ok(())
    }
}

/// Those for whom a leader answers, and which leader of the line it is.
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

#[derive(Debug, Default)]
struct Line {
    /// The round that is running, and since when.
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
/// Keys of a shard whose lines are kept though no operation uses them.
const KEPT: usize = 64;

type Shard = FxHashMap<KeyBytes, Lines>;

#[derive(Debug)]
pub(crate) struct Desk {
    shards: Vec<Mutex<Shard>>,
    rounds: AtomicU64,
}

impl Default for Desk {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), rounds: AtomicU64::new(0) }
    }
}

impl Desk {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        lock(&self.shards[(hasher.finish() >> 58) as usize % SHARDS])
    }

    /// Adds an operation. It leads and gets a batch if there is no leader, or if the leader has not finished for
    /// `lease_ns`. Otherwise it waits in its seat.
    pub(crate) fn join(&self, key: &[u8], kind: Kind, seat: &Arc<Seat>, now_ns: u64, lease_ns: u64) -> Option<Batch> {
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
            line.waiting.push(Waiting { seat: Arc::clone(seat), turn: seat.take() });
            return None;
        }
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        line.running = Some((round, now_ns));
        Some(Batch { followers: std::mem::take(&mut line.waiting), round })
    }

    /// Ends the turn of a leader, which is done or has failed. Notifies its batch; the operation that came last leads
    /// the next.
    pub(crate) fn finish(&self, key: &[u8], kind: Kind, batch: Batch, done: Option<(Outcome, &[u8])>, now_ns: u64) {
        for follower in &batch.followers {
            let _ = match done {
                Some((outcome, value)) => follower.say(Word::Done(outcome), value),
                None => follower.say(Word::Again, &[]),
            };
        }
        let mut shard = self.shard(key);
        let Some(line) = shard.get_mut(key).map(|lines| lines.of(kind)) else { return };
        if line.running.is_none_or(|(round, _)| round != batch.round) {
            return; // another one leads, since this one took too long
        }
        line.running = None;
        let mut next = batch;
        next.followers.clear();
        std::mem::swap(&mut next.followers, &mut line.waiting);
        while let Some(leader) = next.followers.pop() {
            next.round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
            line.running = Some((next.round, now_ns));
            match leader.say(Word::Lead(next), &[]) {
                Ok(()) => return,
                Err(Word::Lead(batch)) => next = batch,
                Err(_) => return,
            }
            line.running = None;
        }
    }
}
