//! One end of a measurement of limits: a link without an RNIC.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use doorbell_fabric::{BindRequest, Link, LinkChoice, ReceivedRun, SharedMemoryLink, SharedRun, Sink, UdpLink, bind};
use doorbell_rnic::{MAX_RUN_BYTES, TransmitBatch};

use super::{PATIENCE, STOP_BYTES, silence};

/// Maximum time for two processes to set up shared memory.
const SHARED_WITHIN: Duration = Duration::from_secs(2);

/// One end of a measurement: a link, the clock of its calls, and a buffer for received datagrams.
pub(super) struct End {
    carrier: Carrier,
    start: Instant,
    buffer: Box<[u8]>,
}

enum Carrier {
    Udp(Box<UdpLink>),
    Shared(Box<SharedMemoryLink>),
}

impl Carrier {
    fn link(&mut self) -> &mut dyn Link {
        match self {
            Self::Udp(udp) => &mut **udp,
            Self::Shared(shared) => &mut **shared,
        }
    }
}

/// Datagrams received by one poll of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// Number of datagrams with the requested length.
    pub(super) datagrams: u64,
    /// Number of datagrams of any length.
    pub(super) packets: usize,
    /// Whether one of the datagrams was a stop.
    pub(super) stopped: bool,
    /// Sender and length of the most recent datagram.
    pub(super) last: Option<(IpAddr, usize)>,
}

/// Sink that copies received datagrams, as an RNIC would, and counts them.
struct Taker<'a> {
    buffer: &'a mut [u8],
    wanted_bytes: usize,
    arrivals: Arrivals,
}

impl Taker<'_> {
    fn note(&mut self, source: IpAddr, total_bytes: usize, segment_bytes: usize) {
        let packets = total_bytes.div_ceil(segment_bytes.max(1));
        if segment_bytes == self.wanted_bytes {
            self.arrivals.datagrams += (total_bytes / segment_bytes) as u64;
        }
        self.arrivals.stopped |= total_bytes == STOP_BYTES;
        self.arrivals.packets += packets;
        self.arrivals.last = Some((source, segment_bytes));
    }
}

impl Sink for Taker<'_> {
    /// Counts a run without copying it, since the kernel has already copied the run.
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.note(run.outer.src, run.bytes.len(), run.segment_bytes);
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        run.bytes.copy_to(&mut self.buffer[..run.bytes.len()]);
        self.note(run.outer.src, run.bytes.len(), run.segment_bytes);
        true
    }
}

impl End {
    /// Opens a link on a UDP port. If `shared` is true, packets go through shared memory.
    ///
    /// # Errors
    ///
    /// The port cannot be bound, or the operating system lacks a feature that shared memory needs.
    pub(super) fn open(port: u16, shared: bool) -> io::Result<Self> {
        let request = BindRequest { port, ..BindRequest::default() };
        let carrier = match shared {
            false => bind(request).map(|udp| Carrier::Udp(Box::new(udp))),
            true => SharedMemoryLink::bind(request, LinkChoice::Shm, 1)
                .map(|mut links| Carrier::Shared(Box::new(links.swap_remove(0)))),
        };
        let carrier = carrier.map_err(io::Error::other)?;
        Ok(Self { carrier, start: Instant::now(), buffer: vec![0; MAX_RUN_BYTES].into() })
    }

    pub(super) fn udp(&self) -> &UdpLink {
        match &self.carrier {
            Carrier::Udp(udp) => udp,
            Carrier::Shared(shared) => shared.udp(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns the number of packets sent so far.
    pub(super) fn sent(&self) -> u64 {
        match &self.carrier {
            Carrier::Udp(udp) => udp.counters().datagrams_sent,
            Carrier::Shared(shared) => shared.counters().packets_sent,
        }
    }

    /// Returns the number of packets that were dropped because no memory is shared with their destination.
    fn unreachable(&self) -> u64 {
        match &self.carrier {
            Carrier::Udp(_) => 0,
            Carrier::Shared(shared) => shared.counters().without,
        }
    }

    /// Transmits a batch of one run on the link.
    ///
    /// # Errors
    ///
    /// The link is broken, does not accept the run in time, or shares no memory with the other end.
    pub(super) fn send(&mut self, batch: &TransmitBatch) -> io::Result<()> {
        let (mut next, began) = (0, self.now_ns());
        loop {
            let (now_ns, unreachable) = (self.now_ns(), self.unreachable());
            self.carrier.link().transmit(now_ns, batch, &mut next)?;
            let waited = Duration::from_nanos(now_ns - began);
            if self.unreachable() != unreachable {
                // On a busy machine, the other process may answer late. The next transmission makes the link ask again
                // for shared memory.
                if waited > SHARED_WITHIN {
                    return Err(io::Error::other("the two processes could not share memory in time"));
                }
                next = 0;
                std::thread::yield_now();
            } else if next > 0 {
                return Ok(());
            } else if waited > PATIENCE {
                return Err(silence());
            }
            // Until the first run is sent, only the other process's requests to share memory arrive, over UDP.
            // `receive` answers them.
            self.receive(0)?;
        }
    }

    /// Takes all arrived datagrams, and counts those with a length of `wanted_bytes`.
    ///
    /// # Errors
    ///
    /// The link is broken.
    pub(super) fn receive(&mut self, wanted_bytes: usize) -> io::Result<Arrivals> {
        let now_ns = self.now_ns();
        let mut taker = Taker { buffer: &mut self.buffer, wanted_bytes, arrivals: Arrivals::default() };
        self.carrier.link().receive(now_ns, &mut taker)?;
        Ok(taker.arrivals)
    }

    /// Sleeps until a datagram arrives. Returns `false` if none arrives within `timeout`.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait for the socket.
    pub(super) fn sleep(&mut self, timeout: Duration) -> io::Result<bool> {
        if !self.carrier.link().prepare_sleep() {
            return Ok(true);
        }
        self.udp().wait_readable(timeout)
    }
}
