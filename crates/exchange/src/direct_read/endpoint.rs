//! From an end that is made to one that is connected.

use std::collections::VecDeque;

use doorbell_verbs::{Access, Channel, MemoryKind, Pd, RecvRequest};

use super::connection::{Connection, READS_IN_FLIGHT, REQUEST_STRIDE, Receives};
use super::request::MAX_REQUEST_BYTES;
use super::{Acknowledge, DirectRead, Placement};
use crate::config::Config;
use crate::connection::Connector;
use crate::error::ConnectError;
use crate::line::{LineEnd, Queues, RECEIVE_TAG};
use crate::setup::EndpointDescription;
use crate::slots::Slots;

/// Receives beside those for read requests: for the goodbye.
const CONTROL_RECEIVES: usize = 1;

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint {
    protocol: DirectRead,
    config: Config,
    end: LineEnd,
}

impl Endpoint {
    /// Makes an end. With a channel, [`arm`](crate::MessageConnection::arm) notifies there.
    pub fn new(protocol: DirectRead, pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        config.check()?;
        let given = pd.device().attributes().limits.max_inline;
        if given < MAX_REQUEST_BYTES {
            let what = "the device's inline limit, which a read request has to fit,";
            return Err(ConnectError::Setting { what, given: given as u64, allowed: "at least 80 B" });
        }
        let queues = queues(protocol, &config);
        let cq = LineEnd::completion_queue(pd, queues, channel)?;
        let end = LineEnd::new(pd, queues, None, cq, protocol.protocol())?;
        Ok(Self { protocol, config, end })
    }

    /// What the peer needs to know.
    pub fn description(&self) -> EndpointDescription {
        let max_message = self.protocol.longest_received(&self.config) as u64;
        EndpointDescription { max_message, ..self.end.description(&self.config) }
    }

    /// Connects with the peer whose description this is. Receives are posted before it can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection, ConnectError> {
        let Self { protocol, config, end } = self;
        // A peer that was given a key may read, and with signal bytes write, what it was given.
        let access = match protocol.acknowledge {
            // RNICs grant no right to write from afar without that to write here (ibv_reg_mr(3)).
            Acknowledge::SignalByte => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
            Acknowledge::Send => Access::REMOTE_READ,
        };
        end.prepare(&config, peer, access)?;
        let pd = end.pd.clone();
        let count = queues(protocol, &config).receives;
        let region = pd.allocate(count * REQUEST_STRIDE, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let receives = Receives { region };
        for slot in 0..count as u32 {
            let sge = [receives.sge(slot)];
            end.qp.post_recv(&[RecvRequest { wr_id: RECEIVE_TAG | u64::from(slot), sges: &sge }])?;
        }
        let line = end.connect(&config, peer)?;
        // Behind each message lies its signal byte.
        let (places, longest) = match config.send_buffers {
            0 => (config.window, 0),
            buffers => (buffers, config.max_message),
        };
        let stride = (longest + 1).next_multiple_of(64);
        let send_region = pd.allocate(places * stride, protocol.source_access(), MemoryKind::Plain)?;
        let pool = match protocol.placement {
            Placement::ByHand => None,
            Placement::Pool => {
                let stride = config.stride();
                let region = pd.allocate(config.depth * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                Some(Slots::new(region, stride, config.depth, 0..config.depth as u32))
            }
        };
        Ok(Connection {
            window: config.window.min(peer.depth as usize) as u64,
            peer_max_message: peer.max_message,
            pending: Vec::with_capacity(config.batch),
            line,
            protocol,
            access,
            send_region,
            send_places: places as u64,
            stride,
            next_id: 1,
            completed: 0,
            announced: 0,
            signals: VecDeque::with_capacity(config.window),
            receives,
            pool,
            requests: VecDeque::with_capacity(config.depth),
            reads: VecDeque::with_capacity(READS_IN_FLIGHT),
            reads_begun: 0,
            reads_done: 0,
            inbox: VecDeque::with_capacity(config.depth),
            acknowledgements: 0,
            config,
        })
    }
}

fn queues(protocol: DirectRead, config: &Config) -> Queues {
    let acknowledgements = match protocol.acknowledge {
        Acknowledge::SignalByte => 0,
        // Each is word of a message more, so there are never more than messages.
        Acknowledge::Send => config.window,
    };
    Queues {
        // An acknowledgement leaves the queue when a READ behind it completes, or another
        // acknowledgement does: there may be twice as many as READs.
        sends: config.window + 3 * READS_IN_FLIGHT,
        receives: config.depth + CONTROL_RECEIVES + acknowledgements,
        inline: MAX_REQUEST_BYTES,
        sges: 1,
    }
}
