//! A middlebox of another program, such as `doorbell steer`, for its clients. They set up queue pairs over TCP, as the
//! crate `doorbell` does.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use doorbell_exchange::address::reach;
use doorbell_exchange::setup::{self, EndpointDescription, READY, Timed};
use doorbell_steer::shut_out;

use super::{Body, Message, Party};
use crate::memory::ClientDescription;

/// Time after which a set-up, or a request to the middlebox, fails.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Time for which a set-up is retried, because the middlebox may be restarting.
const RESTART_NS: u64 = 30_000_000_000;
/// Pause between two attempts.
const AGAIN_NS: u64 = 10_000_000;
/// Interval at which [`BoxEntrance::poll`] checks whether the middlebox has ended.
const LOOK_NS: u64 = 1_000_000;

/// Request to enter that the middlebox has not answered.
#[derive(Debug)]
struct Pending {
    ends: ClientDescription,
    next_ns: u64,
    until_ns: u64,
}

/// A middlebox as a party, for one client of it: a client of the store or the metadata service.
#[derive(Debug)]
pub struct BoxEntrance {
    address: SocketAddr,
    /// Party that enters through the middlebox.
    own: Party,
    /// Connection on which the queue pair was set up. The middlebox destroys the queue pair when the connection ends.
    stream: Option<TcpStream>,
    pending: Option<Pending>,
    looked_ns: u64,
    out: VecDeque<Message>,
}

impl BoxEntrance {
    /// Creates the entrance of a middlebox at which clients set up queue pairs at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, own: Party::Metadata, stream: None, pending: None, looked_ns: 0, out: VecDeque::new() }
    }

    /// Handles a message to the middlebox.
    pub(super) fn receive(&mut self, message: Message, now_ns: u64) {
        self.own = message.from;
        match message.body {
            Body::Enter(ends) => {
                self.stream = None;
                self.pending = Some(Pending { ends, next_ns: now_ns, until_ns: now_ns + RESTART_NS });
            }
            Body::Fence { client, path } => {
                let shut_out =
                    |stream: &TcpStream| path.is_none_or(|path| shut_out::ask(stream, path.qpn, DEADLINE).is_ok());
                let is_out = self.stream.as_ref().is_some_and(shut_out);
                if !is_out {
                    self.stream = None;
                }
                self.answer(if is_out { Body::Fenced { client } } else { Body::Ended });
            }
            _ => {}
        }
    }

    fn answer(&mut self, body: Body) {
        self.out.push_back(Message { from: Party::Middlebox, to: self.own, body });
    }

    /// Retries a set-up, and finds out whether the middlebox has ended. Returns the next message of the middlebox.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Message> {
        if let Some(Pending { ends, next_ns, until_ns }) = &mut self.pending
            && now_ns >= *next_ns
        {
            match connect(self.address, &ends.lane) {
                Ok((stream, lane)) => {
                    (self.stream, self.pending) = (Some(stream), None);
                    self.answer(Body::Entered(ClientDescription { lane, calls: None }));
                }
                Err(_) if now_ns < *until_ns => *next_ns = now_ns + AGAIN_NS,
                Err(error) => {
                    self.pending = None;
                    self.answer(Body::Refused(error.to_string()));
                }
            }
        }
        if self.stream.is_some() && now_ns >= self.looked_ns + LOOK_NS {
            self.looked_ns = now_ns;
            if self.has_ended() {
                self.stream = None;
                self.answer(Body::Ended);
            }
        }
        self.out.pop_front()
    }

    /// Returns whether the middlebox has ended its connection.
    pub(super) fn has_ended(&self) -> bool {
        let look = |stream: &TcpStream| {
            stream.set_nonblocking(true)?;
            let looked = stream.peek(&mut [0]);
            stream.set_nonblocking(false)?;
            looked
        };
        match self.stream.as_ref().map(look) {
            Some(Ok(bytes)) => bytes == 0,
            Some(Err(error)) => error.kind() != io::ErrorKind::WouldBlock,
            None => true,
        }
    }
}

/// Sets up a queue pair with the middlebox, as with a memory node.
fn connect(
    address: SocketAddr,
    lane: &EndpointDescription,
) -> Result<(TcpStream, EndpointDescription), Box<dyn std::error::Error>> {
    let stream = reach(&address.to_string(), "; is there a middlebox?")?;
    let [lane, ..] = setup::exchange(&stream, &[*lane], DEADLINE)?[..] else { return Err("no description".into()) };
    // Say ready before the own queue pair is connected: the middlebox sends only answers to requests.
    say_ready(&mut Timed::new(&stream, DEADLINE))?;
    stream.set_read_timeout(None)?;
    Ok((stream, lane))
}

/// Says that this end is ready, and waits for the same word of the other end.
pub(super) fn say_ready(timed: &mut Timed<'_>) -> io::Result<()> {
    let mut said = [0];
    timed.write_all(&[READY])?;
    timed.read_exact(&mut said)?;
    if said == [READY] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
