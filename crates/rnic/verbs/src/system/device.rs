//! The machine's devices with their ports and GIDs, and the choice of a device, port and GID to use.

use std::ffi::{CStr, c_int};
use std::io;
use std::net::Ipv6Addr;
use std::ptr::NonNull;

use doorbell_ibverbs_sys::*;
use doorbell_verbs_core::Limits;
use doorbell_wire::PathMtu;

use super::library::Library;
use super::{SystemError, SystemOptions};

/// Maximum number of entries read from a GID table. RNICs have up to some hundreds.
const MAX_GIDS: usize = 1024;

/// A device of the machine, as libibverbs reports it.
#[derive(Clone, Debug)]
pub struct SystemDevice {
    /// Name of the device.
    pub name: String,
    /// Version of the firmware; empty if the device has no firmware.
    pub firmware: String,
    /// Maximum number and size of the device's objects.
    pub limits: Limits,
    /// Whether the device supports atomics.
    pub atomics: bool,
    /// Ports of the device, numbered from 1.
    pub ports: Vec<SystemPort>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct SystemPort {
    /// Number of the port.
    pub number: u8,
    /// State of the port as a word; a usable port is `active`.
    pub state: &'static str,
    /// Link layer of the port: `Ethernet` for RoCE.
    pub link_layer: &'static str,
    /// Largest path MTU of the port.
    pub active_mtu: PathMtu,
    /// GIDs of the port.
    pub gids: Vec<Gid>,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Index of the GID in the table.
    pub index: u32,
    /// The GID; an IP address for RoCE v2.
    pub gid: Ipv6Addr,
    /// Protocol of the GID: `RoCE v2`, `RoCE v1` or `InfiniBand`.
    pub kind: &'static str,
}

/// Kind of the GIDs of RoCE v2.
pub(super) const ROCE_V2: &str = "RoCE v2";

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.index, self.gid, self.kind)
    }
}

impl SystemPort {
    /// Returns the GID to use if no index is requested: a GID of RoCE v2. IPv4 precedes IPv6, and link-local addresses
    /// come last.
    pub fn default_gid(&self) -> Option<Gid> {
        let v2 = self.gids.iter().filter(|gid| gid.kind == ROCE_V2);
        v2.min_by_key(|gid| (gid.gid.to_ipv4_mapped().is_none(), gid.gid.is_unicast_link_local(), gid.index)).copied()
    }

    fn is_usable(&self) -> bool {
        self.state == ACTIVE && self.link_layer == ETHERNET && self.default_gid().is_some()
    }
}

const ACTIVE: &str = "active";
const ETHERNET: &str = "Ethernet";

impl SystemDevice {
    /// Returns the first usable port: the port is active Ethernet and has a RoCE v2 GID.
    pub fn usable_port(&self) -> Option<&SystemPort> {
        self.ports.iter().find(|port| port.is_usable())
    }
}

