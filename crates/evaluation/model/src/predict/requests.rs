//! Requests with replies in a closed loop.
//!
//! Requests and replies use the same connections, in opposite directions. Each connection has a fixed number of
//! requests outstanding: its client sends a request as soon as a reply arrives. The throughput is the smallest of
//!
//! - the bounds of each direction alone, such as windows, and
//! - the bounds of CPUs, NICs and the link, with the costs of a request and of its reply together, and
//! - `connections * outstanding / (t(request) + t(reply))`, with the latencies alone.

use super::{BoundKind, Form, Forms, Prediction, Tally, shared};
use crate::cost::Cost;
use crate::parameters::Parameters;
use crate::setting::Setting;
use crate::workload::{Peers, Workload, WorkloadError};

/// Requests of one size, each with a reply of another size, in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Protocol, size of the requests, threads and connections. The senders are threads of clients, and the receivers
    /// are threads of the server. The window is the number of outstanding requests of each connection.
    pub request: Workload,
    /// Bytes of payload per reply.
    pub reply_bytes: u64,
}

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
        Workload { bidirectional: false, ..self.request }
    }

    /// Returns the number of outstanding requests of all connections.
    pub fn in_flight(&self) -> f64 {
        f64::from(self.request.peers.connections) * f64::from(self.request.window)
    }

    /// Checks that all numbers are in their ranges and consistent.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Workload::check`] for the requests or for the replies.
    pub fn check(&self) -> Result<(), WorkloadError> {
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
    let forms = forms(&Setting::of(parameters), requests)?;
    // Results of measurements count the payload of the longer direction too.
    Ok(Prediction::of(&forms, parameters, requests.request.bytes.max(requests.reply_bytes) as f64))
}

fn forms(setting: &Setting, requests: &Requests) -> Result<Forms, WorkloadError> {
    requests.check()?;
    let (request, replies) = (requests.request(), requests.replies());
    let (there, back) = (tally(setting, &request)?, tally(setting, &replies)?);
    let latency = there.delivery.plus(&back.delivery);
    let mut bounds = Vec::new();
    let mut push = |kind, cost: Cost| bounds.push(Form { kind, cost });
    push(BoundKind::RoundTrip, latency.scaled(1.0 / requests.in_flight()));
    for (one_way, workload) in [(&there, &request), (&back, &replies)] {
        one_way.flow(setting, workload, &mut push);
        shared(setting, workload, &mut push);
    }
    there.with_replies(&back).resources(setting, &request, &mut push);
    Ok(Forms { latency, bounds })
}

/// Returns the costs of a message of one direction.
fn tally(setting: &Setting, workload: &Workload) -> Result<Tally, WorkloadError> {
    // As messages flow in both directions, no separate step returns credits.
    Tally::of(setting, &Workload { bidirectional: true, ..*workload })
}

impl Tally {
    /// Returns the costs of a request and its reply at both ends. The sender of requests receives the replies.
    fn with_replies(&self, replies: &Self) -> Self {
        let sum = |own: &[Cost; 2], other: &[Cost; 2]| [own[0].plus(&other[1]), own[1].plus(&other[0])];
        let ([own, other], [replying, receiving]) = (self.line_bytes, replies.line_bytes);
        Self {
            cpu: sum(&self.cpu, &replies.cpu),
            nic_out: sum(&self.nic_out, &replies.nic_out),
            nic_in: sum(&self.nic_in, &replies.nic_in),
            line_bytes: [own + receiving, other + replying],
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_protocols::Protocol;

    use super::*;
    use crate::predict::predict;

    fn of(request: Workload, reply_bytes: u64) -> (Requests, Prediction) {
        let requests = Requests { request, reply_bytes };
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
                assert!(
                    is_near(2.0 * requests.messages_per_s, both.messages_per_s),
                    "{protocol}, {bytes} B: {requests:#?}, {both:#?}"
                );
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

    #[test]
    fn a_reply_that_is_too_long_is_refused_by_its_name() {
        let requests = Requests { request: Workload::sequential(16), reply_bytes: 1 << 40 };
        let error = predict_requests(&Parameters::t1(), &requests).expect_err("too long");
        assert_eq!(error.to_string(), "the reply size is 1099511627776, allowed is 0 to 1073741824");
    }
}
