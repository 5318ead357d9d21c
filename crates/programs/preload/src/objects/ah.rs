//! Addresses in the forms of verbs: GIDs, address vectors and address handles.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::AddressVector;

use crate::objects::answer::{Answer, Refused, number, pointer, status};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::handle::{Kind, Object, object};
use crate::objects::pd::Pd;
use crate::objects::query::{PORT, expect_gid_index, expect_port};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    c: c::ibv_ah,
    pub(crate) address: AddressVector,
}

// SAFETY: `Ah` is `#[repr(C)]` and begins with an `ibv_ah`.
unsafe impl Object for Ah {
    type C = c::ibv_ah;
    const KIND: Kind = Kind::Ah;
}

/// Hop limit of packets if the program does not specify one. Routers drop a datagram with hop limit 0.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// Advice to users of programs that omit the GID index. RoCE needs this index.
const GIVE_INDEX: &str = "give the programs at both ends the GID index 0 (most programs have the option -g 0 or -x 0)";

/// Converts the address attributes of a program to an address vector.
pub(crate) fn address_vector(attr: &c::ibv_ah_attr, device: &Device) -> Answer<AddressVector> {
    expect_port(attr.port_num.into())?;
    if attr.is_global == 0 {
        return Err(Refused::hint(format!(
            "the peer's address has no GID (is_global is 0), and RoCE needs one: {GIVE_INDEX}"
        )));
    }
    if let Err(refused) = expect_gid_index(attr.grh.sgid_index.into()) {
        return Err(Refused::hint(format!("{refused}; {GIVE_INDEX}")));
    }
    // SAFETY: both members of the GID union are plain bytes, so any value is valid.
    let destination = IpAddr::V6(Ipv6Addr::from(unsafe { attr.grh.dgid.raw })).to_canonical();
    let own = device.attributes.address;
    if destination.is_ipv4() != own.is_ipv4() || destination.is_unspecified() {
        return Err(Refused::invalid(format!(
            "the GID of {destination} cannot be reached from {own}: both must be IPv4 or both IPv6"
        )));
    }
    let hop_limit = if attr.grh.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { attr.grh.hop_limit };
    Ok(AddressVector { destination, traffic_class: attr.grh.traffic_class, hop_limit })
}

/// Converts an address vector to its C structure.
pub(crate) fn ah_attributes(address: &AddressVector) -> c::ibv_ah_attr {
    c::ibv_ah_attr {
        grh: c::ibv_global_route {
            dgid: gid(address.destination),
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
            ..c::ibv_global_route::default()
        },
        is_global: 1,
        port_num: PORT,
        ..c::ibv_ah_attr::default()
    }
}

/// Returns the GID of an address. IPv4 addresses are mapped into GIDs (RoCE v2 annex A17).
pub(crate) fn gid(address: IpAddr) -> c::ibv_gid {
    let raw = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    c::ibv_gid { raw }
}

fn create(pd: *mut c::ibv_pd, attr: &c::ibv_ah_attr) -> Answer<*mut c::ibv_ah> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Pd>(pd) }?;
    let context = own.context()?;
    let address = address_vector(attr, &context.device)?;
    own.users.add();
    Ok(context.handles.give(Ah { c: c::ibv_ah { context: context.as_c(), pd, handle: 0 }, address }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut c::ibv_pd, attr: *mut c::ibv_ah_attr) -> *mut c::ibv_ah {
    pointer("ibv_create_ah", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        create(pd, unsafe { attr.as_ref() }.ok_or_else(|| Refused::invalid("the attributes are null"))?)
    })
}

/// Returns the address of the sender of a datagram, from the 40 bytes before its payload. An IPv4 header occupies the
/// last 20 of these bytes, and an IPv6 header occupies all of them (RoCE v2 annex A17, A17.4.5.2).
fn source_of(wc: &c::ibv_wc, header: &[u8; 40]) -> Answer<AddressVector> {
    if wc.wc_flags & c::IBV_WC_GRH == 0 {
        return Err(Refused::invalid(
            "the completion has no routing header (IBV_WC_GRH), so the sender of the datagram is unknown",
        ));
    }
    let field = |at: usize| -> [u8; 4] { [header[at], header[at + 1], header[at + 2], header[at + 3]] };
    let (address, traffic_class) = if header[0] >> 4 == 6 {
        let mut source = [0; 16];
        source.copy_from_slice(&header[8..24]);
        (IpAddr::V6(source.into()), header[0] << 4 | header[1] >> 4)
    } else if header[20] == 0x45 {
        (IpAddr::V4(Ipv4Addr::from(field(32))), header[21])
    } else {
        return Err(Refused::invalid("the routing header is neither an IPv6 nor an IPv4 header"));
    };
    Ok(AddressVector { destination: address, traffic_class, hop_limit: DEFAULT_HOP_LIMIT })
}

/// # Safety
///
/// The C contract of `ibv_init_ah_from_wc`.
unsafe fn attributes_from(port: u8, wc: *mut c::ibv_wc, header: *mut c::ibv_grh) -> Answer<c::ibv_ah_attr> {
    expect_port(port.into())?;
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (wc, header) = unsafe { (wc.as_ref(), header.cast::<[u8; 40]>().as_ref()) };
    let (wc, header) = wc.zip(header).ok_or_else(|| Refused::invalid("the completion or its header is null"))?;
    Ok(ah_attributes(&source_of(wc, header)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut c::ibv_context,
    port: u8,
    wc: *mut c::ibv_wc,
    header: *mut c::ibv_grh,
    attr: *mut c::ibv_ah_attr,
) -> c_int {
    number("ibv_init_ah_from_wc", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe {
            Context::of(context)?;
            attr.write(attributes_from(port, wc, header)?);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut c::ibv_pd,
    wc: *mut c::ibv_wc,
    header: *mut c::ibv_grh,
    port: u8,
) -> *mut c::ibv_ah {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    pointer("ibv_create_ah_from_wc", || create(pd, &unsafe { attributes_from(port, wc, header) }?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut c::ibv_ah) -> c_int {
    status("ibv_destroy_ah", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Ah>(ah) }?;
        // SAFETY: a protection domain exists while objects of it exist.
        let pd = unsafe { object::<Pd>(own.c.pd) }?;
        let context = pd.context()?;
        pd.users.remove();
        // SAFETY: the program does not use the address handle any more.
        drop(unsafe { context.handles.take::<Ah>(ah) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::context::{ibv_close_device, ibv_open_device};
    use crate::objects::device::listed;

    #[test]
    fn a_missing_gid_index_gives_a_hint() {
        // SAFETY: the context exists until it is closed.
        unsafe {
            let context = ibv_open_device(listed(0).unwrap());
            let device = &Context::of(context).unwrap().device;
            let good = ah_attributes(&AddressVector::to(device.attributes.address));
            assert!(address_vector(&good, device).is_ok());
            let without_gid = c::ibv_ah_attr { is_global: 0, ..good };
            let mut without_index = good;
            without_index.grh.sgid_index = 255; // programs store the index -1 in this form
            for wrong in [without_gid, without_index] {
                let refused = address_vector(&wrong, device).unwrap_err();
                assert_eq!((refused.errno, refused.is_hint), (libc::EINVAL, true));
                assert!(refused.to_string().contains("-g 0 or -x 0"), "{refused}");
            }
            let no_port = c::ibv_ah_attr { port_num: 2, ..good };
            assert!(!address_vector(&no_port, device).unwrap_err().is_hint);
            assert_eq!(ibv_close_device(context), 0);
        }
    }
}
