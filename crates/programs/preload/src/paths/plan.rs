//! The plan: a table of every served path and its node.
//!
//! Names and formats of values follow the kernel's documentation (Documentation/ABI/stable/sysfs-class-infiniband) for
//! a RoCE port. The parent of the device is a platform device, since the device is no PCI device.

use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_verbs::PortState;
use doorbell_verbs::raw::Provider;

use super::sys;
use crate::objects::{ah, device, query};
use crate::process::fork::Inside;
use crate::process::static_value::StaticValue;
use crate::process::wait::Uncancelled;
use crate::process::{config, stats};

/// The served folders. The plan contains all entries below these folders, and no other path.
pub(super) const ROOTS: [&[u8]; 4] = [CLASS, CLASS_VERBS, DEVICES, PARENT];

const CLASS: &[u8] = b"/sys/class/infiniband";
const CLASS_VERBS: &[u8] = b"/sys/class/infiniband_verbs";
const DEVICES: &[u8] = b"/dev/infiniband";
const PARENT: &[u8] = b"/sys/devices/platform/doorbell.0";

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
    Live(Live),
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
    /// A counter of the device, with its index.
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
    /// Name of the character device.
    pub(super) dev_name: CString,
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
        let number = (0..MAX_UVERBS).find(|number| !is_taken(*number)).unwrap_or_default();
        let mut plan = Builder(Vec::new());
        plan.classes(number);
        plan.parent();
        plan.device();
        plan.port();
        plan.uverbs(number);
        let mut nodes = plan.0;
        nodes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        Self { nodes, dev_name: CString::new(format!("uverbs{number}")).unwrap_or_default(), made }
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

    fn live(&mut self, path: &str, live: Live) {
        self.add(path, Kind::File(Content::Live(live)));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.add(path, Kind::Link(format!("{target}\0").into_bytes()));
    }

    fn classes(&mut self, number: u32) {
        for class in [CLASS, CLASS_VERBS, DEVICES] {
            self.add(class, Kind::Folder { shared: true });
        }
        self.link("/sys/class/infiniband/doorbell0", "../../devices/platform/doorbell.0/infiniband/doorbell0");
        self.fixed("/sys/class/infiniband_verbs/abi_version", VERBS_ABI.to_string());
        self.link(
            &format!("/sys/class/infiniband_verbs/uverbs{number}"),
            &format!("../../devices/platform/doorbell.0/infiniband_verbs/uverbs{number}"),
        );
        let minor = UVERBS_FIRST_MINOR + number;
        self.add(format!("/dev/infiniband/uverbs{number}"), Kind::Character { major: UVERBS_MAJOR, minor });
        self.add("/dev/infiniband/rdma_cm", Kind::Character { major: MISC_MAJOR, minor: RDMA_CM_MINOR });
    }

    /// Adds the platform device, which replaces the PCI device of an adapter.
    fn parent(&mut self) {
        let below = |name: &str| format!("/sys/devices/platform/doorbell.0{name}");
        let processors = Processors::of_machine();
        for folder in ["", "/infiniband", "/infiniband_verbs"] {
            self.folder(&below(folder));
        }
        self.link(&below("/subsystem"), "../../../bus/platform");
        self.fixed(&below("/uevent"), "DRIVER=doorbell");
        self.fixed(&below("/modalias"), "platform:doorbell");
        // The value -1 means that the device is equally near to all NUMA nodes.
        self.fixed(&below("/numa_node"), "-1");
        self.fixed(&below("/local_cpus"), processors.mask());
        self.fixed(&below("/local_cpulist"), processors.list());
        // Vendor and device numbers of PCI have 16 bits. If the environment names an invalid vendor, opening the device
        // reports the error.
        let (vendor, part) = config::vendor().unwrap_or_default();
        for prefix in ["/", "/subsystem_"] {
            self.fixed(&below(&format!("{prefix}vendor")), format!("{:#06x}", vendor & 0xffff));
            self.fixed(&below(&format!("{prefix}device")), format!("{:#06x}", part & 0xffff));
        }
        self.fixed(&below("/class"), "0x020700"); // the PCI class of an InfiniBand controller
        self.fixed(&below("/revision"), "0x01");
    }

    fn device(&mut self) {
        let below = |name: &str| format!("/sys/devices/platform/doorbell.0/infiniband/doorbell0{name}");
        self.folder(&below(""));
        self.folder(&below("/ports"));
        self.link(&below("/device"), "../../../doorbell.0");
        self.link(&below("/subsystem"), "../../../../../class/infiniband");
        self.fixed(&below("/uevent"), "NAME=doorbell0");
        self.fixed(&below("/node_type"), "1: CA");
        self.live(&below("/node_guid"), Live::Guid);
        self.live(&below("/sys_image_guid"), Live::Guid);
        self.fixed(&below("/node_desc"), "doorbell");
        self.fixed(&below("/fw_ver"), env!("CARGO_PKG_VERSION"));
        self.fixed(&below("/hca_type"), "doorbell");
        self.fixed(&below("/hw_rev"), "0x1");
        self.fixed(&below("/board_id"), "doorbell");
    }

    fn port(&mut self) {
        let below = |name: &str| format!("/sys/devices/platform/doorbell.0/infiniband/doorbell0/ports/1{name}");
        for folder in ["", "/gids", "/gid_attrs", "/gid_attrs/types", "/gid_attrs/ndevs", "/pkeys", "/counters"] {
            self.folder(&below(folder));
        }
        self.folder(&below("/hw_counters"));
        self.live(&below("/state"), Live::State);
        self.live(&below("/phys_state"), Live::PhysicalState);
        self.fixed(&below("/rate"), query::RATE);
        self.fixed(&below("/link_layer"), "Ethernet");
        self.fixed(&below("/lid"), "0x0");
        self.fixed(&below("/lid_mask_count"), "0");
        self.fixed(&below("/sm_lid"), "0x0");
        self.fixed(&below("/sm_sl"), "0");
        self.fixed(&below("/cap_mask"), format!("0x{:08x}", query::KERNEL_CAPABILITIES));
        self.live(&below("/gids/0"), Live::Gid);
        self.fixed(&below("/gid_attrs/types/0"), "RoCE v2");
        self.live(&below("/gid_attrs/ndevs/0"), Live::Netdev);
        self.fixed(&below("/pkeys/0"), format!("{:#06x}", query::DEFAULT_PKEY));
        for counter in &PORT_COUNTERS {
            self.live(&below(&format!("/counters/{}", counter.name)), Live::Port(counter));
        }
        for (place, name) in stats::names().enumerate() {
            self.live(&below(&format!("/hw_counters/{name}")), Live::Hardware(place));
        }
        // Time in milliseconds for which the kernel would return the same values again. The library always returns
        // current values.
        self.fixed(&below("/hw_counters/lifespan"), "0");
    }

    fn uverbs(&mut self, number: u32) {
        let below = |name: &str| format!("/sys/devices/platform/doorbell.0/infiniband_verbs/uverbs{number}{name}");
        let minor = UVERBS_FIRST_MINOR + number;
        self.folder(&below(""));
        self.link(&below("/device"), "../../../doorbell.0");
        self.link(&below("/subsystem"), "../../../../../class/infiniband_verbs");
        self.fixed(&below("/ibdev"), device::NAME.to_string_lossy());
        self.fixed(&below("/abi_version"), DRIVER_ABI.to_string());
        self.fixed(&below("/dev"), format!("{UVERBS_MAJOR}:{minor}"));
        let uevent = format!("MAJOR={UVERBS_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/uverbs{number}");
        self.fixed(&below("/uevent"), uevent);
    }
}

