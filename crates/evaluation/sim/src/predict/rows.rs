//! The rows. They were chosen after the published results of the first set were known (docs/blind-predictions.md).
//!
//! A protocol that grants or reserves message by message in its publication does so in these rows.

use doorbell_protocols::Protocol;
use doorbell_record::{FarPoint, HotPoint, Kind, Operation, Parameters, StorePoint, Strategy, Way};
use doorbell_wire::{MessageKind, OuterKind, Response, Transport, message_cost};

use super::{BlindRow, Doubt, RowWorkload, Similar, T1, T3, Unit, doubt};
use crate::far::published::{CLIENTS, published_store};
use crate::measure::Load;
use crate::reproduce::{Lack, Runs};

/// Row whose values a row keeps unless it states others: the testbed's own values and doubts, and no similar rows.
const PLAIN: BlindRow = BlindRow {
    testbed: T1,
    experiment: "",
    subject: "",
    bytes: 0,
    at: ("", 0.0),
    unit: Unit::MillionsPerS,
    workload: RowWorkload::FillingLine(Vec::new()),
    changes: &[],
    doubts: &[],
    similar: Similar::Nothing,
};

const N_TO_ONE: &str = "N:1";
const ONE_TO_ONE: &str = "1:1";
const LINE: &str = "1:1, smallest message that fills the line";
const BASE_LATENCY: &str = "base latency";
const OUTSTANDING: &str = "8 B over 20 queue pairs";
const ON_NIC: &str = "CAS on one address in the NIC's memory";
const STORE_64: &str = "store, 64 clients";
const STORE_392: &str = "store, 392 clients on 7 hosts";
const STORE_280: &str = "store, 280 clients on 7 hosts, by skew";

const N_TO_ONE_SIZES: [usize; 3] = [16, 512, 8192];
const SENDERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Largest message of 1:1 in bytes.
const LONGEST: usize = 64 << 10;
/// Largest message of the latencies in bytes.
const LONGEST_LATENCY: usize = 16 << 10;
/// Minimum share of the line's rate with which a message fills the line.
const FULL: f64 = 0.95;
const PAIRS: usize = 20;
/// Hosts of the clients, if there are more than 64.
const HOSTS: usize = 7;
/// Size of a value in bytes with 392 clients.
const SMALL_VALUE: usize = 128;
/// Time in microseconds during which the operations of more than 64 clients are counted. They need less time than 64
/// clients for the same number of operations.
const MEASURE_US: f64 = 2000.0;

/// Number of CASes on one address, of all clients together.
const ON_ONE_ADDRESS: u64 = 4000;

/// Time of an atomic operation on memory in the NIC. No bus is between the NIC and this memory. The NIC is assumed to
/// need as much time for an atomic operation as for a packet or a READ at the stages that its queue pairs share.
const ATOMIC_ON_NIC: (&str, &str) = ("nic.atomic", "20 ns");
const NIC_DOUBTS: [Doubt; 1] =
    [doubt("nic.atomic", "10 ns", "60 ns", "assumed, in the NIC's memory: the range of nic.read")];

fn doubling(from: usize, to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from), |bytes| bytes.checked_mul(2)).take_while(move |&bytes| bytes <= to)
}

/// Returns the parameters of published message experiments. All lists have one entry, and credits are off if the
/// protocol works without credits.
fn messages(protocol: Protocol, bytes: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
    parameters.protocol = protocol;
    parameters.depths_are_defaults = false;
    parameters.window = 64;
    parameters.depth = 2 * 64;
    parameters.credits = !protocol.is_possible_without_credits();
    parameters.signal_each = true;
    (parameters.serving.poll_list, parameters.serving.repost_list) = (1, 1);
    parameters
}

fn operations(operation: Operation, bytes: usize, window: usize, inline: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, operation, bytes);
    parameters.depths_are_defaults = false;
    (parameters.window, parameters.depth, parameters.inline) = (window, (2 * window).max(128), inline);
    parameters
}

fn load(protocol: Protocol, bytes: usize) -> Load {
    Load::new(messages(protocol, bytes), bytes)
}

