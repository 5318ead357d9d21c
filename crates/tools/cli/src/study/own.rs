//! Requests of the user in a study.

use std::path::Path;

use clap::Args;
use doorbell_record::settings::{CONNECTIONS, SIZE};
use doorbell_record::{ParametersError, PointRecord, Quantity};
use doorbell_study::experiment::{Effort, Experiment, OwnRequests, REQUESTS, RunDirectory, own_requests};

use crate::failure::{Failure, Usage};
use crate::quantity;

/// Requests that are measured instead of all experiments.
#[derive(Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct OwnArguments {
    /// Measure requests of this size with every protocol, with one client and with --clients, instead of all
    /// experiments. A client has one outstanding request; one thread of each side polls the connections of all clients
    #[arg(long, value_name = "BYTES", conflicts_with = "listen", value_parser = quantity::memory_bytes)]
    request: Option<usize>,
    /// Size of a reply in bytes [default: the size of the request]
    #[arg(long, value_name = "BYTES", requires = "request", value_parser = quantity::memory_bytes)]
    reply: Option<usize>,
    /// Number of clients
    #[arg(long, value_name = "N", default_value = "16", requires = "request", value_parser = quantity::count::<usize>)]
    clients: usize,
}

impl OwnArguments {
    /// Returns whether the user gave requests.
    pub(super) fn is_given(&self) -> bool {
        self.request.is_some()
    }

    fn requests(&self) -> Option<OwnRequests> {
        let request = self.request?;
        Some(OwnRequests { request, reply: self.reply.unwrap_or(request), clients: self.clients })
    }

    /// Returns the experiment of these requests, or `None` if the user gave none.
    pub(super) fn experiment(&self, effort: Effort) -> Result<Option<Experiment>, Usage> {
        let Some(own) = self.requests() else { return Ok(None) };
        let experiment = own_requests(effort, &own);
        for point in &experiment.points {
            point.parameters.check().map_err(|error| own_usage(&error))?;
        }
        Ok(Some(experiment))
    }

    /// Returns a sentence that names the best protocol for these requests, by the records in a directory. Returns
    /// `None` if the user gave no requests, or no point has results.
    pub(super) fn answer(&self, directory: &Path) -> Result<Option<String>, Failure> {
        let Some(own) = self.requests() else { return Ok(None) };
        let records = RunDirectory::read(directory)?;
        Ok(best(&records, &own))
    }
}

/// Returns a sentence that names the protocol with the shortest mean latency of these requests.
fn best(records: &[PointRecord], own: &OwnRequests) -> Option<String> {
    let OwnRequests { request, reply, clients } = *own;
    let is_asked = |record: &&PointRecord| {
        let bytes = (record.bytes(), record.parameters.reply_bytes(record.bytes()));
        record.experiment == REQUESTS && bytes == (request, reply) && record.parameters.connections == clients
    };
    let median = |record: &PointRecord, quantity| Some(record.spread(quantity)?.median);
    let timed = |record| Some((median(record, Quantity::MeanLatency)?, record));
    let (mean_us, best) = records.iter().filter(is_asked).filter_map(timed).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let rate = median(best, Quantity::MessageRate)?;
    let (protocol, counted) = (best.parameters.protocol, if clients == 1 { "client" } else { "clients" });
    Some(format!(
        "{request} B with replies of {reply} B, {clients} {counted}: {protocol} has the shortest mean latency, \
         {mean_us:.2} us at {rate:.3} M requests/s."
    ))
}

/// Returns the error with the name of the option of [`OwnArguments`] that sets the rejected value.
fn own_usage(error: &ParametersError) -> Usage {
    let ParametersError { setting, given, allowed } = error;
    let option = match *setting {
        setting if *setting == CONNECTIONS => "--clients",
        setting if *setting == SIZE => "--request",
        _ => return Usage(error.in_options()),
    };
    Usage(format!("{setting} ({option}) is {given}, allowed is {allowed}"))
}

#[cfg(test)]
mod tests {
    use doorbell_record::{Environment, PointResult};

    use super::*;

    #[test]
    fn the_best_protocol_has_the_shortest_mean_latency_of_all_clients() {
        let own = OwnRequests { request: 200, reply: 4096, clients: 8 };
        let experiment = own_requests(Effort::Quick, &own);
        let record = |(index, point): (usize, &doorbell_study::experiment::Point)| {
            let mut record = point.record(&experiment, Environment::default());
            // The third protocol is the fastest one with eight clients, and the first one with one client.
            let us = [3.0, 9.0, 4.0, 8.0, 5.0, 7.0, 4.0, 9.5, 4.0, 9.5, 4.0, 9.5][index];
            let mut result = PointResult { bytes: 200, messages_per_s: point.x * 1e6 / us, ..PointResult::default() };
            (result.fitted.window, result.sent_by_connection) = (1, vec![10; point.parameters.connections]);
            record.repetitions = vec![result];
            record
        };
        let records: Vec<PointRecord> = experiment.points.iter().enumerate().map(record).collect();
        let sentence = best(&records, &own).expect("a sentence");
        assert_eq!(
            sentence,
            "200 B with replies of 4096 B, 8 clients: direct-write has the shortest mean latency, 7.00 us at 1.143 M \
             requests/s."
        );
        assert!(
            best(&records, &OwnRequests { clients: 1, ..own }).expect("one").contains("1 client: send-receive has")
        );
        assert_eq!(best(&records, &OwnRequests { reply: 200, ..own }), None);
    }
}
