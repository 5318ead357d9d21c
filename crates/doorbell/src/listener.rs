//! Waiting for peers, and connecting to them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use doorbell_exchange::blocking::Blocking;
use doorbell_exchange::{Connector, SendReceive};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::device::Device;
use crate::setup::{EstablishError, Options, establish};

/// Why a listener was not opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
#[non_exhaustive]
pub struct ListenError {
    /// The address as it was given, or as it was resolved.
    pub address: String,
    /// Why.
    pub error: io::Error,
}

/// Why no client was accepted. The listener goes on in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// Nobody came.
    #[error("no client came within {} s", .0.as_secs_f64())]
    Deadline(Duration),
    /// The operating system has no connection to give.
    #[error("a TCP connection could not be accepted: {0}")]
    Io(#[from] io::Error),
    /// Somebody came who did not become a client. The next one may.
    #[error("{peer} did not become a client: {error}")]
    Client {
        /// Who.
        peer: SocketAddr,
        /// Why not.
        error: EstablishError,
    },
}

/// Why a server was not connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address names nothing.
    #[error("the server's address names no host and port: {0}")]
    Address(io::Error),
    /// Nobody listens there, or nobody answers.
    #[error("{server} cannot be reached: {error}")]
    Unreachable {
        /// Where.
        server: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The server was reached, and yet no connection came about.
    #[error(transparent)]
    Server(#[from] EstablishError),
}

/// Waits for clients. Several threads may call [`accept`](Self::accept) at once, so that one slow client does not hold
/// up the others.
#[derive(Debug)]
pub struct Listener<P = SendReceive> {
    device: Device,
    tcp: TcpListener,
    options: Options<P>,
    client_deadline: Duration,
}

/// The time that a client has for the set-up, unless it is set.
pub(crate) const CLIENT_DEADLINE: Duration = Duration::from_secs(5);

impl Device {
    /// Listens on a TCP address, over which connections are set up; messages go by this device. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// The address is no address of this machine, or is taken.
    pub fn listen<P: Connector>(
        &self,
        address: impl ToSocketAddrs,
        options: Options<P>,
    ) -> Result<Listener<P>, ListenError> {
        let addresses: Vec<_> = match address.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(error) => return Err(ListenError { address: "the address given".to_owned(), error }),
        };
        let listen = || {
            let tcp = TcpListener::bind(&addresses[..])?;
            tcp.set_nonblocking(true)?;
            Ok(tcp)
        };
        let text = || addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        let tcp = listen().map_err(|error| ListenError { address: text(), error })?;
        Ok(Listener { device: self.clone(), tcp, options, client_deadline: CLIENT_DEADLINE })
    }

    /// Connects to a [`Listener`], within the deadline.
    ///
    /// # Errors
    ///
    /// Nobody listens there, the listener does not answer in time or speaks something else, or the options are wrong or
    /// do not fit those of the listener.
    pub fn connect<P: Connector>(
        &self,
        address: impl ToSocketAddrs,
        options: Options<P>,
        deadline: Duration,
    ) -> Result<Blocking<P::Connection>, ConnectError> {
        let begun = Instant::now();
        let left = || deadline.saturating_sub(begun.elapsed());
        let mut last = ConnectError::Address(io::ErrorKind::InvalidInput.into());
        for server in address.to_socket_addrs().map_err(ConnectError::Address)? {
            // No time at all is an error of its own to the operating system.
            match TcpStream::connect_timeout(&server, left().max(Duration::from_nanos(1))) {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true); // it would only be slower
                    return Ok(Blocking::new(establish(self, &options, &stream, left())?));
                }
                Err(error) => last = ConnectError::Unreachable { server, error },
            }
        }
        Err(last)
    }
}

impl<P: Connector> Listener<P> {
    /// The address that clients connect to.
    ///
    /// # Errors
    ///
    /// The operating system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Gives a client that has come this much time to set up its connection, instead of five seconds.
    pub fn set_client_deadline(&mut self, deadline: Duration) {
        self.client_deadline = deadline;
    }

    /// Waits for the next client until the deadline.
    ///
    /// # Errors
    ///
    /// Nobody came. Or somebody came who does not speak Doorbell's set-up, sends nothing in time, or has options that
    /// do not fit: then the error names it, and the next call waits for the next client.
    pub fn accept(&self, deadline: Duration) -> Result<Blocking<P::Connection>, AcceptError> {
        let begun = Instant::now();
        let left = || deadline.saturating_sub(begun.elapsed());
        let (stream, peer) = loop {
            match self.tcp.accept() {
                Ok(client) => break client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            if left().is_zero() {
                return Err(AcceptError::Deadline(deadline));
            }
            // Rounded up, so that it does not spin for the last millisecond.
            let time = PollTimeout::try_from(left() + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut waited = [PollFd::new(self.tcp.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waited, time) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(AcceptError::Io(error.into())),
            }
        };
        let _ = stream.set_nodelay(true); // it would only be slower
        match establish(&self.device, &self.options, &stream, self.client_deadline.min(left())) {
            Ok(connection) => Ok(Blocking::new(connection)),
            Err(error) => Err(AcceptError::Client { peer, error }),
        }
    }
}
