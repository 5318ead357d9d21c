//! Requests with replies, from the records of a study.

use doorbell_record::settings::{REPLY, SERVER_THREADS, THINK};
use doorbell_record::{Operation, PointRecord};
use doorbell_wire::PathMtu;

use super::{Record, uncovered, workload};
use crate::predict::Requests;

/// Returns the requests of a point, with the fitted window of its first repetition. Returns `None` if the point has no
/// requests in a closed loop, or a setting that the model lacks.
///
/// Fits leave requests out ([`observations_of`](super::observations_of)), so no prediction of requests was fitted to
/// them.
pub fn requests_of(record: &PointRecord) -> Option<Requests> {
    let asked = &record.parameters;
    let result = record.repetitions.first()?;
    if asked.operation != Operation::RequestResponse || asked.far.is_some() {
        return None;
    }
    if uncovered(&Record::of_point(record, None), result, &[&REPLY, &SERVER_THREADS, &THINK]).is_some() {
        return None;
    }
    let request = workload(asked, result, PathMtu::from_bytes(result.mtu)?);
    Some(Requests { request, reply_bytes: asked.reply_bytes(result.bytes) as u64, think_us: asked.think_us })
}

#[cfg(test)]
mod tests {
    use doorbell_record::{Environment, Kind, Parameters, PointResult, Serving};

    use super::*;
    use crate::workload::Peers;

    fn record(parameters: Parameters) -> PointRecord {
        let environment = Environment { cpus: 2, provider: "soft".to_owned(), ..Environment::default() };
        let mut record = PointRecord::new("requests/clients", "a curve", 1.0, environment, parameters);
        let mut result = PointResult { bytes: record.bytes(), mtu: 4096, ..PointResult::default() };
        (result.fitted.window, result.fitted.batch, result.fitted.depth) = (1, 1, 16);
        record.repetitions = vec![result];
        record
    }

    #[test]
    fn requests_have_the_clients_and_threads_of_their_point() {
        let asked = Parameters {
            reply: Some(65_536),
            connections: 16,
            ..Parameters::plain(Kind::Bandwidth, Operation::RequestResponse, 200)
        };
        let requests = requests_of(&record(asked.clone())).expect("requests");
        assert_eq!((requests.request.bytes, requests.reply_bytes), (200, 65_536));
        assert_eq!((requests.request.peers, requests.in_flight()), (Peers::connections(16), 16.0));
        let same = requests_of(&record(Parameters { reply: None, ..asked.clone() })).expect("requests");
        assert_eq!((same.reply_bytes, same.think_us), (200, 0));
        let thinking = requests_of(&record(Parameters { think_us: 5, ..asked.clone() })).expect("requests");
        assert_eq!(thinking.think_us, 5);
        let serving = Serving { threads: 2, server_threads: 1, ..Serving::default() };
        let mut served = record(Parameters { serving, ..asked.clone() });
        served.environment.cpus = 4;
        let peers = Peers { senders: 2, receivers: 1, connections: 16 };
        assert_eq!(requests_of(&served).map(|requests| requests.request.peers), Some(peers));
        for other in [
            Parameters { rate: Some(1000.0), ..asked.clone() },
            Parameters { operation: Operation::Send, reply: None, ..asked },
        ] {
            assert_eq!(requests_of(&record(other.clone())), None, "{other:?}");
        }
    }
}
