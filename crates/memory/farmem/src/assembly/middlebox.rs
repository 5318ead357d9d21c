//! The middlebox as a party: its control plane for a store. The middlebox is the only client of the first memory node.
//! All clients of the store, including the metadata service, are clients of the middlebox.

use std::collections::BTreeMap;

use doorbell_steer::{NodeEnd, Steer};
use doorbell_verbs::{PathMtu, RKey};

use super::{AssemblyError, Body, Message, Outbox, Party, Plan};
use crate::error::OpenError;
use crate::memory::{ClientDescription, MemoryDescription};
use crate::steering::StoreControl;

/// Settings of a middlebox that the plan does not determine.
#[derive(Clone, Copy, Debug)]
pub struct BoxSettings {
    /// Remote key of the memory for the clients. Another middlebox must have another key.
    pub rkey: RKey,
    /// Whether all accesses to the memory pass the middlebox, so that it may turn CASes into WRITEs.
    pub is_exclusive: bool,
    /// Whether the middlebox steers READs too.
    pub steers_reads: bool,
    /// Largest path MTU of the middlebox.
    pub path_mtu: PathMtu,
    /// UDP port of the middlebox.
    pub udp_port: u16,
    /// Time after which the middlebox retransmits a request to the memory node, and number of retransmissions. `None`
    /// means the values of [`NodeEnd::at`].
    pub patience: Option<(u64, u8)>,
}

/// The control plane of a middlebox with the messages that it exchanges. Calls take the state of the middlebox, which
/// the caller owns.
#[derive(Debug)]
pub struct BoxParty {
    settings: BoxSettings,
    plan: Plan,
    /// The middlebox's clients, once the memory node has answered.
    control: Option<StoreControl>,
    /// Requests that came before the memory node's answer.
    early: BTreeMap<Party, ClientDescription>,
    fencing: Vec<u32>,
    out: Outbox,
}

impl BoxParty {
    /// Makes the control plane of a middlebox without clients.
    pub fn new(steer: &Steer, plan: &Plan, settings: BoxSettings) -> Self {
        let mut out = Outbox::new(Party::Middlebox, plan);
        let lane = StoreControl::lane(steer, settings.path_mtu, settings.udp_port);
        out.push(Party::Memory(0), Body::Enter(ClientDescription { lane, calls: None }));
        Self { settings, plan: *plan, control: None, early: BTreeMap::new(), fencing: Vec::new(), out }
    }

    /// Handles a message of another party.
    ///
    /// # Errors
    ///
    /// The message is for another party, repeats a request, or its sender may not send it. Or the memory node refuses
    /// the middlebox, or the middlebox has no room for the memory node's region.
    pub fn receive(&mut self, steer: &mut Steer, message: Message) -> Result<(), AssemblyError> {
        self.out.check(&message)?;
        let Message { from, body, .. } = message;
        match (from, body) {
            (Party::Memory(0), Body::Entered(ends)) if self.control.is_none() => {
                self.attach(steer, MemoryDescription::of(ends, self.plan.geometry))?;
                let early = std::mem::take(&mut self.early);
                early.into_iter().try_for_each(|(from, ends)| self.accept(steer, from, ends))
            }
            (Party::Memory(0), Body::Refused(why)) => Err(AssemblyError::Refused { by: from, own: self.out.own, why }),
            (Party::Metadata | Party::Client(_), Body::Enter(ends)) if self.control.is_some() => {
                self.accept(steer, from, ends)
            }
            (Party::Metadata | Party::Client(_), body @ Body::Enter(ends)) => {
                if self.early.contains_key(&from) || self.early.len() > self.plan.clients {
                    return Err(self.out.unexpected(from, &body));
                }
                self.early.insert(from, ends);
                Ok(())
            }
            (Party::Metadata, Body::Fence { client, .. })
                if !self.fencing.contains(&client) && self.fencing.len() < self.out.most =>
            {
                self.fencing.push(client);
                Ok(())
            }
            (from, body) => Err(self.out.unexpected(from, &body)),
        }
    }

    fn attach(&mut self, steer: &mut Steer, node: MemoryDescription) -> Result<(), OpenError> {
        let BoxSettings { rkey, is_exclusive, steers_reads, patience, .. } = self.settings;
        let end = |address, path_mtu| {
            let end = NodeEnd::at(address, path_mtu);
            let (timeout_ns, retries) = patience.unwrap_or((end.timeout_ns, end.retries));
            NodeEnd { timeout_ns, retries, ..end }
        };
        self.control = Some(StoreControl::connect(steer, node, end, (rkey, is_exclusive, steers_reads))?);
        Ok(())
    }

    fn accept(&mut self, steer: &mut Steer, from: Party, ends: ClientDescription) -> Result<(), AssemblyError> {
        let entered = match (from.number(), &mut self.control) {
            (Some(number), Some(control)) => control.accept(steer, number, &ends),
            _ => Err(OpenError::Unanswered),
        };
        self.out.answer(from, entered.map(|memory| Body::Entered(memory.ends())), Body::Enter(ends).name())
    }

    /// Shuts out clients that have no outstanding request at the memory node any more. Returns whether there was one.
    pub fn poll(&mut self, steer: &mut Steer) -> bool {
        let Self { fencing, control, out, .. } = self;
        let before = fencing.len();
        fencing.retain(|&client| {
            let is_out = out.has_room() && control.as_mut().is_none_or(|control| control.fence(steer, client));
            if is_out {
                out.push(Party::Metadata, Body::Fenced { client });
            }
            !is_out
        });
        before > fencing.len()
    }

    /// Returns whether clients are to be shut out whose requests are outstanding at the memory node.
    pub fn is_fencing(&self) -> bool {
        !self.fencing.is_empty()
    }

    /// Returns the next message to carry.
    pub fn next_message(&mut self) -> Option<Message> {
        self.out.queue.pop_front()
    }
}
