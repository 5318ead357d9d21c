//! The first set: messages in three patterns, operations on queue pairs, and the store.

use doorbell_protocols::Protocol;
use doorbell_record::{FarPoint, HotPoint, Kind, Operation, Parameters, StorePoint, Strategy, Way};

use super::store::{CLIENTS, VALUE, published_store};
use super::{BlindRow, RowWorkload, Similar, T1, T2, T3, Unit};
use crate::measure::Load;

/// Row whose values a row keeps unless it states others: the testbed's own values and doubts, and no similar rows.
pub(super) const PLAIN: BlindRow = BlindRow {
    testbed: T1,
    experiment: "",
    subject: "",
    bytes: 0,
    at: ("", 0.0),
    unit: Unit::MillionsPerS,
    workload: RowWorkload::FillingLine(Vec::new()),
    is_paced: false,
    changes: &[],
    doubts: &[],
    similar: Similar::Nothing,
};

pub(super) const N_TO_ONE: &str = "N:1";
const N_TO_N: &str = "N:N";
pub(super) const BASE_LATENCY: &str = "base latency";
const STORE_PUTS: &str = "store, by the share of puts";
const STORE_SKEW: &str = "store, by skew";
const ONE_ADDRESS: &str = "CAS on one address";

const SIZES: [usize; 3] = [16, 512, 8192];
pub(super) const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const LATENCY_SIZES: [usize; 7] = [16, 64, 256, 512, 1024, 4096, 8192];
/// The protocols, with each variant that posts different operations for a message.
const PROTOCOLS: [Protocol; 9] = [
    Protocol::SendReceive,
    Protocol::DirectRead,
    Protocol::DirectReadFencedAwaited,
    Protocol::DirectWrite,
    Protocol::BufferedWriteImmediateSend,
    Protocol::BufferedWriteTailSend,
    Protocol::BufferedWriteReverseRead,
    Protocol::SharedWrite,
    Protocol::BufferedRead,
];
const LATENCIES: [Protocol; 8] = [
    Protocol::DirectWrite,
    Protocol::BufferedWriteImmediateSend,
    Protocol::BufferedWriteImmediateRead,
    Protocol::BufferedWriteTailSend,
    Protocol::BufferedWriteTailRead,
    Protocol::BufferedWriteReverseSend,
    Protocol::BufferedWriteReverseRead,
    Protocol::BufferedRead,
];

/// Returns the parameters of published message experiments. All lists have one entry, and credits are off if the
/// protocol works without credits.
pub(super) fn messages(protocol: Protocol, bytes: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
    parameters.protocol = protocol;
    parameters.depths_are_defaults = false;
    parameters.window =
        if matches!(protocol, Protocol::DirectRead | Protocol::DirectReadFencedAwaited) { 32 } else { 64 };
    parameters.depth = 2 * 64;
    parameters.credits = !protocol.is_possible_without_credits();
    parameters.signal_each = true;
    (parameters.serving.poll_list, parameters.serving.repost_list) = (1, 1);
    parameters
}

pub(super) fn operations(operation: Operation, bytes: usize, window: usize, inline: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, operation, bytes);
    parameters.depths_are_defaults = false;
    (parameters.window, parameters.depth, parameters.inline) = (window, (2 * window).max(128), inline);
    parameters
}

