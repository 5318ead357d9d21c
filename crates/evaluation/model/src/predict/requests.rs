//! Requests with replies in a closed loop.
//!
//! Requests and replies use the same connections, in opposite directions. Each connection has a fixed number of
//! requests outstanding: its client sends a request as soon as a reply arrives. The throughput is the smallest of
//!
//! - the bounds of each direction alone, such as windows, and
//! - the bounds of CPUs, NICs and the link, with the costs of a request and of its reply together, and
//! - `connections * outstanding / round trip`. A round trip is `t(request) + t(reply)` with the latencies alone, the
//!   posts of reports before the reply, and the [waits](super::waiting) for threads, links and free space. The think
//!   time of the clients counts as a part of the round trip.

use doorbell_protocols::{End, Protocol, Role};

use super::waiting::{Server, round_trip_ns};
use super::{BoundKind, Form, Forms, Prediction, Tally, posting, shared};
use crate::cost::{Cost, Term, Values};
use crate::parameters::Parameters;
use crate::setting::Setting;
use crate::steps::{Charged, charged};
use crate::workload::{Peers, Workload, WorkloadError};

/// Requests of one size, each with a reply of another size, in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Protocol, size of the requests, threads and connections. The senders are threads of clients, and the receivers
    /// are threads of the server. The window is the number of outstanding requests of each connection.
    pub request: Workload,
    /// Bytes of payload per reply.
    pub reply_bytes: u64,
    /// Microseconds between a reply and the next request in its place of the window.
    pub think_us: u64,
}

/// Maximum think time in microseconds, as in measurements.
const MOST_THINK_US: u64 = 1_000_000;

impl Requests {
    /// Returns the workload of the replies alone, whose senders are the threads of the server.
    fn replies(&self) -> Workload {
        let Peers { senders, receivers, connections } = self.request.peers;
        Workload {
            bytes: self.reply_bytes,
            // The connections of a client do not share receives.
            srq: false,
            repost_thread: false,
            peers: Peers { senders: receivers, receivers: senders, connections },
            ..self.request()
        }
    }

    /// Returns the workload of the requests alone.
    fn request(&self) -> Workload {
        // Each connection has a completion queue of its own, in which a poll finds at most a window of messages.
        let together = |batch: u32| batch.min(self.request.window);
        Workload {
            bidirectional: false,
            receive_batch: together(self.request.receive_batch),
            repost_batch: together(self.request.repost_batch),
            ..self.request
        }
    }

    /// Returns the number of outstanding requests of all connections.
    pub fn in_flight(&self) -> f64 {
        f64::from(self.request.peers.connections) * f64::from(self.request.window)
    }

    /// Returns the mean nanoseconds from a request to its reply with full windows. By Little's law, a place of a window
    /// is used again after `in_flight / throughput`, of which the client thinks for a part.
    pub fn loaded_ns(&self, prediction: &Prediction) -> f64 {
        prediction.loaded_ns(self.in_flight()) - self.think_ns()
    }

    fn think_ns(&self) -> f64 {
        self.think_us as f64 * 1e3
    }

    /// Checks that all numbers are in their ranges and consistent.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Workload::check`] for the requests or for the replies, or an error for the think time.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if self.think_us > MOST_THINK_US {
            let (what, given) = ("the think time", self.think_us);
            return Err(WorkloadError { what, given, least: 0, most: MOST_THINK_US });
        }
        self.request().check()?;
        self.replies().check().map_err(|error| match error.what {
            "the message size" => WorkloadError { what: "the reply size", ..error },
            _ => error,
        })
    }
}

/// Predicts the time from a request to its reply, and the requests per second. The latency is that of a request alone.
///
/// # Errors
///
/// Returns the error of [`Requests::check`] if the requests are impossible.
pub fn predict_requests(parameters: &Parameters, requests: &Requests) -> Result<Prediction, WorkloadError> {
    let closed = ClosedLoop::of(&Setting::of(parameters), requests)?;
    let values = parameters.values();
    let without_waits_ns = closed.without_waits_ns(&values) + requests.think_ns();
    let round_trip_ns = round_trip_ns(without_waits_ns, &closed.servers(requests, &values));
    let mut forms = closed.forms;
    let cost = Cost::constant(round_trip_ns / requests.in_flight());
    forms.bounds.push(Form { kind: BoundKind::RoundTrip, cost });
    // Results of measurements count the payload of the longer direction too.
    Ok(Prediction::of(&forms, parameters, requests.request.bytes.max(requests.reply_bytes) as f64))
}

