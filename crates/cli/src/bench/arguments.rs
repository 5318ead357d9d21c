//! Arguments of `doorbell bench lat` and `bw`, and what they mean together.

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
use crate::sim::arguments::Simulated;
use crate::wire::parse_mtu;
use crate::{Failure, Usage, quantity};

/// Virtual seconds per size, if nothing is said: some ten thousand messages of 16 B.
const SIMULATED_SECONDS: f64 = 0.01;

/// Sizes measured if none are given.
const DEFAULT_SIZES: [usize; 5] = [16, 512, 4096, 65_536, 1 << 20];

/// The same of datagrams, which are one packet each.
const DATAGRAM_SIZES: [usize; 3] = [16, 512, 1024];

/// What a device is opened with; all but the first is of the embedded software RNIC.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The RNIC of this side, and the software RNIC if that is it")]
pub(crate) struct DeviceArguments {
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Its address [default: next free loopback address; with a HOST elsewhere, the address that
    /// the TCP connection has here]
    #[arg(long, value_name = "ADDRESS", env = "DOORBELL_BIND", hide_env_values = true)]
    pub(crate) bind: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) udp: UdpPort,
    /// Receive buffer to ask the kernel for, in bytes as it accounts them
    #[arg(long, value_name = "BYTES", value_parser = quantity::memory_bytes)]
    pub(crate) receive_buffer: Option<usize>,
    /// Write every packet that this side sends and receives to a pcap file
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Do this to arriving packets (of both sides, if both run here): any of drop=P, duplicate=P,
    /// reorder=P, corrupt=P (a share, 0 to 1), delay=T (such as 5us), seed=N, with commas between
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<FaultPlan>,
    /// When this side (both, if both run here) acknowledges a message: before the program sees it unless
    /// the program has answered the last eight (`answer`), or always before (`strict`) [default: what
    /// DOORBELL_ACK says, else answer]
    #[arg(long, value_name = "POLICY")]
    pub(crate) ack: Option<AckPolicy>,
    /// What carries packets between devices of this machine and user (of both sides, if both run here): `udp`, `shm`
    /// for memory that both share, or `auto` for that where the other side has it, else UDP [default: what
    /// DOORBELL_LINK says, else auto]
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<LinkChoice>,
}

impl DeviceArguments {
    /// Which device is meant: one of these options says that it is the embedded one.
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

    /// `toward` is this end's address towards a peer on another machine.
    pub(crate) fn soft_options(&self, is_second: bool, toward: Option<IpAddr>) -> SoftOptions {
        SoftOptions {
            // The second process of this machine takes an address of its own, and one capture
            // shows both directions already.
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

/// What `lat` and `bw` share.
#[derive(Args, Clone, Debug)]
pub(crate) struct Exchange {
    /// Measure with the `doorbell bench` that listens on HOST or HOST:PORT. Without HOST and
    /// --listen both sides run here, as two processes
    #[arg(conflicts_with = "listen")]
    host: Option<String>,
    /// Serve whoever listens there: how the second process on this machine is started.
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

// What the names mean stands in the help of --op: help of each value would make clap print all
// options with paragraphs between.
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

/// What is measured.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "What is measured")]
struct Load {
    /// What a message is: send, write, read, cas or fetch-add (one-sided, on the other side's
    /// memory), or request-response (a send that is answered with one of the same size)
    #[arg(long, value_name = "NAME", value_enum, default_value = "send", hide_possible_values = true)]
    op: OperationName,
    #[arg(long, value_name = "NAME", default_value_t, help = protocol_help())]
    protocol: Protocol,
    /// What carries messages: rc (acknowledged), uc or ud (not: bare SENDs, of which the lost are counted; over ud
    /// no longer than the path MTU)
    #[arg(long, value_name = "NAME", default_value = "rc", hide_possible_values = true, value_parser = ["rc", "uc", "ud"])]
    transport: String,
    /// One source for the readers of all connections: each message goes to all of them (bw
    /// --protocol direct-read-send and direct-read-fenced-send)
    #[arg(long)]
    replicate: bool,
    /// Message sizes, as in 16,64K,1M, with commas between [default: 16,512,4096,65536,1048576; cas,
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
    /// All powers of two from 2 B to 8 MiB; over ud to what -m says, or 1024 B
    #[arg(short, long)]
    all: bool,
    /// Messages (lat: round trips) per connection and size, as in 1e6, however long they take
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = quantity::count::<u64>)]
    iterations: Option<u64>,
    /// Seconds per size; also as in 500ms [default: 1; with --testbed 10ms, of virtual time]
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = quantity::seconds)]
    duration: Option<f64>,
    /// Both sides send (bw --op send only)
    #[arg(short, long)]
    bidirectional: bool,
    /// Messages per second to offer, over all connections, as in 2.5M [default: as many as go]
    #[arg(long, value_name = "N", value_parser = quantity::rate)]
    rate: Option<f64>,
    /// Check every byte of every payload (of writes: what is left of them at the end; of atomics:
    /// every value); each message in flight has a buffer of its own
    #[arg(long)]
    verify: bool,
    /// MiB of message memory per process at most (or as in 4G): beyond it buffers are shared, or window
    /// and depth are cut, and the output says so. A side that listens grants no client more than its own
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = quantity::mebibytes)]
    memory: usize,
    /// Microseconds that the receiver takes for each message (bw --op send or request-response)
    #[arg(long, value_name = "US", default_value = "0", value_parser = quantity::count::<u64>)]
    slow_receiver_us: u64,
}

