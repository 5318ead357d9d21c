//! Set-up of a connection over a TCP stream to the peer.
//!
//! Each side sends its description, connects its queue pair by the description of the peer, and then sends one byte.
//! Each side waits for the byte of the peer. Neither side therefore sends messages before the other side can receive
//! them, and each side notices if the other side could not connect.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use doorbell_exchange::admission::Why;
use doorbell_exchange::setup::{self, EndpointDescription, READY, SetupError, Timed};
use doorbell_exchange::{self as exchange, Config, Connector, SendReceive};
use doorbell_verbs::Channel;

use crate::device::Device;

/// Protocol and configuration of a connection. Both ends must use the same protocol and the same setting of flow
/// control. Windows, depths and maximum lengths of messages may differ.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options<P = SendReceive> {
    pub(crate) protocol: P,
    pub(crate) config: Config,
    pub(crate) sleeps: bool,
}

impl Default for Options {
    /// Options of Send-Receive with [`Config::default`].
    fn default() -> Self {
        Self::of(SendReceive)
    }
}

impl<P: Connector> Options<P> {
    /// Creates options of a protocol with the default configuration.
    pub fn of(protocol: P) -> Self {
        Self { protocol, config: Config::default(), sleeps: true }
    }

    /// Sets the configuration. If a value is invalid, [`connect`](Device::connect) or
    /// [`accept`](crate::Listener::accept) returns an error that states the allowed values.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Makes blocking connections poll without ever sleeping. Polling saves some microseconds of latency, but occupies
    /// a processor. Connections of tokio ignore this option.
    pub fn busy_poll(mut self) -> Self {
        self.sleeps = false;
        self
    }

    pub(crate) fn channel(&self, device: &Device) -> Result<Option<Channel>, EstablishError> {
        Ok(if self.sleeps { Some(device.verbs().create_channel()?) } else { None })
    }
}

/// Errors of setting up a connection after both sides have a TCP connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError {
    /// The peer does not speak Doorbell's set-up, is of another release, or is too slow.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The options of this side are invalid, or do not match the options of the peer.
    #[error("the connection cannot be made: {0}")]
    Unfit(#[from] exchange::ConnectError),
    /// The device has no room for a connection.
    #[error("the device has no room for a connection: {0}")]
    Device(#[from] doorbell_verbs::Error),
    /// The listener had no room for another peer, and of all peers, this peer had been silent for the longest time.
    #[error("{peer} was disconnected to make room for a new client: of all peers, it had been silent longest")]
    Evicted {
        /// The address of the disconnected peer.
        peer: String,
    },
    /// The peer ended the set-up, since the peer cannot connect with this side.
    #[error("{peer} ended the set-up: its options do not match the options of this side, or its program ended")]
    GaveUp {
        /// The name of the peer.
        peer: String,
    },
}

impl EstablishError {
    /// Returns the error of a failed exchange of ready bytes. With its ready byte, each side reports that it is
    /// connected.
    pub(crate) fn unready(peer: &str, error: io::Error, deadline: Duration) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Self::GaveUp { peer: peer.to_owned() }
            }
            _ => SetupError::broke(peer, error, deadline).into(),
        }
    }

    /// Returns the error of a client that was not admitted.
    pub(crate) fn unadmitted(peer: SocketAddr, why: Why<Self>) -> Self {
        let peer = peer.to_string();
        match why {
            Why::Refused(error) => error,
            Why::Deadline(total) => SetupError::Deadline { peer, seconds: total.as_secs_f64() }.into(),
            Why::Ended(error) => SetupError::Io { peer, error }.into(),
            Why::Evicted => Self::Evicted { peer },
        }
    }

    /// Checks that `said`, the byte after the description of `peer`, is the ready byte.
    pub(crate) fn check_ready(peer: &str, said: u8) -> Result<(), Self> {
        let what = "no ready byte after the description";
        if said == READY { Ok(()) } else { Err(SetupError::Description { peer: peer.to_owned(), what }.into()) }
    }
}

pub(crate) fn name_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string())
}

/// Exchanges descriptions, calls `connect` with the description of the peer, and waits until the peer has also
/// connected.
pub(crate) fn meet<T, E: From<EstablishError>>(
    stream: &TcpStream,
    own: EndpointDescription,
    deadline: Duration,
    connect: impl FnOnce(&EndpointDescription) -> Result<T, E>,
) -> Result<T, E> {
    let begun = Instant::now();
    let theirs = setup::exchange(stream, &[own], deadline).map_err(EstablishError::from)?;
    let connected = connect(&theirs[0])?;
    let mut timed = Timed::new(stream, deadline.saturating_sub(begun.elapsed()));
    be_ready(&mut timed, &name_of(stream), deadline)?;
    Ok(connected)
}

/// Reports to the peer that this side is connected, and waits until the peer reports the same.
fn be_ready(timed: &mut Timed<'_>, peer: &str, deadline: Duration) -> Result<(), EstablishError> {
    let mut said = [0];
    let result = timed.write_all(&[READY]).and_then(|()| timed.read_exact(&mut said));
    result.map_err(|error| EstablishError::unready(peer, error, deadline))?;
    EstablishError::check_ready(peer, said[0])
}

/// Makes a connection with the peer at the other end of a stream.
pub(crate) fn establish<P: Connector>(
    device: &Device,
    options: &Options<P>,
    stream: &TcpStream,
    deadline: Duration,
) -> Result<P::Connection, EstablishError> {
    let channel = options.channel(device)?;
    let endpoint = options.protocol.endpoint(device.pd(), &options.config, channel.as_ref())?;
    let own = options.protocol.describe(&endpoint);
    meet(stream, own, deadline, |peer| Ok(options.protocol.connect(endpoint, peer)?))
}
