//! Route of packets to each destination: through the rings of a peer, over UDP, or undecided while an invitation to
//! share memory is unanswered.

use std::net::IpAddr;
use std::time::Duration;

use doorbell_rnic::PathEnd;
use rustc_hash::FxHashMap;

use super::LinkChoice;
use super::meet::Meeting;

/// Time after which packets to an invited device that has not answered go over UDP. Tests use a long time, so that
/// packets go through memory also on a busy machine.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 20 });

/// Time after which packets to an invited device that has not answered are dropped, if only shared memory is allowed.
/// The time is long, since the device's process may wait for a processor.
const ONLY_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Time after which a device without shared memory is invited again, while packets are sent to it. The address may
/// belong to a new device by then. If UDP is allowed, the time doubles with each further invitation.
const ASK_AGAIN_AFTER_NS: u64 = 10_000_000;

/// Maximum time between two invitations of a device.
const ASK_AGAIN_WITHIN_NS: u64 = 1_000_000_000;

/// Time that packets wait for the answer of an invited device, if the batch also has packets for other destinations.
/// The invited device may belong to a stopped process.
pub(super) const OTHERS_WAIT_NS: u64 = 2_000_000;

/// Maximum number of destinations in the map of routes. If the map is full, adding a route over UDP first removes all
/// routes over UDP. The next packets to these destinations then cause new invitations.
const UDP_ROUTES_MAX: usize = 4096;

/// Returns how long a device may take to answer an invitation.
pub(super) fn answer_within(choice: LinkChoice) -> Duration {
    if choice == LinkChoice::Shm { ANSWER_WITHIN.max(ONLY_ANSWER_WITHIN) } else { ANSWER_WITHIN }
}

/// Route of packets to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The destination's device was invited at this time and has not answered.
    Asked { at_ns: u64 },
    /// Through the rings of the peer at this place in the link's list of peers.
    Shared { place: usize },
    /// Over UDP, since no device at the address shares memory. The device is invited again at `ask_at_ns`, and then
    /// after `wait_ns`.
    Udp { ask_at_ns: u64, wait_ns: u64 },
}

/// Route of one run, as `Routes::way` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunRoute {
    /// Undecided: the run waits for the answer to an invitation.
    Unknown,
    /// Through the rings of the peer at this place in the link's list of peers.
    Shared(usize),
    Udp,
}

/// The routes of a device.
#[derive(Debug)]
pub(super) struct Routes {
    choice: LinkChoice,
    own: IpAddr,
    by_destination: FxHashMap<PathEnd, Route>,
    /// Earliest time at which the wait for the answer to an invitation ends.
    asked_until_ns: Option<u64>,
    /// Whether packets to other destinations wait behind a packet to an invited device. If so, the wait for the answer
    /// is shorter.
    others_wait: bool,
}

impl Routes {
    /// Creates the routes of the device with the address `own`.
    pub(super) fn new(choice: LinkChoice, own: IpAddr) -> Self {
        let by_destination = FxHashMap::default();
        Self { choice, own, by_destination, asked_until_ns: None, others_wait: false }
    }

    /// Returns the route of packets to a destination. At the first packet, and again from time to time while packets go
    /// over UDP, this invites the destination's device to share memory.
    #[inline]
    pub(super) fn way(&mut self, now_ns: u64, destination: PathEnd, meeting: &Meeting) -> RunRoute {
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
                // The device has not answered in time, so packets go over UDP. If the device still answers, packets go
                // through its rings.
                self.set_udp(destination, now_ns + answer_within(self.choice).as_nanos() as u64);
                self.note_asked();
                RunRoute::Udp
            }
            None if destination.address.is_multicast() => RunRoute::Udp,
            None => {
                self.by_destination.insert(destination, Route::Asked { at_ns: now_ns });
                meeting.invite(destination);
                self.note_asked();
                self.meanwhile(destination)
            }
        }
    }

    /// Returns the route while an invitation is unanswered. Packets of a device to itself go over UDP immediately,
    /// because programs that post a datagram to their own device poll for its completion right after the post.
    fn meanwhile(&self, destination: PathEnd) -> RunRoute {
        if destination.address == self.own && self.choice == LinkChoice::Auto {
            RunRoute::Udp
        } else {
            RunRoute::Unknown
        }
    }

    /// Returns whether packets to a destination go through the ring of the peer at `place`.
    pub(super) fn lead_to(&self, destination: PathEnd, place: usize) -> bool {
        matches!(self.by_destination.get(&destination), Some(Route::Shared { place: found }) if *found == place)
    }

    /// Returns whether packets to a destination go through a ring.
    #[inline]
    pub(super) fn is_shared(&self, destination: PathEnd) -> bool {
        matches!(self.by_destination.get(&destination), Some(Route::Shared { .. }))
    }

    /// Returns the earliest time at which the wait for the answer to an invitation ends.
    #[inline]
    pub(super) fn asked_until_ns(&self) -> Option<u64> {
        self.asked_until_ns
    }

    /// Sets whether packets to other destinations wait behind a packet to an invited device. Returns true if the value
    /// has changed.
    pub(super) fn note_others(&mut self, wait: bool) -> bool {
        let is_new = std::mem::replace(&mut self.others_wait, wait) != wait;
        if is_new {
            self.note_asked();
        }
        is_new
    }

    /// Records that the device at `destination` shares memory, as the peer at `place`. If packets to that address
    /// already go to another peer, they still do.
    pub(super) fn arrived(&mut self, destination: PathEnd, place: usize) {
        if !self.is_shared(destination) {
            self.by_destination.insert(destination, Route::Shared { place });
        }
        self.note_asked();
    }

    /// Records that the device at `destination` does not share memory.
    pub(super) fn absent(&mut self, destination: PathEnd, now_ns: u64) {
        if let Some(Route::Asked { .. }) = self.by_destination.get(&destination) {
            self.set_udp(destination, now_ns);
        }
        self.note_asked();
    }

    /// Forgets all routes, since no device will be invited any more.
    pub(super) fn end(&mut self) {
        self.by_destination.clear();
        self.asked_until_ns = None;
    }

    /// Records that the peer at `place` has closed or died. The next packet to its address invites the next device at
    /// that address. Until that device answers, packets go over UDP. If packets waited for the answer instead, a peer
    /// that departs again and again would delay packets to other destinations.
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

    fn set_udp(&mut self, destination: PathEnd, now_ns: u64) {
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

    /// Returns the time that packets to an invited device wait at most. Usually the thread that invites devices reports
    /// earlier, but that thread may not get a processor.
    fn patience_ns(&self) -> u64 {
        2 * match self.choice {
            LinkChoice::Auto if self.others_wait => return OTHERS_WAIT_NS,
            LinkChoice::Shm if self.others_wait => ANSWER_WITHIN.as_nanos() as u64,
            choice => answer_within(choice).as_nanos() as u64,
        }
    }
}
