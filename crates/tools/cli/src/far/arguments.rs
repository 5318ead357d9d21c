//! Workloads of the store, and arguments of its processes.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use doorbell_farmem::assembly::Plan;
use doorbell_farmem::workload::{Load, MIXES};
use doorbell_farmem::{ClientOptions, MAX_OUTSTANDING, MAX_VALUE, OpenError, Strategy};
use doorbell_record::StorePoint;
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, SoftOptions};

use crate::device::{Chosen, DeviceChoice, UdpPort};
use crate::failure::{Failure, Usage};
use crate::quantity;

/// Arguments of a client or memory node in a process of its own, which another process has started for its store.
#[derive(Args)]
pub(super) struct PartArguments {
    /// Number of clients of the store
    #[arg(long)]
    pub(super) clients: usize,
    #[arg(long, value_parser = strategy)]
    pub(super) strategy: Strategy,
    #[command(flatten)]
    pub(super) workload: Workload,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    udp: UdpPort,
}

impl PartArguments {
    /// Opens the device of the process.
    pub(super) fn open(&self) -> Result<Device, Failure> {
        let options = || SoftOptions { port: self.udp.port, publish: false, ..SoftOptions::default() };
        self.device.choose(None)?.open(options)
    }

    /// Returns the load of each client.
    pub(super) fn load(&self) -> Result<Load, Failure> {
        self.workload.load(self.clients, false)
    }

    /// Returns the plan of the store.
    pub(super) fn plan(&self, load: &Load) -> Plan {
        Plan { lease_ns: lease_ns(self.workload.replicas), ..self.workload.plan(self.strategy, load, self.clients) }
    }
}

/// Returns the command that starts a process for part `part` of a store. The options must be those of
/// [`PartArguments`].
pub(super) fn part(
    part: &str,
    (strategy, clients): (Strategy, usize),
    workload: &Workload,
    chosen: &Chosen,
    udp: UdpPort,
) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["far", part, "--clients", &clients.to_string()]);
    command.args(["--strategy", strategy.name(), "--udp-port", &udp.port.to_string()]);
    command.args(chosen.arguments()).args(workload.arguments());
    Ok(command)
}

/// Returns the time for which a memory node in a process of its own serves without hearing from the metadata service.
/// With one memory node, none can take its place, so it needs no lease.
pub(super) fn lease_ns(replicas: usize) -> Option<u64> {
    (replicas > 1).then_some(1_000_000_000)
}

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

/// Maximum number of clients of a run.
const MAX_CLIENTS: usize = 1024;
/// Time after which the holder of a lock counts as dead. A busy machine suspends a thread for less than this time.
const LEASE_NS: u64 = 2_000_000_000;
/// Default duration of a measurement in virtual time.
const SIMULATED: Duration = Duration::from_millis(20);
/// Default duration of a measurement on this machine.
const MEASURED: Duration = Duration::from_secs(2);

pub(super) fn strategy(text: &str) -> Result<Strategy, String> {
    let names = || Strategy::ALL.map(Strategy::name).join(", ");
    Strategy::by_name(text).ok_or_else(|| format!("{text:?} is no strategy: must be one of {}", names()))
}

/// Rejects a strategy that needs a middlebox on a hardware device, and options of a middlebox that the strategy does
/// not use.
pub(super) fn check_here(strategy: Strategy, chosen: &Chosen, other: &OtherBox) -> Result<(), Usage> {
    let is_elsewhere = other.addresses().is_some();
    match (strategy.is_steered(), is_elsewhere) {
        (true, false) if !chosen.is_soft() => Err(Usage(format!(
            "strategy {} needs a middlebox, which is started here only between software RNICs: add -d {} or --testbed, \
             or give a running middlebox with --through",
            strategy.name(),
            soft::NAME
        ))),
        (false, true) => Err(no_box("--through", strategy)),
        _ => Ok(()),
    }
}

pub(super) fn no_box(option: &str, strategy: Strategy) -> Usage {
    Usage(format!("{option} configures a middlebox, and strategy {} has none", strategy.name()))
}

