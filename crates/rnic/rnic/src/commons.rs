//! State shared by the queue pairs of one engine: memory, counters, staged completions, and the windows towards other
//! devices.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use doorbell_verbs_core::{Completion, Counters, EventQueue, Overrun, QpCounters, QpDeath};
use doorbell_wire::{ICRC_LEN, Qpn, outer};
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::completion::CompletionSink;
use crate::congestion::{Destination, Window};
use crate::faults::InjectedFaults;
use crate::memory::Memory;
use crate::packets::Acknowledgement;
use crate::policy::Policy;
use crate::transmit::{Path, PathEnd};

/// Returns the bytes of a frame outside the packet: Ethernet, IP and UDP headers, and the ICRC.
pub(crate) fn frame_overhead(address: IpAddr) -> u64 {
    let ip = match address {
        IpAddr::V4(_) => outer::IPV4_LEN,
        IpAddr::V6(_) => outer::IPV6_LEN,
    };
    (outer::ETHERNET_LEN + ip + outer::UDP_LEN + ICRC_LEN) as u64
}

/// A completion queue as seen by one engine, with the completions that the engine has not published yet.
struct CqPort {
    id: u32,
    /// Number of work queues of the engine that complete to this queue.
    users: u32,
    sink: Arc<dyn CompletionSink>,
    staged: Vec<Completion>,
    overran: bool,
}

/// Reason for which the engine must act before all staged completions are published.
pub(crate) enum Halt {
    /// Faults are injected into completions, and these completions have not been struck.
    Faults,
    /// A completion queue overran for the first time: its port and its number.
    Overrun { port: u32, id: u32 },
}

/// Bits of [`Commons::gate`].
const AWAITS_LINK: u8 = 1;
const INJECTS_FAULTS: u8 = 2;

/// Maximum number of unsent acknowledgements of queue pairs that were reset or destroyed. Their number approaches the
/// maximum only while the link accepts no packets.
const MAX_FAREWELLS: usize = 1024;

/// Acknowledgement that a queue pair owed when it was reset or destroyed. The program may have seen the completion of
/// the acknowledged message, so the engine still sends the acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Farewell {
    pub(crate) path: Path,
    pub(crate) qpn: Qpn,
    pub(crate) acknowledgement: Acknowledgement,
    pub(crate) frame_overhead: u64,
}

/// Kind of an outgoing packet, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// First transmission of a request packet.
    Request,
    /// First transmission of a request packet that carries only immediate data.
    ImmediateAlone,
    /// Retransmission of a request packet.
    Again,
    /// An ACK or NAK.
    Ack,
    /// A READ or atomic response.
    Response,
}

/// Maximum number of deaths of queue pairs that a device keeps until its driver takes them. Later deaths are only
/// counted.
const MOST_DEATHS: usize = 1024;

pub(crate) struct Commons {
    pub(crate) now_ns: u64,
    pub(crate) policy: Policy,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
    pub(crate) events: Arc<EventQueue>,
    /// Deaths of queue pairs that the driver has not taken, oldest first.
    pub(crate) deaths: Vec<QpDeath>,
    /// Number of deaths since then that found `deaths` full.
    pub(crate) omitted_deaths: u64,
    pub(crate) destinations: Slab<Destination>,
    /// Window for READ and atomic responses to this device.
    pub(crate) inbound: Window,
    /// Maximum cost of the response to one READ request. The requester splits a larger READ into several requests. It
    /// must, since only the requester can limit how many bytes of responses are in flight.
    pub(crate) read_piece_cost: u64,
    /// Destinations for whose packets the link has no room. Requests of UC and UD queue pairs to them wait.
    pub(crate) full: Vec<PathEnd>,
    /// Queue pairs with requests that wait for room in the link.
    pub(crate) awaiting_link: Vec<Qpn>,
    /// Slots of the queue pairs that have packets to send.
    pub(crate) ready: VecDeque<u32>,
    /// Unsent acknowledgements of queue pairs that were reset or destroyed.
    pub(crate) farewells: VecDeque<Farewell>,
    /// Whether the acknowledgement of a completed receive may wait, so that it leaves together with a reply of the
    /// program. It waits only if the program has replied to the preceding messages.
    pub(crate) acks_may_wait: bool,
    /// Reasons for which staged completions are not simply published. With [`AWAITS_LINK`], all of them must stay
    /// staged until the driver has handed all packets to the link. One of these packets is the acknowledgement of a
    /// staged completion. [`INJECTS_FAULTS`] is set as long as `faults` exist.
    gate: u8,
    pub(crate) faults: Option<Box<InjectedFaults>>,
    cqs: Slab<CqPort>,
    /// Ports by the numbers of their completion queues.
    by_cq: FxHashMap<u32, u32>,
    dirty: Vec<u32>,
    in_flight: u64,
}

