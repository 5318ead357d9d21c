//! A memory node in a process of its own, so that a test can kill it.
//!
//! The store's process writes lines to the standard input of the memory node, and the memory node answers each line
//! with a line on standard output:
//! - a description to `accept NUMBER LANE`
//! - `done` to `fence NUMBER` and to `stop`
//! - `yes` or `no` to `holds PLACE KEY`
//! - `error` and a sentence if a request fails
//!
//! The memory node also asks `may I` by itself, and the store's process answers `you may`. With this answer the memory
//! node serves for a lease, which counts from the time at which the memory node asked.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use doorbell_farmem::{ClientDescription, MemoryNode, NodeVersion};
use doorbell_sync::IgnorePoison;
use doorbell_verbs::Device;

use super::arguments::PartArguments;
use super::client::{described, from_hex};
use super::service::Patience;
use crate::failure::Failure;

/// Time for which a memory node serves without hearing from the store's process.
pub(super) const LEASE: Duration = Duration::from_secs(1);
/// Number of times per lease that a memory node asks for the next lease.
const ASKS: u32 = 8;
/// Time by which a thread of the memory node may be late. The processes of one machine have the same clock.
const MARGIN: Duration = Duration::from_millis(50);
/// Time after which a question without an answer fails.
const DEADLINE: Duration = Duration::from_secs(3);
const MAY_I: &str = "may I";
const YOU_MAY: &str = "you may";
const DONE: &str = "done";

#[derive(Args)]
pub(crate) struct MemoryProcess {
    #[command(flatten)]
    part: PartArguments,
}

#[allow(clippy::disallowed_methods, reason = "a pipe to the process that started this one")]
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

impl MemoryProcess {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (device, load) = (self.part.open()?, self.part.load()?);
        let mut memory = MemoryNode::new(&device.create_pd()?, load.geometry(self.part.clients))?;
        memory.fill(self.part.strategy, load.keys, load.value_bytes)?;
        let (to, lines) = channel();
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| to.send(line)))?;
        serve(&mut memory, &device, &lines)
    }
}

