//! Hosts and ports as users write them, and sockets that listen at them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use nix::net::if_::if_nametoindex;
use socket2::{Domain, Socket, Type};

/// Maximum number of connections that wait for `accept`. [`Clients`](crate::admission::Clients) raises this limit.
const BACKLOG: i32 = 128;

/// Returns a host with its own port, or with `port` if the host has none. An IPv6 address may stand in brackets. A
/// link-local address may have a scope, which is the name or number of an interface.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    if let Some(address) = ipv6(address) {
        return format!("[{address}]:{port}");
    }
    if address.parse::<IpAddr>().is_err() && address.contains(':') {
        return match address.rsplit_once(':').and_then(|(host, port)| Some((bracketed(host)?, port))) {
            Some((address, port)) => format!("[{address}]:{port}"),
            None => address.to_owned(),
        };
    }
    format!("{address}:{port}")
}

/// Returns an IPv6 address without brackets, with its scope as a number.
fn ipv6(text: &str) -> Option<String> {
    bracketed(text).or_else(|| scoped(text))
}

fn bracketed(text: &str) -> Option<String> {
    scoped(text.strip_prefix('[')?.strip_suffix(']')?)
}

fn scoped(text: &str) -> Option<String> {
    let Some((address, scope)) = text.split_once('%') else {
        return text.parse::<Ipv6Addr>().ok().map(|address| address.to_string());
    };
    let address: Ipv6Addr = address.parse().ok()?;
    // The standard library parses only numeric scopes. Keep the name of an unknown interface for the error text.
    Some(format!("{address}%{}", interface_number(scope).unwrap_or_else(|| scope.to_owned())))
}

fn interface_number(name: &str) -> Option<String> {
    if_nametoindex(name).ok().map(|number| number.to_string())
}

/// Returns a hint for the error about a host that was not found. The hint is empty for an address without a scope.
pub(crate) fn scope_hint(address: &str) -> &'static str {
    if address.contains('%') { " (the part after % must be an interface of this machine)" } else { "" }
}

/// Address at which a command listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// All addresses of this machine.
    All {
        /// The TCP port.
        port: u16,
    },
    /// A host and port.
    At(String),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All { port } => write!(f, "port {port} of all addresses"),
            Self::At(address) => f.write_str(address),
        }
    }
}

impl Listen {
    /// Returns a listening socket.
    ///
    /// # Errors
    ///
    /// The machine lacks the address, or the port is taken.
    pub(crate) fn bind(&self) -> io::Result<TcpListener> {
        match self {
            Self::All { port } => {
                unless_ipv6_lacks(bind((Ipv6Addr::UNSPECIFIED, *port).into()), || TcpListener::bind(("0.0.0.0", *port)))
            }
            Self::At(address) => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in address.to_socket_addrs()? {
                    match bind(address) {
                        Ok(listener) => return Ok(listener),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

/// Returns `both`, the listener for IPv4 and IPv6, or calls `ipv4` if the kernel lacks IPv6.
fn unless_ipv6_lacks(
    both: io::Result<TcpListener>,
    ipv4: impl FnOnce() -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    match both {
        Err(error)
            if error.kind() == io::ErrorKind::AddrNotAvailable
                || error.raw_os_error() == Some(nix::errno::Errno::EAFNOSUPPORT as i32) =>
        {
            ipv4()
        }
        other => other,
    }
}

/// Binds a listener like `TcpListener::bind`, but a listener at [::] always accepts connections over IPv4 too.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn hosts_are_understood_with_and_without_brackets_ports_and_scopes() {
        for (given, expected) in [
            ("host", "host:7"),
            ("host:9", "host:9"),
            ("192.0.2.1", "192.0.2.1:7"),
            ("192.0.2.1:9", "192.0.2.1:9"),
            ("fd00::1", "[fd00::1]:7"),
            ("[fd00::1]", "[fd00::1]:7"),
            ("[fd00::1]:9", "[fd00::1]:9"),
            ("fe80::1%3", "[fe80::1%3]:7"),
            ("[fe80::1%3]", "[fe80::1%3]:7"),
            // Loopback is the first interface of every network namespace.
            ("fe80::1%lo", "[fe80::1%1]:7"),
            ("[fe80::1%lo]", "[fe80::1%1]:7"),
            ("[fe80::1%lo]:9", "[fe80::1%1]:9"),
            ("[fe80::1%no-such]:9", "[fe80::1%no-such]:9"),
            ("fe80::1%../lo", "[fe80::1%../lo]:7"),
        ] {
            assert_eq!(with_port(given, 7), expected, "{given}");
        }
        let scoped: Vec<SocketAddr> = with_port("fe80::1%lo", 7).to_socket_addrs().unwrap().collect();
        assert!(matches!(scoped[..], [SocketAddr::V6(address)] if address.scope_id() == 1), "{scoped:?}");
        let unknown = with_port("fe80::1%no-such", 7);
        assert!(unknown.to_socket_addrs().is_err() && scope_hint(&unknown).contains("interface"));
        assert_eq!(scope_hint("host:7"), "");
    }

    #[test]
    fn listening_on_all_addresses_covers_both_families() {
        let listener = Listen::All { port: 0 }.bind().unwrap();
        let port = listener.local_addr().unwrap().port();
        let reaches = |address: &str| TcpStream::connect((address, port)).is_ok();
        assert!(reaches("127.0.0.1"));
        if TcpListener::bind("[::1]:0").is_ok() {
            assert!(reaches("::1"), "{listener:?}");
        }
        // If the kernel lacks IPv6, a listener for IPv4 suffices. A port that is in use is an error in any case.
        let ipv4 = || TcpListener::bind("127.0.0.1:0");
        let lacks = io::Error::from_raw_os_error(nix::errno::Errno::EAFNOSUPPORT as i32);
        assert!(unless_ipv6_lacks(Err(lacks), ipv4).unwrap().local_addr().unwrap().is_ipv4());
        assert_eq!(Listen::All { port }.bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(Listen::At(format!("127.0.0.1:{port}")).bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
