//! Comparison of a claim with its own numbers, a link, counters and a prediction.

mod causes;

use doorbell_analyze::explain::sentences::{byte_rate, number_of, rate};
use doorbell_counters::Common;
use doorbell_wire::PathMtu;

use crate::arithmetic::Arithmetic;
use crate::claim::{Claim, Figure, Output};
use crate::counted::Counted;

/// Relative difference that no comparison treats as a contradiction, besides the rounding of printed numbers.
const TOLERANCE: f64 = 0.01;
/// Share of the needed packets below which counters contradict a claim. Counters are read some milliseconds late.
const LEAST_COUNTED: f64 = 0.98;
/// Share of the needed packets below which the messages went past the device.
const ELSEWHERE: f64 = 0.1;
/// Relative difference between a claimed and a steady rate of packets from which on they contradict each other.
const RATE_TOLERANCE: f64 = 0.1;
/// Relative difference between the time of the counted messages and a duration without margins.
const MARGIN_TOLERANCE: f64 = 0.1;

/// Result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All comparisons hold.
    Consistent,
    /// A comparison does not hold.
    Contradicted,
    /// The benchmark reports a failed completion.
    Failed,
    /// No comparison was possible.
    Unknown,
}

impl Verdict {
    /// Returns the name of the verdict in JSON and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Contradicted => "contradicted",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// Probable cause, with its evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Short name of the cause.
    pub cause: &'static str,
    /// Cause and its evidence, as a sentence.
    pub sentence: String,
    /// Weight of the evidence, from 0 to 100. Findings are in descending order of their weights.
    pub weight: u8,
}

/// Prediction of the model for the same messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Name of the testbed.
    pub testbed: String,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// Messages per second.
    pub messages_per_s: f64,
}

/// Knowledge besides output and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// Rate of the link in bits per second and direction.
    pub link_bits_per_s: Option<f64>,
    /// Path MTU, if the output does not show it.
    pub path_mtu: Option<PathMtu>,
    /// Prediction of the model.
    pub predicted: Option<Predicted>,
    /// CPUs that the command used on average; 1 is one CPU all the time.
    pub busy_cpus: Option<f64>,
}

/// Audit of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Contents of the output.
    pub output: Output,
    /// Claim that the audit concerns: the one with the largest rate.
    pub claim: Option<Claim>,
    /// Packets of the claim's messages, if their size is known.
    pub arithmetic: Option<Arithmetic>,
    /// Counters that the claim was compared with.
    pub counted: Option<Counted>,
    /// Knowledge besides output and counters.
    pub given: Given,
    /// Verdict.
    pub verdict: Verdict,
    /// Contradictions, as sentences.
    pub contradictions: Vec<String>,
    /// Comparisons that hold, and limits, as sentences.
    pub comparisons: Vec<String>,
    /// Ratios to predictions, as sentences. They do not decide the verdict.
    pub predictions: Vec<String>,
    /// Probable causes, the most probable one first.
    pub findings: Vec<Finding>,
    /// Remarks on parts that could not be used, as sentences.
    pub notes: Vec<String>,
}