impl Commons {
    pub(crate) fn new(
        policy: Policy,
        memory: Memory,
        events: Arc<EventQueue>,
        inbound: Window,
        read_piece_cost: u64,
    ) -> Self {
        Self {
            now_ns: 0,
            policy,
            memory,
            counters: Counters::default(),
            events,
            deaths: Vec::new(),
            omitted_deaths: 0,
            destinations: Slab::new(),
            inbound,
            read_piece_cost,
            full: Vec::new(),
            awaiting_link: Vec::new(),
            ready: VecDeque::new(),
            farewells: VecDeque::new(),
            acks_may_wait: true,
            gate: 0,
            faults: None,
            cqs: Slab::new(),
            by_cq: FxHashMap::default(),
            dirty: Vec::new(),
            in_flight: 0,
        }
    }

    /// Keeps the death of a queue pair for the driver, or counts it if the driver has not taken many others.
    pub(crate) fn keep_death(&mut self, death: QpDeath) {
        if self.deaths.len() < MOST_DEATHS {
            self.deaths.push(death);
        } else {
            self.omitted_deaths += 1;
        }
    }

    /// Adds a user to the port of a completion queue. Creates the port if the engine has none. Returns the port.
    pub(crate) fn use_cq(&mut self, id: u32, sink: Arc<dyn CompletionSink>) -> u32 {
        let cqs = &mut self.cqs;
        let slot = *self.by_cq.entry(id).or_insert_with(|| {
            let overran = sink.has_overrun();
            cqs.insert(CqPort { id, users: 0, sink, staged: Vec::new(), overran }) as u32
        });
        self.cqs[slot as usize].users += 1;
        slot
    }

    /// Removes a user, whose completions are purged, from a port. Removes the port of the last user.
    pub(crate) fn release_cq(&mut self, slot: u32) {
        let port = &mut self.cqs[slot as usize];
        port.users -= 1;
        if port.users > 0 {
            return;
        }
        if let Some(faults) = &mut self.faults {
            faults.remove_port(slot);
        }
        let port = self.cqs.remove(slot as usize);
        self.by_cq.remove(&port.id);
        self.dirty.retain(|&dirty| dirty != slot);
    }

    /// Returns the completion queue of a port.
    pub(crate) fn sink_of(&self, port: u32) -> &dyn CompletionSink {
        &*self.cqs[port as usize].sink
    }

    /// Returns whether this engine is the first that has found the completion queue of a port overrun.
    pub(crate) fn claim_overrun(&self, port: u32) -> bool {
        self.sink_of(port).claim_overrun()
    }

    pub(crate) fn staged_count(&self) -> usize {
        let held = self.faults.as_ref().map_or(0, |faults| faults.held_count());
        self.dirty.iter().map(|&slot| self.cqs[slot as usize].staged.len()).sum::<usize>() + held
    }

    pub(crate) fn cq_count(&self) -> usize {
        self.cqs.len()
    }

