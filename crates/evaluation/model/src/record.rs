//! Observations from the records that `doorbell bench --json` and `doorbell study` write.
//!
//! Fields of later releases are ignored. Results with a word of a later release are left out.

mod requests;

use doorbell_record::settings::replace_unknown_word;
use doorbell_record::{
    Cast, Counted, Environment, Kind, Operation, Parameters, PointRecord, PointResult, RunRecord, SETTINGS, Setting,
    SharedBy,
};
use doorbell_wire::PathMtu;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::observation::{Load, Observation};
use crate::operation::{Posted, PostedOperation};
use crate::parameters::RnicKind;
use crate::workload::{Peers, Workload};

pub use requests::requests_of;

/// Schemas of readable records.
pub const SCHEMAS: [&str; 2] = ["doorbell-bench/1", STUDY];

/// Schema of a point of a study. The record of a point has the format and the number of its schema in two fields.
const STUDY: &str = "doorbell-study-point/1";

/// Maximum number of completions that an end polls at a time.
const MOST_POLLED: u32 = 32;

/// Maximum share of retransmitted packets. A result with a larger share is left out, since it measures loss instead of
/// costs.
const MOST_REPEATED: f64 = 0.005;

const SHARED_MEMORY: &str = "several clients shared memory, and the model has two ends";

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

/// Record of a run or of a point, without the fields that differ.
struct Record<'a> {
    environment: &'a Environment,
    parameters: &'a Parameters,
    results: &'a [PointResult],
    /// Name of the list of results.
    list: &'static str,
    /// Reason why the model predicts none of the results.
    unknown: Option<String>,
}

impl<'a> Record<'a> {
    fn of_run(run: &'a RunRecord, unknown: Option<String>) -> Self {
        let RunRecord { environment, parameters, results, .. } = run;
        Self { environment, parameters, results, list: "results", unknown }
    }

    fn of_point(point: &'a PointRecord, unknown: Option<String>) -> Self {
        let PointRecord { environment, parameters, repetitions, .. } = point;
        Self { environment, parameters, results: repetitions, list: "repetitions", unknown }
    }
}

/// Reads the text of a record. `file` is the name of the record in errors and observations.
///
/// # Errors
///
/// The text is not JSON, its schema is none of [`SCHEMAS`], or a field is missing or out of range. A result that the
/// model cannot predict is no error: [`Observed::left_out`] states the reason.
pub fn observations(file: &str, text: &str) -> Result<Observed, RecordError> {
    let record: Json = read(file, text)?;
    let given = typed::<Schema>(file, &record)?.name();
    if !SCHEMAS.contains(&given.as_str()) {
        return Err(RecordError::Schema { file: file.to_owned(), given });
    }
    if given == STUDY {
        let (point, unknown) = known(file, record, "repetitions")?;
        observed(file, &Record::of_point(&point, unknown))
    } else {
        let (run, unknown) = known(file, record, "results")?;
        observed(file, &Record::of_run(&run, unknown))
    }
}

/// Returns the observations from a record of a study. `file` is the name of the record in errors and observations.
///
/// # Errors
///
/// A field is out of range, as in [`observations`].
pub fn observations_of(file: &str, record: &PointRecord) -> Result<Observed, RecordError> {
    observed(file, &Record::of_point(record, None))
}

fn observed(file: &str, record: &Record<'_>) -> Result<Observed, RecordError> {
    let mut observed = Observed {
        rnic: if record.environment.provider == "soft" { RnicKind::Software } else { RnicKind::Hardware },
        testbed: record.environment.testbed.as_ref().map(|testbed| testbed.name.clone()),
        observations: Vec::new(),
        left_out: Vec::new(),
    };
    for (index, result) in record.results.iter().enumerate() {
        match observation(file, &format!("{}[{index}]", record.list), record, result)? {
            Ok(observation) => observed.observations.push(observation),
            Err(reason) => observed.left_out.push(format!("{file}: {} B left out: {reason}", result.bytes)),
        }
    }
    Ok(observed)
}

/// Optional fields of a result that the model does not read. A later release may write words into them that this
/// release does not know.
const UNREAD: [&str; 5] = ["timed", "carried_by", "explained", "far", "hosts"];

