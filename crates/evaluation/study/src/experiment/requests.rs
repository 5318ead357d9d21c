//! Experiment on clients that wait for replies.

use super::families::{FAMILIES, Family};
use super::sweep::{Effort, Experiment, Point};
use crate::layout::Layout;
use doorbell_record::Quantity::{self, MeanLatency, MedianLatency, MessageRate, TailLatency, Throughput};
use doorbell_record::{Kind, Operation, Parameters, SizeMix};
use doorbell_wire::split_mix;

/// Name of the experiment on requests with replies.
pub const REQUESTS: &str = "requests/clients";

/// Bytes of a request.
const REQUEST: usize = 200;
/// Bytes of a reply, and their name. A quick study has the first.
const REPLIES: [(usize, &str); 2] = [(64 << 10, "64 KiB"), (REQUEST, "200 B")];

const WAITED: &[Quantity] = &[MeanLatency, MedianLatency, TailLatency, MessageRate, Throughput];

/// Requests with replies that a user describes.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnRequests {
    /// Sizes of the requests in bytes. Requests of one size have a mix of one.
    pub sizes: SizeMix,
    /// Bytes of a reply. `None` means that a reply has the size of its request.
    pub reply: Option<usize>,
    /// Number of clients.
    pub clients: usize,
    /// Time between a reply and the next request of a client, in microseconds.
    pub think_us: u64,
    /// Offered requests per second of all clients (open loop). `None` means a closed loop.
    pub rate: Option<f64>,
}

/// Returns the experiment for requests of the user, which has all protocols: with one client, and with all clients.
/// Protocols that support one size only have no points for a mix of sizes. With a rate, one client offers its share of
/// the rate.
pub fn own_requests(effort: Effort, own: &OwnRequests) -> Experiment {
    let mut counts = vec![1, own.clients];
    counts.dedup();
    let mut points = Vec::new();
    let is_mix = own.sizes.0.len() > 1;
    for family in FAMILIES.iter().filter(|family| !is_mix || SizeMix::suits(family.variants[0])) {
        for &clients in &counts {
            let parameters = own_parameters(effort, family, own, clients);
            points.push(Point::new(own_series(family, own, &parameters), clients, parameters));
        }
    }
    of_points(points)
}

/// Maximum length of a mix in the name of a curve, which is part of a file's name.
const MIX_NAME: usize = 60;

/// Returns the name of the curve of a protocol. Both points of the curve have the same name. The name and the number of
/// clients determine the parameters of a point, so that a directory can have the records of several workloads.
fn own_series(family: &Family, own: &OwnRequests, parameters: &Parameters) -> String {
    let requests = named_sizes(&own.sizes);
    let replies = parameters.reply.map_or_else(|| "replies alike".to_owned(), |reply| format!("reply {reply} B"));
    let pauses = match (own.rate, own.think_us) {
        (None, 0) => String::new(),
        (None, _) => format!("{}, ", parameters.request_loop()),
        (Some(_), _) => {
            let one = Parameters { rate: rate_of(own, 1), ..parameters.clone() };
            format!("{} for each client, ", one.request_loop())
        }
    };
    format!("{requests}, {replies}, {pauses}{}", family.family())
}

/// Returns the sizes of requests as text. A long mix has its digest instead of its sizes.
fn named_sizes(mix: &SizeMix) -> String {
    if let [(bytes, _)] = mix.0[..] {
        return format!("{bytes} B");
    }
    let rows: Vec<String> = mix.0.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
    let rows = rows.join("+");
    if rows.len() <= MIX_NAME {
        return format!("{rows} B");
    }
    let mut digest = 0;
    for &(bytes, weight) in &mix.0 {
        for number in [bytes as u64, weight.to_bits()] {
            digest ^= number;
            digest = split_mix(&mut digest);
        }
    }
    format!("{} sizes to {} B ({digest:016x})", mix.0.len(), mix.longest())
}

/// Returns the rate that this number of the user's clients offers.
fn rate_of(own: &OwnRequests, clients: usize) -> Option<f64> {
    own.rate.map(|rate| rate * (clients as f64 / own.clients.max(1) as f64))
}

/// Returns the parameters of some of the user's clients. Clients of an open loop have the default window.
fn own_parameters(effort: Effort, family: &Family, own: &OwnRequests, clients: usize) -> Parameters {
    let longest = own.sizes.longest();
    let is_mix = own.sizes.0.len() > 1;
    let reply = own.reply.or((!is_mix).then_some(longest));
    let closed = parameters(effort, family, longest, reply, clients);
    Parameters {
        mix: is_mix.then(|| own.sizes.clone()),
        think_us: own.think_us,
        rate: rate_of(own, clients),
        window: match own.rate {
            Some(_) => Parameters::plain(closed.kind, closed.operation, longest).window,
            None => closed.window,
        },
        ..closed
    }
}

/// Returns the parameters of clients with one outstanding request.
fn parameters(effort: Effort, family: &Family, request: usize, reply: Option<usize>, clients: usize) -> Parameters {
    Parameters {
        operation: Operation::RequestResponse,
        reply,
        window: 1,
        connections: clients,
        ..Family::parameters(effort, Kind::Bandwidth, family.variants[0], request)
    }
}

