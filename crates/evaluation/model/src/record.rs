//! Observations from the records that `doorbell bench --json` and `doorbell study` write.
//!
//! This module reads only the fields that the model needs. It ignores all other fields, also those of later releases.

use doorbell_protocols::Protocol;
use doorbell_wire::PathMtu;
use serde::Deserialize;

use crate::observation::{Load, Observation};
use crate::operation::{Posted, PostedOperation};
use crate::parameters::RnicKind;
use crate::workload::{Peers, Workload};

/// Schemas of readable records.
pub const SCHEMAS: [&str; 2] = ["doorbell-bench/1", STUDY];

/// Schema of a point of a study. The record of a point has the format and the number of its schema in two fields.
const STUDY: &str = "doorbell-study-point/1";

/// Maximum number of completions that an end polls at a time.
const MOST_POLLED: u32 = 32;

/// Maximum share of retransmitted packets. A result with a larger share is left out, since it measures loss instead of
/// costs.
const MOST_REPEATED: f64 = 0.005;

/// Contents of a record that the model uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The kind of RNIC.
    pub rnic: RnicKind,
    /// Name of the simulated testbed; `None` if the record was measured on real hosts.
    pub testbed: Option<String>,
    /// Observations that the model can predict.
    pub observations: Vec<Observation>,
    /// Reasons why results were left out, one sentence for each result.
    pub left_out: Vec<String>,
}

/// Error of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The schema of the record is none of [`SCHEMAS`], for example because a newer release wrote the record.
    #[error("{file}: schema is {given}, this release reads {}", SCHEMAS.join(", "))]
    Schema {
        /// Name of the file.
        file: String,
        /// The schema in the file.
        given: String,
    },
    /// The record is not JSON, or a field is missing or of the wrong type.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// Name of the field.
        field: String,
        /// Description of the defect.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    format: Option<String>,
    schema: serde_json::Value,
}

impl Schema {
    /// Returns the schema in the form of [`SCHEMAS`].
    fn name(&self) -> String {
        match (&self.format, &self.schema) {
            (Some(format), schema) => format!("{format}/{schema}"),
            (None, serde_json::Value::String(schema)) => schema.clone(),
            (None, schema) => schema.to_string(),
        }
    }
}

#[derive(Deserialize)]
struct Record {
    environment: Environment,
    parameters: Asked,
    #[serde(alias = "repetitions")]
    results: Vec<PointResult>,
}

#[derive(Deserialize)]
struct Environment {
    provider: String,
    #[serde(default)]
    cpus: Option<u64>,
    #[serde(default)]
    testbed: Option<Simulated>,
}

#[derive(Deserialize)]
struct Simulated {
    name: String,
}

/// Threads that serve the connections; by default one thread on each side.
#[derive(Deserialize)]
#[serde(default)]
struct Serving {
    threads: u32,
    single_receiver: bool,
    shared_receives: Option<String>,
    poll_list: Option<u32>,
    repost_list: Option<u32>,
}

impl Default for Serving {
    fn default() -> Self {
        Self { threads: 1, single_receiver: false, shared_receives: None, poll_list: None, repost_list: None }
    }
}