/// Returns all blind rows.
pub fn rows() -> Vec<BlindRow> {
    let mut rows = Vec::new();
    for protocol in [Protocol::DirectWriteEach, Protocol::SharedWriteEach] {
        for bytes in N_TO_ONE_SIZES {
            for count in SENDERS {
                let mut load = load(protocol, bytes);
                load.parameters.connections = count;
                load.parameters.serving.threads = count;
                load.parameters.serving.server_threads = 1;
                rows.push(BlindRow {
                    experiment: N_TO_ONE,
                    subject: protocol.name(),
                    bytes,
                    at: ("senders", count as f64),
                    workload: RowWorkload::Load(Box::new(load)),
                    similar: Similar::Rates,
                    ..PLAIN
                });
            }
        }
    }
    let of_pairs = [Protocol::DirectWriteEach, Protocol::BufferedWriteTailSend, Protocol::BufferedRead];
    for protocol in of_pairs {
        for bytes in doubling(16, LONGEST) {
            let load = load(protocol, bytes);
            rows.push(BlindRow {
                experiment: ONE_TO_ONE,
                subject: protocol.name(),
                bytes,
                at: ("window", load.parameters.window as f64),
                workload: RowWorkload::Load(Box::new(load)),
                similar: Similar::Rates,
                ..PLAIN
            });
        }
    }
    for protocol in of_pairs {
        let loads: Vec<Load> = doubling(16, LONGEST).map(|bytes| load(protocol, bytes)).collect();
        rows.push(BlindRow {
            experiment: LINE,
            subject: protocol.name(),
            bytes: LONGEST,
            at: ("window", loads[0].parameters.window as f64),
            unit: Unit::Bytes,
            workload: RowWorkload::FillingLine(loads),
            similar: Similar::Rates,
            ..PLAIN
        });
    }
    for bytes in doubling(16, LONGEST_LATENCY) {
        let mut load = load(Protocol::BufferedRead, bytes);
        load.parameters.kind = Kind::Latency;
        (load.parameters.window, load.parameters.batch) = (1, 1);
        rows.push(BlindRow {
            experiment: BASE_LATENCY,
            subject: Protocol::BufferedRead.name(),
            bytes,
            at: ("window", 1.0),
            unit: Unit::Microseconds,
            workload: RowWorkload::Load(Box::new(load)),
            similar: Similar::Latencies,
            ..PLAIN
        });
    }
    for (subject, operation) in
        [("write", Operation::Write), ("read", Operation::Read), ("cas", Operation::CompareSwap)]
    {
        for outstanding in [48_usize, 144, 192] {
            let inline = if operation == Operation::Write { 8 } else { 0 };
            let mut parameters = operations(operation, 8, outstanding.div_ceil(PAIRS), inline);
            parameters.connections = PAIRS;
            let load = Load { outstanding: Some(outstanding), ..Load::new(parameters, 8) };
            rows.push(BlindRow {
                testbed: T3,
                experiment: OUTSTANDING,
                subject,
                bytes: 8,
                at: ("outstanding", outstanding as f64),
                workload: RowWorkload::Load(Box::new(load)),
                similar: Similar::Rates,
                ..PLAIN
            });
        }
    }
    for clients in [1, 4, 20] {
        let far = HotPoint { clients, outstanding: 16, operations: ON_ONE_ADDRESS, way: Way::Straight };
        rows.push(BlindRow {
            testbed: T3,
            experiment: ON_NIC,
            subject: "cas",
            bytes: 8,
            at: ("clients", clients as f64),
            workload: RowWorkload::Far(FarPoint::Hot(far)),
            changes: &[ATOMIC_ON_NIC],
            doubts: &NIC_DOUBTS,
            similar: Similar::Rates,
            ..PLAIN
        });
    }
    rows.extend(stores());
    rows
}

