//! Unix sockets by which devices find each other: names, checks of the peer's user, and messages.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen,
    sendmsg, socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

use crate::names::{abstract_names, beside, beside_prefix};
use crate::own_process::{Opening, OwnProcess};
use crate::shm::message::{MAX_BYTES, Message};
use crate::shm::sys::receive_message;

/// Default user ID by which the kernel represents all users that have no mapping in a user namespace.
const OVERFLOW_UID: u32 = 65_534;

fn endpoint() -> io::Result<OwnProcess> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let opening = Opening::begin();
    Ok(OwnProcess::new(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?, &opening))
}

/// Returns a socket that listens at the name of the device at `local`.
pub(super) fn host(local: SocketAddr) -> io::Result<OwnProcess> {
    host_at(&name_of(local.ip(), local.port()))
}

/// Listens like [`host`]. If another user occupies the device's name, listens at a name beside it (see `names.rs`).
/// Returns the socket, and whether its name is one beside the device's name.
pub(super) fn host_or_beside(local: SocketAddr) -> io::Result<(OwnProcess, bool)> {
    let error = match host(local) {
        Ok(listener) => return Ok((listener, false)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        Err(error) => return Err(error),
    };
    let plain = name_of(local.ip(), local.port());
    let names = abstract_names(plain.as_bytes())?;
    if !names.iter().any(|found| found.name == plain.as_bytes() && !found.is_trusted()) {
        return Err(error);
    }
    Ok((host_at(&beside(&plain)?)?, true))
}

fn host_at(name: &str) -> io::Result<OwnProcess> {
    let listener = endpoint()?;
    bind(listener.as_fd().as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

/// Connects to the device with this address and port. Returns `None` if no socket listens at the device's name.
///
/// # Errors
///
/// The process of the device belongs to another user, or the connection fails.
pub(super) fn call(address: IpAddr, port: u16) -> Result<Option<OwnProcess>, String> {
    let plain = name_of(address, port);
    let Some(connection) = call_at(plain.as_bytes())? else { return Ok(None) };
    let Err(why) = check_user(&connection) else { return Ok(Some(connection)) };
    drop(connection);
    let names = abstract_names(beside_prefix(&plain).as_bytes()).unwrap_or_default();
    let own = geteuid().as_raw();
    for found in names.iter().filter(|found| found.listens && found.user == Some(own)) {
        if let Some(connection) = call_at(&found.name)?
            && check_user(&connection).is_ok()
        {
            return Ok(Some(connection));
        }
    }
    Err(why)
}

pub(super) fn call_at(name: &[u8]) -> Result<Option<OwnProcess>, String> {
    let connection = endpoint().map_err(|error| format!("no socket: {error}"))?;
    let name = UnixAddr::new_abstract(name).map_err(|error| format!("no name: {error}"))?;
    match connect(connection.as_fd().as_raw_fd(), &name) {
        Ok(()) => Ok(Some(connection)),
        Err(nix::Error::ECONNREFUSED) => Ok(None),
        Err(error) => Err(format!("the connection to the device failed: {error}")),
    }
}

/// Returns the socket name of the device with this address and port in the network namespace of this thread.
pub(super) fn name_of(address: IpAddr, port: u16) -> String {
    let namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    format!("doorbell-link/{}/{address}/{port}", namespace.display())
}

/// Checks that the process at the other end runs as the same user as this process.
pub(super) fn check_user(connection: &impl AsFd) -> Result<(), String> {
    let own = geteuid().as_raw();
    let peer = getsockopt(connection, PeerCredentials)
        .map_err(|error| format!("the user of the device is unknown: {error}"))?
        .uid();
    if peer != own {
        return Err(format!(
            "the device belongs to user {peer}, but this process runs as user {own}; both users must be equal"
        ));
    }
    if own == overflow_uid() {
        return Err(format!(
            "this process runs as user {own}, by which the kernel represents all users of other namespaces, so the \
             user of the device is unknown"
        ));
    }
    Ok(())
}

/// Returns the user ID by which the kernel represents all users that have no mapping in this user namespace.
fn overflow_uid() -> u32 {
    let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID)
}

pub(super) fn send(connection: &impl AsFd, message: Message, file: Option<RawFd>) -> io::Result<()> {
    let bytes = message.to_bytes();
    let files: Vec<_> = file.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(connection.as_fd().as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None)?;
    Ok(())
}

/// Result of one read from a connection.
pub(super) enum Heard {
    Nothing,
    /// A message, and a descriptor that arrived with it.
    Said(Message, Option<OwnedFd>),
    /// The connection ended, or the peer sent an invalid message.
    Ended,
}

pub(super) fn hear(connection: &impl AsFd) -> Heard {
    let mut bytes = [0; MAX_BYTES];
    let received = match receive_message(connection.as_fd(), &mut bytes) {
        Ok(received) => received,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Heard::Nothing,
        Err(_) => return Heard::Ended,
    };
    let mut files = received.files;
    match Message::parse(&bytes[..received.length]) {
        Some(message) if received.is_whole && files.len() <= 1 => Heard::Said(message, files.pop()),
        _ => Heard::Ended,
    }
}
