//! The second process of a measurement on one machine. It calls the first process, which started it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_exchange::admission::{Client, Clients, Note};

use doorbell_study::Failure;
use doorbell_study::session::{Call, CallOpening, Caller, Token, call};

/// Time within which the second process must call back, and must later end. An emulated or busy machine starts
/// processes slowly. The first process notices a failed second process at once, without this deadline.
const SECOND_DEADLINE: Duration = Duration::from_secs(60);

/// Processes of a measurement on one machine.
const PROCESSES: usize = 2;

/// Interval at which the first process checks whether the second process has called back or ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Second process of this machine. Dropping this handle ends the process.
#[derive(Debug)]
pub struct Second {
    child: Child,
}

impl Second {
    /// Waits until the second process ends by itself, and returns its failure. If this process has not `succeeded`,
    /// does not wait.
    ///
    /// # Errors
    ///
    /// The process failed, or does not end.
    pub fn finish(mut self, succeeded: bool) -> Result<(), Failure> {
        if !succeeded {
            return Ok(()); // dropping the handle kills the process
        }
        let until = Instant::now() + SECOND_DEADLINE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the second process failed: {status}").into()),
                None if Instant::now() >= until => return Err("the second process did not end within 60 s".into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first process, before the second one has called.
#[derive(Debug)]
pub struct Awaited {
    clients: Clients<CallOpening>,
    address: SocketAddr,
    token: Token,
}

impl Awaited {
    /// Listens for the second process.
    ///
    /// # Errors
    ///
    /// The system refuses a listener or random bytes.
    pub fn new(note: Note) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let token = Token::random()?;
        let clients = Clients::new(listener, CallOpening::new(Some(token.clone()), PROCESSES), note)?;
        Ok(Self { clients, address, token })
    }

    /// Returns the address that the second process must call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the token that the second process must show.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Starts the second process, and waits for its call.
    ///
    /// # Errors
    ///
    /// The process cannot be started, fails, or does not call.
    pub fn start(mut self, mut command: Command) -> Result<(TcpStream, Second), Failure> {
        // Nothing is written to this pipe. The pipe closes when this process ends, and then the second process ends.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| format!("the second process cannot be started: {error}"))?;
        let mut second = Second { child };
        let until = Instant::now() + SECOND_DEADLINE;
        loop {
            if let Some(Client { stream, opening, .. }) = self.clients.next_until(Instant::now() + PAUSE) {
                return Ok((Caller::new(stream, opening)?.serve()?, second));
            }
            if let Some(status) = second.child.try_wait()? {
                return Err(format!("the second process failed before it called back: {status}").into());
            }
            if Instant::now() >= until {
                return Err("the second process did not call back within 60 s".into());
            }
        }
    }
}

/// Calls the process that started this process, and serves its measurement.
///
/// # Errors
///
/// The starting process has nothing to measure, or refuses this process.
pub fn call_back(stream: TcpStream, token: Option<Token>) -> Result<TcpStream, Failure> {
    let called = call(stream, &Call::new(PROCESSES - 1, PROCESSES, token), || false)?;
    Ok(called.ok_or("the first process has nothing to measure")?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Some strangers say nothing, the others send half a line, and all stay connected.
    #[test]
    fn strangers_do_not_keep_the_second_process_out() {
        let awaited = Awaited::new(|_| {}).unwrap();
        let (address, token) = (awaited.address(), awaited.token().clone());
        let mut strangers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        strangers.iter_mut().step_by(2).for_each(|stranger| stranger.write_all(&[b'x'; 4000]).unwrap());
        let called = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).unwrap();
            call_back(stream, Some(token)).map(drop).map_err(|error| error.to_string())
        });
        // The thread calls in place of this process, which dropping the handle ends.
        let mut command = Command::new("sleep");
        command.arg("600");
        let (stream, second) = awaited.start(command).unwrap();
        assert_eq!(called.join().unwrap(), Ok(()));
        drop((strangers, stream, second));
    }
}
