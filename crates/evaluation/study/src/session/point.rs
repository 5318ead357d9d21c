//! Connections and memory of one point, at either end.

use doorbell_exchange::send_receive::{Endpoint, Hub, SharedOptions, SharedReceives};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Connector, Group, Replication};
use doorbell_verbs::{Channel, MemoryKind, PathMtu, Pd};

use super::report::Before;
use super::{Peer, SessionError};
use crate::one_sided;
use crate::parameters::{Fitted, Parameters, Transport};
use crate::roles::{Part, Role};
use crate::unacknowledged;
use crate::workload::{Plan, SendMemory};

/// Connections of one end.
pub(super) enum Ends<P: Connector> {
    Messages(Vec<(P::Connection, SendMemory)>),
    /// One source for all readers, the number of readers, and the memory of the source.
    Replicated(Replication<P::Connection>, usize, SendMemory),
    /// Connections of a single receiver.
    Gathered(Box<Hub>),
    OneSided(Vec<one_sided::End>),
    Unacknowledged(Vec<unacknowledged::End>),
}

/// Point whose connections are established.
pub(super) struct Point<P: Connector> {
    pub(super) ends: Ends<P>,
    pub(super) fitted: Fitted,
    pub(super) plan: Plan,
    pub(super) channel: Option<Channel>,
    pub(super) before: Before,
    pub(super) mtu: PathMtu,
    pub(super) shared: Option<SharedReceives>,
}

enum Unconnected<P: Connector> {
    Messages(Vec<(P::Endpoint, SendMemory)>),
    Gathered(Box<Hub>, Vec<Endpoint>),
    OneSided(Vec<one_sided::End>),
    Unacknowledged(Vec<unacknowledged::End>),
}

/// Point that one end has prepared, before the descriptions of the other end arrive.
pub(super) struct Prepared<P: Connector> {
    protocol: P,
    ends: Unconnected<P>,
    replicates: bool,
    fitted: Fitted,
    plan: Plan,
    channel: Option<Channel>,
    before: Before,
    shared: Option<SharedReceives>,
}

impl<P: Connector> Prepared<P> {
    pub(super) fn new(
        protocol: P,
        pd: &Pd,
        parameters: &Parameters,
        bytes: usize,
        part: &Part,
    ) -> Result<Self, SessionError> {
        let device = pd.device();
        let fitted = parameters.fit(bytes)?;
        let plan = Plan {
            bytes,
            window: fitted.window,
            extent: parameters.extent,
            rate: parameters.rate.map(|rate| rate / parameters.connections as f64),
            verify: parameters.verify,
            buffers: fitted.send_buffers,
        };
        let channel = if parameters.events { Some(device.create_channel()?) } else { None };
        let before = Before::now(device);
        let connections = part.connections;
        let each = 0..connections;
        let shared = match part.shared_receives {
            Some(by) => {
                let depth = fitted.depth * connections;
                let options = SharedOptions { depth, connections, max_message: bytes, reposting: by.into() };
                Some(SharedReceives::new(pd, options)?)
            }
            None => None,
        };
        let one_sided = |role| -> Result<_, SessionError> {
            let end = |_| Ok(one_sided::End::new(pd, parameters, bytes, &fitted, role)?);
            Ok(Unconnected::OneSided(each.clone().map(end).collect::<Result<_, SessionError>>()?))
        };
        let ends = if parameters.transport != Transport::Rc {
            let end = |_| Ok(unacknowledged::End::new(pd, parameters, bytes, &fitted)?);
            Unconnected::Unacknowledged(each.map(end).collect::<Result<_, SessionError>>()?)
        } else if part.role == Role::Initiator {
            one_sided(one_sided::Role::Initiator(channel.as_ref()))?
        } else if part.role == Role::Target {
            one_sided(one_sided::Role::Target)?
        } else if part.single_receiver {
            let config = parameters.config(bytes, &fitted);
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
            let with_memory = |endpoint| {
                let length = fitted.send_buffers * stride;
                let region = pd.allocate(length, protocol.source_access(), MemoryKind::Plain)?;
                Ok((endpoint, SendMemory { region, stride }))
            };
            let ends = protocol.endpoints(&group, &parameters.config(bytes, &fitted))?;
            let ends: Result<_, SessionError> = ends.into_iter().map(with_memory).collect();
            Unconnected::Messages(ends?)
        };
        let replicates = part.role == Role::Source;
        Ok(Self { protocol, ends, replicates, fitted, plan, channel, before, shared })
    }

    fn descriptions(&self) -> Vec<EndpointDescription> {
        match &self.ends {
            Unconnected::Messages(ends) => ends.iter().map(|(endpoint, _)| self.protocol.describe(endpoint)).collect(),
            Unconnected::Gathered(_, ends) => ends.iter().map(Endpoint::description).collect(),
            Unconnected::OneSided(ends) => ends.iter().map(one_sided::End::description).collect(),
            Unconnected::Unacknowledged(ends) => ends.iter().map(unacknowledged::End::description).collect(),
        }
    }

    /// Exchanges descriptions with the peer, and connects all ends.
    pub(super) async fn connect(self, peer: &mut impl Peer) -> Result<Point<P>, SessionError> {
        let own = self.descriptions();
        let peers = peer.exchange(&own).await?;
        // All connections join the same two devices, so their path MTU is the same.
        let mtu = own.iter().zip(&peers).map(|(own, peer)| own.path_mtu.min(peer.path_mtu)).min();
        let ends = match self.ends {
            Unconnected::Messages(ends) => {
                let connect = |((endpoint, memory), peer): ((P::Endpoint, _), _)| {
                    Ok((self.protocol.connect(endpoint, peer)?, memory))
                };
                let ends: Result<Vec<_>, SessionError> = ends.into_iter().zip(&peers).map(connect).collect();
                if self.replicates { replicated::<P>(ends?)? } else { Ends::Messages(ends?) }
            }
            Unconnected::Gathered(mut hub, ends) => {
                for (endpoint, peer) in ends.into_iter().zip(&peers) {
                    hub.add(endpoint.connect(peer)?)?;
                }
                Ends::Gathered(hub)
            }
            Unconnected::OneSided(ends) => {
                ends.iter().zip(&peers).try_for_each(|(end, peer)| end.connect(peer))?;
                Ends::OneSided(ends)
            }
            Unconnected::Unacknowledged(mut ends) => {
                ends.iter_mut().zip(&peers).try_for_each(|(end, peer)| end.connect(peer))?;
                Ends::Unacknowledged(ends)
            }
        };
        let Self { fitted, plan, channel, before, shared, .. } = self;
        Ok(Point { ends, fitted, plan, channel, before, mtu: mtu.unwrap_or(PathMtu::Mtu4096), shared })
    }
}

/// Makes one source that publishes to all connections, from the memory of the first connection.
fn replicated<P: Connector>(ends: Vec<(P::Connection, SendMemory)>) -> Result<Ends<P>, SessionError> {
    let count = ends.len();
    let mut replication = Replication::new();
    let mut source = None;
    for (connection, memory) in ends {
        replication.add(connection)?;
        source.get_or_insert(memory);
    }
    let source = source.ok_or_else(|| SessionError::Unexpected("a source of messages without readers".to_owned()))?;
    Ok(Ends::Replicated(replication, count, source))
}
