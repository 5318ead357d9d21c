//! Those who connect to a listener of this command, of whom one is served at a time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use doorbell_exchange::setup;

use crate::control::AFTER_FAILURE;
use crate::output::note;

/// How long somebody who has connected may say nothing.
const DEADLINE: Duration = Duration::from_secs(10);

/// How many may be silent at a time. One more takes the place of the one who has been silent for longest.
const SILENT_MAX: usize = 64;

/// More than anybody who is served begins with.
const FIRST_BYTES_MAX: usize = 64 << 10;

/// How often those who are silent are looked at.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection has its turn only once its first bytes have arrived, so a client that connects and sends nothing delays no other.
pub(crate) struct Visitors {
    listener: TcpListener,
    /// Are these first bytes enough for a turn?
    have_begun: fn(&[u8]) -> bool,
    silent: Vec<Visitor>,
    buffer: Box<[u8]>,
}

struct Visitor {
    stream: TcpStream,
    from: SocketAddr,
    until: Instant,
}

impl Visitors {
    /// Those who open a session, which begins with a greeting.
    pub(crate) fn of_sessions(listener: TcpListener) -> io::Result<Self> {
        Self::new(listener, |bytes| bytes.len() >= setup::hello(&[]).len())
    }

    /// Those who say a line.
    pub(crate) fn with_a_line(listener: TcpListener) -> io::Result<Self> {
        Self::new(listener, |bytes| bytes.contains(&b'\n'))
    }

    fn new(listener: TcpListener, have_begun: fn(&[u8]) -> bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, have_begun, silent: Vec::new(), buffer: vec![0; FIRST_BYTES_MAX].into() })
    }

    /// The next one, as soon as somebody has begun to speak.
    pub(crate) fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.ready() {
                Ok(Some(visitor)) => return visitor,
                // Nobody is here: the kernel wakes this thread when somebody comes.
                Ok(None) if self.silent.is_empty() => self.wait(),
                Ok(None) => std::thread::sleep(PAUSE),
                Err(error) => {
                    note!("a client could not be accepted: {error}");
                    std::thread::sleep(AFTER_FAILURE);
                }
            }
        }
    }

    /// Somebody who has begun to speak, if there is one.
    pub(crate) fn ready(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let accepted = loop {
            match self.listener.accept() {
                Ok((stream, from)) => self.admit(stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => break Err(error),
            }
        };
        let now = Instant::now();
        self.silent.retain(|visitor| visitor.until > now);
        for index in 0..self.silent.len() {
            if self.has_begun(index) {
                let Visitor { stream, from, .. } = self.silent.remove(index);
                stream.set_nonblocking(false)?;
                return Ok(Some((stream, from)));
            }
        }
        accepted.map(|()| None)
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr) {
        if stream.set_nonblocking(true).is_err() {
            return; // it is gone
        }
        if self.silent.len() == SILENT_MAX {
            self.silent.remove(0);
        }
        // A listener for both families sees IPv4 addresses as IPv6 ones.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        self.silent.push(Visitor { stream, from, until: Instant::now() + DEADLINE });
    }

    fn wait(&self) {
        let mut listener = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        // A failure is what the next look finds.
        let _ = poll(&mut listener, PollTimeout::NONE);
    }

    /// Has it begun to speak, or ended? Then nobody has to wait for it, whatever it was.
    fn has_begun(&mut self, index: usize) -> bool {
        match self.silent[index].stream.peek(&mut self.buffer) {
            Ok(count) => count == 0 || count == FIRST_BYTES_MAX || (self.have_begun)(&self.buffer[..count]),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn those_who_say_nothing_or_half_a_line_keep_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut visitors = Visitors::with_a_line(listener).unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let silent: Vec<_> = (0..SILENT_MAX + 8).map(|_| connect()).collect();
        let mut half = connect();
        half.write_all(b"half a line").unwrap();
        let mut whole = connect();
        whole.write_all(b"a line\n").unwrap();
        let (mut served, from) = visitors.next();
        assert_eq!(from, whole.local_addr().unwrap());
        let mut line = [0; 7];
        served.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"a line\n");
        assert!(visitors.ready().unwrap().is_none());
        half.write_all(b"\n").unwrap();
        assert_eq!(visitors.next().1, half.local_addr().unwrap());
        // One that is gone is nobody's turn but its own.
        drop(silent);
        visitors.next();
        assert!(visitors.silent.len() < SILENT_MAX);
    }
}