/// An open device.
pub(super) struct Handle {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ibv_context>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a device.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the device is open, and every object created from the device keeps this handle alive.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

/// Calls `each` with one device after the other, until `each` returns a value.
fn devices<T>(
    library: &'static Library,
    mut each: impl FnMut(String, *mut ibv_device) -> Option<T>,
) -> Result<Option<T>, SystemError> {
    let mut count: c_int = 0;
    // SAFETY: `count` has room for the number of devices.
    let list = unsafe { (library.get_device_list)(&mut count) };
    if list.is_null() {
        return Err(SystemError::NoList(io::Error::last_os_error()));
    }
    let mut found = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, each a device with a terminated name.
        let (name, device) = unsafe {
            let device = *list.add(index);
            let name = CStr::from_ptr((library.get_device_name)(device)).to_string_lossy().into_owned();
            (name, device)
        };
        found = each(name, device);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: `list` was returned above. Freeing the list does not close the devices that were opened.
    unsafe { (library.free_device_list)(list) };
    Ok(found)
}

fn open(library: &'static Library, name: &str, device: *mut ibv_device) -> Result<Handle, SystemError> {
    // SAFETY: `device` belongs to a list that has not been freed.
    let context = unsafe { (library.open_device)(device) };
    let context = NonNull::new(context)
        .ok_or_else(|| SystemError::DoesNotOpen { name: name.to_owned(), error: io::Error::last_os_error() })?;
    Ok(Handle { library, context })
}

fn describe(name: String, handle: &Handle) -> Result<SystemDevice, SystemError> {
    let (library, context) = (handle.library, handle.context.as_ptr());
    let mut device = ibv_device_attr::default();
    // SAFETY: the device is open, and `device` has room for its attributes.
    let result = unsafe { (library.query_device)(context, &mut device) };
    SystemError::check("querying the device", result)?;
    // SAFETY: libibverbs ends the firmware version with a zero byte.
    let firmware = unsafe { CStr::from_ptr(device.fw_ver.as_ptr()) }.to_string_lossy().into_owned();
    let number = |value: c_int| usize::try_from(value).unwrap_or(0);
    let mut gids = vec![ibv_gid_entry::default(); MAX_GIDS];
    // SAFETY: the buffer has room for `MAX_GIDS` entries of the given size.
    let known =
        unsafe { (library.query_gid_table)(context, gids.as_mut_ptr(), MAX_GIDS, 0, size_of::<ibv_gid_entry>()) };
    let known = usize::try_from(known).map_err(|_| {
        let error = io::Error::from_raw_os_error(i32::try_from(-known).unwrap_or(0));
        SystemError::refused("reading the GID table", error)
    })?;
    gids.truncate(known);
    let mut ports = Vec::new();
    for number in 1..=device.phys_port_cnt {
        let mut port = ibv_port_attr::default();
        // SAFETY: as above.
        let result = unsafe { (library.query_port)(context, number, &mut port) };
        SystemError::check("querying the port", result)?;
        let own = gids.iter().filter(|entry| entry.port_num == u32::from(number));
        ports.push(SystemPort {
            number,
            state: state_name(port.state),
            link_layer: link_layer_name(port.link_layer),
            active_mtu: mtu(port.active_mtu),
            gids: own.map(gid).collect(),
        });
    }
    Ok(SystemDevice {
        name,
        firmware,
        limits: Limits {
            max_qps: number(device.max_qp),
            max_queue_depth: number(device.max_qp_wr),
            max_sges: number(device.max_sge),
            max_inline: 0, // determined once the device is open
            max_cqs: number(device.max_cq),
            max_cq_depth: number(device.max_cqe),
            max_srqs: number(device.max_srq),
            max_rd_atomic: number(device.max_qp_rd_atom).min(number(device.max_qp_init_rd_atom)),
            max_regions: number(device.max_mr),
            max_region_bytes: device.max_mr_size,
            max_windows: number(device.max_mw),
            max_groups: number(device.max_mcast_grp),
        },
        atomics: device.atomic_cap != IBV_ATOMIC_NONE,
        ports,
    })
}

fn gid(entry: &ibv_gid_entry) -> Gid {
    let kind = match entry.gid_type {
        IBV_GID_TYPE_ROCE_V2 => ROCE_V2,
        IBV_GID_TYPE_ROCE_V1 => "RoCE v1",
        _ => "InfiniBand",
    };
    // SAFETY: the union is plain data, so all bytes of `raw` are initialized.
    let raw = unsafe { entry.gid.raw };
    Gid { index: entry.gid_index, gid: Ipv6Addr::from(raw), kind }
}

fn state_name(state: ibv_port_state) -> &'static str {
    match state {
        IBV_PORT_DOWN => "down",
        IBV_PORT_INIT => "initialising",
        IBV_PORT_ARMED => "armed",
        IBV_PORT_ACTIVE => ACTIVE,
        IBV_PORT_ACTIVE_DEFER => "active, deferred",
        _ => "in an unknown state",
    }
}

fn link_layer_name(link_layer: u8) -> &'static str {
    match u32::from(link_layer) {
        IBV_LINK_LAYER_ETHERNET => ETHERNET,
        IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
        _ => "of an unknown kind",
    }
}

pub(super) fn mtu(mtu: ibv_mtu) -> PathMtu {
    match mtu {
        IBV_MTU_256 => PathMtu::Mtu256,
        IBV_MTU_512 => PathMtu::Mtu512,
        IBV_MTU_1024 => PathMtu::Mtu1024,
        IBV_MTU_2048 => PathMtu::Mtu2048,
        _ => PathMtu::Mtu4096,
    }
}

