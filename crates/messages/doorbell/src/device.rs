//! Opening an RNIC.

use std::net::IpAddr;
use std::path::PathBuf;

use doorbell_verbs::soft::{self, FaultPlan, SoftOptions};
use doorbell_verbs::system::{self, SystemOptions};
use doorbell_verbs::{self as verbs, Access, MemoryKind, Pd, Region};

/// An RNIC for connections. Clones share one device. The device closes when the last clone and the last object that was
/// made on the device are dropped.
#[derive(Clone, Debug)]
pub struct Device {
    pd: Pd,
}

/// Errors of opening a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option of the software RNIC was combined with a hardware device.
    #[error("{option} applies only to the software RNIC: drop this option, or drop the name of the hardware device")]
    SoftwareOnly {
        /// The name of the option.
        option: &'static str,
    },
    /// The device could not be opened.
    #[error("the device could not be opened: {0}")]
    Device(#[from] verbs::Error),
}

impl Device {
    /// Opens a software RNIC on the next free loopback address, for peers on this machine.
    ///
    /// # Errors
    ///
    /// No loopback address is free, or the process may not open more files.
    pub fn open() -> Result<Self, OpenError> {
        Self::builder().open()
    }

    /// Returns a builder for a hardware device, or for a software RNIC with another address or with faults.
    pub fn builder() -> DeviceBuilder {
        DeviceBuilder::default()
    }

    /// Wraps a device that the program has opened by [`verbs`].
    ///
    /// # Errors
    ///
    /// The device has no free protection domain.
    pub fn of(device: &verbs::Device) -> Result<Self, OpenError> {
        Ok(Self { pd: device.create_pd()? })
    }

    /// Returns the IP address by which peers reach the device.
    pub fn address(&self) -> IpAddr {
        self.verbs().attributes().address
    }

    /// Returns the underlying device, for calls of [`verbs`].
    pub fn verbs(&self) -> &verbs::Device {
        self.pd.device()
    }

    /// Returns the protection domain of all connections and regions that are made through this [`Device`].
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Allocates memory from which the program can send messages without a copy, or which peers can access.
    ///
    /// # Errors
    ///
    /// `bytes` is 0, the operating system has too little memory, or the device has no free region.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<Region, verbs::Error> {
        self.pd.allocate(bytes, access, MemoryKind::Plain)
    }
}

/// Options for opening a [`Device`]. The default is a software RNIC.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DeviceBuilder {
    hardware: Option<SystemOptions>,
    name: Option<String>,
    address: Option<IpAddr>,
    udp_port: Option<u16>,
    publish: bool,
    faults: Option<FaultPlan>,
    fault_journal: Option<PathBuf>,
    seed: Option<[u8; 32]>,
    capture: Option<PathBuf>,
}

impl DeviceBuilder {
    /// Selects a device of the machine by its name, such as `mlx5_0`, instead of the software RNIC.
    pub fn hardware(mut self, name: impl Into<String>) -> Self {
        self.hardware = Some(SystemOptions { device: Some(name.into()), ..SystemOptions::default() });
        self
    }

    /// Selects the device of the machine that these options name.
    pub fn system(mut self, options: SystemOptions) -> Self {
        self.hardware = Some(options);
        self
    }

    /// Sets the name under which `doorbell counters` shows the software RNIC: 1 to 63 ASCII letters, digits, dashes,
    /// dots and underscores. The default is `doorbell0`. To select a hardware device by name, use
    /// [`hardware`](Self::hardware).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the IP address by which peers reach the software RNIC: an address of this machine. The default is the next
    /// free loopback address, which only peers on this machine reach.
    pub fn address(mut self, address: impl Into<IpAddr>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Sets the UDP port of the software RNIC. Both ends must use the same port. The default is 4791, the port of RoCE
    /// v2.
    pub fn udp_port(mut self, port: u16) -> Self {
        self.udp_port = Some(port);
        self
    }

    /// Publishes the counters of the software RNIC for `doorbell counters`; the default is off. The environment
    /// variable `DOORBELL_PUBLISH=0` always switches it off.
    pub fn publish_counters(mut self, on: bool) -> Self {
        self.publish = on;
        self
    }

    /// Makes the software RNIC drop, duplicate, reorder, delay or corrupt arriving packets. Shares of the plan affect
    /// packets that its seed chooses. Rules, such as `drop opcode=ack nth=1`, affect the packets that they match.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = doorbell::Device::builder().faults("drop=0.01,delay=50us,seed=7".parse()?).open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = Some(plan);
        self
    }

    /// Appends one line of JSON to this file for each rule of the fault plan that fires. At the end,
    /// [`FaultPlan::unfired`] finds the rules that had no effect.
    pub fn fault_journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.fault_journal = Some(path.into());
        self
    }

    /// Sets the seed of the software RNIC's keys and numbers, which otherwise come from the operating system's
    /// randomness. Use a seed only in tests, since peers can guess seeded keys.
    pub fn seed(mut self, seed: [u8; 32]) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Writes every packet of the software RNIC to this pcap file.
    pub fn capture(mut self, path: impl Into<PathBuf>) -> Self {
        self.capture = Some(path.into());
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    ///
    /// The machine has no device of this name, or the name has characters that are not allowed. Another program uses
    /// the address and port, or the address is no address of this machine. An option applies only to the software RNIC,
    /// but a hardware device was selected.
    pub fn open(self) -> Result<Device, OpenError> {
        let device = match &self.hardware {
            Some(options) => {
                let given = [
                    (self.name.is_some(), "a name of your own"),
                    (self.address.is_some(), "an address"),
                    (self.udp_port.is_some(), "a UDP port"),
                    (self.publish, "the publication of counters"),
                    (self.faults.is_some(), "a plan of faults"),
                    (self.fault_journal.is_some(), "a journal of faults"),
                    (self.seed.is_some(), "a seed"),
                    (self.capture.is_some(), "a capture"),
                ];
                if let Some((_, option)) = given.into_iter().find(|(is_given, _)| *is_given) {
                    return Err(OpenError::SoftwareOnly { option });
                }
                system::open(options)?
            }
            None => {
                let default = SoftOptions::default();
                soft::open(&SoftOptions {
                    name: self.name,
                    address: self.address,
                    port: self.udp_port.unwrap_or(default.port),
                    pcap: self.capture,
                    faults: self.faults,
                    fault_journal: self.fault_journal,
                    publish: self.publish,
                    seed: self.seed,
                    ..default
                })?
            }
        };
        Device::of(&device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_software_rnic_has_the_name_that_it_is_given() {
        let device = Device::builder().name("storage-3.test_1").open().unwrap();
        assert_eq!(device.verbs().attributes().name, "storage-3.test_1");
        assert_eq!(Device::open().unwrap().verbs().attributes().name, "doorbell0");
        for bad in ["", "a b", "a/b", "n\u{e4}me", &"x".repeat(64)] {
            let error = Device::builder().name(bad).open().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("1 to 63 letters"), "{error}");
        }
    }

    #[test]
    fn options_of_the_software_rnic_are_refused_for_hardware() {
        let error = Device::builder().hardware("mlx5_0").udp_port(4792).open().unwrap_err().to_string();
        assert_eq!(
            error,
            "a UDP port applies only to the software RNIC: drop this option, or drop the name of the hardware device"
        );
    }
}
