//! How much memory a run needs, before it begins.

use doorbell_study::parameters::{Kind, ParametersError, stride};

use crate::topology::Topology;
use crate::traffic::Traffic;

/// The program itself, with its tables.
const PROGRAM: u64 = 4 << 20;
/// A node: its RNIC, stations and tables.
const NODE: u64 = 64 << 10;
/// A connection at one end, without queues and buffers: connection, thread, queue pair.
const END: u64 = 32 << 10;
/// A place in a queue: the work request, its completion, and what the connection knows of it.
const PLACE: u64 = 512;
/// A port of a switch.
const PORT: u64 = 256;
/// A frame on its way, without its packet.
const FRAME: u64 = 256;

/// Bytes of memory that a run needs, about.
pub(crate) fn bytes(topology: Topology, traffic: &Traffic) -> Result<u64, ParametersError> {
    let parameters = &traffic.parameters;
    let fitted = parameters.fit(traffic.bytes)?;
    let connections = traffic.pattern.pairs(traffic.n).len() as u64;
    let (window, depth) = (fitted.window as u64, fitted.depth as u64);
    let stride = stride(traffic.bytes + 64) as u64;
    let places = 2 * (window + depth) * (PLACE + parameters.inline as u64);
    // Both ends can send and receive.
    let buffers = 2 * (fitted.send_buffers as u64 + depth) * stride;
    let is_latency = parameters.kind == Kind::Latency;
    let in_flight = if is_latency { 1 } else { window } * (traffic.bytes as u64 + FRAME);
    let each = 2 * END + places + buffers + in_flight;
    let ports = topology.nodes() as u64 * 2 + (topology.switches() * topology.leaves()) as u64 * 2;
    Ok(PROGRAM + topology.nodes() as u64 * NODE + ports * PORT + connections.saturating_mul(each))
}
