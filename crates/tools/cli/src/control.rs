//! Control connections: TCP connections on which two commands agree on an exchange over RDMA.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use clap::Args;
use doorbell_study::pinning::Pinning;
use doorbell_study::session::{AdmittedClient, Introduction, SessionError, SessionOpening, Terms, Token};
use doorbell_verbs::Device;
use socket2::{Domain, Socket, Type};

use crate::address::{Listen, scope_hint, with_port};
use crate::admission::{Client, Clients};
use crate::failure::{Failure, Usage};
use crate::output::note;
use crate::quantity;

/// TCP port on which both sides meet, the same as perftest's.
pub(crate) const DEFAULT_TCP_PORT: u16 = 18515;

/// Time after which an attempt to connect to the other side fails.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connects to a server. The error about an unreachable server suggests `command`, which starts a server.
pub(crate) fn connect(address: &str, command: &str) -> Result<TcpStream, Failure> {
    reach(address, &is_running(command))
}

/// End of the error about another machine that refuses a connection.
const LOOPBACK_HINT: &str =
    " (without a token, `--listen` listens on loopback only: give both sides the same --token or DOORBELL_TOKEN)";

fn is_running(command: &str) -> String {
    format!("; is `{command}` running there?")
}

/// Connects to a server. The error about an unreachable server ends with `hint`.
pub(crate) fn reach(address: &str, hint: &str) -> Result<TcpStream, Failure> {
    reach_by(address, hint, |address| TcpStream::connect_timeout(&address, DEADLINE))
}

/// Connects to a server with TCP segments of at most `bytes` bytes in both directions. The error about an unreachable
/// server suggests `command`, which starts a server.
pub(crate) fn connect_in_segments(address: &str, command: &str, bytes: u32) -> Result<TcpStream, Failure> {
    reach_by(address, &is_running(command), |address| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), None)?;
        socket.set_tcp_mss(bytes)?;
        socket.connect_timeout(&address.into(), DEADLINE)?;
        Ok(socket.into())
    })
}

fn reach_by(
    address: &str,
    hint: &str,
    connect: impl Fn(SocketAddr) -> io::Result<TcpStream>,
) -> Result<TcpStream, Failure> {
    let addresses: Vec<_> = address
        .to_socket_addrs()
        .map_err(|error| {
            format!("{address} must be a host and port that can be found{}: {error}", scope_hint(address))
        })?
        .collect();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    let is_refused = last.kind() == io::ErrorKind::ConnectionRefused;
    let is_here_alone = address.to_socket_addrs().into_iter().flatten().all(|it| it.ip().to_canonical().is_loopback());
    let loopback = if is_refused && !is_here_alone { LOOPBACK_HINT } else { "" };
    Err(format!("cannot connect to {address}: {last}{hint}{loopback}").into())
}

/// Returns a new random token.
pub(crate) fn random_token() -> Result<Token, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(text.parse()?)
}

/// Returns the address at which a peer on another machine reaches this machine. Returns `None` if the peer is on this
/// machine, where each device needs an address of its own.
pub(crate) fn address_toward(stream: &TcpStream) -> Option<IpAddr> {
    let own = stream.local_addr().ok()?.ip().to_canonical();
    let peer = stream.peer_addr().ok()?.ip().to_canonical();
    (own != peer && !own.is_loopback()).then_some(own)
}

/// Returns the address at which the host at `address` reaches this machine, like [`address_toward`] but without a
/// connection.
pub(crate) fn address_toward_host(address: &str) -> Result<Option<IpAddr>, Failure> {
    let failed = |error| format!("cannot find the address of this machine on the path to {address}: {error}");
    let mut found = address.to_socket_addrs().map_err(failed)?;
    let peer = found.next().ok_or_else(|| format!("{address} must be a host and port that can be found"))?;
    let unspecified: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket sends nothing.
    let socket = UdpSocket::bind((unspecified, 0)).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    let (own, peer) = (socket.local_addr().map_err(failed)?.ip().to_canonical(), peer.ip().to_canonical());
    Ok((own != peer && !own.is_loopback()).then_some(own))
}

/// Options for meeting other machines.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Other machines")]
pub(crate) struct Meeting {
    /// Serve clients until interrupted (`bench`: serve one client). Listens on ADDRESS or ADDRESS:PORT. Without a
    /// value, listens on all addresses of IPv4 and IPv6 if --token or --anyone is given, else on loopback
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    listen: Option<String>,
    /// TCP port on which both sides meet
    #[arg(short, long, default_value_t = DEFAULT_TCP_PORT, value_parser = quantity::port)]
    port: u16,
    /// Secret that a client must show to a listening side. Other users of the machine can see the command line: set
    /// DOORBELL_TOKEN to hide the secret
    #[arg(long, env = "DOORBELL_TOKEN", hide_env_values = true)]
    token: Option<Token>,
    /// With --listen: serve every client, also clients without a token
    #[arg(long)]
    anyone: bool,
}