impl Load {
    /// The operation by the name that it was given by.
    fn op(&self) -> String {
        self.op.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What the connections are made with.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
struct ConnectionArguments {
    /// Connections [default: as many as threads]
    #[arg(short = 'q', long, value_name = "N", value_parser = quantity::count::<usize>)]
    connections: Option<usize>,
    /// Threads on each side, to which the connections are dealt out (bw --op send)
    #[arg(long, value_name = "N", default_value = "1", value_parser = quantity::count::<usize>)]
    threads: usize,
    /// Connections of the receiving side share their receive buffers, posted again by whoever gives one back,
    /// under a lock, or (=thread) by one thread that does nothing else (bw --op send, send-receive)
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "lock",
          hide_possible_values = true, value_parser = ["lock", "thread"])]
    use_srq: Option<String>,
    /// One thread with one completion queue receives from all connections (bw --op send, send-receive)
    #[arg(long)]
    single_receiver: bool,
    /// Window and batch by name: sequential (1 unacknowledged), unbatched (64, posted one by
    /// one), batched (256, eight per post)
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = Config::NAMES)]
    config: Option<String>,
    /// Messages unacknowledged at most, per connection; requests not answered, operations not
    /// complete [default: 64, or as many as have room in 512 KiB but at least 2; lat: 1]
    #[arg(short = 't', long, value_name = "N", value_parser = quantity::count::<usize>)]
    window: Option<usize>,
    /// Messages per post (doorbell batching) [default: 1]
    #[arg(short = 'l', long, value_name = "N", value_parser = quantity::count::<usize>)]
    batch: Option<usize>,
    /// Receive buffers per connection, with --use-srq those of all together [default: twice the window, at least
    /// 64, or as many as have room in 1 MiB but at least 4; with --use-srq as many for each connection]
    #[arg(short = 'r', long, value_name = "N", value_parser = quantity::count::<usize>)]
    depth: Option<usize>,
    /// Messages of up to this many bytes go inline
    #[arg(short = 'I', long, value_name = "BYTES", default_value = "64", value_parser = quantity::memory_bytes)]
    inline: usize,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both ends carry]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// No flow control: a receiver that is too slow provokes RNR NAKs, which are counted
    #[arg(long)]
    no_credits: bool,
    /// Acknowledgement timeout: 4.096 us times two to the power of N; 0 is none
    #[arg(
        short = 'u',
        long = "qp-timeout",
        value_name = "N",
        default_value = "14",
        value_parser = quantity::count::<u8>
    )]
    timeout: u8,
    /// How often in a row that timeout may expire, 0 to 7; rdma_rxe treats 7 as unlimited
    #[arg(long, value_name = "N", default_value = "7", value_parser = quantity::count::<u8>)]
    retry: u8,
    /// How often in a row an RNR NAK may come, 0 to 6; 7 is without end
    #[arg(long, value_name = "N", default_value = "7", value_parser = quantity::count::<u8>)]
    rnr_retry: u8,
}

/// What this process does.
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

    /// The testbed to simulate, if one is.
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

    /// Checks what two processes of this machine cannot do.
    pub(crate) fn check_both_here(&self) -> Result<(), Usage> {
        match self.device.bind {
            Some(address @ IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => Err(Usage(format!(
                "--bind is {address}, but the second process of this machine takes a loopback address of IPv4; for \
                 IPv6 start both sides: one with --listen and --bind, one with HOST and another --bind"
            ))),
            _ => Ok(()),
        }
    }

    /// What is to be measured, checked.
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
        // What every link carries, unless somebody knows better.
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

    /// Message memory of this side at most.
    pub(crate) fn memory_mib(&self) -> usize {
        self.load.memory
    }

    /// The same in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.load.memory.saturating_mul(1 << 20)
    }
}

/// What `--protocol` is.
pub(crate) fn protocol_help() -> String {
    format!("How messages travel: {}", Protocol::NAMES.join(", "))
}

/// The error with the option that the setting is given by.
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
        // These have no option: what a bench does not set is as it should be.
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
