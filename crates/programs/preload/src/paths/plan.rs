//! The plan: a table of every served path and its node.
//!
//! Names and formats of values follow the kernel's documentation (Documentation/ABI/stable/sysfs-class-infiniband) for
//! a RoCE port. The parent of a device is a platform device, or a PCI device if the user gives it a PCI address.

mod place;

use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_verbs::PortState;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::soft::{MAX_DEVICES, SoftDevice};

use super::sys;
use crate::objects::{ah, device, query};
use crate::process::fork::Inside;
use crate::process::static_value::StaticValue;
use crate::process::wait::Uncancelled;
use crate::process::{config, stats};
use place::{PciLink, Place, Processors};

const CLASS: &[u8] = b"/sys/class/infiniband";
const CLASS_VERBS: &[u8] = b"/sys/class/infiniband_verbs";
const DEVICES: &[u8] = b"/dev/infiniband";

/// Maximum length of a file's content, in bytes.
const MAX_VALUE_BYTES: usize = 512;

/// ABI version of the interface between libibverbs and the kernel, and ABI version of the driver's part of this
/// interface.
const VERBS_ABI: u32 = 6;
const DRIVER_ABI: u32 = 1;

/// Major and minor numbers of the character devices. The kernel gives `UVERBS_MAJOR` and `UVERBS_FIRST_MINOR` to the
/// first `uverbs` device. `rdma_cm` gets a free minor number of `MISC_MAJOR`, the miscellaneous devices.
const UVERBS_MAJOR: u32 = 231;
const UVERBS_FIRST_MINOR: u32 = 192;
const MISC_MAJOR: u32 = 10;
const RDMA_CM_MINOR: u32 = 254;

/// Maximum number of `uverbs` device numbers that are tried.
const MAX_UVERBS: u32 = 32;

/// An entry of the tree.
pub(super) struct Node {
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// A folder. A shared folder shows the entries of the kernel in addition to those of the plan.
    Folder {
        shared: bool,
    },
    File(Content),
    /// A link. Contains its target, with a zero byte at the end.
    Link(Vec<u8>),
    Character {
        major: u32,
        minor: u32,
    },
}

pub(super) enum Content {
    Fixed(String),
    /// A value of the device of this number.
    Live(usize, Live),
}

/// A value that the library reads each time a program opens the file.
#[derive(Clone, Copy)]
pub(super) enum Live {
    Guid,
    Gid,
    Netdev,
    State,
    PhysicalState,
    /// A counter of the port.
    Port(&'static PortCounter),
    /// A counter of the device, with its index in [`stats::names`].
    Hardware(usize),
}

/// A counter that every port has (IBTA Vol 1, 16.1.3.5). Its value is a sum of counters of the device, divided by
/// `divided_by`.
pub(super) struct PortCounter {
    name: &'static str,
    sum_of: &'static [&'static str],
    divided_by: u64,
}

