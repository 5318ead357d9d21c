//! `doorbell model`: predictions, their reasons, and their parameters.

mod arguments;
mod check;
mod fit;
mod measure;

use std::io;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use doorbell_model::cost::Part;
use doorbell_model::explain::{Explanation, explain, explain_operation, explain_requests};
use doorbell_model::operation::Posted;
use doorbell_model::parameters::Parameters;
use doorbell_model::predict::{Bound, Prediction, Requests};
use doorbell_model::workload::{Peers, Workload, WorkloadError};
use serde_json::{Value, json};

use crate::failure::Failure;
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
}

impl Subject {
    fn bytes(&self) -> u64 {
        match self {
            Self::Messages(workload) => workload.bytes,
            Self::Requests(requests) => requests.request.bytes,
            Self::Operations(posted) => posted.bytes,
        }
    }

    /// Returns the size of the longest message.
    fn longest(&self) -> u64 {
        match self {
            Self::Requests(requests) => self.bytes().max(requests.reply_bytes),
            _ => self.bytes(),
        }
    }

    /// Returns the threads and connections of messages. Queue pairs of operations have a thread each.
    fn peers(&self) -> Option<Peers> {
        match self {
            Self::Messages(workload) => Some(workload.peers),
            Self::Requests(requests) => Some(requests.request.peers),
            Self::Operations(_) => None,
        }
    }
}

/// Subject of a prediction with its explanation.
type Explained = (Subject, Explanation);

fn predict(arguments: &Predict, schema: &str, print: fn(&[Explained]) -> io::Result<()>) -> Result<(), Failure> {
    let parameters = arguments.parameters.read()?;
    let explained: Result<Vec<Explained>, WorkloadError> = match arguments.load.operations() {
        Some(operations) => operations
            .into_iter()
            .map(|posted| Ok((Subject::Operations(posted), explain_operation(&parameters, &posted)?)))
            .collect(),
        None => arguments
            .load
            .workloads()?
            .into_iter()
            .map(|workload| match arguments.load.reply_bytes() {
                Some(reply_bytes) => {
                    let requests = Requests { request: workload, reply_bytes };
                    Ok((Subject::Requests(requests), explain_requests(&parameters, &requests)?))
                }
                None => Ok((Subject::Messages(workload), explain(&parameters, &workload)?)),
            })
            .collect(),
    };
    let explained = explained.map_err(|error| wrong(&error))?;
    if arguments.json {
        let results: Vec<Value> = explained.iter().map(|(subject, explanation)| result(subject, explanation)).collect();
        line(json!({ "schema": schema, "parameters": parameters, "results": results }))?;
        return Ok(());
    }
    about(&parameters);
    if let Some(peers) = explained.first().and_then(|(subject, _)| subject.peers()) {
        note!("Pattern: {peers}. Latencies are of a message alone, rates of full windows.");
    }
    let longest = explained.iter().map(|(subject, _)| subject.longest()).max().unwrap_or(0);
    if let Some(sentence) = parameters.beyond_published(longest) {
        note!("{sentence}");
    }
    print(&explained)?;
    Ok(())
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
        "{:>10} {:>11} {:>14} {:>11} {:>9}   {:<24} next, times as much",
        "bytes", "latency, us", "messages/s", "MiB/s", "Gb/s", "bottleneck"
    ))?;
    for (subject, Explanation { prediction, bottleneck, .. }) in explained {
        let Prediction { latency_ns, messages_per_s, bytes_per_s, .. } = prediction;
        let next = bottleneck.next.map_or_else(String::new, |next| format!("{} {:.2}", next.kind, bottleneck.factor));
        line(format_args!(
            "{:>10} {:>11} {:>14.0} {:>11.2} {:>9.3}   {:<24} {next}",
            subject.bytes(),
            us(*latency_ns),
            messages_per_s,
            bytes_per_s / (1 << 20) as f64,
            bytes_per_s * 8.0 / 1e9,
            bottleneck.binding.kind.name(),
        ))?;
    }
    Ok(())
}

fn sentences(explained: &[Explained]) -> io::Result<()> {
    for (index, (subject, explanation)) in explained.iter().enumerate() {
        if index > 0 {
            line("")?;
        }
        line(&explanation.sentence)?;
        let what = match subject {
            Subject::Messages(_) => "a message",
            Subject::Requests(_) => "a request and its reply",
            Subject::Operations(_) => "an operation",
        };
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

fn result(subject: &Subject, explanation: &Explanation) -> Value {
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
    let asked = match subject {
        Subject::Messages(workload) => of_messages(workload),
        Subject::Requests(requests) => {
            let mut asked = of_messages(&requests.request);
            asked["reply_bytes"] = json!(requests.reply_bytes);
            asked["loaded_ns"] = json!(prediction.loaded_ns(requests.in_flight()));
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
    if let (Some(result), Value::Object(asked)) = (result.as_object_mut(), asked) {
        result.extend(asked);
    }
    result
}
