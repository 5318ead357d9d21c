//! The list of software RNICs: their number, names, addresses and places in a machine, as the environment states them.
//!
//! | variable | contents |
//! |---|---|
//! | [`DEVICES_VARIABLE`] | number of devices; 1 if it is missing |
//! | [`BIND_VARIABLE`] | addresses of all devices, separated by commas, in the order of the devices |
//! | [`DEVICE_VARIABLE`] and the number of a device | its options, as [`SoftDevice::configure`] parses them |

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{FaultPlan, SoftOptions, open};
use crate::error::Error;
use crate::handles::Device;

/// Maximum number of software RNICs in a list.
pub const MAX_DEVICES: usize = 64;

/// Environment variable with the number of software RNICs, from 1 to [`MAX_DEVICES`].
pub const DEVICES_VARIABLE: &str = "DOORBELL_DEVICES";

/// Environment variable with the addresses of the software RNICs, separated by commas.
pub const BIND_VARIABLE: &str = "DOORBELL_BIND";

/// Start of the names of the environment variables with the options of one software RNIC. The number of the device
/// follows, as in `DOORBELL_DEVICE1`.
pub const DEVICE_VARIABLE: &str = "DOORBELL_DEVICE";

/// Start of the name of each device in a list. The number of the device follows, from 0.
const STEM: &str = "doorbell";

/// Highest number of a NUMA node that Linux supports.
const MAX_NUMA_NODE: u16 = 1023;

/// Errors in the list of software RNICs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The number of devices is not allowed.
    #[error("the number of software RNICs (--devices, DOORBELL_DEVICES) is {0:?}, allowed is 1 to {MAX_DEVICES}")]
    Count(String),
    /// A text is no address.
    #[error(
        "{0:?} is not an IP address (--bind, DOORBELL_BIND): use addresses separated by commas, one for each device"
    )]
    Address(String),
    /// The number of addresses differs from the number of devices.
    #[error(
        "the number of addresses (--bind, DOORBELL_BIND) is {addresses}, and the number of software RNICs (--devices, \
         DOORBELL_DEVICES) is {devices}: use one address for each device, or none"
    )]
    Addresses {
        /// Number of addresses.
        addresses: usize,
        /// Number of devices.
        devices: usize,
    },
    /// Two devices have the same address.
    #[error("{0} is the address of two devices (--bind, DOORBELL_BIND): each device needs an address of its own")]
    SameAddress(IpAddr),
    /// Two devices have the same PCI address.
    #[error("{0} is the PCI address of two devices: each device needs a PCI address of its own")]
    SamePci(PciAddress),
    /// The list has no device of this name.
    #[error(
        "there is no software RNIC {name}, only {known} (--devices or DOORBELL_DEVICES changes the number of devices)"
    )]
    Unknown {
        /// The name.
        name: String,
        /// Names of the first and the last device.
        known: String,
    },
    /// An option of a device is not allowed.
    #[error("options of {device}: {option:?} must be one of {allowed}")]
    Option {
        /// Name of the device.
        device: String,
        /// The option.
        option: String,
        /// The allowed options.
        allowed: &'static str,
    },
    /// An option of a device is given twice.
    #[error("options of {device}: {option} is given twice, allowed is once")]
    Twice {
        /// Name of the device.
        device: String,
        /// Name of the option.
        option: String,
    },
    /// The value of an option of a device is not allowed.
    #[error("options of {device}: {option} is {value:?}: {problem}")]
    Value {
        /// Name of the device.
        device: String,
        /// Name of the option.
        option: &'static str,
        /// The value.
        value: String,
        /// The reason, and the allowed values.
        problem: String,
    },
}

/// Address of a device on a PCI bus, such as `0000:41:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// Number of the domain.
    pub domain: u16,
    /// Number of the bus.
    pub bus: u8,
    /// Number of the device on the bus, at most 31.
    pub device: u8,
    /// Number of the function, at most 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Parses an address with or without a domain.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str, most: usize, limit: u16| {
            let is_hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_number = (1..=most).contains(&digits.len()) && is_hexadecimal;
            u16::from_str_radix(digits, 16).ok().filter(|number| is_number && *number <= limit)
        };
        let parsed = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
            Some(Self {
                domain: number(domain, 4, u16::MAX)?,
                bus: number(bus, 2, 0xff)? as u8,
                device: number(device, 2, 0x1f)? as u8,
                function: number(function, 1, 7)? as u8,
            })
        };
        parsed().ok_or_else(|| "must be an address such as 0000:41:00.0".to_owned())
    }
}

