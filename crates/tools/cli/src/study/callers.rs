//! Hosts of a study whose processes, started by a launcher or by ssh, connect to this process ("call" it).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use doorbell_study::session::{self, Call, CallOpening, Caller, SessionError, Terms, Token, call};
use serde_json::{Value, json};

use super::hosts::Others;
use super::launch::{Announcement, Launch, Rendezvous};
use super::{MEMORY_MIB, Study, open};
use crate::address::{Listen, with_port};
use crate::admission::{Client, Clients};
use crate::control::{self, random_token};
use crate::device::Chosen;
use crate::failure::{Failure, Usage};
use crate::output::note;

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
pub(super) struct Callers {
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
    ) -> Result<Self, Failure> {
        Ok(Self {
            clients: RefCell::new(Clients::new(listener, CallOpening::new(token.clone(), names.len() + 1))?),
            waiting: RefCell::default(),
            has_called: RefCell::new(vec![false; names.len()]),
            names,
            token,
            started: RefCell::default(),
            _announcement: announcement,
        })
    }

    /// Listens for the other processes of a launch, and announces the address of this process to them.
    pub(super) fn of(launch: &Launch, given: Option<Token>) -> Result<Self, Failure> {
        let token = launch.token(given)?;
        let address = launch.listens_on();
        let listener = address.bind().map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let announcement = launch.announce(listener.local_addr()?.port(), token.as_ref())?;
        let names = (1..launch.ranks).map(|rank| format!("rank {rank}")).collect();
        Self::new(listener, names, token, Some(announcement))
    }

    /// Starts a process on each of these hosts with the system's ssh.
    pub(super) fn by_ssh(hosts: &[String], remote: &str, arguments: &[String]) -> Result<Self, Failure> {
        let token = random_token()?;
        let listener = Listen::All { port: 0 }.bind()?;
        let port = listener.local_addr()?.port();
        let callers = Self::new(listener, hosts.to_vec(), Some(token.clone()), None)?;
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
            let told = json!({ "rank": number + 1, "ranks": hosts.len() + 1, "port": port, "token": token });
            if let Some(stdin) = &mut child.stdin {
                // Ignore an error: a process that has ended already does not call, so `await_call` fails.
                let _ = stdin.write_all(format!("{told}\n").as_bytes());
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
            Err(error) => note!("the call of {from} failed: {error}"),
        }
    }

    /// Reports the failure of the study to the processes that wait, and to those that call within [`FAREWELL`]. All
    /// other processes notice the end of this process.
    pub(super) fn refuse_all(&self, reason: &str) {
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
/// After the first point, only number 0 prints failures.
pub(super) fn be_called(study: &Study, launch: &Launch, given: Option<Token>) -> Result<ExitCode, Failure> {
    let chosen = study.choose_quietly()?;
    let zero = RankZero {
        find: &|| launch.find(given.clone()),
        connect: &|address| control::connect(address, "process 0 of the launch"),
        is_in_file: matches!(launch.place, Rendezvous::File(_)),
    };
    serve_calls(study, &chosen, launch.rank, launch.ranks, &zero)
}

/// Address of process number 0, and the way to connect to that process.
struct RankZero<'a> {
    /// Function that returns the address and the token.
    find: &'a dyn Fn() -> Result<(String, Option<Token>), Failure>,
    connect: &'a dyn Fn(&str) -> Result<TcpStream, Failure>,
    /// Whether the address is from a file. Such a file may be left from an earlier launch.
    is_in_file: bool,
}

/// Runs a process that ssh has started. Its standard input contains the address and the token.
pub(super) fn be_called_by_ssh(study: &Study) -> Result<ExitCode, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let told: Value = serde_json::from_str(&line).map_err(|_| "standard input lacks the address of process 0")?;
    crate::ending::with_input()?;
    let number = |name: &str| told[name].as_u64().and_then(|number| usize::try_from(number).ok());
    let (Some(rank), Some(ranks), Some(port)) = (number("rank"), number("ranks"), told["port"].as_u64()) else {
        return Err("standard input lacks the address of process 0".into());
    };
    let token: Option<Token> = told["token"].as_str().and_then(|token| token.parse().ok());
    // sshd sets this variable to the addresses of the connection: client address and port, server address and port.
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let host = connection.split_whitespace().next().unwrap_or("127.0.0.1");
    let address = with_port(host, u16::try_from(port)?);
    let chosen = study.choose_quietly()?;
    let zero = RankZero {
        find: &|| Ok((address.clone(), token.clone())),
        connect: &|address| control::reach(address, ", which started this process by ssh"),
        is_in_file: false,
    };
    serve_calls(study, &chosen, rank, ranks, &zero)
}

/// Calls process number 0 once for each point, and serves the measurement.
fn serve_calls(
    study: &Study,
    chosen: &Chosen,
    rank: usize,
    ranks: usize,
    zero: &RankZero<'_>,
) -> Result<ExitCode, Failure> {
    let mut until = Instant::now() + FIRST_CALL;
    let mut has_served = false;
    loop {
        let reached = (zero.find)().and_then(|found| Ok(((zero.connect)(&found.0)?, found)));
        let (stream, found) = match reached {
            Ok(reached) => reached,
            // Process number 0 has ended, and has printed the reason.
            Err(_) if has_served => return Ok(ExitCode::FAILURE),
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
            Ok(None) => return Ok(ExitCode::SUCCESS),
            Ok(Some(stream)) => {
                has_served = true;
                serve_one(study, chosen, stream, token.clone());
            }
            Err(SessionError::Control(_) | SessionError::Peer(_)) if has_served => return Ok(ExitCode::FAILURE),
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

fn serve_one(study: &Study, chosen: &Chosen, stream: TcpStream, token: Option<Token>) {
    let open = || -> Result<_, Failure> {
        let device = open(study, chosen, control::address_toward(&stream))?;
        let pinning = study.cpus.pinning(&device)?;
        Ok((device, Terms { token, pinning, ..Terms::open(MEMORY_MIB << 20) }))
    };
    // Ignore errors: process number 0 receives each error and prints it.
    let _ = match open() {
        Ok((device, terms)) => session::serve(device, stream, &terms),
        Err(error) => session::refuse(stream, &error.to_string()),
    };
}
