//! Numbers of protocols that IEEE and IANA have assigned.

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// An Ethernet frame in a tunnel: transparent Ethernet bridging, which NVGRE and GENEVE use.
pub(super) const ETHERTYPE_BRIDGED: u16 = 0x6558;
pub(super) const ETHERTYPE_ERSPAN_2: u16 = 0x88be;
pub(super) const ETHERTYPE_ERSPAN_3: u16 = 0x22eb;
/// Smallest EtherType. Smaller numbers in the field are lengths of IEEE 802.3 frames.
pub(super) const FIRST_ETHERTYPE: u16 = 0x0600;
pub(super) const ETHERTYPE_ROCE_V1: u16 = 0x8915;
pub(super) const ETHERTYPE_MPLS: u16 = 0x8847;
pub(super) const ETHERTYPE_MPLS_MULTICAST: u16 = 0x8848;
pub(super) const ETHERTYPE_MACSEC: u16 = 0x88e5;

pub(super) const PROTOCOL_IPV4: u8 = 4;
pub(super) const PROTOCOL_IPV6: u8 = 41;
pub(super) const PROTOCOL_GRE: u8 = 47;
pub(super) const PROTOCOL_UDP: u8 = 17;
pub(super) const PROTOCOL_ESP: u8 = 50;