impl Audit {
    fn find(&mut self, cause: &'static str, weight: u8, sentence: String) {
        if self.findings.iter().all(|finding| finding.cause != cause) {
            self.findings.push(Finding { cause, sentence, weight });
        }
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Returns the rate of payload in one direction, in bytes per second.
    fn one_way(&self, figure: &Figure) -> f64 {
        figure.bytes_per_s() / if self.output.setup.is_bidirectional { 2.0 } else { 1.0 }
    }
}

/// Compares the largest claim of an output with its own numbers, and with the link, counters and prediction as far as
/// they are known.
pub fn audit(output: &Output, counted: Option<&Counted>, given: &Given) -> Audit {
    let mut audit = Audit {
        output: output.clone(),
        claim: output.main_claim().cloned(),
        arithmetic: None,
        counted: counted.cloned(),
        given: given.clone(),
        verdict: Verdict::Unknown,
        contradictions: Vec::new(),
        comparisons: Vec::new(),
        predictions: Vec::new(),
        findings: Vec::new(),
        notes: output.notes.clone(),
    };
    for claim in &output.claims {
        agrees_with_itself(&mut audit, claim);
    }
    if let Some(kind) = output.setup.other_packets {
        audit.note(format!("the messages are {kind}: link, counters and model are not compared"));
    }
    if let Some(claim) = audit.claim.clone() {
        compare_with_duration(&mut audit, &claim);
    }
    if let Some(claim) = audit.claim.clone().filter(|_| output.setup.other_packets.is_none()) {
        match claim.bytes.map(|bytes| Arithmetic::of(&output.setup, given.path_mtu, bytes)) {
            Some(Ok(arithmetic)) => audit.arithmetic = Some(arithmetic),
            Some(Err(why)) => audit.note(why),
            None => audit.note("the output does not show the size of a message: packets are unknown".to_owned()),
        }
        compare_with_link(&mut audit, &claim);
        compare_with_counters(&mut audit, &claim);
        compare_with_prediction(&mut audit, &claim);
    }
    causes::add(&mut audit);
    audit.findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    audit.verdict = if !output.failures.is_empty() {
        Verdict::Failed
    } else if !audit.contradictions.is_empty() {
        Verdict::Contradicted
    } else if audit.comparisons.is_empty() {
        Verdict::Unknown
    } else {
        Verdict::Consistent
    };
    audit
}

/// Ratios between two printed rates that a confusion of units or directions causes.
const RATIOS: [(f64, &str, &str); 8] = [
    (1.048_576, "units", "the ratio of MiB to MB"),
    (1.0 / 1.048_576, "units", "the ratio of MB to MiB"),
    (1.073_741_824, "units", "the ratio of GiB to GB"),
    (1.0 / 1.073_741_824, "units", "the ratio of GB to GiB"),
    (2.0, "both-directions", "the ratio if only one of the numbers counts both directions"),
    (0.5, "both-directions", "the ratio if only one of the numbers counts both directions"),
    (8.0, "bits", "the ratio of bytes to bits"),
    (0.125, "bits", "the ratio of bits to bytes"),
];

/// Compares the rate of bytes of a row with its size and rate of messages.
fn agrees_with_itself(audit: &mut Audit, claim: &Claim) {
    let (Some(average), Some(bytes), Some(messages_per_s)) = (&claim.average, claim.bytes, claim.messages_per_s) else {
        return;
    };
    let product = bytes as f64 * messages_per_s;
    if product <= 0.0 || average.printed <= 0.0 {
        return;
    }
    let ratio = average.bytes_per_s() / product;
    let rounding = average.error_bytes_per_s() / average.bytes_per_s() + claim.messages_error_per_s / messages_per_s;
    if (ratio - 1.0).abs() <= TOLERANCE + 2.0 * rounding {
        let sentence = "bandwidth, size and message rate of each row agree".to_owned();
        if !audit.comparisons.contains(&sentence) {
            audit.comparisons.push(sentence);
        }
        return;
    }
    audit.contradictions.push(format!(
        "{} {} is {:.3} times {} messages/s of {bytes} B, which are {}",
        average.printed,
        average.unit,
        ratio,
        rate(messages_per_s),
        byte_rate(product)
    ));
    let known = RATIOS.iter().find(|(known, _, _)| (ratio / known - 1.0).abs() <= TOLERANCE + 2.0 * rounding);
    if let Some(&(_, cause, why)) = known {
        audit.find(cause, 90, format!("{ratio:.3} is {why}"));
    }
}

/// Compares iterations and rate with the requested duration.
fn compare_with_duration(audit: &mut Audit, claim: &Claim) {
    let (Some(iterations), Some(messages_per_s)) = (claim.iterations, claim.messages_per_s.filter(|rate| *rate > 0.0))
    else {
        return;
    };
    // The rate counts both directions, the iterations one.
    let is_bidirectional = audit.output.setup.is_bidirectional;
    let seconds = iterations as f64 / messages_per_s * if is_bidirectional { 2.0 } else { 1.0 };
    if seconds < causes::SHORTEST_S {
        let sentence =
            format!("the run took {:.2} ms: caches, clocks and the first round trips dominate it", 1e3 * seconds);
        audit.find("short-run", 70, sentence);
    }
    let Some(duration_s) = audit.output.setup.duration_s else { return };
    // perftest's margin is a quarter of the duration in whole seconds.
    let margin_s = (duration_s / 4.0).floor();
    let counted_s = duration_s - 2.0 * margin_s;
    if margin_s > 0.0 && (seconds / counted_s - 1.0).abs() < MARGIN_TOLERANCE {
        audit.find(
            "margin",
            60,
            format!(
                "{iterations} messages at this rate are {seconds:.1} s of the requested {duration_s} s: perftest counts \
                 no messages in a margin of {margin_s} s at each end"
            ),
        );
    }
}

fn compare_with_link(audit: &mut Audit, claim: &Claim) {
    let (Some(link), Some(average)) = (audit.given.link_bits_per_s, &claim.average) else { return };
    let share = audit.arithmetic.as_ref().map_or(1.0, |arithmetic| arithmetic.goodput_share);
    let limit = link / 8.0 * share;
    if limit <= 0.0 {
        return; // a message without payload
    }
    let claimed = audit.one_way(average);
    let slack = 1.0 + 0.005 + average.error_bytes_per_s() / average.bytes_per_s().max(1.0);
    let link_text = format!("a link of {}b/s", rate(link));
    let way = if audit.output.setup.is_bidirectional { " in each direction" } else { "" };
    if claimed > limit * slack {
        audit.contradictions.push(format!(
            "{} of payload{way} exceed {link_text}, which carries {} of payload ({:.1} % of the line rate)",
            byte_rate(claimed),
            byte_rate(limit),
            100.0 * share
        ));
        causes::of_excess(audit, claim, limit);
        return;
    }
    audit.comparisons.push(format!(
        "{link_text} carries {} of payload ({:.1} % of the line rate); the claim is {:.1} % of that{way}",
        byte_rate(limit),
        100.0 * share,
        100.0 * claimed / limit
    ));
    if claimed > 0.9 * limit {
        audit.find(
            "line-rate",
            30,
            format!("headers take {:.1} % of the line rate, so payload never reaches it", 100.0 * (1.0 - share)),
        );
    } else if claimed < causes::LOW_SHARE * limit {
        causes::of_low_rate(audit, claim);
    }
    if let Some(peak) = &claim.peak
        && audit.one_way(peak) > limit * slack
    {
        let sentence = format!(
            "the peak {} {} exceeds the link: it is the shortest time between two completions, not a rate of the link",
            peak.printed, peak.unit
        );
        audit.find("peak", 40, sentence);
    }
}

fn compare_with_counters(audit: &mut Audit, claim: &Claim) {
    let (Some(counted), Some(arithmetic)) = (audit.counted.clone(), audit.arithmetic.clone()) else { return };
    for remark in &counted.remarks {
        audit.note(remark.clone());
    }
    if audit.output.claims.len() > 1 {
        return compare_all_rows(audit, &counted);
    }
    // The growth in one interval may cover a part of the benchmark only.
    let packets = counted.packets().filter(|_| !counted.is_given_rate);
    let Some(packets) = packets else {
        if counted.steady_packets_per_s().is_none() {
            audit.note(format!("the packets that {} counted are unknown: counters are not compared", counted.device));
            return;
        }
        return compare_rates(audit, claim, &counted, &arithmetic);
    };
    match claim.iterations.filter(|_| !audit.output.setup.is_bidirectional) {
        Some(iterations) => {
            let needed = iterations.saturating_mul(arithmetic.packets);
            let allowed = packets / arithmetic.packets;
            let sentence = format!(
                "{} need{} {}; {} counted {packets}, enough for {}",
                number_of(iterations, "message"),
                if iterations == 1 { "s" } else { "" },
                number_of(needed, "packet"),
                counted.device,
                number_of(allowed, "message")
            );
            if (packets as f64) < LEAST_COUNTED * needed as f64 {
                audit.contradictions.push(sentence);
                lacks_packets(audit, packets, needed);
            } else {
                audit.comparisons.push(sentence);
            }
        }
        None => compare_rates(audit, claim, &counted, &arithmetic),
    }
}

/// Compares the packets of all rows with the counters, since rates of counters do not belong to one row.
fn compare_all_rows(audit: &mut Audit, counted: &Counted) {
    let rows = audit.output.claims.len();
    let is_whole = !counted.is_given_rate && !audit.output.setup.is_bidirectional;
    let needed_packets = |claim: &Claim| {
        let arithmetic = Arithmetic::of(&audit.output.setup, audit.given.path_mtu, claim.bytes?).ok()?;
        claim.iterations?.checked_mul(arithmetic.packets)
    };
    let needed = audit.output.claims.iter().map(needed_packets).try_fold(0_u64, |sum, row| sum.checked_add(row?));
    let (Some(needed), Some(packets)) = (needed, counted.packets().filter(|_| is_whole)) else {
        let device = &counted.device;
        audit.note(format!("the output has {rows} rows: the counters of {device} are not compared with one of them"));
        return;
    };
    let sentence =
        format!("the messages of all {rows} rows need {needed} packets; {} counted {packets}", counted.device);
    if (packets as f64) < LEAST_COUNTED * needed as f64 {
        audit.contradictions.push(sentence);
        lacks_packets(audit, packets, needed);
    } else {
        audit.comparisons.push(sentence);
    }
}

/// Adds the causes of counters below the needed packets.
fn lacks_packets(audit: &mut Audit, packets: u64, needed: u64) {
    if (packets as f64) < ELSEWHERE * needed as f64 {
        let sentence = "nearly no packet went through the device: memory of one machine, or another device, carried \
                        the data";
        audit.find("another-path", 80, sentence.to_owned());
    }
    let sentence = "the counters are of another device or port, or the observer misses packets";
    audit.find("counters", 60, sentence.to_owned());
}

/// Compares the claimed rate of packets with the steady rate of the counters.
fn compare_rates(audit: &mut Audit, claim: &Claim, counted: &Counted, arithmetic: &Arithmetic) {
    let Some(packets_per_s) = counted.steady_packets_per_s() else {
        audit.note(format!("the packet rate of {} was not steady: rates are not compared", counted.device));
        return;
    };
    let Some(average) = claim.average.as_ref().filter(|_| arithmetic.bytes > 0) else { return };
    let needed = audit.one_way(average) / arithmetic.bytes as f64 * arithmetic.packets as f64;
    let payload = packets_per_s / arithmetic.packets as f64 * arithmetic.bytes as f64;
    let sentence = format!(
        "the claim needs {} packets/s; {} counted {}, enough for {} of payload",
        rate(needed),
        counted.device,
        rate(packets_per_s),
        byte_rate(payload)
    );
    if needed > packets_per_s * (1.0 + RATE_TOLERANCE) {
        audit.contradictions.push(sentence);
        let link = audit.given.link_bits_per_s;
        let is_possible = link.is_some_and(|link| audit.one_way(average) <= link / 8.0 * arithmetic.goodput_share);
        let weight = if is_possible { 80 } else { 50 };
        audit.find(
            "counters",
            weight,
            format!(
                "the observer sees {:.0} % of the packets: a capture drops the rest, or the counters are of another \
                 device or port",
                100.0 * packets_per_s / needed
            ),
        );
    } else {
        audit.comparisons.push(sentence);
    }
}

fn compare_with_prediction(audit: &mut Audit, claim: &Claim) {
    let (Some(predicted), Some(average)) = (&audit.given.predicted, &claim.average) else { return };
    if predicted.bytes_per_s > 0.0 {
        audit.predictions.push(format!(
            "the model predicts {} for {}; the claim is {:.0} % of that",
            byte_rate(predicted.bytes_per_s),
            predicted.testbed,
            100.0 * audit.one_way(average) / predicted.bytes_per_s
        ));
    }
}

/// Returns the growth of a counter as a share of the packets, if both are known and the counter grew.
fn share_of_packets(counted: &Counted, common: Common) -> Option<(u64, f64)> {
    let grown = counted.delta(common).filter(|grown| *grown > 0)?;
    let packets = counted.packets().filter(|packets| *packets > 0)?;
    Some((grown, grown as f64 / packets as f64))
}

#[cfg(test)]
mod tests;
