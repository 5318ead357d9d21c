//! Model checks of all interleavings of threads that give buffers back. Each returned buffer must be reposted if the
//! peer waits for a receive. The share of an ended connection must become available exactly once.

#[allow(dead_code)]
#[path = "../../src/connection/receives/returns.rs"]
mod returns;

mod sync {
    pub(super) use doorbell_testing::model::ArrayQueue;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

pub(crate) mod connection {
    pub(crate) mod config {
        pub(crate) const MAX_REPOST_LIST: usize = 4;
    }
}

use std::convert::Infallible;
use std::sync::Arc;

use crate::reports::reports::ReceiveCredits;
use loom::sync::Mutex;
use returns::{Granted, Grants, Returns};

/// Maximum number of preemptions in one interleaving.
const PREEMPTIONS: usize = 3;

/// A connection, with the grant that its peer knows.
struct Account {
    grants: Grants,
    credits: ReceiveCredits,
    /// Latest grant that was reported to the peer.
    known: Mutex<u64>,
    nic: Arc<Nic>,
}

/// Model of the NIC: the number of all receives that were posted.
struct Nic(Mutex<u64>);

impl Account {
    /// Makes a connection all of whose granted receives are used up.
    fn exhausted(nic: &Arc<Nic>, depth: u64, share: usize) -> Arc<Self> {
        let credits = ReceiveCredits::new(depth);
        (0..depth).for_each(|received| assert_eq!(credits.received(), received + 1));
        let (grants, known) = (Grants::new(depth, share), Mutex::new(depth));
        Arc::new(Self { grants, credits, known, nic: Arc::clone(nic) })
    }
}

impl Granted for Account {
    fn grants(&self) -> &Grants {
        &self.grants
    }

    fn report(&self) {
        let granted = self.grants.granted();
        if self.credits.take_due(granted) {
            let mut known = self.known.lock().unwrap();
            *known = granted.max(*known);
            assert!(granted <= *self.nic.0.lock().unwrap(), "a receive was granted but not posted");
        }
    }
}

/// The returned buffers of one connection, or of several connections that share receives.
struct World {
    returns: Returns<Account, Infallible>,
    nic: Arc<Nic>,
    own: Option<Arc<Account>>,
}

impl World {
    fn repost(&self) {
        let own = self.own.as_deref().map(Granted::grants);
        let post = |slots: &[u32]| {
            *self.nic.0.lock().unwrap() += slots.len() as u64;
            Ok(())
        };
        let Ok(_) = self.returns.repost(own, post);
    }

    /// Gives a buffer back as the drop of a message does.
    fn give_back(&self, slot: u32, account: Option<&Arc<Account>>) {
        if self.returns.give_back(slot, account.cloned()) {
            self.repost();
            if let Some(account) = account.or(self.own.as_ref()) {
                account.report();
            }
        }
    }
}

fn check(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(run);
}

#[test]
fn an_exhausted_peer_learns_of_receives_returned_by_threads() {
    const DEPTH: u64 = 2;
    check(|| {
        let nic = Arc::new(Nic(Mutex::new(DEPTH)));
        let own = Account::exhausted(&nic, DEPTH, 0);
        let returns = Returns::new(DEPTH as usize, DEPTH as usize / 4, 1, 0, 0);
        let world = Arc::new(World { returns, nic, own: Some(Arc::clone(&own)) });
        let dropping = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.give_back(0, None))
        };
        world.give_back(1, None);
        dropping.join().unwrap();
        // The connection sleeps until a message comes, so the peer must be able to send a message.
        assert!(*own.known.lock().unwrap() > DEPTH, "the peer still waits for a receive");
        // When the connection polls, the remaining buffers must be reposted.
        world.repost();
        assert_eq!((world.returns.len(), own.grants.granted()), (0, 2 * DEPTH));
    });
}

#[test]
fn the_share_of_an_ended_connection_is_returned_once() {
    check(|| {
        let nic = Arc::new(Nic(Mutex::new(2)));
        let returns = Returns::new(2, 0, 1, 2, 2);
        let world = Arc::new(World { returns, nic: Arc::clone(&nic), own: None });
        world.returns.admit(1).unwrap();
        world.returns.admit(1).unwrap();
        let [ending, other] = [(); 2].map(|()| {
            let account = Account::exhausted(&nic, 1, 1);
            account.grants.taken();
            account
        });
        // A thread drops one message of each connection, while one connection ends.
        let dropping = {
            let (world, ending) = (Arc::clone(&world), Arc::clone(&ending));
            loom::thread::spawn(move || world.give_back(0, Some(&ending)))
        };
        let dropping_other = {
            let (world, other) = (Arc::clone(&world), Arc::clone(&other));
            loom::thread::spawn(move || world.give_back(1, Some(&other)))
        };
        world.returns.dismiss(&ending.grants);
        dropping.join().unwrap();
        dropping_other.join().unwrap();
        world.repost();
        assert_eq!((world.returns.len(), world.returns.unclaimed()), (0, (1, 1)));
        assert_eq!(other.grants.granted(), 2);
    });
}
