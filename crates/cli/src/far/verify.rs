//! `doorbell far verify`: real processes, one of which is killed, and a history that is judged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use doorbell_exchange::setup::RemoteRegion;
use doorbell_farmem::workload::history::{Event, NEVER, Span, is_linearizable};
use doorbell_farmem::workload::{self, Random};
use doorbell_farmem::{ClientDescription, Strategy};
use doorbell_verbs::soft::SoftOptions;
use serde_json::json;

use super::arguments::{self, Workload};
use super::client::{descriptions, optional, to_hex};
use super::service::{Sides, Store};
use crate::device::{DeviceChoice, UdpPort};
use crate::output::{line, note};
use crate::{Failure, Usage};

#[derive(Args)]
pub(crate) struct Verify {
    /// What clients do about each other
    #[arg(long, value_name = "NAME", default_value = "optimistic", value_parser = arguments::strategy)]
    strategy: Strategy,
    /// Clients, each a process
    #[arg(long, value_name = "N", default_value = "4", value_parser = arguments::clients)]
    clients: usize,
    /// Kill no client
    #[arg(long)]
    no_kill: bool,
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

/// The most operations on one key that are judged together: the search takes more than linear time.
const MAX_JUDGED: usize = 20_000;

/// A client's process, which ends with this handle.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is just as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What happened to each key.
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
            return Err(Usage(format!("-s is {} B: values that are judged have at least 8 B", load.value_bytes)).into());
        }
        let chosen = self.device.choose(None)?;
        let open = || chosen.open(|| SoftOptions { port: self.udp.port, publish: false, ..SoftOptions::default() });
        let store = Store::start([open()?, open()?], self.strategy, load, self.clients)?;
        let sides = store.sides();
        let mut processes = Vec::new();
        let mut readers = Vec::new();
        for number in 1..=self.clients as u32 {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["far", "client", "--number", &number.to_string(), "--clients", &self.clients.to_string()]);
            command.args(["--strategy", self.strategy.name(), "--udp-port", &self.udp.port.to_string()]);
            command.args(chosen.arguments()).args(self.workload.arguments());
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let mut process = Process(child);
            let mut output = BufReader::new(process.0.stdout.take().ok_or("a client without an output")?);
            attach(&sides, number, &mut output, &mut process)?;
            readers.push(output);
            processes.push(process);
        }
        for process in &mut processes {
            writeln!(process.0.stdin.as_mut().ok_or("a client without an input")?)?;
        }
        note!("{} clients, {}", self.clients, self.strategy.name());
        let outputs: Vec<_> = readers
            .into_iter()
            .map(|reader| std::thread::spawn(move || reader.lines().map_while(Result::ok).collect::<Vec<String>>()))
            .collect();
        let killed = (!self.no_kill).then(|| {
            let mut random = Random::new(self.workload.seed);
            let all_ns = load.warm_up_ns + load.measure_ns;
            std::thread::sleep(Duration::from_nanos(all_ns / 4 + random.below(all_ns / 4)));
            drop(processes.remove(0)); // SIGKILL
        });
        let mut judged = Judged::default();
        let mut finished = 0;
        for (index, output) in outputs.into_iter().enumerate() {
            let lines = output.join().map_err(|_| "a thread that reads panicked")?;
            finished += usize::from(lines.last().is_some_and(|line| line == "done"));
            judged.take(index as u64 + 1, &lines)?;
        }
        drop(processes);
        drop(sides);
        let expected = self.clients - usize::from(killed.is_some());
        if finished < expected {
            let problem = format!("of {expected} clients that nobody killed {finished} came to their end");
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

/// Connects a client's process with the store.
fn attach(
    sides: &Sides,
    number: u32,
    output: &mut BufReader<std::process::ChildStdout>,
    process: &mut Process,
) -> Result<(), Failure> {
    let mut first = String::new();
    output.read_line(&mut first)?;
    let [Some(lane), calls, Some(metadata)] = descriptions(&first)?[..] else {
        return Err(format!("client {number} sent no descriptions").into());
    };
    let memory = sides.memory.accept(number, ClientDescription { lane, calls })?;
    let metadata = sides.metadata.accept(number, metadata)?;
    let mut endpoint = memory.endpoint;
    endpoint.regions = [memory.region, RemoteRegion::NONE];
    let input = process.0.stdin.as_mut().ok_or("a client without an input")?;
    writeln!(input, "{} {} {}", to_hex(&endpoint), optional(memory.calls.as_ref()), to_hex(&metadata))?;
    Ok(())
}

impl Judged {
    /// Takes the lines of a client. The last one may be cut where it was killed.
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
                ("done", []) => {}
                _ if text == lines.last().map_or("", String::as_str) => {}
                _ => return Err(format!("client {client} wrote {text:?}, which is no event").into()),
            }
        }
        for (from, key, written) in running.into_values() {
            if let Some(value) = written {
                self.unanswered += 1;
                self.push(key, Span { from, to: NEVER, event: Event::PerhapsPut(value) });
            }
        }
        Ok(())
    }

    fn push(&mut self, key: u64, span: Span) {
        self.operations += 1;
        let spans = self
            .keys
            .entry(key)
            .or_insert_with(|| vec![Span { from: 0, to: 0, event: Event::Insert(workload::first_number(key), true) }]);
        spans.push(span);
    }

    /// Keys that are no linearizable registers.
    fn wrong(&self) -> Vec<u64> {
        self.keys.iter().filter(|(_, spans)| !is_linearizable(spans)).map(|(&key, _)| key).collect()
    }
}
