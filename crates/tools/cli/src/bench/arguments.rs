//! Arguments of `doorbell bench lat` and `bw`, and their combined meaning.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell_exchange::send_receive::Config;
use doorbell_fabric::FaultPlan;
use doorbell_protocols::Protocol;
use doorbell_sim::Testbed;
use doorbell_study::parameters::{
    Extent, Kind, Operation, Parameters, ParametersError, Setting, Transport, most_queued,
};
use doorbell_study::serving::{Serving, SharedBy};
use doorbell_verbs::soft::{AckPolicy, LinkChoice, SoftOptions};
use doorbell_wire::PathMtu;
use doorbell_wire::cost::ATOMIC_BYTES;

use crate::control::Meeting;
use crate::cpus::Cpus;
use crate::device::{Chosen, DeviceChoice, UdpPort};
use crate::failure::{Failure, Usage};
use crate::quantity;
use crate::sim::arguments::Simulated;
use crate::wire::parse_mtu;

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
    /// Address of the RNIC [default: next free loopback address; with a HOST on another machine, the local address of
    /// the TCP connection]
    #[arg(long, value_name = "ADDRESS", env = "DOORBELL_BIND", hide_env_values = true)]
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
    /// delay=T (such as 5us), seed=N. Applies to both sides if both run here
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<FaultPlan>,
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
}

impl DeviceArguments {
    /// Returns the chosen device. Each option of the embedded RNIC selects the embedded RNIC.
    pub(crate) fn chosen(&self) -> Result<Chosen, Failure> {
        let own = [
            ("--bind", self.bind.is_some()),
            ("--udp-port", !self.udp.is_roce()),
            ("--receive-buffer", self.receive_buffer.is_some()),
            ("--pcap", self.pcap.is_some()),
            ("--fault", self.fault.is_some()),
            ("--ack", self.ack.is_some()),
            ("--link", self.link.is_some()),
        ];
        self.choice.choose(own.into_iter().find_map(|(name, is_given)| is_given.then_some(name)))
    }

    /// Returns the options of the software RNIC. `toward` is the local address on the path to a peer on another
    /// machine.
    pub(crate) fn soft_options(&self, is_second: bool, toward: Option<IpAddr>) -> SoftOptions {
        SoftOptions {
            // The second process on this machine takes the next free address. It writes no capture, since the
            // capture of the first process has both directions.
            address: if is_second { None } else { self.bind.or(toward) },
            port: self.udp.port,
            pcap: if is_second { None } else { self.pcap.clone() },
            faults: self.fault,
            receive_buffer_bytes: self.receive_buffer,
            ack: self.ack,
            link: self.link,
            ..SoftOptions::default()
        }
    }
}

/// Common arguments of `lat` and `bw`.
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

    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    connection: ConnectionArguments,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    #[command(flatten)]
    pub(crate) cpus: Cpus,
    #[command(flatten)]
    pub(crate) meeting: Meeting,
    #[command(flatten)]
    simulated: Simulated,
}

// The help of --op explains the names. With a help text for each value, clap would print all options with paragraphs
// between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OperationName {
    Send,
    Write,
    Read,
    Cas,
    FetchAdd,
    RequestResponse,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Send => Self::Send,
            OperationName::Write => Self::Write,
            OperationName::Read => Self::Read,
            OperationName::Cas => Self::CompareSwap,
            OperationName::FetchAdd => Self::FetchAdd,
            OperationName::RequestResponse => Self::RequestResponse,
        }
    }
}