/// Returns all rows of the set.
pub(super) fn rows() -> Vec<BlindRow> {
    let mut rows = Vec::new();
    for (experiment, is_single) in [(N_TO_ONE, true), (N_TO_N, false)] {
        for protocol in PROTOCOLS {
            for bytes in SIZES {
                for count in COUNTS {
                    let mut load = Load::new(messages(protocol, bytes), bytes);
                    load.parameters.connections = count;
                    load.parameters.serving.threads = count;
                    let is_hub = is_single && protocol == Protocol::SendReceive;
                    load.parameters.serving.single_receiver = is_hub;
                    load.receiver_threads = (is_single && !is_hub).then_some(1);
                    rows.push(BlindRow {
                        testbed: T1,
                        experiment,
                        subject: protocol.name(),
                        bytes,
                        at: (if is_single { "senders" } else { "threads on each side" }, count as f64),
                        unit: Unit::MillionsPerS,
                        workload: RowWorkload::Load(Box::new(load)),
                        is_paced: is_single,
                        ..PLAIN
                    });
                }
            }
        }
    }
    for protocol in LATENCIES {
        for bytes in LATENCY_SIZES {
            let mut load = Load::new(messages(protocol, bytes), bytes);
            load.parameters.kind = Kind::Latency;
            (load.parameters.window, load.parameters.batch) = (1, 1);
            rows.push(BlindRow {
                testbed: T1,
                experiment: BASE_LATENCY,
                subject: protocol.name(),
                bytes,
                at: ("window", 1.0),
                unit: Unit::Microseconds,
                workload: RowWorkload::Load(Box::new(load)),
                is_paced: false,
                ..PLAIN
            });
        }
    }
    for window in [8, 32, 64] {
        for unit in [Unit::MillionsPerS, Unit::PacketsPerOperation] {
            let mut parameters = operations(Operation::RequestResponse, 1, window, 0);
            parameters.credits = false;
            rows.push(BlindRow {
                testbed: T2,
                experiment: "request-response",
                subject: "request-response",
                bytes: 1,
                at: ("requests outstanding", window as f64),
                unit,
                workload: RowWorkload::Load(Box::new(Load::new(parameters, 1))),
                is_paced: false,
                ..PLAIN
            });
        }
    }
    for (experiment, subject, operation, inline) in [
        ("inline WRITEs", "write, inline", Operation::Write, 64),
        ("plateau", "write", Operation::Write, 0),
        ("plateau", "read", Operation::Read, 0),
    ] {
        for count in [1, 2, 4, 8, 16, 20] {
            let mut parameters = operations(operation, 8, if operation == Operation::Read { 16 } else { 64 }, inline);
            parameters.connections = count;
            rows.push(BlindRow {
                testbed: T3,
                experiment,
                subject,
                bytes: 8,
                at: ("queue pairs", count as f64),
                unit: Unit::MillionsPerS,
                workload: RowWorkload::Load(Box::new(Load::new(parameters, 8))),
                is_paced: false,
                ..PLAIN
            });
        }
    }
    rows.extend(far_rows());
    rows
}

/// Number of CASes on one address, of all clients together.
pub(super) const ON_ONE_ADDRESS: u64 = 4000;

/// Returns the blind rows about memory that several clients share.
fn far_rows() -> Vec<BlindRow> {
    let row = |experiment, subject, bytes, at, unit, far| BlindRow {
        testbed: T3,
        experiment,
        subject,
        bytes,
        at,
        unit,
        workload: RowWorkload::Far(far),
        is_paced: false,
        ..PLAIN
    };
    let base = |strategy| published_store(strategy, CLIENTS);
    let mut rows = Vec::new();
    let strategies = [Strategy::Optimistic, Strategy::Steered];
    let units = [Unit::MillionsPerS, Unit::MicrosecondsOfPuts];
    for strategy in strategies {
        for write_percent in [5.0, 100.0] {
            let far = || FarPoint::Store(StorePoint { write_percent, ..base(strategy) });
            let at = ("puts, %", write_percent);
            rows.extend(units.map(|unit| row(STORE_PUTS, strategy.name(), VALUE, at, unit, far())));
        }
    }
    for strategy in strategies {
        for zipf in [0.0, 0.6, 0.9, 1.2, 1.5] {
            let far = || FarPoint::Store(StorePoint { zipf, ..base(strategy) });
            let at = ("Zipf exponent", zipf);
            rows.extend(units.map(|unit| row(STORE_SKEW, strategy.name(), VALUE, at, unit, far())));
        }
    }
    for (subject, way) in
        [("straight", Way::Straight), ("middlebox", Way::Box), ("middlebox, as WRITEs", Way::BoxToWrite)]
    {
        for clients in [1, 4, 20] {
            let far = FarPoint::Hot(HotPoint { clients, outstanding: 16, operations: ON_ONE_ADDRESS, way });
            rows.push(row(ONE_ADDRESS, subject, 8, ("clients", clients as f64), Unit::MillionsPerS, far));
        }
    }
    rows
}

/// Returns whether quick checks simulate the row, if it is one of this set: latencies of a small and a large message,
/// and rates of few threads.
pub(super) fn is_quick(row: &BlindRow) -> bool {
    match row.experiment {
        BASE_LATENCY => [16, 8192].contains(&row.bytes),
        N_TO_ONE | N_TO_N => row.bytes == 512 && row.at.1 == 4.0,
        STORE_PUTS => row.at.1 == 5.0 && row.subject == Strategy::Optimistic.name(),
        STORE_SKEW => false,
        _ => true,
    }
}