/// Converts JSON to a record, without values that this release does not know. Returns the record, and the reason why
/// the model predicts no result with such a value. `list` is the name of the list of results.
fn known<T: DeserializeOwned>(file: &str, mut record: Json, list: &str) -> Result<(T, Option<String>), RecordError> {
    let results = record.get_mut(list).and_then(Json::as_array_mut);
    for result in results.into_iter().flatten().filter_map(Json::as_object_mut) {
        result.retain(|field, _| !UNREAD.contains(&field.as_str()));
    }
    let far = record.get_mut("parameters").and_then(|parameters| parameters.as_object_mut()?.remove("far"));
    let mut reason = far.filter(|far| !far.is_null()).map(|_| SHARED_MEMORY.to_owned());
    if let Ok(known) = typed(file, &record) {
        return Ok((known, reason));
    }
    while let Some((setting, word)) = record.get_mut("parameters").and_then(replace_unknown_word) {
        reason.get_or_insert_with(|| match setting.field {
            "kind" => format!("the model knows nothing of a measurement of {word:?}"),
            "operation" => not_predicted(&word),
            field => setting.unmodelled.map_or_else(|| format!("the model has no {field} {word:?}"), str::to_owned),
        });
    }
    Ok((typed(file, &record)?, reason))
}

fn not_predicted(operation: &str) -> String {
    format!("{operation:?} is neither a message of one direction nor a one-sided operation")
}

/// Converts JSON to a record or to a part of it.
fn typed<T: DeserializeOwned>(file: &str, json: &Json) -> Result<T, RecordError> {
    serde_path_to_error::deserialize(json).map_err(|error| malformed(file, error))
}

fn malformed(file: &str, error: serde_path_to_error::Error<serde_json::Error>) -> RecordError {
    let path = error.path().to_string();
    let field = if path == "." { "the record".to_owned() } else { path };
    RecordError::Malformed { file: file.to_owned(), field, problem: error.into_inner().to_string() }
}

fn read<'a, T: Deserialize<'a>>(file: &str, text: &'a str) -> Result<T, RecordError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| malformed(file, error))?;
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
    record: &Record<'_>,
    result: &PointResult,
) -> Result<Result<Observation, String>, RecordError> {
    let asked = record.parameters;
    // The model has no prediction for such a result, so the other fields of the result are not checked.
    if let Some(reason) = unfit(record, result) {
        return Ok(Err(reason));
    }
    if let Some(operation) = one_sided(asked.operation) {
        let connections = count(asked.connections);
        let [window, batch] = [result.fitted.window, result.fitted.batch].map(count);
        return Ok(Ok(measured(file, place, record, result, |path_mtu| {
            Load::Operations(Posted {
                batch,
                signals_last: true,
                poll_list: window.div_ceil(batch.max(1)).clamp(1, MOST_POLLED),
                connections,
                // Without a number of addresses in the record, each queue pair changes a word of its own.
                addresses: asked.addresses.map_or(connections, count),
                inline_bytes: asked.inline as u64,
                path_mtu: Some(path_mtu),
                ..Posted::new(operation, result.bytes as u64, window)
            })
        })?));
    }
    measured(file, place, record, result, |path_mtu| Load::Messages(workload(asked, result, path_mtu))).map(Ok)
}

/// Returns the messages of the asking end.
fn workload(asked: &Parameters, result: &PointResult, path_mtu: PathMtu) -> Workload {
    let (serving, fitted) = (&asked.serving, &result.fitted);
    let Cast { asking, answering } = asked.cast();
    Workload {
        protocol: asked.protocol,
        receive_batch: count(serving.poll_list).min(MOST_POLLED),
        repost_batch: count(serving.repost_list).min(MOST_POLLED),
        window: count(fitted.window),
        batch: count(fitted.batch),
        depth: count(fitted.depth),
        inline_bytes: asked.inline as u64,
        credits: asked.credits,
        srq: serving.shared_receives.is_some(),
        repost_thread: serving.shared_receives == Some(SharedBy::Thread),
        bidirectional: asked.bidirectional,
        path_mtu: Some(path_mtu),
        peers: Peers {
            senders: count(asking.threads),
            receivers: count(answering.threads),
            connections: count(asked.connections),
        },
        ..Workload::sequential(result.bytes as u64)
    }
}

/// Converts a number of a record. A number that is too large for the model is too large for its checks too.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the one-sided operation of the model.
fn one_sided(operation: Operation) -> Option<PostedOperation> {
    match operation {
        Operation::Write => Some(PostedOperation::Write),
        Operation::Read => Some(PostedOperation::Read),
        Operation::CompareSwap => Some(PostedOperation::CompareSwap),
        Operation::FetchAdd => Some(PostedOperation::FetchAdd),
        Operation::Send | Operation::RequestResponse => None,
    }
}