/// Returns all devices that libibverbs can open, each with its ports and GIDs.
pub(super) fn list(library: &'static Library) -> Result<Vec<SystemDevice>, SystemError> {
    let (mut all, mut failed) = (Vec::new(), None);
    devices(library, |name, device| {
        match open(library, &name, device).and_then(|handle| describe(name, &handle)) {
            Ok(device) => all.push(device),
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
        None::<()> // continue with the next device
    })?;
    match failed {
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(all),
    }
}

/// The device, port and GID that `choose` has selected.
pub(super) struct Chosen {
    pub(super) handle: Handle,
    pub(super) device: SystemDevice,
    pub(super) port: SystemPort,
    pub(super) gid: Gid,
}

/// Opens the requested device. If `options` name no device, opens the first device with a usable port.
pub(super) fn choose(library: &'static Library, options: &SystemOptions) -> Result<Chosen, SystemError> {
    let mut known = Vec::new();
    let mut reason = None;
    let chosen = devices(library, |name, device| {
        known.push(name.clone());
        if options.device.as_ref().is_some_and(|wanted| *wanted != name) {
            return None;
        }
        let opened = open(library, &name, device)
            .and_then(|handle| describe(name, &handle).map(|device| (handle, device)))
            .and_then(|(handle, device)| use_port(handle, device, options));
        opened.map_err(|why| reason.get_or_insert(why).to_string()).ok()
    })?;
    if let Some(chosen) = chosen {
        return Ok(chosen);
    }
    Err(match (reason, &options.device) {
        (Some(reason), _) => reason,
        (None, _) if known.is_empty() => SystemError::NoDevices,
        (None, name) => SystemError::NoSuchDevice { name: name.clone().unwrap_or_default(), known: known.join(", ") },
    })
}

fn use_port(handle: Handle, device: SystemDevice, options: &SystemOptions) -> Result<Chosen, SystemError> {
    let name = || device.name.clone();
    let ports = u8::try_from(device.ports.len()).unwrap_or(u8::MAX);
    let port = match options.port {
        None => device.usable_port().or(device.ports.first()),
        Some(number) => device.ports.iter().find(|port| port.number == number),
    };
    let port =
        port.ok_or_else(|| SystemError::NoSuchPort { name: name(), port: options.port.unwrap_or(1), ports })?.clone();
    let number = port.number;
    if port.link_layer != ETHERNET {
        return Err(SystemError::NotEthernet { name: name(), port: number, link_layer: port.link_layer });
    }
    if port.state != ACTIVE {
        return Err(SystemError::Down { name: name(), port: number, state: port.state });
    }
    let gid = choose_gid(&device.name, &port, options.gid_index)?;
    Ok(Chosen { handle, device, port, gid })
}

/// Returns the GID with the requested index; the default GID if `index` is `None`.
fn choose_gid(device: &str, port: &SystemPort, index: Option<u32>) -> Result<Gid, SystemError> {
    let (gid, wanted) = match index {
        None => (port.default_gid(), "GID for RoCE v2".to_owned()),
        Some(index) => (
            port.gids.iter().find(|gid| gid.index == index && gid.kind == ROCE_V2).copied(),
            format!("GID {index} for RoCE v2"),
        ),
    };
    gid.ok_or_else(|| SystemError::NoGid {
        name: device.to_owned(),
        port: port.number,
        wanted,
        gids: if port.gids.is_empty() {
            "none: give its network interface an address".to_owned()
        } else {
            port.gids.iter().map(Gid::to_string).collect::<Vec<_>>().join(", ")
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(gids: &[(&str, &'static str)]) -> SystemPort {
        let gid =
            |(index, &(gid, kind)): (usize, &(&str, _))| Gid { index: index as u32, gid: gid.parse().unwrap(), kind };
        SystemPort {
            number: 1,
            state: ACTIVE,
            link_layer: ETHERNET,
            active_mtu: PathMtu::Mtu1024,
            gids: gids.iter().enumerate().map(gid).collect(),
        }
    }

    #[test]
    fn ipv4_comes_before_ipv6_and_link_local_last() {
        let mut gids = vec![("fe80::1", "RoCE v1"), ("fe80::1", ROCE_V2)];
        let chosen = |gids: &[_]| choose_gid("mlx5_0", &port(gids), None).unwrap().index;
        assert_eq!(chosen(&gids), 1);
        gids.push(("2001:db8::1", ROCE_V2));
        assert_eq!(chosen(&gids), 2);
        gids.extend([("::ffff:192.0.2.1", "RoCE v1"), ("::ffff:192.0.2.1", ROCE_V2)]);
        assert_eq!(chosen(&gids), 4);
        assert_eq!(choose_gid("mlx5_0", &port(&gids), Some(1)).unwrap().index, 1);
    }

    #[test]
    fn an_error_lists_existing_gids_when_none_fits() {
        let said = |gids: &[_], index| choose_gid("mlx5_0", &port(gids), index).unwrap_err().to_string();
        let none =
            "port 1 of the device mlx5_0 has no GID for RoCE v2; it has: none: give its network interface an address";
        assert_eq!(said(&[], None), none);
        let of_v1 = [("fe80::1", "RoCE v1")];
        assert_eq!(
            said(&of_v1, None),
            "port 1 of the device mlx5_0 has no GID for RoCE v2; it has: 0 fe80::1 (RoCE v1)"
        );
        for index in [0, 3] {
            assert_eq!(
                said(&of_v1, Some(index)),
                format!("port 1 of the device mlx5_0 has no GID {index} for RoCE v2; it has: 0 fe80::1 (RoCE v1)")
            );
        }
    }
}
