//! The choice of an address whose name in the abstract namespace is free too.

use std::io;
use std::net::IpAddr;

use super::{LinkChoice, SharedMemoryLink};
use crate::udp::{BindError, BindRequest, bind_engines};

/// Maximum number of addresses skipped by one [`SharedMemoryLink::bind`]. Each of them costs the tries of `meet.rs`.
const MAX_SKIPPED_ADDRESSES: usize = 16;

impl SharedMemoryLink {
    /// Binds the UDP links of a device with `engines` engines and adds shared memory to them ([`bind_engines`],
    /// [`start`](Self::start)).
    ///
    /// The UDP sockets reserve an address, but a process that closed its socket's descriptor keeps the name by which
    /// devices find the address. If only shared memory is allowed and `request` leaves the address open, such addresses
    /// are skipped.
    ///
    /// # Errors
    ///
    /// As [`bind_engines`]. [`BindError::System`] has the errors of [`start`](Self::start).
    pub fn bind(mut request: BindRequest, choice: LinkChoice, engines: usize) -> Result<Vec<Self>, BindError> {
        let mut skipped = 0;
        loop {
            let udps = bind_engines(request, engines)?;
            let (address, port) = (udps[0].local_address(), udps[0].port());
            let source = match Self::start(udps, choice) {
                Ok(links) => return Ok(links),
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
