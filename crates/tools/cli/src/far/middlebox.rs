//! The store behind a middlebox. The box is a process of its own (`doorbell steer`). The memory node accepts boxes
//! over TCP, and boxes accept clients over TCP.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use doorbell_exchange::admission::Hello;
use doorbell_exchange::setup::{self, EndpointDescription, READY, SetupError, Timed};
use doorbell_fabric::FaultPlan;
use doorbell_farmem::{Geometry, MemoryDescription, Metadata, MetadataEnd, Strategy};
use doorbell_study::pinning::Pinned;
use doorbell_wire::{Qpn, RKey};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::client::described;
use super::service::MemorySide;
use crate::admission::{Client, Clients};
use crate::control::reach;
use crate::failure::Failure;
use crate::output::note;
use crate::steer::shut_out;

/// Time after which a set-up, or a question to the box, fails.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time for which a connection to a box is retried, because the box may be restarting.
const RESTART: Duration = Duration::from_secs(30);
/// Pause between two attempts to connect to a box.
const AGAIN: Duration = Duration::from_millis(10);
/// Interval at which the memory node checks whether the store has ended while no box is connected.
const OVER_LOOK: Duration = Duration::from_millis(50);
/// Interval at which the metadata service checks whether the box has ended.
const LOOK: Duration = Duration::from_millis(1);

/// A middlebox that this command does not start.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct OtherBox {
    /// Strategies steered and steered-write: address of a middlebox that another command runs and through which
    /// clients reach the memory [default: start a middlebox here]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "node_at")]
    through: Option<SocketAddr>,
    /// With --through: address at which the memory node accepts the middlebox; the command that starts the middlebox is
    /// printed
    #[arg(long, value_name = "ADDRESS:PORT", requires = "through")]
    node_at: Option<SocketAddr>,
}

impl OtherBox {
    /// Returns the address at which clients reach the box, and the address at which the box reaches the memory node.
    pub(super) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.through.zip(self.node_at)
    }
}

/// Options of a box.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoxOptions {
    pub(super) strategy: Strategy,
    pub(super) geometry: Geometry,
    pub(super) udp_port: u16,
    pub(super) fault: Option<FaultPlan>,
    /// CPU to which the process is pinned.
    pub(super) cpu: Option<usize>,
}

impl BoxOptions {
    /// Returns the arguments of a box for the memory node that accepts boxes at `node`, without the address for
    /// clients.
    pub(super) fn arguments(&self, node: SocketAddr) -> Vec<String> {
        let Geometry { nodes, keys, max_key, max_value } = self.geometry;
        let store = format!("nodes={nodes},keys={keys},max-key={max_key},max-value={max_value}");
        let mut arguments =
            ["steer", &node.to_string(), "--exclusive", "--json", "--store", &store].map(str::to_owned).to_vec();
        arguments.extend(["--udp-port".to_owned(), self.udp_port.to_string()]);
        if !self.strategy.steers_reads() {
            arguments.push("--writes-only".to_owned());
        }
        if let Some(fault) = &self.fault {
            arguments.extend(["--fault".to_owned(), fault.to_string()]);
        }
        arguments
    }
}

/// A middlebox in a process of its own. Dropping this handle ends the process.
#[derive(Debug)]
pub(super) struct BoxProcess {
    child: Child,
    /// Address at which clients set up their queue pairs.
    pub(super) address: SocketAddr,
}

impl BoxProcess {
    /// Starts a box in front of the memory node that accepts boxes at `node`.
    pub(super) fn start(node: SocketAddr, options: &BoxOptions) -> Result<Self, Failure> {
        Self::start_at(node, &["-p", "0"], options)
    }

