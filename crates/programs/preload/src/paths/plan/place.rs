//! Places of devices in the served tree, and the processors that are near to a device.

use std::fmt::Write as _;

use doorbell_verbs::soft::{PciAddress, PortRate, SoftDevice};

use super::UVERBS_FIRST_MINOR;

/// Place of a device in the served tree.
pub(super) struct Place<'a> {
    pub(super) own: &'a SoftDevice,
    /// Name of the device.
    pub(super) name: String,
    /// Path of the parent, which is a platform device or a PCI device.
    pub(super) parent: String,
    /// Number of the character device.
    pub(super) uverbs: u32,
}

impl<'a> Place<'a> {
    pub(super) fn new(own: &'a SoftDevice, uverbs: u32) -> Self {
        let parent = match own.pci {
            Some(pci) => format!("{}/{pci}", bus(pci)),
            None => format!("/sys/devices/platform/doorbell.{}", own.number),
        };
        Self { own, name: own.name(), parent, uverbs }
    }

    /// Returns the served folder that contains all nodes of the device except the links to them.
    pub(super) fn root(&self) -> String {
        self.own.pci.map_or_else(|| self.parent.clone(), bus)
    }

    /// Returns the name of the parent within its folder.
    pub(super) fn parent_name(&self) -> &str {
        self.parent.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the path of the device, or of a file below the device.
    pub(super) fn device(&self, below: &str) -> String {
        format!("{}/infiniband/{}{below}", self.parent, self.name)
    }

    /// Returns the path of the character device's folder, or of a file below this folder.
    pub(super) fn verbs(&self, below: &str) -> String {
        format!("{}/infiniband_verbs/uverbs{}{below}", self.parent, self.uverbs)
    }

    pub(super) fn minor(&self) -> u32 {
        UVERBS_FIRST_MINOR + self.uverbs
    }
}

/// Returns the path of a PCI bus. Every device is directly on the bus of a root complex.
fn bus(pci: PciAddress) -> String {
    format!("/sys/devices/pci{:04x}:{:02x}", pci.domain, pci.bus)
}

/// Link between a device and its processor, as the files of a PCI device show it.
pub(super) struct PciLink {
    /// Transfers of each lane, in 10^9 per second. A transfer carries one bit.
    gt_per_s: u32,
    /// Number of lanes.
    pub(super) lanes: u32,
}

impl PciLink {
    /// Speeds of PCIe 3.0 to 6.0, in GT/s.
    const SPEEDS: [u32; 4] = [8, 16, 32, 64];

    /// Returns the slowest link that carries the rate of a port. It has 8 lanes up to 50 Gb/s, and 16 lanes above, as
    /// adapters of these rates have.
    pub(super) fn of(rate: PortRate) -> Self {
        let lanes = if rate.gbit_per_s <= 50 { 8 } else { 16 };
        // The link encodes 128 bits as 130 (PCI Express Base Specification 3.0, 4.2.2).
        let carries = |speed: &u32| speed * lanes * 128 >= rate.gbit_per_s * 130;
        let [.., highest] = Self::SPEEDS;
        Self { gt_per_s: Self::SPEEDS.into_iter().find(carries).unwrap_or(highest), lanes }
    }

    /// Returns the speed in the format of the kernel.
    pub(super) fn speed(&self) -> String {
        format!("{}.0 GT/s PCIe", self.gt_per_s)
    }
}

/// List of the machine's processors that are near to a device.
pub(super) struct Processors(String);

impl Processors {
    /// Reads the kernel's list of processors, such as `0-3,8`. Returns all processors of the machine if the device is
    /// near to all NUMA nodes, or if the machine has no such node.
    pub(super) fn near(node: Option<u16>) -> Self {
        let of_node = node.map(|node| format!("/sys/devices/system/node/node{node}/cpulist"));
        let places = of_node.into_iter().chain(["/sys/devices/system/cpu/online".to_owned()]);
        let mut lists = places.filter_map(|place| Some(std::fs::read_to_string(place).ok()?.trim().to_owned()));
        Self(lists.find(|list| !list.is_empty()).unwrap_or_else(|| "0".to_owned()))
    }

    pub(super) fn list(&self) -> &str {
        &self.0
    }

    /// Returns the processors as a mask in words of 32 bits. The highest word comes first, and commas separate the
    /// words.
    pub(super) fn mask(&self) -> String {
        let mut words = Vec::new();
        for range in self.0.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
            for number in first..=last.min(MAX_PROCESSORS) {
                if words.len() <= number / 32 {
                    words.resize(number / 32 + 1, 0_u32);
                }
                words[number / 32] |= 1 << (number % 32);
            }
        }
        let Some((highest, rest)) = words.split_last() else { return "1".to_owned() };
        let mut text = format!("{highest:x}");
        for word in rest.iter().rev() {
            let _ = write!(text, ",{word:08x}");
        }
        text
    }
}

/// Highest processor number in a mask. The mask omits processors with higher numbers, so it fits into a file
/// ([`MAX_VALUE_BYTES`](super::MAX_VALUE_BYTES)).
const MAX_PROCESSORS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_carries_the_rate_of_its_port() {
        let links = PortRate::ALL.map(|rate| (rate.gbit_per_s, PciLink::of(rate)));
        let shown: Vec<String> =
            links.iter().map(|(rate, link)| format!("{rate}: {}x{}", link.gt_per_s, link.lanes)).collect();
        assert_eq!(
            shown,
            ["10: 8x8", "25: 8x8", "40: 8x8", "50: 8x8", "100: 8x16", "200: 16x16", "400: 32x16", "800: 64x16"]
        );
        assert!(links.iter().all(|(rate, link)| link.gt_per_s * link.lanes > *rate));
        assert_eq!(links[4].1.speed(), "8.0 GT/s PCIe");
    }
}
