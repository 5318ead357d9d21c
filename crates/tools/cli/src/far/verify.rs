//! `doorbell far verify`: runs clients as processes, kills one of the processes, and checks the history.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use doorbell_fabric::FaultPlan;
use doorbell_farmem::Strategy;
use doorbell_farmem::assembly::{Lines, Party, Plan};
use doorbell_farmem::workload::history::{Event, NEVER, Span, is_linearizable};
use doorbell_farmem::workload::{self, Random};
use doorbell_machine::pinning::Pinning;
use doorbell_verbs::soft::SoftOptions;
use serde_json::json;

use super::arguments::{self, OtherBox, Workload};
use super::client::READY;
use super::middlebox::Gate;
use super::service::{Memories, Store};
use crate::device::{DeviceChoice, UdpPort};
use crate::failure::{Failure, Usage};
use crate::output::{line, note};

#[derive(Args)]
pub(crate) struct Verify {
    /// Strategy for concurrent access of clients
    #[arg(long, value_name = "NAME", default_value = "optimistic", value_parser = arguments::strategy)]
    strategy: Strategy,
    /// Number of clients, each a process
    #[arg(long, value_name = "N", default_value = "4", value_parser = arguments::clients)]
    clients: usize,
    /// Kill no client
    #[arg(long)]
    no_kill: bool,
    /// Strategies steered and steered-write: kill the middlebox in the middle of the run, and start another middlebox
    /// in its place, which does not have the state of the first one
    #[arg(long)]
    kill_box: bool,
    /// Strategies steered and steered-write: faults of packets that arrive at the middlebox, as in `doorbell steer`
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,
    /// With --replicas 2: kill this memory node early in the run, and continue with the other memory node
    #[arg(long, value_name = "NODE")]
    kill_node: Option<MemoryNodeName>,
    #[command(flatten)]
    other: OtherBox,
    #[command(flatten)]
    workload: Workload,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    udp: UdpPort,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// One of two memory nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MemoryNodeName {
    /// The node from which clients read
    Primary,
    /// The node with the copy
    Replica,
}

/// Maximum number of operations on one key. The check of a key takes more than linear time.
const MAX_JUDGED: usize = 20_000;

/// A client's process. Dropping this handle ends the process.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// History of each key.
#[derive(Default)]
struct Judged {
    keys: BTreeMap<u64, Vec<Span>>,
    operations: usize,
    unanswered: usize,
    torn: usize,
}

