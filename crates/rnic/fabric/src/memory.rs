//! A network in memory for tests. The caller provides the time.
//!
//! Packets arrive after a latency, in the order in which they were sent, and usually in the same runs. A packet is
//! received by the first call whose `now_ns` is not before the packet's arrival. So a test advances its clock to
//! [`MemoryNetwork::next_delivery`], and each execution of the test is the same.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_rnic::{MAX_RUN_BYTES, MAX_RUN_PACKETS, Run, TransmitBatch};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{Outer, ROCE_UDP_PORT};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};

/// Bytes that the kernel counts for a datagram in the receive buffer in addition to the payload.
const DATAGRAM_OVERHEAD_BYTES: usize = 832;

/// Maximum number of runs that one call of `receive` passes to the sink.
const RUNS_PER_RECEIVE: usize = 8;

/// Behaviour of a network in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Seed of the random jitter.
    pub seed: u64,
    /// Time from sending to arrival, in addition to the transmission time at the given bandwidth.
    pub latency_ns: u64,
    /// Maximum random time that is added to the latency of each packet. Packets to the same device still arrive in the
    /// order in which they were sent.
    pub jitter_ns: u64,
    /// Bandwidth of each sender's link, in UDP payload bytes; `None` means unlimited.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Size of the receive buffer of each device, in bytes as the kernel counts them. A packet that arrives while the
    /// buffered bytes exceed this size is dropped. `None` means unlimited.
    pub queue_bytes: Option<usize>,
    /// Whether packets carry an ICRC.
    pub sealed: bool,
}

impl Default for MemoryOptions {
    /// Returns the options of a sealed network without packet loss. The latency is one microsecond.
    fn default() -> Self {
        Self { seed: 0, latency_ns: 1_000, jitter_ns: 0, bandwidth_bytes_per_s: None, queue_bytes: None, sealed: true }
    }
}

/// Counters of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets passed to their receivers.
    pub delivered: u64,
    /// Packets dropped because the receive buffer of their receiver was full.
    pub overflows: u64,
    /// Packets dropped because no device has their destination address.
    pub undeliverable: u64,
}

/// A network in memory. A clone refers to the same network.
#[derive(Clone, Debug)]
pub struct MemoryNetwork {
    shared: Arc<Mutex<NetworkState>>,
}

impl MemoryNetwork {
    /// Creates a network with these options and without devices.
    pub fn new(options: MemoryOptions) -> Self {
        let shared = NetworkState {
            options,
            random: ChaCha8Rng::seed_from_u64(options.seed),
            devices: BTreeMap::new(),
            counters: MemoryCounters::default(),
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Attaches a device, and returns its link. Dropping the link detaches the device and drops the packets in flight
    /// to that device.
    ///
    /// # Panics
    ///
    /// If the address is taken.
    pub fn attach(&self, address: IpAddr) -> MemoryLink {
        let taken = lock(&self.shared).devices.insert(address, Device::default());
        assert!(taken.is_none(), "{address} is attached to this network already");
        MemoryLink { shared: self.shared.clone(), address, bytes: Vec::new(), runs: Vec::new() }
    }

    /// Returns the earliest time at which a packet arrives at any device. If an arrived packet has not been received
    /// yet, the time is in the past.
    pub fn next_delivery(&self) -> Option<u64> {
        let shared = lock(&self.shared);
        shared.devices.values().filter_map(Device::next_delivery).min()
    }

    /// Returns the counters of the network.
    pub fn counters(&self) -> MemoryCounters {
        lock(&self.shared).counters
    }
}

/// One device's end of a [`MemoryNetwork`].
#[derive(Debug)]
pub struct MemoryLink {
    shared: Arc<Mutex<NetworkState>>,
    address: IpAddr,
    /// Buffer for the packets of one call of `receive`. `runs` contains the range of each run in this buffer.
    bytes: Vec<u8>,
    runs: Vec<DeliveredRun>,
}

impl MemoryLink {
    /// Returns the address of the device.
    pub fn local_address(&self) -> IpAddr {
        self.address
    }
}

impl Link for MemoryLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: lock(&self.shared).options.sealed }
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        let mut shared = lock(&self.shared);
        for run in &batch.runs()[*next..] {
            shared.send_run(now_ns, self.address, run, batch.bytes());
        }
        *next = batch.runs().len();
        Ok(())
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        self.bytes.clear();
        self.runs.clear();
        // Release the lock before calling the sink, which may send packets.
        lock(&self.shared).deliver(now_ns, self.address, &mut self.bytes, &mut self.runs);
        for run in &self.runs {
            sink.receive(ReceivedRun {
                outer: run.outer,
                source_port: ROCE_UDP_PORT,
                bytes: &self.bytes[run.start..run.end],
                segment_bytes: run.segment_bytes,
            });
        }
        Ok(self.runs.iter().map(|run| run.packets).sum())
    }

    fn poll_timeout(&self) -> Option<u64> {
        lock(&self.shared).devices.get(&self.address)?.next_delivery()
    }

    fn link_counters(&self) -> LinkCounters {
        lock(&self.shared).devices.get(&self.address).map(|device| device.lost).unwrap_or_default()
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        lock(&self.shared).devices.remove(&self.address);
    }
}

/// Locks the network, also after a test thread has panicked.
fn lock(shared: &Mutex<NetworkState>) -> MutexGuard<'_, NetworkState> {
    shared.lock().ignore_poison()
}

