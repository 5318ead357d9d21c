//! Control connections: TCP connections on which two commands agree on an exchange over RDMA.

use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use clap::Args;
use doorbell_campaign::listening::serve_each;
use doorbell_exchange::address::{Listen, address_toward, with_port};
use doorbell_exchange::admission::{Client, Clients};
use doorbell_machine::pinning::Pinning;
use doorbell_study::session::{AdmittedClient, Introduction, SessionOpening, Terms, Token};
use doorbell_verbs::Device;

use crate::failure::{Failure, Usage};
use crate::output::{note, print_note};
use crate::quantity;

/// TCP port on which both sides meet, the same as perftest's.
pub(crate) const DEFAULT_TCP_PORT: u16 = 18515;

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
        Ok(Terms { memory_bytes, token: self.token.clone(), is_known: false, pinning, process })
    }

    /// Listens for clients that show the right token. If this side has no token, every client with a valid greeting
    /// is admitted.
    fn clients(&self) -> Result<Clients<SessionOpening>, Failure> {
        Ok(Clients::new(self.listener()?, SessionOpening::new(self.token.clone()), print_note)?)
    }

    /// Serves the first admitted client. `open` and `pinning` are those of [`serve`](Self::serve).
    pub(crate) fn serve_one(
        &self,
        memory_bytes: usize,
        pinning: impl Fn(&Device) -> Result<Pinning, Failure>,
        mut open: impl FnMut(Option<IpAddr>) -> Result<Device, Failure>,
    ) -> Result<(), Failure> {
        let Client { stream, from, opening, .. } = self.clients()?.wait();
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
        let clients = self.clients()?;
        let terms = self.terms(memory_bytes, pinning)?;
        serve_each(clients, &terms, open, print_note)
    }
}
