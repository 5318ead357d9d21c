//! Coordinator of a point about shared memory. The coordinator leads the parties through set-up and combines their
//! reports.

use std::net::{Ipv6Addr, TcpStream};
use std::time::Duration;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::workload::{HostTally, Load, Report as StoreReport};
use doorbell_farmem::{BOX, Strategy};

use super::super::hosts::{ANSWER, Clock, HostError, Hosts, Interval, PERFORMANCE, in_common, of_common_time};
use super::super::report::Report;
use super::super::{FromServer, Introduction, SessionError, ToServer};
use super::{ClientsDone, Duties, End, Ends, Made, Parties};
use crate::far::{FarPoint, StorePoint};
use crate::parameters::Parameters;
use crate::pinning::ProcessPosition;
use crate::prediction::Predicted;
use crate::record::{BothEnds, Counted, HostResult, PointResult};
use doorbell_machine::cpu::CpuPerMessage;

/// Maximum time to make the parties of a store, which may write millions of keys.
const MAKING: Duration = Duration::from_secs(120);

/// Number by which the memory node identifies the metadata service. Clients have numbers from 1.
const METADATA: u32 = 0;

/// Measures one point about shared memory on several hosts.
///
/// `streams` has an entry for each host with a part in the point, in the order of [`Parties::duties`]. An entry has the
/// name of the host for errors and records, the stream, and the host's position among the processes on its machine. The
/// process at the other end of each stream must call [`serve`](crate::session::serve).
///
/// # Errors
///
/// A host refuses, fails, or is gone. The error names the host.
///
/// # Panics
///
/// Panics if the parameters have no point about shared memory, or if the numbers of streams and of hosts with a part
/// differ.
pub fn measure_parties(
    streams: Vec<(String, TcpStream, ProcessPosition)>,
    introduction: &Introduction,
    parameters: &Parameters,
    parties: &Parties,
) -> Result<PointResult, HostError> {
    let point = parameters.far.as_deref().unwrap_or_else(|| panic!("the parameters have no point about shared memory"));
    let duties = parties.duties(point);
    assert_eq!(streams.len(), duties.len(), "one stream for each host that has a part");
    let (hosts, clocks) = Hosts::meet(streams, introduction, parameters)?;
    let mut stage = Stage { hosts, clocks, duties: &duties, point };
    let ends = stage.set_up()?;
    let start_ns = stage.go()?;
    let seen = stage.hear_all()?;
    stage.hosts.say(|_| ToServer::End)?;
    stage.result(seen, &ends, start_ns)
}

struct Stage<'a> {
    hosts: Hosts,
    clocks: Vec<Clock>,
    /// Duties of each host, with the host's number.
    duties: &'a [(usize, Duties)],
    point: &'a FarPoint,
}

/// Last messages of a host.
struct Seen {
    done: Option<FromServer>,
    report: Report,
}

