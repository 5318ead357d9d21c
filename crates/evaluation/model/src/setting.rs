//! Inputs of predictions besides the workload, and the effects of an operation that depend on them.

use doorbell_protocols::Step;
use doorbell_wire::{Direction, MessageKind, PathMtu, Response, Transport, message_cost};

use crate::cost::{Cost, Term};
use crate::parameters::{Limits, Parameters, RnicKind};
use crate::workload::{Workload, WorkloadError};

/// Inputs of the forms besides the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) rnic: RnicKind,
    pub(crate) batch: u32,
    pub(crate) path_mtu: PathMtu,
    pub(crate) limits: Limits,
    /// Acknowledgements per message of one packet; less than one if an acknowledgement covers several messages.
    pub(crate) acks_per_message: f64,
}

impl Setting {
    pub(crate) fn of(parameters: &Parameters) -> Self {
        let Parameters { rnic, batch, limits, .. } = *parameters;
        Self { rnic, batch, path_mtu: parameters.path_mtu(), limits, acks_per_message: 1.0 }
    }
}

/// Line bytes and packets of an operation in both directions.
pub(crate) struct Traffic {
    pub(crate) there: f64,
    pub(crate) back: f64,
    pub(crate) packets_there: f64,
    pub(crate) packets_back: f64,
}

/// Returns the line bytes and packets of an operation with `bytes` bytes of payload.
pub(crate) fn traffic(
    step: &Step,
    transport: Option<Transport>,
    bytes: u64,
    setting: &Setting,
    workload: &Workload,
) -> Result<Traffic, WorkloadError> {
    let mtu = workload.path_mtu.unwrap_or(setting.path_mtu);
    let transport = transport.unwrap_or(Transport::Rc);
    let cost = message_cost(step.operation, transport, bytes, mtu, workload.outer).map_err(|_| {
        // A datagram is one packet.
        let most = if transport == Transport::Ud { mtu.bytes() as u64 } else { crate::workload::MAX_BYTES };
        WorkloadError { what: "an operation of the protocol", given: bytes, least: 0, most }
    })?;
    let line = |direction: Direction| direction.line_bytes as f64;
    let (back, packets_back) = match cost.response {
        Response::Exact(direction) => (line(direction), direction.packets as f64),
        // The number of acknowledgements lies between full coalescing and one per packet.
        Response::Range { max, .. } => {
            let coalesced = if cost.request.packets == 1 { setting.acks_per_message } else { 1.0 };
            let acknowledgements = coalesced * setting.limits.acknowledgements(cost.request.packets);
            (acknowledgements * line(max) / max.packets.max(1) as f64, acknowledgements)
        }
        Response::None => (0.0, 0.0),
    };
    Ok(Traffic { there: line(cost.request), back, packets_there: cost.request.packets as f64, packets_back })
}

/// Returns the CPU time to copy a payload out of its completion, if the NIC has put it there.
pub(crate) fn out_of_completion(step: Step, payload: u64, setting: &Setting) -> Cost {
    let is_send = matches!(step.operation, MessageKind::Send | MessageKind::SendImm | MessageKind::SendInv);
    let is_there = is_send && (1..=setting.limits.inline_receive_up_to_bytes).contains(&payload);
    Cost::ZERO.with(Term::InlineReceive, if is_there { 1.0 } else { 0.0 })
}
