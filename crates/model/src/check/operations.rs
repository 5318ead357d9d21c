//! Rows of single operations: what they are on the wire, and how many go through per second.

use doorbell_published::{Amount, Configuration, Operation as Said, PathMtuSaid, Quantity, Row};
use doorbell_wire::cost::ATOMIC_BYTES;
use doorbell_wire::{Direction, Response, message_cost};

use super::{Lack, amount, count};
use crate::operation::{Operation, Posted, predict_operation};
use crate::parameters::Parameters;
use crate::predict::BoundKind;
use crate::workload::WorkloadError;

/// What the model says of a row, in the unit that its dimension names, and what binds there.
pub(super) fn found(row: &Row, said: Said, parameters: &Parameters) -> Result<(f64, Option<BoundKind>), Lack> {
    let configuration = &row.configuration;
    let operation = match said {
        Said::Send => Operation::Send,
        Said::UdSend => Operation::UdSend,
        Said::Write => Operation::Write,
        Said::Read => Operation::Read,
        Said::Cas => Operation::CompareSwap,
        Said::RequestResponse => Operation::RequestResponse,
    };
    if let Quantity::InFlight = row.quantity {
        let connections = count("connections", configuration.connections)?;
        let per_pair = match configuration.window {
            Some(Amount::Is(window)) => (window as u32).min(parameters.limits.reads_in_flight),
            _ => parameters.limits.reads_in_flight,
        };
        return Ok((f64::from(connections) * f64::from(per_pair), None));
    }
    if let Quantity::InOrder | Quantity::OutOfOrder | Quantity::Displacement = row.quantity {
        return Err(Lack::Quantity("order in which requests of different queue pairs arrive"));
    }
    let posted = posted(operation, configuration)?;
    let wire = Wire::of(&posted, parameters)?;
    match row.quantity {
        Quantity::RequestBytesPerPacket => return Ok((frames(&posted, parameters)?.0, None)),
        Quantity::ResponseBytesPerPacket => return Ok((frames(&posted, parameters)?.1, None)),
        Quantity::RequestPacketsPerOperation => return Ok((wire.request.packets, None)),
        Quantity::ResponsePacketsPerOperation => return Ok((wire.response.packets, None)),
        Quantity::MiddlePacketBytes => return Ok((wire.middle(&posted, parameters)?.0, None)),
        Quantity::MiddlePacketEfficiency => return Ok((wire.middle(&posted, parameters)?.1, None)),
        _ => {}
    }
    // An unreliable datagram waits for nothing, so that its window does not matter.
    if !matches!((configuration.window, operation), (Some(Amount::Is(_)), _) | (_, Operation::UdSend)) {
        let is_full = operation.is_atomic() || operation == Operation::Read;
        if !is_full {
            return Err(Lack::Unstated("window"));
        }
    }
    let prediction = predict_operation(parameters, &posted)?;
    let rate = prediction.messages_per_s;
    let binding = prediction.bottleneck().binding.kind;
    let found = match row.quantity {
        Quantity::OperationRate => rate,
        Quantity::Throughput => prediction.bytes_per_s,
        Quantity::PacketsIn => rate * wire.request.packets,
        Quantity::PacketsOut => rate * wire.response.packets,
        Quantity::BytesIn => rate * wire.request.frame_bytes,
        _ => return Err(Lack::Quantity("such number")),
    };
    Ok((found, Some(binding)))
}

