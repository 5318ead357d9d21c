//! Coordinator of a point about shared memory. The coordinator leads the parties through set-up and combines their
//! reports.

use std::net::{Ipv6Addr, TcpStream};
use std::time::Duration;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::Strategy;
use doorbell_farmem::assembly::{Body, Message, Party};
use doorbell_farmem::workload::{HostTally, Load, Report as StoreReport};

use super::super::hosts::{Clock, HostError, Hosts, Interval, in_common, of_common_time};
use super::super::messages::{ClientsDone, Duties, FromServer, ToServer};
use super::super::peer::{ANSWER, MAKING, PERFORMANCE};
use super::super::report::Report;
use super::super::{Introduction, SessionError};
use super::Parties;
use crate::far::store_result;
use doorbell_machine::cpu::CpuPerMessage;
use doorbell_machine::pinning::ProcessPosition;
use doorbell_record::{BothEnds, Counted, FarPoint, HostResult, Parameters, PointResult, Predicted, StorePoint};

/// Maximum number of times that the coordinator carries messages between the hosts. A store behind a middlebox needs
/// six times.
const MAX_ROUNDS: usize = 16;

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
    let lane = stage.set_up()?;
    let start_ns = stage.go()?;
    let seen = stage.hear_all()?;
    stage.hosts.say(|_| ToServer::End)?;
    stage.result(seen, lane, start_ns)
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

    /// Returns the index of the host that gets a message of the host `from`.
    fn host_of(&self, message: &Message, from: usize) -> Option<usize> {
        let middlebox = self.at(|duties| duties.middlebox);
        if self.point.store().is_none() && middlebox.is_some_and(|middlebox| middlebox != from) {
            return middlebox;
        }
        match message.to {
            Party::Memory(_) => self.at(|duties| duties.memory),
            Party::Middlebox => middlebox,
            Party::Metadata => self.at(|duties| duties.metadata),
            Party::Client(number) => self.at(|duties| duties.clients.iter().any(|seat| seat.number == number)),
        }
    }

    /// Tells every host to make its parties, and carries messages until all clients are connected. Returns the end at
    /// the memory for a client.
    fn set_up(&mut self) -> Result<Option<EndpointDescription>, HostError> {
        let duties = self.duties;
        self.hosts.say(|index| ToServer::Be(Box::new(duties[index].1.clone())))?;
        let (mut lane, mut patience) = (None, MAKING);
        for _ in 0..MAX_ROUNDS {
            let mut under_way: Vec<Vec<Message>> = vec![Vec::new(); duties.len()];
            let mut all_are_ready = true;
            for (index, said) in self.hosts.hear(patience)?.into_iter().enumerate() {
                let failed = |error| self.hosts.hosts[index].failed(error);
                let FromServer::Carried { messages, are_ready } = said else {
                    return Err(failed(said.instead_of("the messages of its parties")));
                };
                all_are_ready &= are_ready;
                for message in messages {
                    if let (Party::Client(_), Body::Entered(ends)) = (message.to, &message.body) {
                        lane.get_or_insert(ends.lane);
                    }
                    let no_party = || SessionError::Unexpected(format!("a message for {}", message.to));
                    let to = self.host_of(&message, index).ok_or_else(|| failed(no_party()))?;
                    under_way[to].push(message);
                }
            }
            if all_are_ready {
                return Ok(lane);
            }
            for (host, messages) in self.hosts.hosts.iter_mut().zip(under_way) {
                host.say(ToServer::Carry(messages))?;
            }
            patience = ANSWER;
        }
        let client = self.at(|duties| !duties.clients.is_empty()).unwrap_or(0);
        Err(self.hosts.hosts[client].failed(nothing()))
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
        let reports = self.hosts.expect(ANSWER, |_, said| said.report())?;
        Ok(done.into_iter().zip(reports).map(|(done, report)| Seen { done, report }).collect())
    }

    fn result(
        self,
        seen: Vec<Seen>,
        lane: Option<EndpointDescription>,
        start_ns: u64,
    ) -> Result<PointResult, HostError> {
        let clients: usize = self.duties.iter().map(|(_, duties)| duties.clients.len()).sum();
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
                connections: if asks { duties.clients.len() } else { clients },
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
        Ok(PointResult { sent_by_connection, ..of_common_time(store_result(store, &report, None), common_ns, within) })
    }
}

fn is_ipv6(gid: Ipv6Addr) -> bool {
    gid.to_ipv4_mapped().is_none()
}

fn nothing() -> SessionError {
    SessionError::Unexpected("fewer results than requested".to_owned())
}
