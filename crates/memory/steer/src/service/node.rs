//! The box's queue pair with the memory node.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use doorbell_exchange::address::reach;
use doorbell_exchange::setup::{self, EndpointDescription, RemoteRegion, Timed};
use doorbell_wire::RKey;
use socket2::SockRef;

use super::plane::{ALL_ACCESS, DEADLINE, KEEPALIVE, Plane, Reached, lock, name_of, wait_for_end};
use super::{NODE_TIMEOUT_NS, ServiceError};
use crate::{NodeEnd, NodeFailure, Region};

/// Pause before the box connects to a node again.
const AGAIN: Duration = Duration::from_secs(1);

impl Plane {
    /// Sets up a new queue pair with the node whenever the current one fails. The first queue pair is already set up.
    pub(super) fn keep_node(&self, first: &TcpStream, listen: &str) {
        (self.note)(&format!("serving clients at {listen} for the memory node {}", self.own.node));
        let mut said = String::new();
        let mut why = self.wait_for_node(first);
        loop {
            self.detach();
            if said != why {
                (self.note)(&format!("{why}; trying again until the node answers"));
                said.clone_from(&why);
            }
            std::thread::sleep(AGAIN);
            let again = reach(&self.own.node, "")
                .map_err(ServiceError::from)
                .and_then(|stream| self.attach(&stream).map(|()| stream));
            match again {
                Ok(stream) => {
                    (self.note)(&format!("the memory node {} is there again", self.own.node));
                    said.clear();
                    why = self.wait_for_node(&stream);
                }
                Err(error) => why = error.to_string(),
            }
        }
    }

    /// Waits until the node ends its connection, or the queue pair with the node fails. Returns a sentence about the
    /// reason.
    fn wait_for_node(&self, stream: &TcpStream) -> String {
        wait_for_end(stream);
        *lock(&self.node_stream) = None;
        let node = &self.own.node;
        match lock(&self.node_failure).take() {
            None => format!("the memory node {node} has ended its connection"),
            Some(NodeFailure::Refused) => format!("the memory node {node} has refused a request"),
            Some(NodeFailure::Silent) => format!("the memory node {node} does not answer any more"),
        }
    }

    /// Records whether the queue pair with the node has failed. After a failure, closes the connection with the node,
    /// which is useless without the queue pair.
    pub(super) fn node_failed(&self, failure: Option<NodeFailure>) {
        let stream = lock(&self.node_stream);
        if let (Some(failure), Some(stream)) = (failure, stream.as_ref()) {
            *lock(&self.node_failure) = Some(failure);
            let _ = stream.shutdown(Shutdown::Both); // fails if the connection has ended already
        }
    }

    /// Sets up the queue pair with the node.
    pub(super) fn attach(&self, stream: &TcpStream) -> Result<(), ServiceError> {
        let peer = name_of(stream);
        let (qpn, psn) = self.with(|steer| steer.node_side())?;
        let theirs =
            setup::exchange(stream, &[self.describe(qpn, psn, self.own.path_mtu, RemoteRegion::NONE)], DEADLINE)?;
        let reached = self.check_node(&peer, &theirs[0])?;
        let end = NodeEnd {
            qpn: theirs[0].qpn,
            max_rd_atomic: self.own.reads,
            timeout_ns: NODE_TIMEOUT_NS,
            retries: self.own.node_retries(),
            ..NodeEnd::at(reached.address, reached.path_mtu)
        };
        let region = Region {
            rkey: reached.region.rkey,
            node_rkey: theirs[0].regions[0].rkey,
            address: reached.region.address,
            length: reached.region.length,
            access: ALL_ACCESS,
            exclusive: self.own.exclusive,
        };
        let layout = self.own.store.as_ref().map(|store| (store.layout)(region.address));
        self.with(move |steer| {
            steer.set_layout(layout);
            steer.attach(end)?;
            steer.add_region(region)
        })??;
        SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE)?;
        // After this statement, the box can serve clients.
        *lock(&self.node) = Some(reached);
        self.say_ready(stream, &peer, &mut Timed::new(stream, DEADLINE))?;
        *lock(&self.node_failure) = None;
        *lock(&self.node_stream) = Some(stream.try_clone()?);
        self.counts.attached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Gives up the queue pair with the node, and the queue pairs of all clients. The clients then connect again.
    fn detach(&self) {
        let region = lock(&self.node).take().map(|reached| reached.region.rkey);
        let _ = self.with(move |steer| {
            steer.detach();
            region.map(|rkey| steer.remove_region(rkey))
        });
        for (_, stream) in lock(&self.streams).values() {
            let _ = stream.shutdown(Shutdown::Both); // the thread of the client cleans up
        }
    }

    fn check_node(&self, peer: &str, theirs: &EndpointDescription) -> Result<Reached, ServiceError> {
        let address = self.check(peer, theirs)?;
        let RemoteRegion { address: start, length, .. } = theirs.regions[0];
        if length == 0 {
            return Err(ServiceError::NoMemory { peer: peer.to_owned() });
        }
        if let Some(needed) = self.own.store.as_ref().map(|store| store.region_bytes).filter(|&needed| needed > length)
        {
            return Err(ServiceError::TooSmall { peer: peer.to_owned(), given: length, needed });
        }
        // Give clients a key of the box instead of the node's own key.
        let region = RemoteRegion { address: start, length, rkey: RKey::new(getrandom::u32()?) };
        Ok(Reached { address, path_mtu: self.own.path_mtu.min(theirs.path_mtu), region })
    }
}
