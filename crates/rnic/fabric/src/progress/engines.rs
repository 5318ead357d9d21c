//! Several engines of one device. Each has its lock, its thread and its link. They share the clock, the state of the
//! port and the number of armed notifications, and pass packets of each other on.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use doorbell_rnic::{Rnic, Stray};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::LinkCounters;

use super::clock::Clock;
use super::lock::Guard;
use super::scheduling::Scheduling;
use super::wake::Wakeups;
use super::{DrivenRnic, ThreadState, exit};
use crate::driver::Driver;
use crate::guard;
use crate::link::Link;
use crate::own_process::OwnProcess;

/// An engine before its start.
pub struct EngineParts {
    /// The engine.
    pub rnic: Rnic,
    /// Link that receives the packets of the engine's queue pairs.
    pub link: Box<dyn Link>,
    /// Socket of the link, which becomes readable when a packet arrives.
    pub readable: OwnProcess,
}

impl std::fmt::Debug for EngineParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineParts").field("rnic", &self.rnic).finish_non_exhaustive()
    }
}

/// Thread of an engine.
#[derive(Default)]
pub(super) enum EngineThread {
    /// No thread.
    #[default]
    None,
    /// Before the first queue pair. The thread will watch the socket. Its affinity and policy are those of the thread
    /// that opened the device, since a program may pin the threads that create queue pairs.
    Waiting {
        readable: Arc<OwnProcess>,
        scheduling: Scheduling,
    },
    Running(JoinHandle<()>),
}

/// Maximum number of packets in an inbox. Further ones are dropped and counted, as a full socket drops them.
const INBOX_MAX: usize = 4096;

/// Packets that another engine has received for this one.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    is_full: AtomicBool,
    packets: Mutex<Vec<Stray>>,
    /// Number of packets dropped because the inbox had its maximum number of packets.
    dropped: AtomicU64,
}

