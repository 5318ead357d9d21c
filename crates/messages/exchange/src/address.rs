//! Hosts and ports as users write them, sockets that listen at them, and connections to them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use socket2::{Domain, Socket, Type};

/// Maximum number of connections that wait for `accept`. [`Lobby`](crate::admission::Lobby) raises this limit.
const BACKLOG: i32 = 128;

/// Time after which an attempt to connect fails.
const DEADLINE: Duration = Duration::from_secs(10);

/// End of the error about another machine that refuses a connection.
const LOOPBACK_HINT: &str =
    " (without a token, `--listen` listens on loopback only: give both sides the same --token or DOORBELL_TOKEN)";

/// Returns a host with its own port, or with `port` if the host has none. An IPv6 address may stand in brackets. A
/// link-local address may have a scope, which is the name or number of an interface.
pub fn with_port(address: &str, port: u16) -> String {
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
pub fn scope_hint(address: &str) -> &'static str {
    if address.contains('%') { " (the part after % must be an interface of this machine)" } else { "" }
}

/// Address at which a command listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
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
    pub fn bind(&self) -> io::Result<TcpListener> {
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

/// Reason why a host cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The host was not found, or the address has no port.
    #[error("{address} must be a host and port that can be found{}: {error}", scope_hint(address))]
    NotFound {
        /// Address of the host.
        address: String,
        /// Reason of the failure.
        error: io::Error,
    },
    /// No program accepted the connection.
    #[error("cannot connect to {address}: {error}{hint}")]
    NotConnected {
        /// Address of the host.
        address: String,
        /// Reason of the failure.
        error: io::Error,
        /// End of the sentence, which suggests a remedy.
        hint: String,
    },
    /// This machine has no address on the path to the host.
    #[error("cannot find the address of this machine on the path to {address}: {error}")]
    NoPath {
        /// Address of the host.
        address: String,
        /// Reason of the failure.
        error: io::Error,
    },
}

fn is_running(command: &str) -> String {
    format!("; is `{command}` running there?")
}

/// Connects to a server. The error about an unreachable server suggests `command`, which starts a server.
///
/// # Errors
///
/// The server is not found, or refuses the connection.
pub fn connect(address: &str, command: &str) -> Result<TcpStream, ReachError> {
    reach(address, &is_running(command))
}

/// Connects to a server. The error about an unreachable server ends with `hint`.
///
/// # Errors
///
/// The server is not found, or refuses the connection.
pub fn reach(address: &str, hint: &str) -> Result<TcpStream, ReachError> {
    reach_by(address, hint, |address| TcpStream::connect_timeout(&address, DEADLINE))
}

/// Connects to a server with TCP segments of at most `bytes` bytes in both directions. The error about an unreachable
/// server suggests `command`, which starts a server.
///
/// # Errors
///
/// The server is not found, or refuses the connection.
pub fn connect_in_segments(address: &str, command: &str, bytes: u32) -> Result<TcpStream, ReachError> {
    reach_by(address, &is_running(command), |address| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), None)?;
        socket.set_tcp_mss(bytes)?;
        socket.connect_timeout(&address.into(), DEADLINE)?;
        Ok(socket.into())
    })
}

fn reach_by(
    address: &str,
    hint: &str,
    connect: impl Fn(SocketAddr) -> io::Result<TcpStream>,
) -> Result<TcpStream, ReachError> {
    let addresses: Vec<_> = address
        .to_socket_addrs()
        .map_err(|error| ReachError::NotFound { address: address.to_owned(), error })?
        .collect();
    let is_here_alone = addresses.iter().all(|it| it.ip().to_canonical().is_loopback());
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match connect(address) {
            Ok(stream) => return Ok(stream),
            Err(failed) => error = failed,
        }
    }
    let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
    let loopback = if is_refused && !is_here_alone { LOOPBACK_HINT } else { "" };
    Err(ReachError::NotConnected { address: address.to_owned(), error, hint: format!("{hint}{loopback}") })
}

/// Returns the address at which a peer on another machine reaches this machine. Returns `None` if the peer is on this
/// machine, where each device needs an address of its own.
pub fn address_toward(stream: &TcpStream) -> Option<IpAddr> {
    own_unless_here(stream.local_addr().ok()?, stream.peer_addr().ok()?)
}

/// Returns the address at which the host at `address` reaches this machine, like [`address_toward`] but without a
/// connection.
///
/// # Errors
///
/// The host is not found, or this machine has no path to the host.
pub fn address_toward_host(address: &str) -> Result<Option<IpAddr>, ReachError> {
    let failed = |error| ReachError::NoPath { address: address.to_owned(), error };
    let not_found = || ReachError::NotFound {
        address: address.to_owned(),
        error: io::Error::from(io::ErrorKind::AddrNotAvailable),
    };
    let peer = address.to_socket_addrs().map_err(failed)?.next().ok_or_else(not_found)?;
    let unspecified: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket sends nothing.
    let socket = UdpSocket::bind((unspecified, 0)).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    Ok(own_unless_here(socket.local_addr().map_err(failed)?, peer))
}

fn own_unless_here(own: SocketAddr, peer: SocketAddr) -> Option<IpAddr> {
    let (own, peer) = (own.ip().to_canonical(), peer.ip().to_canonical());
    (own != peer && !own.is_loopback()).then_some(own)
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
    fn a_refusal_by_another_host_names_the_token() {
        let failure = |address: &str, kind: io::ErrorKind| {
            reach_by(address, "; is it running?", |_| Err(kind.into())).unwrap_err().to_string()
        };
        for other in ["192.0.2.1:7", "[2001:db8::1]:7"] {
            let text = failure(other, io::ErrorKind::ConnectionRefused);
            assert!(text.contains("; is it running?") && text.contains(LOOPBACK_HINT), "{text}");
            assert!(!failure(other, io::ErrorKind::TimedOut).contains(LOOPBACK_HINT), "{other}");
        }
        for here in ["127.0.0.1:7", "[::1]:7", "[::ffff:127.0.0.1]:7"] {
            let text = failure(here, io::ErrorKind::ConnectionRefused);
            assert!(text.contains("; is it running?") && !text.contains(LOOPBACK_HINT), "{text}");
        }
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