const fn port(name: &'static str, sum_of: &'static [&'static str]) -> PortCounter {
    PortCounter { name, sum_of, divided_by: 1 }
}

/// Returns a port counter whose unit is four bytes.
const fn words(name: &'static str, sum_of: &'static [&'static str]) -> PortCounter {
    PortCounter { name, sum_of, divided_by: 4 }
}

/// Counters of the port, each with the counters of the device whose sum it shows. A port counter with an empty list
/// stays 0: it counts events of cables and switches, which the software device does not have.
static PORT_COUNTERS: [PortCounter; 17] = [
    port("VL15_dropped", &[]),
    port("excessive_buffer_overrun_errors", &["rx_overflow"]),
    port("link_downed", &[]),
    port("link_error_recovery", &[]),
    port("local_link_integrity_errors", &[]),
    port("port_rcv_constraint_errors", &[]),
    words("port_rcv_data", &["rx_vport_rdma_unicast_bytes"]),
    port("port_rcv_errors", &["rx_icrc_encapsulated", "rx_malformed", "rx_truncated"]),
    port("port_rcv_packets", &["rx_vport_rdma_unicast_packets"]),
    port("port_rcv_remote_physical_errors", &[]),
    port("port_rcv_switch_relay_errors", &[]),
    port("port_xmit_constraint_errors", &[]),
    words("port_xmit_data", &["tx_vport_rdma_unicast_bytes"]),
    port("port_xmit_discards", &["tx_oversize", "tx_unreachable"]),
    port("port_xmit_packets", &["tx_vport_rdma_unicast_packets"]),
    port("port_xmit_wait", &[]),
    port("symbol_error", &[]),
];

/// All nodes of the served tree, sorted by path.
pub(super) struct Plan {
    nodes: Vec<Node>,
    /// The served folders. The plan contains all entries below these folders, and no other path.
    roots: Vec<Vec<u8>>,
    /// Names of the character devices, by the number of the device.
    dev_names: Vec<CString>,
    /// Timestamp of all nodes, in seconds since 1970.
    pub(super) made: i64,
}

/// Returns the plan, which never changes during the life of the process.
pub(super) fn plan() -> &'static Plan {
    static PLAN: StaticValue<Plan> = StaticValue::new();
    let make = || {
        // Creating the plan reads files, which are cancellation points. A cancellation would unwind this Rust frame,
        // and the unwinding would end the process.
        let _uncancelled = Uncancelled::new();
        Box::new(Plan::new())
    };
    // SAFETY: the plan is never freed, and no thread changes it.
    unsafe { &*PLAN.get_or_make(make) }
}

impl Node {
    pub(super) fn is_folder(&self) -> bool {
        matches!(self.kind, Kind::Folder { .. })
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Folder { shared: true })
    }

    /// Returns the name of the node within its folder.
    pub(super) fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Returns the inode number of the node, a 32-bit FNV-1a hash of its path. So all processes see the same number. A
    /// test checks that no two nodes have the same number.
    pub(super) fn inode(&self) -> u64 {
        u64::from(
            self.path.iter().fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
        )
    }
}

impl Plan {
    fn new() -> Self {
        // If the environment contains an invalid value, listing the devices reports the error.
        Self::of(config::devices().unwrap_or_default())
    }

    fn of(devices: &[SoftDevice]) -> Self {
        let mut plan = Builder(Vec::new());
        let mut roots = Vec::from([CLASS, CLASS_VERBS, DEVICES].map(<[u8]>::to_vec));
        plan.classes();
        let free = (0..).filter(|number| *number >= MAX_UVERBS || !is_taken(*number));
        let mut dev_names = Vec::new();
        for (own, uverbs) in devices.iter().zip(free) {
            let place = Place::new(own, uverbs);
            roots.push(place.root().into());
            plan.links_to(&place);
            plan.parent(&place);
            plan.device(&place);
            plan.port(&place);
            plan.uverbs(&place);
            dev_names.push(CString::new(format!("uverbs{uverbs}")).unwrap_or_default());
        }
        let mut nodes = plan.0;
        nodes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        nodes.dedup_by(|a, b| a.path == b.path); // two devices may have the same PCI bus
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        Self { nodes, roots, dev_names, made }
    }

    /// Returns the name of a device's character device.
    pub(super) fn dev_name(&self, number: usize) -> CString {
        self.dev_names.get(number).cloned().unwrap_or_default()
    }

