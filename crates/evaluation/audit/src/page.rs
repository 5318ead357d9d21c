//! The page of an audit, as text and as JSON.

use doorbell_analyze::explain::sentences::{byte_rate, number_of, rate};
use doorbell_counters::Common;
use serde_json::{Value, json};

use crate::claim::{Claim, Figure};
use crate::verdict::{Audit, Verdict};

/// Name of the JSON layout.
pub const SCHEMA: &str = "doorbell-audit/1";

/// Returns an audit as lines of text.
pub fn text(audit: &Audit) -> Vec<String> {
    let mut lines = vec![verdict(audit)];
    if let Some(claim) = &audit.claim {
        lines.push(format!("claimed      {}", claimed(audit, claim)));
    }
    if let Some(arithmetic) = &audit.arithmetic {
        lines.push(format!(
            "arithmetic   {} of {} B at path MTU {}: {}, {} frame bytes; payload is {:.1} % of the line bytes",
            arithmetic.operation,
            arithmetic.bytes,
            arithmetic.path_mtu,
            number_of(arithmetic.packets, "packet"),
            arithmetic.frame_bytes,
            100.0 * arithmetic.goodput_share
        ));
    }
    let lists = [
        ("contradicted", audit.contradictions.clone()),
        ("holds", audit.comparisons.clone()),
        ("model", audit.predictions.clone()),
        ("cause", audit.findings.iter().map(|finding| finding.sentence.clone()).collect()),
        ("status", statuses(audit)),
        ("note", audit.arithmetic.iter().flat_map(|arithmetic| arithmetic.assumed.clone()).collect()),
        ("note", audit.notes.clone()),
    ];
    for (name, sentences) in lists {
        lines.extend(sentences.into_iter().map(|sentence| format!("{name:<12} {sentence}")));
    }
    lines
}

fn verdict(audit: &Audit) -> String {
    let sentence = match audit.verdict {
        Verdict::Consistent => "no comparison contradicts the claim",
        Verdict::Contradicted => "the claim contradicts a number beside it",
        Verdict::Failed => "the benchmark reports a failed completion",
        Verdict::Unknown if audit.claim.is_none() => "the output has no figure that can be compared",
        Verdict::Unknown if audit.given.link_bits_per_s.is_some() || audit.counted.is_some() => {
            "the output has no figure that can be compared with the link or the counters"
        }
        Verdict::Unknown => "nothing is known to compare the claim with: name the link, or give counters",
    };
    format!("{:<12} {sentence}", audit.verdict.name())
}

fn claimed(audit: &Audit, claim: &Claim) -> String {
    let mut parts = Vec::new();
    parts.extend(claim.name.clone());
    parts.extend(claim.bytes.map(|bytes| format!("{bytes} B")));
    parts.extend(claim.average.as_ref().map(|average| {
        let (printed, unit, bytes_per_s) = (average.printed, &average.unit, average.bytes_per_s());
        format!("{printed} {unit} = {} = {:.2} Gb/s", byte_rate(bytes_per_s), bytes_per_s * 8.0 / 1e9)
    }));
    parts.extend(claim.messages_per_s.map(|messages_per_s| format!("{} messages/s", rate(messages_per_s))));
    parts.extend(claim.latency_us.map(|latency_us| format!("{latency_us} us")));
    let tool = audit.output.tool.map_or("unknown tool", |tool| tool.name());
    let both = if audit.output.setup.is_bidirectional { ", sum of both directions" } else { "" };
    format!("{} ({tool}{both})", parts.join(", "))
}

/// Returns a sentence for each cause of each failed completion.
fn statuses(audit: &Audit) -> Vec<String> {
    let causes = audit.output.failures.iter().flat_map(|status| {
        let sentence = |cause: &doorbell_verbs_core::Cause| {
            format!("{} ({}): perhaps {}. Check: {}", status.number(), status.text(), cause.cause, cause.check)
        };
        status.causes().iter().map(sentence).collect::<Vec<_>>()
    });
    causes.collect()
}

/// Returns an audit as a JSON object.
pub fn json(audit: &Audit) -> Value {
    let figure = |figure: &Figure| json!({ "printed": figure.printed, "unit": figure.unit, "bytes_per_s": figure.bytes_per_s() });
    let claim = |claim: &Claim| {
        json!({
            "name": claim.name,
            "bytes": claim.bytes,
            "iterations": claim.iterations,
            "average": claim.average.as_ref().map(figure),
            "peak": claim.peak.as_ref().map(figure),
            "messages_per_s": claim.messages_per_s,
            "latency_us": claim.latency_us,
        })
    };
    let setup = &audit.output.setup;
    let counted = audit.counted.as_ref().map(|counted| {
        let deltas: serde_json::Map<String, Value> =
            Common::ALL.into_iter().map(|common| (common.name().to_owned(), json!(counted.delta(common)))).collect();
        json!({
            "device": counted.device,
            "seconds": counted.seconds,
            "counted": deltas,
            "steady_packets_per_s": counted.steady_packets_per_s(),
        })
    });
    let arithmetic = audit.arithmetic.as_ref().map(|arithmetic| {
        json!({
            "operation": arithmetic.operation.to_string(),
            "bytes": arithmetic.bytes,
            "path_mtu": arithmetic.path_mtu.bytes(),
            "packets": arithmetic.packets,
            "frame_bytes": arithmetic.frame_bytes,
            "goodput_share": arithmetic.goodput_share,
            "assumed": arithmetic.assumed,
        })
    });
    let failures = audit.output.failures.iter().map(|status| {
        let causes: Vec<Value> =
            status.causes().iter().map(|cause| json!({ "cause": cause.cause, "check": cause.check })).collect();
        json!({ "number": status.number(), "text": status.text(), "causes": causes })
    });
    let findings = audit
        .findings
        .iter()
        .map(|finding| json!({ "cause": finding.cause, "sentence": finding.sentence, "weight": finding.weight }));
    let predicted = audit.given.predicted.as_ref().map(|predicted| {
        json!({
            "testbed": predicted.testbed,
            "bytes_per_s": predicted.bytes_per_s,
            "messages_per_s": predicted.messages_per_s,
        })
    });
    json!({
        "schema": SCHEMA,
        "verdict": audit.verdict.name(),
        "tool": audit.output.tool.map(|tool| tool.name()),
        "device": setup.device,
        "bidirectional": setup.is_bidirectional,
        "claim": audit.claim.as_ref().map(claim),
        "claims": audit.output.claims.iter().map(claim).collect::<Vec<_>>(),
        "arithmetic": arithmetic,
        "link_bits_per_s": audit.given.link_bits_per_s,
        "counters": counted,
        "predicted": predicted,
        "contradictions": audit.contradictions,
        "comparisons": audit.comparisons,
        "predictions": audit.predictions,
        "findings": findings.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
        "notes": audit.notes,
    })
}
