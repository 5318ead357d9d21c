//! A client of another process's store.
//!
//! It writes lines to standard output, each at once, so that what it had begun is known when it is killed:
//! its descriptions, then `b NANOSECONDS OPERATION KEY [VALUE]` before and `e NANOSECONDS OPERATION OUTCOME [VALUE]` after each
//! operation, `g OPERATION` for one that gave up, and `done`. Values are numbers, which every word of the value repeats.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use clap::Args;
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_farmem::workload::{self, Witness};
use doorbell_farmem::{ClientDescription, ClientEnd, HostCache, MemoryDescription, Outcome, Strategy};
use doorbell_study::executor::{Idle, block_on};
use doorbell_verbs::soft::SoftOptions;
use nix::time::{ClockId, clock_gettime};

use super::arguments::{self, Workload};
use crate::Failure;
use crate::device::{DeviceChoice, UdpPort};

#[derive(Args)]
pub(crate) struct ClientProcess {
    /// Its number, from 1
    #[arg(long)]
    number: u32,
    /// Clients of the store
    #[arg(long)]
    clients: usize,
    #[arg(long, value_parser = arguments::strategy)]
    strategy: Strategy,
    #[command(flatten)]
    workload: Workload,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    udp: UdpPort,
}

/// A clock that all processes of a machine share, in nanoseconds.
pub(super) fn shared_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// A description as hexadecimal digits.
pub(super) fn to_hex(description: &EndpointDescription) -> String {
    let mut bytes = Vec::new();
    description.encode(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Result<EndpointDescription, String> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    let bytes = bytes.ok_or("a description that is not made of hexadecimal digits")?;
    EndpointDescription::decode(&bytes).map_err(|what| format!("a description with {what}"))
}

/// What a line of descriptions holds; `-` is none.
pub(super) fn descriptions(line: &str) -> Result<Vec<Option<EndpointDescription>>, String> {
    line.split_whitespace().map(|word| if word == "-" { Ok(None) } else { from_hex(word).map(Some) }).collect()
}

pub(super) fn optional(description: Option<&EndpointDescription>) -> String {
    description.map_or("-".to_owned(), to_hex)
}

/// The number of a value, if the whole value is that number over and over.
fn number(value: &[u8]) -> Option<u64> {
    let first = value.first_chunk::<8>()?;
    let is_whole = value.chunks(8).all(|chunk| first.starts_with(chunk));
    is_whole.then(|| u64::from_le_bytes(*first))
}

/// Writes a line for each event.
struct Lines(io::Stdout);

impl Lines {
    fn say(&self, line: std::fmt::Arguments<'_>) {
        // Where nobody reads, the parent is gone, and ends this process.
        let mut out = self.0.lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

impl Witness for Lines {
    fn begins(&mut self, _: u64, operation: u64, rank: u64, written: Option<&[u8]>) {
        match written {
            Some(value) => {
                let value = number(value).unwrap_or_default();
                self.say(format_args!("b {} {operation} {rank} {value}", shared_ns()));
            }
            None => self.say(format_args!("b {} {operation} {rank}", shared_ns())),
        }
    }

    fn ended(&mut self, _: u64, operation: u64, outcome: Outcome, read: Option<&[u8]>) {
        let now = shared_ns();
        let what = if outcome == Outcome::Done { "done" } else { "absent" };
        match read.map(number) {
            Some(Some(value)) => self.say(format_args!("e {now} {operation} {what} {value}")),
            Some(None) => self.say(format_args!("e {now} {operation} torn")),
            None => self.say(format_args!("e {now} {operation} {what}")),
        }
    }

    fn gave_up(&mut self, operation: u64) {
        self.say(format_args!("g {operation}"));
    }
}

impl ClientProcess {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let chosen = self.device.choose(None)?;
        let device = chosen.open(|| SoftOptions { port: self.udp.port, publish: false, ..SoftOptions::default() })?;
        let load = self.workload.load(self.clients, false)?;
        let options = self.workload.options(self.strategy, load.outstanding);
        let geometry = load.geometry(self.clients);
        let end = ClientEnd::new(&device.create_pd()?, geometry, options)?;
        let mut lines = Lines(io::stdout());
        let ClientDescription { lane, calls } = end.to_memory();
        lines.say(format_args!("{} {} {}", to_hex(&lane), optional(calls.as_ref()), to_hex(&end.to_metadata())));
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        let [Some(endpoint), calls, Some(metadata)] = descriptions(&line)?[..] else {
            return Err("the store's side sent no descriptions".into());
        };
        let region: RemoteRegion = endpoint.regions[0];
        let memory = MemoryDescription { endpoint, region, geometry, calls };
        let cache = Arc::new(HostCache::new(4 * load.keys as usize));
        let mut client = end.connect(self.number, &memory, &metadata, &cache)?;
        line.clear();
        io::stdin().lock().read_line(&mut line)?; // all are ready
        let idle = Idle::spin();
        block_on(async {
            let of = (self.number.into(), self.workload.seed);
            let tally = workload::drive(&mut client, &device, &load, of, &idle, &mut lines).await;
            workload::close(client, &idle).await;
            tally
        })?;
        lines.say(format_args!("done"));
        Ok(())
    }
}
