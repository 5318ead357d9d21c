//! Model checks of all interleavings of a connection that receives messages and a thread that drops messages. The peer
//! must never wait for a credit message that this side will not send.

#[allow(dead_code)] // the models have no grants in data messages
#[path = "../../src/connection/receives/reports.rs"]
pub(crate) mod reports;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use reports::ReceiveCredits;

/// Maximum number of preemptions in one interleaving.
const PREEMPTIONS: usize = 3;

struct World {
    credits: ReceiveCredits,
    /// Cumulative number of posted receives.
    granted: AtomicU64,
    peer: Mutex<Peer>,
}

/// The peer, which sends messages while it has credit.
struct Peer {
    granted: u64,
    sent: u64,
}

impl World {
    /// Makes a world in which messages have used up all receives. All these messages have arrived, and none was
    /// dropped.
    fn exhausted(depth: u64) -> Self {
        let credits = ReceiveCredits::new(depth);
        for _ in 0..depth {
            credits.received();
        }
        let peer = Mutex::new(Peer { granted: depth, sent: depth });
        Self { credits, granted: AtomicU64::new(depth), peer }
    }

    /// Drops a message and reposts its receive. Returns whether this caused a credit message.
    fn drop_message(&self) -> bool {
        self.granted.fetch_add(1, Ordering::Release);
        self.report()
    }

    fn report(&self) -> bool {
        let granted = self.granted.load(Ordering::Acquire);
        let due = self.credits.take_due(granted);
        if due {
            let mut peer = self.peer.lock().unwrap();
            peer.granted = peer.granted.max(granted);
        }
        due
    }

    /// Receives the next message, if the peer has credit. Returns whether a message arrived.
    fn receive(&self) -> bool {
        let mut peer = self.peer.lock().unwrap();
        let may = peer.sent < peer.granted;
        if may {
            peer.sent += 1;
            drop(peer);
            self.credits.received();
        }
        may
    }

    /// Runs the connection without another thread. The connection receives each message and drops it.
    fn goes_on(&self) {
        for message in 0..3 {
            if !self.receive() {
                assert!(self.report(), "before message {message} the peer waits for a credit that is never reported");
                assert!(self.receive());
            }
            self.drop_message();
        }
    }
}

fn both_drop_and_one_receives(depth: u64) {
    let mut model = loom::model::Builder::new();
    // The two threads have too many interleavings, so the model bounds the number of preemptions.
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let world = Arc::new(World::exhausted(depth));
        let dropping = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.drop_message())
        };
        // The connection drops a message, and then receives the messages that the peer sends after the new grants.
        world.drop_message();
        if world.receive() {
            world.drop_message();
        }
        dropping.join().unwrap();
        world.goes_on();
    });
}

#[test]
fn a_peer_with_two_receives_is_never_left_without_credit() {
    both_drop_and_one_receives(2);
}

#[test]
fn a_peer_with_eight_receives_is_never_left_without_credit() {
    both_drop_and_one_receives(8);
}
