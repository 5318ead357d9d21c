//! Estimate of the memory of a run, made before the run begins.

use doorbell_record::{Kind, Parameters, ParametersError, stride};

use crate::topology::Topology;

/// Bytes of the simulator itself, with its tables.
const PROGRAM: u64 = 5 << 20;
/// Bytes of a node: RNIC, stations and tables.
const NODE: u64 = 64 << 10;
/// Bytes of one end of a connection without queues and buffers: connection, thread and queue pair.
const END: u64 = 32 << 10;
/// Bytes of a queue entry: work request, completion, and the connection's record of both.
const PLACE: u64 = 512;
/// Bytes of a switch port.
const PORT: u64 = 256;
/// Bytes of a frame in flight, without its packet.
const FRAME: u64 = 256;

/// Error of a run that would exceed its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run would need about {needed_mib} MiB of memory, allowed are {allowed_mib} MiB")]
pub struct MemoryError {
    /// Estimated memory in MiB.
    pub needed_mib: u64,
    /// Memory limit in MiB.
    pub allowed_mib: u64,
}

impl MemoryError {
    /// Returns an error if `needed` bytes exceed the limit of `allowed` bytes.
    pub(crate) fn check(needed: u64, allowed: u64) -> Result<(), Self> {
        match needed > allowed {
            true => Err(Self { needed_mib: needed.div_ceil(1 << 20), allowed_mib: allowed >> 20 }),
            false => Ok(()),
        }
    }
}

/// Estimates the bytes of memory of a run with `connections` connections, and messages of `message` bytes with their
/// replies.
pub(crate) fn bytes(
    topology: Topology,
    parameters: &Parameters,
    message: usize,
    connections: usize,
) -> Result<u64, ParametersError> {
    let fitted = parameters.fit(message)?;
    let message = parameters.longest(message);
    let (window, depth) = (fitted.window as u64, fitted.depth as u64);
    let stride = stride(message + 64) as u64;
    let places = 2 * (window + depth) * (PLACE + parameters.inline as u64);
    // Each end has buffers to send from and to receive into.
    let buffers = 2 * (fitted.send_buffers as u64 + depth) * stride;
    let is_latency = parameters.kind == Kind::Latency;
    let in_flight = if is_latency { 1 } else { window } * (message as u64 + FRAME);
    let each = 2 * END + places + buffers + in_flight;
    let ports = topology.nodes() as u64 * 2 + (topology.switches() * topology.leaves()) as u64 * 2;
    Ok(PROGRAM + topology.nodes() as u64 * NODE + ports * PORT + (connections as u64).saturating_mul(each))
}
