//! Counters of RDMA devices, and the rates that they make.
//!
//! ```
//! use std::path::Path;
//!
//! use doorbell_counters::{Monitor, SYSFS};
//!
//! let mut monitor = Monitor::new(Path::new(SYSFS));
//! monitor.look(); // rates need two looks
//! for device in monitor.look().devices {
//!     println!("{}: {:?}", device.sample.identity.label, device.rates);
//! }
//! ```
//!
//! - [`Publisher`] publishes what a software RNIC counts, for other processes of the same user.
//! - A [`Source`] reads devices: [`PublishedSource`] the software RNICs, [`SysfsSource`] the
//!   kernel's devices, with the statistics of their network interfaces ([`ethtool`]).
//! - [`TABLE`] says under which names vendors count what is common ([`Common`]), and what exactly
//!   each of them counts there.
//! - [`Rates`] are made of two samples. A counter that wrapped is followed; one that went back
//!   otherwise has no rate, and none is ever negative. What a device lacks is absent, not zero.
//! - [`Monitor`] follows devices that come and go; [`traffic`] is its short form for one device.
#![deny(unsafe_code)]

mod common;
mod monitor;
mod publish;
mod rate;
mod sample;
mod sequence;
mod source;
/// Atomics of [`sequence`], which a model checker replaces by its own.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use common::{COMMON, Common, Name, Raw, Rule, Set, TABLE, bits, is_gauge};
pub use monitor::{Interval, Look, MAX_DEVICES, Monitor, Traffic, TrafficError, UnknownDevice, traffic};
pub use publish::{
    DIRECTORY_VARIABLE, MAX_FILES, PUBLISH_WITHIN_NS, PublishError, Published, Publisher, SWITCH_VARIABLE, is_wanted,
};
pub use rate::{Change, Rates, change};
pub use sample::{Identity, Kind, Note, Reading, Sample, Subject, monotonic_ns};
pub use source::{PublishedSource, SYSFS, Source, SysfsSource, ethtool};
