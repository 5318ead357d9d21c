//! Paths to devices.

use std::net::IpAddr;

/// Path to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// Address of the destination device: its GID as an IP address. An IPv4-mapped GID is given as IPv4.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
}

impl AddressVector {
    /// Returns the address with default traffic class and hop limit.
    pub fn to(destination: IpAddr) -> Self {
        Self { destination, traffic_class: 0, hop_limit: 64 }
    }
}