/// Returns the observation of a result: the measured figures with the load.
fn measured(
    file: &str,
    place: &str,
    record: &Record<'_>,
    result: &PointResult,
    load: impl Fn(PathMtu) -> Load,
) -> Result<Observation, RecordError> {
    let malformed = |field: &str, problem: String| RecordError::Malformed {
        file: file.to_owned(),
        field: format!("{place}.{field}"),
        problem,
    };
    let Some(path_mtu) = PathMtu::from_bytes(result.mtu) else {
        return Err(malformed("mtu", format!("it is {}, allowed is 256, 512, 1024, 2048 or 4096", result.mtu)));
    };
    let load = load(path_mtu);
    load.check().map_err(|error| malformed("fitted", error.to_string()))?;
    let is_latency = record.parameters.kind == Kind::Latency;
    let positive = |field, value: f64| {
        let is_positive = value > 0.0 && value.is_finite();
        is_positive.then_some(value).ok_or_else(|| malformed(field, format!("it is {value}, allowed is more than 0")))
    };
    let latency_ns = match (&result.latency_ns, is_latency) {
        (Some(latency), true) => Some(positive("latency_ns.p50", latency.p50 as f64)?),
        (None, true) => return Err(malformed("latency_ns", "it is missing".to_owned())),
        (_, false) => None,
    };
    let messages_per_s = if is_latency { None } else { Some(positive("messages_per_s", result.messages_per_s)?) };
    let (window, batch) = (result.fitted.window, result.fitted.batch);
    let name = format!("{file}: {} B, window {window}, batch {batch}", result.bytes);
    Ok(Observation { name, load, latency_ns, messages_per_s, weight: 1.0 })
}

/// Returns the reason why the model cannot predict a result, if there is one.
fn unfit(record: &Record<'_>, result: &PointResult) -> Option<String> {
    let Record { parameters: asked, unknown, environment, .. } = record;
    if asked.far.is_some() {
        return Some(SHARED_MEMORY.to_owned());
    }
    if let Some(reason) = unknown {
        return Some(reason.clone());
    }
    if let Some(plan) = environment.injected_faults() {
        return Some(format!("faults were injected, and the model knows none: {plan}"));
    }
    if asked.operation == Operation::RequestResponse {
        return Some(not_predicted("request_response"));
    }
    uncovered(record, result, &[])
}

