//! A client process of a store in another process, the store's process.
//!
//! The client writes a line to standard output for each event, and flushes each line. So a killed client leaves a
//! record of the operations that it had started. The lines are:
//! - `connect` with the descriptions of the client's queue pairs, before each connection to the store
//! - `b NANOSECONDS OPERATION KEY [VALUE]` before each operation
//! - `e NANOSECONDS OPERATION OUTCOME [VALUE]` after an operation
//! - `g OPERATION` after an operation that gave up
//! - `cut` after the middlebox has ended, before the client connects again
//! - `done` at the end
//!
//! Values are numbers. Each word of a stored value repeats the number.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_farmem::workload::{self, Load, Witness};
use doorbell_farmem::{Client, ClientDescription, ClientEnd, HostCache, MemoryDescription, Outcome};
use doorbell_study::executor::{Idle, run_while};
use doorbell_verbs::Device;
use nix::time::{ClockId, clock_gettime};

use super::arguments::PartArguments;
use super::middlebox::BoxConnection;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct ClientProcess {
    /// Address of the middlebox through which the client reaches the memory
    #[arg(long, value_name = "ADDRESS")]
    through: Option<SocketAddr>,
    /// Work until the middlebox ends, and then for half of -D through the next middlebox
    #[arg(long, requires = "through")]
    until_cut: bool,
    #[command(flatten)]
    part: PartArguments,
}

/// Answer to a client whose middlebox has ended: connect again through the next one.
pub(super) const AGAIN: &str = "again";

/// Maximum time for which a client works if its middlebox does not end.
const LONGEST: Duration = Duration::from_secs(600);

/// Returns the time of the monotonic clock, which all processes of a machine share, in nanoseconds.
pub(super) fn shared_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Parses a description in hexadecimal ([`EndpointDescription::to_hex`]).
pub(super) fn from_hex(text: &str) -> Result<EndpointDescription, String> {
    EndpointDescription::from_hex(text).map_err(|what| format!("a description with {what}"))
}

/// Parses a line of descriptions; `-` means none.
pub(super) fn descriptions(line: &str) -> Result<Vec<Option<EndpointDescription>>, String> {
    line.split_whitespace().map(|word| if word == "-" { Ok(None) } else { from_hex(word).map(Some) }).collect()
}

/// Returns the description of a memory node's queue pair, with its region.
pub(super) fn described(memory: MemoryDescription) -> EndpointDescription {
    EndpointDescription { regions: [memory.region, RemoteRegion::NONE], ..memory.endpoint }
}

pub(super) fn optional(description: Option<&EndpointDescription>) -> String {
    description.map_or("-".to_owned(), EndpointDescription::to_hex)
}

/// Returns the number that a value repeats, or `None` if the value does not repeat one number (a torn value).
fn number(value: &[u8]) -> Option<u64> {
    let first = value.first_chunk::<8>()?;
    let is_whole = value.chunks(8).all(|chunk| first.starts_with(chunk));
    is_whole.then(|| u64::from_le_bytes(*first))
}

/// Witness that writes a line to standard output for each event.
struct Lines(io::Stdout);

impl Lines {
    fn say(&self, line: std::fmt::Arguments<'_>) {
        // Ignore an error: if the output has no reader, the parent has ended, and this process ends too.
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
    #[allow(clippy::disallowed_methods, reason = "a pipe to the process that started this one")]
    pub(super) fn run(&self) -> Result<(), Failure> {
        let device = self.part.open()?;
        let whole = self.part.load()?;
        let mut load = whole;
        if self.until_cut {
            load.measure_ns = LONGEST.as_nanos() as u64;
        }
        let cache = Arc::new(HostCache::new(4 * load.keys as usize));
        let mut lines = Lines(io::stdout());
        let (client, mut entered) = self.enter(&device, &load, &cache, &mut lines)?;
        io::stdin().lock().read_line(&mut String::new())?; // all are ready
        let mut next = Some(client);
        while let Some((number, mut client)) = next.take() {
            let has_ended = entered.as_ref().map(BoxConnection::watch).transpose()?;
            let check = || match &has_ended {
                Some(ended) if ended.load(Ordering::Acquire) => Err(()),
                _ => Ok(()),
            };
            let idle = Idle::spin();
            let task = async {
                let of = (number.into(), self.part.workload.seed);
                let tally = workload::drive(&mut client, &device, &load, of, &idle, &mut lines).await;
                if tally.is_ok() {
                    workload::close(client, &idle).await;
                }
                tally.map(drop)
            };
            let result = run_while(&idle, [task], check).map(|results| results.into_iter().collect::<Result<(), _>>());
            match result {
                Ok(result) if check().is_ok() => result?,
                // The middlebox has ended. Operations in progress may have taken effect or not. The new middlebox has
                // no state, so connect again.
                Ok(_) | Err(()) => {
                    lines.say(format_args!("cut"));
                    load = Load { warm_up_ns: 0, measure_ns: load.measure_ns.min(whole.measure_ns) / 2, ..load };
                    let again;
                    (again, entered) = self.enter(&device, &load, &cache, &mut lines)?;
                    next = Some(again);
                }
            }
        }
        lines.say(format_args!("done"));
        Ok(())
    }

    /// Connects to the store, repeatedly if necessary. Returns the client with its number, and the connection with the
    /// middlebox, if there is one.
    fn enter(
        &self,
        device: &Device,
        load: &Load,
        cache: &Arc<HostCache>,
        lines: &mut Lines,
    ) -> Result<((u32, Client), Option<BoxConnection>), Failure> {
        let geometry = load.geometry(self.part.clients);
        let options = self.part.workload.options(self.part.strategy, load.outstanding);
        loop {
            let mut end = ClientEnd::new(&device.create_pd()?, geometry, options.clone())?;
            let ClientDescription { lane, calls } = end.to_memory();
            let joined = self.through.map(|address| BoxConnection::patiently(address, &lane, geometry)).transpose()?;
            // Behind a middlebox, describe to the store the queue pair at the middlebox instead of the client's own.
            let lane = joined.as_ref().map_or(lane, |joined| joined.memory.endpoint);
            let (lane, calls, metadata) = (lane.to_hex(), optional(calls.as_ref()), end.to_metadata().to_hex());
            let replica = end.to_replica().map(|replica| replica.lane);
            lines.say(format_args!("connect {lane} {calls} {metadata} {}", optional(replica.as_ref())));
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line)?;
            if line.trim_end() == AGAIN {
                continue;
            }
            let (number, rest) = line.split_once(' ').ok_or("the store's process has ended")?;
            let number: u32 = number.parse().map_err(|_| format!("{number:?} must be the number of a client"))?;
            let [endpoint, calls, Some(metadata), replica] = descriptions(rest)?[..] else {
                return Err("the store's process sent no descriptions".into());
            };
            if let Some(endpoint) = replica {
                end.set_replica(MemoryDescription { endpoint, region: endpoint.regions[0], geometry, calls: None });
            }
            let memory = match (&joined, endpoint) {
                (Some(joined), _) => joined.memory,
                (None, Some(endpoint)) => MemoryDescription { endpoint, region: endpoint.regions[0], geometry, calls },
                (None, None) => return Err("the store's process sent no description of the memory".into()),
            };
            return Ok(((number, end.connect(number, &memory, &metadata, cache)?), joined));
        }
    }
}
