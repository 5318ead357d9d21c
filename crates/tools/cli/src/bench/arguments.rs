//! Arguments of `doorbell bench lat`, `bw` and `load`, and their combined meaning.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use doorbell_exchange::send_receive::Config;
use doorbell_fabric::FaultPlan;
use doorbell_record::settings::{
    BATCH, CONNECTIONS, DEPTH, MEMORY, MESSAGES, OPERATION, REPLY, Range, SECONDS, SIZE, THREADS, WINDOW,
};
use doorbell_record::{Extent, Kind, Operation, Parameters, Transport, most_queued};
use doorbell_sim::Testbed;
use doorbell_verbs::soft::{AckPolicy, BIND_VARIABLE, LinkChoice, SoftOptions};
use doorbell_wire::Psn;
use doorbell_wire::cost::ATOMIC_BYTES;

use super::settings::Settings;
use crate::control::Meeting;
use crate::cpus::Cpus;
use crate::device::{Chosen, DeviceChoice, UdpPort};
use crate::failure::{Failure, Usage};
use crate::faults::FaultFiles;
use crate::quantity;
use crate::sim::arguments::Simulated;

/// Default duration of a simulation per size, in virtual seconds, for about ten thousand messages of 16 B.
const SIMULATED_SECONDS: f64 = 0.01;

/// Message sizes measured by default.
const DEFAULT_SIZES: [usize; 5] = [16, 512, 4096, 65_536, 1 << 20];

/// Datagram sizes measured by default. A datagram is one packet.
const DATAGRAM_SIZES: [usize; 3] = [16, 512, 1024];

/// Options for opening a device. All options except those of `choice` belong to the embedded software RNIC.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "RNIC of this side")]
pub(crate) struct DeviceArguments {
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Address of the RNIC [default: DOORBELL_BIND, else the next free loopback address; with a HOST on another
    /// machine, the local address of the TCP connection]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) udp: UdpPort,
    /// Size of the receive buffer to request from the kernel, in bytes as the kernel counts them
    #[arg(long, value_name = "BYTES", value_parser = quantity::memory_bytes)]
    pub(crate) receive_buffer: Option<usize>,
    /// Write every packet that this side sends or receives to a pcap file
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Faults of arriving packets, separated by commas: drop=P, duplicate=P, reorder=P, corrupt=P (a share, 0 to 1),
    /// delay=T (such as 5us), seed=N. Or rules, separated by semicolons, such as 'drop opcode=ack nth=1' (see
    /// docs/faults.md). Applies to both sides if both run here
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<FaultPlan>,
    #[command(flatten)]
    pub(crate) fault_files: FaultFiles,
    /// Time at which the receiver acknowledges a message. With `strict`, the receiver acknowledges a message before the
    /// program sees it. `answer` does the same, unless the program has answered the last eight messages. Applies to
    /// both sides if both run here [default: DOORBELL_ACK, else answer]
    #[arg(long, value_name = "POLICY")]
    pub(crate) ack: Option<AckPolicy>,
    /// Path of packets between devices of one machine and user: `udp`, `shm` (memory that both sides share), or `auto`
    /// (`shm` if the other side supports shared memory, else `udp`). Applies to both sides if both run here [default:
    /// DOORBELL_LINK, else auto]
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<LinkChoice>,
    /// PSN of the first packet of each queue pair, for tests of the wrap. Applies to both sides if both run here
    /// [default: random]
    #[arg(
        long,
        hide = true,
        value_name = "PSN",
        value_parser = clap::value_parser!(u32).range(..=i64::from(Psn::MASK))
    )]
    pub(crate) first_psn: Option<u32>,
}

impl DeviceArguments {
    /// Returns the fault plan, if one was given.
    pub(crate) fn faults(&self) -> Option<&FaultPlan> {
        self.fault.as_ref().or(self.fault_files.fault_plan.as_ref())
    }