/// Returns the rows of the store: both strategies over shares of puts, with few and with many clients, and over skew.
fn stores() -> Vec<BlindRow> {
    let many = |strategy, clients, value_bytes| StorePoint {
        hosts: HOSTS,
        value_bytes,
        warm_up_us: MEASURE_US / 10.0,
        measure_us: MEASURE_US,
        ..published_store(strategy, clients)
    };
    let strategies = [Strategy::Steered, Strategy::Optimistic];
    let mut rows = Vec::new();
    for (experiment, bytes) in [(STORE_64, StorePoint::PUBLISHED_VALUE), (STORE_392, SMALL_VALUE)] {
        for write_percent in [5.0, 50.0, 100.0] {
            let point = |strategy| {
                let store = if experiment == STORE_64 {
                    published_store(strategy, CLIENTS)
                } else {
                    many(strategy, 392, bytes)
                };
                FarPoint::Store(StorePoint { write_percent, ..store })
            };
            let row = |subject, unit, workload, similar| BlindRow {
                testbed: T3,
                experiment,
                subject,
                bytes,
                at: ("puts, %", write_percent),
                unit,
                workload,
                similar,
                ..PLAIN
            };
            let both = RowWorkload::Quotient(Box::new(strategies.map(point)));
            rows.push(row("throughput of steered over optimistic", Unit::Times, both, Similar::StoreBytes));
            for strategy in strategies {
                let far = || RowWorkload::Far(point(strategy));
                rows.push(row(strategy.name(), Unit::MicrosecondsOfPuts, far(), Similar::StoreTail));
                // Without gets, there is no time of a get.
                if write_percent < 100.0 {
                    rows.push(row(strategy.name(), Unit::MicrosecondsOfGets, far(), Similar::StoreTail));
                }
            }
        }
    }
    for strategy in strategies {
        for zipf in [0.0, 0.3, 0.6, 0.9, 0.99, 1.2, 1.5] {
            let point = FarPoint::Store(StorePoint { zipf, ..many(strategy, 280, StorePoint::PUBLISHED_VALUE) });
            rows.push(BlindRow {
                testbed: T3,
                experiment: STORE_280,
                subject: strategy.name(),
                bytes: StorePoint::PUBLISHED_VALUE,
                at: ("Zipf exponent", zipf),
                workload: RowWorkload::Far(point),
                similar: Similar::StoreBytes,
                ..PLAIN
            });
        }
    }
    rows
}

/// Returns the bytes of the smallest message whose rate is at least [`FULL`] times the rate of the line. `loads` are in
/// ascending order of their sizes.
pub(super) fn filling_line(runs: &mut Runs<'_>, loads: &[Load]) -> Result<f64, Lack> {
    for load in loads {
        let line = line_rate(runs, load)?;
        if runs.run(load, false)?.messages_per_s >= FULL * line {
            return Ok(load.bytes as f64);
        }
    }
    Err(Lack::Feature("no message up to 64 KiB fills the line"))
}

/// Returns the messages per second that the line carries in the direction of the messages, if it carries nothing else.
fn line_rate(runs: &Runs<'_>, load: &Load) -> Result<f64, Lack> {
    let link = &runs.testbed().link;
    let steps = load.parameters.protocol.steps();
    let step = steps.iter().find(|step| step.size.carries_messages());
    let step = step.ok_or(Lack::Quantity("the rate of the line for this protocol"))?;
    let payload = step.size.bytes(load.bytes as u64, 1);
    let cost = message_cost(step.operation, Transport::Rc, payload, link.path_mtu, OuterKind::IPV4)
        .map_err(|error| Lack::Failed(error.to_string()))?;
    let line_bytes = match cost.response {
        Response::Exact(response) if step.operation == MessageKind::Read => response.line_bytes,
        _ => cost.request.line_bytes,
    };
    Ok(link.rate.bits_per_s() as f64 / 8.0 / line_bytes as f64)
}

/// Returns whether quick checks simulate the row.
pub(super) fn is_quick(row: &BlindRow) -> bool {
    match row.experiment {
        ONE_TO_ONE => [16, 512].contains(&row.bytes),
        LINE | STORE_64 | STORE_392 | STORE_280 => false,
        _ => true,
    }
}
