//! Ports of `rdma_cm` on one machine. They are separate from the ports of TCP.
//!
//! An id takes a port by binding a Unix socket to an abstract name. The kernel gives each name to only one socket, and
//! frees the name when the process ends for any reason. Like ports, names belong to a network namespace.
//!
//! | name | meaning |
//! |---|---|
//! | `doorbell-cm/port/SPACE/PORT/ADDRESS` | an id is bound to the address |
//! | this name with suffix `+only` | an id that does not use IPv4 is bound (RDMA_OPTION_ID_AFONLY) |
//! | this name with suffix `+reuse.N` | an id that shares its port is bound (RDMA_OPTION_ID_REUSEADDR) |
//! | `doorbell-cm/listen/SPACE/PORT/ADDRESS` | an id listens at the address; `*` is any address of IPv4 and IPv6 |
//! | any of these with suffix `+beside.N` | another user has the name without this suffix |
//!
//! Any user of the machine may bind any abstract name. An id therefore ignores names of untrusted users, which are all
//! users except root and the id's own user. If an untrusted user has the id's name, the id binds the name with a
//! suffix. A client prefers a listener of its own user, then a listener of root. Otherwise, the client uses the
//! listeners of an untrusted user, if they all belong to the same user.
//!
//! Linux's connection manager decides which ids may have the same port at the same time (`cma_check_port` in
//! `drivers/infiniband/core/cma.c`). This module applies the same rules, which depend on the names of other ids. An id
//! therefore binds its name, checks all names of its port, and releases its own name if another name conflicts.
//!
//! An id connects with the socket that has its name, so the listener learns the client's port from the kernel.

use std::ffi::c_int;
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use doorbell_fabric::{AbstractName, Opening, OwnProcess, abstract_names, beside, plain};
use doorbell_ibverbs_sys as c;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::line::KERNEL_BACKLOG;

const PORT: &str = "doorbell-cm/port/";
const LISTEN: &str = "doorbell-cm/listen/";
const ONLY: &str = "+only";
const REUSE: &str = "+reuse.";

/// Maximum number of attempts to take a port. Two ids that take the same port at the same time may see each other's
/// names, and both release their names. A child that was just forked holds the names of its parent until the child
/// runs.
const TRIES: u32 = 4;

/// A port space. Ports of the same number in different spaces are independent.
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

/// Address of an id, and the options with which the id is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) space: Space,
    pub(super) address: SocketAddr,
    /// Whether an id with an IPv6 address rejects IPv4 peers.
    pub(super) only: bool,
    /// Whether the id shares its port with other ids that set this option.
    pub(super) reuse: bool,
}

impl Bound {
    /// Returns whether connections to `address` reach an id that is bound with these options.
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

    /// Returns the errno with which the second of two ids fails to bind, or `None` if both can be bound at the same
    /// time (`cma_check_port`).
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
            // The random suffix distinguishes the name from the names of other ids that share the port.
            name += &format!("{REUSE}{:08x}", random() as u32);
        }
        name
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        let text = plain(str::from_utf8(name).ok()?).strip_prefix(PORT)?;
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

/// Formats the address for a name. For a link-local IPv6 address, appends the scope ID.
fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// Returns whether the error means that another id has the port.
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

