//! Latency of a single operation as a linear form, with the range of its slopes.

use doorbell_protocols::{Joined, Noticed};
use doorbell_wire::Transport;

use crate::cost::{Cost, Term};
use crate::setting::{Setting, Traffic, out_of_completion, traffic};
use crate::steps::Charged;
use crate::workload::{Workload, WorkloadError};

/// Line bytes of an operation in both directions, as parts of its latency.
///
/// A published slope of latency holds for a range of sizes, within which NICs store and forward parts of a message. A
/// longer message is a stream, so each further byte takes only the time of the line:
///
/// ```text
/// (line(min(k, k_max)) - 1) G_latency + (line(k) - line(min(k, k_max))) G_bandwidth
/// ```
///
/// `k_max` is [`Limits::slopes_up_to_bytes`](crate::parameters::Limits::slopes_up_to_bytes). The sum is continuous at
/// `k_max`, and unchanged up to there.
pub(crate) struct LineBytes {
    /// Line bytes to which the slope of latency applies.
    sloped: Traffic,
    /// Further line bytes from requester to responder.
    pub(crate) there: f64,
    /// Further line bytes from responder to requester.
    pub(crate) back: f64,
}

impl LineBytes {
    /// Returns the line bytes of an operation that covers a single message.
    pub(crate) fn of(
        charge: &Charged,
        transport: Option<Transport>,
        setting: &Setting,
        workload: &Workload,
    ) -> Result<Self, WorkloadError> {
        let of = |workload: &Workload| traffic(&charge.step, transport, charge.payload(workload, 1), setting, workload);
        let whole = of(workload)?;
        let sloped = of(&Workload { bytes: setting.limits.sloped(workload.bytes), ..*workload })?;
        Ok(Self { there: whole.there - sloped.there, back: whole.back - sloped.back, sloped })
    }

    fn add_there(&self, cost: Cost) -> Cost {
        cost.with(Term::LatencyPerByte, self.sloped.there - 1.0).with(Term::BandwidthPerByte, self.there)
    }

    fn add_back(&self, cost: Cost) -> Cost {
        cost.with(Term::LatencyPerByte, self.sloped.back - 1.0).with(Term::BandwidthPerByte, self.back)
    }
}

/// Returns `g`, the time until a sender can reuse the resources of a message of this many bytes. `beyond` is the number
/// of line bytes beyond the sizes for which the slopes of latency hold.
pub(crate) fn gap(setting: &Setting, bytes: u64, beyond: f64) -> Cost {
    Cost::ZERO
        .with(Term::GapFixed, 1.0)
        .with(Term::GapPerByte, setting.limits.sloped(bytes) as f64)
        .with(Term::BandwidthPerByte, beyond)
}

/// Returns the time of a READ or atomic from the requester to the responder and back, without polling its
/// completion.
pub(crate) fn crossing(line: &LineBytes) -> Cost {
    let ends = Cost::ZERO
        .with(Term::SendPost, 1.0)
        .with(Term::SendEach, 1.0)
        .with(Term::NicSend, 2.0)
        .with(Term::NicReceive, 2.0)
        .with(Term::Latency, 2.0);
    line.add_back(line.add_there(ends))
}

/// Returns the contribution of a single operation to latency.
pub(crate) fn latency_of(
    charge: &Charged,
    payload: u64,
    line: &LineBytes,
    setting: &Setting,
    workload: &Workload,
) -> Cost {
    let found = |cost: Cost| cost.with(Term::ReceivePoll, 1.0).with(Term::ReceiveEach, 1.0);
    let cost = match (charge.step.is_two_way(), charge.step.joined, charge.awaited) {
        (true, _, awaited) => {
            let cost = crossing(line);
            return if awaited { found(cost) } else { cost };
        }
        // The operation starts when the previous operation is complete, and ends with its own acknowledgement.
        (false, _, true) => return found(gap(setting, payload, line.there)),
        // The operation was posted together with the previous operation, so it follows at once. The NIC fetches both
        // work requests from memory before it starts the first one.
        (false, Joined::Chained, false) => Cost::ZERO.with(Term::SendEach, 1.0).with(Term::ListFetch, 1.0),
        // The NIC has the operation already and starts it when the READ before the fence is complete. No term stands
        // for fetching both work requests: `g` of an awaited WRITE already contains a doorbell that this WRITE does not
        // need.
        (false, Joined::Fenced { .. }, false) => Cost::ZERO.with(Term::NicReceive, 1.0).with(Term::Latency, 1.0),
        (false, Joined::Alone, false) => Cost::ZERO
            .with(Term::SendPost, 1.0)
            .with(Term::SendEach, 1.0)
            .with(Term::NicReceive, 1.0)
            .with(Term::Latency, 1.0),
    };
    let fetched = payload > workload.inline_bytes;
    let cost = line.add_there(cost.with(Term::NicSend, 1.0).with(Term::DmaRead, if fetched { 1.0 } else { 0.0 }));
    match charge.step.noticed {
        Noticed::Nothing => cost,
        Noticed::Memory => found(cost),
        Noticed::Completion => {
            found(cost).with(Term::TakeReceive, 1.0).plus(&out_of_completion(charge.step, payload, setting))
        }
    }
}