    /// Returns whether the folder at `path` lies above a served folder.
    pub(super) fn is_above_roots(&self, path: &[u8]) -> bool {
        self.roots.iter().any(|root| root.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/")))
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn find(&self, path: &[u8]) -> Option<&Node> {
        let at = self.nodes.binary_search_by(|node| node.path.as_slice().cmp(path)).ok()?;
        self.nodes.get(at)
    }

    /// Returns the nodes that lie directly in a folder.
    pub(super) fn within<'a>(&'a self, folder: &'a Node) -> impl Iterator<Item = &'a Node> {
        let start = self.nodes.partition_point(|node| node.path <= folder.path);
        let below = self.nodes[start..].iter().map_while(|node| Some((node, node.path.strip_prefix(&*folder.path)?)));
        below.filter(|(_, rest)| rest.starts_with(b"/") && !rest[1..].contains(&b'/')).map(|(node, _)| node)
    }
}

/// Returns whether the kernel has a `uverbs` device of this number.
fn is_taken(number: u32) -> bool {
    let places = ["/sys/class/infiniband_verbs", "/dev/infiniband"];
    places.iter().any(|place| sys::exists(format!("{place}/uverbs{number}\0").as_bytes()))
}

struct Builder(Vec<Node>);

impl Builder {
    fn add(&mut self, path: impl Into<Vec<u8>>, kind: Kind) {
        self.0.push(Node { path: path.into(), kind });
    }

    fn folder(&mut self, path: &str) {
        self.add(path, Kind::Folder { shared: false });
    }

    fn fixed(&mut self, path: &str, text: impl Into<String>) {
        self.add(path, Kind::File(Content::Fixed(format!("{}\n", text.into()))));
    }

    fn live(&mut self, path: &str, place: &Place<'_>, live: Live) {
        self.add(path, Kind::File(Content::Live(place.own.number, live)));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.add(path, Kind::Link(format!("{target}\0").into_bytes()));
    }

    /// Adds the folders and files that all devices share.
    fn classes(&mut self) {
        for class in [CLASS, CLASS_VERBS, DEVICES] {
            self.add(class, Kind::Folder { shared: true });
        }
        self.fixed("/sys/class/infiniband_verbs/abi_version", VERBS_ABI.to_string());
        self.add("/dev/infiniband/rdma_cm", Kind::Character { major: MISC_MAJOR, minor: RDMA_CM_MINOR });
    }

    /// Adds the nodes of a device in the shared folders.
    fn links_to(&mut self, place: &Place<'_>) {
        let target = |path: &str| format!("../..{}", path.strip_prefix("/sys").unwrap_or(path));
        self.link(&format!("/sys/class/infiniband/{}", place.name), &target(&place.device("")));
        let uverbs = place.uverbs;
        self.link(&format!("/sys/class/infiniband_verbs/uverbs{uverbs}"), &target(&place.verbs("")));
        let kind = Kind::Character { major: UVERBS_MAJOR, minor: place.minor() };
        self.add(format!("/dev/infiniband/uverbs{uverbs}"), kind);
    }

    /// Adds the parent of a device: a platform device, or the PCI device of an adapter.
    fn parent(&mut self, place: &Place<'_>) {
        let below = |name: &str| format!("{}{name}", place.parent);
        for folder in ["", "/infiniband", "/infiniband_verbs"] {
            self.folder(&below(folder));
        }
        // Vendor and device numbers of PCI have 16 bits. If the environment names an invalid vendor, opening the device
        // reports the error.
        let (vendor, part) = config::vendor().unwrap_or_default();
        let (vendor, part) = (vendor & 0xffff, part & 0xffff);
        match place.own.pci {
            Some(pci) => {
                self.add(place.root(), Kind::Folder { shared: true });
                self.link(&below("/subsystem"), "../../../bus/pci");
                let id = format!("{vendor:04X}:{part:04X}");
                let uevent = format!("PCI_CLASS=20700\nPCI_ID={id}\nPCI_SUBSYS_ID={id}\nPCI_SLOT_NAME={pci}");
                self.fixed(&below("/uevent"), format!("DRIVER=doorbell\n{uevent}"));
            }
            None => {
                self.link(&below("/subsystem"), "../../../bus/platform");
                self.fixed(&below("/uevent"), "DRIVER=doorbell");
                self.fixed(&below("/modalias"), "platform:doorbell");
            }
        }
        let processors = Processors::near(place.own.numa_node);
        // The value -1 means that the device is equally near to all NUMA nodes.
        let node = place.own.numa_node.map_or_else(|| "-1".to_owned(), |node| node.to_string());
        self.fixed(&below("/numa_node"), node);
        self.fixed(&below("/local_cpus"), processors.mask());
        self.fixed(&below("/local_cpulist"), processors.list());
        for prefix in ["/", "/subsystem_"] {
            self.fixed(&below(&format!("{prefix}vendor")), format!("{vendor:#06x}"));
            self.fixed(&below(&format!("{prefix}device")), format!("{part:#06x}"));
        }
        self.fixed(&below("/class"), "0x020700"); // the PCI class of an InfiniBand controller
        let link = PciLink::of(place.own.rate);
        for prefix in ["/current", "/max"] {
            self.fixed(&below(&format!("{prefix}_link_speed")), link.speed());
            self.fixed(&below(&format!("{prefix}_link_width")), link.lanes.to_string());
        }
        self.fixed(&below("/revision"), "0x01");
    }

    fn device(&mut self, place: &Place<'_>) {
        let below = |name: &str| place.device(name);
        self.folder(&below(""));
        self.folder(&below("/ports"));
        self.link(&below("/device"), &format!("../../../{}", place.parent_name()));
        self.link(&below("/subsystem"), "../../../../../class/infiniband");
        self.fixed(&below("/uevent"), format!("NAME={}", place.name));
        self.fixed(&below("/node_type"), "1: CA");
        self.live(&below("/node_guid"), place, Live::Guid);
        self.live(&below("/sys_image_guid"), place, Live::Guid);
        self.fixed(&below("/node_desc"), "doorbell");
        self.fixed(&below("/fw_ver"), env!("CARGO_PKG_VERSION"));
        self.fixed(&below("/hca_type"), "doorbell");
        self.fixed(&below("/hw_rev"), format!("{:#x}", query::HARDWARE_VERSION));
        self.fixed(&below("/board_id"), "doorbell");
        // NVIDIA's drivers have these folders. UCX takes its traffic class from the file, if it has no other one.
        self.folder(&below("/tc"));
        self.folder(&below("/tc/1"));
        self.fixed(&below("/tc/1/traffic_class"), "Global tclass=0");
    }

    fn port(&mut self, place: &Place<'_>) {
        let below = |name: &str| place.device(&format!("/ports/1{name}"));
        for folder in ["", "/gids", "/gid_attrs", "/gid_attrs/types", "/gid_attrs/ndevs", "/pkeys", "/counters"] {
            self.folder(&below(folder));
        }
        self.folder(&below("/hw_counters"));
        self.live(&below("/state"), place, Live::State);
        self.live(&below("/phys_state"), place, Live::PhysicalState);
        self.fixed(&below("/rate"), place.own.rate.to_string());
        self.fixed(&below("/link_layer"), "Ethernet");
        self.fixed(&below("/lid"), "0x0");
        self.fixed(&below("/lid_mask_count"), "0");
        self.fixed(&below("/sm_lid"), "0x0");
        self.fixed(&below("/sm_sl"), "0");
        self.fixed(&below("/cap_mask"), format!("0x{:08x}", query::KERNEL_CAPABILITIES));
        self.live(&below("/gids/0"), place, Live::Gid);
        self.fixed(&below("/gid_attrs/types/0"), "RoCE v2");
        self.live(&below("/gid_attrs/ndevs/0"), place, Live::Netdev);
        self.fixed(&below("/pkeys/0"), format!("{:#06x}", query::DEFAULT_PKEY));
        for counter in &PORT_COUNTERS {
            self.live(&below(&format!("/counters/{}", counter.name)), place, Live::Port(counter));
        }
        for (index, name) in stats::names().enumerate() {
            self.live(&below(&format!("/hw_counters/{name}")), place, Live::Hardware(index));
        }
        // Time in milliseconds for which the kernel would return the same values again. The library always returns
        // current values.
        self.fixed(&below("/hw_counters/lifespan"), "0");
    }

    fn uverbs(&mut self, place: &Place<'_>) {
        let below = |name: &str| place.verbs(name);
        let (uverbs, minor) = (place.uverbs, place.minor());
        self.folder(&below(""));
        self.link(&below("/device"), &format!("../../../{}", place.parent_name()));
        self.link(&below("/subsystem"), "../../../../../class/infiniband_verbs");
        self.fixed(&below("/ibdev"), place.name.clone());
        self.fixed(&below("/abi_version"), DRIVER_ABI.to_string());
        self.fixed(&below("/dev"), format!("{UVERBS_MAJOR}:{minor}"));
        let uevent = format!("MAJOR={UVERBS_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/uverbs{uverbs}");
        self.fixed(&below("/uevent"), uevent);
    }
}

/// The content of a file. Writing the content allocates no memory.
pub(super) struct Text {
    bytes: [u8; MAX_VALUE_BYTES],
    length: usize,
}

impl Text {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// The most recently read address of each device: the two halves of its GID, and the XOR of these halves with
/// [`KNOWN`]. A reader verifies the halves with the third word instead of taking a lock. A lock could block forever:
/// the reader may be a signal handler that has interrupted a writing thread.
static LAST_GIDS: [[AtomicU64; 3]; MAX_DEVICES] = [const { [const { AtomicU64::new(0) }; 3] }; MAX_DEVICES];
const KNOWN: u64 = 0x646f_6f72_6265_6c6c;

/// Returns the address of a device. If the current address cannot be read without waiting, returns the last known
/// address.
fn address(number: usize) -> Option<IpAddr> {
    let last = LAST_GIDS.get(number)?;
    let Ok(address) = device::address(number) else {
        let [high, low, check] = [0, 1, 2].map(|at| last[at].load(Ordering::Relaxed));
        let is_whole = high ^ low ^ KNOWN == check && (high, low) != (0, 0);
        let gid = Ipv6Addr::from((u128::from(high) << 64) | u128::from(low));
        return is_whole.then(|| IpAddr::V6(gid).to_canonical());
    };
    let gid = address.map_or(0, |address| u128::from(gid(address)));
    let (high, low) = ((gid >> 64) as u64, gid as u64);
    for (word, value) in last.iter().zip([high, low, high ^ low ^ KNOWN]) {
        word.store(value, Ordering::Relaxed);
    }
    address
}

/// Returns the state of the port of a device. The port of a device that has failed is down. A device that is not open
/// has an active port, since it would be active after opening.
fn port_state(number: usize) -> PortState {
    let Some(was_down) = WERE_DOWN.get(number) else { return PortState::Active };
    let inside = Inside::try_new();
    let Some(Ok(device)) = inside.as_ref().map(|_| device::try_current(number)) else {
        return if was_down.load(Ordering::Relaxed) { PortState::Down } else { PortState::Active };
    };
    let state = device.map_or(PortState::Active, |device| device.provider.port_state().unwrap_or(PortState::Down));
    was_down.store(state == PortState::Down, Ordering::Relaxed);
    state
}

/// Whether the port of each device was down when its state was last read. Used while another thread opens a device.
static WERE_DOWN: [AtomicBool; MAX_DEVICES] = [const { AtomicBool::new(false) }; MAX_DEVICES];

fn gid(address: IpAddr) -> Ipv6Addr {
    // SAFETY: all bytes are a valid GID.
    Ipv6Addr::from(unsafe { ah::gid(address).raw })
}

/// Returns the current content of a file.
pub(super) fn text(content: &Content) -> Text {
    let mut text = Text { bytes: [0; MAX_VALUE_BYTES], length: 0 };
    let (own, live) = match content {
        Content::Fixed(fixed) => {
            let written = text.write_str(fixed);
            debug_assert!(written.is_ok(), "{TOO_LONG}");
            return text;
        }
        Content::Live(own, live) => (*own, live),
    };
    let written = match live {
        Live::Guid => {
            let guid = u64::from_be(device::guid(own));
            let word = |shift: u32| (guid >> shift) & 0xffff;
            writeln!(text, "{:04x}:{:04x}:{:04x}:{:04x}", word(48), word(32), word(16), word(0))
        }
        Live::Gid => {
            let [a, b, c, d, e, f, g, h] = address(own).map_or([0; 8], |address| gid(address).segments());
            writeln!(text, "{a:04x}:{b:04x}:{c:04x}:{d:04x}:{e:04x}:{f:04x}:{g:04x}:{h:04x}")
        }
        // As in the kernel, the file is empty while no network interface has the device's address.
        Live::Netdev => match address(own).and_then(query::interface) {
            Some((interface, _)) => writeln!(text, "{interface}"),
            None => Ok(()),
        },
        Live::State => {
            let (number, name) = query::logical_state(port_state(own));
            writeln!(text, "{number}: {name}")
        }
        Live::PhysicalState => {
            let (number, name) = query::physical_state(port_state(own));
            writeln!(text, "{number}: {name}")
        }
        Live::Port(counter) => {
            let counted = stats::total(own);
            let is_part = |name: &str| counter.sum_of.contains(&name);
            let parts = stats::names().zip(&counted).filter(|(name, _)| is_part(name));
            let sum = parts.fold(0_u64, |sum, (_, &value)| sum.wrapping_add(value));
            writeln!(text, "{}", sum / counter.divided_by)
        }
        Live::Hardware(index) => {
            writeln!(text, "{}", stats::total(own).get(*index).copied().unwrap_or_default())
        }
    };
    debug_assert!(written.is_ok(), "{TOO_LONG}");
    text
}

const TOO_LONG: &str = "the content of each file must fit in MAX_VALUE_BYTES";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn devices(variables: &[(&str, &str)]) -> Vec<SoftDevice> {
        let value =
            |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        SoftDevice::list_of(value).unwrap()
    }

    /// Returns the content of a file that never changes, or the target of a link.
    fn content<'a>(plan: &'a Plan, path: &str) -> &'a str {
        match &plan.find(path.as_bytes()).unwrap_or_else(|| panic!("{path}")).kind {
            Kind::File(Content::Fixed(text)) => text.trim_end(),
            Kind::Link(target) => str::from_utf8(target).unwrap().trim_end_matches('\0'),
            _ => panic!("{path} is no file with a fixed content"),
        }
    }