/// Serves until the store's process has ended.
fn serve(memory: &mut MemoryNode, device: &Device, lines: &Receiver<String>) -> Result<(), Failure> {
    let (lease_ns, mut patience) = (LEASE.as_nanos() as u64, Patience::default());
    // A first lease limits the time for which clients can read before the first answer.
    let mut asked_ns = device.now_ns();
    memory.serve_until(asked_ns + lease_ns);
    let mut is_waiting = false;
    loop {
        let now_ns = device.now_ns();
        if !is_waiting && now_ns >= asked_ns + lease_ns / u64::from(ASKS) {
            (asked_ns, is_waiting) = (now_ns, true);
            say(MAY_I)?;
        }
        let mut happened = memory.poll();
        match lines.try_recv() {
            Ok(line) if line == YOU_MAY => {
                is_waiting = false;
                memory.serve_until(asked_ns + lease_ns);
            }
            Ok(line) => {
                happened = true;
                say(&answer(memory, &line).unwrap_or_else(|why| format!("error {why}")))?;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        patience.after(happened);
    }
}

fn answer(memory: &mut MemoryNode, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} must be the number of a client"));
    match words[..] {
        ["accept", client, lane] => {
            let peer = ClientDescription { lane: from_hex(lane)?, calls: None };
            let accepted = memory.accept(number(client)?, &peer).map_err(|error| error.to_string())?;
            Ok(described(accepted).to_hex())
        }
        ["fence", client] => memory.fence(number(client)?).map(|_| DONE.to_owned()).map_err(|error| error.to_string()),
        ["stop"] => memory.stop().map(|()| DONE.to_owned()).map_err(|error| error.to_string()),
        ["holds", place, key] => {
            let place =
                place.parse().ok().and_then(NodeVersion::from_bits).ok_or("the place must be that of a node")?;
            let is_held = memory.inspect(place).is_some_and(|node| {
                let own: String = node.key.iter().map(|byte| format!("{byte:02x}")).collect();
                node.is_intact && !node.is_tombstone && own == key
            });
            Ok(if is_held { "yes" } else { "no" }.to_owned())
        }
        _ => Err(format!("{line:?} is no question to a memory node")),
    }
}

/// Handle of a memory node's process. Dropping the handle ends the process.
#[derive(Debug)]
pub(super) struct MemoryHandle {
    child: Mutex<Child>,
    input: Arc<Mutex<ChildStdin>>,
    answers: Mutex<Receiver<String>>,
    state: Arc<State>,
}

/// State of a memory node's process.
#[derive(Debug)]
struct State {
    /// Whether the output of the process has ended, or the process left a question unanswered.
    is_gone: AtomicBool,
    /// Whether the process gets no further lease.
    is_given_up: AtomicBool,
    /// Time of the last renewed lease.
    renewed: Mutex<Instant>,
}

impl MemoryHandle {
    pub(super) fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("a memory node without an output")?);
        let input = Arc::new(Mutex::new(child.stdin.take().ok_or("a memory node without an input")?));
        let (is_gone, is_given_up, renewed) =
            (AtomicBool::new(false), AtomicBool::new(false), Mutex::new(Instant::now()));
        let state = Arc::new(State { is_gone, is_given_up, renewed });
        let (to, answers) = channel();
        let (child, answers) = (Mutex::new(child), Mutex::new(answers));
        let own = Self { child, input: Arc::clone(&input), answers, state: Arc::clone(&state) };
        std::thread::Builder::new().name("memory".to_owned()).spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if line == MAY_I {
                    state.renew(&input);
                } else if to.send(line).is_err() {
                    break;
                }
            }
            state.is_gone.store(true, Ordering::Release);
        })?;
        Ok(own)
    }

    /// Sends a question, and waits for the answer.
    pub(super) fn ask(&self, question: &str) -> Result<String, String> {
        let answers = self.answers.lock().ignore_poison();
        let written = writeln!(self.input.lock().ignore_poison(), "{question}");
        let line = written.ok().filter(|()| !self.is_gone()).and_then(|()| answers.recv_timeout(DEADLINE).ok());
        let Some(line) = line else {
            // Ask nothing more: a late answer to this question would count as the answer to the next one.
            self.state.is_gone.store(true, Ordering::Release);
            return Err("the memory node's process does not answer".to_owned());
        };
        // The first lease has begun at the start of the process, so before the first answer of the process.
        *self.state.renewed.lock().ignore_poison() = Instant::now();
        match line.strip_prefix("error ") {
            Some(why) => Err(why.to_owned()),
            None => Ok(line),
        }
    }

    /// Returns whether the process has ended, or left a question unanswered.
    pub(super) fn is_gone(&self) -> bool {
        self.state.is_gone.load(Ordering::Acquire)
    }

    /// Stops the memory node. Returns the time from which the memory node serves no request any more: now if it has
    /// answered, else the end of its lease.
    pub(super) fn stop(&self) -> Instant {
        self.state.is_given_up.store(true, Ordering::Release);
        if self.ask("stop").is_ok() {
            return Instant::now();
        }
        let renewed = *self.state.renewed.lock().ignore_poison();
        renewed + LEASE + MARGIN
    }

    /// Ends the process with SIGKILL.
    pub(super) fn kill(&self) -> io::Result<()> {
        let mut child = self.child.lock().ignore_poison();
        child.kill()?;
        child.wait().map(drop)
    }
}

impl State {
    /// Allows the memory node to serve for another lease, which counts from the time at which the memory node asked.
    fn renew(&self, input: &Mutex<ChildStdin>) {
        let mut renewed = self.renewed.lock().ignore_poison();
        if !self.is_given_up.load(Ordering::Acquire) {
            *renewed = Instant::now();
            // Ignore an error: a memory node that does not receive this line stops to serve at the end of its lease.
            let _ = writeln!(input.lock().ignore_poison(), "{YOU_MAY}");
        }
    }
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.kill();
    }
}
