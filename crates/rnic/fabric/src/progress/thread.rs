//! Work of the engine's thread: the decisions of the policy, and sleep.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::policy::{Action, Event, Glance, Policy};
use super::{LOOKS_PER_CLOCK, ThreadState};
use crate::driver::Acks;
use crate::own_process::OwnProcess;

/// Maximum time that closing a device waits for room in a full link.
const FINISH_WITHIN_NS: u64 = 100_000_000;

/// Time that the thread sleeps after `ppoll` has failed, so that the thread does not spin.
const REFUSED_WAIT: Duration = Duration::from_millis(1);

/// Maximum time that the thread sleeps. If the program closes the descriptors meanwhile, nothing else wakes the thread.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

impl ThreadState {
    /// Runs the thread.
    pub(super) fn run(&self, readable: &OwnProcess) {
        let mut policy = Policy::new();
        let mut event = Event::Started;
        while !self.stop.load(Ordering::SeqCst) {
            if self.is_abandoned.load(Ordering::Relaxed) {
                return self.run_without_descriptors();
            }
            if self.flushes.pending().is_some() {
                self.pump(Acks::Now);
            }
            if self.inbox.has_packets() {
                self.pump(Acks::Now);
            }
            event = match policy.on(event, &self.glance(event), self.now_ns()) {
                Action::Pump(acks) => Event::Pumped { packets: self.pump(acks) },
                Action::Nap { until_ns, briefly } => {
                    self.nap(readable, until_ns, briefly);
                    Event::Napped { kicked: self.now_ns() < until_ns }
                }
                Action::Watch { until_ns, briefly } => {
                    Event::Watched { ready: self.watch(readable, until_ns, briefly) }
                }
                Action::Linger { until_ns, polls } => Event::Lingered { in_vain: !self.linger(until_ns, polls) },
            };
        }
        self.finish(readable);
    }

    fn glance(&self, event: Event) -> Glance {
        Glance {
            polls: self.polls.load(Ordering::Relaxed),
            posts: self.posts.load(Ordering::Relaxed),
            deadline_ns: self.wakeups.deadline_ns(),
            // The policy uses this value only after naps. Do not take the lock otherwise: a polling caller that finds
            // the lock taken leaves its packets to the holder.
            is_driven: matches!(event, Event::Napped { .. }) && self.driver.try_lock().is_err(),
            found_nothing: self.wakeups.found_nothing(),
            is_armed: self.wakeups.is_armed(),
            armed_at: self.armed_at.load(Ordering::Relaxed),
        }
    }

    /// Sends the remaining packets of the queue pairs after the device was closed. Gives up if the link stays full for
    /// [`FINISH_WITHIN_NS`].
    fn finish(&self, readable: &OwnProcess) {
        let until_ns = self.now_ns() + FINISH_WITHIN_NS;
        loop {
            let mut driver = self.lock();
            let sent = driver.flush(self.now_ns());
            let wants_room = driver.wants_room();
            driver.link_mut().send_held(self.now_ns());
            let is_waiting = driver.link().holds_packets() || driver.rnic().has_full_destinations();
            let is_full = sent.is_ok() && (driver.is_link_full() || is_waiting);
            self.report(sent);
            drop(driver);
            let now_ns = self.now_ns();
            if !is_full || now_ns >= until_ns {
                break;
            }
            if !wants_room {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let timeout = TimeSpec::from(Duration::from_nanos(until_ns - now_ns));
            let _ = ppoll(&mut [PollFd::new(readable.as_fd(), PollFlags::POLLOUT)], Some(timeout), None);
        }
        // Write the records now, since the link is never dropped if the program has closed the device's descriptors.
        self.lock().link_mut().write_records();
    }

    /// Looks for packets until `until_ns`, unless a caller polls. Returns true if packets arrived or a caller polled.
    fn linger(&self, until_ns: u64, polls: u64) -> bool {
        while self.now_ns() < until_ns && !self.stop.load(Ordering::Relaxed) {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.polls.load(Ordering::Relaxed) != polls || self.pump(Acks::Now) > 0 {
                    return true;
                }
            }
        }
        false
    }

    /// Sleeps until kicked or until `until_ns`.
    fn nap(&self, readable: &OwnProcess, until_ns: u64, briefly: bool) {
        self.wakeups.start_napping(briefly);
        self.sleep_on(readable, None, until_ns);
        self.wakeups.wake_up();
        self.serve_port();
    }

    /// Sleeps until kicked, until `until_ns`, or until the socket is ready. Returns true if the socket is ready.
    fn watch(&self, readable: &OwnProcess, until_ns: u64, briefly: bool) -> bool {
        let woken = match self.wakeups.start_watching(until_ns, briefly) {
            Some(_) if !self.lock().link_mut().prepare_sleep() => true,
            Some(room) => {
                let events = if room { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
                self.sleep_on(readable, Some(events), until_ns)
            }
            None => false,
        };
        self.wakeups.wake_up();
        self.serve_port();
        woken
    }

    /// Sleeps until kicked, until `until_ns`, or until one of `events` occurs on the socket. If `events` is not `None`,
    /// also watches the sockets of multicast groups. Returns true if a watched socket is ready.
    fn sleep_on(&self, socket: &OwnProcess, events: Option<PollFlags>, until_ns: u64) -> bool {
        let groups = if events.is_some() { self.groups().clone() } else { Vec::new() };
        let watched = |readable| PollFd::new(readable, PollFlags::POLLIN);
        let mut fds = vec![watched(self.kick.as_fd())];
        fds.extend(events.map(|events| PollFd::new(socket.as_fd(), events)));
        fds.extend(groups.iter().map(|joined| watched(joined.readable.as_fd())));
        let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        let timeout = Some(TimeSpec::from(left.min(LONGEST_SLEEP)));
        // An interrupting signal counts as a wake-up, after which the caller checks all work.
        if ppoll(&mut fds, timeout, None).is_err_and(|error| error != nix::Error::EINTR) {
            // The process may have lowered its limit of descriptors below the length of `fds`, or no memory is left.
            // Sleep briefly so that the thread does not spin.
            thread::sleep(REFUSED_WAIT);
            return events.is_some();
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let (kicked, packets) = (ready(&fds[0]), fds[1..].iter().any(ready));
        // The program may have closed the descriptors and reused their numbers for its own files, which the thread must
        // not read. The check costs few system calls per wake-up.
        if !socket.is_intact() || kicked && !(self.kick.is_event() && self.kick.reset()) {
            self.is_abandoned.store(true, Ordering::Relaxed);
            return false;
        }
        packets
    }

    /// Drives the engine until all arrived packets are handled. Returns the number of packets.
    fn pump(&self, acks: Acks) -> usize {
        let mut packets = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let mut driver = self.lock_behind_callers();
            if self.inbox.has_packets() {
                self.receive_strays(&mut driver);
            }
            let pending = self.flushes.pending();
            let pumped = driver.pump(self.now_ns(), if pending.is_some() { Acks::Now } else { acks });
            if let Some(request) = pending {
                driver.link_mut().write_records();
                if !driver.is_link_full() && !driver.link().holds_packets() {
                    self.flushes.meet(request);
                }
            }
            self.leave(driver);
            match pumped {
                Ok(0) => break,
                Ok(received) => packets += received,

                Err(error) => {
                    self.report(Err::<(), _>(error));
                    // The link is broken. Sleep so that the thread does not spin.
                    thread::sleep(Duration::from_millis(100));
                    break;
                }
            }
        }
        packets
    }
}
