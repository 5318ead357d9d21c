//! Guests of a device: processes that have connected to the device's name and have not proved their address yet.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use doorbell_admission::{Limits, Number};

use super::connection::check_user;
use super::{HOST_AGAIN, Host, PAUSE, PEERS_MAX, Peer, Stage, peers_max};
use crate::own_process::{Opening, OwnProcess};
use crate::shm::sys;

/// Bounds on guests. Further guests wait in the queue of the listener.
///
/// A guest sends its invitation when it connects. But it proves its address after two of its threads had a processor:
/// one reads the challenge, the other sends the proof. On a machine with more processes than processors, this takes
/// hundreds of milliseconds, and a job of more than 64 processes may meet one device at once.
pub(super) const LIMITS: Limits = Limits {
    visitors: 64,
    stepped: usize::MAX,
    total: Duration::from_secs(2),
    patience: Duration::from_millis(100),
    patience_after_step: Duration::from_millis(900),
};

impl Host {
    /// Returns whether a further guest is allowed: peers, guests and unread reports must be below their limits.
    pub(super) fn has_room(&mut self) -> bool {
        // Other peers may leave fewer places for guests.
        let others = self.peers.len().saturating_sub(self.admission.len());
        self.admission.set_visitors(LIMITS.visitors.min(peers_max().saturating_sub(others)));
        self.admission.has_place(self.clock.counted())
            && self.shared.reports.iter().map(|reports| reports.waiting()).sum::<usize>() < PEERS_MAX
    }

    /// Returns the time of the next round if no guest sends a message before. The round ends guests whose time is over,
    /// lets a guest make room for another one, or counts the time of guests.
    pub(super) fn guests_wake_at(&self) -> Option<Instant> {
        let is_later = |&at: &Duration| at > self.clock.counted() && at < Duration::MAX;
        let place_at = Some(self.admission.place_at()).filter(is_later);
        let at = self.admission.deadline().into_iter().chain(place_at).min()?;
        self.begun.checked_add(self.clock.wake(at))
    }

    /// Handles one of the `ready` guests, or accepts a guest if one has connected.
    pub(super) fn handle_guest(&mut self, is_called: bool, ready: &[usize]) {
        let numbers = ready.iter().filter_map(|&index| self.peers[index].guest);
        let chosen = if is_called && self.is_arrivals_turn { None } else { self.admission.choose(numbers) };
        self.is_arrivals_turn = chosen.is_some();
        match chosen {
            Some(number) => self.hear_guest(number),
            None if is_called => {
                self.accept();
            }
            None => {}
        }
    }

    /// Accepts the guests that wait in the queue of the listener.
    pub(super) fn accept_waiting(&mut self) {
        // Guests of other users may connect again and again, so the loop is limited.
        for _ in 0..LIMITS.visitors {
            if !self.has_room() || !self.accept() {
                break;
            }
        }
    }

    /// Accepts a guest. If there is no room, disconnects the guest that has been silent for the longest time. Returns
    /// whether a connection has left the queue of the listener.
    fn accept(&mut self) -> bool {
        if let Some(number) = self.admission.in_the_way() {
            // The next message of this guest may have just arrived, so the guest gets a last turn.
            self.hear_guest(number);
            if self.admission.in_the_way().is_some_and(|left| left != number || !self.has_room()) {
                return false;
            }
        }
        let Some(listener) = &self.listener else { return false };
        let opening = Opening::begin();
        let accepted = listener.expect_intact().and_then(|()| sys::accept(listener.as_fd()));
        let accepted = accepted.map(|connection| OwnProcess::new(connection, &opening));
        drop(opening);
        match accepted.map_err(|error| nix::Error::try_from(error).unwrap_or(nix::Error::UnknownErrno)) {
            Ok(connection) => {
                // Guests of other users are disconnected at once, and displace no guest.
                if check_user(&connection).is_ok() {
                    if let Some(number) = self.admission.in_the_way() {
                        self.disconnect(number);
                    }
                    let number = self.admission.arrive(self.clock.counted());
                    self.peers.push(Peer { connection, until: None, guest: Some(number), stage: Stage::Guest });
                    self.hear_guest(number);
                }
                return true;
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR | nix::Error::ECONNABORTED) => {}
            Err(nix::Error::EBADF | nix::Error::ENOTSOCK | nix::Error::EINVAL | nix::Error::EOPNOTSUPP) => {
                // The program has closed the listener's descriptor.
                self.listener = None;
                self.paused_until = Some(Instant::now() + HOST_AGAIN);
            }
            Err(_) => {
                // No descriptor or no memory is left. A guest that leaves after a last turn frees a descriptor. Without
                // a pause, the waiting guests would keep this thread busy.
                let dispensable = |host: &Self| host.admission.dispensable(host.clock.counted());
                if let Some(number) = dispensable(self) {
                    self.hear_guest(number);
                    if dispensable(self) == Some(number) {
                        self.disconnect(number);
                    }
                }
                self.paused_until = Some(Instant::now() + PAUSE);
            }
        }
        false
    }

    /// Handles the next message of a guest.
    fn hear_guest(&mut self, number: Number) {
        let Some(index) = self.index_of(number) else { return };
        #[cfg(test)]
        self.handled.push(number);
        self.listen_to(index);
    }

    /// Disconnects a guest whose time has passed, after a last turn.
    pub(super) fn expire_guest(&mut self) {
        let expired = self.admission.expired(self.clock.counted()).next();
        if let Some(number) = expired {
            self.hear_guest(number);
            self.disconnect(number);
        }
    }

    fn disconnect(&mut self, number: Number) {
        if let Some(index) = self.index_of(number) {
            self.fail(index, "");
        }
    }

    fn index_of(&self, number: Number) -> Option<usize> {
        self.peers.iter().position(|peer| peer.guest == Some(number))
    }

    /// Removes a peer from the guests, since it has proved its address, or its exchange has ended.
    pub(super) fn end_visit(&mut self, index: usize) {
        if let Some(number) = self.peers[index].guest.take() {
            self.admission.leave(number);
        }
    }
}
