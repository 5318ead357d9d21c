//! Connections for tasks of tokio's runtime.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use doorbell_exchange::admission::{Event, Lobby};
use doorbell_exchange::asynchronous::Async;
use doorbell_exchange::setup::{self, EndpointDescription, Parsed, READY, SetupError};
use doorbell_exchange::{Connector, SendReceive, TokioLobby, TokioWaiter};
use doorbell_verbs::Channel;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs, lookup_host};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::device::Device;
use crate::listener::{AcceptError, ConnectError, ListenError};
use crate::opening::{ClientOpening, limits};
use crate::setup::{EstablishError, Options};

/// A device for connections in tokio's runtime. The runtime watches one file descriptor for all these connections.
/// Clones share one device.
#[derive(Clone, Debug)]
pub struct Tokio {
    device: Device,
    channel: Channel,
    waiter: TokioWaiter,
}

/// Errors of registering a device with the runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokioError {
    /// The device could not create a completion channel.
    #[error("the device could not create a completion channel: {0}")]
    Device(#[from] doorbell_verbs::Error),
    /// The runtime rejects the descriptor of the completion channel.
    #[error("the runtime could not register the completion channel: {0}")]
    Runtime(#[from] io::Error),
}

impl Device {
    /// Registers this device with the current runtime.
    ///
    /// # Errors
    ///
    /// Too many files are open, or the runtime was built without IO.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio.
    pub fn on_tokio(&self) -> Result<Tokio, TokioError> {
        let channel = self.verbs().create_channel()?;
        let waiter = TokioWaiter::new(&channel)?;
        Ok(Tokio { device: self.clone(), channel, waiter })
    }
}

/// A connection whose calls are futures of tokio's runtime.
type Connection<P> = Async<TokioWaiter, <P as Connector>::Connection>;

impl Tokio {
    /// Listens on a TCP address for clients, which set up connections over TCP. Port 0 takes a free port.
    ///
    /// # Errors
    ///
    /// The address is no address of this machine, or another socket uses the address.
    pub async fn listen<P: Connector>(
        &self,
        address: impl ToSocketAddrs,
        options: Options<P>,
    ) -> Result<TokioListener<P>, ListenError> {
        let listen = async {
            let tcp = TcpListener::bind(address).await?.into_std()?;
            let limits = limits(&options.config);
            let opening = ClientOpening::new(self.device.clone(), options, Some(self.channel.clone()));
            let lobby = Lobby::new(tcp, opening, limits)?;
            Ok((lobby.local_addr()?, TokioLobby::new(lobby)?))
        };
        match listen.await {
            Ok((address, visitors)) => {
                Ok(TokioListener { waiter: self.waiter.clone(), address, visitors: Mutex::new(visitors) })
            }
            Err(error) => Err(ListenError { address: "the given address".to_owned(), error }),
        }
    }

    /// Connects to a listener, within the deadline.
    ///
    /// This method is cancel safe: if the future is dropped, the listener notices that the client is gone.
    ///
    /// # Errors
    ///
    /// As of [`Device::connect`].
    pub async fn connect<P: Connector>(
        &self,
        address: impl ToSocketAddrs,
        options: Options<P>,
        deadline: Duration,
    ) -> Result<Connection<P>, ConnectError> {
        let until = Until::new(deadline);
        let mut last = ConnectError::Address(io::ErrorKind::InvalidInput.into());
        let servers = until.wait(lookup_host(address)).await.map_err(ConnectError::Address)?;
        for server in servers {
            match until.wait(TcpStream::connect(server)).await {
                Ok(stream) => return Ok(self.establish(&options, stream, server, until).await?),
                Err(error) => last = ConnectError::Unreachable { server, error },
            }
        }
        Err(last)
    }

    /// Makes a connection with the peer at the other end of a stream.
    async fn establish<P: Connector>(
        &self,
        options: &Options<P>,
        mut stream: TcpStream,
        peer: SocketAddr,
        until: Until,
    ) -> Result<Connection<P>, EstablishError> {
        let peer = peer.to_string();
        let _ = stream.set_nodelay(true); // without this option, the set-up is only slower
        let endpoint = options.protocol.endpoint(self.device.pd(), &options.config, Some(&self.channel))?;
        let own = options.protocol.describe(&endpoint);
        let broke = |error| SetupError::broke(&peer, error, until.given);
        until.wait(stream.write_all(&setup::hello(&[own]))).await.map_err(broke)?;
        let theirs = describe(&mut stream, &peer, until).await?;
        let connection = options.protocol.connect(endpoint, &theirs)?;
        let unready = |error| EstablishError::unready(&peer, error, until.given);
        until.wait(stream.write_all(&[READY])).await.map_err(unready)?;
        let said = until.wait(stream.read_u8()).await.map_err(unready)?;
        EstablishError::check_ready(&peer, said)?;
        Ok(Async::new(connection, self.waiter.clone()))
    }
}

/// Receives the peer's description.
async fn describe(stream: &mut TcpStream, peer: &str, until: Until) -> Result<EndpointDescription, SetupError> {
    let broke = |error| SetupError::broke(peer, error, until.given);
    let mut bytes = Vec::new();
    loop {
        match setup::parse(peer, &bytes, 1)? {
            Parsed::Complete(descriptions) => return Ok(descriptions[0]),
            Parsed::Incomplete(more) => {
                let known = bytes.len();
                bytes.resize(known + more, 0);
                until.wait(stream.read_exact(&mut bytes[known..])).await.map_err(broke)?;
            }
        }
    }
}

/// One deadline for several operations together.
#[derive(Clone, Copy)]
struct Until {
    /// Instant of the deadline. `None` if the clock cannot express the instant, so that the deadline never passes.
    at: Option<Instant>,
    given: Duration,
}

impl Until {
    fn new(given: Duration) -> Self {
        Self { at: Instant::now().checked_add(given), given }
    }

    async fn wait<T>(&self, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        match self.at {
            Some(at) => timeout_at(at, future).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            None => future.await,
        }
    }
}

/// A listener that accepts clients in tokio's runtime. Peers that do not complete the set-up do not delay clients.
/// Several tasks may call [`accept`](Self::accept) at once.
#[derive(Debug)]
pub struct TokioListener<P: Connector = SendReceive> {
    waiter: TokioWaiter,
    address: SocketAddr,
    /// Visitors: peers that have connected and are no clients yet. One task at a time handles all visitors.
    visitors: Mutex<TokioLobby<ClientOpening<P>>>,
}

impl<P: Connector> TokioListener<P> {
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
        self.visitors.get_mut().set_total(deadline);
    }

    /// Waits for the next client until the deadline.
    ///
    /// This method is cancel safe: if the future is dropped, no client is lost.
    ///
    /// # Errors
    ///
    /// As of [`Listener::accept`](crate::Listener::accept).
    pub async fn accept(&self, deadline: Duration) -> Result<Connection<P>, AcceptError> {
        let until = Until::new(deadline);
        let event = until.wait(async { self.visitors.lock().await.next().await }).await;
        match event {
            Ok(Event::Admitted { opening: connection, .. }) => Ok(Async::new(connection, self.waiter.clone())),
            Ok(Event::Refused { from: peer, why }) => {
                Err(AcceptError::Client { peer, error: EstablishError::unadmitted(peer, why) })
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(AcceptError::Deadline(deadline)),
            Err(error) => Err(error.into()),
        }
    }
}