    fn start_at(node: SocketAddr, place: &[&str], options: &BoxOptions) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(options.arguments(node)).args(place);
        // The pipe of the output ends the box if this process is killed: a box without a reader ends by itself.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Pin this thread, since the new process inherits the CPUs of the thread that starts it.
        let pinned = options.cpu.map(Pinned::to).transpose()?;
        let started = command.spawn();
        drop(pinned);
        let mut child = started?;
        let errors = child.stderr.take().ok_or("a box without an error output")?;
        let mut own = Self { child, address: node };
        let mut lines = BufReader::new(errors);
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Err(format!("the middlebox did not start: {}", said.trim_end()).into());
            }
            let address = line.strip_prefix("serving clients at ").and_then(|rest| rest.split(' ').next());
            if let Some(address) = address.and_then(|address| address.parse().ok()) {
                own.address = address;
                break;
            }
            said.push_str(&line);
        }
        // Read the remaining output, or the box blocks when the pipe is full.
        std::thread::Builder::new()
            .name("box".to_owned())
            .spawn(move || lines.lines().map_while(Result::ok).for_each(|line| note!("box: {line}")))?;
        Ok(own)
    }

    /// Kills the box, and starts a new box at the same address. The new box has no state of the old box.
    pub(super) fn replace(&mut self, node: SocketAddr, options: &BoxOptions) -> Result<(), Failure> {
        let (at, ip) = (self.address.to_string(), self.address.ip());
        self.end();
        let same = Self::start_at(node, &["--bind", &ip.to_string(), "--listen", &at], options);
        *self = match same {
            // Another device on this machine may have taken the address of the old box. Use another address: clients
            // find the new box over TCP, and learn the address of the new box there.
            Err(_) if ip.is_loopback() => Self::start_at(node, &["--listen", &at], options)?,
            same => same?,
        };
        Ok(())
    }

    /// Interrupts the box with SIGINT. Returns the counters that the box prints.
    pub(super) fn stop(mut self) -> Result<Value, Failure> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT)?;
        let mut text = String::new();
        self.child.stdout.take().ok_or("a box without an output")?.read_to_string(&mut text)?;
        let record: Value =
            serde_json::from_str(&text).map_err(|error| format!("the middlebox ended with: {error}"))?;
        Ok(record["counters"].clone())
    }

    fn end(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for BoxProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Lets one box after another use a memory node. When the connection of a box ends, the memory node destroys the queue
/// pair of that box before it makes a queue pair for the next box. So no request of an old box is executed any more.
pub(super) fn serve_boxes(boxes: &mut Clients<Hello>, memory: &MemorySide, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let Some(Client { stream, from, opening, .. }) = boxes.next_until(Instant::now() + OVER_LOOK) else { continue };
        let served = opening.first().ok_or_else(|| "its opening describes no queue pair".into());
        if let Err(error) = served.and_then(|lane| serve_box(&stream, *lane, memory)) {
            note!("the middlebox at {from} was not served: {error}");
        }
        if memory.part_with_box().is_err() {
            return; // the store has ended
        }
    }
}

fn serve_box(mut stream: &TcpStream, lane: EndpointDescription, memory: &MemorySide) -> Result<(), Failure> {
    let peer = "the middlebox";
    let mut timed = Timed::new(stream, DEADLINE);
    let own = described(memory.accept_box(lane)?);
    let broke = |error| SetupError::broke(peer, error, DEADLINE);
    timed.write_all(&setup::hello(&[own])).map_err(broke)?;
    say_ready(&mut timed).map_err(broke)?;
    stream.set_read_timeout(None)?;
    // The box sends no data on this connection any more. Wait for the end of the connection.
    while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
    Ok(())
}

