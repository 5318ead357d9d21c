//! Counters of RDMA devices, and rates computed from them.
//!
//! ```
//! use std::path::Path;
//!
//! use doorbell_counters::{Monitor, SYSFS};
//!
//! let mut monitor = Monitor::new(Path::new(SYSFS));
//! monitor.look(); // rates are computed between two looks
//! for device in monitor.look().devices {
//!     println!("{}: {:?}", device.sample.identity.label, device.rates);
//! }
//! ```
//!
//! - [`Publisher`] publishes the counters of a software RNIC for other processes of the same user. These processes can
//!   also order its port to go down and up ([`PublishedSource::ask_port`]).
//! - A [`Source`] reads devices: [`PublishedSource`] reads software RNICs, [`SysfsSource`] reads the kernel's
//!   devices, with the statistics of their network interfaces ([`ethtool`]).
//! - [`TABLE`] lists the vendors' names of the common counters ([`Common`]), and the exact meaning of each.
//! - [`Rates`] are computed from two samples. A counter that wrapped has a rate, a counter that was reset has none.
//!   No rate is negative. A counter that a device lacks is absent, not zero.
//! - [`Pause`] recognises the statistics of interfaces that count pause frames.
//! - With the feature `export`, readings become JSON and answers to Prometheus.
//! - [`Monitor`] follows devices that appear and disappear; [`traffic`] is its short form for one device.
#![deny(unsafe_code)]

mod common;
#[cfg(feature = "export")]
pub mod export;
mod monitor;
mod news;
mod pace;
mod pause;
mod publish;
mod rate;
mod sample;
mod sequence;
mod source;
/// Atomics of [`sequence`]. A model checker replaces them by its own types.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use common::{COMMON, Common, Name, Raw, Rule, Set, TABLE, bits, is_gauge};
pub use monitor::{Interval, Look, MAX_DEVICES, Monitor, Traffic, TrafficError, UnknownDevice, traffic};
pub use news::News;
pub use pace::Pace;
pub use pause::{Direction, Pause, Quantity};
pub use publish::{
    DIRECTORY_VARIABLE, MAX_FILES, PUBLISH_WITHIN_NS, PortReply, PortRequest, PortRequests, PublishError, Published,
    PublishedPort, Publisher, SWITCH_VARIABLE, is_wanted,
};
pub use rate::{Change, Rates, change};
pub use sample::{Board, Identity, Kind, Note, Reading, Sample, Subject, monotonic_ns};
pub use source::{Answered, AskError, PublishedSource, SYSFS, Source, SysfsSource, ethtool};
