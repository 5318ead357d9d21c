//! Routes of packets to each destination: through the rings of a peer, over UDP, or undecided while its device has
//! been asked.

use std::net::IpAddr;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::LinkChoice;
use super::meet::Meeting;

/// Maximum time that a device may take to answer an invitation before packets to it go over UDP. It is long in tests,
/// which must see packets in memory also on a busy machine.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 20 });

/// The same time if UDP is not allowed, so that packets would be dropped. It allows for a process that does not run
/// for a while.
const ONLY_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Time after which a destination without shared memory is asked again while packets go to it. A device may have been
/// opened there meanwhile. Each further wait is twice as long.
const ASK_AGAIN_AFTER_NS: u64 = 10_000_000;

/// Maximum of these waits. If only shared memory is allowed, all waits after the first are as long as this.
const ASK_AGAIN_WITHIN_NS: u64 = 1_000_000_000;

/// How long packets to other destinations wait for the silent device of an earlier packet, such as that of a stopped
/// process.
pub(super) const OTHERS_WAIT_NS: u64 = 2_000_000;

/// Maximum number of stored destinations that are reached over UDP. If there are more, all are asked again.
const UDP_ROUTES_MAX: usize = 4096;

/// Returns how long a device may take to answer an invitation.
pub(super) fn answer_within(choice: LinkChoice) -> Duration {
    if choice == LinkChoice::Shm { ANSWER_WITHIN.max(ONLY_ANSWER_WITHIN) } else { ANSWER_WITHIN }
}

/// Route of packets to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Its device was invited at this time, and may take a moment to answer.
    Asked { at_ns: u64 },
    /// Through the rings of the peer at this place.
    Shared { place: usize },
    /// Over UDP, since no device there shares memory. Its device is asked again at `ask_at_ns`, and later after
    /// `wait_ns`.
    Udp { ask_at_ns: u64, wait_ns: u64 },
}

/// Route of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunRoute {
    /// The run has to wait for an answer.
    Unknown,
    /// Through the rings of the peer at this place.
    Shared(usize),
    Udp,
}

/// The routes of a device.
#[derive(Debug)]
pub(super) struct Routes {
    choice: LinkChoice,
    own: IpAddr,
    by_destination: FxHashMap<IpAddr, Route>,
    /// Latest time for the first answer of the asked devices.
    asked_until_ns: Option<u64>,
    /// Whether packets to other destinations wait for the answer of an asked device.
    others_wait: bool,
}

impl Routes {
    /// Creates the routes of the device with this address.
    pub(super) fn new(choice: LinkChoice, own: IpAddr) -> Self {
        let by_destination = FxHashMap::default();
        Self { choice, own, by_destination, asked_until_ns: None, others_wait: false }
    }

    /// Returns the route of packets to a destination, now that there are some. Asks its device for shared memory
    /// first.
    #[inline]
    pub(super) fn way(&mut self, now_ns: u64, destination: IpAddr, meeting: &Meeting) -> RunRoute {
        let patience_ns = self.patience_ns();
        match self.by_destination.get_mut(&destination) {
            Some(Route::Shared { place }) => RunRoute::Shared(*place),
            Some(Route::Udp { ask_at_ns, wait_ns }) => {
                if now_ns >= *ask_at_ns {
                    if self.choice == LinkChoice::Auto {
                        *wait_ns = (2 * *wait_ns).min(ASK_AGAIN_WITHIN_NS);
                    }
                    *ask_at_ns = now_ns + *wait_ns;
                    meeting.invite(destination);
                }
                RunRoute::Udp
            }
            Some(Route::Asked { at_ns }) if now_ns < *at_ns + patience_ns => self.meanwhile(destination),
            Some(Route::Asked { .. }) => {
                // The invitation may still be answered.
                self.set_udp(destination, now_ns + answer_within(self.choice).as_nanos() as u64);
                self.note_asked();
                RunRoute::Udp
            }
            None if destination.is_multicast() => RunRoute::Udp,
            None => {
                self.by_destination.insert(destination, Route::Asked { at_ns: now_ns });
                meeting.invite(destination);
                self.note_asked();
                self.meanwhile(destination)
            }
        }
    }

