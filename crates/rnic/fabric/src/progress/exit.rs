//! Work before the process ends. The ports send acknowledgements that wait for a reply of the program, since no reply
//! will follow. Links write their records, such as captured packets.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;

use super::ThreadState;
use crate::driver::Driver;
use crate::link::Link;

/// Maximum time that [`flush_before_exit`] waits for the threads of the ports. On a busy machine, these threads first
/// wait for a processor.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Maximum time that [`flush_before_exit`] waits for a lock. The caller may be a signal handler that interrupted the
/// holder of the lock. Then the lock is never released.
const FREE_WITHIN: Duration = Duration::from_millis(50);

/// Maximum time that [`flush_before_exit`] waits for threads that log deaths of queue pairs. The tests demand that it
/// waits long enough, also on a busy machine.
const LOGGED_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 50 });

/// Maximum number of processes in a chain of forks that may each open devices. In deeper processes,
/// [`flush_before_exit`] does nothing.
const MAX_GENERATIONS: usize = 64;

/// The open ports of one process.
struct Ports {
    /// ID of the process that owns this entry; 0 if the entry is free.
    pid: AtomicU32,
    open: Mutex<Vec<Arc<ThreadState>>>,
}

/// The ports of this process and of the processes from which it was forked. This process never accesses the ports of
/// the others, since another thread may have held their lock during the fork.
static PORTS: [Ports; MAX_GENERATIONS] =
    [const { Ports { pid: AtomicU32::new(0), open: Mutex::new(Vec::new()) } }; MAX_GENERATIONS];

/// Returns the ports of this process, if it has opened any.
fn own() -> Option<&'static Ports> {
    let pid = process::id();
    PORTS.iter().take_while(|ports| ports.pid.load(Ordering::Acquire) != 0).find(|ports| ports.is_of(pid))
}

impl Ports {
    fn is_of(&self, pid: u32) -> bool {
        self.pid.load(Ordering::Acquire) == pid
    }

    /// Claims this entry for the process `pid` if the entry is free. Returns whether the entry now belongs to that
    /// process.
    fn claim(&self, pid: u32) -> bool {
        self.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok() || self.is_of(pid)
    }
}

pub(super) fn add(shared: &Arc<ThreadState>) {
    let pid = process::id();
    if let Some(ports) = PORTS.iter().find(|ports| ports.claim(pid)) {
        ports.open.lock().ignore_poison().push(Arc::clone(shared));
    }
}

pub(super) fn remove(shared: &Arc<ThreadState>) {
    if let Some(ports) = own() {
        ports.open.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, shared));
    }
}

/// Makes all ports of this process send the acknowledgements that they hold back, and write the records that their
/// links hold. Threads that log the deaths of queue pairs finish their lines. Call it before the process ends. A signal
/// handler may call it, since the function neither allocates memory nor blocks on a lock. The threads of the ports do
/// the work. The function waits for them for at most two seconds, or 50 ms if another thread holds a lock all the time.
/// In a forked or vforked child, the function does nothing.
pub fn flush_before_exit() {
    let Some(ports) = own() else { return };
    let begun = Instant::now();
    let open = loop {
        match ports.open.try_lock() {
            Ok(open) => break open,
            Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
            // Another thread is opening or closing a device. Or this function runs in a signal handler, and the
            // interrupted thread was opening or closing a device.
            Err(TryLockError::WouldBlock) if begun.elapsed() < FREE_WITHIN => std::thread::yield_now(),
            Err(TryLockError::WouldBlock) => return,
        }
    };
    // Skip ports whose descriptors the program has closed: their threads meet no requests.
    for shared in open.iter().filter(|shared| !shared.is_abandoned.load(Ordering::Relaxed)) {
        let asked = match shared.driver.try_lock() {
            Ok(driver) if is_done(&driver) => continue,
            // If another thread holds the lock, it may be about to hold an acknowledgement back. So make a request in
            // this case too.
            _ => shared.flushes.ask(),
        };
        shared.kick();
        let asked_at = Instant::now();
        let mut is_free = false;
        while !shared.flushes.is_done(asked) {
            is_free = is_free || !matches!(shared.driver.try_lock(), Err(TryLockError::WouldBlock));
            let is_held = !is_free && asked_at.elapsed() >= FREE_WITHIN;
            if is_held || begun.elapsed() >= FLUSH_WITHIN {
                break;
            }
            std::thread::yield_now();
        }
    }
    // Other threads may be about to log the deaths of queue pairs. The caller may also have interrupted such a thread.
    let begun = Instant::now();
    let is_logging = |shared: &Arc<ThreadState>| shared.logging.load(Ordering::Acquire) > 0;
    while open.iter().any(is_logging) && begun.elapsed() < LOGGED_WITHIN {
        std::thread::yield_now();
    }
}

