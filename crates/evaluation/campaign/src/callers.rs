//! Hosts of a study whose processes, started by a launcher or by ssh, connect to this process ("call" it).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use doorbell_exchange::address::{Listen, ReachError, address_toward, connect, reach, with_port};
use doorbell_exchange::admission::{Client, Clients, Note};
use serde::{Deserialize, Serialize};

use crate::hosts::Others;
use crate::launch::{Announcement, Launch, Rendezvous};
use crate::{MEMORY_BYTES, OwnDevice};
use doorbell_study::session::{self, Call, CallOpening, Caller, SessionError, Terms, Token, call};
use doorbell_study::{Failure, Usage};

/// Time within which all processes must start and call. A cluster starts processes slowly.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// Time for which process number 0 stays after a failure, so that processes that call later learn of the failure.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time within which a process must call again after a point.
const NEXT_CALL: Duration = Duration::from_secs(10);

/// Pause before a process calls again after a program other than process number 0 has answered.
const AFTER_STRANGER: Duration = Duration::from_millis(100);

/// Interval at which a process checks for changes that wake no thread, such as the end of a child process.
const PAUSE: Duration = Duration::from_millis(20);

/// Processes that call this process.
pub struct Callers {
    note: Note,
    clients: RefCell<Clients<CallOpening>>,
    waiting: RefCell<BTreeMap<usize, Caller>>,
    has_called: RefCell<Vec<bool>>,
    names: Vec<String>,
    token: Option<Token>,
    started: RefCell<Vec<Child>>,
    _announcement: Option<Announcement>,
}

impl Callers {
    fn new(
        listener: TcpListener,
        names: Vec<String>,
        token: Option<Token>,
        announcement: Option<Announcement>,
        note: Note,
    ) -> Result<Self, Failure> {
        let opening = CallOpening::new(token.clone(), names.len() + 1);
        Ok(Self {
            note,
            clients: RefCell::new(Clients::new(listener, opening, note)?),
            waiting: RefCell::default(),
            has_called: RefCell::new(vec![false; names.len()]),
            names,
            token,
            started: RefCell::default(),
            _announcement: announcement,
        })
    }

    /// Listens for the other processes of a launch, and announces the address of this process to them.
    ///
    /// # Errors
    ///
    /// The address is taken, the processes lack a token, or the address cannot be announced.
    pub fn of(launch: &Launch, given: Option<Token>, note: Note) -> Result<Self, Failure> {
        let token = launch.token(given)?;
        let address = launch.listens_on();
        let listener = address.bind().map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let announcement = launch.announce(listener.local_addr()?.port(), token.as_ref())?;
        let names = (1..launch.ranks).map(|rank| format!("rank {rank}")).collect();
        Self::new(listener, names, token, Some(announcement), note)
    }

    /// Starts a process on each of these hosts with the system's ssh.
    ///
    /// # Errors
    ///
    /// A host is named twice or is no host, or ssh cannot be started.
    pub fn by_ssh(hosts: &[String], remote: &str, arguments: &[String], note: Note) -> Result<Self, Failure> {
        let token = Token::random()?;
        let listener = Listen::All { port: 0 }.bind()?;
        let port = listener.local_addr()?.port();
        let callers = Self::new(listener, hosts.to_vec(), Some(token.clone()), None, note)?;
        for (number, host) in hosts.iter().enumerate() {
            if let Some(other) = hosts[..number].iter().find(|other| *other == host) {
                return Err(Usage(format!("{other} is named twice: name each host once")).into());
            }
            // ssh would treat a name that begins with a dash as an option.
            if host.starts_with('-') {
                return Err(Usage(format!("{host} is no host: its name must not begin with -")).into());
            }
            let mut ssh = Command::new("ssh");
            // Even if this process is killed, an ssh that waits for an unreachable host ends within 30 s.
            ssh.args(["-T", "-o", "ConnectTimeout=30", "--", host, remote, "study", "--called-by-ssh"]).args(arguments);
            ssh.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child = ssh.spawn().map_err(|error| format!("{host}: ssh cannot be started: {error}"))?;
            let invitation = Invitation { rank: number + 1, ranks: hosts.len() + 1, port, token: Some(token.clone()) };
            if let Some(stdin) = &mut child.stdin {
                // Ignore an error: a process that has ended already does not call, so `await_call` fails.
                let _ = stdin.write_all(format!("{}\n", serde_json::to_string(&invitation)?).as_bytes());
            }
            callers.started.borrow_mut().push(child);
        }
        Ok(callers)
    }