/// Predicts the mean nanoseconds from the time at which a request is due to its reply, in an open loop. Requests are
/// due at a fixed rate, in turn on each connection. `sizes` has the requests of each size and their weights, all with
/// the same threads and windows. `share` is the rate divided by the predicted throughput of all sizes together, below
/// 1.
///
/// # Errors
///
/// Returns the error of [`Requests::check`] if the requests are impossible.
pub fn predict_offered(parameters: &Parameters, sizes: &[(Requests, f64)], share: f64) -> Result<f64, WorkloadError> {
    let (setting, values) = (Setting::of(parameters), parameters.values());
    let weights: f64 = sizes.iter().map(|(_, weight)| weight).sum();
    let mut without_waits_ns = 0.0;
    let (mut predictions, mut servers, mut in_flight) = (Vec::new(), Vec::new(), 0.0);
    for (requests, weight) in sizes {
        let (requests, weight) = (Requests { think_us: 0, ..*requests }, weight / weights);
        let closed = ClosedLoop::of(&setting, &requests)?;
        without_waits_ns += weight * closed.without_waits_ns(&values);
        predictions.push((weight, predict_requests(parameters, &requests)?));
        servers.push((weight, closed.servers(&requests, &values)));
        in_flight = requests.in_flight();
    }
    let requests_per_ns = share * Prediction::mean(predictions).messages_per_s / 1e9;
    // Each size has the same threads and links.
    let count = servers.iter().map(|(_, all)| all.len()).min().unwrap_or(0);
    let waits = (0..count).map(|index| {
        let of_sizes: Vec<(f64, Server)> = servers.iter().map(|(weight, all)| (*weight, all[index])).collect();
        let busy_ns: f64 = of_sizes.iter().map(|(weight, server)| weight * server.busy_ns).sum();
        let alike = in_flight / of_sizes.first().map_or(in_flight, |(_, server)| server.in_flight);
        // A server that binds saves reports, so it is busy for at most this share of the time.
        Server::mix_wait_ns(&of_sizes, (requests_per_ns / alike * busy_ns).min(share))
    });
    Ok(without_waits_ns + waits.sum::<f64>())
}

/// Costs of requests in a closed loop.
struct ClosedLoop {
    /// The latency alone, and the bounds without the bound of the whole round trip.
    forms: Forms,
    /// Bounds of CPUs and links with the reports of threads that are idle at times.
    unsaturated: Vec<Form>,
    /// Time that a request and its reply wait for free space.
    late: Cost,
    /// Number of looks of a client's and of a server's thread for which a request waits.
    looks: [f64; 2],
    /// Number of times that a request and its reply wait for the link from the clients and from the server.
    crossings: [f64; 2],
}

impl ClosedLoop {
    fn of(setting: &Setting, requests: &Requests) -> Result<Self, WorkloadError> {
        requests.check()?;
        let (request, replies) = (requests.request(), requests.replies());
        let both = |request_steps: &[Charged], reply_steps: &[Charged]| -> Result<(Tally, Tally), WorkloadError> {
            // As messages flow in both directions, no separate step returns credits.
            let answered = |workload: &Workload| Workload { bidirectional: true, ..*workload };
            let there = Tally::of(setting, &answered(&request), request_steps)?;
            let back = Tally::of(setting, &answered(&replies), reply_steps)?;
            Ok((there, back))
        };
        let (asking, replying) = (steps(&request), steps(&replies));
        let (there, back) = both(&asking, &replying)?;
        let latency = there.delivery.plus(&reporting(setting, &request, &asking)).plus(&back.delivery);
        let mut forms = Forms { latency, bounds: Vec::new() };
        let mut push = |kind, cost: Cost| forms.bounds.push(Form { kind, cost });
        for (one_way, workload) in [(&there, &request), (&back, &replies)] {
            one_way.flow(setting, workload, &mut push);
            shared(setting, workload, &mut push);
        }
        let Tally { late, looks, crossings, .. } = there.with_replies(&back);
        there.with_replies(&back).resources(setting, &request, &mut push);
        let (there, back) = both(&unsaturated(asking), &unsaturated(replying))?;
        let mut unsaturated = Vec::new();
        let mut push = |kind, cost: Cost| unsaturated.push(Form { kind, cost });
        there.with_replies(&back).resources(setting, &request, &mut push);
        Ok(Self { forms, unsaturated, late, looks, crossings })
    }

