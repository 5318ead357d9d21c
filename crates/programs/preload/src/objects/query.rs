//! Queries of the attributes of the device and its port.

use std::ffi::{CString, c_int, c_uint};
use std::mem::offset_of;
use std::net::IpAddr;
use std::ptr;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::{DeviceAttributes, Provider};
use doorbell_verbs::{MAX_MESSAGE_BYTES, PortState};

use crate::objects::answer::{Answer, Refused, number, status};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::{device, dm};

/// The only port of the device.
pub(crate) const PORT: u8 = 1;

const CAPABILITIES: u32 = c::IBV_PORT_IP_BASED_GIDS;

/// Capabilities that the kernel's files show. They lack the flag for GIDs made of IP addresses.
pub(crate) const KERNEL_CAPABILITIES: u32 = CAPABILITIES & !c::IBV_PORT_IP_BASED_GIDS;

/// The only partition key. It is the default key with full membership (IBTA Vol 1, 10.9.2).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// Version of the device, which the file `hw_rev` shows too.
pub(crate) const HARDWARE_VERSION: u32 = 1;

/// Number of the GID type RoCE v2 in `ibv_query_gid_type`. The GID table uses another number for this type.
const SYSFS_ROCE_V2: c_uint = 1;

pub(crate) fn expect_port(port: u32) -> Answer<()> {
    if port == u32::from(PORT) {
        return Ok(());
    }
    Err(Refused::invalid(format!("port {port} does not exist: must be {PORT}")))
}

pub(crate) fn expect_gid_index(index: u32) -> Answer<()> {
    if index == 0 {
        return Ok(());
    }
    Err(Refused::invalid(format!("GID index {index} does not exist: must be 0")))
}

fn count(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn device_attributes(context: &Context) -> c::ibv_device_attr {
    let own = &context.device.attributes;
    let limits = &own.limits;
    // The link joins only IPv4 multicast groups.
    let groups = if own.address.is_ipv4() { limits.max_groups } else { 0 };
    let version = CString::new(env!("CARGO_PKG_VERSION")).unwrap_or_default();
    let guid = device::guid(context.device.number);
    let mut attributes = c::ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.max_region_bytes,
        page_size_cap: !0xfff,
        vendor_id: context.device.vendor.0,
        vendor_part_id: context.device.vendor.1,
        hw_ver: HARDWARE_VERSION,
        max_qp: count(limits.max_qps),
        max_qp_wr: count(limits.max_queue_depth),
        device_cap_flags: c::IBV_DEVICE_RC_RNR_NAK_GEN
            | c::IBV_DEVICE_SYS_IMAGE_GUID
            | c::IBV_DEVICE_CURR_QP_STATE_MOD
            | c::IBV_DEVICE_MEM_WINDOW
            | c::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: count(limits.max_sges),
        max_sge_rd: count(limits.max_sges),
        max_cq: count(limits.max_cqs),
        max_cqe: count(limits.max_cq_depth),
        max_mr: count(limits.max_regions),
        max_mw: count(limits.max_windows),
        max_pd: count(limits.max_qps),
        max_qp_rd_atom: count(limits.max_rd_atomic),
        max_res_rd_atom: count(limits.max_rd_atomic * limits.max_qps),
        max_qp_init_rd_atom: count(limits.max_rd_atomic),
        // Real adapters report this value, and programs such as UCX look for exactly this value. The software RNIC
        // offers more: it executes the atomics of peers by atomic instructions of the processor, so they are also
        // atomic with respect to the program's own code.
        atomic_cap: c::IBV_ATOMIC_HCA,
        max_ah: count(limits.max_qps),
        max_srq: count(limits.max_srqs),
        max_srq_wr: count(limits.max_queue_depth),
        max_srq_sge: count(limits.max_sges),
        max_pkeys: 1,
        max_mcast_grp: count(groups),
        max_mcast_qp_attach: count(limits.max_qps),
        max_total_mcast_qp_attach: count(groups.saturating_mul(limits.max_qps)),
        phys_port_cnt: PORT,
        ..c::ibv_device_attr::default()
    };
    device::fill(&mut attributes.fw_ver, &version);
    attributes
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut c::ibv_context, attributes: *mut c::ibv_device_attr) -> c_int {
    status("ibv_query_device", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        context.device.port_state()?;
        // SAFETY: the caller provides memory for the attributes.
        unsafe { attributes.write(device_attributes(context)) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut c::ibv_context,
    input: *const c::ibv_query_device_ex_input,
    attributes: *mut c::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status("ibv_query_device_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (context, input) = unsafe { (Context::of(context)?, input.as_ref()) };
        if input.is_some_and(|input| input.comp_mask != 0) {
            return Err(Refused::invalid("the input's comp_mask must be 0"));
        }
        context.device.port_state()?;
        let orig_attr = device_attributes(context);
        let own = c::ibv_device_attr_ex {
            device_cap_flags_ex: orig_attr.device_cap_flags.into(),
            orig_attr,
            hca_core_clock: 1_000_000, // in kHz, since the clock counts nanoseconds
            completion_timestamp_mask: u64::MAX,
            odp_caps: odp_capabilities(&context.device.attributes),
            max_dm_size: dm::MAX_BYTES as u64,
            phys_port_cnt_ex: PORT.into(),
            ..c::ibv_device_attr_ex::default()
        };
        // SAFETY: the caller's structure has `size` bytes.
        unsafe { copy_grown(&own, attributes, size) };
        Ok(())
    })
}

/// Returns the operations that memory with on-demand paging supports. The RNIC supports all operations.
fn odp_capabilities(own: &DeviceAttributes) -> c::ibv_odp_caps {
    if !own.on_demand {
        return c::ibv_odp_caps::default();
    }
    let datagrams = c::IBV_ODP_SUPPORT_SEND | c::IBV_ODP_SUPPORT_RECV | c::IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagrams | c::IBV_ODP_SUPPORT_WRITE;
    c::ibv_odp_caps {
        general_caps: (c::IBV_ODP_SUPPORT | c::IBV_ODP_SUPPORT_IMPLICIT).into(),
        per_transport_caps: c::ibv_odp_caps__bindgen_ty_1 {
            rc_odp_caps: unreliable | c::IBV_ODP_SUPPORT_READ | c::IBV_ODP_SUPPORT_ATOMIC,
            uc_odp_caps: unreliable,
            ud_odp_caps: datagrams,
        },
    }
}

/// Copies a structure that grows with each release of verbs. The caller's structure may be shorter or longer.
///
/// # Safety
///
/// `to` has room for `size` bytes. Zero is a valid value of fields that this release does not know.
unsafe fn copy_grown<T>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller guarantees the size of `to`. `known` exceeds neither size.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
    }
}

