//! Parameters and workloads on the command line of `doorbell model`.

use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_claims::UnknownTestbed;
use doorbell_model::operation::{Posted, PostedOperation};
use doorbell_model::parameters::Parameters;
use doorbell_model::workload::{Peers, Workload, WorkloadError};
use doorbell_output::files;
use doorbell_protocols::Protocol;
use doorbell_record::SizeMix;
use doorbell_record::settings::{MIX, RATE, Value};
use doorbell_wire::{OuterKind, PathMtu};

use crate::bench::settings::read_histogram;
use crate::failure::{Failure, Usage};
use crate::quantity;
use crate::wire::parse_mtu;

/// Maximum size of a parameter file.
const MOST_PARAMETERS_BYTES: u64 = 1 << 20;
/// Default sizes of a workload.
const DEFAULT_SIZES: [u64; 5] = [16, 512, 4096, 65_536, 1 << 20];

/// Source of the parameters.
#[derive(Args)]
pub(crate) struct ParametersArgument {
    /// Parameters of a published testbed, or a file, as `model fit --out` writes it. The testbed t1 (connectx5-100g)
    /// has messages over ConnectX-5 NICs at 100 Gb/s; t2 (counters-100g) and t3 (connectx5-100g-far) have single
    /// operations [default: those of a testbed that is simulated, else t1]
    #[arg(long = "params", value_name = "TESTBED|FILE")]
    name: Option<String>,
}

impl ParametersArgument {
    /// Returns whether the user gave parameters.
    pub(crate) fn is_given(&self) -> bool {
        self.name.is_some()
    }

    pub(crate) fn read(&self) -> Result<Parameters, Failure> {
        self.read_for(None)
    }

    /// Returns the parameters for predictions beside a simulation of `testbed`.
    pub(crate) fn read_for(&self, testbed: Option<&str>) -> Result<Parameters, Failure> {
        let of_testbed = testbed.and_then(Parameters::of_testbed);
        match (&self.name, of_testbed) {
            (Some(name), _) => parameters(name),
            (None, Some(of_testbed)) => Ok(of_testbed),
            (None, None) => Ok(Parameters::t1()),
        }
    }
}

/// Returns the parameters of the testbed with this name, or those in the file at this path.
pub(crate) fn parameters(name: &str) -> Result<Parameters, Failure> {
    if let Some(parameters) = Parameters::of_testbed(name) {
        return Ok(parameters);
    }
    if !name.contains('/') && !Path::new(name).exists() {
        return Err(Usage(format!("--params: {}, or a file", UnknownTestbed::new(name))).into());
    }
    Ok(Parameters::from_toml(name, &files::read_text(Path::new(name), MOST_PARAMETERS_BYTES)?)?)
}

