//! Names of abstract Unix sockets, and the users that have bound them.
//!
//! An abstract name has no permissions: any user of the machine may bind it first. The *plain* name is the name that a
//! process normally binds. If an untrusted user has bound it, the process binds a name *beside* it: the plain name with
//! a random suffix ([`beside`]). A process that connects looks for all names beside the plain name, and checks their
//! users. The kernel reports the user of each socket by `NETLINK_SOCK_DIAG` (`struct unix_diag_msg`).

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::geteuid;

use crate::own_process::{Opening, OwnProcess};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Size of `struct unix_diag_msg` in bytes.
const DIAG_BYTES: usize = 16;
const UDIAG_SHOW_NAME: u32 = 0x1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
const TCP_LISTEN: u8 = 10;
/// Flag in `/proc/net/unix` of a socket that listens.
const ACCEPTS_CONNECTIONS: u32 = 1 << 16;
/// Size of the buffer for one batch of the kernel's answer, in bytes.
const BATCH_BYTES: usize = 32 << 10;
/// Maximum time to wait for the kernel's answer. The kernel answers immediately, but a sandbox may drop the request.
const PATIENCE_MS: i64 = 1000;

/// Text between the plain name and the random number in a name beside it.
const BESIDE: &str = "+beside.";

/// A name that a socket of this network namespace has bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbstractName {
    /// The name without the zero byte at the beginning of abstract names.
    pub name: Vec<u8>,
    /// The user that created the socket. `None` if the kernel does not report it.
    pub user: Option<u32>,
    /// Whether the socket accepts connections.
    pub listens: bool,
}

impl AbstractName {
    /// Returns whether the socket's owner is the user of this process, root, or unknown. If so, this process does not
    /// bind a name beside this name.
    pub fn is_trusted(&self) -> bool {
        self.user.is_none_or(|user| user == 0 || user == geteuid().as_raw())
    }
}

/// Returns a new random name beside a plain name.
///
/// # Errors
///
/// The operating system provides no randomness.
pub fn beside(plain: &str) -> io::Result<String> {
    let random = getrandom::u64().map_err(io::Error::other)?;
    Ok(format!("{}{random:016x}", beside_prefix(plain)))
}

/// Returns the prefix of all names beside a plain name.
pub fn beside_prefix(plain: &str) -> String {
    format!("{plain}{BESIDE}")
}

/// Returns the plain name for a name that may be a name beside the plain one.
pub fn plain(name: &str) -> &str {
    name.split_once(BESIDE).map_or(name, |(plain, _)| plain)
}

/// Returns the names that begin with `prefix`, in the network namespace of this thread.
///
/// # Errors
///
/// The kernel lists names neither by netlink nor in `/proc/thread-self/net/unix`.
pub fn abstract_names(prefix: &[u8]) -> io::Result<Vec<AbstractName>> {
    let mut names = match by_netlink() {
        Ok(names) => names,
        // The kernel lacks the module `unix_diag`, or a sandbox forbids netlink.
        Err(_) => by_table()?,
    };
    names.retain(|name| name.name.starts_with(prefix));
    Ok(names)
}