/// Physical state of a port, as `phys_state` shows it (IBTA Vol 1, 14.2.5.6, PortPhysicalState).
pub(crate) fn physical_state(state: PortState) -> (u8, &'static str) {
    match state {
        PortState::Active => (5, "LinkUp"),
        PortState::Down => (3, "Disabled"), // the kernel's value for an interface that is down
    }
}

/// Logical state of a port, as `state` shows it.
pub(crate) fn logical_state(state: PortState) -> (c::ibv_port_state, &'static str) {
    match state {
        PortState::Active => (c::IBV_PORT_ACTIVE, "ACTIVE"),
        PortState::Down => (c::IBV_PORT_DOWN, "DOWN"),
    }
}

/// Attributes of a port in the headers of newer releases of rdma-core. The last field replaces `active_speed`, whose 8
/// bits are too few for the speeds after NDR.
#[repr(C)]
struct PortAttributes {
    known: c::ibv_port_attr,
    active_speed_ex: u32,
}

fn port_attributes(device: &Device, state: PortState) -> PortAttributes {
    let known = c::ibv_port_attr {
        state: logical_state(state).0,
        max_mtu: c::IBV_MTU_4096,
        active_mtu: device.attributes.active_mtu.code().into(),
        gid_tbl_len: 1,
        port_cap_flags: CAPABILITIES,
        max_msg_sz: MAX_MESSAGE_BYTES as u32,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: device.rate.width_code,
        active_speed: device.rate.speed_code,
        phys_state: physical_state(state).0,
        link_layer: c::IBV_LINK_LAYER_ETHERNET as u8,
        ..c::ibv_port_attr::default()
    };
    PortAttributes { known, active_speed_ex: device.rate.speed_code.into() }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut c::ibv_context,
    port: u8,
    attributes: *mut c::ibv_port_attr,
    size: usize,
) -> c_int {
    status("ibv_query_port", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        expect_port(port.into())?;
        let own = port_attributes(&context.device, context.device.port_state()?);
        // SAFETY: the caller's structure has `size` bytes.
        unsafe { copy_grown(&own, attributes.cast(), size) };
        Ok(())
    })
}