fn say_ready(timed: &mut Timed<'_>) -> std::io::Result<()> {
    let mut said = [0];
    timed.write_all(&[READY])?;
    timed.read_exact(&mut said)?;
    if said == [READY] { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

/// A queue pair with a box. The box destroys the queue pair when the stream is closed.
#[derive(Debug)]
pub(super) struct BoxConnection {
    pub(super) stream: TcpStream,
    pub(super) memory: MemoryDescription,
}

impl BoxConnection {
    /// Sets up a queue pair with the box at this address, as with a memory node.
    pub(super) fn new(address: SocketAddr, lane: &EndpointDescription, geometry: Geometry) -> Result<Self, Failure> {
        let stream = reach(&address.to_string(), "; is there a middlebox?")?;
        let endpoint = setup::exchange(&stream, &[*lane], DEADLINE)?[0];
        // Say ready before the own queue pair is connected: the box sends only answers to requests.
        say_ready(&mut Timed::new(&stream, DEADLINE))?;
        stream.set_read_timeout(None)?;
        Ok(Self { stream, memory: MemoryDescription { endpoint, region: endpoint.regions[0], geometry, calls: None } })
    }

    /// Sets up a queue pair with a box like [`new`](Self::new), and retries while the box may be restarting.
    pub(super) fn patiently(
        address: SocketAddr,
        lane: &EndpointDescription,
        geometry: Geometry,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + RESTART;
        loop {
            match Self::new(address, lane, geometry) {
                Err(_) if Instant::now() < until => std::thread::sleep(AGAIN),
                result => return result,
            }
        }
    }

    /// Returns a flag that is set when the box ends.
    pub(super) fn watch(&self) -> std::io::Result<Arc<AtomicBool>> {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (mut stream, ended) = (self.stream.try_clone()?, Arc::clone(&has_ended));
        std::thread::Builder::new().name("box".to_owned()).spawn(move || {
            while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
            ended.store(true, Ordering::Release);
        })?;
        Ok(has_ended)
    }
}

/// Identity of a client at a box: the box's queue pair to which the client sends, and the rkey of this box for the
/// memory. Another box has another rkey.
pub(super) type Via = (Qpn, RKey);

/// Returns the identity of a client at its box.
pub(super) fn via(memory: &MemoryDescription) -> Via {
    (memory.endpoint.qpn, memory.region.rkey)
}

/// Connection of the metadata service to the memory through a box.
#[derive(Debug)]
pub(super) struct ThroughBox {
    address: SocketAddr,
    joined: BoxConnection,
    /// Whether the box has left a request unanswered, and so counts as ended.
    is_broken: bool,
    looked: Instant,
    clients: HashMap<u32, Via>,
    fencing: Vec<u32>,
}

impl ThroughBox {
    /// Connects the metadata service to the memory node behind the box at `address`. The box may still be starting.
    pub(super) fn connect(
        address: SocketAddr,
        end: MetadataEnd,
        geometry: Geometry,
    ) -> Result<(Self, Metadata), Failure> {
        let joined = BoxConnection::patiently(address, &end.to_memory().lane, geometry)?;
        let metadata = end.connect(&joined.memory)?;
        let (clients, fencing, looked) = (HashMap::new(), Vec::new(), Instant::now());
        Ok((Self { address, joined, is_broken: false, looked, clients, fencing }, metadata))
    }

    /// Records the box through which a client reached the memory.
    ///
    /// # Errors
    ///
    /// The client has connected through an earlier box.
    pub(super) fn note(&mut self, client: u32, via: Via) -> Result<(), String> {
        if via.1 != self.joined.memory.region.rkey {
            return Err("the middlebox was restarted: connect with the new one".to_owned());
        }
        self.clients.insert(client, via);
        Ok(())
    }

    /// Connects the metadata service to the next box if its box has ended. Asks the box to shut out the clients that
    /// the service has given up. Returns whether there was work.
    pub(super) fn look_after(&mut self, metadata: &mut Metadata) -> Result<bool, Failure> {
        let mut happened = false;
        if self.is_broken || metadata.is_cut_off() || self.has_ended()? {
            let end = metadata.renew()?;
            let geometry = self.joined.memory.geometry;
            self.joined = BoxConnection::patiently(self.address, &end.to_memory().lane, geometry)?;
            metadata.reconnect(end, &self.joined.memory)?;
            (self.is_broken, happened) = (false, true);
        }
        while let Some(client) = metadata.next_fence() {
            self.fencing.push(client);
        }
        while !self.is_broken
            && let Some(client) = self.fencing.pop()
        {
            happened = true;
            match self.shut_out(client) {
                true => metadata.fenced(client),
                false => {
                    self.fencing.push(client);
                    self.is_broken = true;
                }
            }
        }
        Ok(happened)
    }

    /// Asks the box to shut out a client. Returns `false` if the box does not answer.
    fn shut_out(&mut self, client: u32) -> bool {
        let Some(&(qpn, rkey)) = self.clients.get(&client) else { return true };
        // A client of an earlier box is shut out already: the memory node has destroyed the queue pair of that box.
        let is_here = rkey == self.joined.memory.region.rkey;
        let is_out = !is_here || shut_out::ask(&self.joined.stream, qpn, DEADLINE).is_ok();
        if is_out {
            self.clients.remove(&client);
        }
        is_out
    }

    fn has_ended(&mut self) -> std::io::Result<bool> {
        if self.looked.elapsed() < LOOK {
            return Ok(false);
        }
        self.looked = Instant::now();
        let stream = &self.joined.stream;
        stream.set_nonblocking(true)?;
        let looked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        Ok(match looked {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        })
    }
}
