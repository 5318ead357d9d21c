//! Control connection of a host that acts as parties, and its counters.

use doorbell_farmem::assembly::Plan;
use doorbell_machine::cpu::CpuTime;
use doorbell_verbs::Device;

use super::super::messages::{FromServer, ToServer};
use super::super::report::{Before, Report};
use super::super::{Patience, Peer, SessionError, TcpPeer};
use crate::executor::block_on;
use crate::threads::{OsThreads, Threads as _};
use doorbell_record::StorePoint;

pub(in crate::session) type Control = TcpPeer<FromServer, ToServer>;

pub(super) fn say(peer: &mut Control, message: FromServer) -> Result<(), SessionError> {
    block_on(peer.send(message))
}

pub(super) fn hear(peer: &mut Control) -> Result<ToServer, SessionError> {
    hear_within(peer, Patience::Endless)
}

pub(super) fn hear_within(peer: &mut Control, patience: Patience) -> Result<ToServer, SessionError> {
    block_on(peer.receive(patience))
}

/// Receives the instant at which clients begin, on the clock of this host's device. Until then, the clients of this
/// host are connected and have no messages, while other hosts may still connect theirs.
pub(super) fn hear_start(peer: &mut Control, device: &Device) -> Result<u64, SessionError> {
    loop {
        match hear(peer)? {
            ToServer::Carry(_) => say(peer, FromServer::Carried { messages: Vec::new(), are_ready: true })?,
            other => return other.go(device).map(|(_, start_ns)| start_ns),
        }
    }
}

/// Returns the plan of a store.
pub(super) fn plan(store: &StorePoint) -> Plan {
    Plan::new(store.strategy, &store.load(), store.clients)
}

/// Counters at the beginning of a point.
pub(super) struct Began {
    /// `None` if the host has no device.
    counted: Option<Before>,
    cpu: CpuTime,
}

impl Began {
    pub(super) fn now(device: Option<&Device>) -> Self {
        Self { counted: device.map(Before::now), cpu: OsThreads::default().cpu_time() }
    }

    /// Returns the report of the host since the beginning of the point.
    pub(super) fn report(&self, device: Option<&Device>) -> Report {
        // These parties do not count empty polls separately.
        let cpu = CpuTime { empty_ns: None, ..OsThreads::default().cpu_time().since(self.cpu) };
        let counted = device.zip(self.counted.as_ref()).map(|(device, before)| Report::new(&[], device, before, cpu));
        counted.unwrap_or(Report { cpu, ..Report::default() })
    }
}