impl Stage<'_> {
    /// Returns the index of the first host whose duties satisfy `is`.
    fn at(&self, is: impl Fn(&Duties) -> bool) -> Option<usize> {
        self.duties.iter().position(|(_, duties)| is(duties))
    }

    /// Sends a message to one host, and receives its answer.
    fn ask(&mut self, index: usize, message: ToServer, patience: Duration) -> Result<FromServer, HostError> {
        self.hosts.hosts[index].say(message)?;
        let mut heard = self.hosts.nothing();
        self.hosts.hear_until(&mut heard, |other| other == index, Some(patience))?;
        let early = heard.iter().enumerate().find(|(other, said)| *other != index && said.is_some());
        if let Some((other, _)) = early {
            let what = SessionError::Unexpected("a message before its turn".to_owned());
            return Err(self.hosts.hosts[other].failed(what));
        }
        heard[index].take().ok_or_else(|| self.hosts.hosts[index].failed(nothing()))
    }

    fn ask_for_ends(&mut self, index: usize, message: ToServer, count: usize) -> Result<Vec<Ends>, HostError> {
        match self.ask(index, message, ANSWER)? {
            FromServer::Taken(ends) if ends.len() == count => Ok(ends),
            other => Err(self.hosts.hosts[index].failed(other.instead_of("ends for all clients"))),
        }
    }

    /// Tells every host to make its parties, and connects the parties. Returns the memory node's ends for clients.
    fn set_up(&mut self) -> Result<Vec<Ends>, HostError> {
        let duties = self.duties;
        self.hosts.say(|index| ToServer::Be(Box::new(duties[index].1.clone())))?;
        let mut made: Vec<Made> = Vec::new();
        for (index, said) in self.hosts.hear(MAKING)?.into_iter().enumerate() {
            match said {
                FromServer::Made(one) if one.clients.len() == duties[index].1.clients.len() => made.push(*one),
                other => return Err(self.hosts.hosts[index].failed(other.instead_of("the ends of its parties"))),
            }
        }
        // Parties that access the memory, with their numbers. The metadata service comes first.
        let mut callers: Vec<(u32, Ends)> = Vec::new();
        let metadata = self.at(|duties| duties.metadata);
        if let Some(index) = metadata {
            let ends = made[index].metadata.ok_or_else(|| self.hosts.hosts[index].failed(nothing()))?;
            callers.push((METADATA, ends));
        }
        let mut to_metadata: Vec<(u32, End)> = Vec::new();
        for ((_, duties), made) in duties.iter().zip(&made) {
            for (seat, (ends, metadata)) in duties.clients.iter().zip(&made.clients) {
                callers.push((seat.number, *ends));
                to_metadata.extend(metadata.map(|end| (seat.number, end)));
            }
        }
        let mut ends = self.accept(&made, &callers)?;
        let mut of_metadata: Vec<Option<End>> = vec![None; ends.len()];
        if let Some(index) = metadata {
            let memory = ends.remove(0);
            let numbers: Vec<u32> = to_metadata.iter().map(|(number, _)| *number).collect();
            let served = match self.ask(index, ToServer::Serve { memory, clients: to_metadata }, ANSWER)? {
                FromServer::Serving(served) if served.len() == numbers.len() => served,
                other => return Err(self.hosts.hosts[index].failed(other.instead_of("ends for all clients"))),
            };
            of_metadata = served.into_iter().map(Some).collect();
        }
        // Distribute the ends to clients in the order in which the clients were accepted, host by host.
        let mut joined = ends.iter().copied().zip(of_metadata);
        for (index, (_, duties)) in duties.iter().enumerate().filter(|(_, (_, duties))| !duties.clients.is_empty()) {
            let own: Vec<(Ends, Option<End>)> = joined.by_ref().take(duties.clients.len()).collect();
            self.hosts.hosts[index].say(ToServer::Join(own))?;
        }
        let mut heard = self.hosts.nothing();
        let joins = |index: usize| !duties[index].1.clients.is_empty();
        self.hosts.hear_until(&mut heard, joins, Some(ANSWER))?;
        for (index, said) in heard.into_iter().enumerate() {
            match said {
                Some(FromServer::Ready { .. }) | None => {}
                Some(other) => return Err(self.hosts.hosts[index].failed(other.instead_of("ready"))),
            }
        }
        Ok(ends)
    }

    /// Makes ends of the memory node for all parties that access the memory. With a middlebox, these are the
    /// middlebox's ends.
    fn accept(&mut self, made: &[Made], callers: &[(u32, Ends)]) -> Result<Vec<Ends>, HostError> {
        let memory = self.at(|duties| duties.memory).unwrap_or(0);
        let accept = |node, clients: &[(u32, Ends)]| ToServer::Accept { node, clients: clients.to_vec() };
        let Some(middlebox) = self.at(|duties| duties.middlebox) else {
            return self.ask_for_ends(memory, accept(None, callers), callers.len());
        };
        let own = made[middlebox].middlebox.ok_or_else(|| self.hosts.hosts[middlebox].failed(nothing()))?.0;
        if self.point.store().is_some() {
            let node = self.ask_for_ends(memory, accept(None, &[(BOX, Ends::bare(own))]), 1)?;
            return self.ask_for_ends(middlebox, accept(node.first().copied(), callers), callers.len());
        }
        // Each end uses the middlebox's address as the address of its peer. The middlebox then learns which two ends
        // form a pair.
        let through: Vec<(u32, Ends)> = callers.iter().map(|(number, ends)| (*number, ends.at(own.gid))).collect();
        let ends = self.ask_for_ends(memory, accept(None, &through), callers.len())?;
        let pairs = callers.iter().zip(&ends).map(|((_, client), node)| [client.lane, node.lane]).collect();
        match self.ask(middlebox, ToServer::Relay(pairs), ANSWER)? {
            FromServer::Accepted => Ok(ends.into_iter().map(|ends| ends.at(own.gid)).collect()),
            other => Err(self.hosts.hosts[middlebox].failed(other.instead_of("accepted"))),
        }
    }

    /// Tells all clients to begin at one instant. Returns that instant on the coordinator's clock.
    fn go(&mut self) -> Result<u64, HostError> {
        let start_ns = self.hosts.soon(&self.clocks);
        let clocks = &self.clocks;
        self.hosts.say(|index| ToServer::Go { memory: Vec::new(), start_ns: clocks[index].at(start_ns) })?;
        Ok(start_ns)
    }

    fn hear_all(&mut self) -> Result<Vec<Seen>, HostError> {
        let duties = self.duties;
        let has_clients = |index: usize| !duties[index].1.clients.is_empty();
        let patience = self.point.store().map(|store| {
            let us = store.warm_up_us + store.measure_us;
            Duration::from_secs_f64(us / 1e6) + PERFORMANCE
        });
        let mut done = self.hosts.nothing();
        self.hosts.hear_until(&mut done, has_clients, patience)?;
        self.hosts.say(|_| ToServer::Done { messages: Vec::new() })?;
        let heard = self.hosts.hear(ANSWER)?;
        let mut seen = Vec::new();
        for (index, (done, said)) in done.into_iter().zip(heard).enumerate() {
            match said {
                FromServer::Report(report) => seen.push(Seen { done, report: *report }),
                other => return Err(self.hosts.hosts[index].failed(other.instead_of("a report"))),
            }
        }
        Ok(seen)
    }

    fn result(self, seen: Vec<Seen>, ends: &[Ends], start_ns: u64) -> Result<PointResult, HostError> {
        let lane = ends.first().map(|ends| ends.lane.0);
        let mut all = match self.point {
            FarPoint::Store(store) => self.stored(&seen, store, lane)?,
            _ => {
                let asked = seen.iter().find_map(|seen| match &seen.done {
                    Some(FromServer::Asked(result)) => Some((**result).clone()),
                    _ => None,
                });
                let client = self.at(|duties| !duties.clients.is_empty()).unwrap_or(0);
                asked.ok_or_else(|| self.hosts.hosts[client].failed(nothing()))?
            }
        };
        let ipv6 = lane.is_some_and(|lane| is_ipv6(lane.gid));
        let counted = |report: &Report| Counted::of(&report.counters, report.keepalives, None, ipv6);
        let (mut own, mut others) = (Report::default(), Report::default());
        for ((_, duties), seen) in self.duties.iter().zip(&seen) {
            let sum = if duties.clients.is_empty() { &mut others } else { &mut own };
            // The report of a host without a device has no counters.
            *sum = match sum.counters.is_empty() && sum.cpu.all_ns.is_none() {
                true => seen.report.clone(),
                false => std::mem::take(sum).and(&seen.report),
            };
            all.far.extend(seen.report.far.clone());
        }
        all.mtu = lane.map_or(0, |lane| lane.path_mtu.bytes());
        all.counted = BothEnds { client: counted(&own), server: counted(&others) };
        all.cpu = BothEnds { client: own.cpu, server: others.cpu };
        all.cpu_per_message = all.cpu_by_message();
        (all.counters, all.link) = (
            BothEnds { client: own.counters, server: others.counters },
            BothEnds { client: own.link, server: others.link },
        );
        all.carried_by = all.carried().by();
        let host = |(index, ((number, duties), seen)): (usize, (&(usize, Duties), &Seen))| {
            let asks = !duties.clients.is_empty();
            let (sent, late_ns) = match &seen.done {
                Some(FromServer::Stored(done)) => {
                    let began_ns = self.clocks[index].back(done.span_ns.0);
                    (done.operations.iter().sum(), Some(began_ns.saturating_sub(self.counts_from(start_ns))))
                }
                Some(FromServer::Asked(done)) => (done.messages, None),
                _ => (0, None),
            };
            let host = HostResult {
                number: *number,
                name: self.hosts.hosts[index].name.clone(),
                role: duties.role().to_owned(),
                asks,
                connections: if asks { duties.clients.len() } else { ends.len() },
                sent,
                received: 0,
                counted: counted(&seen.report),
                // The number of repeated requests cannot be predicted, since it depends on conflicts between clients.
                predicted: Predicted { asks: true, ..Predicted::default() },
                cpu: seen.report.cpu,
                cpu_per_message: CpuPerMessage::default(),
                link: seen.report.link.clone(),
                late_ns,
                clock_ns: self.clocks[index].error_ns,
            };
            HostResult { cpu_per_message: host.cpu_by_message(), ..host }
        };
        all.hosts = self.duties.iter().zip(&seen).enumerate().map(host).collect();
        Ok(all)
    }

    /// Returns the instant after the warm-up, from which operations count.
    fn counts_from(&self, start_ns: u64) -> u64 {
        start_ns + self.point.store().map_or(0, |store| store.load().warm_up_ns)
    }

    /// Returns the result of the clients of a store in the time during which all clients measured.
    fn stored(
        &self,
        seen: &[Seen],
        store: &StorePoint,
        lane: Option<EndpointDescription>,
    ) -> Result<PointResult, HostError> {
        let mut done: Vec<Option<&ClientsDone>> = Vec::new();
        for (index, seen) in seen.iter().enumerate() {
            let clients = self.duties[index].1.clients.len();
            done.push(match &seen.done {
                Some(FromServer::Stored(done)) if done.operations.len() == clients => Some(done),
                None if clients == 0 => None,
                _ => return Err(self.hosts.hosts[index].failed(nothing())),
            });
        }
        let interval = |(index, done): (usize, &Option<&ClientsDone>)| {
            let (clock, done) = (self.clocks[index], (*done)?);
            Some(Interval {
                began_ns: clock.back(done.span_ns.0),
                ended_ns: clock.back(done.span_ns.1),
                sent: done.operations.iter().fold(0, |sum: u64, &one| sum.saturating_add(one)),
            })
        };
        let intervals: Vec<Option<Interval>> = done.iter().enumerate().map(interval).collect();
        let (common_ns, within) = in_common(&intervals)
            .map_err(|(host, late_ns)| self.hosts.hosts[host].failed(SessionError::Apart(late_ns as f64 / 1e9)))?;
        let tallies: Vec<HostTally> = done.iter().flatten().map(|done| HostTally::from(*done)).collect();
        let load = Load { drains: true, ..store.load() };
        let mtu = lane.map_or(doorbell_verbs::PathMtu::Mtu4096, |lane| lane.path_mtu);
        let report = StoreReport::of_hosts(&load, mtu, store.strategy == Strategy::Server, &tallies);
        let sent_by_connection = tallies.iter().flat_map(|host| host.operations.clone()).collect();
        Ok(PointResult { sent_by_connection, ..of_common_time(store.result(&report, None), common_ns, within) })
    }
}

fn is_ipv6(gid: Ipv6Addr) -> bool {
    gid.to_ipv4_mapped().is_none()
}

fn nothing() -> SessionError {
    SessionError::Unexpected("fewer results than requested".to_owned())
}
