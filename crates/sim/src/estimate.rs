//! How much memory a run needs, before it begins.

use doorbell_study::parameters::{Kind, Parameters, ParametersError, stride};

use crate::topology::Topology;

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

/// A run would need more memory than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run would need about {needed_mib} MiB of memory, allowed are {allowed_mib} MiB")]
pub struct MemoryError {
    /// How much, estimated.
    pub needed_mib: u64,
    /// How much it may need.
    pub allowed_mib: u64,
}

impl MemoryError {
    /// Are so many bytes allowed?
    pub(crate) fn check(needed: u64, allowed: u64) -> Result<(), Self> {
        match needed > allowed {
            true => Err(Self { needed_mib: needed.div_ceil(1 << 20), allowed_mib: allowed >> 20 }),
            false => Ok(()),
        }
    }
}

/// Bytes of memory that a run needs, about: messages of so many bytes over so many connections.
pub(crate) fn bytes(
    topology: Topology,
    parameters: &Parameters,
    message: usize,
    connections: usize,
) -> Result<u64, ParametersError> {
    let fitted = parameters.fit(message)?;
    let (window, depth) = (fitted.window as u64, fitted.depth as u64);
    let stride = stride(message + 64) as u64;
    let places = 2 * (window + depth) * (PLACE + parameters.inline as u64);
    // Both ends can send and receive.
    let buffers = 2 * (fitted.send_buffers as u64 + depth) * stride;
    let is_latency = parameters.kind == Kind::Latency;
    let in_flight = if is_latency { 1 } else { window } * (message as u64 + FRAME);
    let each = 2 * END + places + buffers + in_flight;
    let ports = topology.nodes() as u64 * 2 + (topology.switches() * topology.leaves()) as u64 * 2;
    Ok(PROGRAM + topology.nodes() as u64 * NODE + ports * PORT + (connections as u64).saturating_mul(each))
}