/// The operations of a configuration as published. Where READs and atomics have no window, the queue pair is full; of
/// a range of sizes it has the largest. Each queue pair has a thread of its own, as no publication says otherwise.
pub(super) fn posted(operation: Operation, configuration: &Configuration) -> Result<Posted, Lack> {
    let bytes = match configuration.bytes {
        _ if operation.is_atomic() => ATOMIC_BYTES,
        Some(Amount::Is(bytes) | Amount::Span(_, bytes)) => bytes as u64,
        Some(Amount::Unknown) | None => return Err(Lack::Unstated("bytes")),
    };
    let connections = count("connections", configuration.connections)?;
    let window = match configuration.window {
        Some(Amount::Is(window)) => window as u32,
        Some(span @ Amount::Span(..)) => return Err(Lack::Range { field: "window", amount: span }),
        _ => FULL,
    };
    let plain = Posted::new(operation, bytes, window);
    Ok(Posted {
        connections,
        threads: connections,
        addresses: match configuration.addresses {
            Some(addresses) => amount("addresses", Some(addresses))? as u32,
            None => connections,
        },
        immediate: configuration.immediate == Some(true),
        path_mtu: match configuration.path_mtu {
            Some(PathMtuSaid::Is(path_mtu)) => Some(path_mtu),
            Some(PathMtuSaid::Unknown) | None => None,
        },
        outer: if configuration.vlan == Some(true) { plain.outer.with_vlan() } else { plain.outer },
        ..plain
    })
}

/// Packets of an operation that come in and go out at the target.
pub(super) fn packets(posted: &Posted, parameters: &Parameters) -> Result<(f64, f64), Lack> {
    Wire::of(posted, parameters).map(|wire| (wire.request.packets, wire.response.packets))
}

/// Frame bytes of a packet that comes in and of one that goes out.
pub(super) fn frames(posted: &Posted, parameters: &Parameters) -> Result<(f64, f64), Lack> {
    let of = |frames: Frames| frames.frame_bytes / frames.packets;
    Wire::of(posted, parameters).map(|wire| (of(wire.request), of(wire.response)))
}

/// More operations outstanding than any queue pair of a publication had.
const FULL: u32 = 1024;

/// Frames of an operation with its acknowledgements, as the target counts them.
struct Wire {
    /// What comes in there.
    request: Frames,
    /// What goes out there.
    response: Frames,
}

#[derive(Clone, Copy)]
struct Frames {
    packets: f64,
    frame_bytes: f64,
}

impl Frames {
    fn of(direction: Direction) -> Self {
        Self { packets: direction.packets as f64, frame_bytes: direction.frame_bytes as f64 }
    }

    fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, frame_bytes: self.frame_bytes + other.frame_bytes }
    }
}

impl Wire {
    fn of(posted: &Posted, parameters: &Parameters) -> Result<Self, Lack> {
        let mtu = posted.path_mtu.unwrap_or(parameters.path_mtu());
        let kind = posted.operation.kind(posted.immediate);
        let bytes = posted.workload().bytes;
        let cost = message_cost(kind, posted.operation.transport(), bytes, mtu, posted.outer).map_err(|_| {
            let most = crate::workload::MAX_BYTES;
            WorkloadError { what: "the message size", given: bytes, least: 0, most }
        })?;
        let request = Frames::of(cost.request);
        let response = match cost.response {
            Response::None => Frames { packets: 0.0, frame_bytes: 0.0 },
            Response::Exact(direction) => Frames::of(direction),
            Response::Range { max, .. } => {
                let packets = parameters.limits.acknowledgements(cost.request.packets);
                Frames { packets, frame_bytes: packets * max.frame_bytes as f64 / max.packets.max(1) as f64 }
            }
        };
        // The answer is acknowledged as the request is: each way has a message and an acknowledgement.
        if posted.operation == Operation::RequestResponse {
            let both = request.plus(response);
            return Ok(Self { request: both, response: both });
        }
        Ok(Self { request, response })
    }

    /// Frame bytes of a packet in the midst of a long message, and the payload's share of the line there: what one
    /// packet more adds.
    fn middle(&self, posted: &Posted, parameters: &Parameters) -> Result<(f64, f64), Lack> {
        let mtu = posted.path_mtu.unwrap_or(parameters.path_mtu()).bytes();
        let longer = Posted { bytes: posted.bytes + mtu as u64, ..*posted };
        let frame = Wire::of(&longer, parameters)?.request.frame_bytes - self.request.frame_bytes;
        let beside = (doorbell_wire::PREAMBLE_LEN + doorbell_wire::FCS_LEN + doorbell_wire::GAP_LEN) as f64;
        Ok((frame, mtu as f64 / (frame + beside)))
    }
}
