//! Explanation of a prediction in sentences: the bottleneck, and remedies.

use crate::operation::{Posted, predict_operation};
use crate::parameters::Parameters;
use crate::predict::{Bottleneck, Bound, BoundKind, Prediction, Requests, predict, predict_requests};
use crate::workload::{MAX_COUNT, Workload, WorkloadError};

/// Bottleneck of a workload, and remedies.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Explained prediction.
    pub prediction: Prediction,
    /// Bound that limits the throughput, and the next bound.
    pub bottleneck: Bottleneck,
    /// Sentence that names the workload, its bottleneck, and the simplest remedy.
    pub sentence: String,
    /// Remedies with their predicted throughput. Empty if the model knows no remedy.
    pub remedies: Vec<Remedy>,
}

/// Change that would raise the throughput.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// Setting to change, with its new value.
    pub what: String,
    /// Predicted messages per second with the change. A larger message counts as the number of original
    /// messages that fit into it.
    pub messages_per_s: f64,
    /// Bound that limits the throughput after the change.
    pub binding: BoundKind,
}

/// Predicts a workload and explains its bottleneck. Each remedy has its own prediction.
///
/// # Errors
///
/// Returns the error of [`Workload::check`] if the workload is impossible.
pub fn explain(parameters: &Parameters, workload: &Workload) -> Result<Explanation, WorkloadError> {
    let prediction = predict(parameters, workload)?;
    let bottleneck = prediction.bottleneck();
    let mut remedies = Vec::new();
    for (what, changed) in changes(parameters, workload, &bottleneck) {
        let better = predict(parameters, &changed)?;
        // If the change enlarges messages, one message carries the payload of several original messages.
        let carried = if changed.bytes == workload.bytes { 1 } else { changed.bytes / workload.bytes };
        let gain = better.messages_per_s * carried as f64;
        if gain > prediction.messages_per_s * 1.01 {
            let (messages_per_s, binding) = (gain, better.bottleneck().binding.kind);
            remedies.push(Remedy { what, messages_per_s, binding });
        }
    }
    let sentence = sentence(workload, &prediction, &bottleneck, &remedies);
    Ok(Explanation { prediction, bottleneck, sentence, remedies })
}

/// Predicts operations of bare queue pairs and explains their bottleneck. The model has remedies for messages only.
///
/// # Errors
///
/// Returns the error of [`Posted::check`] if the operations are impossible.
pub fn explain_operation(parameters: &Parameters, posted: &Posted) -> Result<Explanation, WorkloadError> {
    let prediction = predict_operation(parameters, posted)?;
    let bottleneck = prediction.bottleneck();
    let what = format!("{} of {} B, {} outstanding", posted.operation.name(), posted.workload().bytes, posted.window);
    let sentence = without_remedy(&what, "operations", &prediction, &bottleneck);
    Ok(Explanation { prediction, bottleneck, sentence, remedies: Vec::new() })
}

/// Predicts requests with replies and explains their bottleneck. The model has remedies for one-way messages only.
///
/// # Errors
///
/// Returns the error of [`Requests::check`] if the requests are impossible.
pub fn explain_requests(parameters: &Parameters, requests: &Requests) -> Result<Explanation, WorkloadError> {
    let prediction = predict_requests(parameters, requests)?;
    let bottleneck = prediction.bottleneck();
    let Requests { request, reply_bytes, think_us } = requests;
    let mut what =
        format!("requests of {} B with replies of {reply_bytes} B, {} outstanding", request.bytes, request.window);
    if *think_us > 0 {
        what += &format!(", {think_us} us of think time");
    }
    let sentence = without_remedy(&what, "requests", &prediction, &bottleneck);
    Ok(Explanation { prediction, bottleneck, sentence, remedies: Vec::new() })
}