#[derive(Debug)]
struct NetworkState {
    options: MemoryOptions,
    random: ChaCha8Rng,
    /// Devices by address. A `BTreeMap` makes the order of events the same in each execution.
    devices: BTreeMap<IpAddr, Device>,
    counters: MemoryCounters,
}

#[derive(Debug, Default)]
struct Device {
    /// Time until which this device's link transmits the packets that the device has sent.
    sending_until_ns: u64,
    /// Arrival time of the packet that was sent to this device most recently.
    last_arrival_ns: u64,
    /// Packets on the way to this device, in the order of their arrival times.
    in_flight: VecDeque<Packet>,
    /// Packets that have arrived and have not been received yet.
    queue: VecDeque<Packet>,
    /// Bytes of the packets in the queue, as the kernel counts them.
    queued_bytes: usize,
    lost: LinkCounters,
}

impl Device {
    fn next_delivery(&self) -> Option<u64> {
        self.queue.front().or(self.in_flight.front()).map(|packet| packet.arrival_ns)
    }
}

#[derive(Debug)]
struct Packet {
    arrival_ns: u64,
    outer: Outer,
    bytes: Vec<u8>,
}

impl Packet {
    fn counted_bytes(&self) -> usize {
        DATAGRAM_OVERHEAD_BYTES + self.bytes.len()
    }
}

#[derive(Debug)]
struct DeliveredRun {
    outer: Outer,
    start: usize,
    end: usize,
    segment_bytes: usize,
    packets: usize,
    /// Whether the run takes no further packets, because its last packet is shorter than the others.
    closed: bool,
}

impl NetworkState {
    fn send_run(&mut self, now_ns: u64, source: IpAddr, run: &Run, bytes: &[u8]) {
        let outer = Outer {
            src: source,
            dst: run.path.destination,
            traffic_class: run.path.traffic_class,
            hop_limit: run.path.hop_limit,
            identification: None,
            dont_fragment: None,
        };
        for segment in run.segments() {
            self.counters.sent += 1;
            let leaves_ns = self.leaves_at(now_ns, source, segment.len());
            let jitter_ns = match self.options.jitter_ns {
                0 => 0,
                jitter_ns => self.random.next_u64() % (jitter_ns + 1),
            };
            let Some(receiver) = self.devices.get_mut(&outer.dst) else {
                self.counters.undeliverable += 1;
                if let Some(sender) = self.devices.get_mut(&source) {
                    sender.lost.tx_unreachable += 1;
                }
                continue;
            };
            let arrival_ns = leaves_ns + self.options.latency_ns + jitter_ns;
            receiver.last_arrival_ns = receiver.last_arrival_ns.max(arrival_ns);
            let arrival_ns = receiver.last_arrival_ns;
            let bytes = bytes[segment].to_vec();
            receiver.in_flight.push_back(Packet { arrival_ns, outer, bytes });
        }
    }

    /// Returns the time at which the last bit of a packet of `len` bytes leaves the device `source`.
    fn leaves_at(&mut self, now_ns: u64, source: IpAddr, len: usize) -> u64 {
        let Some(bandwidth) = self.options.bandwidth_bytes_per_s else {
            return now_ns;
        };
        let Some(sender) = self.devices.get_mut(&source) else {
            return now_ns;
        };
        let takes_ns = (len as u64 * 1_000_000_000).div_ceil(bandwidth.max(1));
        sender.sending_until_ns = sender.sending_until_ns.max(now_ns) + takes_ns;
        sender.sending_until_ns
    }

    fn deliver(&mut self, now_ns: u64, address: IpAddr, bytes: &mut Vec<u8>, runs: &mut Vec<DeliveredRun>) {
        let Some(device) = self.devices.get_mut(&address) else {
            return;
        };
        // Only this function removes packets from the queue. So no packet left the queue between the arrivals, and the
        // overflows can be computed now.
        while device.in_flight.front().is_some_and(|packet| packet.arrival_ns <= now_ns) {
            let Some(packet) = device.in_flight.pop_front() else {
                break;
            };
            // As in the kernel, the packet that exceeds the limit is accepted, and later packets are dropped.
            if self.options.queue_bytes.is_some_and(|limit| device.queued_bytes > limit) {
                self.counters.overflows += 1;
                device.lost.rx_overflow += 1;
                continue;
            }
            device.queued_bytes += packet.counted_bytes();
            device.queue.push_back(packet);
        }
        while let Some(packet) = device.queue.front() {
            let len = packet.bytes.len();
            let full = runs.len() == RUNS_PER_RECEIVE;
            match runs.last_mut() {
                Some(run) if run.takes(packet) => {
                    run.end += len;
                    run.packets += 1;
                    run.closed = len < run.segment_bytes;
                }
                _ if full => break,
                _ => runs.push(DeliveredRun {
                    outer: packet.outer,
                    start: bytes.len(),
                    end: bytes.len() + len,
                    segment_bytes: len,
                    packets: 1,
                    closed: len == 0,
                }),
            }
            bytes.extend_from_slice(&packet.bytes);
            device.queued_bytes -= packet.counted_bytes();
            self.counters.delivered += 1;
            device.queue.pop_front();
        }
    }
}

impl DeliveredRun {
    /// Returns whether the kernel would combine this packet with the run.
    fn takes(&self, packet: &Packet) -> bool {
        let len = packet.bytes.len();
        !self.closed
            && self.outer == packet.outer
            && (1..=self.segment_bytes).contains(&len)
            && self.packets < MAX_RUN_PACKETS
            && self.end - self.start + len <= MAX_RUN_BYTES
    }
}

#[cfg(test)]
mod tests;
