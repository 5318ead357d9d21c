//! Requests of the user in a study.

use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_record::settings::{CONNECTIONS, MEMORY, MIX, RATE, REPLY, SIZE, Value};
use doorbell_record::{Parameters, ParametersError, PointRecord, Quantity, SizeMix};
use doorbell_study::experiment::{Effort, Experiment, OwnRequests, RunDirectory, own_requests};

use crate::bench::settings::read_histogram;
use crate::failure::{Failure, Usage};
use crate::quantity;

/// Requests that are measured instead of all experiments.
#[derive(Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct OwnArguments {
    /// Measure requests of this size with every protocol, with one client and with --clients, instead of all
    /// experiments. A client has one outstanding request; one thread of each side polls the connections of all clients
    #[arg(long, value_name = "BYTES", conflicts_with = "listen", group = ASKED, value_parser = quantity::memory_bytes)]
    request: Option<usize>,
    /// Mix of request sizes with weights, as in 64:0.9,64K:0.1, instead of --request. Buffered-Read supports one size,
    /// and is left out
    #[arg(long, value_name = "BYTES:WEIGHT", conflicts_with = "listen", group = ASKED, value_delimiter = ',',
          value_parser = quantity::weighted_bytes)]
    sizes: Vec<(u64, f64)>,
    /// Mix of request sizes from a histogram in CSV, with rows BYTES,WEIGHT
    #[arg(long, value_name = "FILE", conflicts_with = "listen", group = ASKED)]
    sizes_from: Option<PathBuf>,
    /// Size of a reply in bytes [default: the size of the request]
    #[arg(long, value_name = "BYTES", requires = ASKED, value_parser = quantity::memory_bytes)]
    reply: Option<usize>,
    /// Number of clients
    #[arg(long, value_name = "N", default_value = "16", requires = ASKED, value_parser = quantity::count::<usize>)]
    clients: usize,
    /// Microseconds between a reply and the next request of a client. Latencies do not contain this time
    #[arg(long, value_name = "MICROSECONDS", default_value = "0", requires = ASKED, conflicts_with = "rate",
          value_parser = quantity::count::<u64>)]
    think: u64,
    /// Offered requests per second of all clients, as in 50k. Latencies then count from the time at which a request
    /// was due (open loop), and a client has up to 64 outstanding requests. One client offers its share of the rate
    /// [default: unlimited]
    #[arg(long, value_name = "N", requires = ASKED, value_parser = quantity::rate)]
    rate: Option<f64>,
}

/// Name of the group of options that give the sizes of requests.
const ASKED: &str = "asked";

impl OwnArguments {
    /// Returns whether the user gave requests.
    pub(super) fn is_given(&self) -> bool {
        self.option().is_some()
    }

    /// Returns the option that gives the sizes of requests, if the user gave one.
    pub(super) fn option(&self) -> Option<&'static str> {
        match self {
            Self { request: Some(_), .. } => Some("--request"),
            Self { sizes_from: Some(_), .. } => Some("--sizes-from"),
            Self { sizes, .. } if !sizes.is_empty() => Some("--sizes"),
            _ => None,
        }
    }

    fn requests(&self) -> Result<Option<OwnRequests>, Usage> {
        let sizes = match (self.request, &self.sizes_from) {
            (Some(request), _) => SizeMix(vec![(request, 1.0)]),
            (None, Some(file)) => read_histogram(file)?,
            (None, None) if self.sizes.is_empty() => return Ok(None),
            (None, None) => SizeMix::from(&self.sizes[..]),
        };
        let Self { reply, clients, think, rate, .. } = *self;
        Ok(Some(OwnRequests { sizes, reply, clients, think_us: think, rate }))
    }

    /// Returns the experiment of these requests, or `None` if the user gave none.
    pub(super) fn experiment(&self, effort: Effort) -> Result<Option<Experiment>, Usage> {
        let Some(own) = self.requests()? else { return Ok(None) };
        // A mix of one size becomes that size, so its weight is checked here.
        own.sizes.check().map_err(|(given, allowed)| self.usage(&MIX.refuse(given, allowed)))?;
        if let Some(rate) = own.rate {
            RATE.check_value(Value::Real(rate)).map_err(|error| self.usage(&error))?;
        }
        let experiment = own_requests(effort, &own);
        for point in &experiment.points {
            point.parameters.check().map_err(|error| self.usage(&error))?;
        }
        Ok(Some(experiment))
    }

    /// Returns the error with the name of the option that sets the rejected value.
    fn usage(&self, error: &ParametersError) -> Usage {
        let sizes = self.option().unwrap_or("--request");
        let rate = self.rate.map(Value::Real);
        let ParametersError { setting, given, allowed } = error;
        Usage(match *setting {
            setting if *setting == CONNECTIONS => error.in_option("--clients"),
            setting if *setting == SIZE || *setting == MIX => error.in_option(sizes),
            setting if *setting == REPLY && self.reply.is_none() => {
                let allowed = "at least 1 B without --reply, since a reply then has the size of its request";
                SIZE.refuse(given.as_str(), allowed).in_option(sizes)
            }
            setting if *setting == MEMORY => format!("{error}: reduce {sizes}, --reply or --clients"),
            // One client offers its share of the rate.
            setting if *setting == RATE && rate.is_some_and(|rate| RATE.check_value(rate).is_ok()) => {
                let clients = self.clients;
                format!("the rate of one of {clients} clients, its share of --rate, is {given}, allowed is {allowed}")
            }
            _ => error.in_options(),
        })
    }
}