/// Explains the mean of predictions, each with its share of the messages. `units` is what the rate counts, such as
/// `messages`. The model has remedies for messages of one size only.
///
/// # Panics
///
/// There is no prediction.
pub fn explain_mix(all: Vec<(f64, Prediction)>, units: &str) -> Explanation {
    let what = format!("mix of {} sizes", all.len());
    let prediction = Prediction::mean(all);
    let bottleneck = prediction.bottleneck();
    let sentence = without_remedy(&what, units, &prediction, &bottleneck);
    Explanation { prediction, bottleneck, sentence, remedies: Vec::new() }
}

/// Returns a sentence with the bottleneck and the next bound of `what`, whose rate counts `units`.
fn without_remedy(what: &str, units: &str, prediction: &Prediction, bottleneck: &Bottleneck) -> String {
    let Bottleneck { binding, next, factor } = bottleneck;
    let mut sentence = format!("{what}: {} ({} {units}/s)", binding.kind, per_second(prediction.messages_per_s));
    if let Some(Bound { kind, .. }) = next {
        sentence += &format!("; next is the {kind}, at {factor:.2} times as much");
    }
    sentence
}

fn sentence(workload: &Workload, prediction: &Prediction, bottleneck: &Bottleneck, remedies: &[Remedy]) -> String {
    let Bottleneck { binding, next, factor } = bottleneck;
    let mut text = format!(
        "{} B, window {}: {} ({} messages/s)",
        workload.bytes,
        workload.window,
        binding.kind,
        per_second(prediction.messages_per_s)
    );
    match (remedies.first(), next) {
        (Some(remedy), _) => text += &format!("; {} would reach the bound of the {}", remedy.what, remedy.binding),
        (None, Some(next)) if *factor < 1.05 => text += &format!("; the bound of the {} is equally near", next.kind),
        (None, _) => text += "; the model knows no remedy",
    }
    if let Some(Bound { kind, .. }) = next
        && remedies.first().is_none_or(|remedy| remedy.binding != *kind)
    {
        text += &format!("; next is the {kind}, at {factor:.2} times as much");
    }
    text
}

/// Formats a rate in millions per second, with three significant digits. Rates of 1000 to a million per second have
/// three decimal places.
pub fn millions(messages_per_s: f64) -> String {
    three_digits(messages_per_s / 1e6)
}