/// A port that an id has taken. Dropping the claim releases the port.
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
    /// EADDRINUSE or EADDRNOTAVAIL if another id has the port.
    pub(super) fn take(bound: Bound) -> io::Result<Self> {
        Self::beside(bound, None)
    }

    /// Takes a port that no other id has at any address. Linux chooses such a port if a program binds an id to port 0.
    ///
    /// # Errors
    ///
    /// As [`Claim::take`].
    pub(super) fn take_free(bound: Bound) -> io::Result<Self> {
        let claim = Self::bind(bound)?;
        let is_free = claim.others()?.is_empty();
        if is_free { Ok(claim) } else { Err(io::Error::from_raw_os_error(libc::EADDRINUSE)) }
    }

    /// Takes the port of this claim a second time. `reuse` tells whether the new claim shares the port.
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
            // Wait longer after each attempt, and for a random time, so that two ids do not collide repeatedly.
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
            match bind_or_beside(&socket, name) {
                Ok(name) => return Ok(Self { socket, name, bound }),
                Err(error) if !is_taken(&error) => return Err(error),
                Err(_) => {
                    if let Some(errno) = bound.conflict(&bound) {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    // Another id that shares the port has the same name. Try again, since the next random number gives
                    // another name.
                }
            }
        }
    }

    /// Returns the other ids that have the same port number in the same space, at any address.
    fn others(&self) -> io::Result<Vec<(String, Bound)>> {
        let number = format!("{PORT}{}/{}/", self.bound.space.name(), self.bound.address.port());
        // The list of names may be unavailable, for example in a sandbox. Then the id detects only ids with the same
        // name.
        let names = abstract_names(number.as_bytes()).unwrap_or_default();
        let others = names.iter().filter(|found| found.is_trusted() && found.name != self.name.as_bytes());
        let bound = |found: &AbstractName| {
            Some((String::from_utf8_lossy(&found.name).into_owned(), Bound::of_name(&found.name)?))
        };
        Ok(others.filter_map(bound).collect())
    }

    pub(super) fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Returns a socket that listens at the port for ids of this machine. Its name begins with `doorbell-cm/listen`.
    /// The socket cannot use the name of the port itself. The kernel gives the name of a listening socket to each
    /// accepted socket, and an accepted socket must not hold the port.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if another id already listens there.
    pub(super) fn listen(&self) -> io::Result<OwnProcess> {
        let socket = new_socket()?;
        let any = self.bound.address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !self.bound.only;
        let host = if any { ANY.to_owned() } else { host(self.bound.address) };
        bind_or_beside(&socket, listener(self.bound.space, self.bound.address.port(), &host))?;
        // `Line` enforces the backlog that the program requested.
        SockRef::from(&socket).listen(KERNEL_BACKLOG)?;
        Ok(socket)
    }

    /// Connects to the id that listens at the address `to` of this machine. If no id listens there, connects to the id
    /// that listens at any address.
    ///
    /// # Errors
    ///
    /// - EBADF if the program has closed the socket.
    /// - ECONNREFUSED if no id listens, or if the listeners belong to several untrusted users.
    /// - EAGAIN if too many clients are connecting to the listener.
    pub(super) fn call(&self, to: SocketAddr) -> io::Result<()> {
        self.socket.expect_intact()?;
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let hosts = [host(to), any.to_string(), ANY.to_owned()];
        let names = hosts.map(|host| listener(self.bound.space, to.port(), &host));
        for (name, user) in listeners(&names, to.port(), self.bound.space)? {
            match SockRef::from(&self.socket).connect(&abstract_name(&name)?) {
                // The listener has ended since its name was listed, so try the next one.
                Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {}
                Ok(()) => {
                    let found = getsockopt(&self.socket, PeerCredentials)?.uid();
                    // Another user may have taken the name since it was listed, so check the user of the listener.
                    let is_expected = user.is_none_or(|user| user == found);
                    return if is_expected { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)) };
                }
                result => return result,
            }
        }
        Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> &OwnProcess {
        &self.socket
    }

    /// Returns the connected socket, which keeps the port taken.
    pub(super) fn into_socket(self) -> OwnProcess {
        self.socket
    }
}

/// Address in the name of a listener that listens at any address of IPv4 and IPv6.
const ANY: &str = "*";

fn listener(space: Space, port: u16, host: &str) -> String {
    format!("{LISTEN}{}/{port}/{host}", space.name())
}

/// Binds a name. If an untrusted user has the name, binds the name with a suffix. Returns the bound name.
///
/// # Errors
///
/// EADDRINUSE if this process's user or root has the name.
fn bind_or_beside(socket: &OwnProcess, name: String) -> io::Result<String> {
    let mut tries = 1;
    loop {
        let error = match SockRef::from(socket).bind(&abstract_name(&name)?) {
            Ok(()) => return Ok(name),
            Err(error) if is_taken(&error) => error,
            Err(error) => return Err(error),
        };
        let names = abstract_names(name.as_bytes()).unwrap_or_default();
        match names.iter().find(|found| found.name == name.as_bytes()) {
            Some(found) if found.is_trusted() => return Err(error),
            Some(_) => {
                let name = beside(&name)?;
                SockRef::from(socket).bind(&abstract_name(&name)?)?;
                return Ok(name);
            }
            // The owner of the name has released it since `bind` failed, so try again.
            None if tries < TRIES => tries += 1,
            None => return Err(error),
        }
    }
}

/// Returns the names of the listeners that a client should call, with their users. All listeners belong to the same
/// user. The most specific name comes first.
///
/// On one port, a listener at one address and a listener at any address exclude each other. But their sockets have
/// different names. While one user's program has one of the names, the kernel lets another user bind the other name.
/// The program of that other user must not receive the connections of the program that has the port.
///
/// # Errors
///
/// ECONNREFUSED if the listeners belong to several untrusted users.
fn listeners(names: &[String; 3], port: u16, space: Space) -> io::Result<Vec<(String, Option<u32>)>> {
    let Ok(found) = abstract_names(listener(space, port, "").as_bytes()) else {
        return Ok(names.iter().map(|name| (name.clone(), None)).collect());
    };
    let mut listeners = Vec::new();
    for name in names {
        let is_it = |found: &&AbstractName| {
            found.listens && str::from_utf8(&found.name).is_ok_and(|found| plain(found) == name)
        };
        let of_name = found.iter().filter(is_it);
        listeners.extend(of_name.map(|found| (String::from_utf8_lossy(&found.name).into_owned(), found.user)));
    }
    let own = nix::unistd::geteuid().as_raw();
    let preferred = [Some(own), Some(0), None].into_iter().find(|user| listeners.iter().any(|(_, of)| of == user));
    let users: Vec<_> = listeners.iter().map(|&(_, user)| user).collect();
    let user = match preferred {
        Some(user) => user,
        None if users.iter().all(|user| Some(user) == users.first()) => users.first().copied().flatten(),
        None => return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
    };
    listeners.retain(|&(_, of)| of == user);
    Ok(listeners)
}

/// Returns the bound address of a client, which the name of its socket contains. Returns `None` if the client has no
/// port.
pub(super) fn caller(from: &SockAddr) -> Option<Bound> {
    Bound::of_name(from.as_abstract_namespace()?)
}