/// List of the machine's processors. The device is equally near to all of them.
struct Processors(String);

impl Processors {
    /// Reads the kernel's list of processors, such as `0-3,8`.
    fn of_machine() -> Self {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let list = list.trim();
        Self(if list.is_empty() { "0".to_owned() } else { list.to_owned() })
    }

    fn list(&self) -> &str {
        &self.0
    }

    /// Returns the processors as a mask in words of 32 bits. The highest word comes first, and commas separate the
    /// words.
    fn mask(&self) -> String {
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
/// ([`MAX_VALUE_BYTES`]).
const MAX_PROCESSORS: usize = 1024;

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

/// The most recently read address: the two halves of its GID, and the XOR of these halves with [`KNOWN`]. A reader
/// verifies the halves with the third word instead of taking a lock. A lock could block forever: the reader may be a
/// signal handler that has interrupted a writing thread.
static LAST_GID: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
const KNOWN: u64 = 0x646f_6f72_6265_6c6c;

/// Returns the address of the device. If the current address cannot be read without waiting, returns the last known
/// address.
fn address() -> Option<IpAddr> {
    let Ok(address) = device::address() else {
        let [high, low, check] = [0, 1, 2].map(|at| LAST_GID[at].load(Ordering::Relaxed));
        let is_whole = high ^ low ^ KNOWN == check && (high, low) != (0, 0);
        let gid = Ipv6Addr::from((u128::from(high) << 64) | u128::from(low));
        return is_whole.then(|| IpAddr::V6(gid).to_canonical());
    };
    let gid = address.map_or(0, |address| u128::from(gid(address)));
    let (high, low) = ((gid >> 64) as u64, gid as u64);
    for (word, value) in LAST_GID.iter().zip([high, low, high ^ low ^ KNOWN]) {
        word.store(value, Ordering::Relaxed);
    }
    address
}

/// Returns the state of the port. The port of a device that has failed is down. A device that is not open has an active
/// port, since it would be active after opening.
fn port_state() -> PortState {
    let inside = Inside::try_new();
    let Some(Ok(device)) = inside.as_ref().map(|_| device::try_current()) else {
        return if WAS_DOWN.load(Ordering::Relaxed) { PortState::Down } else { PortState::Active };
    };
    let state = device.map_or(PortState::Active, |device| device.provider.port_state().unwrap_or(PortState::Down));
    WAS_DOWN.store(state == PortState::Down, Ordering::Relaxed);
    state
}

/// Whether the port was down when its state was last read. Used while another thread opens the device.
static WAS_DOWN: AtomicBool = AtomicBool::new(false);

fn gid(address: IpAddr) -> Ipv6Addr {
    // SAFETY: all bytes are a valid GID.
    Ipv6Addr::from(unsafe { ah::gid(address).raw })
}

/// Returns the current content of a file.
pub(super) fn text(content: &Content) -> Text {
    let mut text = Text { bytes: [0; MAX_VALUE_BYTES], length: 0 };
    let written = match content {
        Content::Fixed(fixed) => text.write_str(fixed),
        Content::Live(Live::Guid) => {
            let guid = u64::from_be(device::guid());
            let word = |shift: u32| (guid >> shift) & 0xffff;
            writeln!(text, "{:04x}:{:04x}:{:04x}:{:04x}", word(48), word(32), word(16), word(0))
        }
        Content::Live(Live::Gid) => {
            let [a, b, c, d, e, f, g, h] = address().map_or([0; 8], |address| gid(address).segments());
            writeln!(text, "{a:04x}:{b:04x}:{c:04x}:{d:04x}:{e:04x}:{f:04x}:{g:04x}:{h:04x}")
        }
        // As in the kernel, the file is empty while no network interface has the device's address.
        Content::Live(Live::Netdev) => match address().and_then(query::interface) {
            Some((interface, _)) => writeln!(text, "{interface}"),
            None => Ok(()),
        },
        Content::Live(Live::State) => {
            let (number, name) = query::logical_state(port_state());
            writeln!(text, "{number}: {name}")
        }
        Content::Live(Live::PhysicalState) => {
            let (number, name) = query::physical_state(port_state());
            writeln!(text, "{number}: {name}")
        }
        Content::Live(Live::Port(counter)) => {
            let counted = stats::total();
            let is_part = |name: &str| counter.sum_of.contains(&name);
            let parts = stats::names().zip(&counted).filter(|(name, _)| is_part(name));
            let sum = parts.fold(0_u64, |sum, (_, &value)| sum.wrapping_add(value));
            writeln!(text, "{}", sum / counter.divided_by)
        }
        Content::Live(Live::Hardware(place)) => {
            writeln!(text, "{}", stats::total().get(*place).copied().unwrap_or_default())
        }
    };
    debug_assert!(written.is_ok(), "the content of each file must fit in MAX_VALUE_BYTES");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_of_nodes_differ_and_each_node_is_in_its_folder() {
        let plan = plan();
        let numbers: HashSet<u64> = plan.nodes.iter().map(Node::inode).collect();
        assert_eq!(numbers.len(), plan.nodes.len());
        let folders = plan.nodes.iter().filter(|node| node.is_folder());
        let within: usize = folders.map(|folder| plan.within(folder).count()).sum();
        let roots = ROOTS.len();
        assert_eq!(within + roots, plan.nodes.len());
        let port = plan.find(b"/sys/devices/platform/doorbell.0/infiniband/doorbell0/ports").unwrap();
        assert_eq!(plan.within(port).map(Node::name).collect::<Vec<_>>(), [b"1"]);
    }
}