/// Rate of a port, with the codes of width and speed in `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRate {
    /// Rate in Gb/s.
    pub gbit_per_s: u32,
    /// Number of lanes.
    pub lanes: u8,
    /// Code of the number of lanes.
    pub width_code: u8,
    /// Code of the speed of each lane.
    pub speed_code: u8,
    /// Name of the speed of each lane.
    pub speed: &'static str,
}

impl PortRate {
    /// Allowed rates (IBTA Vol 1, 14.2.5.6, PortInfo: LinkWidthActive and LinkSpeedActive).
    pub const ALL: [Self; 8] = [
        Self::new(10, 4, 2, 1, "SDR"),
        Self::new(25, 1, 1, 32, "EDR"),
        Self::new(40, 4, 2, 4, "QDR"),
        Self::new(50, 1, 1, 64, "HDR"),
        Self::DEFAULT,
        Self::new(200, 4, 2, 64, "HDR"),
        Self::new(400, 4, 2, 128, "NDR"),
        Self::new(800, 8, 4, 128, "NDR"),
    ];

    /// Rate of a device without the option `speed`: roughly the rate of loopback.
    pub const DEFAULT: Self = Self::new(100, 4, 2, 32, "EDR");

    const fn new(gbit_per_s: u32, lanes: u8, width_code: u8, speed_code: u8, speed: &'static str) -> Self {
        Self { gbit_per_s, lanes, width_code, speed_code, speed }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|rate| rate.gbit_per_s.to_string() == text);
        found.ok_or_else(|| {
            let allowed: Vec<String> = Self::ALL.iter().map(|rate| rate.gbit_per_s.to_string()).collect();
            format!("allowed are the rates {} in Gb/s", allowed.join(", "))
        })
    }
}

/// Writes the rate as the kernel's file `rate` does.
impl fmt::Display for PortRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Gb/sec ({}X {})", self.gbit_per_s, self.lanes, self.speed)
    }
}

/// A software RNIC of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftDevice {
    /// Number of the device in its list, from 0. The name of the device ends with this number.
    pub number: usize,
    /// Address of the device; `None` means the next free loopback address.
    pub address: Option<IpAddr>,
    /// Faults of this device; `None` means those of all devices.
    pub faults: Option<FaultPlan>,
    /// NUMA node that programs see; `None` means that the device is equally near to all nodes.
    pub numa_node: Option<u16>,
    /// Address on a PCI bus that programs see; `None` means that the device is a platform device.
    pub pci: Option<PciAddress>,
    /// Rate of the port that programs see. It does not limit the device.
    pub rate: PortRate,
}

/// Forms of the options that [`SoftDevice::configure`] parses.
const OPTIONS: &str = "numa=N, pci=ADDRESS, speed=RATE, fault=PLAN";

impl SoftDevice {
    fn new(number: usize) -> Self {
        Self { number, address: None, faults: None, numa_node: None, pci: None, rate: PortRate::DEFAULT }
    }

    /// Returns a list of `count` devices with default options.
    ///
    /// # Errors
    ///
    /// `count` is 0 or above [`MAX_DEVICES`].
    pub fn list(count: usize) -> Result<Vec<Self>, DevicesError> {
        if (1..=MAX_DEVICES).contains(&count) {
            Ok((0..count).map(Self::new).collect())
        } else {
            Err(DevicesError::Count(count.to_string()))
        }
    }

