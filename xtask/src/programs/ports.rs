//! Free ports for servers that cannot choose a port by themselves. These are ports of TCP, and of `rdma_cm` on
//! Doorbell.
//!
//! In a separate network namespace ([`crate::network::apart`]) no other program takes ports. Without root there is no
//! such namespace, and another process may take a free port before the server does. The server then fails, and is
//! started again with another port.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{PATIENCE, Started};

/// Maximum number of further ports to try.
const OTHER_PORTS: usize = 8;

/// Maximum time to wait until another program releases a port that is not configurable. No run of a step needs the port
/// for a longer time.
pub(super) const PORT_PATIENCE: Duration = Duration::from_secs(60);

/// Messages of servers whose port is taken. The last two messages are those of perftest, which prints no reason.
const TAKEN: &[&str] = &[
    "Address already in use",
    "Cannot assign requested address", // rdma_cm prints this for each address
    "Couldn't listen to port",
    "rdma_bind_addr failed",
];

/// Returns whether a server failed because another process has its port.
pub(super) fn is_taken(why: &str) -> bool {
    TAKEN.iter().any(|words| why.contains(words))
}

/// Calls `attempt` with a free port, and again with another port if another process took it first.
pub(super) fn on_free_port<T>(mut attempt: impl FnMut(&str) -> Result<T, String>) -> Result<T, String> {
    for _ in 0..OTHER_PORTS {
        let port = free_port()?.to_string();
        match attempt(&port) {
            Err(why) if is_taken(&why) => eprintln!("TCP port {port} is taken: trying another port"),
            ended => return ended,
        }
    }
    attempt(&free_port()?.to_string())
}

/// Returns a TCP port that is currently unused on all addresses.
pub(crate) fn free_port() -> Result<u16, String> {
    // An IPv6 socket also listens on the IPv4 addresses.
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no TCP port is free: {error}"))
}

/// A TCP port of loopback on which no process can listen, because a connection uses it.
pub(super) struct BlockedPort {
    client: TcpStream,
    _server: TcpStream,
}

impl BlockedPort {
    pub(super) fn new() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        // Another process may have connected first. Accept connections until the connection of this process comes.
        let own = client.local_addr()?;
        loop {
            let (server, from) = listener.accept()?;
            if from == own {
                return Ok(Self { client, _server: server });
            }
        }
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.client.local_addr()
    }
}

/// Waits until a server listens on a port, according to tables of the kernel. A trial connection is not possible,
/// because the servers accept only one connection.
pub(super) fn wait_until_listening(port: &str, server: &mut Started) -> Result<(), String> {
    let port: u16 = port.parse().map_err(|error| format!("{port:?} is no port: {error}"))?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_listening(server.child.id(), port) {
            return Ok(());
        }
        if server.has_ended() {
            break; // the caller finds the reason in the output
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("the server does not listen on port {port}: {}", server.said()))
}

/// Returns whether a process or one of its descendants listens on this port.
pub(crate) fn is_listening(process: u32, port: u16) -> bool {
    let listening = listeners(port);
    !listening.is_empty() && has_one_of(process, &listening)
}

/// Returns the sockets that listen on a port, of all processes. Each socket has the form of a link in `/proc/PID/fd`.
fn listeners(port: u16) -> Vec<String> {
    let own = format!(":{port:04X}");
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].map(fs::read_to_string);
    let of_table = |table: &String| {
        let sockets = table.lines().filter_map(|line| {
            // The fields are number, local address, remote address and state (0A means listening). Field 10 is the
            // inode.
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
            (address.ends_with(&own) && *state == "0A").then(|| format!("socket:[{inode}]"))
        });
        sockets.collect::<Vec<_>>()
    };
    let of_tcp = tables.iter().flatten().flat_map(of_table);
    // Listeners of rdma_cm are Unix sockets. Their names have the port space, the port and the address.
    let names = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let of_rdma_cm = names.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (inode, name) = (words.get(6)?, words.get(7)?.strip_prefix("@doorbell-cm/listen/")?);
        (name.split('/').nth(1)?.parse() == Ok(port)).then(|| format!("socket:[{inode}]"))
    });
    of_tcp.chain(of_rdma_cm).collect()
}

/// Returns whether a process or one of its descendants has one of these sockets.
fn has_one_of(process: u32, sockets: &[String]) -> bool {
    let entries = |of: &str| fs::read_dir(format!("/proc/{process}/{of}")).into_iter().flatten().filter_map(Result::ok);
    let mut names = entries("fd").filter_map(|entry| fs::read_link(entry.path()).ok());
    if names.any(|name| sockets.iter().any(|socket| name.as_os_str() == socket.as_str())) {
        return true;
    }
    let children = entries("task").filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> =
        children.flat_map(|list| list.split(' ').flat_map(str::parse).collect::<Vec<_>>()).collect();
    children.into_iter().any(|child| has_one_of(child, sockets))
}

#[cfg(test)]
mod tests {
    use super::super::start;
    use super::*;
    use crate::shell::command;

    #[test]
    fn a_taken_port_is_replaced_by_another() {
        let mut taken = Vec::new();
        let found = on_free_port(|port| {
            let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
            if taken.len() < 3 {
                // Take the port, as a listener of another process would.
                taken.push(listen().unwrap());
            }
            listen().map_err(|error| format!("bind: {error}"))
        });
        let port = found.unwrap().local_addr().unwrap().port();
        assert!(taken.iter().all(|other| other.local_addr().unwrap().port() != port));
        let mut tries = 0;
        let other = on_free_port(|_| -> Result<(), String> {
            tries += 1;
            Err("something else is wrong".to_owned())
        });
        assert_eq!((other, tries), (Err("something else is wrong".to_owned()), 1));
    }

    /// Checks that a listener of another process on the server's port does not count as the server.
    #[test]
    fn another_program_that_listens_is_not_the_server() {
        let rival = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = rival.local_addr().unwrap().port().to_string();
        let script = "sleep 0.2; echo 'bind: Address already in use' >&2; exit 1";
        let mut server = start(command("sh", &["-c", script])).unwrap();
        let why = wait_until_listening(&port, &mut server).unwrap_err();
        assert!(is_taken(&why), "{why}");
        assert!(!listeners(rival.local_addr().unwrap().port()).is_empty());
        assert!(has_one_of(std::process::id(), &listeners(rival.local_addr().unwrap().port())));
    }

    /// Checks that the name of a Unix socket identifies a listener of rdma_cm.
    #[test]
    fn names_identify_listeners_of_rdma_cm() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::{SocketAddr, UnixListener};

        // No other program listens at port 0.
        let before = listeners(0);
        let name = format!("doorbell-cm/listen/tcp/0/{}", std::process::id());
        let _listening = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let found: Vec<_> = listeners(0).into_iter().filter(|socket| !before.contains(socket)).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(has_one_of(std::process::id(), &found));
    }

    #[test]
    fn a_blocked_port_rejects_listeners_and_connections() {
        let blocked = BlockedPort::new().unwrap();
        let address = blocked.address().unwrap();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(TcpListener::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
