//! How packets to each destination go: through which peer's rings, over UDP, or not yet, while its device was asked.

use std::net::IpAddr;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::LinkChoice;
use super::meet::Meeting;

/// How long a device may take to answer an invitation before its packets go over UDP.
/// Tests of links are to see what memory carries, be the machine busy.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 20 });

/// The same where UDP is not allowed, so that packets would be dropped: a process may not run for a while.
const ONLY_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// While packets go to a destination without shared memory, it is asked again after this time, in which a device may
/// have been opened there, and each time after twice as long as before.
const ASK_AGAIN_AFTER_NS: u64 = 10_000_000;

/// It is asked again at least this often; where only shared memory is allowed, always after the first time.
const ASK_AGAIN_WITHIN_NS: u64 = 1_000_000_000;

/// How long packets to other destinations wait behind one whose device was asked and is silent: one that is stopped, say.
pub(super) const OTHERS_WAIT_NS: u64 = 2_000_000;

/// Destinations that are remembered to be reached over UDP; with more of them all are asked again.
const UDP_ROUTES_MAX: usize = 4096;

/// How long a device may take to answer an invitation.
pub(super) fn answer_within(choice: LinkChoice) -> Duration {
    if choice == LinkChoice::Shm { ANSWER_WITHIN.max(ONLY_ANSWER_WITHIN) } else { ANSWER_WITHIN }
}

/// How packets to one destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Its device was invited at this time, and may take a moment to answer.
    Asked { at_ns: u64 },
    /// Through the rings of the peer at this place.
    Shared { place: usize },
    /// Over UDP, since nobody there shares memory. Its device is asked again at this time, and later after that wait.
    Udp { ask_at_ns: u64, wait_ns: u64 },
}

/// How a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It has to wait for an answer.
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
    /// When the first of those that were asked has to have answered.
    asked_until_ns: Option<u64>,
    /// Packets to other destinations wait behind those to one that was asked.
    others_wait: bool,
}

impl Routes {
    /// Those of the device with this address.
    pub(super) fn new(choice: LinkChoice, own: IpAddr) -> Self {
        let by_destination = FxHashMap::default();
        Self { choice, own, by_destination, asked_until_ns: None, others_wait: false }
    }

    /// How packets to a destination go, now that there are some. Its device is asked for shared memory first.
    #[inline]
    pub(super) fn way(&mut self, now_ns: u64, destination: IpAddr, meeting: &Meeting) -> Way {
        let patience_ns = self.patience_ns();
        match self.by_destination.get_mut(&destination) {
            Some(Route::Shared { place }) => Way::Shared(*place),
            Some(Route::Udp { ask_at_ns, wait_ns }) => {
                if now_ns >= *ask_at_ns {
                    if self.choice == LinkChoice::Auto {
                        *wait_ns = (2 * *wait_ns).min(ASK_AGAIN_WITHIN_NS);
                    }
                    *ask_at_ns = now_ns + *wait_ns;
                    meeting.invite(destination);
                }
                Way::Udp
            }
            Some(Route::Asked { at_ns }) if now_ns < *at_ns + patience_ns => self.meanwhile(destination),
            Some(Route::Asked { .. }) => {
                // The invitation may still be answered.
                self.set_udp(destination, now_ns + answer_within(self.choice).as_nanos() as u64);
                self.note_asked();
                Way::Udp
            }
            None if destination.is_multicast() => Way::Udp,
            None => {
                self.by_destination.insert(destination, Route::Asked { at_ns: now_ns });
                meeting.invite(destination);
                self.note_asked();
                self.meanwhile(destination)
            }
        }
    }

    /// The way while a device was asked and has not answered. What a device sends to itself leaves at once: programs that
    /// post a datagram to their own device look for its completion right after the post.
    fn meanwhile(&self, destination: IpAddr) -> Way {
        if destination == self.own && self.choice == LinkChoice::Auto { Way::Udp } else { Way::Unknown }
    }

    /// Do packets to a destination go through memory?
    #[inline]
    pub(super) fn is_shared(&self, destination: IpAddr) -> bool {
        matches!(self.by_destination.get(&destination), Some(Route::Shared { .. }))
    }

    /// When the first of those that were asked has to have answered.
    #[inline]
    pub(super) fn asked_until_ns(&self) -> Option<u64> {
        self.asked_until_ns
    }

    /// Whether packets to others wait behind the one at hand. True if that is a change.
    pub(super) fn note_others(&mut self, wait: bool) -> bool {
        let is_new = std::mem::replace(&mut self.others_wait, wait) != wait;
        if is_new {
            self.note_asked();
        }
        is_new
    }

    /// The device of a destination shares memory: it is the peer at this place, unless there was one before.
    pub(super) fn arrived(&mut self, destination: IpAddr, place: usize) {
        if !self.is_shared(destination) {
            self.by_destination.insert(destination, Route::Shared { place });
        }
        self.note_asked();
    }

    /// The device of a destination shares no memory.
    pub(super) fn absent(&mut self, destination: IpAddr, now_ns: u64) {
        if let Some(Route::Asked { .. }) = self.by_destination.get(&destination) {
            self.set_udp(destination, now_ns);
        }
        self.note_asked();
    }

    /// Nobody is asked any more.
    pub(super) fn end(&mut self) {
        self.by_destination.clear();
        self.asked_until_ns = None;
    }

    /// The peer at this place has gone. The next device at its address is asked for shared memory, but packets go over UDP until
    /// it answers: otherwise a peer that goes again and again would delay packets to others.
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

    /// How long packets to a device that was asked wait. The thread that meets others tells sooner, unless it does not run
    /// at all.
    fn patience_ns(&self) -> u64 {
        2 * match self.choice {
            LinkChoice::Auto if self.others_wait => return OTHERS_WAIT_NS,
            LinkChoice::Shm if self.others_wait => ANSWER_WITHIN.as_nanos() as u64,
            choice => answer_within(choice).as_nanos() as u64,
        }
    }
}