    /// Returns the list that these variables describe. `variable` returns the value of a variable. Empty values count
    /// as missing.
    ///
    /// # Errors
    ///
    /// A value is not allowed, two devices have the same address, or a variable has options of a device that the list
    /// does not contain.
    pub fn list_of(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<Self>, DevicesError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let count = match variable(DEVICES_VARIABLE) {
            Some(text) => text.parse().map_err(|_| DevicesError::Count(text))?,
            None => 1,
        };
        let mut devices = Self::list(count)?;
        if let Some(text) = variable(BIND_VARIABLE) {
            let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| DevicesError::Address(text.to_owned()));
            let addresses = text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
            if addresses.len() != count {
                return Err(DevicesError::Addresses { addresses: addresses.len(), devices: count });
            }
            devices.iter_mut().zip(addresses).for_each(|(device, address)| device.address = Some(address));
        }
        for number in 0..MAX_DEVICES {
            let Some(options) = variable(&format!("{DEVICE_VARIABLE}{number}")) else { continue };
            Self::expect(&devices, number)?;
            devices[number].configure(&options)?;
        }
        let addresses = devices.iter().filter_map(|device| device.address.map(|address| address.to_canonical()));
        if let Some(address) = repeated(addresses) {
            return Err(DevicesError::SameAddress(address));
        }
        match repeated(devices.iter().filter_map(|device| device.pci)) {
            Some(address) => Err(DevicesError::SamePci(address)),
            None => Ok(devices),
        }
    }

    /// Returns an error if a list has no device of this number.
    ///
    /// # Errors
    ///
    /// The list has no device of this number.
    pub fn expect(list: &[Self], number: usize) -> Result<(), DevicesError> {
        let last = list.len().saturating_sub(1);
        if number < list.len() {
            return Ok(());
        }
        let known = if last == 0 { format!("{STEM}0") } else { format!("{STEM}0 to {STEM}{last}") };
        Err(DevicesError::Unknown { name: format!("{STEM}{number}"), known })
    }

    /// Returns the name of the device: `doorbell` and its number.
    pub fn name(&self) -> String {
        format!("{STEM}{}", self.number)
    }

    /// Sets options of the device, separated by commas: `numa=N`, `pci=ADDRESS`, `speed=RATE` in Gb/s, and
    /// `fault=PLAN`. The plan comes last, since it may contain commas.
    ///
    /// # Errors
    ///
    /// An option is unknown or given twice, or its value is not allowed.
    pub fn configure(&mut self, options: &str) -> Result<(), DevicesError> {
        let (device, mut rest, mut given) = (self.name(), options, Vec::new());
        while !rest.is_empty() {
            let end = if rest.starts_with("fault=") { rest.len() } else { rest.find(',').unwrap_or(rest.len()) };
            let option = &rest[..end];
            rest = rest[end..].strip_prefix(',').unwrap_or_default();
            let not_allowed =
                || DevicesError::Option { device: device.clone(), option: option.to_owned(), allowed: OPTIONS };
            let (name, value) = option.split_once('=').ok_or_else(not_allowed)?;
            if given.contains(&name) {
                return Err(DevicesError::Twice { device, option: name.to_owned() });
            }
            given.push(name);
            let refused = |option: &'static str, problem: String| {
                let (device, value) = (device.clone(), value.to_owned());
                DevicesError::Value { device, option, value, problem }
            };
            match name {
                "numa" => {
                    let node = value.parse::<u16>().ok().filter(|node| *node <= MAX_NUMA_NODE);
                    let problem = || refused("numa", format!("allowed is a NUMA node from 0 to {MAX_NUMA_NODE}"));
                    self.numa_node = Some(node.ok_or_else(problem)?);
                }
                "pci" => self.pci = Some(value.parse::<PciAddress>().map_err(|problem| refused("pci", problem))?),
                "speed" => self.rate = PortRate::parse(value).map_err(|problem| refused("speed", problem))?,
                "fault" => {
                    let plan = value.parse::<FaultPlan>();
                    self.faults = Some(plan.map_err(|error| refused("fault", error.to_string()))?);
                }
                _ => return Err(not_allowed()),
            }
        }
        Ok(())
    }

    /// Returns `options` with the name, the address and the faults of this device. Options of all devices apply where
    /// this device has none.
    pub fn options(&self, options: SoftOptions) -> SoftOptions {
        SoftOptions {
            name: Some(self.name()),
            address: self.address.or(options.address),
            faults: self.faults.clone().or(options.faults),
            ..options
        }
    }
}

/// Returns a value that occurs twice.
fn repeated<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Returns the software RNICs that the environment of this process describes. The function opens no device.
///
/// # Errors
///
/// A variable has a value that is not allowed.
pub fn devices() -> Result<Vec<SoftDevice>, DevicesError> {
    SoftDevice::list_of(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
}

/// Returns the number of the software RNIC of this name, such as `doorbell3`. Returns `None` if no software RNIC of a
/// list can have the name.
pub fn number_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix(STEM)?.parse::<usize>().ok()?;
    (format!("{STEM}{number}") == name).then_some(number)
}

