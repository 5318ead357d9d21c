//! Two devices on a link within the process, for tests of programs that use RDMA.
//!
//! A [`Pair`] has a virtual clock, which moves only while [`Pair::run`] waits. So a timeout costs a test no time, and a
//! test with a fault plan gives the same result in each run and on each machine. The packets are those of the software
//! RNIC, and [`PairBuilder::capture`] writes them to a file.
//!
//! ```
//! use std::time::Duration;
//!
//! use doorbell::Options;
//! use doorbell::testing::Pair;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The first SEND that arrives at a device is lost.
//! let pair = Pair::builder().latency(Duration::from_micros(2)).faults("drop opcode=send nth=1".parse()?).open()?;
//! let (mut client, mut server) = pair.connect(&Options::default())?;
//! let clock = pair.clock();
//!
//! let (asked, answered) = pair.run(
//!     async move {
//!         client.send(b"question").await?;
//!         let answer = client.receive().await?.to_vec();
//!         let took = clock.now();
//!         client.finish().await?;
//!         Ok::<_, doorbell::ConnectionError>((answer, took))
//!     },
//!     async move {
//!         let question = server.receive().await?.to_vec();
//!         server.send(&question).await?;
//!         server.finish().await
//!     },
//! )?;
//! answered?;
//! let (answer, took) = asked?;
//! assert_eq!(answer, b"question");
//! // Three packets take 6 us. The RNIC sends a lost packet again after 0.5 ms at the earliest.
//! assert!(took > Duration::from_micros(500), "{took:?}");
//! # Ok(())
//! # }
//! ```
//!
//! Futures of other runtimes do not work in [`Pair::run`], since it never waits for the operating system. The same
//! holds for blocking calls, such as those of [`Blocking`](crate::Blocking). Code that polls verbs waits with
//! [`Clock::next_event`].

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use doorbell_exchange::asynchronous::{Async, Waiter, yield_now};
use doorbell_exchange::{ConnectError, Connector};
use doorbell_verbs::Channel;
use doorbell_verbs::soft::{FaultPlan, MemoryOptions, SoftOptions, VirtualNetwork};

use crate::device::{Device, OpenError};
use crate::setup::Options;

/// Time after which [`Pair::run`] gives up, unless [`PairBuilder::limit`] sets another one.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of successive rounds without a due event after which [`Pair::run`] gives up. In each round, the futures may
/// still do work for each other.
const IDLE_ROUNDS: u32 = 3;

/// Number of polls of each future at each time. The second poll sees the work of the other future, and completions of
/// work that the first poll posted.
const POLLS: usize = 2;

/// Addresses of the two devices.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// A connection of a [`Pair`].
pub type PairConnection<C> = Async<Clock, C>;

/// Both ends of a connection between the devices of a pair.
pub type BothEnds<C> = (PairConnection<C>, PairConnection<C>);

/// Error of [`Pair::run`]: a future did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckError {
    /// Virtual time since the pair was opened.
    pub at: Duration,
    /// Whether the first future has not ended.
    pub one_waits: bool,
    /// Whether the second future has not ended.
    pub other_waits: bool,
    /// Whether events are left. If so, the limit was reached.
    pub has_events: bool,
}

impl fmt::Display for StuckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = match (self.one_waits, self.other_waits) {
            (true, true) => "both futures wait",
            (true, false) => "the first future waits",
            _ => "the second future waits",
        };
        let why = if self.has_events { "the limit of the virtual time is reached" } else { "no event is left" };
        write!(f, "{waiting} at {:?} of virtual time, and {why}: send what they wait for", self.at)
    }
}

impl std::error::Error for StuckError {}

/// Two software RNICs on a link within the process, with a virtual clock.
#[derive(Debug)]
pub struct Pair {
    devices: [Device; 2],
    clock: Clock,
    limit: Duration,
}

/// Options of a [`Pair`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PairBuilder {
    latency: Duration,
    bandwidth_bytes_per_s: Option<u64>,
    faults: [Option<FaultPlan>; 2],
    fault_journal: Option<PathBuf>,
    capture: Option<PathBuf>,
    seed: u64,
    limit: Duration,
}

