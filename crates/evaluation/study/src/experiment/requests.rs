//! Experiment on clients that wait for replies.

use super::families::{FAMILIES, Family};
use super::sweep::{Effort, Experiment, Point};
use crate::layout::Layout;
use doorbell_record::Quantity::{self, MeanLatency, MedianLatency, MessageRate, TailLatency, Throughput};
use doorbell_record::{Kind, Operation, Parameters};

/// Name of the experiment on requests with replies.
pub const REQUESTS: &str = "requests/clients";

/// Bytes of a request.
const REQUEST: usize = 200;
/// Bytes of a reply, and their name. A quick study has the first.
const REPLIES: [(usize, &str); 2] = [(64 << 10, "64 KiB"), (REQUEST, "200 B")];

const WAITED: &[Quantity] = &[MeanLatency, MedianLatency, TailLatency, MessageRate, Throughput];

/// Requests with replies that a user describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRequests {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of a reply.
    pub reply: usize,
    /// Number of clients.
    pub clients: usize,
}

/// Returns the experiment for requests of the user, which has all protocols: with one client, and with all clients.
pub fn own_requests(effort: Effort, own: &OwnRequests) -> Experiment {
    let OwnRequests { request, reply, clients } = *own;
    let mut counts = vec![1, clients];
    counts.dedup();
    let mut points = Vec::new();
    for family in &FAMILIES {
        let series = format!("{request} B, reply {reply} B, {}", family.family());
        for &clients in &counts {
            points.push(Point::new(series.clone(), clients, parameters(effort, family, [request, reply], clients)));
        }
    }
    of_points(points)
}

/// Returns the parameters of clients with one outstanding request of `bytes[0]` bytes, and replies of `bytes[1]` bytes.
fn parameters(effort: Effort, family: &Family, bytes: [usize; 2], clients: usize) -> Parameters {
    Parameters {
        operation: Operation::RequestResponse,
        reply: Some(bytes[1]),
        window: 1,
        connections: clients,
        ..Family::parameters(effort, Kind::Bandwidth, family.variants[0], bytes[0])
    }
}

/// Returns the experiment. A full study has all protocols, other studies have Send-Receive.
pub(super) fn experiment(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for (reply, named) in &REPLIES[..effort.pick(1, 2, 2)] {
        for family in &FAMILIES[..effort.pick(1, 1, FAMILIES.len())] {
            let variant = if family.is_send_receive() { String::new() } else { format!(", {}", family.family()) };
            for clients in effort.pick(vec![1, 16], vec![1, 4, 16], vec![1, 2, 4, 8, 16, 32]) {
                let parameters = parameters(effort, family, [REQUEST, *reply], clients);
                points.push(Point::new(format!("{REQUEST} B, reply {named}{variant}"), clients, parameters));
            }
        }
    }
    of_points(points)
}

fn of_points(points: Vec<Point>) -> Experiment {
    Experiment::new(
        REQUESTS,
        "How long does a request wait for its reply, alone and beside those of other clients?",
        "each client has one connection, and sends the next request when its reply arrives. One thread of each side \
         polls all connections in turn. The latency of one client is that of a request alone",
        "clients",
        WAITED,
        points,
    )
    .laid_out(Layout::ManyToOne)
}

#[cfg(test)]
mod tests {
    use doorbell_record::{Cast, Role};

    use super::*;

    #[test]
    fn each_client_waits_for_one_reply() {
        for effort in [Effort::Quick, Effort::Usual, Effort::Full] {
            for point in experiment(effort).points {
                let Parameters { connections, window, reply, .. } = point.parameters;
                assert_eq!((point.x, window), (connections as f64, 1), "{}", point.series);
                assert!(reply.is_some_and(|reply| REPLIES.iter().any(|(bytes, _)| *bytes == reply)), "{reply:?}");
                let Cast { asking, answering } = point.parameters.cast();
                assert_eq!((asking.role, answering.role), (Role::Requester, Role::Responder));
                assert_eq!((asking.threads, answering.threads), (1, 1), "a thread for each side");
            }
        }
    }

    #[test]
    fn own_requests_have_all_protocols_alone_and_with_all_clients() {
        let own = OwnRequests { request: 100, reply: 4096, clients: 24 };
        let experiment = own_requests(Effort::Quick, &own);
        assert_eq!((experiment.name.as_str(), experiment.points.len()), (REQUESTS, 2 * FAMILIES.len()));
        for (index, point) in experiment.points.iter().enumerate() {
            let parameters = &point.parameters;
            parameters.check().unwrap_or_else(|error| panic!("{}: {error}", point.series));
            assert_eq!(parameters.protocol, FAMILIES[index / 2].variants[0]);
            assert_eq!(parameters.connections, if index % 2 == 0 { 1 } else { 24 });
            assert_eq!((parameters.sizes[0], parameters.reply), (100, Some(4096)));
        }
        assert_eq!(experiment.points[1].series, "100 B, reply 4096 B, send-receive");
        let one = own_requests(Effort::Quick, &OwnRequests { clients: 1, ..own });
        assert_eq!(one.points.len(), FAMILIES.len());
    }

    #[test]
    fn each_curve_begins_with_a_request_alone() {
        let places = |effort| -> Vec<(String, f64)> {
            experiment(effort).points.into_iter().map(|point| (point.series, point.x)).collect()
        };
        let (quick, usual, full) = (places(Effort::Quick), places(Effort::Usual), places(Effort::Full));
        assert_eq!(quick, [1.0, 16.0].map(|clients| ("200 B, reply 64 KiB".to_owned(), clients)));
        assert!(quick.iter().all(|place| usual.contains(place)) && usual.iter().all(|place| full.contains(place)));
        assert_eq!(full.len(), 2 * 6 * FAMILIES.len());
        for (series, _) in &full {
            assert!(full.contains(&(series.clone(), 1.0)), "{series}");
        }
    }
}
