//! All interleavings of a connection that receives messages and a thread that drops some: the peer never waits for a credit
//! message that no side will send.

#[allow(dead_code)] // grants that ride with data are not part of the models
#[path = "../src/send_receive/reports.rs"]
mod reports;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use reports::ReceiveCredits;

/// Preemptions of one run at most.
const PREEMPTIONS: usize = 3;

struct World {
    credits: ReceiveCredits,
    /// Receives posted so far.
    granted: AtomicU64,
    peer: Mutex<Peer>,
}

/// The other side: it sends whenever it may.
struct Peer {
    granted: u64,
    sent: u64,
}

impl World {
    /// All receives are used up: their messages have arrived, and none was dropped yet.
    fn exhausted(depth: u64) -> Self {
        let credits = ReceiveCredits::new(depth);
        for _ in 0..depth {
            credits.received();
        }
        let peer = Mutex::new(Peer { granted: depth, sent: depth });
        Self { credits, granted: AtomicU64::new(depth), peer }
    }

    /// A message is dropped, and its receive posted again. Returns whether a credit message left.
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

    /// The next message, if the peer may send one.
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

    /// The connection goes on alone: each message is received and dropped.
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
    // Every order of the two is too many: each switches to the other this often at most while it could go on.
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let world = Arc::new(World::exhausted(depth));
        let dropping = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.drop_message())
        };
        // The connection drops a message, and takes what the peer sends in answer to either grant.
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