/// Workload of a measurement.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
struct Load {
    /// Operation of a message: send, write, read, cas, fetch-add or request-response. The operations write, read, cas
    /// and fetch-add are one-sided, on the other side's memory. With request-response, the other side answers each send
    /// with a send of the same size
    #[arg(long, value_name = "NAME", value_enum, default_value = "send", hide_possible_values = true)]
    op: OperationName,
    #[arg(long, value_name = "NAME", default_value_t, help = protocol_help())]
    protocol: Protocol,
    /// Transport: rc (acknowledged), or uc or ud (unacknowledged SENDs; lost messages are counted). Over ud, a message
    /// is at most as long as the path MTU
    #[arg(long, value_name = "NAME", default_value = "rc", hide_possible_values = true, value_parser = ["rc", "uc", "ud"])]
    transport: String,
    /// Send each message from one source to the readers of all connections (only for bw with --protocol
    /// direct-read-send or direct-read-fenced-send)
    #[arg(long)]
    replicate: bool,
    /// Message sizes in bytes, separated by commas, as in 16,64K,1M [default: 16,512,4096,65536,1048576; cas,
    /// fetch-add: 8; over ud: 16,512,1024]
    #[arg(
        short,
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        conflicts_with = "all",
        value_parser = quantity::memory_bytes
    )]
    size: Vec<usize>,
    /// Measure all powers of two from 2 B to 8 MiB; over ud, up to the MTU of -m, or 1024 B
    #[arg(short, long)]
    all: bool,
    /// Messages (lat: round trips) per connection and size, as in 1e6, instead of a duration
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = quantity::count::<u64>)]
    iterations: Option<u64>,
    /// Seconds per size, or a time with a unit, as in 500ms [default: 1; with --testbed 10ms of virtual time]
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = quantity::seconds)]
    duration: Option<f64>,
    /// Send from both sides (bw --op send only)
    #[arg(short, long)]
    bidirectional: bool,
    /// Offered messages per second over all connections, as in 2.5M [default: unlimited]
    #[arg(long, value_name = "N", value_parser = quantity::rate)]
    rate: Option<f64>,
    /// Check every byte of every payload. For writes, check the memory at the end; for atomics, check every value. Each
    /// message in flight has its own buffer
    #[arg(long)]
    verify: bool,
    /// Maximum message memory per process, in MiB or with a unit, as in 4G. If a measurement needs more, messages
    /// share buffers, or window and depth are reduced, and the output has a note. The --memory of a listening side also
    /// limits its clients
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = quantity::mebibytes)]
    memory: usize,
    /// Microseconds that the receiver spends on each message (bw --op send or request-response)
    #[arg(long, value_name = "US", default_value = "0", value_parser = quantity::count::<u64>)]
    slow_receiver_us: u64,
}

