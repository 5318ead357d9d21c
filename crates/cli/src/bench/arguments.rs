//! Arguments of `doorbell bench lat` and `bw`, and what they mean together.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell_exchange::send_receive::Config;
use doorbell_fabric::FaultPlan;
use doorbell_study::parameters::{Extent, Kind, Parameters};
use doorbell_verbs::soft::SoftOptions;
use doorbell_wire::{PathMtu, ROCE_UDP_PORT};

use crate::Failure;
use crate::wire::parse_mtu;

/// The TCP port on which both sides meet, as perftest has it.
const DEFAULT_TCP_PORT: u16 = 18515;

/// Sizes measured if none are given.
const DEFAULT_SIZES: [usize; 5] = [16, 512, 4096, 65_536, 1 << 20];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigName {
    /// One message unacknowledged at a time.
    Sequential,
    /// 64 unacknowledged, posted one by one.
    Unbatched,
    /// 256 unacknowledged, eight per post.
    Batched,
}

/// The embedded software RNIC.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArguments {
    /// Address of the software RNIC; without it, the next free loopback address.
    #[arg(long, env = "DOORBELL_BIND")]
    pub(crate) bind: Option<IpAddr>,
    /// UDP port of both ends. Anything but 4791 is not RoCE's.
    #[arg(long = "udp-port", env = "DOORBELL_PORT", default_value_t = ROCE_UDP_PORT)]
    pub(crate) udp_port: u16,
    /// Write every packet that this side sends and receives to a pcap file.
    #[arg(long)]
    pub(crate) pcap: Option<PathBuf>,
    /// Faults of arriving packets, on both sides where both run here:
    /// drop=P,duplicate=P,reorder=P,corrupt=P,delay=T,seed=N (P from 0 to 1; T such as 5us).
    #[arg(long)]
    pub(crate) fault: Option<FaultPlan>,
    /// Receive buffer to ask the kernel for, in the bytes that it accounts.
    #[arg(long)]
    pub(crate) receive_buffer: Option<usize>,
}

impl DeviceArguments {
    pub(crate) fn soft_options(&self, is_second: bool) -> SoftOptions {
        SoftOptions {
            // The second process of this machine takes an address of its own, and one capture
            // shows both directions already.
            address: if is_second { None } else { self.bind },
            port: self.udp_port,
            pcap: if is_second { None } else { self.pcap.clone() },
            faults: self.fault.clone(),
            receive_buffer_bytes: self.receive_buffer,
            seed: None,
        }
    }
}

/// Without --listen and without HOST, both sides run on this machine, as two processes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Exchange {
    /// Connect to a `doorbell bench` that listens there: HOST or HOST:PORT.
    host: Option<String>,
    /// Listen for one client and serve it, on ADDRESS, ADDRESS:PORT or, without value, all addresses.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "0.0.0.0", conflicts_with = "host")]
    listen: Option<String>,
    /// TCP port on which both sides meet.
    #[arg(short, long, default_value_t = DEFAULT_TCP_PORT)]
    port: u16,
    /// Serve whoever listens there: how the second process on this machine is started.
    #[arg(long, hide = true, conflicts_with_all = ["host", "listen"])]
    pub(crate) serve_back: Option<String>,

    /// Message size in bytes; several with commas.
    #[arg(short, long, value_delimiter = ',', conflicts_with = "all")]
    size: Vec<usize>,
    /// All sizes from 2 B to 8 MiB.
    #[arg(short, long)]
    all: bool,
    /// Messages (round trips) per connection.
    #[arg(short = 'n', long, conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Seconds per size.
    #[arg(short = 'D', long, default_value_t = 1.0)]
    duration: f64,
    /// Window, batch and depth by name.
    #[arg(long, value_enum)]
    config: Option<ConfigName>,
    /// Messages unacknowledged at most, per connection [default: 64; for lat 1].
    #[arg(short = 't', long)]
    window: Option<usize>,
    /// Receive buffers per connection [default: twice the window, at least 64].
    #[arg(short = 'r', long)]
    depth: Option<usize>,
    /// Messages per post [default: 1].
    #[arg(short = 'l', long)]
    batch: Option<usize>,
    /// Messages up to this many bytes go inline.
    #[arg(short = 'I', long, default_value_t = 64)]
    inline: usize,
    /// Connections, in one thread on each side.
    #[arg(short = 'q', long, default_value_t = 1)]
    connections: usize,
    /// Both sides send (bw).
    #[arg(short, long)]
    bidirectional: bool,
    /// Sleep on completion events instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Path MTU in bytes [default: the largest that both ends carry].
    #[arg(short, long, value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Offered messages per second, over all connections [default: as many as go].
    #[arg(long)]
    rate: Option<f64>,
    /// Without flow control: a receiver that is too slow provokes RNR NAKs, which are counted.
    #[arg(long)]
    no_credits: bool,
    /// The receiver takes this many microseconds for each message.
    #[arg(long, default_value_t = 0)]
    slow_receiver_us: u64,
    /// Acknowledgement timeout exponent: 4.096 us times two to it.
    #[arg(short = 'u', long = "qp-timeout", default_value_t = 14)]
    timeout: u8,
    /// Times that the timeout may expire in a row.
    #[arg(long, default_value_t = 7)]
    retry: u8,
    /// Times that an RNR NAK may come in a row; 7 is without end.
    #[arg(long, default_value_t = 7)]
    rnr_retry: u8,
    /// Check every byte of every payload; each message in flight has a buffer of its own.
    #[arg(long)]
    verify: bool,
    /// Message memory per process at most, in MiB: beyond it, buffers are shared or depth and
    /// window are cut, and the output says so.
    #[arg(long, default_value_t = 256)]
    memory: usize,
    /// One JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
}