impl Pair {
    /// Opens a pair with a latency of one microsecond and without faults.
    ///
    /// # Errors
    ///
    /// The process may not open more files.
    pub fn open() -> Result<Self, OpenError> {
        Self::builder().open()
    }

    /// Returns a builder for a pair with another latency or with faults.
    pub fn builder() -> PairBuilder {
        PairBuilder {
            latency: Duration::from_micros(1),
            bandwidth_bytes_per_s: None,
            faults: [None, None],
            fault_journal: None,
            capture: None,
            seed: 0,
            limit: LIMIT,
        }
    }

    /// Returns the two devices.
    pub fn devices(&self) -> &[Device; 2] {
        &self.devices
    }

    /// Returns the clock of the two devices.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Connects the two devices. The first connection belongs to the first device.
    ///
    /// # Errors
    ///
    /// The options are invalid, or a device has no room for a connection.
    pub fn connect<P: Connector>(&self, options: &Options<P>) -> Result<BothEnds<P::Connection>, ConnectError> {
        let protocol = &options.protocol;
        let [one, other] = &self.devices;
        let one = protocol.endpoint(one.pd(), &options.config, None)?;
        let other = protocol.endpoint(other.pd(), &options.config, None)?;
        let (of_one, of_other) = (protocol.describe(&one), protocol.describe(&other));
        let one = Async::new(protocol.connect(one, &of_other)?, self.clock());
        Ok((one, Async::new(protocol.connect(other, &of_one)?, self.clock())))
    }

    /// Runs two futures until both have ended, and returns their results. While both wait, the clock moves to the next
    /// event.
    ///
    /// # Errors
    ///
    /// A future waits and no event is left, or the limit of the virtual time is reached ([`PairBuilder::limit`]).
    pub fn run<A, B>(
        &self,
        one: impl Future<Output = A>,
        other: impl Future<Output = B>,
    ) -> Result<(A, B), StuckError> {
        let (mut one, mut other) = (pin!(one), pin!(other));
        let mut results = (None, None);
        let network = &self.clock.network;
        let end_ns = network.now_ns().saturating_add(nanoseconds(self.limit));
        let mut idle = 0;
        loop {
            for _ in 0..POLLS {
                // A connection may look at memory before it drives its device. So the devices take their packets first.
                network.drive();
                self.clock.due_ns.store(u64::MAX, Ordering::Relaxed);
                poll_once(one.as_mut(), &mut results.0);
                poll_once(other.as_mut(), &mut results.1);
                results = match results {
                    (Some(one), Some(other)) => return Ok((one, other)),
                    unfinished => unfinished,
                };
            }
            network.drive();
            let now_ns = network.now_ns();
            let due_ns = self.clock.due_ns.load(Ordering::Relaxed).min(network.next_event_ns().unwrap_or(u64::MAX));
            let has_events = due_ns < u64::MAX;
            idle = if has_events { 0 } else { idle + 1 };
            if idle == IDLE_ROUNDS || has_events && due_ns > end_ns || now_ns >= end_ns {
                let at = Duration::from_nanos(now_ns);
                let (one_waits, other_waits) = (results.0.is_none(), results.1.is_none());
                return Err(StuckError { at, one_waits, other_waits, has_events });
            }
            // Time passes in each round, so that no loop of a program stops the clock.
            network.advance_to(if has_events { due_ns.max(now_ns + 1) } else { now_ns + 1 });
        }
    }
}

/// Polls a future that has not ended.
fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>, result: &mut Option<T>) {
    if result.is_none()
        && let Poll::Ready(value) = future.poll(&mut Context::from_waker(Waker::noop()))
    {
        *result = Some(value);
    }
}