    /// Returns the nanoseconds of a request and its reply that wait for no thread and no link.
    fn without_waits_ns(&self, values: &Values) -> f64 {
        self.forms.latency.plus(&self.late).ns(values)
    }

    /// Returns the threads and links for which requests wait.
    fn servers(&self, requests: &Requests, values: &Values) -> Vec<Server> {
        let Peers { senders, receivers, connections } = requests.request.peers;
        let cost = |kind| self.unsaturated.iter().find(|form| form.kind == kind).map(|form| form.cost);
        let threads = [(BoundKind::SendingCpu, senders), (BoundKind::ReceivingCpu, receivers)];
        let threads = threads.into_iter().zip(self.looks).filter_map(|((kind, threads), looks)| {
            let threads = f64::from(threads);
            let busy = cost(kind)?.scaled(threads);
            // A turn has a look at each connection, whether it finds something or not.
            let busy_ns = busy.with(Term::ReceivePoll, -busy.times(Term::ReceivePoll)).ns(values);
            // A client sends the next request a turn after the reply, which takes as long as two waits for a turn.
            let visits = if kind == BoundKind::SendingCpu { looks + 2.0 } else { looks };
            Some(Server {
                connections: f64::from(connections) / threads,
                in_flight: requests.in_flight() / threads,
                visits,
                turns: 0.0,
                look_ns: values[Term::ReceivePoll as usize],
                service_ns: busy_ns / visits.max(1.0),
                busy_ns,
            })
        });
        let links = [BoundKind::Link, BoundKind::LinkBackward].into_iter().zip(self.crossings);
        let links = links.filter_map(|(kind, crossings)| {
            let busy_ns = cost(kind)?.ns(values);
            Some(Server {
                connections: 1.0,
                in_flight: requests.in_flight(),
                // Requests of one crossing take turns on the link. Further messages come between those of others.
                visits: (crossings - 1.0).max(0.0),
                turns: crossings.min(1.0),
                look_ns: 0.0,
                service_ns: busy_ns,
                busy_ns,
            })
        });
        threads.chain(links).collect()
    }
}

/// Returns the steps of a message that has a reply, or is one.
///
/// A connection has at most a window of requests outstanding, so a report is for at most a window of messages.
fn steps(workload: &Workload) -> Vec<Charged> {
    let mut steps = charged(&Workload { bidirectional: true, ..*workload });
    for step in &mut steps {
        let least = step.per_message.min(1.0 / f64::from(workload.window));
        step.per_message_busy = step.per_message_busy.max(least);
        // The sender of Direct-Write has space for the grants of two windows. An idle receiver grants again before
        // fewer than a group of them are left.
        if workload.protocol == Protocol::DirectWrite
            && let Some(group) = step.step.when.freed_at_once(workload.spaces())
        {
            let unused = workload.window.saturating_mul(2).saturating_sub(group);
            step.per_message = 1.0 / f64::from(group.min(unused.saturating_add(1)));
        }
    }
    steps
}

/// Returns the steps with the reports of a thread that is idle at times.
fn unsaturated(steps: Vec<Charged>) -> Vec<Charged> {
    steps.into_iter().map(|step| Charged { per_message_busy: step.per_message, ..step }).collect()
}

