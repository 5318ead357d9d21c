//! Devices over time: who is there, and what each did since the last look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use crate::common::{Common, Raw};
use crate::rate::Rates;
use crate::sample::{Identity, Kind, Reading, Sample, monotonic_ns};
use crate::source::{PublishedSource, Source, SysfsSource};

/// Most devices that are followed.
pub const MAX_DEVICES: usize = 1024;

/// No device has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no RDMA device {name:?}; {}", known_devices(.known))]
pub struct UnknownDevice {
    /// What was asked for.
    pub name: String,
    /// Labels of the devices that there are.
    pub known: Vec<String>,
}

fn known_devices(known: &[String]) -> String {
    if known.is_empty() {
        return "there is none at all: the kernel knows none, and no process of this user has a software RNIC open"
            .to_owned();
    }
    format!("there are: {}", known.join(", "))
}

/// A device and what it did since the last look.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Its latest sample.
    pub sample: Sample,
    /// What it did; `None` if it was seen for the first time.
    pub rates: Option<Rates>,
}

/// What one look found.
#[derive(Debug, Default)]
pub struct Look {
    /// The devices that are meant.
    pub devices: Vec<Interval>,
    /// Problems as sentences, about the selected devices, or about all devices if none was found. Each read collects them
    /// anew.
    pub notes: Vec<String>,
}

/// What tells a device from all others, those included that came before it.
type Key = (Kind, String, Option<u32>, u64);

fn key(sample: &Sample) -> Key {
    let Identity { kind, name, port, .. } = &sample.identity;
    (*kind, name.clone(), *port, sample.incarnation)
}

/// Follows devices.
pub struct Monitor {
    sources: Vec<Box<dyn Source>>,
    selector: Option<String>,
    before: BTreeMap<Key, Sample>,
    looked_ns: Option<u64>,
}

impl Monitor {
    /// Follows all software RNICs of this user's processes, and the devices of the kernel below
    /// `sysfs`.
    pub fn new(sysfs: &Path) -> Self {
        Self::of(vec![Box::new(PublishedSource::new()), Box::new(SysfsSource::new(sysfs))])
    }

    /// Follows the devices of some sources.
    pub fn of(sources: Vec<Box<dyn Source>>) -> Self {
        Self { sources, selector: None, before: BTreeMap::new(), looked_ns: None }
    }

    /// Follows only the devices that `selector` means ([`Identity::is_meant_by`]), of which there
    /// must be one now. Later they may go and come again.
    ///
    /// # Errors
    ///
    /// There is no such device now. The error names those that there are; devices are followed as before.
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

    /// Reads the selected devices, and the notes about them.
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

    /// Looks at all devices. A device that has ended appears once more, with its last values.
    pub fn look(&mut self) -> Look {
        let looked_ns = self.looked_ns.replace(monotonic_ns());
        let (samples, notes) = self.read_selected();
        let mut look = Look { devices: Vec::new(), notes };
        let mut there = BTreeSet::new();
        for sample in samples {
            let key = key(&sample);
            there.insert(key.clone());
            // Counters of a device that was made after the last look were zero then.
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
        // A device of the kernel that is not there any more ends without a last word.
        let gone: Vec<Key> = self.before.keys().filter(|key| !there.contains(*key)).cloned().collect();
        for key in gone {
            if let Some(sample) = self.before.remove(&key) {
                look.devices.push(Interval { sample: Sample { ended: true, ..sample }, rates: None });
            }
        }
        look
    }
}

/// The rates of one device's traffic. What the device does not count is `None`; so is all of a device
/// that was reset while it was looked at, which a remark then says.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The device's label.
    pub device: String,
    /// Seconds that were looked at.
    pub seconds: f64,
    /// Bytes transmitted per second.
    pub tx_bytes_per_s: Option<f64>,
    /// Packets transmitted per second.
    pub tx_packets_per_s: Option<f64>,
    /// Bytes received per second.
    pub rx_bytes_per_s: Option<f64>,
    /// Packets received per second.
    pub rx_packets_per_s: Option<f64>,
    /// What the bytes are, as the device counts them: frames without FCS, IP packets, ...
    pub bytes_are: Option<&'static str>,
    /// What must be known to understand the figures, as sentences.
    pub remarks: Vec<String>,
}

/// Why the traffic of a device is not known.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// There is no such device.
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    /// Several have this name.
    #[error("{name:?} means {}: name one of them", .devices.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Labels of the devices that it means.
        devices: Vec<String>,
    },
    /// It went while it was looked at.
    #[error("{0} went away while it was looked at")]
    Gone(String),
}

/// Looks at one device for as long as `during`.
///
/// # Errors
///
/// There is no such device, several devices have the name, or the device went away while it was looked at.
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
