//! The Unix sockets by which devices find each other: their names, who is at the other end, and what is said.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, sendmsg,
    socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

use crate::shm::message::{MAX_BYTES, Message};
use crate::shm::own_process::{Opening, OwnProcess};
use crate::shm::sys::receive_message;

/// What a user reads as that the user namespace does not map, unless the kernel says otherwise.
const OVERFLOW_UID: u32 = 65_534;

pub(super) fn endpoint() -> io::Result<OwnProcess> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let opening = Opening::begin();
    Ok(OwnProcess::new(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?, &opening))
}

/// A socket that has the name of the device at `local`.
pub(super) fn host(local: SocketAddr) -> io::Result<OwnProcess> {
    let listener = endpoint()?;
    bind(listener.as_fd().as_raw_fd(), &name_of(local.ip(), local.port())?)?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

/// The name of the device with this address and port, in the network namespace of this thread.
pub(super) fn name_of(address: IpAddr, port: u16) -> io::Result<UnixAddr> {
    let namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    let name = format!("doorbell-link/{}/{address}/{port}", namespace.display());
    Ok(UnixAddr::new_abstract(name.as_bytes())?)
}

/// Is whoever is at the other end this process's user?
pub(super) fn check_user(connection: &impl AsFd) -> Result<(), String> {
    let own = geteuid().as_raw();
    let peer = getsockopt(connection, PeerCredentials).map_err(|error| format!("its user is unknown: {error}"))?.uid();
    if peer != own {
        return Err(format!("it runs as user {peer}, this process as {own}; memory is shared within one user"));
    }
    if own == overflow_uid() {
        return Err(format!("this process runs as user {own}, which stands for any user of other user namespaces"));
    }
    Ok(())
}

/// What a user reads as that the user namespace does not map.
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

/// What a look at a connection gives.
pub(super) enum Heard {
    Nothing,
    /// A message, and a descriptor that came along.
    Said(Message, Option<OwnedFd>),
    /// It ended, or said what nobody says.
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
