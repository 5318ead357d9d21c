//! The store behind a middlebox. The box is a process of its own (`doorbell steer`). The memory node accepts boxes
//! over TCP, and boxes accept clients over TCP.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use doorbell_exchange::admission::{Clients, Hello};
use doorbell_fabric::FaultPlan;
use doorbell_farmem::assembly::{Exchange, Party, serve_boxes};
use doorbell_farmem::{Geometry, Strategy};
use doorbell_machine::pinning::Pinned;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::arguments::OtherBox;
use crate::failure::Failure;
use crate::output::{note, print_note};

/// Options of a box.
#[derive(Clone, Debug)]
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
    fn arguments(&self, node: SocketAddr) -> Vec<String> {
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
struct BoxProcess {
    child: Child,
    /// Address at which clients set up their queue pairs.
    address: SocketAddr,
}

impl BoxProcess {
    /// Starts a box in front of the memory node that accepts boxes at `node`.
    fn start(node: SocketAddr, options: &BoxOptions) -> Result<Self, Failure> {
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
    fn replace(&mut self, node: SocketAddr, options: &BoxOptions) -> Result<(), Failure> {
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
    fn stop(mut self) -> Result<Value, Failure> {
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

/// The middlebox of a store, and the thread that accepts boxes for the memory node.
pub(super) struct Gate {
    /// `None` if another command runs the box.
    process: Option<BoxProcess>,
    /// Address at which clients reach the box.
    pub(super) through: SocketAddr,
    options: BoxOptions,
    /// Address at which the memory node accepts boxes.
    node: SocketAddr,
    boxes: JoinHandle<()>,
}

impl Gate {
    pub(super) fn open(exchange: &Exchange, options: BoxOptions, other: OtherBox) -> Result<Self, Failure> {
        let at = other.addresses();
        let listen = at.map_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |(_, node)| node);
        let listener = TcpListener::bind(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let node = listener.local_addr()?;
        let mut visitors = Clients::new(listener, Hello::new(1), print_note)?;
        let mut mailbox = exchange.mailbox(Party::Middlebox);
        let boxes = std::thread::Builder::new()
            .name("boxes".to_owned())
            .spawn(move || serve_boxes(&mut visitors, &mut mailbox, print_note))?;
        let (process, through) = match at {
            None => {
                let process = BoxProcess::start(node, &options)?;
                let through = process.address;
                (Some(process), through)
            }
            Some((through, _)) => {
                let arguments = options.arguments(node).join(" ");
                note!("start the middlebox at {through} now: doorbell {arguments} --listen {through}");
                (None, through)
            }
        };
        Ok(Self { process, through, options, node, boxes })
    }

    /// Kills the box, and starts a new box in its place. Does nothing to the box of another command.
    pub(super) fn replace_box(&mut self) -> Result<(), Failure> {
        match &mut self.process {
            Some(process) => process.replace(self.node, &self.options),
            None => Ok(()),
        }
    }

    /// Returns the counters of the box, if this command has started it. The store must have ended.
    pub(super) fn close(self) -> Result<Option<Value>, Failure> {
        let counted = self.process.map(BoxProcess::stop).transpose()?;
        self.boxes.join().map_err(|_| "a thread of the store panicked")?;
        Ok(counted)
    }
}
