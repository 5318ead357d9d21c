//! `doorbell steer`: a middlebox in front of a memory node, on a UDP socket of its own.

mod report;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use doorbell_exchange::address::{address_toward, address_toward_host, reach, with_port};
use doorbell_fabric::{BindRequest, FaultPlan, Faults, Link, Pcap, active_mtu, bind};
use doorbell_farmem::{Geometry, StoreLayout};
use doorbell_output::files;
use doorbell_steer::service::{Mode, Service, Settings, SteeredStore};
use doorbell_steer::{Config, Driver, Layout, Limits};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::control::DEFAULT_TCP_PORT;
use crate::device::{UdpPort, first_address};
use crate::failure::{Failure, Usage};
use crate::faults::{FaultCheck, FaultFiles, check_middlebox};
use crate::output::print_note;
use crate::{ending, quantity};

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell steer 10.0.0.1                   in front of the memory node there; clients set up their
                                            queue pairs with this machine instead
  doorbell steer 10.0.0.1 --exclusive       all accesses to the node's memory pass this box, so a
                                            CAS may go there as a WRITE
  doorbell steer 10.0.0.1 --store nodes=4096,keys=1024,max-key=8,max-value=128
                                            steer requests of a store to the newest node of a key
  doorbell steer 127.0.0.1:7000 --pcap both.pcap -D 10 --json
  doorbell steer 10.0.0.1 --perftest        in front of a server of perftest there (`ib_write_bw`);
                                            clients name this machine (`ib_write_bw ADDRESS`)

Node and clients are programs that set up a queue pair as the crate doorbell does
(Device::queue_pair), and keep the TCP connection open while they use it. docs/middlebox.md has the
assumptions of the box.";

/// Run a middlebox in front of a memory node: the requests of all clients go to the node on one ordered queue pair.
/// The box runs until it is interrupted, and then prints its counters
#[derive(Args)]
pub(crate) struct Steer {
    /// Memory node: HOST or HOST:PORT at which the node sets up queue pairs over TCP
    #[arg(value_name = "NODE")]
    node: String,
    /// Address of the box for clients and node [default: local address of the TCP connection with the node, or the next
    /// free loopback address for a local node]
    #[arg(long, value_name = "ADDRESS", env = "DOORBELL_BIND", hide_env_values = true, value_parser = first_address)]
    bind: Option<IpAddr>,
    #[command(flatten)]
    udp: UdpPort,
    /// ADDRESS or ADDRESS:PORT at which clients set up their queue pairs over TCP [default: the address of the box]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Default TCP port of the node and of the box
    #[arg(short, long, default_value_t = DEFAULT_TCP_PORT, value_parser = quantity::port)]
    port: u16,
    /// Assume that every access to the node's memory passes this box, also accesses of the node's own processor. Then
    /// the box knows the values of words, and may send a CAS to the node as a WRITE. Accesses that bypass the box make
    /// results wrong
    #[arg(long)]
    exclusive: bool,
    /// Treat the memory as Doorbell's store with these sizes, separated by commas: any of nodes=N, keys=N,
    /// max-key=BYTES, max-value=BYTES. The box redirects READs and CASes of old nodes to the newest node of the key
    #[arg(long, value_name = "SIZES", value_parser = store)]
    store: Option<Geometry>,
    /// With --store: send READs to the nodes that clients name, and redirect only CASes
    #[arg(long, requires = "store")]
    writes_only: bool,
    /// Connect programs of perftest through the box, one pair after another: the servers listen on NODE, and the box
    /// listens for the clients. Supports the programs whose server only waits: ib_write_bw, ib_read_bw, ib_read_lat,
    /// ib_atomic_bw and ib_atomic_lat
    #[arg(long, conflicts_with_all = ["store", "exclusive"])]
    perftest: bool,
    /// Give each client a queue pair of its own at the node, and pass on packets unchanged. The box numbers requests,
    /// and prints the order of the answers when the box ends
    #[arg(long, conflicts_with_all = ["store", "exclusive", "perftest"])]
    relay: bool,
    /// Maximum number of concurrent clients, up to 32768
    #[arg(long, value_name = "N", default_value_t = Limits::default().clients, value_parser = quantity::count::<usize>)]
    clients: usize,
    /// Maximum concurrent READs and atomics that the node accepts on one queue pair, up to 255
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = quantity::count::<u8>)]
    reads: u8,
    /// Seconds without an acknowledgement, despite retransmissions, after which the box considers the node gone, 10ms
    /// to an hour
    #[arg(long, value_name = "SECONDS", default_value = "9", value_parser = quantity::seconds)]
    patience: f64,
    /// Write every packet of clients and node to a pcap file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Faults of packets that arrive at the box, separated by commas: any of drop=P, duplicate=P, reorder=P,
    /// corrupt=P (a share, 0 to 1), delay=T (such as 5us), seed=N. Or rules, separated by semicolons, such as
    /// 'drop opcode=ack nth=1' (see docs/faults.md)
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,
    #[command(flatten)]
    fault_files: FaultFiles,
    /// End after this number of seconds, or after a time with a unit, as in 500ms
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = quantity::seconds)]
    duration: Option<f64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Parses the sizes of a store.
fn store(text: &str) -> Result<Geometry, String> {
    let mut geometry = Geometry::default();
    for part in text.split(',') {
        let allowed = || format!("{part:?} is none of nodes=N, keys=N, max-key=BYTES, max-value=BYTES");
        let (name, value) = part.split_once('=').ok_or_else(allowed)?;
        match name.trim() {
            "nodes" => geometry.nodes = quantity::count(value)?,
            "keys" => geometry.keys = quantity::count(value)?,
            "max-key" => geometry.max_key = quantity::memory_bytes(value)?,
            "max-value" => geometry.max_value = quantity::memory_bytes(value)?,
            _ => return Err(allowed()),
        }
    }
    geometry.check().map_err(|error| error.to_string())?;
    Ok(geometry)
}