/// Returns the time by which reports of the server delay its replies. The server posts a report to the sender of a
/// request before the reply, and the NIC sends the posts of a connection in their order.
fn reporting(setting: &Setting, workload: &Workload, steps: &[Charged]) -> Cost {
    let is_report = |step: &&Charged| step.role == Role::Release && step.step.by == End::Receiver;
    steps.iter().filter(is_report).fold(Cost::ZERO, |sum, step| {
        let post = posting(step, setting, workload).with(Term::ListFetch, if step.chained { 1.0 } else { 0.0 });
        sum.plus(&post.scaled(step.per_message))
    })
}

impl Tally {
    /// Returns the costs of a request and its reply at both ends. The sender of requests receives the replies.
    fn with_replies(&self, replies: &Self) -> Self {
        let sum = |own: &[Cost; 2], other: &[Cost; 2]| [own[0].plus(&other[1]), own[1].plus(&other[0])];
        let ([own, other], [replying, receiving]) = (self.line_bytes, replies.line_bytes);
        Self {
            cpu: sum(&self.cpu, &replies.cpu),
            fetches: [self.fetches[0] + replies.fetches[1], self.fetches[1] + replies.fetches[0]],
            nic_out: sum(&self.nic_out, &replies.nic_out),
            nic_in: sum(&self.nic_in, &replies.nic_in),
            line_bytes: [own + receiving, other + replying],
            late: self.late.plus(&replies.late),
            looks: [self.looks[0] + replies.looks[1], self.looks[1] + replies.looks[0]],
            crossings: [self.crossings[0] + replies.crossings[1], self.crossings[1] + replies.crossings[0]],
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::predict;

    fn of(request: Workload, reply_bytes: u64) -> (Requests, Prediction) {
        let requests = Requests { request, reply_bytes, think_us: 0 };
        (requests, predict_requests(&Parameters::t1(), &requests).unwrap())
    }

    fn is_near(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 1e-9
    }

    #[test]
    fn one_outstanding_request_takes_the_latency_of_both_messages() {
        let t1 = Parameters::t1();
        let (requests, prediction) = of(Workload::sequential(200), 65_536);
        let alone = |bytes| predict(&t1, &Workload::sequential(bytes)).unwrap().latency_ns;
        assert!(is_near(prediction.latency_ns, alone(200) + alone(65_536)));
        assert_eq!(prediction.bottleneck().binding.kind, BoundKind::RoundTrip);
        assert!(is_near(prediction.loaded_ns(requests.in_flight()), prediction.latency_ns), "{prediction:#?}");
    }

    #[test]
    fn payload_is_that_of_the_longer_direction_as_in_results() {
        use doorbell_record::{Kind, Operation, Parameters as Measured};
        for (bytes, reply_bytes) in [(200, 65_536), (65_536, 200)] {
            let (_, prediction) = of(Workload::sequential(bytes), reply_bytes);
            let measured = Measured {
                reply: Some(reply_bytes as usize),
                ..Measured::plain(Kind::Bandwidth, Operation::RequestResponse, bytes as usize)
            };
            let payload = measured.longest(bytes as usize) as f64;
            assert!(is_near(prediction.bytes_per_s, prediction.messages_per_s * payload), "{prediction:#?}");
        }
    }

    #[test]
    fn long_replies_to_many_clients_fill_the_link_from_the_server() {
        let request = Workload { peers: Peers::many_to_one(24), ..Workload::new(200, 16, 1) };
        let (requests, prediction) = of(request, 65_536);
        let Prediction { latency_ns, messages_per_s, .. } = prediction;
        assert_eq!(prediction.bottleneck().binding.kind, BoundKind::LinkBackward);
        // 100 Gb/s carry 65536 B and the headers of 16 packets.
        let most = 12.5e9 / 65_536.0;
        assert!((0.96 * most..most).contains(&messages_per_s), "{messages_per_s}");
        // By Little's law, 384 requests in flight take much longer than one request alone.
        let loaded_ns = prediction.loaded_ns(requests.in_flight());
        assert!(is_near(loaded_ns * messages_per_s / 1e9, 384.0) && loaded_ns > 50.0 * latency_ns, "{loaded_ns}");
    }

    #[test]
    fn equal_sizes_cost_as_much_as_messages_in_both_directions() {
        for protocol in [Protocol::SendReceive, Protocol::BufferedWriteTailSend, Protocol::DirectWrite] {
            for bytes in [16, 4096] {
                let request = Workload { protocol, ..Workload::new(bytes, 256, 1) };
                let (_, requests) = of(request, bytes);
                let both = predict(&Parameters::t1(), &Workload { bidirectional: true, ..request }).unwrap();
                for kind in [BoundKind::SendingCpu, BoundKind::ReceivingCpu, BoundKind::Link, BoundKind::LinkBackward] {
                    let [one, other] = [&requests, &both].map(|all| all.bound(kind).unwrap().ns_per_message);
                    // A connection reports at least once in a window of requests, and a busy stream more rarely.
                    let more = 1.0 - 2.0 * other / one;
                    assert!((-1e-9..0.001).contains(&more), "{protocol}, {bytes} B, {kind}: {one} {other}");
                }
            }
        }
    }

    #[test]
    fn more_server_threads_help_where_the_server_binds() {
        let of = |receivers| {
            let peers = Peers { senders: 24, receivers, connections: 24 };
            of(Workload { peers, ..Workload::new(64, 32, 1) }, 64).1
        };
        let (one, four) = (of(1), of(4));
        assert_eq!(one.bottleneck().binding.kind, BoundKind::ReceivingCpu);
        assert!(four.messages_per_s > 3.5 * one.messages_per_s, "{one:#?} {four:#?}");
    }

    fn loaded_ns(request: Workload, reply_bytes: u64) -> f64 {
        let (requests, prediction) = of(request, reply_bytes);
        prediction.loaded_ns(requests.in_flight())
    }

    fn clients(count: u32, protocol: Protocol) -> Workload {
        Workload { protocol, depth: 8, peers: Peers::many_to_one(count), ..Workload::sequential(200) }
    }

    #[test]
    fn requests_of_many_clients_wait_for_the_server() {
        let loaded = [1, 4, 16, 24, 64].map(|count| loaded_ns(clients(count, Protocol::SendReceive), 200));
        assert!(loaded.is_sorted(), "{loaded:?}");
        // A server whose thread is idle for a third of the time delays requests. A saturated one serves them in turn.
        let (_, sixteen) = of(clients(16, Protocol::SendReceive), 200);
        assert_eq!(sixteen.bottleneck().binding.kind, BoundKind::RoundTrip);
        assert!(loaded[2] > 1.1 * sixteen.latency_ns, "{loaded:?}");
        let (_, many) = of(clients(64, Protocol::SendReceive), 200);
        let busy_ns = many.bound(BoundKind::ReceivingCpu).unwrap().ns_per_message;
        assert!(is_near(loaded[4], 64.0 * busy_ns), "{many:#?}");
    }

    #[test]
    fn requests_of_one_client_thread_wait_for_its_turns_too() {
        let many = clients(16, Protocol::SendReceive);
        let one = Workload { peers: Peers::connections(16), ..many };
        assert!(loaded_ns(one, 200) > 1.2 * loaded_ns(many, 200));
    }

    #[test]
    fn long_replies_take_turns_on_the_link_but_reads_wait_between_them() {
        let alone = |protocol| of(clients(2, protocol), 65_536).1.latency_ns;
        let loaded = |protocol| loaded_ns(clients(2, protocol), 65_536);
        let over = |protocol| loaded(protocol) / alone(protocol);
        assert!(over(Protocol::SendReceive) < 1.03 && over(Protocol::DirectRead) > 1.07);
    }

    #[test]
    fn senders_to_a_short_ring_wait_for_its_head() {
        // Without waits for space, the second would only have the waits of its turns.
        let short = loaded_ns(Workload { depth: 1, ..clients(24, Protocol::SharedWrite) }, 200);
        let long = loaded_ns(Workload { depth: 64, ..clients(24, Protocol::SharedWrite) }, 200);
        assert!(short > long + 3000.0, "{short} {long}");
    }

    #[test]
    fn servers_with_idle_threads_grant_buffers_one_by_one() {
        let per_message = |window: u32| {
            let request = Workload { window, depth: 2 * window.max(4), ..clients(1, Protocol::DirectWrite) };
            steps(&request)[1].per_message
        };
        // The ring of grants of a window of one has two places.
        assert_eq!([per_message(1), per_message(4)], [1.0, 0.5]);
    }

    #[test]
    fn a_reply_that_is_too_long_is_refused_by_its_name() {
        let requests = Requests { request: Workload::sequential(16), reply_bytes: 1 << 40, think_us: 0 };
        let error = predict_requests(&Parameters::t1(), &requests).expect_err("too long");
        assert_eq!(error.to_string(), "the reply size is 1099511627776, allowed is 0 to 1073741824");
        let requests = Requests { reply_bytes: 16, think_us: 1 << 40, ..requests };
        let error = predict_requests(&Parameters::t1(), &requests).expect_err("too long");
        assert_eq!(error.to_string(), "the think time is 1099511627776, allowed is 0 to 1000000");
    }

    #[test]
    fn clients_that_think_send_fewer_requests() {
        let t1 = Parameters::t1();
        let (busy, without) = of(clients(16, Protocol::SendReceive), 200);
        let thinking = Requests { think_us: 100, ..busy };
        let with = predict_requests(&t1, &thinking).unwrap();
        assert!(is_near(with.latency_ns, without.latency_ns), "{with:#?}");
        // With 16 clients, almost no request meets another one. A round trip takes little more than the latency alone.
        let loaded_ns = thinking.loaded_ns(&with);
        assert!(is_near(16e9 / with.messages_per_s, loaded_ns + 100e3), "{with:#?}");
        assert!(loaded_ns >= with.latency_ns && loaded_ns < busy.loaded_ns(&without), "{loaded_ns}");
    }

    #[test]
    fn a_request_of_an_open_loop_waits_longer_at_a_higher_rate() {
        let t1 = Parameters::t1();
        let (requests, prediction) = of(Workload { window: 64, depth: 128, ..clients(16, Protocol::SendReceive) }, 200);
        let at = |share| predict_offered(&t1, &[(requests, 1.0)], share).unwrap();
        let times = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99].map(at);
        assert!(times.is_sorted() && times[0] >= prediction.latency_ns && times[5].is_finite(), "{times:?}");
        // The server looks at 16 connections in turns. Half a turn takes 0.4 us.
        assert!(times[0] < prediction.latency_ns + 600.0 && times[4] > prediction.latency_ns + 1500.0, "{times:?}");
        let thinking = Requests { think_us: 50, ..requests };
        assert!(is_near(predict_offered(&t1, &[(thinking, 1.0)], 0.5).unwrap(), times[2]));
        assert!(is_near(predict_offered(&t1, &[(requests, 2.0), (requests, 3.0)], 0.5).unwrap(), times[2]));
    }

    /// `doorbell bench --testbed t1 --sizes 16:9,1M:1 --reply 64 --clients 24 --server-threads 1 --outstanding 1`
    /// simulates a mean of 13.2 us with `--rate 5k`, and of 41.4 us with `--rate 50k`.
    #[test]
    fn short_requests_of_an_open_loop_wait_for_long_ones() {
        let t1 = Parameters::t1();
        let sizes = [(16, 9.0), (1 << 20, 1.0)].map(|(bytes, weight)| {
            let request = Workload { peers: Peers::many_to_one(24), ..Workload::sequential(bytes) };
            (of(request, 64).0, weight)
        });
        let all = sizes.map(|(requests, weight)| (weight, predict_requests(&t1, &requests).unwrap()));
        let most = Prediction::mean(all.to_vec()).messages_per_s;
        for (rate, simulated_ns) in [(5e3, 13.2e3), (50e3, 41.4e3)] {
            let found = predict_offered(&t1, &sizes, rate / most).unwrap();
            assert!((found / simulated_ns - 1.0).abs() < 0.1, "{rate} requests/s: {found} ns");
        }
    }
}