    /// Returns the chosen device. Each option of the embedded RNIC selects the embedded RNIC.
    pub(crate) fn chosen(&self) -> Result<Chosen, Failure> {
        let own = [
            ("--bind", self.bind.is_some()),
            (BIND_VARIABLE, std::env::var_os(BIND_VARIABLE).is_some_and(|value| !value.is_empty())),
            ("--udp-port", !self.udp.is_roce()),
            ("--receive-buffer", self.receive_buffer.is_some()),
            ("--pcap", self.pcap.is_some()),
            ("--fault", self.fault.is_some()),
            ("--fault-plan", self.fault_files.fault_plan.is_some()),
            ("--fault-journal", self.fault_files.fault_journal.is_some()),
            ("--ack", self.ack.is_some()),
            ("--link", self.link.is_some()),
        ];
        self.choice.choose(own.into_iter().find_map(|(name, is_given)| is_given.then_some(name)))
    }

    /// Returns the address that the user gave to the chosen software RNIC.
    pub(crate) fn address(&self, chosen: &Chosen) -> Option<IpAddr> {
        self.bind.or(chosen.address())
    }

    /// Returns the options of the chosen software RNIC. `toward` is the local address on the path to a peer on another
    /// machine.
    pub(crate) fn soft_options(&self, chosen: &Chosen, is_second: bool, toward: Option<IpAddr>) -> SoftOptions {
        SoftOptions {
            // The second process on this machine takes the next free address. It writes no capture, since the
            // capture of the first process has both directions.
            address: if is_second { None } else { self.address(chosen).or(toward) },
            port: self.udp.port,
            pcap: if is_second { None } else { self.pcap.clone() },
            faults: self.faults().cloned(),
            fault_journal: self.fault_files.fault_journal.clone(),
            receive_buffer_bytes: self.receive_buffer,
            ack: self.ack,
            link: self.link,
            ..SoftOptions::default()
        }
    }
}

/// Common arguments of `lat`, `bw` and `load`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Exchange {
    /// Measure with a `doorbell bench --listen` at HOST or HOST:PORT. Without HOST and --listen, both sides run on this
    /// machine as two processes
    #[arg(conflicts_with = "listen")]
    host: Option<String>,
    /// Address of the first process, which starts the second process on this machine with this option.
    #[arg(long, hide = true, conflicts_with_all = ["host", "listen"])]
    pub(crate) serve_back: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Also print packets beside their prediction, CPU time, rates of packets, and explanations
    #[arg(short, long)]
    pub(crate) verbose: bool,

    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    #[command(flatten)]
    pub(crate) cpus: Cpus,
    #[command(flatten)]
    pub(crate) meeting: Meeting,
    #[command(flatten)]
    simulated: Simulated,
    /// Whether the command is `load`, whose defaults are those of clients: requests with replies, one at a time.
    #[arg(skip)]
    pub(crate) is_load: bool,
}

/// Role of this process.
pub(crate) enum Role {
    Listen,
    Connect(String),
    ServeBack(String),
    Both,
}

impl Exchange {
    pub(crate) fn role(&self) -> Role {
        match (&self.serve_back, &self.host) {
            (Some(address), _) => Role::ServeBack(address.clone()),
            _ if self.meeting.listens() => Role::Listen,
            (_, Some(host)) => Role::Connect(self.meeting.at(host)),
            _ => Role::Both,
        }
    }

    /// Returns the testbed to simulate, if the user gave one.
    pub(crate) fn testbed(&self) -> Result<Option<Testbed>, Failure> {
        let device = &self.device;
        self.simulated.read(&[
            ("a HOST", self.host.is_some()),
            ("--listen", self.meeting.listens()),
            ("-d", device.choice.name.is_some()),
            ("--receive-buffer", device.receive_buffer.is_some()),
            ("--pcap", device.pcap.is_some()),
            ("--ack", device.ack.is_some()),
            ("--first-psn", device.first_psn.is_some()),
            ("--cpus", self.cpus.is_given()),
        ])
    }