    /// Waits until a process has called, but no longer than until `until`.
    fn take(&self, until: Instant) {
        let Some(Client { stream, opening, from, .. }) = self.clients.borrow_mut().next_until(until) else { return };
        match Caller::new(stream, opening) {
            Ok(caller) => drop(self.waiting.borrow_mut().insert(caller.call.rank, caller)),
            Err(error) => (self.note)(&format!("the call of {from} failed: {error}")),
        }
    }

    /// Reports the failure of the study to the processes that wait, and to those that call within five seconds. All
    /// other processes notice the end of this process.
    pub fn refuse_all(&self, reason: &str) {
        let until = Instant::now() + FAREWELL;
        loop {
            self.take((Instant::now() + PAUSE).min(until));
            for (rank, caller) in self.waiting.take() {
                caller.refuse(reason);
                self.has_called.borrow_mut()[rank - 1] = true;
            }
            if self.has_called.borrow().iter().all(|has_called| *has_called) || Instant::now() > until {
                return;
            }
        }
    }

    /// Waits until the process of a host has called, and returns that process.
    fn await_call(&self, number: usize, patience: Duration) -> Result<Caller, Failure> {
        let until = Instant::now() + patience;
        loop {
            if let Some(caller) = self.waiting.borrow_mut().remove(&(number + 1)) {
                return Ok(caller);
            }
            let name = &self.names[number];
            if let Some(child) = self.started.borrow_mut().get_mut(number)
                && let Some(status) = child.try_wait()?
            {
                return Err(format!("{name}: ssh has ended ({status}), and no doorbell of this release called").into());
            }
            if Instant::now() > until {
                return Err(format!("{name} did not call within {} s", patience.as_secs()).into());
            }
            self.take((Instant::now() + PAUSE).min(until));
        }
    }
}

impl Others for Rc<Callers> {
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn reach(&self, number: usize) -> Result<TcpStream, Failure> {
        let is_first = !std::mem::replace(&mut self.has_called.borrow_mut()[number], true);
        let caller = self.await_call(number, if is_first { FIRST_CALL } else { NEXT_CALL })?;
        caller.serve().map_err(|error| format!("{}: {error}", self.names[number]).into())
    }

    fn token(&self) -> Option<Token> {
        self.token.clone()
    }

