//! Listeners that accept peers, and connecting to a listener.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use doorbell_exchange::admission::{Event, Lobby};
use doorbell_exchange::blocking::Blocking;
use doorbell_exchange::{Connector, SendReceive};
use doorbell_sync::IgnorePoison;

use crate::device::Device;
use crate::opening::{ClientOpening, limits};
use crate::setup::{EstablishError, Options, establish};

/// Errors of opening a listener.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
#[non_exhaustive]
pub struct ListenError {
    /// The resolved addresses, or a placeholder if the given address could not be resolved.
    pub address: String,
    /// The reason of the failure.
    pub error: io::Error,
}

/// Errors of accepting a client. After each of these errors, the listener still accepts clients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// No client came before the deadline.
    #[error("no client came within {} s", .0.as_secs_f64())]
    Deadline(Duration),
    /// The operating system could not accept a connection.
    #[error("a TCP connection could not be accepted: {0}")]
    Io(#[from] io::Error),
    /// A peer connected, but did not complete the set-up of a client.
    #[error("{peer} did not become a client: {error}")]
    Client {
        /// The address of the peer.
        peer: SocketAddr,
        /// The reason of the failure.
        error: EstablishError,
    },
}

/// Errors of connecting to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has no host or port.
    #[error("the address of the server must be a host and a port, such as 127.0.0.1:4000: {0}")]
    Address(io::Error),
    /// No listener exists at the address, or the listener does not answer.
    #[error("{server} cannot be reached: {error}")]
    Unreachable {
        /// The address of the server.
        server: SocketAddr,
        /// The reason of the failure.
        error: io::Error,
    },
    /// The server answered, but the set-up of the connection failed.
    #[error(transparent)]
    Server(#[from] EstablishError),
}

/// A listener that accepts clients. Peers that do not complete the set-up do not delay clients. Several threads may
/// call [`accept`](Self::accept) at once.
#[derive(Debug)]
pub struct Listener<P: Connector = SendReceive> {
    address: SocketAddr,
    visitors: Visitors<P>,
}

/// Visitors: peers that have connected and are no clients yet. One thread at a time handles all visitors.
#[derive(Debug)]
struct Visitors<P: Connector> {
    /// The lobby of the visitors. `None` while a thread handles the visitors.
    lobby: Mutex<Option<Lobby<ClientOpening<P>>>>,
    is_back: Condvar,
}

/// The right of one thread to handle the visitors. Dropping it passes the right to the next thread.
struct Turn<'a, P: Connector> {
    lobby: Option<Lobby<ClientOpening<P>>>,
    visitors: &'a Visitors<P>,
}

impl<P: Connector> Visitors<P> {
    /// Waits until no other thread handles the visitors. Returns `None` if another thread still handles them at the
    /// instant `until`.
    fn turn(&self, until: Option<Instant>) -> Option<Turn<'_, P>> {
        let mut lobby = self.lobby.lock().ignore_poison();
        loop {
            if lobby.is_some() {
                return Some(Turn { lobby: lobby.take(), visitors: self });
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            lobby = self.is_back.wait_timeout(lobby, left).ignore_poison().0;
        }
    }
}

impl<P: Connector> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        *self.visitors.lobby.lock().ignore_poison() = self.lobby.take();
        self.visitors.is_back.notify_one();
    }
}

impl Device {
    /// Listens on a TCP address for clients. Clients set up connections over TCP, and their messages go over this
    /// device. Port 0 takes a free port.
    ///
    /// # Errors
    ///
    /// The address is no address of this machine, or another socket uses the address.
    pub fn listen<P: Connector>(
        &self,
        address: impl ToSocketAddrs,
        options: Options<P>,
    ) -> Result<Listener<P>, ListenError> {
        let addresses: Vec<_> = match address.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(error) => return Err(ListenError { address: "the given address".to_owned(), error }),
        };
        let listen = || {
            let limits = limits(&options.config);
            let opening = ClientOpening::new(self.clone(), options, None);
            let lobby = Lobby::new(TcpListener::bind(&addresses[..])?, opening, limits)?;
            Ok((lobby.local_addr()?, lobby))
        };
        let text = || addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        let (address, lobby) = listen().map_err(|error| ListenError { address: text(), error })?;
        let visitors = Visitors { lobby: Mutex::new(Some(lobby)), is_back: Condvar::new() };
        Ok(Listener { address, visitors })
    }

    /// Connects to a [`Listener`], within the deadline.
    ///
    /// # Errors
    ///
    /// No listener exists at the address, the listener does not answer in time, or the listener speaks another
    /// protocol. The options are invalid, or do not match the options of the listener.
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
            // The operating system rejects a timeout of 0.
            match TcpStream::connect_timeout(&server, left().max(Duration::from_nanos(1))) {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true); // without this option, the set-up is only slower
                    return Ok(Blocking::new(establish(self, &options, &stream, left())?));
                }
                Err(error) => last = ConnectError::Unreachable { server, error },
            }
        }
        Err(last)
    }
}

impl<P: Connector> Listener<P> {
    /// Returns the address that clients connect to.
    ///
    /// # Errors
    ///
    /// This function never fails: the address was determined when the listener was opened.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Sets the time after which a client that has not completed its set-up is rejected. The default is five seconds.
    pub fn set_client_deadline(&mut self, deadline: Duration) {
        if let Some(lobby) = self.visitors.lobby.get_mut().ignore_poison() {
            lobby.set_total(deadline);
        }
    }

    /// Waits for the next client until the deadline.
    ///
    /// # Errors
    ///
    /// No client came before the deadline. Or a peer does not speak Doorbell's set-up protocol, sends nothing in time,
    /// or has options that do not match. [`AcceptError::Client`] then names the peer, and the next call waits for the
    /// next client.
    pub fn accept(&self, deadline: Duration) -> Result<Blocking<P::Connection>, AcceptError> {
        let until = Instant::now().checked_add(deadline);
        let event = {
            let mut turn = self.visitors.turn(until).ok_or(AcceptError::Deadline(deadline))?;
            turn.lobby.as_mut().and_then(|lobby| lobby.next(until).transpose()).transpose()?
        };
        match event {
            None => Err(AcceptError::Deadline(deadline)),
            Some(Event::Refused { from: peer, why }) => {
                Err(AcceptError::Client { peer, error: EstablishError::unadmitted(peer, why) })
            }
            Some(Event::Admitted { opening: connection, .. }) => Ok(Blocking::new(connection)),
        }
    }
}
