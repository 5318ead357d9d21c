//! The connections and the memory of one point, on either end.

use std::net::TcpStream;

use doorbell_exchange::send_receive::{Connection, Endpoint, Hub, SharedOptions, SharedReceives};
use doorbell_exchange::setup::{self, EndpointDescription};
use doorbell_verbs::{Access, Counters, LinkCounters, MemoryKind, PathMtu, Pd};

use super::{ANSWER_DEADLINE, SessionError};
use crate::executor::Idle;
use crate::one_sided;
use crate::parameters::{Fitted, Parameters, stride};
use crate::workload::{Plan, SendMemory};

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What a device had counted before a point.
#[derive(Clone, Copy)]
pub(super) struct Before {
    pub(super) counters: Option<Counters>,
    pub(super) link: LinkCounters,
}

/// The ends that one process has.
pub(super) enum Ends {
    Messages(Vec<(Connection, SendMemory)>),
    /// Those of a single receiver.
    Gathered(Box<Hub>),
    OneSided(Vec<one_sided::End>),
}

/// One point, connected.
pub(super) struct Point {
    pub(super) ends: Ends,
    pub(super) fitted: Fitted,
    pub(super) plan: Plan,
    pub(super) idle: Idle,
    pub(super) before: Before,
    pub(super) mtu: PathMtu,
    pub(super) shared: Option<SharedReceives>,
}

enum Unconnected {
    Messages(Vec<(Endpoint, SendMemory)>),
    Gathered(Box<Hub>, Vec<Endpoint>),
    OneSided(Vec<one_sided::End>),
}

/// What one end has made of a point before it knows the other.
pub(super) struct Prepared {
    ends: Unconnected,
    fitted: Fitted,
    plan: Plan,
    idle: Idle,
    before: Before,
    shared: Option<SharedReceives>,
}

impl Prepared {
    pub(super) fn new(pd: &Pd, parameters: &Parameters, bytes: usize, side: Side) -> Result<Self, SessionError> {
        let device = pd.device();
        let fitted = parameters.fit(bytes)?;
        let plan = Plan {
            bytes,
            extent: parameters.extent,
            rate: parameters.rate.map(|rate| rate / parameters.connections as f64),
            verify: parameters.verify,
            buffers: fitted.send_buffers,
        };
        let idle = if parameters.events { Idle::sleep_on(device.create_channel()?) } else { Idle::spin() };
        let before = Before { counters: device.counters(), link: device.link_counters() };
        let each = 0..parameters.connections;
        let serving = &parameters.serving;
        let shared = match serving.shared_receives {
            Some(by) if side == Side::Server => {
                let connections = parameters.connections;
                let depth = fitted.depth * connections;
                let options = SharedOptions { depth, connections, max_message: bytes, reposting: by.into() };
                Some(SharedReceives::new(pd, options)?)
            }
            _ => None,
        };
        let ends = if parameters.operation.is_one_sided() {
            let side = match side {
                Side::Client => one_sided::Side::Initiator(idle.channel()),
                Side::Server => one_sided::Side::Target,
            };
            let ends: Result<_, SessionError> =
                each.map(|_| Ok(one_sided::End::new(pd, parameters, bytes, &fitted, side)?)).collect();
            Unconnected::OneSided(ends?)
        } else if serving.single_receiver && side == Side::Server {
            let config = parameters.config(bytes, &fitted);
            let mut hub = Hub::for_connections(pd, &config, parameters.connections, None)?;
            let ends: Result<_, _> = each.map(|_| hub.endpoint(config.clone(), shared.as_ref())).collect();
            Unconnected::Gathered(Box::new(hub), ends?)
        } else {
            let stride = stride(bytes);
            let end = |_| {
                let config = parameters.config(bytes, &fitted);
                let endpoint = match &shared {
                    Some(shared) => Endpoint::sharing(shared, config, idle.channel())?,
                    None => Endpoint::new(pd, config, idle.channel())?,
                };
                let region = pd.allocate(fitted.send_buffers * stride, Access::empty(), MemoryKind::Plain)?;
                Ok((endpoint, SendMemory { region, stride }))
            };
            let ends: Result<_, SessionError> = each.map(end).collect();
            Unconnected::Messages(ends?)
        };
        Ok(Self { ends, fitted, plan, idle, before, shared })
    }

    fn descriptions(&self) -> Vec<EndpointDescription> {
        match &self.ends {
            Unconnected::Messages(ends) => ends.iter().map(|(endpoint, _)| endpoint.description()).collect(),
            Unconnected::Gathered(_, ends) => ends.iter().map(Endpoint::description).collect(),
            Unconnected::OneSided(ends) => ends.iter().map(one_sided::End::description).collect(),
        }
    }

    /// Exchanges descriptions with the peer and connects.
    pub(super) fn connect(self, stream: &TcpStream) -> Result<Point, SessionError> {
        let own = self.descriptions();
        let peers = setup::exchange(stream, &own, ANSWER_DEADLINE)?;
        // The same for all connections of two devices.
        let mtu = own.iter().zip(&peers).map(|(own, peer)| own.path_mtu.min(peer.path_mtu)).min();
        let ends = match self.ends {
            Unconnected::Messages(ends) => {
                let connect = |((endpoint, memory), peer): ((Endpoint, _), _)| Ok((endpoint.connect(peer)?, memory));
                let ends: Result<_, SessionError> = ends.into_iter().zip(&peers).map(connect).collect();
                Ends::Messages(ends?)
            }
            Unconnected::Gathered(mut hub, ends) => {
                for (endpoint, peer) in ends.into_iter().zip(&peers) {
                    hub.add(endpoint.connect(peer)?);
                }
                Ends::Gathered(hub)
            }
            Unconnected::OneSided(ends) => {
                ends.iter().zip(&peers).try_for_each(|(end, peer)| end.connect(peer))?;
                Ends::OneSided(ends)
            }
        };
        let Self { fitted, plan, idle, before, shared, .. } = self;
        Ok(Point { ends, fitted, plan, idle, before, mtu: mtu.unwrap_or(PathMtu::Mtu4096), shared })
    }
}