    #[test]
    fn numbers_of_nodes_differ_and_each_node_is_in_its_folder() {
        for plan in [plan(), &Plan::of(&SoftDevice::list(MAX_DEVICES).unwrap())] {
            let numbers: HashSet<u64> = plan.nodes.iter().map(Node::inode).collect();
            assert_eq!(numbers.len(), plan.nodes.len());
            let folders = plan.nodes.iter().filter(|node| node.is_folder());
            let within: usize = folders.map(|folder| plan.within(folder).count()).sum();
            assert_eq!(within + plan.roots.len(), plan.nodes.len());
        }
        let port = plan().find(b"/sys/devices/platform/doorbell.0/infiniband/doorbell0/ports").unwrap();
        assert_eq!(plan().within(port).map(Node::name).collect::<Vec<_>>(), [b"1"]);
    }

    #[test]
    fn each_device_has_its_place_and_its_options() {
        let plan = Plan::of(&devices(&[
            ("DOORBELL_DEVICES", "3"),
            ("DOORBELL_DEVICE1", "numa=9,pci=0000:41:00.0,speed=200"),
            ("DOORBELL_DEVICE2", "pci=41:00.1"),
        ]));
        let class = |name: &str| content(&plan, &format!("/sys/class/infiniband/{name}"));
        assert_eq!(class("doorbell0"), "../../devices/platform/doorbell.0/infiniband/doorbell0");
        assert_eq!(class("doorbell1"), "../../devices/pci0000:41/0000:41:00.0/infiniband/doorbell1");
        let second = "/sys/devices/pci0000:41/0000:41:00.0";
        let in_second = |below: &str| content(&plan, &format!("{second}{below}"));
        assert_eq!((in_second("/numa_node"), in_second("/subsystem")), ("9", "../../../bus/pci"));
        assert!(in_second("/uevent").ends_with("\nPCI_SLOT_NAME=0000:41:00.0"));
        assert_eq!((in_second("/class"), in_second("/infiniband/doorbell1/hw_rev")), ("0x020700", "0x1"));
        for prefix in ["/current", "/max"] {
            assert_eq!(in_second(&format!("{prefix}_link_speed")), "16.0 GT/s PCIe");
            assert_eq!(in_second(&format!("{prefix}_link_width")), "16");
        }
        assert_eq!(in_second("/infiniband/doorbell1/tc/1/traffic_class"), "Global tclass=0");
        assert_eq!(in_second("/infiniband/doorbell1/device"), "../../../0000:41:00.0");
        assert_eq!(in_second("/infiniband/doorbell1/ports/1/rate"), "200 Gb/sec (4X HDR)");
        let first = "/sys/devices/platform/doorbell.0";
        assert_eq!(content(&plan, &format!("{first}/numa_node")), "-1");
        assert_eq!(content(&plan, &format!("{first}/current_link_speed")), "8.0 GT/s PCIe");
        assert_eq!(content(&plan, &format!("{first}/infiniband/doorbell0/ports/1/rate")), "100 Gb/sec (4X EDR)");
        // Each device has a character device of its own, which names the device.
        let names: HashSet<CString> = (0..3).map(|number| plan.dev_name(number)).collect();
        assert_eq!(names.len(), 3);
        let third = plan.dev_name(2);
        let third = third.to_str().unwrap();
        let verbs = format!("/sys/devices/pci0000:41/0000:41:00.1/infiniband_verbs/{third}");
        assert_eq!(content(&plan, &format!("{verbs}/ibdev")), "doorbell2");
        assert!(plan.find(format!("/dev/infiniband/{third}").as_bytes()).is_some());
        // Both functions are on one bus, whose folder also shows the devices of the machine.
        let bus = plan.find(b"/sys/devices/pci0000:41").unwrap();
        assert!(bus.is_shared());
        let on_bus: Vec<_> = plan.within(bus).map(Node::name).collect();
        assert_eq!(on_bus, [b"0000:41:00.0", b"0000:41:00.1"]);
        for (path, is_above) in
            [("/sys/devices", true), ("/sys/devices/pci0000:41", false), ("/sys/devices/pci", false)]
        {
            assert_eq!(plan.is_above_roots(path.as_bytes()), is_above, "{path}");
        }
    }
}