impl Meeting {
    pub(crate) fn listens(&self) -> bool {
        self.listen.is_some()
    }

    /// Returns the address at which the listening side listens.
    fn address(&self) -> Result<Listen, Usage> {
        let given = self.listen.as_deref().unwrap_or_default();
        let is_guarded = self.token.is_some() || self.anyone;
        if given.is_empty() && is_guarded {
            return Ok(Listen::All { port: self.port });
        }
        let given = if given.is_empty() { "127.0.0.1" } else { given };
        let address = with_port(given, self.port);
        let mut found = address.to_socket_addrs().into_iter().flatten().peekable();
        if !is_guarded && found.peek().is_some() && found.any(|address| !address.ip().to_canonical().is_loopback()) {
            return Err(Usage(format!(
                "--listen {given} accepts clients of other hosts without a token: give both sides the same --token (or \
                 DOORBELL_TOKEN), or accept all clients with --anyone"
            )));
        }
        Ok(Listen::At(address))
    }

    /// Rejects options of a listening side on a side that does not listen.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        // `requires` is not enough: clap ignores it if HOST is given, because --listen conflicts with HOST.
        if self.anyone && !self.listens() {
            return Err(Usage(
                "--anyone applies to the side that listens, which then serves clients without a token: use it there, \
                 with --listen"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the secret of this side.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token.clone()
    }

    /// Returns the TCP port on which both sides meet.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns a host with its port.
    pub(crate) fn at(&self, host: &str) -> String {
        with_port(host, self.port)
    }

    /// Returns the introduction that this side sends as a client.
    pub(crate) fn introduction(&self, examine: bool) -> Introduction {
        Introduction { token: self.token.clone(), examine, ..Introduction::default() }
    }

    /// Listens, and prints the address of the listener and which clients are served.
    fn listener(&self) -> Result<TcpListener, Failure> {
        let address = self.address()?;
        let listener = address.bind().map_err(|error| format!("cannot listen on {address}: {error}"))?;
        note!("waiting for a client on {}", listener.local_addr()?);
        if self.token.is_none() && !self.anyone {
            note!("only clients of this machine are served: others need a --token that both sides have, or --anyone");
        }
        Ok(listener)
    }

    fn terms(&self, memory_bytes: usize, pinning: Pinning) -> Result<Terms, Failure> {
        let process = Some(getrandom::u64()?);
        Ok(Terms { memory_bytes, token: self.token.clone(), pinning, process })
    }

    /// Listens for clients that show the right token. If this side has no token, every client with a valid greeting
    /// is admitted.
    fn clients(&self) -> Result<Clients<SessionOpening>, Failure> {
        Ok(Clients::new(self.listener()?, SessionOpening::new(self.token.clone()))?)
    }

    /// Serves the first admitted client. `open` and `pinning` are those of [`serve`](Self::serve).
    pub(crate) fn serve_one(
        &self,
        memory_bytes: usize,
        pinning: impl Fn(&Device) -> Result<Pinning, Failure>,
        mut open: impl FnMut(Option<IpAddr>) -> Result<Device, Failure>,
    ) -> Result<(), Failure> {
        let Client { stream, from, opening, .. } = self.clients()?.next();
        note!("serving {from}, and no other client until it is done or gone");
        let device = open(address_toward(&stream))?;
        let terms = self.terms(memory_bytes, pinning(&device)?)?;
        Ok(AdmittedClient::new(stream, opening)?.serve(device, &terms)?)
    }

    /// Serves one client after another until the process ends. `open` opens the device for a client. The argument of
    /// `open` is the address at which the client reaches this machine, if the client is on another machine. `pinning`
    /// returns the CPUs of the threads that serve a client.
    pub(crate) fn serve(
        &self,
        memory_bytes: usize,
        pinning: impl FnOnce(&Device) -> Result<Pinning, Usage>,
        open: impl Fn(Option<IpAddr>) -> Result<Device, Failure>,
    ) -> Result<std::convert::Infallible, Failure> {
        // Open the device once before any client connects, so that its errors appear at once.
        let pinning = pinning(&open(None)?)?;
        let mut clients = self.clients()?;
        let terms = self.terms(memory_bytes, pinning)?;
        let mut known = HashSet::new();
        loop {
            let Client { stream, from, opening, .. } = clients.next();
            // A study connects again for each point, so print the address of a client only once.
            if known.len() < 1024 && known.insert(from.ip()) {
                note!("serving {}", from.ip());
            }
            let toward = address_toward(&stream);
            let served = AdmittedClient::new(stream, opening).and_then(|client| match open(toward) {
                Ok(device) => client.serve(device, &terms),
                Err(error) => {
                    note!("{from}: {error}");
                    client.refuse(&error.to_string());
                    Ok(())
                }
            });
            match served {
                Ok(()) => {}
                // A client may end its measurement at any time.
                Err(SessionError::Control(error)) => note!("{from} went before its measurement ended: {error}"),
                Err(error) => note!("{from}: {error}"),
            }
        }
    }
}
