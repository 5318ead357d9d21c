//! A middlebox of another program, such as `doorbell steer`, for its clients. They set up queue pairs over TCP, as the
//! crate `doorbell` does.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use doorbell_exchange::address::reach;
use doorbell_exchange::setup::{self, EndpointDescription, READY, Timed};
use doorbell_steer::shut_out;
use doorbell_verbs::Qpn;

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
    /// The connection is non-blocking between requests.
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
                let shut_out = |stream: &TcpStream| path.is_none_or(|path| ask_to_shut_out(stream, path.qpn).is_ok());
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

    /// Returns whether the middlebox has ended its connection. A check is one system call.
    pub(super) fn has_ended(&self) -> bool {
        match self.stream.as_ref().map(|stream| stream.peek(&mut [0])) {
            Some(Ok(bytes)) => bytes == 0,
            Some(Err(error)) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            None => true,
        }
    }
}

/// Asks the middlebox to shut a client out. The stream blocks until the middlebox has answered.
fn ask_to_shut_out(stream: &TcpStream, qpn: Qpn) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let asked = shut_out::ask(stream, qpn, DEADLINE);
    stream.set_nonblocking(true)?;
    asked
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
    stream.set_nonblocking(true)?;
    Ok((stream, lane))
}

/// Says that this end is ready, and waits for the same word of the other end.
pub(super) fn say_ready(timed: &mut Timed<'_>) -> io::Result<()> {
    let mut said = [0];
    timed.write_all(&[READY])?;
    timed.read_exact(&mut said)?;
    if said == [READY] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use doorbell_verbs::RKey;

    use super::super::message::Path;
    use super::*;

    /// Returns an entrance whose queue pair is set up, and the middlebox's end of the connection.
    fn entrance() -> (BoxEntrance, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (middlebox, _) = listener.accept().unwrap();
        (BoxEntrance { stream: Some(stream), ..BoxEntrance::new(address) }, middlebox)
    }

    #[test]
    fn checks_report_the_end_of_a_middlebox_once() {
        let (mut entrance, middlebox) = entrance();
        assert!(!entrance.has_ended());
        assert_eq!(entrance.poll(LOOK_NS), None);
        drop(middlebox);
        // Wait for the end of the connection.
        let stream = entrance.stream.as_ref().unwrap();
        stream.set_nonblocking(false).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 0);
        stream.set_nonblocking(true).unwrap();
        assert!(entrance.has_ended());
        assert_eq!(entrance.poll(2 * LOOK_NS).map(|message| message.body), Some(Body::Ended));
        assert_eq!(entrance.poll(3 * LOOK_NS), None);
        assert!(entrance.has_ended());
    }

    /// A check would need three system calls if it changed the stream before and after its look.
    #[test]
    fn checks_leave_the_stream_non_blocking() {
        let (entrance, _middlebox) = entrance();
        assert!(!entrance.has_ended());
        let looked = entrance.stream.as_ref().unwrap().peek(&mut [0]);
        assert_eq!(looked.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_request_to_shut_out_waits_for_its_answer_between_checks() {
        let (mut entrance, mut middlebox) = entrance();
        let answering = std::thread::spawn(move || {
            let mut request = [0; 8];
            middlebox.read_exact(&mut request).unwrap();
            middlebox.write_all(&request).unwrap();
            middlebox
        });
        let path = Some(Path { qpn: Qpn::new(7), rkey: RKey::new(9) });
        let body = Body::Fence { client: 3, path };
        entrance.receive(Message { from: Party::Metadata, to: Party::Middlebox, body }, 0);
        assert_eq!(entrance.poll(0).map(|message| message.body), Some(Body::Fenced { client: 3 }));
        let _middlebox = answering.join().unwrap();
        assert!(!entrance.has_ended());
        assert_eq!(entrance.poll(LOOK_NS), None);
    }
}
