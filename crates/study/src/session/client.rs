//! The end that asks.

use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::{ConnectionError, Connector, setup, with_connector};
use doorbell_protocols::Protocol;
use doorbell_verbs::{Device, Pd};
use hdrhistogram::Histogram;

use super::control::{Control, FromServer, Report, ToServer, Watch};
use super::point::{Ends, Point, Prepared, SessionEnd};
use super::{ANSWER_DEADLINE, SessionError};
use crate::executor::{self, Idle};
use crate::one_sided::{self, RemoteMemory};
use crate::parameters::{Kind, Operation, Parameters, Timed, stride};
use crate::prediction::Path;
use crate::record::{BothEnds, Buckets, Conclusion, Counted, Latency, PointResult, Rates};
use crate::workload::{self, Reception, Tally};

/// The end that asks.
#[derive(Debug)]
pub struct Client {
    device: Device,
    pd: Pd,
    control: Control,
    parameters: Parameters,
}

impl Client {
    /// Greets the server and tells it what is to be measured.
    ///
    /// # Errors
    ///
    /// The parameters are not allowed, here or there.
    pub fn new(device: &Device, stream: TcpStream, parameters: Parameters) -> Result<Self, SessionError> {
        parameters.check()?;
        setup::exchange(&stream, &[], ANSWER_DEADLINE)?;
        let mut control = Control::new(stream)?;
        control.send(&ToServer::Parameters(Box::new(parameters.clone())))?;
        control.expect_accepted()?;
        Ok(Self { pd: device.create_pd()?, device: device.clone(), control, parameters })
    }

    /// Measures one size. `progress` hears how many messages of one connection are done.
    pub fn measure(&mut self, bytes: usize, progress: impl Fn(u64)) -> Result<PointResult, SessionError> {
        let result =
            with_connector!(self.parameters.protocol, connector => self.measure_over(connector, bytes, progress));
        // If the peer failed too, its reason is the better one.
        if let Err(SessionError::Connection { .. } | SessionError::Setup(_)) = &result
            && let Ok(FromServer::Failed(reason)) = self.control.receive(Some(Duration::from_secs(2)))
        {
            return Err(SessionError::Both {
                own: result.map_or_else(|e| e.to_string(), |_| String::new()),
                peer: reason,
            });
        }
        result
    }

    fn measure_over<P: Connector<Connection: Send>>(
        &mut self,
        protocol: P,
        bytes: usize,
        progress: impl Fn(u64),
    ) -> Result<PointResult, SessionError> {
        self.control.send(&ToServer::Point { bytes })?;
        let prepared = Prepared::new(protocol, &self.pd, &self.parameters, bytes, SessionEnd::Client)?;
        self.control.expect_accepted()?;
        let point = prepared.connect(&self.control.stream)?;
        let memory = match self.control.receive(Some(ANSWER_DEADLINE))? {
            FromServer::Ready { memory } => memory,
            other => return Err(other.instead_of("ready")),
        };
        let (fitted, before, mtu) = (point.fitted.clone(), point.before, point.mtu);
        let (tallies, histogram) = self.control.watched(|| self.run(point, &memory, &progress))?;
        if self.parameters.operation.is_one_sided() {
            self.control.send(&ToServer::Done { messages: tallies.iter().map(|tally| tally.sent).collect() })?;
        }
        let own = Report::new(&tallies, &self.device, &before);
        let report = match self.control.receive::<FromServer>(Some(ANSWER_DEADLINE))? {
            FromServer::Report(report) => *report,
            other => return Err(other.instead_of("a report")),
        };

        let parameters = &self.parameters;
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let seconds_since = |began_ns: fn(&Tally) -> u64| {
            let began_ns = tallies.iter().map(began_ns).min().unwrap_or(0);
            ended_ns.saturating_sub(began_ns).max(1) as f64 / 1e9
        };
        let seconds = seconds_since(|tally| tally.began_ns);
        // Counters know no warm-up.
        let counted_seconds = seconds_since(|tally| tally.first_ns);
        let messages = match parameters.kind {
            Kind::Latency => own.sent - workload::WARM_UP_ROUNDS * parameters.connections as u64,
            Kind::Bandwidth if parameters.bidirectional => own.sent + report.sent,
            Kind::Bandwidth => own.sent,
        };
        let ipv6 = self.device.attributes().address.is_ipv6();
        // SENDs without bytes are words, unless messages without bytes look the same.
        let control_sends = |end: &Report| {
            let is_alike = bytes == 0 && parameters.protocol == Protocol::SendReceive;
            is_alike.then_some(end.control_sends)
        };
        let counted = |end: &Report| Counted::of(&end.counters, end.keepalives, control_sends(end), ipv6);
        let counted = BothEnds { client: counted(&own), server: counted(&report) };
        let path = Path {
            operation: parameters.operation,
            protocol: parameters.protocol,
            bytes,
            mtu,
            credits: parameters.credits,
            window: fitted.window,
            batch: fitted.batch,
            depth: fitted.depth * parameters.connections,
            ipv6,
        };
        let mut predicted = BothEnds {
            client: path.predict(own.sent, own.received, counted.server.data_packets),
            server: path.predict(report.sent, report.received, counted.client.data_packets),
        };
        // Each control message may be acknowledged as well, and each packet that is sent again.
        let more = |counted: &Counted| counted.control_packets + counted.retransmitted_packets;
        predicted.client.ack_packets_max += more(&counted.server);
        predicted.server.ack_packets_max += more(&counted.client);
        let rates = BothEnds {
            client: Rates::of(&own.counters, counted_seconds),
            server: Rates::of(&report.counters, counted_seconds),
        };
        Ok(PointResult {
            bytes,
            messages,
            seconds,
            messages_per_s: messages as f64 / seconds,
            bytes_per_s: messages as f64 * bytes as f64 / seconds,
            latency_ns: histogram.as_ref().map(Latency::of),
            timed: parameters.operation.timed(),
            histogram_ns: histogram.as_ref().map(Buckets::of),
            fitted,
            mtu: mtu.bytes(),
            explained: BothEnds {
                client: Conclusion::of(&rates.client, ipv6),
                server: Conclusion::of(&rates.server, ipv6),
            },
            rates,
            counted,
            predicted,
            damaged: own.damaged + report.damaged,
            stalled_on_credits: own.stalled_on_credits + report.stalled_on_credits,
            sent_by_connection: tallies.iter().map(|tally| tally.sent).collect(),
            counters: BothEnds { client: own.counters, server: report.counters },
            link: BothEnds { client: own.link, server: report.link },
        })
    }

