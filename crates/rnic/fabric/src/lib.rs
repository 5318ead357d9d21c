//! Links that carry RoCE v2 packets, and the driver of an RNIC on a link.
//!
//! This example attaches an RNIC to a network in memory, with a link that drops 1 % of the arriving packets:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use doorbell_fabric::{Acks, Driver, Faults, MemoryNetwork, MemoryOptions};
//! use doorbell_rnic::{Config, Rnic};
//! use doorbell_wire::{PathMtu, ROCE_UDP_PORT};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = MemoryNetwork::new(MemoryOptions { latency_ns: 2_000, ..MemoryOptions::default() });
//! let address: IpAddr = [10, 0, 0, 1].into();
//! let config = Config { address, active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
//! let link = Faults::new(network.attach(address), "drop=0.01,seed=3".parse()?);
//! let mut driver = Driver::new(Rnic::new(config, None), link, ROCE_UDP_PORT);
//! let now_ns = 0; // the caller's clock; driver.rnic_mut() creates queue pairs
//! assert_eq!(driver.pump(now_ns, Acks::Now)?, 0, "no packet has arrived");
//! # Ok(())
//! # }
//! ```
//!
//! A [`Link`] moves *runs* of packets between a driver and the network. Each packet is the UDP payload of one
//! datagram:
//!
//! - [`UdpLink`] carries packets over a UDP socket. [`bind`] creates the link.
//! - [`SharedMemoryLink`] extends a [`UdpLink`]: packets to devices of the same machine go through shared memory.
//! - [`MemoryLink`] carries packets within one process. The caller provides the time.
//! - [`Pcap`], [`Faults`] and [`Counted`] each wrap another link, which may also be a [`Pcap`], [`Faults`] or
//!   [`Counted`].
//!
//! A [`FaultPlan`] says which faults [`Faults`] injects. [`FaultFilter`] injects them without a link, for a simulator.
//!
//! [`Sealer`] and [`Checker`] compute and check the ICRC between the RNIC and a sealed link.
#![deny(unsafe_code)]

mod counted;
mod deaths;
mod driver;
mod faults;
mod guard;
mod link;
mod memory;
mod names;
mod observe;
mod own_event;
mod own_process;
mod pcap;
mod port;
mod progress;
mod seal;
mod shm;
mod struck;
#[cfg(test)]
mod testing;
mod time_slice;
pub mod udp;

/// Names of a device's two threads. The first thread drives the RNIC. The second thread sets up memory shared with
/// other devices of this machine.
pub const THREADS: [&str; 2] = [DRIVER_THREAD, MEETING_THREAD];
const DRIVER_THREAD: &str = "doorbell";
const MEETING_THREAD: &str = "doorbell-meet";

pub use counted::{Counted, PacketClass, Traffic, TrafficByClass};
pub use deaths::log_deaths;
pub use driver::{Acks, Driver};
pub use faults::{
    FAULT_FIELDS, FaultCounters, FaultFilter, FaultPlan, FaultPlanError, FaultRule, FaultShares, Faults, VerbsCall,
    VerbsFaults,
};
pub use guard::{
    Action, CopyMethod, OwnMemory, bring_in, can_bring_in, copy_by_kernel, exchange_action, guard_memory, has_handlers,
    spawn_without_signals, unblocked,
};
pub use link::{Link, LinkProperties, PlannedOrder, ReceivedRun, SentPacket, SharedRun, Sink};
pub use memory::{MemoryCounters, MemoryLink, MemoryNetwork, MemoryOptions};
pub use names::{AbstractName, abstract_names, beside, beside_prefix, plain};
pub use observe::Observer;
pub use own_event::{EventIdentity, OwnEvent};
pub use own_process::{Opening, OwnProcess, watch_forks};
pub use pcap::{FrameDirection, FrameNotes, Pcap, PcapFile};
pub use progress::{DrivenRnic, EngineParts, PortHandle, PortService, VirtualClock, flush_before_exit};
pub use seal::{CheckCounters, Checker, Sealer};
pub use shm::{LinkChoice, SharedMemoryCounters, SharedMemoryLink, wake_device};
pub use struck::{PlanTexts, RuleNumbers};
pub use time_slice::shorten_time_slices;
pub use udp::{BindError, BindRequest, UdpCounters, UdpLink, active_mtu, bind, bind_engines};