pub(crate) fn clients(text: &str) -> Result<usize, String> {
    match quantity::count::<usize>(text)? {
        clients @ 1..=MAX_CLIENTS => Ok(clients),
        _ => Err(format!("must be 1 to {MAX_CLIENTS}")),
    }
}

/// Rejects a second memory node if the strategy does not support one.
pub(super) fn check_replicas(strategy: Strategy, replicas: usize) -> Result<(), Usage> {
    match replicas > 1 && !strategy.is_replicable() {
        true => Err(Usage(format!("--replicas {replicas}: {}", OpenError::NotReplicated(strategy.name())))),
        false => Ok(()),
    }
}

fn replicas(text: &str) -> Result<usize, String> {
    match quantity::count::<usize>(text)? {
        replicas @ 1..=2 => Ok(replicas),
        _ => Err("must be 1 or 2".to_owned()),
    }
}

fn mix(text: &str) -> Result<f64, String> {
    let named = MIXES.iter().find(|(name, ..)| *name == text).map(|(_, percent, _)| *percent);
    named.ok_or_else(|| {
        let all: Vec<String> = MIXES.iter().map(|(name, _, about)| format!("{name} ({about})")).collect();
        format!("{text:?} is no mix: must be one of {}", all.join(", "))
    })
}

pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| format!("{text:?} is no percentage: must be 0 to 100"))
}

pub(crate) fn skew(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=3.0).contains(value));
    value.ok_or_else(|| format!("{text:?} is no exponent of Zipf's law: must be 0 (uniform) to 3"))
}

/// A workload.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct Workload {
    /// Mix of gets and puts: a (half puts), b (5 % puts), c (only gets), as in YCSB, or writes (only puts)
    #[arg(long, value_name = "MIX", value_parser = mix, conflicts_with = "writes")]
    mix: Option<f64>,
    /// Percentage of operations that are puts [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    writes: Option<f64>,
    /// Skew of the keys: the exponent of Zipf's law, 0 (uniform) to 3
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", value_parser = skew)]
    zipf: f64,
    /// Number of keys; all of them exist
    #[arg(long, value_name = "N", default_value = "1024", value_parser = quantity::count::<u64>)]
    pub(super) keys: u64,
    /// Size of each value in bytes
    #[arg(short = 's', long = "size", value_name = "BYTES", default_value = "128", value_parser = quantity::bytes)]
    size: u64,
    /// Number of hosts among which the clients are distributed. The clients of a host share a cache with the newest
    /// node of each key
    #[arg(long, value_name = "N", default_value = "2", value_parser = clients)]
    pub(super) hosts: usize,
    /// Number of memory nodes with the same data, 1 or 2. Of two memory nodes, either one may fail
    #[arg(long, value_name = "N", default_value = "1", value_parser = replicas)]
    pub(super) replicas: usize,
    /// Outstanding operations of each client
    #[arg(short = 't', long, value_name = "N", default_value = "1", value_parser = quantity::count::<usize>)]
    outstanding: usize,
    /// Operations per second that all clients together start, even if earlier operations have not ended [default: a
    /// client starts its next operation when an earlier one ends]
    #[arg(short = 'r', long, value_name = "PER_S", value_parser = quantity::rate)]
    rate: Option<f64>,
    /// Time of a client between two operations
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = quantity::seconds)]
    client_time: f64,
    /// Delay between a put and the write of the key's shortcut, as if a background thread wrote it [default: none]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = quantity::seconds)]
    shortcut_delay: f64,
    /// Time during which operations are counted [default: 20ms in virtual time, 2s on this machine]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = quantity::seconds)]
    duration: Option<f64>,
    /// Seed of the operations; in virtual time it determines the whole run
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

impl Workload {
    /// Returns the workload of a point of a study. In a study too, the warm-up lasts a tenth of the measurement.
    pub(super) fn of(point: &StorePoint, seed: u64) -> Self {
        Self {
            mix: None,
            writes: Some(point.write_percent),
            zipf: point.zipf,
            keys: point.keys,
            size: point.value_bytes as u64,
            hosts: point.hosts,
            replicas: 1,
            outstanding: point.outstanding,
            rate: point.rate_per_s,
            client_time: point.client_us / 1e6,
            shortcut_delay: point.shortcut_us / 1e6,
            duration: Some(point.measure_us / 1e6),
            seed,
        }
    }

