//! Ports for servers that cannot say which one they took: of TCP, and of `rdma_cm` on Doorbell.
//!
//! In its own network namespace ([`crate::network::apart`]) a step has no rival. Without root there is no such
//! namespace, and another process may take a free port before the server does. The server then reports that, and gets
//! another port.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{PATIENCE, Started};

/// Maximum number of further ports to try.
const OTHER_PORTS: usize = 8;

/// Time for which another program may have a port that is not configurable. It is longer than another run of a step
/// needs the port.
pub(super) const PORT_PATIENCE: Duration = Duration::from_secs(60);

/// Messages of servers whose port another process has. perftest prints the last two, without the reason.
const TAKEN: &[&str] = &[
    "Address already in use",
    "Cannot assign requested address", // as rdma_cm says it of any address
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
            Err(why) if is_taken(&why) => eprintln!("TCP port {port} was taken meanwhile: another is tried"),
            ended => return ended,
        }
    }
    attempt(&free_port()?.to_string())
}

/// Returns a TCP port that is currently unused on all addresses.
fn free_port() -> Result<u16, String> {
    // IPv4's addresses are among those of such a socket.
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no TCP port is free: {error}"))
}

/// TCP port of loopback on which no process can listen, because a connection has it at one end.
pub(super) struct Deaf {
    client: TcpStream,
    _server: TcpStream,
}

impl Deaf {
    pub(super) fn new() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        // The connection of another process may have come first. The own connection is then queued after it.
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

/// The programs wait for one connection only, so it is the kernel that is asked.
pub(super) fn wait_until_listening(port: &str, server: &mut Started) -> Result<(), String> {
    let port: u16 = port.parse().map_err(|error| format!("{port:?} is no port: {error}"))?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_listening(server.child.id(), port) {
            return Ok(());
        }
        if server.has_ended() {
            break; // the caller that waits for it reports the reason
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("it does not listen on port {port}: {}", server.said()))
}

/// Returns whether a process, or one that it has started, listens on this port.
pub(crate) fn is_listening(process: u32, port: u16) -> bool {
    let listening = listeners(port);
    !listening.is_empty() && has_one_of(process, &listening)
}

/// Returns the sockets that listen on a port, of all processes, in the form in which a process's descriptors name
/// them.
fn listeners(port: u16) -> Vec<String> {
    let own = format!(":{port:04X}");
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].map(fs::read_to_string);
    let of_table = |table: &String| {
        let sockets = table.lines().filter_map(|line| {
            // Number, own address, the peer's, state (0A is listening), and the inode as the tenth.
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
            (address.ends_with(&own) && *state == "0A").then(|| format!("socket:[{inode}]"))
        });
        sockets.collect::<Vec<_>>()
    };
    let of_tcp = tables.iter().flatten().flat_map(of_table);
    // Those of rdma_cm are Unix sockets with a name that has the space, the port and the address.
    let names = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let of_rdma_cm = names.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (inode, name) = (words.get(6)?, words.get(7)?.strip_prefix("@doorbell-cm/listen/")?);
        (name.split('/').nth(1)?.parse() == Ok(port)).then(|| format!("socket:[{inode}]"))
    });
    of_tcp.chain(of_rdma_cm).collect()
}

/// Returns whether a process, or one that it has started, has one of these sockets.
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
    fn a_port_that_was_taken_meanwhile_is_given_up_for_another() {
        let mut taken = Vec::new();
        let found = on_free_port(|port| {
            let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
            if taken.len() < 3 {
                // Another process is faster.
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

    /// One that listens on the port that a server was to have is not the server.
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

    /// Ports of rdma_cm are names.
    #[test]
    fn a_listener_of_rdma_cm_is_one_by_its_name() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::{SocketAddr, UnixListener};

        // No program listens for either at port 0, so this one is nobody's.
        let before = listeners(0);
        let name = format!("doorbell-cm/listen/tcp/0/{}", std::process::id());
        let _listening = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let found: Vec<_> = listeners(0).into_iter().filter(|socket| !before.contains(socket)).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(has_one_of(std::process::id(), &found));
    }

    #[test]
    fn a_deaf_port_rejects_listeners_and_connections() {
        let deaf = Deaf::new().unwrap();
        let address = deaf.address().unwrap();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(TcpListener::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