/// Workload to predict.
#[derive(Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct Load {
    #[arg(long, value_name = "NAME", default_value_t, help = crate::bench::settings::protocol_help())]
    protocol: Protocol,
    /// Predict operations of bare queue pairs instead of a protocol's messages: send, ud-send, write, read,
    /// compare-swap, fetch-add or request-response. Each of the -q queue pairs has a thread, which polls one completion
    /// at a time, or --receive-batch completions. The latency ends when the thread finds the completion.
    #[arg(long, value_name = "NAME", value_parser = parse_operation, conflicts_with_all = NOT_OF_OPERATIONS)]
    op: Option<PostedOperation>,
    /// Message sizes in bytes, separated by commas, as in 16,64K,1M [default: 16,512,4096,65536,1048576]
    #[arg(short, long, visible_alias = "request", value_name = "BYTES", value_delimiter = ',',
          value_parser = quantity::bytes)]
    size: Vec<u64>,
    /// Mix of message sizes with weights, as in 64:0.9,64K:0.1: one prediction for messages of all sizes
    #[arg(long, value_name = "BYTES:WEIGHT", value_delimiter = ',', value_parser = quantity::weighted_bytes,
          conflicts_with = "size")]
    sizes: Vec<(u64, f64)>,
    /// Mix of message sizes from a histogram in CSV, with rows BYTES,WEIGHT
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "sizes"])]
    sizes_from: Option<PathBuf>,
    /// Window and batch by name: sequential (1 unacknowledged), unbatched (64, posted one by one), batched (256,
    /// eight per post)
    #[arg(
        long,
        value_name = "NAME",
        value_parser = ["sequential", "unbatched", "batched"],
        hide_possible_values = true
    )]
    config: Option<String>,
    /// Maximum unacknowledged messages per connection [default: 64]
    #[arg(short = 't', long, visible_alias = "outstanding", value_name = "N",
          value_parser = quantity::count::<u32>)]
    window: Option<u32>,
    /// Messages per post (doorbell batching) [default: 1]
    #[arg(short = 'l', long, value_name = "N", value_parser = quantity::count::<u32>)]
    batch: Option<u32>,
    /// Receive buffers per connection [default: twice the window, at least 64]
    #[arg(short = 'r', long, value_name = "N", value_parser = quantity::count::<u32>)]
    depth: Option<u32>,
    /// Completions per poll, and receives posted in one list [default: 32]
    #[arg(long, value_name = "N", value_parser = quantity::count::<u32>)]
    receive_batch: Option<u32>,
    /// Maximum size of messages that are sent inline, in bytes
    #[arg(short = 'I', long, value_name = "BYTES", default_value = "64", value_parser = quantity::bytes)]
    inline: u64,
    /// Sending and receiving threads: SENDERS:RECEIVERS
    #[arg(long, value_name = "N:M", default_value = "1:1", value_parser = parse_peers)]
    peers: Peers,
    /// Number of clients, each a sending thread with its own connection, as for `doorbell advise`. With --op, the
    /// number of queue pairs
    #[arg(long, value_name = "N", value_parser = quantity::count::<u32>, conflicts_with = "peers")]
    clients: Option<u32>,
    /// Number of threads that serve the clients: M of the pattern N:M [default: 1]
    #[arg(long, value_name = "N", value_parser = quantity::count::<u32>, requires = "clients")]
    server_threads: Option<u32>,
    /// Connections between senders and receivers [default: the larger of N and M]
    #[arg(short = 'q', long, value_name = "N", value_parser = quantity::count::<u32>)]
    connections: Option<u32>,
    /// Share receive queues between the connections of a receiver (send-receive only)
    #[arg(long)]
    use_srq: bool,
    /// Like --use-srq, but one dedicated thread reposts the shared receives
    #[arg(long)]
    srq_thread: bool,
    /// Without flow control by credits (send-receive only)
    #[arg(long)]
    no_credits: bool,
    /// Send from both sides
    #[arg(short, long)]
    bidirectional: bool,
    /// Answer each message with a reply of this size, in a closed loop: -t requests of each connection are outstanding.
    /// The latency ends when the reply arrives. 0 means one-way messages
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, conflicts_with = "bidirectional")]
    reply: Option<u64>,
    /// Microseconds between a reply and the next request of the same slot of the window (closed loop)
    #[arg(long, value_name = "MICROSECONDS", default_value = "0", requires = "reply",
          value_parser = quantity::count::<u64>)]
    think: u64,
    /// Offered requests per second over all connections, as in 2.5M (open loop). The loaded latency then counts from
    /// the time at which a request is due [default: full windows]
    #[arg(long, value_name = "N", value_parser = quantity::rate, requires = "reply", conflicts_with = "think")]
    rate: Option<f64>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the path MTU of the parameters]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Use a VLAN tag
    #[arg(long)]
    vlan: bool,
}

