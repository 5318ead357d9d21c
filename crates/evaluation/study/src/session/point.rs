//! One point, at either end: its connections and memory, and the performance of its part.

use doorbell_exchange::send_receive::{Endpoint, Hub, SharedOptions, SharedReceives};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Config, Connector, Group, Replication};
use doorbell_machine::cpu::CpuTime;
use doorbell_verbs::{Channel, MemoryKind, PathMtu, Pd};

use super::SessionError;
use super::peer::{Peer, Watch};
use super::report::Before;
use super::work::{Done, End, Work};
use crate::one_sided::{self, RemoteMemory};
use crate::threads::Threads;
use crate::unacknowledged;
use crate::workload::{Plan, Progress, SendMemory, Sizes};
use doorbell_record::{Parameters, Part, Role, SharedBy, Transport, stride};

/// Point whose connections are established.
pub struct Point<P: Connector> {
    /// The connected ends.
    pub ends: Vec<End<P>>,
    /// Work of the ends.
    pub work: Work,
    pub(super) channel: Option<Channel>,
    pub(super) before: Before,
    pub(super) mtu: PathMtu,
    /// Receives that the connections share.
    pub shared: Option<SharedReceives>,
}

enum Unconnected<P: Connector> {
    Messages(Vec<(P::Endpoint, SendMemory)>),
    Gathered(Box<Hub>, Vec<Endpoint>),
    OneSided(Vec<one_sided::End>),
    Unacknowledged(Vec<unacknowledged::End>),
}

/// Point that one end has prepared, before the descriptions of the other end arrive.
pub struct Prepared<'a, P: Connector> {
    protocol: &'a P,
    ends: Unconnected<P>,
    replicates: bool,
    work: Work,
    channel: Option<Channel>,
    before: Before,
    shared: Option<SharedReceives>,
}

impl<'a, P: Connector> Prepared<'a, P> {
    /// Makes the ends of a part for messages of `bytes` bytes and their replies. Connections have the parameters'
    /// configuration, changed by `configure`.
    ///
    /// # Errors
    ///
    /// The parameters do not fit the size, or a queue, memory or end cannot be made.
    pub fn new(
        protocol: &'a P,
        pd: &Pd,
        parameters: &Parameters,
        bytes: usize,
        part: &Part,
        configure: impl Fn(Config) -> Config,
    ) -> Result<Self, SessionError> {
        let device = pd.device();
        let fitted = parameters.fit(bytes)?;
        let plan = Plan {
            bytes: if part.role == Role::Responder { parameters.reply_bytes(bytes) } else { bytes },
            window: fitted.window,
            in_rounds: false,
            extent: parameters.extent,
            rate: parameters.rate.map(|rate| rate / parameters.connections as f64),
            think_ns: parameters.think_us * 1000,
            verify: parameters.verify,
            buffers: fitted.send_buffers,
        };
        let channel = if parameters.events { Some(device.create_channel()?) } else { None };
        let before = Before::now(device);
        let connections = part.connections;
        let each = 0..connections;
        let phase = |number: usize| number as f64 / connections as f64;
        let shared = match part.shared_receives {
            Some(by) => {
                let depth = fitted.depth * connections;
                let options = SharedOptions { depth, connections, max_message: bytes, reposting: by.into() };
                Some(SharedReceives::new(pd, options)?)
            }
            None => None,
        };
        let one_sided = |role| -> Result<_, SessionError> {
            let end = |number: usize| {
                let mut end = one_sided::End::new(pd, parameters, bytes, &fitted, role)?;
                end.phase = phase(number);
                Ok(end)
            };
            Ok(Unconnected::OneSided(each.clone().map(end).collect::<Result<_, SessionError>>()?))
        };
        let ends = if parameters.transport != Transport::Rc {
            let end = |number: usize| {
                let mut end = unacknowledged::End::new(pd, parameters, bytes, &fitted)?;
                end.phase = phase(number);
                Ok(end)
            };
            Unconnected::Unacknowledged(each.map(end).collect::<Result<_, SessionError>>()?)
        } else if part.role == Role::Initiator {
            one_sided(one_sided::Role::Initiator(channel.as_ref()))?
        } else if part.role == Role::Target {
            one_sided(one_sided::Role::Target)?
        } else if part.single_receiver {
            let config = configure(parameters.config(bytes, &fitted));
            let mut hub = Hub::for_connections(pd, &config, connections, None)?;
            let ends: Result<_, _> = each.map(|_| hub.endpoint(config.clone(), shared.as_ref())).collect();
            Unconnected::Gathered(Box::new(hub), ends?)
        } else {
            let stride = parameters.stride(bytes);
            let group = Group {
                pd,
                channel: channel.as_ref(),
                count: connections,
                shared: shared.as_ref(),
                one_thread: part.answers && part.threads == 1,
            };
            let sizes = Sizes::of(parameters, part.role);
            let with_memory = |(number, endpoint): (usize, P::Endpoint)| {
                let length = fitted.send_buffers * stride;
                let region = pd.allocate(length, protocol.source_access(), MemoryKind::Plain)?;
                let sizes = sizes.of_connection(number);
                Ok((endpoint, SendMemory { region, stride, sizes, phase: phase(number) }))
            };
            let ends = protocol.endpoints(&group, &configure(parameters.config(bytes, &fitted)))?;
            let ends: Result<_, SessionError> = ends.into_iter().enumerate().map(with_memory).collect();
            Unconnected::Messages(ends?)
        };
        let replicates = part.role == Role::Source;
        let work = Work { parameters: parameters.clone(), part: *part, fitted, plan, device: device.clone() };
        Ok(Self { protocol, ends, replicates, work, channel, before, shared })
    }