fn by_netlink() -> io::Result<Vec<AbstractName>> {
    let opening = Opening::begin();
    let socket = OwnProcess::new(
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?,
        &opening,
    );
    drop(opening);
    let patience = TimeVal::milliseconds(PATIENCE_MS);
    setsockopt(&socket.as_fd(), ReceiveTimeout, &patience)?;
    sendto(socket.as_fd().as_raw_fd(), &request(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let (mut names, mut batch) = (Vec::new(), vec![0; BATCH_BYTES]);
    loop {
        let length = match recv(socket.as_fd().as_raw_fd(), &mut batch, MsgFlags::empty()) {
            Err(nix::Error::EINTR) => continue,
            received => received?,
        };
        if take_batch(&batch[..length], &mut names)? {
            return Ok(names);
        }
    }
}

/// Returns the request for the names and users of all Unix sockets: `struct nlmsghdr` and `struct unix_diag_req`.
fn request() -> Vec<u8> {
    const LENGTH: u32 = 40;
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 8]); // sequence number, port
    bytes.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // sockets of any state
    bytes.extend([0; 4]); // inode
    bytes.extend((UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    bytes.extend([0; 8]); // cookie
    bytes
}

/// Parses the messages of one batch and adds their names to `names`. Returns whether the batch is the last one.
fn take_batch(mut batch: &[u8], names: &mut Vec<AbstractName>) -> io::Result<bool> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about Unix sockets is truncated");
    while let Some(header) = batch.first_chunk::<NLMSG_HEADER_BYTES>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = batch.get(NLMSG_HEADER_BYTES..length).ok_or_else(invalid)?;
        match u16::from_ne_bytes([header[4], header[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = body.first_chunk().map_or(libc::EIO, |errno| -i32::from_ne_bytes(*errno));
                return Err(io::Error::from_raw_os_error(errno));
            }
            SOCK_DIAG_BY_FAMILY => names.extend(parse(body)),
            _ => {}
        }
        batch = batch.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    if batch.is_empty() { Ok(false) } else { Err(invalid()) }
}

/// Parses `struct unix_diag_msg` and its attributes. Returns `None` if the socket has no abstract name.
fn parse(message: &[u8]) -> Option<AbstractName> {
    let state = *message.get(2)?;
    let mut attributes = message.get(DIAG_BYTES..)?;
    let (mut name, mut user) = (None, None);
    while let Some(header) = attributes.first_chunk::<ATTRIBUTE_HEADER_BYTES>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        match u16::from_ne_bytes([header[2], header[3]]) {
            UNIX_DIAG_NAME => name = value.strip_prefix(b"\0"),
            UNIX_DIAG_UID => user = value.first_chunk().map(|user| u32::from_ne_bytes(*user)),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(AbstractName { name: name?.to_vec(), user, listens: state == TCP_LISTEN })
}

/// Reads the names from `/proc/thread-self/net/unix`. The path names the thread, since the thread may be in another
/// network namespace than the other threads of its process.
fn by_table() -> io::Result<Vec<AbstractName>> {
    let table = BufReader::with_capacity(1 << 16, File::open("/proc/thread-self/net/unix")?);
    let mut names = Vec::new();
    for line in table.split(b'\n') {
        names.extend(parse_line(&line?));
    }
    Ok(names)
}

/// Parses `ADDRESS: REFERENCES PROTOCOL FLAGS TYPE STATE INODE NAME`, in which `@` stands for the zero byte at the
/// beginning of an abstract name. The name extends to the end of the line, so a name with spaces cannot imitate another
/// name.
fn parse_line(line: &[u8]) -> Option<AbstractName> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let flags = u32::from_str_radix(str::from_utf8(words.nth(3)?).ok()?, 16).ok()?;
    let at = line.windows(2).position(|pair| pair == b" @")?;
    Some(AbstractName { name: line[at + 2..].to_vec(), user: None, listens: flags & ACCEPTS_CONNECTIONS != 0 })
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    fn found(name: &str) -> [Vec<AbstractName>; 2] {
        [by_netlink().unwrap(), by_table().unwrap()]
            .map(|names| names.into_iter().filter(|found| found.name.starts_with(name.as_bytes())).collect())
    }

    #[test]
    fn a_listener_is_found_with_its_user_until_it_ends() {
        let name = beside("doorbell test/name with spaces @ and a sign").unwrap();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let [by_netlink, by_table] = found(&name);
        let expected = |user| vec![AbstractName { name: name.clone().into_bytes(), user, listens: true }];
        assert_eq!(by_netlink, expected(Some(geteuid().as_raw())));
        assert_eq!(by_table, expected(None));
        assert!(by_netlink[0].is_trusted() && by_table[0].is_trusted());
        drop(listener);
        assert_eq!(found(&name), [Vec::new(), Vec::new()]);
    }

    #[test]
    fn more_sockets_than_one_batch_holds_are_all_found() {
        const COUNT: usize = 300;
        let name = beside(&format!("doorbell test/{}", "long".repeat(12))).unwrap();
        let listeners: Vec<_> = (0..COUNT)
            .map(|number| {
                let address = SocketAddr::from_abstract_name(format!("{name}/{number}")).unwrap();
                UnixListener::bind_addr(&address).unwrap()
            })
            .collect();
        assert_eq!(found(&name).map(|names| names.len()), [COUNT; 2]);
        drop(listeners);
    }

    #[test]
    fn truncated_answers_are_errors_or_omit_a_socket() {
        let message = |kind: u16, body: &[u8]| {
            let length = (NLMSG_HEADER_BYTES + body.len()) as u32;
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        let body = [&[1, 1, TCP_LISTEN, 0][..], &[0; 12], &[7, 0, 0, 0, 0, b'a', b'b', 0]].concat();
        let whole = message(SOCK_DIAG_BY_FAMILY, &body);
        let mut names = Vec::new();
        assert!(!take_batch(&whole, &mut names).unwrap());
        assert_eq!(names, [AbstractName { name: b"ab".to_vec(), user: None, listens: true }]);
        for length in 1..whole.len() {
            let mut names = Vec::new();
            assert!(take_batch(&whole[..length], &mut names).is_err(), "{length}");
            assert_eq!(names, []);
        }
        for length in 0..body.len() {
            // The last byte of the message is padding after the name. So `parse` accepts a truncated message only if no
            // other byte is missing.
            let is_whole = length >= body.len() - 1;
            assert_eq!(parse(&body[..length]).is_some(), is_whole, "{length}");
        }
        let refused = message(NLMSG_ERROR, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(take_batch(&refused, &mut names).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert!(take_batch(&message(NLMSG_DONE, &[0; 4]), &mut names).unwrap());
    }

    #[test]
    fn a_name_beside_another_leads_to_it() {
        let name = beside("plain").unwrap();
        assert_ne!(name, beside("plain").unwrap());
        assert_eq!((plain(&name), plain("plain")), ("plain", "plain"));
    }
}
