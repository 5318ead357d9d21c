//! `doorbell model`: predictions, their reasons, and their parameters.

mod arguments;
mod check;
mod fit;
mod measure;

use std::io;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use doorbell_model::cost::Part;
use doorbell_model::explain::{Explanation, explain, explain_mix, explain_operation, explain_requests, per_second};
use doorbell_model::operation::Posted;
use doorbell_model::parameters::Parameters;
use doorbell_model::predict::{Bound, Prediction, Requests, predict_offered};
use doorbell_model::workload::{Peers, Workload, WorkloadError};
use serde_json::{Value, json};

use crate::failure::{Failure, Usage};
use crate::output::{line, note, us};
use arguments::wrong;
pub(crate) use arguments::{ParametersArgument, parse_peers, served};

#[derive(Subcommand)]
pub(crate) enum Model {
    /// Predict latency and throughput of messages, or of operations of bare queue pairs (--op)
    Predict(Predict),
    /// Explain the parts of a latency, the bottleneck of throughput, the next bottleneck, and remedies
    Explain(Predict),
    /// Compare the model with published numbers, row by row
    ///
    /// A row is `within` if the prediction is at most 15 % off, or 10 % for rates of operations and packets; otherwise
    /// it is `beyond`. docs/reproduction.md has the tolerances of other quantities. If the published number is a bound
    /// that the prediction keeps, the deviation is shown as `kept`. A row is `no model` if the model lacks a required
    /// part. For each row that is beyond or has no model, a sentence states the missing part.
    ///
    /// Each row is compared as published: without credits, and in lists of one if the source does not batch. A row
    /// to which a parameter was `fitted` is no test of the model. Each published sentence has a verdict too, which
    /// states whether the predictions have the shape that the sentence describes.
    Check(check::Check),
    /// Fit parameters to records of `doorbell bench --json`, and to directories and records of `doorbell study`
    Fit(fit::Fit),
    /// Measure the parameters by timing single calls on two software RNICs of this process
    Measure(measure::Measure),
}