    /// Sets the numbers of the connections among those of all hosts. At a rate, requests, pings, unacknowledged
    /// messages and one-sided operations are then due in turn on the connections of all hosts. Without numbers, only
    /// the connections of this host take turns.
    #[must_use]
    pub(super) fn numbered(mut self, numbers: &[usize]) -> Self {
        let all = self.work.parameters.connections as f64;
        let phases = numbers.iter().map(|&number| number as f64 / all);
        match &mut self.ends {
            Unconnected::Messages(ends) => {
                ends.iter_mut().zip(phases).for_each(|((_, memory), phase)| memory.phase = phase);
            }
            Unconnected::OneSided(ends) => ends.iter_mut().zip(phases).for_each(|(end, phase)| end.phase = phase),
            Unconnected::Unacknowledged(ends) => ends.iter_mut().zip(phases).for_each(|(end, phase)| end.phase = phase),
            Unconnected::Gathered(..) => {}
        }
        self
    }

    /// Returns the descriptions of all ends for the other end.
    pub fn descriptions(&self) -> Vec<EndpointDescription> {
        match &self.ends {
            Unconnected::Messages(ends) => ends.iter().map(|(endpoint, _)| self.protocol.describe(endpoint)).collect(),
            Unconnected::Gathered(_, ends) => ends.iter().map(Endpoint::description).collect(),
            Unconnected::OneSided(ends) => ends.iter().map(one_sided::End::description).collect(),
            Unconnected::Unacknowledged(ends) => ends.iter().map(unacknowledged::End::description).collect(),
        }
    }

    /// Exchanges descriptions with the peer, and connects all ends.
    pub(super) async fn connect_to(self, peer: &mut impl Peer) -> Result<Point<P>, SessionError> {
        let peers = peer.exchange(&self.descriptions()).await?;
        self.connect(&peers)
    }

    /// Connects all ends with the ends of these descriptions.
    ///
    /// # Errors
    ///
    /// An end does not match the description of its peer.
    pub fn connect(self, peers: &[EndpointDescription]) -> Result<Point<P>, SessionError> {
        // All connections join the same two devices, so their path MTU is the same.
        let own = self.descriptions();
        let mtu = own.iter().zip(peers).map(|(own, peer)| own.path_mtu.min(peer.path_mtu)).min();
        let ends = match self.ends {
            Unconnected::Messages(ends) => {
                let connect = |((endpoint, memory), peer): ((P::Endpoint, _), _)| {
                    Ok((self.protocol.connect(endpoint, peer)?, memory))
                };
                let ends: Result<Vec<_>, SessionError> = ends.into_iter().zip(peers).map(connect).collect();
                let ends = ends?;
                if self.replicates {
                    vec![replicated::<P>(ends)?]
                } else {
                    ends.into_iter().map(|(connection, memory)| End::Messages(connection, memory)).collect()
                }
            }
            Unconnected::Gathered(mut hub, ends) => {
                for (endpoint, peer) in ends.into_iter().zip(peers) {
                    hub.add(endpoint.connect(peer)?)?;
                }
                vec![End::Gathered(hub)]
            }
            Unconnected::OneSided(ends) => {
                ends.iter().zip(peers).try_for_each(|(end, peer)| end.connect(peer))?;
                ends.into_iter().map(|end| End::OneSided(end, None)).collect()
            }
            Unconnected::Unacknowledged(mut ends) => {
                ends.iter_mut().zip(peers).try_for_each(|(end, peer)| end.connect(peer))?;
                ends.into_iter().map(End::Unacknowledged).collect()
            }
        };
        let Self { work, channel, before, shared, .. } = self;
        Ok(Point { ends, work, channel, before, mtu: mtu.unwrap_or(PathMtu::Mtu4096), shared })
    }
}

impl<P: Connector> Point<P> {
    /// Returns the memory of all targets.
    pub fn memory(&self) -> Vec<RemoteMemory> {
        let memory = |end: &End<P>| if let End::OneSided(end, _) = end { Some(end.memory()) } else { None };
        self.ends.iter().filter_map(memory).collect()
    }

