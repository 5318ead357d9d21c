//! Clients of the box, each served by a thread of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_exchange::address::reach;
use doorbell_exchange::admission::{Client, Clients, Hello};
use doorbell_exchange::setup::{self, EndpointDescription, SetupError, Timed};
use doorbell_wire::{Psn, Qpn, to_gid};
use socket2::SockRef;

use super::ServiceError;
use super::plane::{DEADLINE, KEEPALIVE, Plane, Reached, lock, name_of, spawn, wait_for_end};
use crate::{ClientEnd, Steer, shut_out};

/// Maximum number of connections in set-up, in addition to the connections of served clients.
const IN_SETUP: usize = 64;

/// Interval at which the box checks whether the node has answered all requests of a client that is to be removed.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

impl Plane {
    /// Serves each client in a thread of its own until the process ends.
    pub(super) fn accept(self: &Arc<Self>, clients: &mut Clients<Hello>) {
        loop {
            let Client { stream, from, opening, until } = clients.wait();
            let Some(theirs) = opening.first().copied() else { continue };
            let most = self.own.clients + IN_SETUP;
            if self.talking.fetch_add(1, Ordering::Relaxed) >= most {
                self.talking.fetch_sub(1, Ordering::Relaxed);
                self.refused(&format!(
                    "{from}: the box has {most} connections already (--clients {})",
                    self.own.clients
                ));
                continue;
            }
            let plane = Arc::clone(self);
            let spawned = spawn("client", move || {
                let timed = Timed::new(&stream, until.saturating_duration_since(Instant::now()));
                let served = match plane.relays {
                    true => plane.serve_relayed(&stream, &theirs, timed),
                    false => plane.serve(&stream, &theirs, timed),
                };
                if let Err(why) = served {
                    plane.refused(&format!("{from}: {why}"));
                }
                plane.talking.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = spawned {
                self.talking.fetch_sub(1, Ordering::Relaxed);
                self.refused(&format!("{from}: no thread could be started: {error}"));
            }
        }
    }

    /// Serves a client that has described its queue pair, until the connection of the client ends.
    fn serve(&self, stream: &TcpStream, theirs: &EndpointDescription, timed: Timed<'_>) -> Result<(), ServiceError> {
        let peer = name_of(stream);
        let address = self.check(&peer, theirs)?;
        let Some(node) = *lock(&self.node) else { return Err(ServiceError::NoNode) };
        let path_mtu = theirs.path_mtu.min(node.path_mtu);
        let client = ClientEnd { address, qpn: theirs.qpn, first_psn: theirs.psn, path_mtu };
        let qpn = self.with(move |steer| steer.connect(client))??;
        let result = self.serve_connected(stream, &peer, timed, qpn, &node);
        let _ = self.with(move |steer| steer.disconnect(qpn));
        result
    }

    /// Serves a client that has a queue pair of its own at the node, until the client or the node ends its connection.
    fn serve_relayed(
        &self,
        stream: &TcpStream,
        theirs: &EndpointDescription,
        mut timed: Timed<'_>,
    ) -> Result<(), ServiceError> {
        let peer = name_of(stream);
        let client = (self.check(&peer, theirs)?, theirs.qpn);
        let to_node = reach(&self.own.node, "; does a memory node set up queue pairs there?")?;
        let gid = to_gid(self.own.address);
        let answer = setup::exchange(&to_node, &[EndpointDescription { gid, ..*theirs }], DEADLINE)?[0];
        let at_node = name_of(&to_node);
        let node = (self.check(&at_node, &answer)?, answer.qpn);
        self.with(move |steer| steer.relay(client, node))??;
        let mut connected = || -> Result<(), ServiceError> {
            timed.write_all(&setup::hello(&[EndpointDescription { gid, ..answer }]))?;
            self.say_ready(&to_node, &at_node, &mut Timed::new(&to_node, DEADLINE))?;
            self.counts.served.fetch_add(1, Ordering::Relaxed);
            self.say_ready(stream, &peer, &mut timed)?;
            for one in [stream, &to_node] {
                SockRef::from(one).set_tcp_keepalive(&KEEPALIVE)?;
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_for_end(&to_node);
                    let _ = stream.shutdown(Shutdown::Both); // fails if the connection has ended already
                });
                wait_for_end(stream);
                let _ = to_node.shutdown(Shutdown::Both);
            });
            Ok(())
        };
        let result = connected();
        self.with(move |steer| steer.end_relay(client, node))?;
        result
    }

    fn serve_connected(
        &self,
        stream: &TcpStream,
        peer: &str,
        mut timed: Timed<'_>,
        qpn: Qpn,
        node: &Reached,
    ) -> Result<(), ServiceError> {
        let broke = |error| SetupError::broke(peer, error, DEADLINE);
        // The node sends no requests to the client, so the first PSN of requests to the client does not matter.
        let own = self.describe(qpn, Psn::new(0), node.path_mtu, node.region);
        timed.write_all(&setup::hello(&[own])).map_err(broke)?;
        // Count the client before the answer: after the answer, the client may finish and a signal may end the box
        // before this thread runs again.
        self.counts.served.fetch_add(1, Ordering::Relaxed);
        self.say_ready(stream, peer, &mut timed)?;
        SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE).map_err(broke)?;
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        lock(&self.streams).insert(number, (qpn, stream.try_clone().map_err(broke)?));
        self.listen_to(stream);
        lock(&self.streams).remove(&number);
        Ok(())
    }

    /// Answers requests to shut clients out until the peer ends its connection. If the peer sends any other message,
    /// the box ignores all further data of the peer.
    fn listen_to(&self, mut stream: &TcpStream) {
        let mut said = [0; shut_out::BYTES];
        while stream.read_exact(&mut said).is_ok() {
            let Some(qpn) = shut_out::parse(said) else { return wait_for_end(stream) };
            if self.shut_out(qpn).is_err() || stream.write_all(&said).is_err() {
                return;
            }
        }
    }

    /// Shuts a client out, and waits until the node has answered all requests of that client.
    fn shut_out(&self, qpn: Qpn) -> Result<(), ServiceError> {
        // If the queue pair with the node has failed, the node may still execute requests until it has replaced that
        // queue pair.
        let is_out = move |steer: &mut Steer| steer.is_attached() && steer.at_node(qpn) == 0;
        let mut is_over = self.with(move |steer| {
            steer.disconnect(qpn);
            is_out(steer)
        })?;
        for (_, stream) in lock(&self.streams).values().filter(|(own, _)| *own == qpn) {
            let _ = stream.shutdown(Shutdown::Both); // the thread of the client cleans up
        }
        while !is_over {
            std::thread::sleep(LOOK_AGAIN);
            is_over = self.with(is_out)?;
        }
        Ok(())
    }
}
