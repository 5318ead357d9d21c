//! Devices in the network namespace of a test.

use std::net::IpAddr;

use doorbell_fabric::BindError;
use doorbell_testing::namespace::{ADDRESSES, address};
pub(crate) use doorbell_testing::namespace::{ip, within};
use doorbell_verbs::soft::{self, LinkChoice, SoftOptions};
use doorbell_verbs::{Device, Error};

/// Opens two software RNICs with IPv6 addresses of this namespace that reach each other over UDP.
pub(crate) fn soft_pair() -> (Device, Device) {
    let open = || open_soft(SoftOptions { link: Some(LinkChoice::Udp), ..SoftOptions::default() });
    (open(), open())
}

/// Opens a software RNIC at the next free IPv6 address of this namespace.
fn open_soft(options: SoftOptions) -> Device {
    for number in 0..ADDRESSES {
        let address = Some(IpAddr::from(address(number)));
        match soft::open(&SoftOptions { address, ..options.clone() }) {
            Err(Error::Bind(BindError::InUse { .. })) => {}
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
    panic!("all {ADDRESSES} IPv6 addresses are taken")
}