impl Verify {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let load = self.workload.load(self.clients, false)?;
        if load.value_bytes < 8 {
            return Err(
                Usage(format!("-s is {} B: values must have at least 8 B to be checked", load.value_bytes)).into()
            );
        }
        let is_boxed = self.strategy.is_steered();
        let of_box = [("--kill-box", self.kill_box), ("--fault", self.fault.is_some())];
        if let Some((option, _)) = of_box.into_iter().find(|(_, is_given)| *is_given) {
            if !is_boxed {
                return Err(arguments::no_box(option, self.strategy).into());
            }
            if self.other.addresses().is_some() {
                return Err(
                    Usage(format!("{option} is for a middlebox started here: drop {option} or --through")).into()
                );
            }
        }
        let replicas = self.workload.replicas;
        arguments::check_replicas(self.strategy, replicas)?;
        if self.kill_node.is_some() && replicas == 1 {
            return Err(Usage("--kill-node leaves no memory node: add --replicas 2".to_owned()).into());
        }
        let chosen = self.device.choose(None)?;
        arguments::check_here(self.strategy, &chosen, &self.other)?;
        let open = || chosen.open(|| SoftOptions { port: self.udp.port, publish: false, ..SoftOptions::default() });
        let of_store = (self.strategy, self.clients);
        let part = |name: &str| arguments::part(name, of_store, &self.workload, &chosen, self.udp);
        let memory = || part("memory");
        let plan = self.workload.plan(self.strategy, &load, self.clients);
        let of_metadata = open()?;
        let (memories, lease_ns) = match replicas {
            1 => (Memories::Here(vec![open()?]), None),
            _ => (Memories::There(&memory), arguments::lease_ns(replicas)),
        };
        let (plan, apart) = (Plan { lease_ns, ..plan }, (self.fault.clone(), self.other));
        let mut store = Store::start((memories, of_metadata), plan, apart, &Pinning::default())?;
        let mut processes = Vec::new();
        let mut readers = Vec::new();
        let (attached, attaching) = channel();
        for number in 1..=self.clients as u32 {
            let mut command = part("client")?;
            command.args(["--number", &number.to_string()]);
            if let Some(gate) = &store.gate {
                command.args(["--through", &gate.through.to_string()]);
            }
            if self.kill_box {
                // Each client works until its box is killed, even if this happens late, and then continues through the
                // next box.
                command.arg("--until-cut");
            }
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let output = BufReader::new(child.stdout.take().ok_or("a client without an output")?);
            let input = child.stdin.take().ok_or("a client without an input")?;
            let lines = store.exchange.connect(Party::Client(number), input)?;
            let (begin, attached, clients) = (lines.sender(), attached.clone(), self.clients as u32);
            readers.push(std::thread::spawn(move || listen(output, lines, (number, clients), &attached)));
            processes.push((Process(child), begin));
        }
        drop(attached);
        if attaching.iter().take(self.clients).any(|is_attached| !is_attached) {
            return Err("a client process has ended before it connected to the store".into());
        }
        processes.iter().for_each(|(_, begin)| begin("begin"));
        note!("{} clients, {}", self.clients, self.strategy.name());
        let begun = Instant::now();
        let all_ns = load.warm_up_ns + load.measure_ns;
        let mut random = Random::new(self.workload.seed);
        let mut wait_until = |from_ns: u64, within_ns: u64| {
            let at = Duration::from_nanos(from_ns + random.below(within_ns.max(1)));
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
        };
        if let Some(node) = self.kill_node {
            // Kill the node early, so that clients have time for operations after its death.
            wait_until(all_ns / 16, all_ns / 16);
            store.kill_node(node as usize)?;
        }
        let killed = (!self.no_kill).then(|| {
            let from_ns = if self.kill_box { all_ns / 16 } else { all_ns / 4 };
            wait_until(from_ns, from_ns);
            drop(processes.remove(0)); // SIGKILL
        });
        if self.kill_box {
            // Clients notice the dead box when their retries are exhausted, and then connect to the next box.
            wait_until(all_ns / 8, all_ns / 8);
            store.gate.as_mut().map_or(Ok(()), Gate::replace_box)?;
        }
        let mut judged = Judged::default();
        let mut finished = 0;
        for (index, reader) in readers.into_iter().enumerate() {
            let lines = reader.join().map_err(|_| "a thread that reads panicked")?;
            finished += usize::from(lines.last().is_some_and(|line| line == "done"));
            judged.take(index as u64 + 1, &lines)?;
        }
        drop(processes);
        let expected = self.clients - usize::from(killed.is_some());
        if finished < expected {
            let problem = format!("of {expected} clients that were not killed, {finished} finished");
            return Err(problem.into());
        }
        let rest = store.stop()?;
        if let Some((key, spans)) = judged.keys.iter().find(|(_, spans)| spans.len() > MAX_JUDGED) {
            let problem = format!(
                "key {key} has {} operations, and at most {MAX_JUDGED} can be judged: shorten -D, or give more --keys",
                spans.len()
            );
            return Err(problem.into());
        }
        let wrong = judged.wrong();
        let verdict = if wrong.is_empty() && judged.torn == 0 { "linearizable" } else { "NOT linearizable" };
        if self.json {
            line(serde_json::to_string_pretty(&json!({
                "schema": "doorbell-far-verify/1",
                "strategy": self.strategy.name(),
                "clients": self.clients,
                "killed": usize::from(killed.is_some()),
                "operations": judged.operations,
                "unanswered": judged.unanswered,
                "keys": judged.keys.len(),
                "torn": judged.torn,
                "keys_not_linearizable": wrong,
                "free_nodes": rest.nodes.free,
                "box": rest.box_counters,
                "memory_nodes": rest.memory_nodes,
                "linearizable": wrong.is_empty() && judged.torn == 0,
            }))?)?;
        } else {
            line(format_args!(
                "{}: {verdict}; {} operations of {} clients on {} keys, {} without an answer, {} torn values; no node is \
                 lost",
                self.strategy.name(),
                judged.operations,
                self.clients,
                judged.keys.len(),
                judged.unanswered,
                judged.torn
            ))?;
            for key in &wrong {
                line(format_args!("key {key} is not linearizable"))?;
            }
        }
        Ok(if wrong.is_empty() && judged.torn == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Carries the messages of client process `number` of `clients`. Returns all other lines of the process.
fn listen(
    output: BufReader<ChildStdout>,
    lines: Lines,
    (number, clients): (u32, u32),
    attached: &Sender<bool>,
) -> Vec<String> {
    let mut others = Vec::new();
    // Each connection of a process has another number. The service reclaims the resources of the old number.
    let may_be = |party| matches!(party, Party::Client(own) if own >= number && (own - number).is_multiple_of(clients));
    let listened = lines.listen(output, may_be, |line| match line {
        READY => attached.send(true).unwrap_or_default(),
        line => others.push(line.to_owned()),
    });
    if let Err(error) = listened {
        note!("client {number}: {error}");
    }
    let _ = attached.send(false);
    others
}

impl Judged {
    /// Reads the lines of a client. The last line may be cut if the client was killed.
    fn take(&mut self, client: u64, lines: &[String]) -> Result<(), Failure> {
        let mut running: BTreeMap<u64, (u64, u64, Option<u64>)> = BTreeMap::new();
        for text in lines {
            let words: Vec<&str> = text.split(' ').collect();
            let numbers: Vec<Option<u64>> = words.iter().map(|word| word.parse().ok()).collect();
            match (words[0], &numbers[1..]) {
                ("b", [Some(from), Some(operation), Some(key)]) => {
                    running.insert(*operation, (*from, *key, None));
                }
                ("b", [Some(from), Some(operation), Some(key), Some(value)]) => {
                    running.insert(*operation, (*from, *key, Some(*value)));
                }
                ("e", [Some(to), Some(operation), _, rest @ ..]) => {
                    let Some((from, key, written)) = running.remove(operation) else { continue };
                    let is_done = words[3] == "done";
                    if words[3] == "torn" {
                        self.torn += 1;
                        continue;
                    }
                    let event = match written {
                        Some(value) => Event::Put(value, is_done),
                        None => Event::Get(rest.first().copied().flatten().filter(|_| is_done)),
                    };
                    self.push(key, Span { from, to: *to, event });
                }
                ("g", [Some(operation)]) => {
                    running.remove(operation);
                }
                ("cut", []) => self.unanswered(&mut running),
                ("done", []) => {}
                _ if text == lines.last().map_or("", String::as_str) => {}
                _ => return Err(format!("client {client} wrote {text:?}, which is no event").into()),
            }
        }
        self.unanswered(&mut running);
        Ok(())
    }

    /// Records the puts that a client had in progress. They never get an answer, and may have taken effect or not.
    fn unanswered(&mut self, running: &mut BTreeMap<u64, (u64, u64, Option<u64>)>) {
        for (from, key, written) in std::mem::take(running).into_values() {
            if let Some(value) = written {
                self.unanswered += 1;
                self.push(key, Span { from, to: NEVER, event: Event::PerhapsPut(value) });
            }
        }
    }

    fn push(&mut self, key: u64, span: Span) {
        self.operations += 1;
        let spans = self
            .keys
            .entry(key)
            .or_insert_with(|| vec![Span { from: 0, to: 0, event: Event::Insert(workload::first_number(key), true) }]);
        spans.push(span);
    }

    /// Returns the keys whose histories are not those of linearizable registers.
    fn wrong(&self) -> Vec<u64> {
        self.keys.iter().filter(|(_, spans)| !is_linearizable(spans)).map(|(&key, _)| key).collect()
    }
}