    /// Stages a completion until [`publish`](Self::publish) moves it to its completion queue. `publish` then takes the
    /// lock of the queue only once for the completions of several packets.
    #[inline(always)]
    pub(crate) fn complete(&mut self, cq: u32, completion: Completion) {
        let port = &mut self.cqs[cq as usize];
        if port.staged.is_empty() {
            self.dirty.push(cq);
        }
        port.staged.push(Completion { timestamp_ns: self.now_ns, ..completion });
    }

    pub(crate) fn inject(&mut self, faults: InjectedFaults) {
        self.faults = Some(Box::new(faults));
        self.gate |= INJECTS_FAULTS;
    }

    /// Returns the number of the completion queue of a port.
    pub(crate) fn cq_of(&self, port: u32) -> u32 {
        self.cqs[port as usize].id
    }

    /// Removes and returns all staged completions, with their ports.
    pub(crate) fn take_staged(&mut self) -> Vec<(u32, Completion)> {
        let mut all = Vec::new();
        for port in self.dirty.drain(..) {
            all.extend(self.cqs[port as usize].staged.drain(..).map(|completion| (port, completion)));
        }
        all
    }

    /// Stages a completion that [`take_staged`](Self::take_staged) returned.
    pub(crate) fn stage(&mut self, port: u32, completion: Completion) {
        let staged = &mut self.cqs[port as usize].staged;
        if staged.is_empty() {
            self.dirty.push(port);
        }
        staged.push(completion);
    }

    /// Returns how often the program has found a completion queue empty.
    #[inline]
    pub(crate) fn empty_polls(&self, cq: u32) -> u64 {
        self.cqs[cq as usize].sink.empty_polls()
    }

    /// Keeps all completions staged until [`transmitted`](Self::transmitted) is called, because one of them needs an
    /// acknowledgement that has not left.
    #[inline]
    pub(crate) fn await_link(&mut self) {
        self.gate |= AWAITS_LINK;
    }

    /// Releases the staged completions, since the driver has handed all packets to the link.
    #[inline]
    pub(crate) fn transmitted(&mut self) {
        self.gate &= !AWAITS_LINK;
    }

    /// Removes the staged completions of a queue pair that is destroyed or reset.
    pub(crate) fn purge(&mut self, qpn: Qpn) {
        let cqs = &mut self.cqs;
        self.dirty.retain(|&slot| {
            let staged = &mut cqs[slot as usize].staged;
            staged.retain(|completion| completion.qpn != qpn);
            !staged.is_empty() // otherwise the next completion would enter the port a second time
        });
        if let Some(faults) = &mut self.faults {
            faults.purge(qpn);
        }
    }

    /// Stores the acknowledgement of a queue pair that is being reset or destroyed.
    pub(crate) fn say_farewell(&mut self, farewell: Farewell) {
        if self.farewells.len() == MAX_FAREWELLS {
            self.farewells.pop_front();
        }
        self.farewells.push_back(farewell);
    }

    /// Moves staged completions to their queues. If the engine must act first, stops and returns the reason; the caller
    /// then calls `publish` again. Reports only the first overrun of a queue. `is_struck` says that the engine has
    /// injected the faults of the staged completions.
    #[inline]
    pub(crate) fn publish(&mut self, is_struck: bool) -> Option<Halt> {
        if self.gate != 0 {
            if self.gate & AWAITS_LINK != 0 {
                return None;
            }
            if !is_struck {
                return Some(Halt::Faults);
            }
        }
        while let Some(slot) = self.dirty.pop() {
            let port = &mut self.cqs[slot as usize];
            let result = port.sink.push_all(&port.staged);
            port.staged.clear();
            if result == Err(Overrun) && !port.overran {
                port.overran = true;
                return Some(Halt::Overrun { port: slot, id: port.id });
            }
        }
        None
    }