/// Queries a port for old programs, whose structure ends before the field `port_cap_flags2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut c::ibv_context,
    port: u8,
    attributes: *mut c::ibv_port_attr,
) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments. The caller's structure has all
    // fields before `port_cap_flags2`.
    unsafe { query_port(context, port, attributes, offset_of!(c::ibv_port_attr, port_cap_flags2)) }
}

fn gid(context: &Context) -> c::ibv_gid {
    c::ibv_gid { raw: context.device.attributes.gid.octets() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut c::ibv_context,
    port: u8,
    index: c_int,
    place: *mut c::ibv_gid,
) -> c_int {
    number("ibv_query_gid", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        expect_port(port.into())?;
        expect_gid_index(index as u32)?;
        // SAFETY: the caller provides memory for a GID.
        unsafe { place.write(gid(context)) };
        Ok(0)
    })
}

/// Returns the name and the index of the device's network interface. Returns `None` if no interface has the address
/// now.
pub(crate) fn interface(address: IpAddr) -> Option<(String, u32)> {
    doorbell_fabric::udp::interface_index(address).ok()
}

/// Returns the only entry of the GID table.
fn gid_entry(context: &Context) -> c::ibv_gid_entry {
    c::ibv_gid_entry {
        gid: gid(context),
        gid_index: 0,
        port_num: PORT.into(),
        gid_type: c::IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: interface(context.device.attributes.address).map_or(0, |(_, index)| index),
    }
}