    /// Returns the route while a device was asked and has not answered. Packets of a device to itself leave at once:
    /// programs that post a datagram to their own device poll for its completion right after the post.
    fn meanwhile(&self, destination: IpAddr) -> RunRoute {
        if destination == self.own && self.choice == LinkChoice::Auto { RunRoute::Udp } else { RunRoute::Unknown }
    }

    /// Returns whether packets to a destination go through memory.
    #[inline]
    pub(super) fn is_shared(&self, destination: IpAddr) -> bool {
        matches!(self.by_destination.get(&destination), Some(Route::Shared { .. }))
    }

    /// Returns the latest time for the first answer of the asked devices.
    #[inline]
    pub(super) fn asked_until_ns(&self) -> Option<u64> {
        self.asked_until_ns
    }

    /// Sets whether packets to other destinations wait for the current one. Returns true if that is a change.
    pub(super) fn note_others(&mut self, wait: bool) -> bool {
        let is_new = std::mem::replace(&mut self.others_wait, wait) != wait;
        if is_new {
            self.note_asked();
        }
        is_new
    }

    /// Records that the device of a destination shares memory. Its packets go to the peer at this place, unless they
    /// go to another peer already.
    pub(super) fn arrived(&mut self, destination: IpAddr, place: usize) {
        if !self.is_shared(destination) {
            self.by_destination.insert(destination, Route::Shared { place });
        }
        self.note_asked();
    }

    /// Records that the device of a destination shares no memory.
    pub(super) fn absent(&mut self, destination: IpAddr, now_ns: u64) {
        if let Some(Route::Asked { .. }) = self.by_destination.get(&destination) {
            self.set_udp(destination, now_ns);
        }
        self.note_asked();
    }

    /// Forgets all routes: no device will be asked any more.
    pub(super) fn end(&mut self) {
        self.by_destination.clear();
        self.asked_until_ns = None;
    }

    /// Records that the peer at this place has gone. The next device at its address is asked for shared memory, but
    /// packets go over UDP until it answers. Otherwise a peer that goes again and again would delay packets to other
    /// destinations.
    pub(super) fn forget(&mut self, place: usize) {
        let has_room = self.by_destination.len() < UDP_ROUTES_MAX;
        let keeps = self.choice == LinkChoice::Auto && has_room;
        self.by_destination.retain(|_, route| {
            let is_meant = *route == Route::Shared { place };
            if is_meant {
                *route = Route::Udp { ask_at_ns: 0, wait_ns: ASK_AGAIN_AFTER_NS };
            }
            !is_meant || keeps
        });
    }

    fn set_udp(&mut self, destination: IpAddr, now_ns: u64) {
        if self.by_destination.len() >= UDP_ROUTES_MAX {
            self.by_destination.retain(|_, route| !matches!(route, Route::Udp { .. }));
        }
        let ask_at_ns = now_ns + ASK_AGAIN_AFTER_NS;
        self.by_destination.insert(destination, Route::Udp { ask_at_ns, wait_ns: ASK_AGAIN_AFTER_NS });
    }

    fn note_asked(&mut self) {
        let asked = self.by_destination.values().filter_map(|route| match *route {
            Route::Asked { at_ns } => Some(at_ns),
            _ => None,
        });
        self.asked_until_ns = asked.min().map(|at_ns| at_ns + self.patience_ns());
    }

    /// Returns how long packets to an asked device wait. The thread that invites devices reports sooner, unless it
    /// does not run at all.
    fn patience_ns(&self) -> u64 {
        2 * match self.choice {
            LinkChoice::Auto if self.others_wait => return OTHERS_WAIT_NS,
            LinkChoice::Shm if self.others_wait => ANSWER_WITHIN.as_nanos() as u64,
            choice => answer_within(choice).as_nanos() as u64,
        }
    }
}
