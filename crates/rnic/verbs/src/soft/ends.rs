//! Ends of links, on which devices are opened.

use std::net::IpAddr;

use doorbell_fabric::{BindRequest, Link, LinkChoice, OwnProcess, SharedMemoryLink, UdpLink, active_mtu, bind_engines};
use doorbell_wire::PathMtu;

use crate::error::Error;

/// Binds a link for each engine of a device.
pub(super) fn bind(request: BindRequest, choice: LinkChoice, engines: usize) -> Result<Vec<LinkEnd>, Error> {
    if choice == LinkChoice::Udp {
        bind_engines(request, engines)?.into_iter().map(|link| LinkEnd::of(link, |link| link)).collect()
    } else {
        let links = SharedMemoryLink::bind(request, choice, engines)?;
        links.into_iter().map(|link| LinkEnd::of(link, SharedMemoryLink::udp)).collect()
    }
}

/// One end of a link, for a new device.
pub struct LinkEnd {
    /// Link that carries the packets of the device.
    pub link: Box<dyn Link>,
    /// Descriptor that is readable while packets wait to be received.
    pub readable: OwnProcess,
    /// Address of the device on the link.
    pub address: IpAddr,
    /// UDP port of this device and of its peers.
    pub port: u16,
    /// Largest path MTU that the link supports.
    pub active_mtu: PathMtu,
    /// Size of the receive buffer of the link; 0 if the link has none.
    pub receive_buffer_bytes: usize,
}

impl LinkEnd {
    /// Describes the end of a link over the UDP socket that `udp` returns.
    fn of<L: Link + 'static>(link: L, udp: impl Fn(&L) -> &UdpLink) -> Result<Self, Error> {
        let socket = udp(&link);
        let address = socket.local_address();
        Ok(Self {
            readable: socket.readable().map_err(Error::os("the socket could not be cloned"))?,
            address,
            port: socket.port(),
            active_mtu: active_mtu(address).map_err(Error::os("the interface's MTU could not be read"))?,
            receive_buffer_bytes: socket.receive_buffer_bytes(),
            link: Box::new(link),
        })
    }
}

impl std::fmt::Debug for LinkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkEnd").field("address", &self.address).field("port", &self.port).finish_non_exhaustive()
    }
}