fn expect_entry(flags: u32, size: usize) -> Answer<()> {
    if flags != 0 {
        return Err(Refused::unsupported(format!("flags {flags:#x} of a GID query are unknown: must be 0")));
    }
    if size < size_of::<c::ibv_gid_entry>() {
        return Err(Refused::invalid(format!(
            "a GID table entry of {size} B is too short: must have at least {} B",
            size_of::<c::ibv_gid_entry>()
        )));
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut c::ibv_context,
    port: u32,
    index: u32,
    entry: *mut c::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status("ibv_query_gid_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        expect_entry(flags, size)?;
        expect_port(port)?;
        expect_gid_index(index)?;
        // SAFETY: the caller's entry has `size` bytes.
        unsafe { copy_grown(&gid_entry(context), entry, size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut c::ibv_context,
    entries: *mut c::ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let code = status("ibv_query_gid_table", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        expect_entry(flags, size)?;
        if room == 0 {
            return Err(Refused::invalid("room for 0 GID entries: must be at least 1"));
        }
        // SAFETY: the caller's array has room for at least one entry of `size` bytes.
        unsafe { copy_grown(&gid_entry(context), entries, size) };
        Ok(())
    });
    if code == 0 { 1 } else { -(code as isize) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut c::ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    number("ibv_query_gid_type", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { Context::of(context) }?;
        expect_port(port.into())?;
        expect_gid_index(index)?;
        // SAFETY: the caller provides memory for the type.
        unsafe { kind.write(SYSFS_ROCE_V2) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut c::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut c::__be16,
) -> c_int {
    number("ibv_query_pkey", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { Context::of(context) }?;
        expect_port(port.into())?;
        if index != 0 {
            return Err(Refused::invalid(format!("partition key index {index} does not exist: must be 0")));
        }
        // SAFETY: the caller provides memory for the key.
        unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut c::ibv_context, port: u8, pkey: c::__be16) -> c_int {
    number("ibv_get_pkey_index", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { Context::of(context) }?;
        expect_port(port.into())?;
        if pkey == DEFAULT_PKEY.to_be() {
            Ok(0)
        } else {
            Err(Refused::invalid(format!("partition key {:#x} does not exist: must be 0xffff", u16::from_be(pkey))))
        }
    })
}

pub(crate) unsafe extern "C" fn query_rt_values(context: *mut c::ibv_context, values: *mut c::ibv_values_ex) -> c_int {
    status("ibv_query_rt_values_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (context, values) = unsafe { (Context::of(context)?, values.as_mut()) };
        let values = values.ok_or_else(|| Refused::invalid("the pointer to the values is null"))?;
        context.device.expect_own()?;
        values.comp_mask &= c::IBV_VALUES_MASK_RAW_CLOCK;
        if values.comp_mask != 0 {
            // The fields are called seconds and nanoseconds. But as in other providers, they contain ticks of the
            // device's clock.
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = context.device.provider.now_ns() as libc::c_long;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::context::{ibv_close_device, ibv_open_device};

    /// Calls `query` for a structure of `size` bytes, and returns the structure.
    fn filled(size: usize, query: &dyn Fn(*mut u8, usize)) -> Vec<u8> {
        const OTHER: u8 = 0xa5;
        // Words, so that the memory has the alignment of the structure.
        let mut memory = vec![u64::from_ne_bytes([OTHER; 8]); 128];
        query(memory.as_mut_ptr().cast(), size);
        let mut bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(bytes.split_off(size).iter().all(|&byte| byte == OTHER), "bytes beyond {size} were written");
        bytes
    }

    #[test]
    fn structures_of_older_and_newer_headers_are_filled_to_their_end() {
        // SAFETY: the context exists until the end of the test, and each structure has `size` bytes.
        unsafe {
            let context = ibv_open_device(device::listed(0).unwrap());
            let of_device = |to: *mut u8, size| assert_eq!(query_device_ex(context, ptr::null(), to.cast(), size), 0);
            let of_port = |to: *mut u8, size| assert_eq!(query_port(context, 1, to.cast(), size), 0);
            let dm_size = (dm::MAX_BYTES as u64).to_ne_bytes().to_vec();
            for (known, field, value, query) in [
                (
                    size_of::<c::ibv_device_attr_ex>(),
                    offset_of!(c::ibv_device_attr_ex, max_dm_size),
                    dm_size,
                    &of_device as &dyn Fn(*mut u8, usize),
                ),
                (
                    size_of::<PortAttributes>(),
                    offset_of!(PortAttributes, known.phys_state),
                    vec![physical_state(PortState::Active).0],
                    &of_port as &dyn Fn(*mut u8, usize),
                ),
            ] {
                for size in [known - 8, known - 4, known, known + 64] {
                    let bytes = filled(size, query);
                    assert_eq!(bytes[field..field + value.len()], value);
                    assert!(bytes.iter().skip(known).all(|&byte| byte == 0), "new fields must be 0");
                }
            }
            let (mut plain, mut extended) = (c::ibv_device_attr::default(), c::ibv_device_attr_ex::default());
            assert_eq!(ibv_query_device(context, &raw mut plain), 0);
            of_device((&raw mut extended).cast(), size_of::<c::ibv_device_attr_ex>());
            assert_eq!((extended.orig_attr.max_qp, extended.orig_attr.hw_ver), (plain.max_qp, HARDWARE_VERSION));
            assert_eq!(extended.device_cap_flags_ex, u64::from(plain.device_cap_flags));
            assert_eq!((extended.phys_port_cnt_ex, plain.phys_port_cnt), (1, 1));
            assert_eq!(ibv_close_device(context), 0);
        }
    }

    #[test]
    fn both_speeds_of_a_port_are_those_of_its_rate() {
        // SAFETY: the context exists until the end of the test, and the structure has all fields.
        unsafe {
            let context = ibv_open_device(device::listed(0).unwrap());
            let mut port = PortAttributes { known: c::ibv_port_attr::default(), active_speed_ex: 0 };
            assert_eq!(query_port(context, 1, (&raw mut port).cast(), size_of::<PortAttributes>()), 0);
            let rate = Context::of(context).unwrap().device.rate;
            assert_eq!((port.known.active_width, port.known.active_speed), (rate.width_code, rate.speed_code));
            assert_eq!(port.active_speed_ex, u32::from(rate.speed_code));
            let shown = std::fs::read_to_string("/sys/class/infiniband/doorbell0/ports/1/rate").unwrap();
            assert_eq!(shown, format!("{rate}\n"));
            assert_eq!(ibv_close_device(context), 0);
        }
    }

    #[test]
    fn both_queries_of_a_gid_name_the_interface_that_sysfs_names() {
        let size = size_of::<c::ibv_gid_entry>();
        let mut entries = [c::ibv_gid_entry::default(); 2];
        // SAFETY: the context exists until the test closes it, and the arrays have memory for the entries.
        unsafe {
            let context = ibv_open_device(device::listed(0).unwrap());
            assert_eq!(_ibv_query_gid_ex(context, 1, 0, &raw mut entries[0], 0, size), 0);
            assert_eq!(_ibv_query_gid_table(context, &raw mut entries[1], 1, 0, size), 1);
            let named = std::fs::read_to_string("/sys/class/infiniband/doorbell0/ports/1/gid_attrs/ndevs/0").unwrap();
            let index = CString::new(named.trim()).unwrap();
            let index = libc::if_nametoindex(index.as_ptr());
            assert_ne!(index, 0, "{named:?}");
            assert_eq!(entries.map(|entry| entry.ndev_ifindex), [index; 2]);
            assert_eq!(ibv_close_device(context), 0);
        }
    }
}