impl Load {
    /// Returns the name of the operation on the command line.
    fn op(&self) -> String {
        self.op.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Options of the connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
struct ConnectionArguments {
    /// Number of connections [default: the number of threads]
    #[arg(short = 'q', long, value_name = "N", value_parser = quantity::count::<usize>)]
    connections: Option<usize>,
    /// Threads on each side, among which the connections are distributed (bw --op send)
    #[arg(long, value_name = "N", default_value = "1", value_parser = quantity::count::<usize>)]
    threads: usize,
    /// Share the receive buffers of all connections of the receiving side (bw --op send, send-receive). With `lock`,
    /// the thread that returns a buffer posts it again under a lock; with `thread`, a dedicated thread posts all
    /// buffers again
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "lock",
          hide_possible_values = true, value_parser = ["lock", "thread"])]
    use_srq: Option<String>,
    /// Receive from all connections with one thread and one completion queue (bw --op send, send-receive)
    #[arg(long)]
    single_receiver: bool,
    /// Window and batch by name: sequential (1 unacknowledged), unbatched (64, posted one by one), batched (256,
    /// eight per post)
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = Config::NAMES)]
    config: Option<String>,
    /// Maximum number of unacknowledged messages, unanswered requests or incomplete one-sided operations per connection
    /// [default: 64, or the number that fits into 512 KiB, at least 2; lat: 1]
    #[arg(short = 't', long, value_name = "N", value_parser = quantity::count::<usize>)]
    window: Option<usize>,
    /// Messages per post (doorbell batching) [default: 1]
    #[arg(short = 'l', long, value_name = "N", value_parser = quantity::count::<usize>)]
    batch: Option<usize>,
    /// Receive buffers per connection, or with --use-srq of all connections together. The default per connection is
    /// twice the window, at least 64; or the number that fits into 1 MiB, at least 4. With --use-srq, the default is
    /// multiplied by the number of connections
    #[arg(short = 'r', long, value_name = "N", value_parser = quantity::count::<usize>)]
    depth: Option<usize>,
    /// Maximum size of messages that are sent inline, in bytes
    #[arg(short = 'I', long, value_name = "BYTES", default_value = "64", value_parser = quantity::memory_bytes)]
    inline: usize,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest path MTU that both ends support]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Disable flow control: a receiver that is too slow sends RNR NAKs, which are counted
    #[arg(long)]
    no_credits: bool,
    /// Acknowledgement timeout: 4.096 us times two to the power of N; 0 disables it
    #[arg(
        short = 'u',
        long = "qp-timeout",
        value_name = "N",
        default_value = "14",
        value_parser = quantity::count::<u8>
    )]
    timeout: u8,
    /// Maximum consecutive expirations of the acknowledgement timeout, 0 to 7; rdma_rxe treats 7 as unlimited
    #[arg(long, value_name = "N", default_value = "7", value_parser = quantity::count::<u8>)]
    retry: u8,
    /// Maximum consecutive RNR NAKs of a message, 0 to 6; 7 means unlimited
    #[arg(long, value_name = "N", default_value = "7", value_parser = quantity::count::<u8>)]
    rnr_retry: u8,
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
            ("--fault", device.fault.is_some()),
            ("--ack", device.ack.is_some()),
            ("--cpus", self.cpus.is_given()),
        ])
    }

    /// Rejects options that do not work if both sides run on this machine as two processes.
    pub(crate) fn check_both_here(&self) -> Result<(), Usage> {
        match self.device.bind {
            Some(address @ IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => Err(Usage(format!(
                "--bind is {address}, but the second process of this machine takes a loopback address of IPv4. For \
                 IPv6, start both sides: one with --listen and --bind, one with HOST and another --bind"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the validated parameters of the measurement.
    pub(crate) fn parameters(&self, kind: Kind) -> Result<Parameters, Usage> {
        let (load, connection) = (&self.load, &self.connection);
        let named = connection.config.as_deref().and_then(Config::by_name);
        let window = match (connection.window, &named, kind) {
            (Some(window), ..) => window,
            (None, Some(config), _) => config.window,
            (None, None, Kind::Latency) => 1,
            (None, None, Kind::Bandwidth) => 64,
        };
        let batch = connection.batch.or(named.map(|config| config.batch)).unwrap_or(1);
        let connections = connection.connections.unwrap_or(connection.threads);
        let each = (2 * window).clamp(64, most_queued(connections).max(64));
        let all_together = each.saturating_mul(connections.max(1)).min(most_queued(1));
        let depth = connection.depth.unwrap_or(if connection.use_srq.is_some() { all_together } else { each });
        let operation = Operation::from(load.op);
        if operation.is_one_sided() {
            for (option, is_given) in [("-r", connection.depth.is_some()), ("--no-credits", connection.no_credits)] {
                if is_given {
                    return Err(Usage(format!(
                        "{option} configures receives, and --op {} uses none: drop {option}",
                        load.op()
                    )));
                }
            }
        }
        let transport = match load.transport.as_str() {
            "uc" => Transport::Uc,
            "ud" => Transport::Ud,
            _ => Transport::Rc,
        };
        // Every link carries datagrams of 1024 B. With -m, the maximum is the given path MTU.
        let most = match (transport, connection.mtu) {
            (Transport::Ud, mtu) => mtu.map_or(1024, PathMtu::bytes),
            _ => usize::MAX,
        };
        let sizes = if load.all {
            (1..=23).map(|exponent| 1 << exponent).filter(|&bytes| bytes <= most).collect()
        } else if load.size.is_empty() && operation.is_atomic() {
            vec![ATOMIC_BYTES as usize]
        } else if load.size.is_empty() && transport == Transport::Ud {
            DATAGRAM_SIZES.into_iter().filter(|&bytes| bytes <= most).collect()
        } else if load.size.is_empty() {
            DEFAULT_SIZES.to_vec()
        } else {
            load.size.clone()
        };
        let extent = match load.iterations {
            Some(messages) => Extent::Messages(messages),
            None if self.simulated.is_given() => Extent::Seconds(load.duration.unwrap_or(SIMULATED_SECONDS)),
            None => Extent::Seconds(load.duration.unwrap_or(1.0)),
        };
        let parameters = Parameters {
            kind,
            operation,
            protocol: load.protocol,
            transport,
            replicate: load.replicate,
            sizes,
            extent,
            window,
            depth,
            depths_are_defaults: connection.window.is_none() && connection.depth.is_none(),
            batch,
            inline: connection.inline,
            connections,
            bidirectional: load.bidirectional,
            events: connection.events,
            credits: !connection.no_credits,
            mtu: connection.mtu.map(PathMtu::bytes),
            rate: load.rate,
            slow_receiver_us: load.slow_receiver_us,
            timeout: connection.timeout,
            retry_count: connection.retry,
            rnr_retry: connection.rnr_retry,
            signal_each: false,
            verify: load.verify,
            memory_bytes: self.memory_bytes(),
            serving: Serving {
                threads: connection.threads,
                single_receiver: connection.single_receiver,
                shared_receives: connection.use_srq.as_deref().map(|by| match by {
                    "thread" => SharedBy::Thread,
                    _ => SharedBy::Lock,
                }),
                ..Serving::default()
            },
            addresses: None,
            link: None,
            far: None,
        };
        parameters.check().map_err(|error| Usage(in_options(&error)))?;
        Ok(parameters)
    }

    /// Returns the maximum message memory of this side, in MiB.
    pub(crate) fn memory_mib(&self) -> usize {
        self.load.memory
    }

    /// Returns the maximum message memory of this side, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.load.memory.saturating_mul(1 << 20)
    }
}

/// Returns the help of `--protocol`.
pub(crate) fn protocol_help() -> String {
    format!("How messages travel: {}", Protocol::NAMES.join(", "))
}

/// Returns the text of the error, with the name of the option that sets the rejected value.
fn in_options(error: &ParametersError) -> String {
    let ParametersError { setting, given, allowed } = error;
    let option = match setting {
        Setting::Protocol => "--protocol",
        Setting::Transport => "--transport",
        Setting::Replicate => "--replicate",
        Setting::Credits => "--no-credits",
        Setting::Events => "-e",
        Setting::Sizes | Setting::Size => "-s",
        Setting::Messages => "-n",
        Setting::Seconds => "-D",
        Setting::Window => "-t",
        Setting::Depth => "-r",
        Setting::Batch => "-l",
        Setting::Inline => "-I",
        Setting::Connections => "-q",
        Setting::Bidirectional => "-b",
        Setting::Mtu => "-m",
        Setting::Rate => "--rate",
        Setting::SlowReceiver => "--slow-receiver-us",
        Setting::Timeout => "-u",
        Setting::RetryCount => "--retry",
        Setting::RnrRetry => "--rnr-retry",
        Setting::Memory => "--memory",
        Setting::Threads => "--threads",
        Setting::SingleReceiver => "--single-receiver",
        Setting::SharedReceives => "--use-srq",
        // These settings have no option: a bench always sets them correctly.
        Setting::PollList
        | Setting::RepostList
        | Setting::Addresses
        | Setting::SharedOperation
        | Setting::QueuePairs
        | Setting::Skew
        | Setting::Distance
        | Setting::Clients
        | Setting::Hosts
        | Setting::Keys
        | Setting::Puts => return format!("{setting} is {given}, allowed is {allowed}"),
    };
    format!("{setting} ({option}) is {given}, allowed is {allowed}")
}