/// Returns the software RNIC of this number from the list of [`devices`].
///
/// # Errors
///
/// The list has fewer devices, or a variable has a value that is not allowed.
pub fn device(number: usize) -> Result<SoftDevice, DevicesError> {
    let mut devices = devices()?;
    SoftDevice::expect(&devices, number)?;
    Ok(devices.swap_remove(number))
}

/// Opens all devices of a list, each with its name, address and faults. All other options are those of `options`.
///
/// # Errors
///
/// As [`open`]. If one device cannot be opened, the devices that are already open are closed again.
pub fn open_all(devices: &[SoftDevice], options: &SoftOptions) -> Result<Vec<Device>, Error> {
    devices.iter().map(|device| open(&device.options(options.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(variables: &[(&str, &str)]) -> Result<Vec<SoftDevice>, String> {
        let value =
            |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        SoftDevice::list_of(value).map_err(|error| error.to_string())
    }

    #[test]
    fn without_variables_there_is_one_device() {
        for variables in [&[][..], &[("DOORBELL_DEVICES", ""), ("DOORBELL_BIND", "")]] {
            let devices = list(variables).unwrap();
            assert_eq!(devices, [SoftDevice::new(0)]);
            assert_eq!(devices[0].name(), crate::soft::NAME);
        }
    }

    #[test]
    fn each_device_has_its_name_address_and_options() {
        let devices = list(&[
            ("DOORBELL_DEVICES", "3"),
            ("DOORBELL_BIND", "127.0.0.5, ::1,127.0.0.7"),
            ("DOORBELL_DEVICE1", "numa=1,pci=0000:41:00.0,speed=200"),
            ("DOORBELL_DEVICE2", "pci=c1:1f.7,fault=drop=0.5,seed=7;drop opcode=ack nth=1"),
        ])
        .unwrap();
        let names: Vec<String> = devices.iter().map(SoftDevice::name).collect();
        assert_eq!(names, ["doorbell0", "doorbell1", "doorbell2"]);
        let addresses: Vec<_> = devices.iter().map(|device| device.address.unwrap().to_string()).collect();
        assert_eq!(addresses, ["127.0.0.5", "::1", "127.0.0.7"]);
        assert_eq!((devices[0].numa_node, devices[0].pci, devices[0].rate), (None, None, PortRate::DEFAULT));
        assert_eq!(devices[1].numa_node, Some(1));
        assert_eq!(devices[1].pci.unwrap().to_string(), "0000:41:00.0");
        assert_eq!(devices[1].rate.to_string(), "200 Gb/sec (4X HDR)");
        assert_eq!(devices[2].pci.unwrap().to_string(), "0000:c1:1f.7");
        assert_eq!(devices[2].faults, Some("drop=0.5,seed=7;drop opcode=ack nth=1".parse().unwrap()));
        assert_eq!(devices[1].faults, None);
    }

    #[test]
    fn options_of_a_device_take_precedence_over_those_of_all_devices() {
        let devices = list(&[("DOORBELL_DEVICES", "2"), ("DOORBELL_DEVICE1", "fault=drop=0.5")]).unwrap();
        let all = SoftOptions { faults: Some("drop=0.1".parse().unwrap()), port: 4792, ..SoftOptions::default() };
        let [first, second] = [0, 1].map(|number: usize| devices[number].options(all.clone()));
        assert_eq!((first.name.as_deref(), first.port), (Some("doorbell0"), 4792));
        assert_eq!(first.faults, all.faults);
        assert_eq!((second.name.as_deref(), second.faults), (Some("doorbell1"), devices[1].faults.clone()));
    }

    #[test]
    fn wrong_values_are_named_with_the_allowed_ones() {
        let two = ("DOORBELL_DEVICES", "2");
        for (variables, error) in [
            (&[("DOORBELL_DEVICES", "0")][..], "is \"0\", allowed is 1 to 64"),
            (&[("DOORBELL_DEVICES", "65")], "is \"65\", allowed is 1 to 64"),
            (&[("DOORBELL_DEVICES", "two")], "is \"two\", allowed is 1 to 64"),
            (&[("DOORBELL_BIND", "here")], "\"here\" is not an IP address"),
            (&[two, ("DOORBELL_BIND", "127.0.0.5")], "is 1, and the number of software RNICs"),
            (&[two, ("DOORBELL_BIND", "127.0.0.5,::ffff:127.0.0.5")], "127.0.0.5 is the address of two devices"),
            (&[("DOORBELL_DEVICE1", "numa=0")], "there is no software RNIC doorbell1, only doorbell0 (--devices"),
            (
                &[two, ("DOORBELL_DEVICE2", "numa=0")],
                "there is no software RNIC doorbell2, only doorbell0 to doorbell1",
            ),
            (&[("DOORBELL_DEVICE0", "numa")], "options of doorbell0: \"numa\" must be one of numa=N"),
            (&[("DOORBELL_DEVICE0", "size=1")], "\"size=1\" must be one of numa=N"),
            (&[("DOORBELL_DEVICE0", "numa=0,numa=1")], "numa is given twice"),
            (&[("DOORBELL_DEVICE0", "numa=1024")], "numa is \"1024\": allowed is a NUMA node from 0 to 1023"),
            (&[("DOORBELL_DEVICE0", "speed=99")], "allowed are the rates 10, 25, 40, 50, 100, 200, 400, 800"),
            (&[("DOORBELL_DEVICE0", "pci=41:20.0")], "must be an address such as 0000:41:00.0"),
            (&[("DOORBELL_DEVICE0", "fault=lose=1")], "options of doorbell0: fault is \"lose=1\""),
            (
                &[two, ("DOORBELL_DEVICE0", "pci=41:00.0"), ("DOORBELL_DEVICE1", "pci=0000:41:00.0")],
                "0000:41:00.0 is the PCI address of two devices",
            ),
        ] {
            let found = list(variables).unwrap_err();
            assert!(found.contains(error), "{variables:?}: {found}");
        }
    }

    #[test]
    fn each_rate_is_the_product_of_its_width_and_speed() {
        for rate in PortRate::ALL {
            let lanes = match rate.width_code {
                1 => 1,
                2 => 4,
                4 => 8,
                code => panic!("{code} is no code of a width in the table"),
            };
            let mbit_per_s = match rate.speed_code {
                1 => 2_500,
                4 => 10_000,
                32 => 25_000,
                64 => 50_000,
                128 => 100_000,
                code => panic!("{code} is no code of a speed in the table"),
            };
            assert_eq!((rate.lanes, rate.gbit_per_s * 1000), (lanes, u32::from(lanes) * mbit_per_s), "{rate}");
        }
    }

    #[test]
    fn pci_addresses_have_all_parts_in_their_range() {
        for (text, shown) in [("0:0.0", "0000:00:00.0"), ("ABCD:ff:1f.7", "abcd:ff:1f.7")] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
        for bad in
            ["", "41", "41:00", "41:00.8", "41:20.0", "100:00.0.0", "10000:41:00.0", "+1:00.0", "41:00.", ":00.0"]
        {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_list_opens_with_an_address_for_each_device() {
        let options = SoftOptions { publish: false, ..SoftOptions::default() };
        let devices = open_all(&SoftDevice::list(3).unwrap(), &options).unwrap();
        let attributes: Vec<_> = devices.iter().map(Device::attributes).collect();
        assert_eq!(
            attributes.iter().map(|own| own.name.as_str()).collect::<Vec<_>>(),
            ["doorbell0", "doorbell1", "doorbell2"]
        );
        assert_eq!(repeated(attributes.iter().map(|own| own.address)), None);
        assert_eq!(SoftDevice::list(0), Err(DevicesError::Count("0".to_owned())));
        assert!(SoftDevice::list(65).is_err());
    }

    #[test]
    fn names_of_other_devices_are_no_names_of_software_rnics() {
        for other in ["mlx5_0", "doorbell", "doorbell00", "doorbell+1", "doorbell0x"] {
            assert_eq!(number_of(other), None, "{other}");
        }
        assert_eq!((number_of("doorbell0"), number_of("doorbell64")), (Some(0), Some(64)));
        assert_eq!(device(0).unwrap().number, 0);
        assert!(device(64).unwrap_err().to_string().contains("there is no software RNIC doorbell64"));
    }
}
