//! From an end that is made to one that is connected.

use std::collections::VecDeque;

use doorbell_verbs::{
    Access, AddressVector, Channel, Cq, MemoryKind, Pd, Psn, Qp, QpAttributes, QpCapacities, QpKind, QpOptions, QpState,
};

use super::config::{Config, MAX_WINDOW};
use super::connection::{Closing, Connection};
use super::credits::{CREDIT_RECEIVES, SendCredits};
use super::hub::Claim;
use super::pool::{Layout, Pool};
use super::shared::SharedReceives;
use crate::error::ConnectError;
use crate::setup::EndpointDescription;

/// Room in the send queue for messages that carry no data.
const CONTROL_SENDS: usize = 8;

/// Completions that a connection may leave in its queue at most.
pub(super) fn completions(config: &Config) -> usize {
    config.window + CONTROL_SENDS + config.depth + CREDIT_RECEIVES
}

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    psn: Psn,
    shared: Option<SharedReceives>,
    claim: Option<Claim>,
}

impl Endpoint {
    /// Makes an end. With a channel, [`Connection::arm`] notifies there.
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        Self::make(pd, config, None, channel)
    }

    /// Makes an end that receives into buffers which it shares with others. Of `config`, the depth
    /// is the part of them that is granted to the peer, where there are credits.
    pub fn sharing(shared: &SharedReceives, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        Self::make(shared.pd(), config, Some(shared), channel)
    }

    fn make(
        pd: &Pd,
        config: Config,
        shared: Option<&SharedReceives>,
        channel: Option<&Channel>,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        let device = pd.device();
        let depth = completions(&config);
        let cq = match channel {
            Some(channel) => device.create_cq_on(depth, channel)?,
            None => device.create_cq(depth)?,
        };
        Self::on(pd, config, shared, cq, None)
    }

    /// Makes an end whose completions go to a queue that others use as well.
    pub(super) fn on(
        pd: &Pd,
        config: Config,
        shared: Option<&SharedReceives>,
        cq: Cq,
        claim: Option<Claim>,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        if let Some(shared) = shared
            && config.max_message > shared.max_message()
        {
            return Err(ConnectError::TooLongForShared { longest: config.max_message, shared: shared.max_message() });
        }
        let device = pd.device();
        let attributes = device.attributes();
        let max_send_wr = config.window + CONTROL_SENDS;
        let max_recv_wr = config.depth + CREDIT_RECEIVES;
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: shared.map(SharedReceives::srq),
            capacities: QpCapacities {
                max_send_wr,
                max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: config.inline.min(attributes.max_inline),
            },
            signal_all: false,
        })?;
        let (pd, psn) = (pd.clone(), device.random_psn());
        Ok(Self { pd, psn, config, qp, cq, shared: shared.cloned(), claim })
    }

    /// What the peer needs to know.
    pub fn description(&self) -> EndpointDescription {
        let attributes = self.pd.device().attributes();
        EndpointDescription {
            gid: attributes.gid,
            qpn: self.qp.qpn(),
            psn: self.psn,
            path_mtu: self.config.path_mtu.unwrap_or(attributes.active_mtu),
            udp_port: attributes.udp_port,
            depth: self.config.depth as u32,
            max_message: self.config.max_message as u64,
            credits: self.config.credits,
        }
    }

    /// Connects with the peer whose description this is. Receives are posted before it can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection, ConnectError> {
        let own = self.description();
        let Self { config, pd, qp, cq, psn, shared, claim } = self;
        let differs = |what, own: u64, peer: u64| ConnectError::Mismatch { what, own, peer };
        if own.udp_port != peer.udp_port {
            return Err(differs("the UDP port", own.udp_port.into(), peer.udp_port.into()));
        }
        if own.credits != peer.credits {
            return Err(differs("flow control by credits", own.credits.into(), peer.credits.into()));
        }
        if peer.depth == 0 || peer.depth as usize > MAX_WINDOW {
            let (given, allowed) = (peer.depth.into(), "1 to 16384");
            return Err(ConnectError::Setting { what: "the peer's receive depth", given, allowed });
        }
        qp.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttributes::default()
        })?;
        let stride = config.stride();
        let of_its_own = match &shared {
            Some(_) => None,
            None => {
                let slots = config.depth + CREDIT_RECEIVES;
                let region = pd.allocate(slots * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                let layout = Layout { slot_bytes: config.max_message, stride };
                Some(Pool::new(qp.clone(), region, layout, config.depth, CREDIT_RECEIVES, config.credits)?)
            }
        };
        qp.modify(&QpAttributes {
            state: Some(QpState::ReadyToReceive),
            address: Some(AddressVector::to(peer.gid.to_canonical())),
            path_mtu: Some(own.path_mtu.min(peer.path_mtu)),
            dest_qpn: Some(peer.qpn),
            receive_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(config.min_rnr_timer),
            ..QpAttributes::default()
        })?;
        qp.modify(&QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(psn),
            timeout: Some(config.timeout),
            retry_count: Some(config.retry_count),
            rnr_retry: Some(config.rnr_retry),
            max_rd_atomic: Some(16),
            ..QpAttributes::default()
        })?;
        let send_region = if config.send_buffers > 0 {
            Some(pd.allocate(config.send_buffers * stride, Access::empty(), MemoryKind::Plain)?)
        } else {
            None
        };
        // Last, since only a connection gives its part back.
        let pool = match (of_its_own, &shared) {
            (Some(pool), _) => pool,
            (None, Some(shared)) => shared.admit(qp.clone(), &config)?,
            (None, None) => unreachable!("a connection without shared buffers has its own"),
        };
        let now_ns = pd.device().now_ns();
        Ok(Connection {
            send_credits: config.credits.then(|| SendCredits::new(peer.depth.into())),
            peer_depth: peer.depth.into(),
            peer_max_message: peer.max_message,
            inline_store: vec![0; config.batch * config.inline].into(),
            pending: Vec::with_capacity(config.batch),
            pd,
            qp,
            cq,
            pool,
            send_region,
            stride,
            next_id: 1,
            posted: 0,
            completed: 0,
            inbox: VecDeque::with_capacity(config.depth),
            closing: Closing::Open,
            peer_closed: false,
            over: None,
            heard_ns: now_ns,
            keepalive_out: false,
            stalled_on_credits: 0,
            keepalives: 0,
            claim,
            config,
        })
    }
}
