//! Follows devices over time, and computes their rates since the previous look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use crate::common::{Common, Raw};
use crate::rate::Rates;
use crate::sample::{Identity, Kind, Reading, Sample, monotonic_ns};
use crate::source::{PublishedSource, Source, SysfsSource};

/// Maximum number of devices that a monitor follows.
pub const MAX_DEVICES: usize = 1024;

/// Error of selecting a device that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no RDMA device {name:?}; {}", known_devices(.known))]
pub struct UnknownDevice {
    /// Requested name.
    pub name: String,
    /// Labels of the existing devices.
    pub known: Vec<String>,
}

fn known_devices(known: &[String]) -> String {
    if known.is_empty() {
        return "there is none at all: the kernel knows none, and no process of this user has a software RNIC open"
            .to_owned();
    }
    format!("there are: {}", known.join(", "))
}

/// A device and its rates since the previous look.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Latest sample.
    pub sample: Sample,
    /// Rates since the previous look; `None` if the device is new.
    pub rates: Option<Rates>,
}

impl Interval {
    /// Returns the program that has the device open, or else the driver and network interface of the device.
    pub fn owner(&self) -> String {
        let identity = &self.sample.identity;
        let parts = match (&identity.program, identity.pid) {
            (Some(program), Some(pid)) => vec![program.clone(), format!("({pid})")],
            _ => [&identity.driver, &identity.netdev].into_iter().flatten().cloned().collect(),
        };
        parts.join(" ")
    }
}

/// Result of one look.
#[derive(Debug, Default)]
pub struct Look {
    /// Selected devices.
    pub devices: Vec<Interval>,
    /// Problems as sentences. The notes concern the selected devices, or all devices if no selected device was found.
    /// Each look collects its own notes.
    pub notes: Vec<String>,
}

/// Unique key of a device. A later device with the same name has another key.
type Key = (Kind, String, Option<u32>, u64);

fn key(sample: &Sample) -> Key {
    let Identity { kind, name, port, .. } = &sample.identity;
    (*kind, name.clone(), *port, sample.incarnation)
}

/// Monitor of devices that appear and disappear.
pub struct Monitor {
    sources: Vec<Box<dyn Source>>,
    selector: Option<String>,
    before: BTreeMap<Key, Sample>,
    looked_ns: Option<u64>,
}

impl Monitor {
    /// Creates a monitor of all software RNICs of this user's processes, and of the kernel's devices below the
    /// directory `sysfs`.
    pub fn new(sysfs: &Path) -> Self {
        Self::of(vec![Box::new(PublishedSource::new()), Box::new(SysfsSource::new(sysfs))])
    }

    /// Creates a monitor of the devices of these sources.
    pub fn of(sources: Vec<Box<dyn Source>>) -> Self {
        Self { sources, selector: None, before: BTreeMap::new(), looked_ns: None }
    }

    /// Restricts the monitor to the devices that match `selector` ([`Identity::is_meant_by`]). At least one such device
    /// must exist now. Selected devices may later disappear and reappear.
    ///
    /// # Errors
    ///
    /// No such device exists now. The error names the existing devices, and the previous selection stays in effect.
    pub fn select(&mut self, selector: &str) -> Result<(), UnknownDevice> {
        let Reading { samples, .. } = self.read();
        if !samples.iter().any(|sample| sample.identity.is_meant_by(selector)) {
            let known = samples.into_iter().map(|sample| sample.identity.label).collect();
            return Err(UnknownDevice { name: selector.to_owned(), known });
        }
        self.selector = Some(selector.to_owned());
        Ok(())
    }

    fn read(&mut self) -> Reading {
        let mut reading = Reading::default();
        for source in &mut self.sources {
            source.read(&mut reading);
        }
        reading
    }

    /// Reads the selected devices and the notes that concern them.
    fn read_selected(&mut self) -> (Vec<Sample>, Vec<String>) {
        let Reading { mut samples, mut notes } = self.read();
        if let Some(selector) = &self.selector {
            samples.retain(|sample| sample.identity.is_meant_by(selector));
            let found: Vec<_> = samples.iter().map(|sample| sample.identity.clone()).collect();
            notes.retain(|note| note.matters(selector, &found));
        }
        let mut notes: Vec<String> = notes.into_iter().map(|note| note.text).collect();
        if samples.len() > MAX_DEVICES {
            notes.push(format!("there are {} devices, of which {MAX_DEVICES} are shown", samples.len()));
            samples.truncate(MAX_DEVICES);
        }
        (samples, notes)
    }

