//! The choice of an address whose name in the abstract namespace is free too.

use std::io;
use std::net::IpAddr;

use super::{LinkChoice, SharedMemoryLink};
use crate::udp::{BindError, BindRequest, bind};

/// Maximum number of addresses skipped by one [`SharedMemoryLink::bind`]. Each of them costs the tries of `meet.rs`.
const MAX_SKIPPED_ADDRESSES: usize = 16;

impl SharedMemoryLink {
    /// Binds a UDP link and adds shared memory to it ([`bind`], [`start`](Self::start)).
    ///
    /// The UDP socket reserves an address, but a process that closed its socket's descriptor keeps the name by which
    /// devices find the address. If only shared memory is allowed and `request` leaves the address open, such addresses
    /// are skipped.
    ///
    /// # Errors
    ///
    /// As [`bind`]. [`BindError::System`] has the errors of [`start`](Self::start).
    pub fn bind(mut request: BindRequest, choice: LinkChoice) -> Result<Self, BindError> {
        let mut skipped = 0;
        loop {
            let udp = bind(request)?;
            let (address, port) = (udp.local_address(), udp.port());
            let source = match Self::start(udp, choice) {
                Ok(link) => return Ok(link),
                Err(source) => source,
            };
            let is_name_taken = source.kind() == io::ErrorKind::AddrInUse;
            match address {
                IpAddr::V4(v4) if request.address.is_none() && is_name_taken && skipped < MAX_SKIPPED_ADDRESSES => {
                    request.search_after = Some(v4);
                    skipped += 1;
                }
                _ => return Err(BindError::System { what: "share memory with other devices", address, port, source }),
            }
        }
    }
}