    /// Returns the load of each of `clients` clients.
    pub(super) fn load(&self, clients: usize, is_simulated: bool) -> Result<Load, Failure> {
        let refuse = |text: String| Failure::from(Usage(text));
        if !(1..=1 << 27).contains(&self.keys) {
            return Err(refuse(format!("--keys is {}: must be 1 to 2^27", self.keys)));
        }
        if self.size > MAX_VALUE as u64 {
            return Err(refuse(format!("-s is {} B: must be at most {MAX_VALUE} B", self.size)));
        }
        if !(1..=MAX_OUTSTANDING).contains(&self.outstanding) {
            return Err(refuse(format!("-t is {}: must be 1 to {MAX_OUTSTANDING} operations", self.outstanding)));
        }
        if let Some(rate) = self.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(refuse(format!("-r is {rate} operations per second: must be above 0 and finite")));
        }
        let default = if is_simulated { SIMULATED } else { MEASURED };
        let measure_s = self.duration.unwrap_or(default.as_secs_f64());
        Ok(Load {
            keys: self.keys,
            zipf: self.zipf,
            write_percent: self.mix.or(self.writes).unwrap_or(50.0),
            value_bytes: self.size as usize,
            outstanding: self.outstanding,
            rate_per_client: self.rate.map(|rate| rate / clients as f64),
            client_ns: (self.client_time * 1e9) as u64,
            warm_up_ns: (measure_s * 1e8) as u64,
            measure_ns: (measure_s * 1e9) as u64,
            drains: true,
        })
    }

    /// Returns the plan of a store whose memory nodes need no lease.
    pub(super) fn plan(&self, strategy: Strategy, load: &Load, clients: usize) -> Plan {
        Plan { replicas: self.replicas, ..Plan::new(strategy, load, clients) }
    }

    /// Returns the options that choose the same workload in another process.
    fn arguments(&self) -> Vec<String> {
        let given = [
            ("--writes", self.mix.or(self.writes).map(|percent| percent.to_string())),
            ("--zipf", Some(self.zipf.to_string())),
            ("--keys", Some(self.keys.to_string())),
            ("--replicas", Some(self.replicas.to_string())),
            ("-s", Some(self.size.to_string())),
            ("-t", Some(self.outstanding.to_string())),
            ("-r", self.rate.map(|rate| rate.to_string())),
            ("--client-time", Some(self.client_time.to_string())),
            ("--shortcut-delay", Some(self.shortcut_delay.to_string())),
            ("-D", self.duration.map(|seconds| seconds.to_string())),
            ("--seed", Some(self.seed.to_string())),
        ];
        given.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?])).flatten().collect()
    }

    /// Returns the options of clients.
    pub(super) fn options(&self, strategy: Strategy, outstanding: usize) -> ClientOptions {
        let shortcut_delay_ns = self.shortcut_delay_ns();
        let (seed, lease_ns, replicas) = (self.seed, LEASE_NS, self.replicas);
        ClientOptions { strategy, outstanding, replicas, seed, lease_ns, shortcut_delay_ns, ..ClientOptions::default() }
    }

    pub(super) fn shortcut_delay_ns(&self) -> u64 {
        (self.shortcut_delay * 1e9) as u64
    }

    /// Returns a sentence about the workload.
    pub(super) fn sentence(&self, load: &Load) -> String {
        let pace = match self.rate {
            Some(rate) => format!("{rate:.0} operations begin per second"),
            None => {
                format!("each client has {} running, {:.1} us apart", load.outstanding, load.client_ns as f64 / 1e3)
            }
        };
        let nodes = if self.replicas > 1 { ", two memory nodes" } else { "" };
        format!(
            "{} keys, Zipf {}, {} % puts, values of {} B, {} hosts{nodes}; {pace}",
            load.keys, load.zipf, load.write_percent, load.value_bytes, self.hosts
        )
    }
}