/// Options of messages that do not apply to operations of bare queue pairs.
const NOT_OF_OPERATIONS: [&str; 12] = [
    "protocol",
    "depth",
    "peers",
    "server_threads",
    "use_srq",
    "srq_thread",
    "no_credits",
    "bidirectional",
    "reply",
    "config",
    "sizes",
    "sizes_from",
];

fn parse_operation(name: &str) -> Result<PostedOperation, String> {
    // `doorbell bench` calls it `cas`.
    let name = if name == "cas" { PostedOperation::CompareSwap.name() } else { name };
    PostedOperation::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = PostedOperation::ALL.into_iter().map(PostedOperation::name).collect();
        format!("must be one of {}", names.join(", "))
    })
}

impl Load {
    /// Returns the operations of bare queue pairs, one per size, if --op requests them.
    pub(crate) fn operations(&self) -> Option<Vec<Posted>> {
        let operation = self.op?;
        let connections = self.clients.or(self.connections).unwrap_or(1);
        let window = self.window.unwrap_or(64);
        let posted = |bytes| {
            let plain = Posted::new(operation, bytes, window);
            Posted {
                batch: self.batch.unwrap_or(1),
                poll_list: self.receive_batch.unwrap_or(1),
                connections,
                threads: connections,
                addresses: connections,
                inline_bytes: self.inline,
                path_mtu: self.mtu,
                outer: self.outer(),
                ..plain
            }
        };
        let sizes = if self.size.is_empty() { &DEFAULT_SIZES[..] } else { &self.size };
        Some(match operation {
            _ if operation.is_atomic() => vec![posted(0)],
            // A datagram is one packet.
            PostedOperation::UdSend if self.size.is_empty() => {
                DEFAULT_SIZES[..3].iter().map(|&bytes| posted(bytes)).collect()
            }
            _ => sizes.iter().map(|&bytes| posted(bytes)).collect(),
        })
    }

    /// Returns the size of replies, if messages have replies.
    pub(crate) fn reply_bytes(&self) -> Option<u64> {
        self.reply.filter(|bytes| *bytes > 0)
    }

    /// Returns the think time of the clients, and the offered requests per second.
    pub(crate) fn pace(&self) -> (u64, Option<f64>) {
        (self.think, self.rate)
    }