    fn dismiss(&self) {
        for number in 0..self.names.len() {
            if let Ok(caller) = self.await_call(number, NEXT_CALL) {
                caller.dismiss();
            }
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        for mut child in self.started.take() {
            // Close the standard input of ssh, so that doorbell on the other machine ends too.
            drop(child.stdin.take());
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a process of a launch other than process number 0. The process serves number 0 until number 0 ends the study.
/// Returns whether the study has ended well. After the first point, only number 0 reports failures.
///
/// # Errors
///
/// Number 0 does not serve this process.
pub fn be_called(own: &dyn OwnDevice, launch: &Launch, given: Option<Token>) -> Result<bool, Failure> {
    let zero = RankZero {
        find: &|| launch.find(given.clone()),
        connect: &|address| connect(address, "process 0 of the launch"),
        is_in_file: matches!(launch.place, Rendezvous::File(_)),
    };
    serve_calls(own, launch.rank, launch.ranks, &zero)
}

/// Address of process number 0, and the way to connect to that process.
struct RankZero<'a> {
    /// Function that returns the address and the token.
    find: &'a dyn Fn() -> Result<(String, Option<Token>), Failure>,
    connect: &'a dyn Fn(&str) -> Result<TcpStream, ReachError>,
    /// Whether the address is from a file. Such a file may be left from an earlier launch.
    is_in_file: bool,
}

/// Line that a process started by ssh reads from its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invitation {
    rank: usize,
    ranks: usize,
    port: u16,
    token: Option<Token>,
}

/// Runs a process that ssh has started, like [`be_called`]. `connection` is the value of the variable SSH_CONNECTION,
/// which sshd has set: client address and port, server address and port.
///
/// # Errors
///
/// Number 0 does not serve this process.
pub fn be_called_by_ssh(own: &dyn OwnDevice, invitation: Invitation, connection: &str) -> Result<bool, Failure> {
    let Invitation { rank, ranks, port, token } = invitation;
    let address = with_port(connection.split_whitespace().next().unwrap_or("127.0.0.1"), port);
    let zero = RankZero {
        find: &|| Ok((address.clone(), token.clone())),
        connect: &|address| reach(address, ", which started this process by ssh"),
        is_in_file: false,
    };
    serve_calls(own, rank, ranks, &zero)
}

/// Calls process number 0 once for each point, and serves the measurement.
fn serve_calls(own: &dyn OwnDevice, rank: usize, ranks: usize, zero: &RankZero<'_>) -> Result<bool, Failure> {
    let mut until = Instant::now() + FIRST_CALL;
    let mut has_served = false;
    loop {
        let reached = (zero.find)().and_then(|found| Ok(((zero.connect)(&found.0)?, found)));
        let (stream, found) = match reached {
            Ok(reached) => reached,
            // Process number 0 has ended, and has printed the reason.
            Err(_) if has_served => return Ok(false),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        // The address may be from the file of a dead launch, and belong to any process. Give up a call when process
        // number 0 has written its own file.
        let is_elsewhere = || (zero.find)().is_ok_and(|now| now != found);
        let gives_up = || !has_served && (Instant::now() > until || is_elsewhere());
        let (address, token) = &found;
        match call(stream, &Call::new(rank, ranks, token.clone()), gives_up) {
            Ok(None) => return Ok(true),
            Ok(Some(stream)) => {
                has_served = true;
                serve_one(own, stream, token.clone());
            }
            Err(SessionError::Control(_) | SessionError::Peer(_)) if has_served => return Ok(false),
            Err(SessionError::Peer(reason)) => return Err(format!("process 0 of the launch: {reason}").into()),
            Err(SessionError::Control(_)) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(SessionError::Unexpected(_)) if zero.is_in_file && Instant::now() < until => {
                std::thread::sleep(AFTER_STRANGER);
            }
            Err(error) => return Err(format!("{address}, the address of process 0 of the launch: {error}").into()),
        }
        if has_served {
            until = Instant::now();
        }
    }
}

fn serve_one(own: &dyn OwnDevice, stream: TcpStream, token: Option<Token>) {
    let open = || -> Result<_, Failure> {
        let device = own.open(address_toward(&stream))?;
        let pinning = own.pinning(&device)?;
        Ok((device, Terms { token, pinning, ..Terms::open(MEMORY_BYTES) }))
    };
    // Ignore errors: process number 0 receives each error and prints it.
    let _ = match open() {
        Ok((device, terms)) => session::serve(device, stream, &terms),
        Err(error) => session::refuse(stream, &error.to_string()),
    };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Time after which the test fails, longer than any step takes on a slow machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Strangers that say nothing, or send 8 KiB without the end of a line, stay connected.
    #[test]
    fn strangers_do_not_prolong_the_wait_for_a_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        strangers.iter_mut().step_by(2).for_each(|stranger| stranger.write_all(&[b'x'; 8 << 10]).unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let callers = Callers::new(listener, vec!["rank 1".to_owned()], None, None, |_| {}).unwrap();
            let waited = callers.await_call(0, Duration::from_millis(100));
            let _ = sender.send(waited.map(|_| ()).map_err(|error| error.to_string()));
        });
        let waited = receiver.recv_timeout(PATIENCE).expect("the wait ends at its deadline");
        assert_eq!(waited, Err("rank 1 did not call within 0 s".to_owned()));
        drop(strangers);
    }
}