    /// Counts an outgoing packet of `frame_bytes` for the device and for the sending queue pair.
    #[inline]
    pub(crate) fn count_sent(&mut self, qp: &mut QpCounters, sent: Sent, frame_bytes: u64) {
        let own = &mut self.counters;
        own.tx_vport_rdma_unicast_packets += 1;
        own.tx_vport_rdma_unicast_bytes += frame_bytes;
        let (packets, bytes, of_qp) = match sent {
            Sent::Request | Sent::ImmediateAlone => {
                if sent == Sent::ImmediateAlone {
                    own.tx_word_packets += 1;
                    own.tx_word_bytes += frame_bytes;
                }
                (&mut own.tx_data_packets, &mut own.tx_data_bytes, &mut qp.tx_data_packets)
            }
            Sent::Again => {
                (&mut own.tx_retransmitted_packets, &mut own.tx_retransmitted_bytes, &mut qp.tx_retransmitted_packets)
            }
            Sent::Ack => (&mut own.tx_ack_packets, &mut own.tx_ack_bytes, &mut qp.tx_ack_packets),
            Sent::Response => (&mut own.tx_response_packets, &mut own.tx_response_bytes, &mut qp.tx_response_packets),
        };
        *packets += 1;
        *bytes += frame_bytes;
        *of_qp += 1;
    }

    /// Returns the cost of all packets and expected responses in flight: the bytes that the kernel charges for them.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    #[inline]
    pub(crate) fn charge(&mut self, destination: usize, cost: u64) {
        self.in_flight += cost;
        self.destinations[destination].window.charge(cost);
    }

    #[inline]
    pub(crate) fn delivered(&mut self, destination: usize, cost: u64) {
        self.in_flight -= cost;
        self.destinations[destination].window.delivered(cost);
    }

    pub(crate) fn refund(&mut self, destination: usize, cost: u64) {
        self.in_flight -= cost;
        self.destinations[destination].window.refund(cost);
    }

    pub(crate) fn charge_inbound(&mut self, cost: u64) {
        self.in_flight += cost;
        self.inbound.charge(cost);
    }

    pub(crate) fn delivered_inbound(&mut self, cost: u64) {
        self.in_flight -= cost;
        self.inbound.delivered(cost);
    }

    pub(crate) fn refund_inbound(&mut self, cost: u64) {
        self.in_flight -= cost;
        self.inbound.refund(cost);
    }
}

#[cfg(test)]
mod tests {
    use doorbell_verbs_core::DeathReason;
    use doorbell_wire::Psn;

    use super::*;
    use crate::completion::CompletionQueue;
    use crate::memory::RegionTable;

    fn commons() -> Commons {
        let (memory, events) = (Memory::new(Arc::new(RegionTable::default())), Arc::new(EventQueue::new(None)));
        let inbound = Window::new(1 << 20, u64::MAX);
        Commons::new(Policy::UNBOUNDED, memory, events, inbound, u64::MAX)
    }

    #[test]
    fn queue_pairs_that_end_while_their_completions_wait_leave_nothing() {
        let mut core = commons();
        let queue = Arc::new(CompletionQueue::new(8, None));
        let cq = core.use_cq(0, Arc::clone(&queue) as Arc<dyn CompletionSink>);
        core.await_link();
        let of = |number| Completion { qpn: Qpn::new(number), ..Completion::default() };
        for number in 2..100 {
            core.complete(cq, of(number));
            core.complete(cq, of(1));
            assert_eq!((core.staged_count(), core.dirty.len()), (2, 1), "queue pair {number}");
            core.purge(Qpn::new(number));
            core.purge(Qpn::new(1));
            assert_eq!((core.staged_count(), core.dirty.len()), (0, 0), "queue pair {number}");
        }
        core.complete(cq, of(1));
        core.transmitted();
        assert!(core.publish(false).is_none());
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn deaths_that_find_no_place_are_counted() {
        let mut core = commons();
        for number in 1..=MOST_DEATHS as u32 + 3 {
            let reason = DeathReason::Injected;
            core.keep_death(QpDeath { qpn: Qpn::new(number), psn: Psn::new(0), peer: None, reason });
        }
        assert_eq!((core.deaths.len(), core.omitted_deaths), (MOST_DEATHS, 3));
        assert_eq!(core.deaths.last().map(|death| death.qpn), Some(Qpn::new(MOST_DEATHS as u32)));
    }
}