/// Returns whether the driver has sent all packets and written all records.
fn is_done<L: Link>(driver: &Driver<L>) -> bool {
    let rnic = driver.rnic();
    let has_sent_all = rnic.held_ack_since_ns().is_none() && !rnic.wants_transmit() && !driver.is_link_full();
    has_sent_all && !driver.link().holds_packets() && !driver.link().holds_records()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::{iter, thread};

    use doorbell_rnic::{Config, Rnic};
    use doorbell_wire::{PathMtu, ROCE_UDP_PORT};

    use super::*;
    use crate::memory::{MemoryNetwork, MemoryOptions};
    use crate::progress::{DrivenRnic, VirtualClock};

    /// Returns a port without a thread, and adds it to those of the process.
    fn port(last: u8) -> DrivenRnic {
        let address: std::net::IpAddr = [10, 0, 0, last].into();
        let config = Config { address, active_mtu: PathMtu::Mtu1024, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
        let link = Box::new(MemoryNetwork::new(MemoryOptions::default()).attach(address));
        let rnic = Rnic::new(config, None);
        let driven = DrivenRnic::in_virtual_time(rnic, link, ROCE_UDP_PORT, VirtualClock::default()).unwrap();
        add(&driven.shared);
        driven
    }

    #[test]
    fn the_end_of_the_process_waits_for_the_line_about_a_dead_queue_pair() {
        let driven = port(1);
        // A thread has taken a death from the engine, and writes its line.
        driven.shared.logging.fetch_add(1, Ordering::Relaxed);
        let ending = thread::spawn(flush_before_exit);
        thread::sleep(Duration::from_millis(100));
        let is_waiting = !ending.is_finished();
        driven.shared.logging.fetch_sub(1, Ordering::Release);
        ending.join().unwrap();
        remove(&driven.shared);
        assert!(is_waiting, "the process ends before the line is written");
    }

    /// A thread holds the lock of the first port all the time. The lock of the second port is held when the end of the
    /// process comes to that port.
    #[test]
    fn a_port_has_time_to_flush_after_a_port_whose_lock_is_held() {
        let flush = || {
            let (held, other) = (port(1), port(2));
            let _held = held.shared.driver.lock().ignore_poison();
            let (is_met, starts) = (AtomicBool::new(false), Barrier::new(2));
            let meet = || {
                let lock = other.shared.driver.lock().ignore_poison();
                starts.wait();
                let request = iter::repeat_with(|| other.shared.flushes.pending()).flatten().next().unwrap();
                thread::sleep(FREE_WITHIN / 10);
                is_met.store(true, Ordering::Relaxed);
                other.shared.flushes.meet(request);
                drop(lock);
            };
            thread::scope(|scope| {
                scope.spawn(meet);
                starts.wait();
                scope.spawn(|| {
                    flush_before_exit();
                    assert!(is_met.load(Ordering::Relaxed), "the process ends before the second port has flushed");
                });
            });
        };
        // The ports of other tests would take part.
        doorbell_testing::in_own_process(|_| {}, flush);
    }
}
