//! The model as a predictor.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use doorbell_wire::{Direction, Response, message_cost};

use super::{Lack, Manner, Needed, Order, Ordered, Packets, Predictor, Rated, StoreFigures, Stored};
use crate::observation::srq_slow_sizes;
use crate::operation::{Posted, PostedOperation, acknowledgements, predict_operation};
use crate::parameters::Parameters;
use crate::predict::{Bound, BoundKind, Prediction, predict};
use crate::workload::{Workload, WorkloadError};

/// Number of outstanding operations that stands for an unlimited window. No published queue pair had this number.
const FULL: u32 = 1024;

/// Returns a sentence with the reason why the model's prediction of the row `id` is beyond the tolerance.
pub fn lack_of(id: &str) -> Option<&'static str> {
    static ALL: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        toml::from_str(doorbell_data::LACKS.text)
            .unwrap_or_else(|error| unreachable!("tests read the built-in file: {error}"))
    });
    ALL.get(id).map(String::as_str)
}

/// Predictor that uses the model with a set of parameters. Without a set, every prediction fails with
/// [`Lack::Parameters`].
#[derive(Clone, Copy, Debug)]
pub struct Analytic<'a> {
    parameters: Option<&'a Parameters>,
}

impl<'a> Analytic<'a> {
    /// Creates a predictor from these parameters.
    pub fn new(parameters: Option<&'a Parameters>) -> Self {
        Self { parameters }
    }

    fn parameters(&self) -> Result<&'a Parameters, Lack> {
        self.parameters.ok_or(Lack::Parameters)
    }

    fn predict(&self, workload: &Workload) -> Result<Prediction, Lack> {
        Ok(predict(self.parameters()?, workload)?)
    }

    fn bound(&self, workload: &Workload, kind: BoundKind, name: &'static str) -> Result<Bound, Lack> {
        self.predict(workload)?.bound(kind).ok_or(Lack::Parameter(name))
    }
}

fn rated(prediction: &Prediction) -> Rated {
    let binding = prediction.bottleneck().binding.kind.into();
    Rated { messages_per_s: prediction.messages_per_s, binding, rnr_naks: 0 }
}

impl Predictor for Analytic<'_> {
    fn is_fitted(&self, id: &str) -> bool {
        let origins = self.parameters.map_or(&[][..], |parameters| &parameters.origins);
        origins.iter().any(|origin| origin.fitted_to.iter().any(|fitted| fitted == id))
    }

    fn latency_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        Ok(self.predict(workload)?.latency_ns)
    }

    fn rate(&mut self, workload: &Workload, _: Manner) -> Result<Rated, Lack> {
        self.predict(workload).map(|prediction| rated(&prediction))
    }

    fn line_rate(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.bound(workload, BoundKind::Link, "link").map(|bound| bound.messages_per_s())
    }

    fn posting_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.sending_cpu_ns(workload)
    }

    fn sending_cpu_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.bound(workload, BoundKind::SendingCpu, "CPU time of a send").map(|bound| bound.ns_per_message)
    }

    fn operations(&mut self, posted: &Posted) -> Result<Rated, Lack> {
        Ok(rated(&predict_operation(self.parameters()?, posted)?))
    }

    fn packets(&mut self, posted: &Posted) -> Result<Packets, Lack> {
        let Wire { request, response } = Wire::of(posted, self.parameters()?)?;
        Ok(Packets {
            packets_in: request.packets,
            packets_out: response.packets,
            bytes_in: request.frame_bytes,
            bytes_out: response.frame_bytes,
        })
    }

    fn order(&mut self, _: &Ordered) -> Result<Order, Lack> {
        Err(Lack::Quantity("the order in which requests of different queue pairs arrive"))
    }

    fn store(&mut self, _: &Stored) -> Result<StoreFigures, Lack> {
        Err(Lack::Subject("stores on passive memory"))
    }

    fn unstated_window(&self, operation: PostedOperation) -> Result<u32, Lack> {
        // The NIC limits the READs and atomics in flight, so a larger window has no effect. Unreliable datagrams wait
        // for no acknowledgement, so their window has no effect.
        let is_full = operation.is_atomic() || matches!(operation, PostedOperation::Read | PostedOperation::UdSend);
        if is_full { Ok(FULL) } else { Err(Lack::Unstated("window")) }
    }

    fn reads_in_flight(&self) -> Result<u32, Lack> {
        Ok(self.parameters()?.limits.reads_in_flight)
    }

    fn inline_receive_bytes(&self) -> Result<u64, Lack> {
        match self.parameters()?.limits.inline_receive_up_to_bytes {
            0 => Err(Lack::Parameter("size up to which messages arrive in the completion")),
            bytes => Ok(bytes),
        }
    }

    fn has(&self, needed: Needed) -> Result<(), Lack> {
        Err(Lack::Feature(match needed {
            Needed::InlineCopies => "the model has no CPU time for copying inline data",
            Needed::Interrupts => "the model's ends poll: it has no interrupts",
            Needed::CompletionQueues => "the model has one completion queue per thread",
            Needed::RnrNaks => "the model has no RNR NAK and no back-off",
        }))
    }

    fn line_filling_bytes(&mut self, workload: &Workload, _: Manner, _: (u64, u64)) -> Result<u64, Lack> {
        let parameters = self.parameters()?;
        let mtu_bytes = workload.path_mtu.unwrap_or(parameters.path_mtu()).bytes() as u64;
        let (_, fills) = srq_slow_sizes(&Parameters { mtu_bytes, ..parameters.clone() })
            .filter(|_| workload.srq)
            .ok_or(Lack::Parameter("limit that holds messages of this configuration below the line"))?;
        Ok(fills)
    }
}

/// Frames of an operation and of its acknowledgements, as the target counts frames.
struct Wire {
    /// Frames that arrive at the target.
    request: Frames,
    /// Frames that the target sends.
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
                let coalesced = if cost.request.packets == 1 { acknowledgements(parameters, posted)? } else { 1.0 };
                let packets = coalesced * parameters.limits.acknowledgements(cost.request.packets);
                Frames { packets, frame_bytes: packets * max.frame_bytes as f64 / max.packets.max(1) as f64 }
            }
        };
        // The requester acknowledges the response, so each direction carries a message and an acknowledgement.
        if posted.operation == PostedOperation::RequestResponse {
            let both = request.plus(response);
            return Ok(Self { request: both, response: both });
        }
        Ok(Self { request, response })
    }
}
