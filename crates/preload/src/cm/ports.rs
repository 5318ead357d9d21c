//! The ports of `rdma_cm` on one machine, which are not those of TCP.
//!
//! An id takes a port by binding a Unix socket to an abstract name. The kernel gives a name to one socket only, and
//! takes it back when the process ends, however it ends. Names belong to a network namespace, as ports do, and are open
//! to all users of the machine, as ports above 1023 are.
//!
//! | name | meaning |
//! |---|---|
//! | `doorbell-cm/port/SPACE/PORT/ADDRESS` | an id is bound there |
//! | the same, then `+only` | ... and leaves IPv4 to others (RDMA_OPTION_ID_AFONLY) |
//! | the same, then `+reuse.N` | ... and shares the port with others that do so too (RDMA_OPTION_ID_REUSEADDR) |
//! | `doorbell-cm/listen/SPACE/PORT/ADDRESS` | an id listens there; `*` is any address of IPv4 and IPv6 |
//!
//! Which ids may have one port at the same time is decided as in Linux's connection manager (`cma_check_port` in
//! `drivers/infiniband/core/cma.c`). That depends on other names than the id's own, so whoever has bound a name looks
//! at all names of that port in `/proc/net/unix`, and lets go of its own if another one stands in the way.
//!
//! An id that connects does so with the socket that has its name. So the kernel itself tells the listener from which
//! port it is called.

use std::ffi::c_int;
use std::fs::File;
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use doorbell_fabric::{Opening, OwnProcess};
use doorbell_ibverbs_sys as c;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::line::DEFAULT_BACKLOG;

const PORT: &str = "doorbell-cm/port/";
const LISTEN: &str = "doorbell-cm/listen/";
const ONLY: &str = "+only";
const REUSE: &str = "+reuse.";

/// How often it is tried to take a port: two that take it at one time may see each other and both let go, and a child
/// that was just forked holds the names of its parent until it runs.
const TRIES: u32 = 4;

/// Ports of one number in different spaces have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Tcp,
    Udp,
    Ipoib,
}

impl Space {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Ipoib];

    pub(super) fn of(port_space: c::rdma_port_space) -> Option<Self> {
        match port_space {
            c::RDMA_PS_TCP => Some(Self::Tcp),
            c::RDMA_PS_UDP => Some(Self::Udp),
            c::RDMA_PS_IPOIB => Some(Self::Ipoib),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ipoib => "ipoib",
        }
    }
}

/// How an id is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) space: Space,
    pub(super) address: SocketAddr,
    /// Of IPv6: it leaves IPv4 to others.
    pub(super) only: bool,
    /// It shares the port with others that do so too.
    pub(super) reuse: bool,
}

impl Bound {
    /// Is it called when somebody connects to this address?
    pub(super) fn admits(&self, address: SocketAddr) -> bool {
        match self.address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.is_ipv4(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.is_ipv6() || !self.only,
            _ => host(self.address) == host(address),
        }
    }

    fn is_one_family(&self) -> bool {
        self.only || self.address.is_ipv4()
    }

    /// The errno with which one of the two is refused, if both cannot be bound (`cma_check_port`).
    fn conflict(&self, other: &Self) -> Option<c_int> {
        let (one, another) = (self.address, other.address);
        let apart = self.is_one_family() && other.is_one_family() && one.is_ipv4() != another.is_ipv4();
        if self.space != other.space || one.port() != another.port() || apart || (self.reuse && other.reuse) {
            None
        } else if one.ip().is_unspecified() || another.ip().is_unspecified() {
            Some(libc::EADDRNOTAVAIL)
        } else {
            (host(one) == host(another)).then_some(libc::EADDRINUSE)
        }
    }

    fn name(&self) -> String {
        let (space, port, host) = (self.space.name(), self.address.port(), host(self.address));
        let only = if self.only && self.address.is_ipv6() { ONLY } else { "" };
        let mut name = format!("{PORT}{space}/{port}/{host}{only}");
        if self.reuse {
            // A name of its own beside those that share the port.
            name += &format!("{REUSE}{:08x}", random() as u32);
        }
        name
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        let text = str::from_utf8(name).ok()?.strip_prefix(PORT)?;
        let (space, rest) = text.split_once('/')?;
        let (port, rest) = rest.split_once('/')?;
        let space = Space::ALL.into_iter().find(|known| known.name() == space)?;
        let (rest, reuse) = rest.split_once(REUSE).map_or((rest, false), |(rest, _)| (rest, true));
        let (host, only) = rest.strip_suffix(ONLY).map_or((rest, false), |host| (host, true));
        let (ip, scope) = host.split_once('%').unwrap_or((host, "0"));
        let (port, scope) = (port.parse().ok()?, scope.parse().ok()?);
        let address = match ip.parse().ok()? {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        };
        Some(Self { space, address, only, reuse })
    }
}

/// The address as it stands in a name. An IPv6 address that is valid on one link only has that link's number behind it.
fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// Does an error say that others have the port?
pub(super) fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL))
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn abstract_name(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

fn new_socket() -> io::Result<OwnProcess> {
    let opening = Opening::begin();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(OwnProcess::new(socket.into(), &opening))
}

/// A port that an id has taken, for as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    socket: OwnProcess,
    name: String,
    bound: Bound,
}

impl Claim {
    /// Takes a port.
    ///
    /// # Errors
    ///
    /// EADDRINUSE or EADDRNOTAVAIL: others have it.
    pub(super) fn take(bound: Bound) -> io::Result<Self> {
        Self::beside(bound, None)
    }