/// Signals that end the box after it has printed its counters.
#[derive(Debug)]
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn take() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self(signal))
    }

    fn came(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|&number| number != 0)
    }
}

pub(crate) fn run(arguments: &Steer) -> Result<ExitCode, Failure> {
    let most = Limits::MOST_CLIENTS;
    if !(1..=most).contains(&arguments.clients) {
        return Err(Usage(format!("--clients is {}, allowed is 1 to {most}", arguments.clients)).into());
    }
    if arguments.reads == 0 {
        return Err(Usage("--reads is 0, allowed is 1 to 255".to_owned()).into());
    }
    if !(0.01..=3600.0).contains(&arguments.patience) {
        return Err(Usage(format!("--patience is {} s, allowed is 10ms to an hour", arguments.patience)).into());
    }
    arguments.udp.note_if_other();
    let plan = arguments.fault.as_ref().or(arguments.fault_files.fault_plan.as_ref());
    check_middlebox(plan)?;
    let check = FaultCheck::begin(plan, arguments.fault_files.fault_journal.as_deref())?;
    let signals = Signals::take()?;
    let node = with_port(&arguments.node, arguments.port);
    let mode = match (arguments.perftest, arguments.relay) {
        (true, _) => Mode::Perftest,
        (_, true) => Mode::Relay,
        _ => Mode::Shared(reach(&node, "; does a memory node set up queue pairs there?")?),
    };
    let toward = match &mode {
        Mode::Shared(stream) => address_toward(stream),
        Mode::Relay | Mode::Perftest => address_toward_host(&node)?,
    };
    let udp =
        bind(BindRequest { address: arguments.bind.or(toward), port: arguments.udp.port, ..BindRequest::default() })?;
    let (address, readable) = (udp.local_address(), udp.readable()?);
    let settings = Settings {
        address,
        udp_port: arguments.udp.port,
        path_mtu: active_mtu(address)?,
        exclusive: arguments.exclusive,
        store: arguments.store.map(|sizes| steered(sizes, arguments.writes_only)),
        reads: arguments.reads,
        patience: Duration::from_secs_f64(arguments.patience),
        clients: arguments.clients,
        node,
    };
    let mut limits = Limits { clients: arguments.clients, ..Limits::default() };
    if let Some(geometry) = arguments.store {
        limits.keys = geometry.keys as usize;
    }
    let config = Config { address, limits, seed: getrandom::u64()? };
    let listen = arguments.listen.as_deref().map_or_else(|| address.to_string(), str::to_owned);
    let is_relay = matches!(mode, Mode::Relay);
    let service = Service::start(settings, mode, &with_port(&listen, arguments.port), print_note)?;
    let mut driver =
        Driver::new(doorbell_steer::Steer::new(config), stack(udp, arguments, check.as_ref())?, arguments.udp.port);
    let begun = Instant::now();
    let during = arguments.duration.map(Duration::from_secs_f64);
    service.forward(&mut driver, &readable, during, || signals.came().is_some())?;
    report::print(&driver, &service, is_relay, begun.elapsed(), arguments.json)?;
    // Close the capture file, so that its readers find all packets.
    drop(driver);
    let all_fired = check.map_or(Ok(true), FaultCheck::finish)?;
    if let Some(number) = signals.came() {
        ending::end_as_by(number);
    }
    Ok(if all_fired { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the store of these sizes, whose requests the box steers.
fn steered(sizes: Geometry, writes_only: bool) -> SteeredStore {
    let layout = move |address| {
        let layout = StoreLayout::new(sizes, address);
        Box::new(if writes_only { layout.writes_alone() } else { layout }) as Box<dyn Layout>
    };
    SteeredStore { region_bytes: sizes.region_bytes(), layout: Arc::new(layout) }
}

/// Wraps the link in the requested faults and capture.
fn stack(
    udp: doorbell_fabric::UdpLink,
    arguments: &Steer,
    check: Option<&FaultCheck>,
) -> Result<Box<dyn Link>, Failure> {
    let (address, port) = (udp.local_address(), udp.port());
    let mut link: Box<dyn Link> = Box::new(udp);
    // The capture wraps the faults, so it records the packets after the faults.
    if let Some(plan) = arguments.fault.as_ref().or(arguments.fault_files.fault_plan.as_ref()) {
        let faults = Faults::new(link, plan.clone()).of_device(address, port);
        link = match check {
            Some(check) => Box::new(faults.with_journal(files::append(check.journal())?)),
            None => Box::new(faults),
        };
    }
    if let Some(path) = &arguments.pcap {
        let unwritable = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        let file = files::create(path).map_err(unwritable)?;
        let (begun, since_1970) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let clock = move |_| since_1970 + begun.elapsed();
        link = Box::new(Pcap::new(link, address, port, file, clock).map_err(unwritable)?);
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_store_are_validated() {
        let geometry = store("nodes=10k, keys=100,max-value=1K").expect("these are sizes");
        let expected = Geometry { nodes: 10_000, keys: 100, max_value: 1024, ..Geometry::default() };
        assert_eq!(geometry, expected);
        for (text, words) in [
            ("", "is none of nodes=N"),
            ("nodes", "is none of nodes=N"),
            ("values=3", "is none of nodes=N"),
            ("nodes=x", "whole number"),
            ("max-key=0", "the longest key is 0, allowed is 1 to 1024"),
        ] {
            let error = store(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