/// Returns the experiment. A full study has all protocols, other studies have Send-Receive.
pub(super) fn experiment(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for (reply, named) in &REPLIES[..effort.pick(1, 2, 2)] {
        for family in &FAMILIES[..effort.pick(1, 1, FAMILIES.len())] {
            let variant = if family.is_send_receive() { String::new() } else { format!(", {}", family.family()) };
            for clients in effort.pick(vec![1, 16], vec![1, 4, 16], vec![1, 2, 4, 8, 16, 32]) {
                let parameters = parameters(effort, family, REQUEST, Some(*reply), clients);
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
        "each client has one connection, and sends the next request when its reply arrives, unless the curve has a \
         think time or an open loop. One thread of each side polls all connections in turn. The latency of one client \
         is that of a request alone",
        "clients",
        WAITED,
        points,
    )
    .laid_out(Layout::ManyToOne)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    fn own(sizes: &[(usize, f64)], reply: Option<usize>) -> OwnRequests {
        OwnRequests { sizes: SizeMix(sizes.to_vec()), reply, clients: 24, think_us: 0, rate: None }
    }

    #[test]
    fn own_requests_have_all_protocols_alone_and_with_all_clients() {
        let own = own(&[(100, 1.0)], Some(4096));
        let experiment = own_requests(Effort::Quick, &own);
        assert_eq!((experiment.name.as_str(), experiment.points.len()), (REQUESTS, 2 * FAMILIES.len()));
        for (index, point) in experiment.points.iter().enumerate() {
            let parameters = &point.parameters;
            parameters.check().unwrap_or_else(|error| panic!("{}: {error}", point.series));
            assert_eq!(parameters.protocol, FAMILIES[index / 2].variants[0]);
            assert_eq!(parameters.connections, if index % 2 == 0 { 1 } else { 24 });
            assert_eq!((parameters.sizes[0], parameters.reply), (100, Some(4096)));
            assert_eq!((&parameters.mix, parameters.window), (&None, 1));
        }
        assert_eq!(experiment.points[1].series, "100 B, reply 4096 B, send-receive");
        let one = own_requests(Effort::Quick, &OwnRequests { clients: 1, ..own });
        assert_eq!(one.points.len(), FAMILIES.len());
    }

    #[test]
    fn own_requests_may_have_a_mix_of_sizes_and_pauses() {
        let checked = |own: &OwnRequests| {
            let points = own_requests(Effort::Quick, own).points;
            for point in &points {
                point.parameters.check().unwrap_or_else(|error| panic!("{}: {error}", point.series));
            }
            points
        };
        let mixed = own(&[(64, 9.0), (5000, 1.0)], None);
        let points = checked(&mixed);
        // Buffered-Read supports one size only.
        assert_eq!(points.len(), 2 * (FAMILIES.len() - 1));
        for point in &points {
            let Parameters { mix, sizes, reply, .. } = &point.parameters;
            assert_eq!((mix, &sizes[..], reply), (&Some(mixed.sizes.clone()), &[5000][..], &None));
        }
        assert_eq!(points[0].series, "64:9+5000:1 B, replies alike, send-receive");
        let thinking = checked(&OwnRequests { think_us: 50, ..own(&[(64, 1.0)], None) });
        assert!(thinking.iter().all(|point| point.parameters.think_us == 50 && point.parameters.window == 1));
        let series = "64 B, reply 64 B, closed loop with 50 us of think time, send-receive";
        assert_eq!(thinking[0].series, series);
        // One client of 24 offers its share of the rate.
        let paced = checked(&OwnRequests { rate: Some(48_000.0), ..own(&[(64, 1.0)], Some(16)) });
        assert_eq!([0, 1].map(|index| paced[index].parameters.rate), [Some(2000.0), Some(48_000.0)]);
        assert!(paced.iter().all(|point| point.parameters.window == 64));
        let series = "64 B, reply 16 B, open loop of 2000 requests/s for each client, send-receive";
        assert_eq!([0, 1].map(|index| paced[index].series.as_str()), [series; 2]);
    }

    #[test]
    fn own_points_of_one_name_have_the_same_parameters() {
        let mixed = |sizes: &[(usize, f64)]| own(sizes, Some(64));
        let many: Vec<(usize, f64)> = (1..=40).map(|number| (100 * number, number as f64)).collect();
        let heavier: Vec<(usize, f64)> = many.iter().map(|&(bytes, weight)| (bytes, weight + 1.0)).collect();
        let paced = |clients: usize, rate: f64| OwnRequests { clients, rate: Some(rate), ..mixed(&[(64, 1.0)]) };
        let all = [
            mixed(&[(64, 9.0), (5000, 1.0)]),
            mixed(&[(64, 1.0), (5000, 1.0)]),
            mixed(&[(100, 9.0), (5000, 1.0)]),
            mixed(&many),
            mixed(&heavier),
            OwnRequests { think_us: 5, ..mixed(&many) },
            paced(24, 48_000.0),
            paced(12, 48_000.0),
            paced(24, 50_000.0),
            // One client of these has the rate of one client of the first.
            paced(12, 24_000.0),
        ];
        let mut named: BTreeMap<(String, usize), Parameters> = BTreeMap::new();
        let points: Vec<Point> = all.iter().flat_map(|own| own_requests(Effort::Quick, own).points).collect();
        for Point { series, x, parameters } in &points {
            assert!(series.len() < 160, "{series}");
            let other = named.insert((series.clone(), *x as usize), parameters.clone());
            assert!(other.is_none_or(|other| other == *parameters), "{series}: {parameters:?}");
        }
        assert_eq!(points.len() - named.len(), FAMILIES.len());
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