impl Inbox {
    /// Returns whether packets wait.
    #[inline]
    pub(super) fn has_packets(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    fn put(&self, packet: Stray) {
        let mut packets = self.packets.lock().ignore_poison();
        if packets.len() < INBOX_MAX {
            packets.push(packet);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(packets);
        self.is_full.store(true, Ordering::Release);
    }

    /// Returns the dropped packets as those of a receive buffer without room.
    pub(super) fn counters(&self) -> LinkCounters {
        LinkCounters { rx_overflow: self.dropped.load(Ordering::Relaxed), ..LinkCounters::default() }
    }

    fn take(&self) -> Vec<Stray> {
        self.is_full.store(false, Ordering::Relaxed); // before the lock, so that a later packet sets it again
        std::mem::take(&mut *self.packets.lock().ignore_poison())
    }
}

impl DrivenRnic {
    /// Starts the engines of a device, in the order of their identifiers. `udp_port` is the UDP port of this device and
    /// its peers. The first engine has a thread, since it also gets datagrams that name no engine. The other engines
    /// get their threads by [`begin`](Self::begin).
    ///
    /// # Errors
    ///
    /// The operating system provides no eventfd or no thread, or cannot block the signals of a new thread.
    pub fn start(engines: Vec<EngineParts>, udp_port: u16) -> io::Result<Vec<Self>> {
        let (begun, armed) = (Instant::now(), Arc::default());
        let mut view = None;
        let mut states = Vec::new();
        for EngineParts { rnic, link, readable } in engines {
            let mut driver = Driver::new(rnic, link, udp_port);
            let port = view.get_or_insert_with(|| driver.port_view()).clone();
            driver.share_port(port);
            let wakeups = Wakeups::sharing(Arc::clone(&armed));
            let state = ThreadState { wakeups, ..ThreadState::new(driver, Clock::Real(begun))? };
            states.push((Arc::new(state), readable));
        }
        let engines: Arc<[_]> = states.iter().map(|(state, _)| Arc::downgrade(state)).collect();
        for (state, _) in &states {
            let _ = state.engines.set(Arc::clone(&engines));
        }
        let scheduling = Scheduling::inherited();
        let waiting = |readable| Mutex::new(EngineThread::Waiting { readable: Arc::new(readable), scheduling });
        let make = |(shared, readable)| Self { shared, thread: waiting(readable) };
        let engines: Vec<Self> = states.into_iter().map(make).collect();
        if let Some(first) = engines.first() {
            first.begin()?;
        }
        Ok(engines)
    }

    /// Starts the thread of the engine, unless it runs. Call it before the engine gets a queue pair.
    ///
    /// # Errors
    ///
    /// The operating system provides no thread, or cannot block the signals of a new thread.
    pub fn begin(&self) -> io::Result<()> {
        // A forked child has no sockets. Its copy of the lock may be held for ever by a thread that it lacks.
        if self.shared.process != std::process::id() {
            return Ok(());
        }
        let mut thread = self.thread.lock().ignore_poison();
        let EngineThread::Waiting { readable, scheduling } = &*thread else { return Ok(()) };
        let (shared, readable, scheduling) = (Arc::clone(&self.shared), Arc::clone(readable), *scheduling);
        // The program may have closed the descriptors since it opened the device, and reused their numbers.
        let is_intact = readable.is_intact() && shared.may_receive();
        if is_intact {
            shared.discard_arrived();
        } else {
            shared.is_abandoned.store(true, Ordering::Relaxed);
        }
        let run = move || shared.run(&readable);
        let running = guard::spawn_without_signals(crate::DRIVER_THREAD, run)?;
        // The thread itself may not get a processor if its creator has a real-time policy.
        scheduling.give_to(&running);
        *thread = EngineThread::Running(running);
        exit::add(&self.shared);
        if is_intact {
            self.shared.lock().link_mut().begin();
        }
        Ok(())
    }
}

impl ThreadState {
    /// Returns all engines of the device; none if this is the only one that has ever existed.
    fn engines(&self) -> &[Weak<Self>] {
        match self.engines.get() {
            Some(engines) => engines,
            None => &[],
        }
    }

    /// Passes packets to their engines, and wakes the threads of these engines.
    #[cold]
    pub(super) fn pass_on(&self, strays: Vec<Stray>) {
        let mut last: Option<Arc<Self>> = None;
        for stray in strays {
            let Some(engine) = self.engines().get(usize::from(stray.engine.0)).and_then(Weak::upgrade) else {
                continue;
            };
            engine.inbox.put(stray);
            if let Some(before) = last.replace(Arc::clone(&engine)).filter(|before| !Arc::ptr_eq(before, &engine)) {
                before.kick();
            }
        }
        if let Some(last) = last {
            last.kick();
        }
    }

    /// Drops and counts the packets that have arrived before the first queue pair, for example packets to an earlier
    /// device at this address. In a full receive buffer, they would displace the first packets to the new queue pair.
    /// They would also reach a queue pair that gets the number of an earlier one.
    fn discard_arrived(&self) {
        let mut driver = self.lock();
        self.receive_strays(&mut driver);
        let arrived = driver.receive_arrived(self.now_ns());
        self.report(arrived);
        drop(driver.rnic_mut().take_strays()); // the packets to other engines are as old
        self.leave(driver);
    }

    /// Handles the packets that other engines have received.
    #[cold]
    pub(super) fn receive_strays(&self, driver: &mut Guard<'_>) {
        let now_ns = self.now_ns();
        for stray in self.inbox.take() {
            driver.receive_stray(now_ns, &stray);
        }
    }

    /// Lets the other engines follow a change of the port.
    pub(super) fn let_others_follow(&self) {
        for engine in self.engines().iter().filter_map(Weak::upgrade).filter(|engine| !std::ptr::eq(&**engine, self)) {
            let mut driver = engine.lock();
            driver.follow_port(engine.now_ns());
            engine.leave(driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use doorbell_rnic::{Config, EngineId, TransmitBatch};
    use doorbell_wire::{PathMtu, ROCE_UDP_PORT};

    use super::*;
    use crate::link::{LinkProperties, Sink};
    use crate::testing::outer;

    /// Link with packets that arrived before the first queue pair. It records the threads that receive them.
    struct Early {
        left: usize,
        receivers: Arc<Mutex<Vec<ThreadId>>>,
    }

    impl Link for Early {
        fn properties(&self) -> LinkProperties {
            LinkProperties { sealed: false }
        }

        fn transmit(&mut self, _: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
            *next = batch.runs().len();
            Ok(())
        }

        fn receive(&mut self, _: u64, _: &mut dyn Sink) -> io::Result<usize> {
            if self.left == 0 {
                return Ok(0);
            }
            self.left -= 1;
            self.receivers.lock().unwrap().push(thread::current().id());
            Ok(1)
        }

        fn link_counters(&self) -> LinkCounters {
            LinkCounters::default()
        }
    }

    fn socket() -> OwnProcess {
        OwnedFd::from(UdpSocket::bind(("127.0.0.1", 0)).unwrap()).into()
    }

    /// Starts a device with two engines. Three packets wait for the second engine, which has not begun. Also returns
    /// the threads that receive these packets.
    fn two_engines(readable: OwnProcess) -> (Vec<DrivenRnic>, Arc<Mutex<Vec<ThreadId>>>) {
        let address = [10, 0, 0, 1].into();
        let config = Config { address, active_mtu: PathMtu::Mtu1024, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
        let first = Rnic::new(config, None);
        let second = first.add_engine().unwrap();
        let receivers = Arc::<Mutex<Vec<ThreadId>>>::default();
        let ends = [(first, 0, socket()), (second, 3, readable)];
        let parts = ends.map(|(rnic, left, readable)| {
            let link = Box::new(Early { left, receivers: Arc::clone(&receivers) });
            EngineParts { rnic, link, readable }
        });
        (DrivenRnic::start(parts.into(), ROCE_UDP_PORT).unwrap(), receivers)
    }

    #[test]
    fn the_thread_of_an_engine_is_scheduled_as_that_of_the_first_engine() {
        let (engines, _) = two_engines(socket());
        thread::scope(|scope| {
            scope.spawn(|| {
                Scheduling::restrict_this_thread();
                engines[1].begin().unwrap();
            });
        });
        let shown = |engine: &DrivenRnic| match &*engine.thread.lock().unwrap() {
            EngineThread::Running(thread) => Scheduling::of(thread).shown(),
            _ => panic!("the engine has no thread"),
        };
        assert_eq!(shown(&engines[1]), shown(&engines[0]));
    }

    #[test]
    fn packets_that_arrive_before_the_first_queue_pair_are_dropped() {
        let (engines, receivers) = two_engines(socket());
        let address = [10, 0, 0, 2].into();
        let bytes = vec![0; 16];
        engines[1].shared.inbox.put(Stray { engine: EngineId(1), outer: outer(address, address), bytes });
        engines[1].begin().unwrap();
        assert_eq!(*receivers.lock().unwrap(), [thread::current().id(); 3]);
        assert!(!engines[1].shared.inbox.has_packets());
    }

    #[test]
    fn an_engine_whose_descriptor_is_closed_does_not_use_its_link() {
        let readable = socket();
        let number = readable.as_fd().as_raw_fd();
        let (engines, receivers) = two_engines(readable);
        nix::unistd::close(number).unwrap();
        engines[1].begin().unwrap();
        let begun = Instant::now();
        while !engines[1].shared.is_abandoned.load(Ordering::Relaxed) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the engine still uses its descriptors");
            thread::yield_now();
        }
        drop(engines);
        assert_eq!(*receivers.lock().unwrap(), []);
    }

    #[test]
    fn packets_that_find_an_inbox_full_are_counted() {
        let (inbox, address) = (Inbox::default(), [127, 0, 0, 1].into());
        for number in 0..INBOX_MAX as u32 + 3 {
            let bytes = number.to_le_bytes().to_vec();
            inbox.put(Stray { engine: EngineId(1), outer: outer(address, address), bytes });
        }
        assert!(inbox.has_packets());
        assert_eq!(inbox.counters(), LinkCounters { rx_overflow: 3, ..LinkCounters::default() });
        let taken = inbox.take();
        assert_eq!((taken.len(), &taken[4095].bytes[..]), (INBOX_MAX, &4095_u32.to_le_bytes()[..]));
        assert!(!inbox.has_packets());
    }
}