/// What this process does.
pub(crate) enum Role {
    Listen(String),
    Connect(String),
    ServeBack(String),
    Both,
}

impl Exchange {
    pub(crate) fn role(&self) -> Role {
        let with_port = |address: &str| match address.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            Err(_) if address.contains(':') => address.to_owned(),
            _ => format!("{address}:{}", self.port),
        };
        match (&self.serve_back, &self.listen, &self.host) {
            (Some(address), ..) => Role::ServeBack(address.clone()),
            (_, Some(address), _) => Role::Listen(with_port(address)),
            (_, _, Some(host)) => Role::Connect(with_port(host)),
            _ => Role::Both,
        }
    }

    /// What is to be measured, checked.
    pub(crate) fn parameters(&self, kind: Kind) -> Result<Parameters, Failure> {
        let named = self.config.map(|name| match name {
            ConfigName::Sequential => Config::sequential(),
            ConfigName::Unbatched => Config::unbatched(),
            ConfigName::Batched => Config::batched(),
        });
        let window = match (self.window, &named, kind) {
            (Some(window), ..) => window,
            (None, Some(config), _) => config.window,
            (None, None, Kind::Latency) => 1,
            (None, None, Kind::Bandwidth) => 64,
        };
        let batch = self.batch.or(named.map(|config| config.batch)).unwrap_or(1);
        let depth = self.depth.unwrap_or((2 * window).max(64));
        let sizes = if self.all {
            (1..=23).map(|exponent| 1 << exponent).collect()
        } else if self.size.is_empty() {
            DEFAULT_SIZES.to_vec()
        } else {
            self.size.clone()
        };
        let within = |option: &str, given: usize, least: usize, most: usize| {
            if (least..=most).contains(&given) {
                Ok(())
            } else {
                Err(format!("{option} is {given}, allowed is {least} to {most}"))
            }
        };
        for &size in &sizes {
            within("the message size (-s)", size, 0, 1 << 30)?;
        }
        within("the window (-t)", window, 1, 16_384)?;
        within("the batch (-l)", batch, 1, 64.min(window))?;
        within("the receive depth (-r)", depth, 1, 16_384)?;
        within("inline (-I)", self.inline, 0, 1024)?;
        within("the number of connections (-q)", self.connections, 1, 4096)?;
        within("the timeout (-u)", self.timeout.into(), 0, 31)?;
        within("--retry", self.retry.into(), 0, 7)?;
        within("--rnr-retry", self.rnr_retry.into(), 0, 7)?;
        within("--memory", self.memory, 1, 1 << 20)?;
        if !(0.01..=86_400.0).contains(&self.duration) {
            return Err(format!("the duration (-D) is {} s, allowed is 0.01 to 86400", self.duration).into());
        }
        if let Some(rate) = self.rate
            && !(0.001..=1e9).contains(&rate)
        {
            return Err(format!("--rate is {rate} messages/s, allowed is 0.001 to 1e9").into());
        }
        if self.bidirectional && kind == Kind::Latency {
            return Err("a ping-pong goes both ways already: -b is for bw".into());
        }
        let extent = match self.iterations {
            Some(0) => return Err("-n is 0, allowed is at least 1".into()),
            Some(messages) => Extent::Messages(messages),
            None => Extent::Seconds(self.duration),
        };
        Ok(Parameters {
            kind,
            sizes,
            extent,
            window,
            depth,
            batch,
            inline: self.inline,
            connections: self.connections,
            bidirectional: self.bidirectional,
            events: self.events,
            credits: !self.no_credits,
            mtu: self.mtu.map(PathMtu::bytes),
            rate: self.rate,
            slow_receiver_us: self.slow_receiver_us,
            timeout: self.timeout,
            retry_count: self.retry,
            rnr_retry: self.rnr_retry,
            verify: self.verify,
            memory_bytes: self.memory << 20,
        })
    }
}