#[derive(Args)]
pub(crate) struct Predict {
    #[command(flatten)]
    parameters: ParametersArgument,
    #[command(flatten)]
    load: arguments::Load,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(model: Model) -> Result<ExitCode, Failure> {
    match model {
        Model::Predict(arguments) => predict(&arguments, "doorbell-model-predict/1", table)?,
        Model::Explain(arguments) => predict(&arguments, "doorbell-model-explain/1", sentences)?,
        Model::Check(arguments) => check::run(&arguments)?,
        Model::Fit(fit) => fit::run(&fit)?,
        Model::Measure(measure) => measure::run(&measure)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Subject of a prediction: messages of a protocol, with or without replies, or operations of bare queue pairs.
enum Subject {
    Messages(Workload),
    Requests(Requests),
    Operations(Posted),
    /// Messages of several sizes, each with its weight; at least one.
    Mix(Vec<(Subject, f64)>),
}

impl Subject {
    fn bytes(&self) -> u64 {
        match self {
            Self::Messages(workload) => workload.bytes,
            Self::Requests(requests) => requests.request.bytes,
            Self::Operations(posted) => posted.bytes,
            Self::Mix(all) => all.iter().map(|(subject, _)| subject.bytes()).max().unwrap_or(0),
        }
    }

    /// Returns the size of the longest message.
    fn longest(&self) -> u64 {
        match self {
            Self::Requests(requests) => self.bytes().max(requests.reply_bytes),
            Self::Mix(all) => all.iter().map(|(subject, _)| subject.longest()).max().unwrap_or(0),
            _ => self.bytes(),
        }
    }

    /// Returns the threads and connections of messages. Queue pairs of operations have a thread each.
    fn peers(&self) -> Option<Peers> {
        match self {
            Self::Messages(workload) => Some(workload.peers),
            Self::Requests(requests) => Some(requests.request.peers),
            Self::Operations(_) => None,
            Self::Mix(all) => all.first().and_then(|(subject, _)| subject.peers()),
        }
    }

    /// Returns the loaded latency: with full windows, or with the offered rate. Returns `None` if the rate is not
    /// reached.
    fn loaded_ns(
        &self,
        parameters: &Parameters,
        prediction: &Prediction,
        rate: Option<f64>,
    ) -> Result<Option<f64>, WorkloadError> {
        let share = rate.map_or(0.0, |rate| rate / prediction.messages_per_s);
        Ok(match self {
            Self::Operations(posted) => {
                Some(prediction.loaded_ns(f64::from(posted.connections) * f64::from(posted.window)))
            }
            Self::Messages(workload) => {
                let directions = if workload.bidirectional { 2.0 } else { 1.0 };
                let in_flight = directions * f64::from(workload.peers.connections) * f64::from(workload.window);
                Some(prediction.loaded_ns(in_flight))
            }
            Self::Requests(_) if share >= 1.0 => None,
            Self::Requests(requests) if rate.is_some() => {
                Some(predict_offered(parameters, &[(*requests, 1.0)], share)?)
            }
            Self::Requests(requests) => Some(requests.loaded_ns(prediction)),
            Self::Mix(_) if share >= 1.0 => None,
            Self::Mix(all) if rate.is_some() => {
                let sizes = all.iter().filter_map(|(subject, weight)| match subject {
                    Self::Requests(requests) => Some((*requests, *weight)),
                    _ => None,
                });
                Some(predict_offered(parameters, &sizes.collect::<Vec<_>>(), share)?)
            }
            // The sizes of a mix share their windows.
            Self::Mix(all) => match all.first() {
                Some((subject, _)) => subject.loaded_ns(parameters, prediction, None)?,
                None => None,
            },
        })
    }
}

/// Prediction with its subject and its explanation.
struct Explained {
    subject: Subject,
    explanation: Explanation,
    /// The loaded latency, in nanoseconds.
    loaded_ns: Option<f64>,
}

fn predict(arguments: &Predict, schema: &str, print: fn(&[Explained]) -> io::Result<()>) -> Result<(), Failure> {
    let parameters = arguments.parameters.read()?;
    let (think_us, rate) = arguments.load.pace();
    if arguments.load.reply_bytes().is_none() && (think_us > 0 || rate.is_some()) {
        return Err(Usage("--think and --rate need messages with replies: give --reply with at least 1".into()).into());
    }
    arguments.load.check()?;
    let explained: Result<Vec<Explained>, WorkloadError> = match arguments.load.operations() {
        Some(operations) => operations
            .into_iter()
            .map(|posted| {
                let explanation = explain_operation(&parameters, &posted)?;
                let subject = Subject::Operations(posted);
                let loaded_ns = subject.loaded_ns(&parameters, &explanation.prediction, None)?;
                Ok(Explained { subject, explanation, loaded_ns })
            })
            .collect(),
        None => explained_messages(arguments, &parameters, &arguments.load.workloads()?),
    };
    let explained = explained.map_err(|error| wrong(&error))?;
    if arguments.json {
        let results: Vec<Value> = explained.iter().map(result).collect();
        line(json!({ "schema": schema, "parameters": parameters, "results": results }))?;
        return Ok(());
    }
    about(&parameters);
    if let Some(peers) = explained.first().and_then(|explained| explained.subject.peers()) {
        let load = match rate {
            Some(rate) => {
                format!("Loaded latency: {} requests/s, from the time at which a request is due", per_second(rate))
            }
            None => "Loaded latency and rate: full windows".to_owned(),
        };
        note!("Pattern: {peers}. Latency alone: one message in flight. {load}.");
    }
    for Explained { subject, .. } in &explained {
        if let Subject::Mix(all) = subject {
            note!("One mix of {} sizes; the column of bytes has the largest.", all.len());
        }
    }
    let longest = explained.iter().map(|explained| explained.subject.longest()).max().unwrap_or(0);
    if let Some(sentence) = parameters.beyond_published(longest) {
        note!("{sentence}");
    }
    print(&explained)?;
    Ok(())
}

/// Explains the messages of each size, or of one mix of sizes.
fn explained_messages(
    arguments: &Predict,
    parameters: &Parameters,
    workloads: &[(Workload, f64)],
) -> Result<Vec<Explained>, WorkloadError> {
    let reply_bytes = arguments.load.reply_bytes();
    let (think_us, rate) = arguments.load.pace();
    let mut all = Vec::new();
    for &(workload, weight) in workloads {
        let (subject, explanation) = match reply_bytes {
            Some(reply_bytes) => {
                let requests = Requests { request: workload, reply_bytes, think_us };
                (Subject::Requests(requests), explain_requests(parameters, &requests)?)
            }
            None => (Subject::Messages(workload), explain(parameters, &workload)?),
        };
        all.push((subject, weight, explanation));
    }
    let with_load = |(subject, explanation): (Subject, Explanation)| {
        let loaded_ns = subject.loaded_ns(parameters, &explanation.prediction, rate)?;
        Ok(Explained { subject, explanation, loaded_ns })
    };
    if !arguments.load.is_mix() {
        return all.into_iter().map(|(subject, _, explanation)| with_load((subject, explanation))).collect();
    }
    let predictions = all.iter().map(|(_, weight, explanation)| (*weight, explanation.prediction.clone()));
    let explanation = explain_mix(predictions.collect(), if reply_bytes.is_some() { "requests" } else { "messages" });
    let mix = Subject::Mix(all.into_iter().map(|(subject, weight, _)| (subject, weight)).collect());
    Ok(vec![with_load((mix, explanation))?])
}

/// Prints the origin of the parameters.
pub(crate) fn about(parameters: &Parameters) {
    let Parameters { name, source, open_points, .. } = parameters;
    let open = match open_points.len() {
        0 => String::new(),
        count => format!(" Open points ({count}) are in --json."),
    };
    note!("Parameters of {name}: {source}{open}");
}

fn table(explained: &[Explained]) -> io::Result<()> {
    line(format_args!(
        "{:>10} {:>9} {:>10} {:>14} {:>11} {:>9}   {:<24} next, times as much",
        "bytes", "alone, us", "loaded, us", "messages/s", "MiB/s", "Gb/s", "bottleneck"
    ))?;
    for Explained { subject, explanation, loaded_ns } in explained {
        let Explanation { prediction, bottleneck, .. } = explanation;
        let Prediction { latency_ns, messages_per_s, bytes_per_s, .. } = prediction;
        let next = bottleneck.next.map_or_else(String::new, |next| format!("{} {:.2}", next.kind, bottleneck.factor));
        line(format_args!(
            "{:>10} {:>9} {:>10} {:>14.0} {:>11.2} {:>9.3}   {:<24} {next}",
            subject.bytes(),
            us(*latency_ns),
            loaded_ns.map_or_else(|| "-".to_owned(), us),
            messages_per_s,
            bytes_per_s / (1 << 20) as f64,
            bytes_per_s * 8.0 / 1e9,
            bottleneck.binding.kind.name(),
        ))?;
    }
    Ok(())
}

fn sentences(explained: &[Explained]) -> io::Result<()> {
    for (index, Explained { subject, explanation, loaded_ns }) in explained.iter().enumerate() {
        if index > 0 {
            line("")?;
        }
        line(&explanation.sentence)?;
        let what = match subject {
            Subject::Messages(_) => "a message",
            Subject::Requests(_) => "a request and its reply",
            Subject::Operations(_) => "an operation",
            Subject::Mix(_) => "a message, with its reply if it has one, on average",
        };
        if let Some(loaded_ns) = loaded_ns {
            line(format_args!("{:>16} us latency of {what} with this load", us(*loaded_ns)))?;
        }
        line(format_args!("{:>16} us latency of {what} alone, of which", us(explanation.prediction.latency_ns)))?;
        for Part { name, meaning, ns } in &explanation.prediction.latency_parts {
            line(format_args!("{:>16.3} us  {name:<10} {meaning}", ns / 1e3))?;
        }
        for bound in &explanation.prediction.bounds {
            line(format_args!("{:>16.0} messages/s  {}", bound.messages_per_s(), bound.kind))?;
        }
        for remedy in &explanation.remedies {
            let (rate, what) = (remedy.messages_per_s, &remedy.what);
            line(format_args!("{rate:>16.0} messages/s  with {what}: then {} binds", remedy.binding))?;
        }
    }
    Ok(())
}

fn result(Explained { subject, explanation, loaded_ns }: &Explained) -> Value {
    let part = |part: &Part| json!({ "name": part.name, "meaning": part.meaning, "ns": part.ns });
    let bound = |bound: &Bound| {
        json!({
            "name": bound.kind.name(),
            "ns_per_message": bound.ns_per_message,
            "messages_per_s": bound.messages_per_s(),
        })
    };
    let Explanation { prediction, bottleneck, sentence, remedies } = explanation;
    let remedies: Vec<Value> = remedies
        .iter()
        .map(|remedy| {
            json!({
                "what": remedy.what,
                "messages_per_s": remedy.messages_per_s,
                "bottleneck": remedy.binding.name(),
            })
        })
        .collect();
    let mut result = json!({
        "latency_ns": prediction.latency_ns,
        "latency_parts": prediction.latency_parts.iter().map(part).collect::<Vec<_>>(),
        "messages_per_s": prediction.messages_per_s,
        "bytes_per_s": prediction.bytes_per_s,
        "bottleneck": bottleneck.binding.kind.name(),
        "next": bottleneck.next.as_ref().map(bound),
        "next_factor": bottleneck.next.map(|_| bottleneck.factor),
        "bounds": prediction.bounds.iter().map(bound).collect::<Vec<_>>(),
        "sentence": sentence,
        "remedies": remedies,
    });
    let of_messages = |workload: &Workload| {
        json!({
            "protocol": workload.protocol.name(),
            "bytes": workload.bytes,
            "window": workload.window,
            "batch": workload.batch,
            "depth": workload.depth,
            "senders": workload.peers.senders,
            "receivers": workload.peers.receivers,
            "connections": workload.peers.connections,
        })
    };
    let of_requests = |requests: &Requests| {
        let mut asked = of_messages(&requests.request);
        asked["reply_bytes"] = json!(requests.reply_bytes);
        asked["think_us"] = json!(requests.think_us);
        asked
    };
    let mut asked = match subject {
        Subject::Messages(workload) => of_messages(workload),
        Subject::Requests(requests) => of_requests(requests),
        Subject::Mix(all) => {
            let mut asked = match all.first() {
                Some((Subject::Requests(requests), _)) => of_requests(requests),
                Some((Subject::Messages(workload), _)) => of_messages(workload),
                _ => json!({}),
            };
            asked["bytes"] = json!(subject.bytes());
            let sizes = all.iter().map(|(subject, weight)| json!([subject.bytes(), weight]));
            asked["sizes"] = sizes.collect();
            asked
        }
        Subject::Operations(posted) => json!({
            "operation": posted.operation.name(),
            "bytes": posted.bytes,
            "window": posted.window,
            "batch": posted.batch,
            "connections": posted.connections,
        }),
    };
    asked["loaded_ns"] = json!(loaded_ns);
    if let (Some(result), Value::Object(asked)) = (result.as_object_mut(), asked) {
        result.extend(asked);
    }
    result
}