/// Returns a sentence that names the best protocol for the requests of an experiment, by the records in a directory.
/// Returns `None` if no point has results.
pub(super) fn answer(directory: &Path, experiment: &Experiment) -> Result<Option<String>, Failure> {
    Ok(best(&RunDirectory::read(directory)?, experiment))
}

/// Returns a sentence that names the protocol with the shortest mean latency of the requests of all clients.
fn best(records: &[PointRecord], experiment: &Experiment) -> Option<String> {
    let clients = experiment.points.iter().map(|point| point.parameters.connections).max()?;
    let is_asked = |record: &&PointRecord| {
        record.experiment == experiment.name
            && record.parameters.connections == clients
            && experiment.points.iter().any(|point| point.series == record.series)
    };
    let median = |record: &PointRecord, quantity| Some(record.spread(quantity)?.median);
    let timed = |record| Some((median(record, Quantity::MeanLatency)?, record));
    let (mean_us, best) = records.iter().filter(is_asked).filter_map(timed).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let rate = median(best, Quantity::MessageRate)?;
    let (protocol, counted) = (best.parameters.protocol, if clients == 1 { "client" } else { "clients" });
    Some(format!(
        "{}, {clients} {counted}: {protocol} has the shortest mean latency, {mean_us:.2} us at {rate:.3} M requests/s.",
        described(&best.parameters),
    ))
}

/// Returns the sizes of requests and replies as text, and the loop if it has pauses.
fn described(parameters: &Parameters) -> String {
    let longest = parameters.sizes.first().copied().unwrap_or(0);
    let requests = match &parameters.mix {
        None => format!("{longest} B"),
        Some(mix) => format!("{} sizes to {longest} B", mix.0.len()),
    };
    let replies = match parameters.reply {
        Some(reply) => format!("replies of {reply} B"),
        None => "replies of the same size".to_owned(),
    };
    let pauses = match (parameters.rate, parameters.think_us) {
        (None, 0) => String::new(),
        _ => format!(", {}", parameters.request_loop()),
    };
    format!("{requests} with {replies}{pauses}")
}

#[cfg(test)]
mod tests {
    use doorbell_record::{Environment, Latency, PointResult};

    use super::*;

    fn own(reply: usize, clients: usize) -> OwnRequests {
        OwnRequests { sizes: SizeMix(vec![(200, 1.0)]), reply: Some(reply), clients, think_us: 0, rate: None }
    }

    /// Returns records of the points, of which each message takes one of `us` microseconds for each client.
    fn records(experiment: &Experiment, us: [f64; 12]) -> Vec<PointRecord> {
        let record = |(point, us): (&doorbell_study::experiment::Point, f64)| {
            let mut record = point.record(experiment, Environment::default());
            let mut result = PointResult { bytes: 200, messages_per_s: point.x * 1e6 / us, ..PointResult::default() };
            (result.fitted.window, result.sent_by_connection) = (1, vec![10; point.parameters.connections]);
            let ns = (us * 1e3) as u64;
            result.latency_ns = Some(Latency { min: ns, p50: ns, mean: us * 500.0, p99: ns, p999: ns, max: ns });
            record.repetitions = vec![result];
            record
        };
        experiment.points.iter().zip(us).map(record).collect()
    }

    /// The third protocol is the fastest one with eight clients, and the first one with one client.
    const TIMES: [f64; 12] = [3.0, 9.0, 4.0, 8.0, 5.0, 7.0, 4.0, 9.5, 4.0, 9.5, 4.0, 9.5];

    #[test]
    fn the_best_protocol_has_the_shortest_mean_latency_of_all_clients() {
        let asked = |own: &OwnRequests| own_requests(Effort::Quick, own);
        let experiment = asked(&own(4096, 8));
        let records = records(&experiment, TIMES);
        let sentence = best(&records, &experiment).expect("a sentence");
        assert_eq!(
            sentence,
            "200 B with replies of 4096 B, 8 clients: direct-write has the shortest mean latency, 7.00 us at 1.143 M \
             requests/s."
        );
        assert!(best(&records, &asked(&own(4096, 1))).expect("one").contains("1 client: send-receive has"));
        assert_eq!(best(&records, &asked(&own(200, 8))), None);
    }

    #[test]
    fn the_latency_of_clients_that_think_is_the_measured_one() {
        let experiment = own_requests(Effort::Quick, &OwnRequests { think_us: 5, ..own(4096, 8) });
        let sentence = best(&records(&experiment, TIMES), &experiment).expect("a sentence");
        assert_eq!(
            sentence,
            "200 B with replies of 4096 B, closed loop with 5 us of think time, 8 clients: direct-write has the \
             shortest mean latency, 3.50 us at 1.143 M requests/s."
        );
    }
}