/// Formats a rate per second in millions (`2.50 M`), below 0.1 million in thousands (`12.3 k`), and below a thousand
/// without a prefix.
pub fn per_second(messages_per_s: f64) -> String {
    match messages_per_s {
        _ if messages_per_s >= 1e5 => format!("{} M", millions(messages_per_s)),
        _ if messages_per_s >= 1e3 => format!("{} k", three_digits(messages_per_s / 1e3)),
        _ => three_digits(messages_per_s),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        _ if value > 0.0 && value < 0.001 => format!("{value:.*}", (2.0 - value.log10().floor()).min(12.0) as usize),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns possible remedies of a bound, each with the changed workload.
fn changes(parameters: &Parameters, workload: &Workload, bottleneck: &Bottleneck) -> Vec<(String, Workload)> {
    let Bottleneck { binding, next, factor } = *bottleneck;
    let mut changes = Vec::new();
    let mut offer = |what: String, changed: Workload| {
        if changed.check().is_ok() && changed != *workload {
            changes.push((what, changed));
        }
    };
    let reaching = |now: u32| (f64::from(now) * factor).ceil().min(MAX_COUNT as f64) as u32;
    let batch = parameters.batch.max(2);
    let peers = workload.peers;
    // Number of messages that fit into one packet together.
    let packet = workload.path_mtu.unwrap_or(parameters.path_mtu()).bytes() as u64;
    let together = packet.checked_div(workload.bytes).unwrap_or(0);
    let larger = |offer: &mut dyn FnMut(String, Workload)| {
        if together > 1 {
            let what = format!("one message of {} B instead of {together}", together * workload.bytes);
            offer(what, Workload { bytes: together * workload.bytes, ..*workload });
        }
    };
    match binding.kind {
        BoundKind::RoundTrip if next.is_some() => {
            let window = reaching(workload.window);
            let depth = workload.depth.max(Workload::default_depth(window));
            offer(format!("a window of {window}"), Workload { window, depth, ..*workload });
            larger(&mut offer);
        }
        BoundKind::ReceiverSpace if next.is_some() => {
            let depth = reaching(workload.depth);
            offer(format!("receiver space for {depth} messages"), Workload { depth, ..*workload });
        }
        BoundKind::SendingCpu | BoundKind::ReceivingCpu => {
            if workload.batch < batch && binding.kind == BoundKind::SendingCpu {
                let window = workload.window.max(batch * 2);
                let depth = workload.depth.max(Workload::default_depth(window));
                offer(format!("{batch} messages per post"), Workload { batch, window, depth, ..*workload });
            }
            if workload.receive_batch.min(workload.repost_batch) < batch {
                let what = format!("polling and reposting {batch} at a time");
                offer(what, Workload { receive_batch: batch, repost_batch: batch, ..*workload });
            }
            larger(&mut offer);
            let mut more = peers;
            if binding.kind == BoundKind::SendingCpu || workload.bidirectional {
                more.senders += 1;
            }
            if binding.kind == BoundKind::ReceivingCpu || workload.bidirectional {
                more.receivers += 1;
            }
            more.connections = more.connections.max(more.senders).max(more.receivers);
            let what = match binding.kind {
                BoundKind::SendingCpu => format!("{} sending threads", more.senders),
                _ => format!("{} receiving threads", more.receivers),
            };
            offer(what, Workload { peers: more, ..*workload });
        }
        BoundKind::SendingNic
        | BoundKind::SendingNicInbound
        | BoundKind::ReceivingNic
        | BoundKind::ReceivingNicOutbound
        | BoundKind::SendingUnits
        | BoundKind::ReceivingUnits
        | BoundKind::PayloadFetches
        | BoundKind::ReadsInFlight => {
            larger(&mut offer);
            let more = crate::workload::Peers { connections: peers.connections.saturating_mul(2), ..peers };
            offer(format!("{} connections", more.connections), Workload { peers: more, ..*workload });
        }
        BoundKind::Link | BoundKind::LinkBackward => {
            larger(&mut offer);
            let largest = doorbell_wire::PathMtu::Mtu4096;
            if workload.bytes > packet && packet < largest.bytes() as u64 {
                offer("a path MTU of 4096".to_owned(), Workload { path_mtu: Some(largest), ..*workload });
            }
        }
        // The ceiling limits the messages of all connections of a NIC together, so only fewer, larger messages help.
        BoundKind::SendingCeiling | BoundKind::ReceivingCeiling => larger(&mut offer),
        BoundKind::RepostThread => {
            let what = "each thread reposting the shared receives that it frees".to_owned();
            offer(what, Workload { repost_thread: false, ..*workload });
            offer("a receive queue for each connection".to_owned(), Workload { srq: false, ..*workload });
        }
        BoundKind::Srq => {
            offer("a receive queue for each connection".to_owned(), Workload { srq: false, ..*workload });
            larger(&mut offer);
        }
        BoundKind::Fence => {
            // The protocol of this wire id has no fence, and the peer cannot tell the two variants apart.
            let protocol = workload.protocol.wire_id().protocol().unwrap_or_default();
            offer("acknowledging without a fence".to_owned(), Workload { protocol, ..*workload });
        }
        BoundKind::Atomics | BoundKind::AtomicsOnAddress => {
            let protocol = doorbell_protocols::Protocol::BufferedWriteImmediateSend;
            offer("a ring for each sender".to_owned(), Workload { protocol, ..*workload });
        }
        BoundKind::RoundTrip | BoundKind::Rounds | BoundKind::SlowAccesses | BoundKind::ReceiverSpace => {}
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_keep_three_digits() {
        let shown = [43.3e6, 2e6, 187_000.0, 99_900.0, 11_686.0, 4758.0, 12.0, 0.5].map(per_second);
        assert_eq!(shown, ["43.3 M", "2.00 M", "0.187 M", "99.9 k", "11.7 k", "4.76 k", "12.0", "0.500"]);
    }
}