#[derive(Deserialize)]
struct Asked {
    kind: String,
    #[serde(default)]
    operation: Option<String>,
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
    #[serde(default)]
    transport: Option<String>,
    #[serde(default)]
    replicate: bool,
    #[serde(default, alias = "use_srq")]
    srq: bool,
    #[serde(default)]
    serving: Serving,
    #[serde(default)]
    addresses: Option<u32>,
    /// Link that carried the packets, present only in studies that compare links.
    #[serde(default)]
    link: Option<serde::de::IgnoredAny>,
    /// Operations of several clients on shared memory. The model only checks whether the field is present.
    #[serde(default)]
    far: Option<serde::de::IgnoredAny>,
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

/// Reads the text of a record. `file` is the name of the record in errors and observations.
///
/// # Errors
///
/// The text is not JSON, its schema is none of [`SCHEMAS`], or a field is missing or out of range. A result that the
/// model cannot predict is no error: [`Observed::left_out`] states the reason.
pub fn observations(file: &str, text: &str) -> Result<Observed, RecordError> {
    let given = read::<Schema>(file, text)?.name();
    if !SCHEMAS.contains(&given.as_str()) {
        return Err(RecordError::Schema { file: file.to_owned(), given });
    }
    let results = if given == STUDY { "repetitions" } else { "results" };
    let record: Record = read(file, text)?;
    let mut observed = Observed {
        rnic: if record.environment.provider == "soft" { RnicKind::Software } else { RnicKind::Hardware },
        testbed: record.environment.testbed.as_ref().map(|testbed| testbed.name.clone()),
        observations: Vec::new(),
        left_out: Vec::new(),
    };
    for (index, result) in record.results.iter().enumerate() {
        match observation(file, &format!("{results}[{index}]"), &record, result)? {
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

/// Returns the observation of a result, or the reason why the result has no observation.
fn observation(
    file: &str,
    place: &str,
    record: &Record,
    result: &PointResult,
) -> Result<Result<Observation, String>, RecordError> {
    let asked = &record.parameters;
    // The model has no prediction for such a result, so the other fields of the result are not checked.
    if let Some(reason) = unfit(record, result) {
        return Ok(Err(reason));
    }
    if let Some(operation) = one_sided(asked) {
        return Ok(Ok(measured(file, place, record, result, |path_mtu| {
            let Fitted { window, batch, .. } = result.fitted;
            Load::Operations(Posted {
                batch,
                signals_last: true,
                poll_list: window.div_ceil(batch.max(1)).clamp(1, MOST_POLLED),
                connections: asked.connections,
                // Without a number of addresses in the record, each queue pair changes a word of its own.
                addresses: asked.addresses.unwrap_or(asked.connections),
                inline_bytes: asked.inline,
                path_mtu: Some(path_mtu),
                ..Posted::new(operation, result.bytes, window)
            })
        })?));
    }
    let protocol = match asked.protocol.as_deref().map(|name| name.replace('_', "-")) {
        None => Protocol::SendReceive,
        Some(name) => match Protocol::by_name(&name) {
            Some(protocol) => protocol,
            None => return Ok(Err(format!("the model has no protocol {name:?}"))),
        },
    };
    let serving = &asked.serving;
    let list = |given: Option<u32>| given.unwrap_or(u32::MAX).min(MOST_POLLED);
    let workload = |path_mtu| Workload {
        protocol,
        bytes: result.bytes,
        receive_batch: list(serving.poll_list),
        repost_batch: list(serving.repost_list),
        window: result.fitted.window,
        batch: result.fitted.batch,
        depth: result.fitted.depth,
        inline_bytes: asked.inline,
        credits: asked.credits,
        srq: asked.srq || serving.shared_receives.is_some(),
        repost_thread: serving.shared_receives.as_deref() == Some("thread"),
        bidirectional: asked.bidirectional,
        path_mtu: Some(path_mtu),
        peers: Peers {
            senders: serving.threads,
            receivers: if serving.single_receiver { 1 } else { serving.threads },
            connections: asked.connections,
        },
        ..Workload::sequential(result.bytes)
    };
    measured(file, place, record, result, |path_mtu| Load::Messages(workload(path_mtu))).map(Ok)
}

/// Returns the measured one-sided operation, if the record has one.
fn one_sided(asked: &Asked) -> Option<PostedOperation> {
    let operation = PostedOperation::by_name(&asked.operation.as_deref()?.replace('_', "-"))?;
    let is_one_sided =
        operation == PostedOperation::Write || operation == PostedOperation::Read || operation.is_atomic();
    is_one_sided.then_some(operation)
}

/// Returns the observation of a result: the measured figures with the load.
fn measured(
    file: &str,
    place: &str,
    record: &Record,
    result: &PointResult,
    load: impl Fn(PathMtu) -> Load,
) -> Result<Observation, RecordError> {
    let malformed = |field: &str, problem: String| RecordError::Malformed {
        file: file.to_owned(),
        field: format!("{place}.{field}"),
        problem,
    };
    let Some(path_mtu) = PathMtu::from_bytes(result.mtu as usize) else {
        return Err(malformed("mtu", format!("it is {}, allowed is 256, 512, 1024, 2048 or 4096", result.mtu)));
    };
    let load = load(path_mtu);
    load.check().map_err(|error| malformed("fitted", error.to_string()))?;
    let is_latency = record.parameters.kind == "latency";
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
    let Fitted { window, batch, .. } = result.fitted;
    let name = format!("{file}: {} B, window {window}, batch {batch}", result.bytes);
    Ok(Observation { name, load, latency_ns, messages_per_s, weight: 1.0 })
}

/// Returns the reason why the model cannot predict a result, if there is one.
fn unfit(record: &Record, result: &PointResult) -> Option<String> {
    let Record { environment, parameters: asked, .. } = record;
    if asked.far.is_some() {
        return Some("several clients shared memory, and the model has two ends".to_owned());
    }
    let is_latency = match asked.kind.as_str() {
        "latency" => true,
        "bandwidth" => false,
        other => return Some(format!("the model knows nothing of a measurement of {other:?}")),
    };
    if let Some(operation) = asked.operation.as_deref().filter(|name| *name != "send" && one_sided(asked).is_none()) {
        return Some(format!("{operation:?} is neither a message of one direction nor a one-sided operation"));
    }
    let repeated = result.counted.as_ref().map_or(0.0, |BothEnds { client, server }| {
        let sum = |of: fn(&Counted) -> u64| of(client) as f64 + of(server) as f64;
        sum(|counted| counted.retransmitted_packets) / sum(|counted| counted.data_packets).max(1.0)
    });
    if repeated > MOST_REPEATED {
        return Some(format!("{:.1} % of the packets were sent again, and the model knows no loss", 100.0 * repeated));
    }
    // The model assumes that each thread has its own processor.
    let threads = 2 * u64::from(asked.serving.threads);
    if threads > 2 && environment.cpus.is_some_and(|cpus| threads > cpus) {
        return Some(format!("{threads} threads share {} processors", environment.cpus.unwrap_or_default()));
    }
    let shares = asked.srq || asked.serving.shared_receives.is_some();
    let in_runs = shares && asked.connections > asked.serving.threads && environment.provider != "soft";
    let reasons = [
        (in_runs, "one thread served several connections, so their messages came to the shared receive queue in runs"),
        (is_latency && asked.connections > 1, "ping-pongs of several connections share a CPU"),
        (asked.events, "it slept, and waking up has no parameter"),
        (asked.verify, "payloads were made and checked meanwhile"),
        (asked.rate.is_some(), "its rate was given"),
        (
            asked.transport.as_deref().is_some_and(|it| it != "rc"),
            "nothing was acknowledged, and the model has RC alone",
        ),
        (asked.replicate, "each message went to all connections"),
        (asked.slow_receiver_us > 0, "its receiver was slowed down"),
        (asked.link.is_some(), "its link was chosen for it, and the points beside it had another one"),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = r#"{
        "schema": "doorbell-bench/1", "of a later release": [1],
        "environment": {"provider": "soft", "cpus": 2},
        "parameters": {"kind": "bandwidth", "operation": "send", "connections": 2, "inline": 64, "credits": false,
            "bidirectional": false, "events": false, "rate": null, "slow_receiver_us": 0, "verify": false},
        "results": [
            {"bytes": 16, "messages_per_s": 2e6, "latency_ns": null, "mtu": 4096,
             "fitted": {"window": 64, "batch": 8, "depth": 128, "send_buffers": 64, "notes": []},
             "counted": {"client": {"data_packets": 1000, "retransmitted_packets": 0},
                         "server": {"data_packets": 0, "retransmitted_packets": 0}}}
        ]
    }"#;

    fn changed(from: &str, to: &str) -> Result<Observed, RecordError> {
        assert!(RECORD.contains(from), "{from}");
        observations("a.json", &RECORD.replacen(from, to, 1))
    }

    #[test]
    fn a_record_becomes_observations() {
        let observed = observations("a.json", RECORD).unwrap();
        assert_eq!((observed.rnic, observed.testbed, observed.left_out), (RnicKind::Software, None, vec![]));
        let [observation] = &observed.observations[..] else { panic!("expected one observation for the result") };
        assert_eq!(observation.name, "a.json: 16 B, window 64, batch 8");
        assert_eq!((observation.messages_per_s, observation.latency_ns), (Some(2e6), None));
        let Load::Messages(workload) = observation.load else { panic!("messages") };
        assert_eq!((workload.bytes, workload.window, workload.batch, workload.depth), (16, 64, 8, 128));
        assert_eq!((workload.credits, workload.path_mtu), (false, Some(PathMtu::Mtu4096)));
        assert_eq!(workload.peers, Peers::connections(2));
        assert_eq!(changed("\"soft\"", "\"system\"").unwrap().rnic, RnicKind::Hardware);
        let simulated = changed("\"soft\"", "\"sim\", \"testbed\": {\"name\": \"t\", \"values\": \"0\"}").unwrap();
        assert_eq!((simulated.rnic, simulated.testbed.as_deref()), (RnicKind::Hardware, Some("t")));
        let slow = changed("\"bandwidth\"", "\"latency\"").unwrap();
        assert_eq!(slow.left_out, ["a.json: 16 B left out: ping-pongs of several connections share a CPU"]);
        let latency =
            RECORD.replace("\"bandwidth\"", "\"latency\"").replace("\"connections\": 2", "\"connections\": 1");
        let latency = latency.replace("\"latency_ns\": null", "\"latency_ns\": {\"p50\": 3100, \"p99\": 1}");
        let observed = observations("a.json", &latency).unwrap();
        assert_eq!(
            (observed.observations[0].latency_ns, observed.observations[0].messages_per_s),
            (Some(3100.0), None)
        );
    }

    #[test]
    fn a_point_of_a_study_is_a_record_too() {
        let study = RECORD
            .replace("\"schema\": \"doorbell-bench/1\"", "\"format\": \"doorbell-study-point\", \"schema\": 1")
            .replace("\"results\"", "\"repetitions\"")
            .replace(
                "\"verify\": false",
                "\"verify\": false, \"serving\": {\"threads\": 1, \"single_receiver\": true, \"poll_list\": 4,
                 \"repost_list\": 16, \"shared_receives\": \"lock\"}",
            );
        let observed = observations("a.json", &study).unwrap();
        let of = |observed: &Observed| match observed.observations[0].load {
            Load::Messages(workload) => workload,
            Load::Operations(posted) => panic!("{posted:?} are operations, not messages"),
        };
        let workload = of(&observed);
        assert_eq!((workload.receive_batch, workload.repost_batch), (4, 16));
        assert_eq!((workload.srq, workload.repost_thread, workload.peers), (true, false, Peers::connections(2)));
        let thread = observations("a.json", &study.replace("\"lock\"", "\"thread\"")).unwrap();
        assert!(of(&thread).repost_thread);
        let crowded = study.replace("\"threads\": 1", "\"threads\": 4");
        let observed = observations("a.json", &crowded).unwrap();
        assert!(observed.left_out[0].ends_with("8 threads share 2 processors"), "{:?}", observed.left_out);
        let newer = observations("a.json", &study.replace("\"schema\": 1", "\"schema\": 2")).unwrap_err();
        assert!(newer.to_string().starts_with("a.json: schema is doorbell-study-point/2"), "{newer}");
        let wrong = observations("a.json", &study.replace("2e6", "0")).unwrap_err();
        assert!(wrong.to_string().starts_with("a.json: repetitions[0].messages_per_s: "), "{wrong}");
    }

    #[test]
    fn a_record_of_one_sided_operations_becomes_observations_of_them() {
        for operation in
            [PostedOperation::Write, PostedOperation::Read, PostedOperation::CompareSwap, PostedOperation::FetchAdd]
        {
            let name = operation.name().replace('-', "_");
            let observed = changed("\"send\"", &format!("{name:?}")).unwrap();
            assert_eq!(observed.left_out, [""; 0]);
            let expected = Posted {
                batch: 8,
                signals_last: true,
                poll_list: 8,
                connections: 2,
                addresses: 2,
                path_mtu: Some(PathMtu::Mtu4096),
                ..Posted::new(operation, 16, 64)
            };
            assert_eq!(observed.observations[0].load, Load::Operations(expected));
            assert_eq!(observed.observations[0].messages_per_s, Some(2e6));
        }
        let wrong = RECORD.replace("\"send\"", "\"read\"").replace("\"batch\": 8", "\"batch\": 0");
        let error = observations("a.json", &wrong).unwrap_err().to_string();
        assert!(error.starts_with("a.json: results[0].fitted: "), "{error}");
    }

    #[test]
    fn unmodelled_results_are_left_out_with_the_reason() {
        for (from, to, reason) in [
            (
                "\"inline\"",
                "\"far\": {\"order\": {}}, \"inline\"",
                "several clients shared memory, and the model has two ends",
            ),
            ("\"send\"", "\"jump\"", "\"jump\" is neither a message of one direction nor a one-sided operation"),
            ("\"send\"", "\"request_response\"", "is neither a message"),
            ("\"bandwidth\"", "\"jitter\"", "nothing of a measurement of \"jitter\""),
            ("\"events\": false", "\"events\": true", "it slept"),
            ("\"verify\": false", "\"verify\": true", "checked meanwhile"),
            ("\"rate\": null", "\"rate\": 5.0", "its rate was given"),
            ("\"rate\": null", "\"link\": \"udp\"", "its link was chosen for it"),
            ("\"rate\": null", "\"rate\": null, \"replicate\": true", "went to all connections"),
            ("\"rate\": null", "\"rate\": null, \"transport\": \"uc\"", "nothing was acknowledged"),
            ("\"slow_receiver_us\": 0", "\"slow_receiver_us\": 7", "slowed down"),
            ("\"retransmitted_packets\": 0", "\"retransmitted_packets\": 20", "2.0 % of the packets were sent again"),
            ("\"inline\": 64", "\"inline\": 64, \"protocol\": \"telepathy\"", "no protocol \"telepathy\""),
        ] {
            let observed = changed(from, to).unwrap();
            assert_eq!(observed.observations, [], "{to}");
            assert!(observed.left_out[0].contains(reason), "{:?}", observed.left_out);
        }
        // A message holds the shared receive queue of a NIC if the previous message came from another queue pair.
        let shared =
            RECORD.replace("\"soft\"", "\"system\"").replace("\"verify\": false", "\"verify\": false, \"srq\": true");
        let of = |threads: &str| {
            let serving = format!("\"srq\": true, \"serving\": {{\"threads\": {threads}}}");
            let record = shared.replace("\"srq\": true", &serving).replace("\"cpus\": 2", "\"cpus\": 8");
            observations("a.json", &record).unwrap()
        };
        assert!(of("1").left_out[0].contains("in runs"), "{:?}", of("1").left_out);
        assert_eq!(of("2").left_out, [""; 0]);
        let other = changed("\"inline\": 64", "\"inline\": 64, \"protocol\": \"direct_read\"").unwrap();
        let Load::Messages(workload) = other.observations[0].load else { panic!("messages") };
        assert_eq!(workload.protocol.name(), "direct-read");
    }

    #[test]
    fn damaged_and_newer_records_are_refused_by_file_and_field() {
        for (from, to, words) in [
            ("bench/1", "bench/2", "a.json: schema is doorbell-bench/2, this release reads doorbell-bench/1, "),
            ("\"schema\": ", "\"scheme\": ", "a.json: the record: missing field `schema`"),
            ("\"connections\": 2", "\"connections\": -2", "a.json: parameters.connections: "),
            ("\"connections\": 2", "\"connections\": 0", "a.json: results[0].fitted: "),
            ("\"window\": 64", "\"window\": 0", "results[0].fitted: the window is 0, allowed is 1 to"),
            ("\"window\": 64", "\"window\": \"wide\"", "a.json: results[0].fitted.window: "),
            ("\"mtu\": 4096", "\"mtu\": 1500", "results[0].mtu: it is 1500, allowed is 256, 512"),
            ("2e6", "0", "results[0].messages_per_s: it is 0, allowed is more than 0"),
            ("2e6", "-1e400", "a.json: results[0].messages_per_s: "),
            ("\"results\": [", "\"results\": [{", "a.json: results"),
        ] {
            let error = changed(from, to).expect_err(to).to_string();
            assert!(error.contains(words), "{words:?} is missing in: {error}");
        }
        for text in ["", "[]", "{", "null", "\u{0}", &RECORD[..RECORD.len() - 40], &format!("{RECORD} more")] {
            assert!(
                observations("a.json", text).is_err_and(|error| error.to_string().starts_with("a.json: ")),
                "{text}"
            );
        }
    }

    proptest! {
        /// A damaged record gives observations or an error, without a panic.
        #[test]
        fn damage_is_survived(at in 0..RECORD.len(), lost in 0..40_usize, instead in "[-0-9a-z\"{}\\[\\],:. ]{0,12}") {
            let end = (at + lost).min(RECORD.len());
            let damaged = format!("{}{instead}{}", &RECORD[..at], &RECORD[end..]);
            match observations("a.json", &damaged) {
                Ok(observed) => prop_assert!(observed.observations.iter().all(|one| one.load.check().is_ok())),
                Err(error) => prop_assert!(error.to_string().starts_with("a.json: ")),
            }
        }
    }
}