/// Returns the condition of a result that the model lacks, if there is one. The settings of `covered` may have any
/// value.
fn uncovered(record: &Record<'_>, result: &PointResult, covered: &[&Setting]) -> Option<String> {
    let Record { environment, parameters: asked, .. } = record;
    if asked.mix.is_some() {
        return Some("its messages had a mix of sizes".to_owned());
    }
    let sum = |of: fn(&Counted) -> u64| of(&result.counted.client) as f64 + of(&result.counted.server) as f64;
    let repeated = sum(|counted| counted.retransmitted_packets) / sum(|counted| counted.data_packets).max(1.0);
    if repeated > MOST_REPEATED {
        return Some(format!("{:.1} % of the packets were sent again, and the model knows no loss", 100.0 * repeated));
    }
    // The model assumes that each thread has its own processor.
    let threads = asked.serving.threads.saturating_mul(2);
    if threads > 2 && threads > environment.cpus {
        return Some(format!("{threads} threads share {} processors", environment.cpus));
    }
    let shares = asked.serving.shared_receives.is_some();
    if shares && asked.connections > asked.serving.threads && environment.provider != "soft" {
        let reason =
            "one thread served several connections, so their messages came to the shared receive queue in runs";
        return Some(reason.to_owned());
    }
    if asked.kind == Kind::Latency && asked.connections > 1 {
        return Some("ping-pongs of several connections share a CPU".to_owned());
    }
    let mut differing = SETTINGS.iter().filter(|setting| !covered.contains(*setting) && setting.differs(asked));
    differing.find_map(|setting| setting.unmodelled).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = r#"{
        "schema": "doorbell-bench/1", "of a later release": [1], "experiment": "family/subject", "series": "", "x": 16,
        "environment": {"doorbell": "0", "kernel": "", "cpu": "", "unix_time_s": 0, "device": "", "provider": "soft",
            "cpus": 2, "udp_port": 4791, "active_mtu": 4096, "receive_buffer_bytes": 0},
        "parameters": {"kind": "bandwidth", "operation": "send", "connections": 2, "inline": 64, "credits": false,
            "bidirectional": false, "events": false, "rate": null, "slow_receiver_us": 0, "verify": false,
            "sizes": [16], "extent": {"seconds":1}, "window":64, "depth":128, "depths_are_defaults": false, "batch":8,
            "timeout": 14, "retry_count": 7, "rnr_retry": 7, "memory_bytes": 268435456},
        "results": [
            {"bytes": 16, "messages_per_s": 2e6, "latency_ns": null, "mtu": 4096, "messages": 1000, "seconds": 1,
             "bytes_per_s": 1, "damaged": 0, "stalled_on_credits": 0,
             "fitted": {"window": 64, "batch": 8, "depth": 128, "send_buffers": 64, "notes": []},
             "counted": {"client": {"data_packets": 1000, "data_bytes": 0, "control_packets": 0, "ack_packets": 0,
                                    "retransmitted_packets": 0, "rnr_naks": 0},
                         "server": {"data_packets": 0, "data_bytes": 0, "control_packets": 0, "ack_packets": 0,
                                    "retransmitted_packets": 0, "rnr_naks": 0}},
             "counters": {"client": {}, "server": {}},
             "predicted": {"client": {"data_packets": 0, "data_bytes": 0, "ack_packets_min": 0, "ack_packets_max": 0},
                           "server": {"data_packets": 0, "data_bytes": 0, "ack_packets_min": 0, "ack_packets_max": 0}}}
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
        let faulty = changed("\"cpus\": 2,", "\"cpus\": 2, \"fault_plan\": \"seed=0;drop nth=1\",").unwrap();
        let because = "a.json: 16 B left out: faults were injected, and the model knows none: seed=0;drop nth=1";
        assert_eq!((faulty.observations, faulty.left_out), (vec![], vec![because.to_owned()]));
        let slow = changed("\"bandwidth\"", "\"latency\"").unwrap();
        assert_eq!(slow.left_out, ["a.json: 16 B left out: ping-pongs of several connections share a CPU"]);
        let latency =
            RECORD.replace("\"bandwidth\"", "\"latency\"").replace("\"connections\": 2", "\"connections\": 1");
        let latency = latency.replace(
            "\"latency_ns\": null",
            r#""latency_ns": {"min": 1, "p50": 3100, "mean": 1, "p99": 1, "p999": 1, "max": 1}"#,
        );
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
            ("\"rate\": null", "\"rate\": null, \"buffers\": 1", "its messages shared buffers"),
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
        let of = |threads: &str| {
            let serving = format!("\"serving\": {{\"threads\": {threads}, \"shared_receives\": \"lock\"}}, \"verify\"");
            let record = RECORD.replace("\"soft\"", "\"system\"").replace("\"verify\"", &serving);
            observations("a.json", &record.replace("\"cpus\": 2", "\"cpus\": 8")).unwrap()
        };
        assert!(of("1").left_out[0].contains("in runs"), "{:?}", of("1").left_out);
        assert_eq!(of("2").left_out, [""; 0]);
        let other = changed("\"inline\": 64", "\"inline\": 64, \"protocol\": \"direct-read\"").unwrap();
        let Load::Messages(workload) = other.observations[0].load else { panic!("messages") };
        assert_eq!(workload.protocol.name(), "direct-read");
    }

    #[test]
    fn results_with_several_words_of_a_later_release_are_left_out() {
        let newer = RECORD
            .replacen("\"send\"", "\"jump\"", 1)
            .replace("\"inline\": 64", "\"inline\": 64, \"protocol\": \"telepathy\", \"transport\": \"pigeon\"");
        let observed = observations("a.json", &newer).unwrap();
        assert_eq!(observed.observations, []);
        assert!(observed.left_out[0].contains("\"jump\" is neither"), "{:?}", observed.left_out);
        // The model does not read these fields of a result.
        let newer =
            RECORD.replacen("\"bytes\": 16", "\"bytes\": 16, \"far\": {\"mood\": 1}, \"carried_by\": \"pigeon\"", 1);
        assert_ne!(newer, RECORD);
        assert_eq!(observations("a.json", &newer).unwrap().observations.len(), 1);
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