    /// Sets the target's memory for each initiator. Several initiators may access the same region, and use only the
    /// first [`addresses`](Parameters::addresses) regions.
    ///
    /// # Errors
    ///
    /// The number of regions differs from the number of initiators, or a region is too short.
    pub fn aim(&mut self, memory: &[RemoteMemory]) -> Result<(), SessionError> {
        let Work { parameters, fitted, plan, .. } = &self.work;
        let count = self.ends.len();
        let needed = (fitted.send_buffers * stride(plan.bytes)) as u64;
        let addresses = parameters.addresses.unwrap_or(count).max(1);
        for (number, end) in self.ends.iter_mut().enumerate() {
            let End::OneSided(_, target) = end else { continue };
            if memory.len() != count || memory.iter().any(|memory| memory.bytes < needed) {
                let what = format!("the regions {memory:?}: must be {count} regions of {needed} B");
                return Err(SessionError::Unexpected(what));
            }
            *target = Some(memory[number % addresses]);
        }
        Ok(())
    }
}

impl<C: Connector<Connection: Send>> Point<C> {
    /// Performs the part while this end watches the peer. Returns the results, and the CPU time since `cpu_before`.
    /// `is_to_be_silent` states whether the peer must not send anything meanwhile.
    pub(super) async fn perform<X: Threads>(
        self,
        peer: &impl Peer,
        (threads, cpu_before): (&X, CpuTime),
        (is_to_be_silent, progress): (bool, Progress<'_>),
    ) -> Result<(Done, CpuTime), SessionError> {
        let Self { ends, work, channel, shared, .. } = self;
        let (look, rounds_are_long) = (|| peer.look(), work.parameters.slow_receiver_us > 0);
        let watch = Watch { look: &look, device: &work.device, is_to_be_silent, rounds_are_long };
        let waiter = threads.waiter(channel);
        let all = async {
            if work.part.threads > 1 {
                let task = |end, waiter| work.perform(end, waiter, &|_| {});
                threads.deal(work.part.threads, ends, task, || watch.check()).await
            } else {
                let tasks = ends.into_iter().map(|end| work.perform(end, waiter.clone(), progress));
                threads.run(&waiter, tasks, watch.check()).await
            }
        };
        // A part may have a dedicated thread that posts shared receives again.
        let reposting = async {
            match (&shared, work.part.shared_receives) {
                (Some(shared), Some(SharedBy::Thread)) => {
                    let both = threads.beside(|| shared.repost(), all).await;
                    both.unwrap_or_else(|error| Err(SessionError::Repost(error)))
                }
                _ => all.await,
            }
        };
        let failed = |error| SessionError::Connection { bytes: work.plan.bytes, error };
        let done = Done::gather(peer.watched(reposting).await?).map_err(failed)?;
        Ok((done, threads.cpu_time().since(cpu_before)))
    }
}

/// Makes one source that publishes to all connections, from the memory of the first connection.
fn replicated<P: Connector>(ends: Vec<(P::Connection, SendMemory)>) -> Result<End<P>, SessionError> {
    let count = ends.len();
    let mut replication = Replication::new();
    let mut source = None;
    for (connection, memory) in ends {
        replication.add(connection)?;
        source.get_or_insert(memory);
    }
    let source = source.ok_or_else(|| SessionError::Unexpected("a source of messages without readers".to_owned()))?;
    Ok(End::Replicated(replication, count, source))
}

#[cfg(test)]
mod tests {
    use doorbell_exchange::with_connector;
    use doorbell_record::{Kind, Operation};
    use doorbell_verbs::soft::{self, SoftOptions};

    use super::*;

    /// Returns the delays of the connections of a host that has two of eight connections.
    fn phases<P: Connector>(protocol: &P, parameters: &Parameters, numbers: &[usize]) -> Vec<f64> {
        let pd = soft::open(&SoftOptions::default()).unwrap().create_pd().unwrap();
        let part = parameters.cast().asking.share(2);
        let prepared = Prepared::new(protocol, &pd, parameters, 16, &part, |config| config).unwrap().numbered(numbers);
        match &prepared.ends {
            Unconnected::Messages(ends) => ends.iter().map(|(_, memory)| memory.phase).collect(),
            Unconnected::OneSided(ends) => ends.iter().map(|end| end.phase).collect(),
            Unconnected::Unacknowledged(ends) => ends.iter().map(|end| end.phase).collect(),
            Unconnected::Gathered(..) => Vec::new(),
        }
    }

    #[test]
    fn connections_of_all_hosts_take_turns() {
        let of = |operation, transport, numbers: &[usize]| {
            let plain = Parameters::plain(Kind::Bandwidth, operation, 16);
            let asked = Parameters { transport, connections: 8, rate: Some(1000.0), ..plain };
            with_connector!(asked.protocol, connector => phases(&connector, &asked, numbers))
        };
        for (operation, transport) in [
            (Operation::RequestResponse, Transport::Rc),
            (Operation::Write, Transport::Rc),
            (Operation::Read, Transport::Rc),
            (Operation::Send, Transport::Uc),
            (Operation::Send, Transport::Ud),
        ] {
            assert_eq!(of(operation, transport, &[1, 5]), [0.125, 0.625], "{operation:?}, {transport}");
            assert_eq!(of(operation, transport, &[]), [0.0, 0.5], "{operation:?}, {transport}");
        }
    }
}