    /// Takes a port that nobody has at any address, as the kernel does where a program asks for any port.
    ///
    /// # Errors
    ///
    /// As [`Claim::take`].
    pub(super) fn take_free(bound: Bound) -> io::Result<Self> {
        let claim = Self::bind(bound)?;
        let is_free = claim.others()?.is_empty();
        if is_free { Ok(claim) } else { Err(io::Error::from_raw_os_error(libc::EADDRINUSE)) }
    }

    /// Takes the same port once more, to share it or not to share it from now on.
    ///
    /// # Errors
    ///
    /// As [`Claim::take`].
    pub(super) fn again(&self, reuse: bool) -> io::Result<Self> {
        Self::beside(Bound { reuse, ..self.bound }, Some(&self.name))
    }

    fn beside(bound: Bound, own: Option<&str>) -> io::Result<Self> {
        let mut tries = 1;
        loop {
            match Self::look_and_take(bound, own) {
                Err(error) if tries < TRIES && is_taken(&error) => {}
                end => return end,
            }
            // Longer each time, and by chance, so that two do not meet again and again.
            std::thread::sleep(Duration::from_micros((1000 << tries) + random() % 1024));
            tries += 1;
        }
    }

    fn look_and_take(bound: Bound, own: Option<&str>) -> io::Result<Self> {
        let claim = Self::bind(bound)?;
        let others = claim.others()?;
        let others = others.iter().filter(|(name, _)| own.is_none_or(|own| name != own));
        match others.filter_map(|(_, other)| bound.conflict(other)).min() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(claim),
        }
    }

    fn bind(bound: Bound) -> io::Result<Self> {
        loop {
            let (socket, name) = (new_socket()?, bound.name());
            match SockRef::from(&socket).bind(&abstract_name(&name)?) {
                Ok(()) => return Ok(Self { socket, name, bound }),
                Err(error) if !is_taken(&error) => return Err(error),
                Err(_) => {
                    if let Some(errno) = bound.conflict(&bound) {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    // It shares the port, and another random number gives another name.
                }
            }
        }
    }

    /// Who else has this number in this space, at whatever address.
    fn others(&self) -> io::Result<Vec<(String, Bound)>> {
        // A thread may be in another network namespace than its process. Where the kernel does not tell, only equal
        // names are noticed.
        let Ok(table) = File::open("/proc/thread-self/net/unix") else { return Ok(Vec::new()) };
        let number = format!("{PORT}{}/{}/", self.bound.space.name(), self.bound.address.port());
        let mut others = Vec::new();
        for line in BufReader::with_capacity(1 << 16, table).split(b'\n') {
            let line = line?;
            // The last column; `@` stands for the zero that abstract names begin with.
            let Some(name) = line.rsplit(|&byte| byte == b' ').next().and_then(|name| name.strip_prefix(b"@")) else {
                continue;
            };
            if !name.starts_with(number.as_bytes()) || name == self.name.as_bytes() {
                continue;
            }
            if let Some(other) = Bound::of_name(name) {
                others.push((String::from_utf8_lossy(name).into_owned(), other));
            }
        }
        Ok(others)
    }

    pub(super) fn bound(&self) -> &Bound {
        &self.bound
    }

    /// A socket that ids of this machine reach at the port. It has a name apart, since what it accepts shows the same
    /// name without having the port.
    ///
    /// # Errors
    ///
    /// EADDRINUSE: somebody listens there already.
    pub(super) fn listen(&self) -> io::Result<OwnProcess> {
        let socket = new_socket()?;
        let any = self.bound.address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !self.bound.only;
        let host = if any { ANY.to_owned() } else { host(self.bound.address) };
        SockRef::from(&socket).bind(&listener(self.bound.space, self.bound.address.port(), &host)?)?;
        // How many requests may wait is counted elsewhere.
        SockRef::from(&socket).listen(DEFAULT_BACKLOG as c_int)?;
        Ok(socket)
    }

    /// Connects with whoever listens at an address of this machine: there, or else at any address.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED: nobody does, or two users do. EAGAIN: too many connect there just now.
    pub(super) fn call(&self, to: SocketAddr) -> io::Result<()> {
        let wildcard: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let (address, wildcard) = (host(to), wildcard.to_string());
        let hosts = [&address, &wildcard, ANY];
        for (index, host) in hosts.iter().enumerate() {
            match SockRef::from(&self.socket).connect(&listener(self.bound.space, to.port(), host)?) {
                Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {}
                Ok(()) => return self.check_user(to.port(), &hosts[index + 1..]),
                result => return result,
            }
        }
        Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
    }

    /// Refuses the connection if a program of another user listens at one of these names. A listener at a single address and one
    /// at any address exclude each other, but the kernel lets another user's program take the one name while the other is
    /// taken. Such a program must not get the connections of the program that has the port.
    fn check_user(&self, port: u16, hosts: &[&str]) -> io::Result<()> {
        let user_of = |socket: &OwnProcess| getsockopt(socket, PeerCredentials).map(|peer| peer.uid());
        let user = user_of(&self.socket)?;
        for host in hosts {
            // Without a descriptor to ask with, nobody else is known.
            let Ok(other) = new_socket() else { continue };
            if SockRef::from(&other).connect(&listener(self.bound.space, port, host)?).is_ok()
                && user_of(&other)? != user
            {
                return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> &OwnProcess {
        &self.socket
    }

    /// The socket, once it is connected. It keeps the port.
    pub(super) fn into_socket(self) -> OwnProcess {
        self.socket
    }
}

/// Stands for any address of both families.
const ANY: &str = "*";

fn listener(space: Space, port: u16, host: &str) -> io::Result<SockAddr> {
    abstract_name(&format!("{LISTEN}{}/{port}/{host}", space.name()))
}

/// How whoever connected is bound, as the kernel tells by the name of its socket; nothing if it has no port.
pub(super) fn caller(from: &SockAddr) -> Option<Bound> {
    Bound::of_name(from.as_abstract_namespace()?)
}
