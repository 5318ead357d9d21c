//! Opening an RNIC.

use std::net::IpAddr;
use std::path::PathBuf;

use doorbell_verbs::soft::{self, DevicesError, FaultPlan, SoftDevice, SoftOptions};
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
    /// The number of devices is not allowed.
    #[error(transparent)]
    Devices(#[from] Box<DevicesError>),
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
            None => soft::open(&self.soft_options())?,
        };
        Device::of(&device)
    }

    /// Opens several software RNICs, as for tests of programs that use several rails. The devices have the names
    /// `doorbell0`, `doorbell1` and so on, and the next free loopback addresses. A name that was set takes the place of
    /// `doorbell`. All other options apply to each device; with a seed, each device gets another seed made of it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rails = doorbell::Device::builder().open_several(4)?;
    /// assert_ne!(rails[0].address(), rails[3].address());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The number of devices is 0 or above [`soft::MAX_DEVICES`]. A hardware device or an address was selected, and
    /// there is more than one device. A device cannot be opened.
    pub fn open_several(self, count: usize) -> Result<Vec<Device>, OpenError> {
        if self.hardware.is_some() {
            return Err(OpenError::SoftwareOnly { option: "a number of devices" });
        }
        let listed = SoftDevice::list(count).map_err(Box::new)?;
        let options = |device: &SoftDevice| {
            let mut options = device.options(self.soft_options());
            if let Some(stem) = &self.name {
                options.name = Some(format!("{stem}{}", device.number));
            }
            if let Some(seed) = &mut options.seed {
                seed[0] ^= device.number as u8; // equal seeds would give the devices equal keys
            }
            options
        };
        listed.iter().map(|device| Device::of(&soft::open(&options(device))?)).collect()
    }

    fn soft_options(&self) -> SoftOptions {
        let default = SoftOptions::default();
        SoftOptions {
            name: self.name.clone(),
            address: self.address,
            port: self.udp_port.unwrap_or(default.port),
            pcap: self.capture.clone(),
            faults: self.faults.clone(),
            fault_journal: self.fault_journal.clone(),
            publish: self.publish,
            seed: self.seed,
            ..default
        }
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
    fn several_devices_have_names_and_addresses_of_their_own() {
        let devices = Device::builder().name("rail").seed([7; 32]).open_several(3).unwrap();
        let names: Vec<String> = devices.iter().map(|device| device.verbs().attributes().name).collect();
        assert_eq!(names, ["rail0", "rail1", "rail2"]);
        let mut addresses: Vec<IpAddr> = devices.iter().map(Device::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 3);
        let default = Device::builder().open_several(1).unwrap();
        assert_eq!(default[0].verbs().attributes().name, "doorbell0");
        for count in [0, 65] {
            let error = Device::builder().open_several(count).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{count}\", allowed is 1 to 64")), "{error}");
        }
        let error = Device::builder().hardware("mlx5_0").open_several(2).unwrap_err().to_string();
        assert!(error.starts_with("a number of devices applies only to the software RNIC"), "{error}");
        let address = addresses[0];
        let error = Device::builder().address(address).open_several(2).unwrap_err().to_string();
        assert!(error.contains(&format!("{address} is taken")), "{error}");
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