/// Returns a time in nanoseconds, at most the largest number.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl PairBuilder {
    /// Sets the time from the sending of a packet to its arrival. The default is one microsecond.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Limits each direction to this number of bytes per second, counted as the payload of UDP. The default is no
    /// limit.
    pub fn bandwidth(mut self, bytes_per_s: u64) -> Self {
        self.bandwidth_bytes_per_s = Some(bytes_per_s);
        self
    }

    /// Injects the faults of a plan at both devices. Each device counts the packets that its rules match.
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = [Some(plan.clone()), Some(plan)];
        self
    }

    /// Injects the faults of a plan at one device, 0 or 1.
    ///
    /// # Panics
    ///
    /// If `device` is larger than 1.
    pub fn faults_of(mut self, device: usize, plan: FaultPlan) -> Self {
        assert!(device < self.faults.len(), "a pair has the devices 0 and 1, not {device}");
        self.faults[device] = Some(plan);
        self
    }

    /// Appends one line of JSON to this file for each rule of a fault plan that fires. The same run has the same lines.
    /// [`FaultPlan::unfired`] finds the rules that had no effect.
    pub fn fault_journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.fault_journal = Some(path.into());
        self
    }

    /// Writes all packets of the first device to this pcap file. Its times begin at 0.
    pub fn capture(mut self, path: impl Into<PathBuf>) -> Self {
        self.capture = Some(path.into());
        self
    }

    /// Sets the seed of keys and numbers of the devices. The default is 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the virtual time after which one call of [`Pair::run`] gives up. The default is 60 seconds.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Opens the two devices.
    ///
    /// # Errors
    ///
    /// The process may not open more files, or the file of the capture or the journal cannot be created.
    pub fn open(self) -> Result<Pair, OpenError> {
        let Self { latency, bandwidth_bytes_per_s, faults, fault_journal, capture, seed, limit } = self;
        let network = VirtualNetwork::new(MemoryOptions {
            seed,
            latency_ns: nanoseconds(latency),
            bandwidth_bytes_per_s,
            ..MemoryOptions::default()
        });
        let [faults_of_one, faults_of_other] = faults;
        let open = |index: u8, faults, pcap| {
            let mut bytes = [index; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            let options = SoftOptions {
                name: Some(format!("doorbell{index}")),
                faults,
                fault_journal: fault_journal.clone(),
                pcap,
                publish: false,
                seed: Some(bytes),
                ..SoftOptions::default()
            };
            let address = IpAddr::from(ADDRESSES[usize::from(index)]);
            Device::of(&network.open(address, &options)?)
        };
        let devices = [open(0, faults_of_one, capture)?, open(1, faults_of_other, None)?];
        let clock = Clock { network, due_ns: Arc::new(AtomicU64::new(u64::MAX)) };
        Ok(Pair { devices, clock, limit })
    }
}

/// Clock of a [`Pair`], and the way in which its futures wait. A clone is the same clock.
#[derive(Clone, Debug)]
pub struct Clock {
    network: VirtualNetwork,
    /// Earliest time at which a waiting future wants to run.
    due_ns: Arc<AtomicU64>,
}

impl Clock {
    /// Returns the virtual time since the pair was opened.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.network.now_ns())
    }

    /// Waits for a virtual time.
    pub async fn sleep(&self, time: Duration) {
        let until_ns = self.network.now_ns().saturating_add(nanoseconds(time));
        while self.network.now_ns() < until_ns {
            self.wait_until(until_ns).await;
        }
    }

    /// Waits until a packet arrives at a device or a timer expires. Code that polls a completion queue or memory calls
    /// this function when it has found nothing.
    pub async fn next_event(&self) {
        self.wait_until(u64::MAX).await;
    }

    async fn wait_until(&self, due_ns: u64) {
        self.due_ns.fetch_min(due_ns, Ordering::Relaxed);
        yield_now().await;
    }
}

impl Waiter for Clock {
    async fn wait(&self, _: Option<&Channel>, deadline_ns: Option<u64>) {
        self.wait_until(deadline_ns.unwrap_or(u64::MAX)).await;
    }

    fn wants_notification(&self) -> bool {
        false
    }
}