    /// Reads all selected devices. A software RNIC that has ended appears once more, with its last values.
    pub fn look(&mut self) -> Look {
        let looked_ns = self.looked_ns.replace(monotonic_ns());
        let (samples, notes) = self.read_selected();
        let mut look = Look { devices: Vec::new(), notes };
        let mut there = BTreeSet::new();
        for sample in samples {
            let key = key(&sample);
            there.insert(key.clone());
            // A device that was created after the previous look has no earlier sample. Its counters were zero at its
            // creation, so its rates count from then.
            let newborn = || {
                let born_ns =
                    sample.born_ns.filter(|&born_ns| looked_ns.is_some_and(|looked_ns| born_ns > looked_ns))?;
                let raw: Raw = sample.raw.keys().map(|name| (name.clone(), 0)).collect();
                Some(Sample { at_ns: born_ns, raw, ..sample.clone() })
            };
            let before = self.before.remove(&key).or_else(newborn);
            let rates = before.map(|before| Rates::between(&before, &sample));
            if !sample.ended {
                self.before.insert(key, sample.clone());
            }
            look.devices.push(Interval { sample, rates });
        }
        // A device of the kernel that has disappeared leaves no last values, so only its entry is removed.
        let gone: Vec<Key> = self.before.keys().filter(|key| !there.contains(*key)).cloned().collect();
        for key in gone {
            if let Some(sample) = self.before.remove(&key) {
                look.devices.push(Interval { sample: Sample { ended: true, ..sample }, rates: None });
            }
        }
        look
    }
}

/// Rates of one device's traffic. A rate is `None` if the device has no such counter. If the device was reset during
/// the measurement, all rates are `None`, and a remark states the reset.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Label of the device.
    pub device: String,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Bytes transmitted per second.
    pub tx_bytes_per_s: Option<f64>,
    /// Packets transmitted per second.
    pub tx_packets_per_s: Option<f64>,
    /// Bytes received per second.
    pub rx_bytes_per_s: Option<f64>,
    /// Packets received per second.
    pub rx_packets_per_s: Option<f64>,
    /// Description of the bytes that the device counts, for example frames without FCS or IP packets.
    pub bytes_are: Option<&'static str>,
    /// Remarks on the rates, as sentences.
    pub remarks: Vec<String>,
}

/// Error of [`traffic`].
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The device does not exist.
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    /// Several devices match the name.
    #[error("{name:?} matches several devices: name one of {}", .devices.join(", "))]
    Ambiguous {
        /// Requested name.
        name: String,
        /// Labels of the matching devices.
        devices: Vec<String>,
    },
    /// The device disappeared during the measurement.
    #[error("{0} disappeared during the measurement")]
    Gone(String),
}

/// Measures the traffic of one device during the time `during`.
///
/// # Errors
///
/// The device does not exist, several devices match the name, or the device disappeared during the measurement.
pub fn traffic(mut monitor: Monitor, device: &str, during: Duration) -> Result<Traffic, TrafficError> {
    monitor.select(device)?;
    let devices: Vec<String> = monitor.look().devices.into_iter().map(|found| found.sample.identity.label).collect();
    let [label] = devices.as_slice() else {
        return Err(TrafficError::Ambiguous { name: device.to_owned(), devices });
    };
    std::thread::sleep(during);
    let found = monitor.look().devices.into_iter().find(|found| found.sample.identity.label == *label);
    let gone = || TrafficError::Gone(label.clone());
    let Interval { sample, rates } = found.ok_or_else(gone)?;
    let rates = rates.ok_or_else(gone)?;
    Ok(Traffic {
        device: label.clone(),
        seconds: rates.seconds,
        tx_bytes_per_s: rates.per_second(Common::TxBytes),
        tx_packets_per_s: rates.per_second(Common::TxPackets),
        rx_bytes_per_s: rates.per_second(Common::RxBytes),
        rx_packets_per_s: rates.per_second(Common::RxPackets),
        bytes_are: Common::TxBytes.rule(&sample.raw).or(Common::RxBytes.rule(&sample.raw)).map(|rule| rule.counts),
        remarks: rates.remarks,
    })
}