    /// Rejects options that do not work if both sides run on this machine as two processes.
    pub(crate) fn check_both_here(&self, chosen: &Chosen) -> Result<(), Usage> {
        match self.device.address(chosen) {
            Some(address @ IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => Err(Usage(format!(
                "--bind is {address}, but the second process of this machine takes a loopback address of IPv4. For \
                 IPv6, start both sides: one with --listen and --bind, one with HOST and another --bind"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the validated parameters of the measurement.
    pub(crate) fn parameters(&self, kind: Kind) -> Result<Parameters, Usage> {
        let settings = &self.settings;
        let mut parameters = Parameters::plain(kind, Operation::Send, 0);
        settings.apply(&mut parameters)?;
        let is_given = |setting| settings.values(setting).is_some();
        let is_answered = self.is_load || settings.are_requests || is_given(&REPLY);
        if is_answered && !settings.is_explicit(&OPERATION) && parameters.reply != Some(0) {
            parameters.operation = Operation::RequestResponse;
        }
        if parameters.operation != Operation::RequestResponse && parameters.reply == Some(0) {
            parameters.reply = None;
        }
        if parameters.operation.is_one_sided() {
            for (option, is_given) in [("-r", is_given(&DEPTH)), ("--no-credits", !parameters.credits)] {
                if is_given {
                    let operation = settings.values(&OPERATION).map_or_else(String::new, |it| OPERATION.show(it[0]));
                    return Err(Usage(format!(
                        "{option} configures receives, and --op {operation} uses none: drop {option}"
                    )));
                }
            }
        }
        if let Some(named) = settings.config.as_deref().and_then(Config::by_name) {
            parameters.window = if is_given(&WINDOW) { parameters.window } else { named.window };
            parameters.batch = if is_given(&BATCH) { parameters.batch } else { named.batch };
        }
        let is_closed = parameters.operation != Operation::Send && parameters.rate.is_none();
        if self.is_load && is_closed && settings.config.is_none() && !is_given(&WINDOW) {
            parameters.window = 1;
        }
        if let Some(clients) = settings.clients {
            if kind == Kind::Latency && clients > 1 {
                return Err(Usage(format!(
                    "--clients {clients}: must be 1 with lat: `doorbell bench load --clients {clients}` measures the \
                     latencies of several clients"
                )));
            }
            parameters.connections = clients;
            if !settings.is_explicit(&THREADS) {
                if let Range::Whole(_, most) = THREADS.range
                    && clients as u64 > most
                {
                    return Err(Usage(format!(
                        "--clients {clients}: must be at most {most}, since each client has a thread: \
                         use -q {clients} --threads {most}"
                    )));
                }
                parameters.serving.threads = clients;
            }
        } else if !is_given(&CONNECTIONS) {
            parameters.connections = parameters.serving.threads;
        }
        if !is_given(&DEPTH) {
            let connections = parameters.connections;
            let each = (2 * parameters.window).clamp(64, most_queued(connections).max(64));
            let all_together = each.saturating_mul(connections.max(1)).min(most_queued(1));
            parameters.depth = if parameters.serving.shared_receives.is_some() { all_together } else { each };
        }
        parameters.depths_are_defaults = !is_given(&WINDOW) && !is_given(&DEPTH);
        // Every link carries datagrams of 1024 B. With -m, the maximum is the given path MTU.
        let is_datagram = parameters.transport == Transport::Ud;
        let most = if is_datagram { parameters.mtu.unwrap_or(1024) } else { usize::MAX };
        parameters.mix = settings.mix()?;
        parameters.sizes = if let Some(mix) = &parameters.mix {
            vec![mix.longest()]
        } else if settings.all {
            (1..=23).map(|exponent| 1 << exponent).filter(|&bytes| bytes <= most).collect()
        } else if let Some(sizes) = settings.values(&SIZE) {
            sizes.iter().map(|size| size.whole() as usize).collect()
        } else if parameters.operation.is_atomic() {
            vec![ATOMIC_BYTES as usize]
        } else if is_datagram {
            DATAGRAM_SIZES.into_iter().filter(|&bytes| bytes <= most).collect()
        } else {
            DEFAULT_SIZES.to_vec()
        };
        if self.simulated.is_given() && !is_given(&MESSAGES) && !is_given(&SECONDS) {
            parameters.extent = Extent::Seconds(SIMULATED_SECONDS);
        }
        parameters.check().map_err(|error| settings.usage(&error))?;
        Ok(parameters)
    }

    /// Returns the maximum message memory of this side, in MiB.
    pub(crate) fn memory_mib(&self) -> usize {
        self.memory_bytes() >> 20
    }

    /// Returns the maximum message memory of this side, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.settings.values(&MEMORY).map_or(0, |bytes| bytes[0].whole() as usize)
    }
}
