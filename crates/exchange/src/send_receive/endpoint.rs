//! From an end that is made to one that is connected.

use std::collections::VecDeque;

use doorbell_verbs::{Access, Channel, Cq, MemoryKind, Pd, Psn, Qp, QpCapacities, QpKind, QpOptions};

use super::config::{Config, MAX_WINDOW};
use super::connection::{Closing, Connection};
use super::credits::{CREDIT_RECEIVES, SendCredits};
use super::pool::Pool;
use crate::error::ConnectError;
use crate::rc::{self, RcSettings};
use crate::setup::EndpointDescription;

/// Room in the send queue for messages that carry no data.
const CONTROL_SENDS: usize = 8;

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    psn: Psn,
}

impl Endpoint {
    /// Makes an end. With a channel, [`Connection::arm`] notifies there.
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        config.check()?;
        let device = pd.device();
        let attributes = device.attributes();
        let max_send_wr = config.window + CONTROL_SENDS;
        let max_recv_wr = config.depth + CREDIT_RECEIVES;
        let cq_depth = max_send_wr + max_recv_wr;
        let cq = match channel {
            Some(channel) => device.create_cq_on(cq_depth, channel)?,
            None => device.create_cq(cq_depth)?,
        };
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            capacities: QpCapacities {
                max_send_wr,
                max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: config.inline.min(attributes.max_inline),
            },
            signal_all: false,
        })?;
        Ok(Self { pd: pd.clone(), psn: device.random_psn(), config, qp, cq })
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
        let Self { config, pd, qp, cq, .. } = self;
        if own.credits != peer.credits {
            let (own, peer) = (own.credits.into(), peer.credits.into());
            return Err(ConnectError::Mismatch { what: "flow control by credits", own, peer });
        }
        if peer.depth == 0 || peer.depth as usize > MAX_WINDOW {
            let (given, allowed) = (peer.depth.into(), "1 to 16384");
            return Err(ConnectError::Setting { what: "the peer's receive depth", given, allowed });
        }
        rc::initialise(&qp, Access::empty())?;
        let stride = config.stride();
        let slots = config.depth + CREDIT_RECEIVES;
        let receive_region = pd.allocate(slots * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let pool = Pool::new(
            qp.clone(),
            receive_region,
            config.max_message,
            stride,
            config.depth,
            CREDIT_RECEIVES,
            config.credits,
        );
        let all: Vec<u32> = (0..slots as u32).collect();
        pool.post(&all)?;
        let settings = RcSettings {
            timeout: config.timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            min_rnr_timer: config.min_rnr_timer,
        };
        rc::connect(&qp, &own, peer, &settings)?;
        let send_region = if config.send_buffers > 0 {
            Some(pd.allocate(config.send_buffers * stride, Access::empty(), MemoryKind::Plain)?)
        } else {
            None
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
            config,
        })
    }
}