    /// Runs the workload of a point on all its connections.
    fn run<P: Connector<Connection: Send>>(
        &self,
        point: Point<P>,
        memory: &[RemoteMemory],
        progress: &impl Fn(u64),
    ) -> Result<(Vec<Tally>, Option<Histogram<u64>>), SessionError> {
        let Point { ends, fitted, plan, idle, .. } = point;
        let (parameters, device, control) = (&self.parameters, &self.device, &self.control);
        let watch = Watch { device, side: SessionEnd::Client, rounds_are_long: parameters.slow_receiver_us > 0 };
        let failed = |error| SessionError::Connection { bytes: plan.bytes, error };
        match (ends, parameters.kind) {
            (Ends::Messages(ends), Kind::Latency) => {
                let divisor = if parameters.operation.timed() == Timed::HalfRoundTrip { 2 } else { 1 };
                let tasks = ends.into_iter().map(|(connection, memory)| {
                    workload::ping(connection, idle.clone(), device.clone(), plan, memory, divisor, progress)
                });
                together(control.run(&watch, &idle, tasks)?).map_err(failed)
            }
            (Ends::Messages(ends), Kind::Bandwidth) if parameters.operation == Operation::RequestResponse => {
                let tasks = ends.into_iter().map(|(connection, memory)| {
                    workload::request(connection, idle.clone(), device.clone(), plan, memory, progress)
                });
                let tallies: Result<_, _> = control.run(&watch, &idle, tasks)?.into_iter().collect();
                Ok((tallies.map_err(failed)?, None))
            }
            (Ends::Messages(ends), Kind::Bandwidth) => {
                let reception = Reception { verify: parameters.verify, pause_ns: 0 };
                if parameters.serving.threads > 1 {
                    let hands = executor::deal(parameters.serving.threads, ends, |ends| {
                        let idle = Idle::spin();
                        let tasks = ends.into_iter().map(|(connection, memory)| {
                            let plan = Some((plan, memory));
                            workload::stream(connection, idle.clone(), device.clone(), plan, reception, |_| {})
                        });
                        vec![control.run(&watch, &idle, tasks)]
                    });
                    let hands: Result<Vec<_>, _> = hands.into_iter().collect();
                    let tallies: Result<_, _> = hands?.into_iter().flatten().collect();
                    return Ok((tallies.map_err(failed)?, None));
                }
                let tasks = ends.into_iter().map(|(connection, memory)| {
                    let plan = Some((plan, memory));
                    workload::stream(connection, idle.clone(), device.clone(), plan, reception, progress)
                });
                let tallies: Result<_, _> = control.run(&watch, &idle, tasks)?.into_iter().collect();
                Ok((tallies.map_err(failed)?, None))
            }
            (Ends::Replicated(readers, count, memory), _) => {
                let source = (plan, memory);
                let task = workload::publish(readers, count, idle.clone(), device.clone(), source, progress);
                let tallies: Result<Vec<_>, _> = control.run(&watch, &idle, [task])?.into_iter().collect();
                Ok((tallies.map_err(failed)?.concat(), None))
            }
            (Ends::Gathered(_), _) => unreachable!("only the other end gathers"),
            (Ends::OneSided(ends), kind) => {
                let needed = (fitted.send_buffers * stride(plan.bytes)) as u64;
                if memory.len() != ends.len() || memory.iter().any(|memory| memory.bytes < needed) {
                    let what = format!("no {} regions of {needed} B, but {memory:?}", ends.len());
                    return Err(SessionError::Unexpected(what));
                }
                let ends = ends.iter().zip(memory);
                if kind == Kind::Latency {
                    let tasks = ends
                        .map(|(end, &memory)| one_sided::time(end, memory, parameters, plan, idle.clone(), progress));
                    return together(control.run(&watch, &idle, tasks)?).map_err(failed);
                }
                let tasks = ends.map(|(end, &memory)| {
                    one_sided::stream(end, memory, parameters, &fitted, plan, idle.clone(), progress)
                });
                let tallies: Result<_, _> = control.run(&watch, &idle, tasks)?.into_iter().collect();
                Ok((tallies.map_err(failed)?, None))
            }
        }
    }

    /// Says that that was all.
    pub fn finish(mut self) -> Result<(), SessionError> {
        self.control.send(&ToServer::End)
    }
}

type Timings = Vec<Result<(Tally, Histogram<u64>), ConnectionError>>;

/// What all connections have seen, in one histogram.
fn together(results: Timings) -> Result<(Vec<Tally>, Option<Histogram<u64>>), ConnectionError> {
    let (mut tallies, mut all) = (Vec::new(), Buckets::empty_histogram());
    for result in results {
        let (tally, histogram) = result?;
        tallies.push(tally);
        all.add(&histogram).unwrap_or_else(|_| unreachable!("both resize by themselves"));
    }
    Ok((tallies, Some(all)))
}
