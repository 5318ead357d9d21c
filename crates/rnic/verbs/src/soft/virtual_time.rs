//! Software RNICs on a network within the process, in virtual time.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use doorbell_fabric::{DrivenRnic, MemoryCounters, MemoryNetwork, MemoryOptions, VirtualClock};
use doorbell_rnic::Config;
use doorbell_sync::IgnorePoison;
use doorbell_wire::{PathMtu, ROCE_UDP_PORT};

use super::layers::Drive;
use super::{SoftOptions, seed_of, start_driven};
use crate::error::Error;
use crate::handles::Device;

/// Receive buffer that the devices state, as the kernel would count it.
const RECEIVE_BUFFER_BYTES: u64 = 1 << 20;

/// A network within the process, whose devices live on one virtual clock. A clone is the same network.
///
/// The devices have no threads. [`drive`](Self::drive) lets them work at the present time, and
/// [`advance_to`](Self::advance_to) moves the clock to the next event. Between these calls no time passes, so the
/// program must not block in a call that waits for a device.
#[derive(Clone, Debug)]
pub struct VirtualNetwork {
    network: MemoryNetwork,
    clock: VirtualClock,
    devices: Arc<Mutex<Vec<Weak<DrivenRnic>>>>,
}

impl VirtualNetwork {
    /// Creates a network without devices, at time 0.
    pub fn new(options: MemoryOptions) -> Self {
        Self { network: MemoryNetwork::new(options), clock: VirtualClock::default(), devices: Arc::default() }
    }

    /// Opens a software RNIC with this address. Options that concern a socket have no effect. A capture has times since
    /// the start of the network.
    ///
    /// # Errors
    ///
    /// As [`open_on`](super::open_on).
    ///
    /// # Panics
    ///
    /// If a device of this network has the address.
    pub fn open(&self, address: IpAddr, options: &SoftOptions) -> Result<Device, Error> {
        let config = Config {
            address,
            active_mtu: PathMtu::Mtu4096,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            seed: seed_of(options)?,
        };
        let (link, drive) = (Box::new(self.network.attach(address)), Drive::Virtual(self.clock.clone()));
        let soft = start_driven(link, drive, Vec::new(), config, ROCE_UDP_PORT, options)?;
        self.devices.lock().ignore_poison().push(Arc::downgrade(soft.engines.first()));
        Ok(Device::new(Arc::new(soft)))
    }

    /// Returns the time of the clock of all devices, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Lets each device receive and send the packets of the present time, and handle its timers.
    pub fn drive(&self) {
        for device in self.open_devices() {
            device.drive();
        }
    }

    /// Returns the time of the next event: a packet arrives, or a timer of a device expires. Before
    /// [`drive`](Self::drive), this time may be in the past.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.open_devices().iter().filter_map(|device| device.poll_timeout()).min()
    }

    /// Moves the clock forward to `at_ns`. A time in the past has no effect.
    pub fn advance_to(&self, at_ns: u64) {
        self.clock.advance_to(at_ns);
    }

    /// Returns the counters of the network.
    pub fn counters(&self) -> MemoryCounters {
        self.network.counters()
    }

    /// Returns the devices that are open, in the order in which they were opened.
    fn open_devices(&self) -> Vec<Arc<DrivenRnic>> {
        let mut devices = self.devices.lock().ignore_poison();
        devices.retain(|device| device.strong_count() > 0);
        devices.iter().filter_map(Weak::upgrade).collect()
    }
}