    /// Checks the rate, and that --clients and -q do not contradict each other with --op.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        if let Some(rate) = self.rate {
            RATE.check_value(Value::Real(rate)).map_err(|error| Usage(error.in_options()))?;
        }
        match (self.op, self.clients, self.connections) {
            (Some(_), Some(clients), Some(connections)) if clients != connections => Err(Usage(format!(
                "-q is {connections}, allowed is {clients} with --clients {clients}: each client is a queue pair"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether the sizes are those of one mix.
    pub(crate) fn is_mix(&self) -> bool {
        !self.sizes.is_empty() || self.sizes_from.is_some()
    }

    /// Returns the sizes with their weights, which are 1 unless the sizes are those of a mix.
    fn weighted_sizes(&self) -> Result<Vec<(u64, f64)>, Usage> {
        if let Some(file) = &self.sizes_from {
            let mix = read_histogram(file)?;
            return Ok(mix.0.into_iter().map(|(bytes, weight)| (bytes as u64, weight)).collect());
        }
        if !self.sizes.is_empty() {
            let checked = SizeMix::from(&self.sizes[..]).check();
            checked.map_err(|(given, allowed)| Usage(MIX.refuse(given, allowed).in_options()))?;
            return Ok(self.sizes.clone());
        }
        let sizes = if self.size.is_empty() { &DEFAULT_SIZES[..] } else { &self.size };
        Ok(sizes.iter().map(|&bytes| (bytes, 1.0)).collect())
    }

    fn outer(&self) -> OuterKind {
        let outer = if self.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
        if self.vlan { outer.with_vlan() } else { outer }
    }

    /// Returns one workload per size, with the weight of the size.
    pub(crate) fn workloads(&self) -> Result<Vec<(Workload, f64)>, Usage> {
        let sizes = self.weighted_sizes()?;
        let named = match self.config.as_deref() {
            Some("sequential") => Workload::sequential(0),
            Some("batched") => Workload::batched(0),
            _ => Workload::unbatched(0),
        };
        let is_send_receive = self.protocol == Protocol::SendReceive;
        let given = [("--use-srq", self.use_srq), ("--srq-thread", self.srq_thread), ("--no-credits", self.no_credits)];
        for (option, is_given) in given {
            if is_given && !is_send_receive {
                let message = format!("{option} configures the receives of send-receive, not of {}", self.protocol);
                return Err(Usage(message));
            }
        }
        let window = self.window.unwrap_or(named.window);
        let threads = served(self.clients, self.server_threads).unwrap_or(self.peers);
        let workload = Workload {
            protocol: self.protocol,
            receive_batch: self.receive_batch.unwrap_or(32),
            repost_batch: self.receive_batch.unwrap_or(32),
            depth: self.depth.unwrap_or(Workload::default_depth(window)),
            inline_bytes: self.inline,
            credits: !self.no_credits,
            srq: self.use_srq || self.srq_thread,
            repost_thread: self.srq_thread,
            bidirectional: self.bidirectional,
            path_mtu: self.mtu,
            outer: self.outer(),
            peers: Peers { connections: self.connections.unwrap_or(threads.connections), ..threads },
            // Limit the batch of --config to the window of -t.
            ..Workload::new(0, window, self.batch.unwrap_or(named.batch.min(window)))
        };
        let workloads = sizes.into_iter().map(|(bytes, weight)| (Workload { bytes, ..workload }, weight));
        let workloads: Vec<(Workload, f64)> = workloads.collect();
        workloads.iter().try_for_each(|(workload, _)| workload.check()).map_err(|error| wrong(&error))?;
        Ok(workloads)
    }
}

/// Returns the error with the name of the option that sets the rejected value.
pub(crate) fn wrong(error: &WorkloadError) -> Usage {
    let option = match error.what {
        "the message size" | "an operation of the protocol" => "-s",
        "the reply size" => "--reply",
        "the think time" => "--think",
        "the window" => "-t",
        "the batch" | "the batch that one READ fetches" => "-l",
        "the receive batch" | "the list of receives" => "--receive-batch",
        "the receive depth" => "-r",
        "the number of senders" => "--peers, --clients",
        "the number of receivers" => "--peers, --server-threads",
        "the number of connections" => "-q",
        // Each queue pair has an address of its own.
        "the number of addresses" => {
            return wrong(&WorkloadError { what: "the number of queue pairs", ..*error });
        }
        "the number of queue pairs" => "-q, --clients",
        _ => return Usage(error.to_string()),
    };
    let WorkloadError { what, given, least, most } = error;
    Usage(format!("{what} ({option}) is {given}, allowed is {least} to {most}"))
}

/// Returns the threads of clients that one thread serves, or that `server_threads` threads serve.
pub(crate) fn served(clients: Option<u32>, server_threads: Option<u32>) -> Option<Peers> {
    let (senders, receivers) = (clients?, server_threads.unwrap_or(1));
    Some(Peers { senders, receivers, connections: senders.max(receivers) })
}

/// Parses SENDERS:RECEIVERS.
pub(crate) fn parse_peers(text: &str) -> Result<Peers, String> {
    let sides = text.split_once(':').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    let (senders, receivers) =
        sides.ok_or_else(|| "must be SENDERS:RECEIVERS, two numbers separated by a colon, as in 16:1".to_owned())?;
    Ok(Peers { senders, receivers, connections: senders.max(receivers) })
}

/// Formats a number with four significant digits.
pub(super) fn digits(value: f64) -> String {
    let before = if value > 0.0 { value.log10().floor() } else { 0.0 };
    format!("{value:.*}", (3.0 - before).clamp(0.0, 9.0) as usize)
}
