//! A client process of a store in another process, the store's process.
//!
//! The two processes exchange messages of the store's set-up as lines ([`Mailbox`]). The client also writes a line to
//! standard output for each event, and flushes each line. So a killed client leaves a record of the operations that it
//! had started. The lines are:
//! - `ready` after the client has connected to the store; it then waits for a line that begins the work
//! - `b NANOSECONDS OPERATION KEY [VALUE]` before each operation
//! - `e NANOSECONDS OPERATION OUTCOME [VALUE]` after an operation
//! - `g OPERATION` after an operation that gave up
//! - `cut` after the middlebox has ended, before the client connects again
//! - `done` at the end
//!
//! Values are numbers. Each word of a stored value repeats the number.

use std::io::{self, BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use doorbell_farmem::assembly::{AssemblyError, BoxEntrance, ClientParty, Mailbox, Party, Plan};
use doorbell_farmem::workload::{self, Load, Witness};
use doorbell_farmem::{Client, HostCache, Outcome};
use doorbell_study::executor::{Idle, run_while};
use doorbell_verbs::Device;
use nix::time::{ClockId, clock_gettime};

use super::arguments::PartArguments;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct ClientProcess {
    /// Number of this client, counted from 1. A client that connects again adds the number of all clients to it
    #[arg(long, value_name = "N")]
    number: u32,
    /// Address of the middlebox through which the client reaches the memory
    #[arg(long, value_name = "ADDRESS")]
    through: Option<SocketAddr>,
    /// Work until the middlebox ends, and then for half of -D through the next middlebox
    #[arg(long, requires = "through")]
    until_cut: bool,
    #[command(flatten)]
    part: PartArguments,
}

/// Line of a client that has connected to the store.
pub(super) const READY: &str = "ready";

/// Maximum time for which a client works if its middlebox does not end.
const LONGEST: Duration = Duration::from_secs(600);
/// Pause before a client connects again.
const AGAIN: Duration = Duration::from_millis(10);
/// Interval at which a client checks whether its middlebox has ended.
const LOOK_NS: u64 = 1_000_000;

/// Returns the time of the monotonic clock, which all processes of a machine share, in nanoseconds.
fn shared_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
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
    #[allow(clippy::disallowed_methods, reason = "a pipe to the process that started this process")]
    pub(super) fn run(&self) -> Result<(), Failure> {
        let device = self.part.open()?;
        let whole = self.part.load()?;
        let plan = self.part.plan(&whole);
        let mut load = whole;
        if self.until_cut {
            load.measure_ns = LONGEST.as_nanos() as u64;
        }
        let cache = Arc::new(HostCache::new(4 * load.keys as usize));
        let mut lines = Lines(io::stdout());
        let (begin, begins) = channel();
        let begin = move |_: &str| begin.send(()).unwrap_or_default();
        let mailbox = Mailbox::of_process(&plan, BufReader::new(io::stdin()), io::stdout(), begin)?;
        let mut mailbox = mailbox.through(self.through.map(BoxEntrance::new));
        let mut numbers = (self.number..).step_by(self.part.clients);
        let mut enter = |mailbox: &mut Mailbox| self.enter(&device, (&plan, &load), &cache, &mut numbers, mailbox);
        let mut next = Some(enter(&mut mailbox)?);
        lines.say(format_args!("{READY}"));
        begins.recv().map_err(|_| AssemblyError::Ended)?;
        let (mut load, mut looked_ns) = (load, 0);
        while let Some((number, mut client)) = next.take() {
            let check = || {
                let now_ns = device.now_ns();
                if self.through.is_none() || now_ns < looked_ns + LOOK_NS {
                    return Ok(());
                }
                looked_ns = now_ns;
                if mailbox.has_lost_middlebox() { Err(()) } else { Ok(()) }
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
                Ok(result) if !mailbox.has_lost_middlebox() => result?,
                // The middlebox has ended. Operations in progress may have taken effect or not. The new middlebox has
                // no state, so connect again.
                Ok(_) | Err(()) => {
                    lines.say(format_args!("cut"));
                    load = Load { warm_up_ns: 0, measure_ns: load.measure_ns.min(whole.measure_ns) / 2, ..load };
                    next = Some(enter(&mut mailbox)?);
                }
            }
        }
        lines.say(format_args!("done"));
        Ok(())
    }

    /// Connects to the store, repeatedly if the middlebox ends meanwhile. Returns the client with its number.
    fn enter(
        &self,
        device: &Device,
        (plan, load): (&Plan, &Load),
        cache: &Arc<HostCache>,
        numbers: &mut impl Iterator<Item = u32>,
        mailbox: &mut Mailbox,
    ) -> Result<(u32, Client), Failure> {
        let options = self.part.workload.options(self.part.strategy, load.outstanding);
        for number in numbers {
            let mut party = ClientParty::new(&device.create_pd()?, plan, number, options.clone())?;
            match mailbox.admit(&mut party, device) {
                Ok(()) => return Ok((number, party.connect(cache)?)),
                // The middlebox has ended, or the metadata service knows another middlebox.
                Err(
                    AssemblyError::Unexpected { from: Party::Middlebox, .. }
                    | AssemblyError::Refused { by: Party::Metadata, .. },
                ) if plan.is_boxed => std::thread::sleep(AGAIN),
                Err(error) => return Err(error.into()),
            }
        }
        Err("the client has used all numbers".into())
    }
}
