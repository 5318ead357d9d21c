//! Observations from the records that `doorbell bench --json` writes.
//!
//! Only the fields that the model needs are read; others, also ones of later releases, are left
//! alone.

use doorbell_wire::PathMtu;
use serde::Deserialize;

use crate::observation::Observation;
use crate::parameters::RnicKind;
use crate::protocol::Protocol;
use crate::workload::{Peers, Workload};

/// Schemas of records that can be read.
pub const SCHEMAS: [&str; 1] = ["doorbell-bench/1"];

/// The share of packets sent again above which a result says more of the loss than of the costs.
const MOST_REPEATED: f64 = 0.005;

/// What a record holds for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// What did the RNIC's work.
    pub rnic: RnicKind,
    /// What can be used.
    pub observations: Vec<Observation>,
    /// What cannot, with the reason: a sentence each.
    pub left_out: Vec<String>,
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is of another kind or of a newer release.
    #[error("{file}: schema is {given}, this release reads {}", SCHEMAS.join(", "))]
    Schema {
        /// Which file.
        file: String,
        /// What stands there.
        given: String,
    },
    /// It is no JSON, or a field is missing or of the wrong type.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// Which file.
        file: String,
        /// Which field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Schema {
    schema: serde_json::Value,
}

#[derive(Deserialize)]
struct Record {
    environment: Environment,
    parameters: Asked,
    results: Vec<PointResult>,
}

#[derive(Deserialize)]
struct Environment {
    provider: String,
}

#[derive(Deserialize)]
struct Asked {
    kind: String,
    connections: u32,
    inline: u64,
    #[serde(default)]
    bidirectional: bool,
    #[serde(default)]
    events: bool,
    #[serde(default = "yes")]
    credits: bool,
    #[serde(default)]
    rate: Option<f64>,
    #[serde(default)]
    slow_receiver_us: u64,
    #[serde(default)]
    verify: bool,
    #[serde(default)]
    protocol: Option<String>,
    #[serde(default, alias = "use_srq")]
    srq: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct PointResult {
    bytes: u64,
    messages_per_s: f64,
    #[serde(default)]
    latency_ns: Option<Latency>,
    fitted: Fitted,
    mtu: u64,
    #[serde(default)]
    counted: Option<BothEnds>,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
}

#[derive(Deserialize)]
struct Fitted {
    window: u32,
    batch: u32,
    depth: u32,
}

#[derive(Deserialize)]
struct BothEnds {
    client: Counted,
    server: Counted,
}

#[derive(Deserialize)]
struct Counted {
    data_packets: u64,
    retransmitted_packets: u64,
}

/// Reads a record's text. `file` is how errors and observations call it.
pub fn observations(file: &str, text: &str) -> Result<Observed, RecordError> {
    let Schema { schema } = read(file, text)?;
    if !SCHEMAS.iter().any(|known| schema == *known) {
        return Err(RecordError::Schema { file: file.to_owned(), given: schema.to_string() });
    }
    let record: Record = read(file, text)?;
    let mut observed = Observed {
        rnic: if record.environment.provider == "soft" { RnicKind::Software } else { RnicKind::Hardware },
        observations: Vec::new(),
        left_out: Vec::new(),
    };
    for (index, result) in record.results.iter().enumerate() {
        match observation(file, index, &record.parameters, result)? {
            Ok(observation) => observed.observations.push(observation),
            Err(reason) => observed.left_out.push(format!("{file}: {} B left out: {reason}", result.bytes)),
        }
    }
    Ok(observed)
}

fn read<'a, T: Deserialize<'a>>(file: &str, text: &'a str) -> Result<T, RecordError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "the record".to_owned() } else { path };
        RecordError::Malformed { file: file.to_owned(), field, problem: error.into_inner().to_string() }
    })?;
    deserializer.end().map_err(|error| RecordError::Malformed {
        file: file.to_owned(),
        field: "behind the record".to_owned(),
        problem: error.to_string(),
    })?;
    Ok(value)
}

/// The observation of a result, or why there is none.
fn observation(
    file: &str,
    index: usize,
    asked: &Asked,
    result: &PointResult,
) -> Result<Result<Observation, String>, RecordError> {
    let malformed = |field: &str, problem: String| RecordError::Malformed {
        file: file.to_owned(),
        field: format!("results[{index}].{field}"),
        problem,
    };
    let protocol = match asked.protocol.as_deref().map(|name| name.replace('_', "-")) {
        None => Protocol::SendReceive,
        Some(name) => match Protocol::by_name(&name) {
            Some(protocol) => protocol,
            None => return Ok(Err(format!("the model has no protocol {name:?}"))),
        },
    };
    let Some(path_mtu) = PathMtu::from_bytes(result.mtu as usize) else {
        return Err(malformed("mtu", format!("it is {}, allowed is 256, 512, 1024, 2048 or 4096", result.mtu)));
    };
    let is_latency = asked.kind == "latency";
    let workload = Workload {
        protocol,
        bytes: result.bytes,
        window: result.fitted.window,
        batch: result.fitted.batch,
        depth: result.fitted.depth,
        inline_bytes: asked.inline,
        credits: asked.credits,
        srq: asked.srq,
        bidirectional: asked.bidirectional,
        path_mtu: Some(path_mtu),
        // All connections of a record are served by one thread on each side.
        peers: Peers::connections(asked.connections),
        ..Workload::sequential(result.bytes)
    };
    if let Err(error) = workload.check() {
        return Err(malformed("fitted", error.to_string()));
    }
    let repeated = result.counted.as_ref().map_or(0.0, |BothEnds { client, server }| {
        let sum = |of: fn(&Counted) -> u64| of(client) as f64 + of(server) as f64;
        sum(|counted| counted.retransmitted_packets) / sum(|counted| counted.data_packets).max(1.0)
    });
    let reason = match asked.kind.as_str() {
        "latency" | "bandwidth" if repeated > MOST_REPEATED => {
            Some(format!("{:.1} % of the packets were sent again, and the model knows no loss", 100.0 * repeated))
        }
        "latency" if asked.connections > 1 => Some("ping-pongs of several connections share a CPU".to_owned()),
        "latency" | "bandwidth" if asked.events => Some("it slept, and waking up has no parameter".to_owned()),
        "latency" | "bandwidth" if asked.verify => Some("payloads were made and checked meanwhile".to_owned()),
        "bandwidth" if asked.rate.is_some() => Some("its rate was given".to_owned()),
        "bandwidth" if asked.slow_receiver_us > 0 => Some("its receiver was slowed down".to_owned()),
        "latency" | "bandwidth" => None,
        other => Some(format!("the model knows nothing of a measurement of {other:?}")),
    };
    if let Some(reason) = reason {
        return Ok(Err(reason));
    }
    let positive = |field, value: f64| {
        let is_positive = value > 0.0 && value.is_finite();
        is_positive.then_some(value).ok_or_else(|| malformed(field, format!("it is {value}, allowed is more than 0")))
    };
    let latency_ns = match (&result.latency_ns, is_latency) {
        (Some(latency), true) => Some(positive("latency_ns.p50", latency.p50)?),
        (None, true) => return Err(malformed("latency_ns", "it is missing".to_owned())),
        (_, false) => None,
    };
    let messages_per_s = if is_latency { None } else { Some(positive("messages_per_s", result.messages_per_s)?) };
    let name = format!("{file}: {} B, window {}, batch {}", result.bytes, workload.window, workload.batch);
    Ok(Ok(Observation { name, workload, latency_ns, messages_per_s, weight: 1.0 }))
}
