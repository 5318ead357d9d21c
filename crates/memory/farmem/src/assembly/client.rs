//! A client as a party.

use std::sync::Arc;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::Pd;

use super::{AssemblyError, Body, Message, Outbox, Party, Path, Plan};
use crate::cache::HostCache;
use crate::client::{Client, ClientEnd, ClientOptions};
use crate::error::OpenError;
use crate::layout::Geometry;
use crate::memory::MemoryDescription;

/// A client that is not connected yet. Carry its messages until [`is_ready`](Self::is_ready), and then
/// [`connect`](Self::connect) it. To give up the set-up, drop it: parties that have accepted it find it dead.
#[derive(Debug)]
pub struct ClientParty {
    end: ClientEnd,
    number: u32,
    entrance: Party,
    geometry: Geometry,
    memory: Option<MemoryDescription>,
    /// Whether the description of the second memory node is missing.
    lacks_replica: bool,
    has_joined: bool,
    metadata: Option<EndpointDescription>,
    out: Outbox,
}

impl ClientParty {
    /// Creates the queue pairs of client `number`, counted from 1. The plan determines strategy and number of memory
    /// nodes, and `options` all else.
    ///
    /// # Errors
    ///
    /// An option or a size is out of range, or the device has no room.
    pub fn new(pd: &Pd, plan: &Plan, number: u32, options: ClientOptions) -> Result<Self, OpenError> {
        let options = ClientOptions { strategy: plan.strategy, replicas: plan.replicas, ..options };
        let end = ClientEnd::new(pd, plan.geometry, options)?;
        let (entrance, geometry) = (plan.entrance(), plan.geometry);
        let out = Outbox::new(Party::Client(number), plan);
        let lacks_replica = end.to_replica().is_some();
        let mut own = Self {
            end,
            number,
            entrance,
            geometry,
            memory: None,
            lacks_replica,
            has_joined: false,
            metadata: None,
            out,
        };
        own.out.push(entrance, Body::Enter(own.end.to_memory()));
        if let Some(ends) = own.end.to_replica() {
            own.out.push(Party::Memory(1), Body::Enter(ends));
        }
        if entrance != Party::Middlebox {
            own.join(None);
        }
        Ok(own)
    }

    fn join(&mut self, path: Option<Path>) {
        self.has_joined = true;
        self.out.push(Party::Metadata, Body::Join { end: self.end.to_metadata(), path });
    }

    /// Handles a message of another party.
    ///
    /// # Errors
    ///
    /// The message is for another party, is not the answer to a request of the client, or refuses the request.
    pub fn receive(&mut self, message: Message) -> Result<(), AssemblyError> {
        self.out.check(&message)?;
        let Message { from, body, .. } = message;
        match (from, body) {
            (from, Body::Entered(ends)) if from == self.entrance && self.memory.is_none() => {
                let memory = MemoryDescription::of(ends, self.geometry);
                self.memory = Some(memory);
                if from == Party::Middlebox {
                    self.join(Some(Path::of(&memory)));
                }
            }
            (Party::Memory(1), Body::Entered(ends)) if self.lacks_replica => {
                self.end.set_replica(MemoryDescription::of(ends, self.geometry));
                self.lacks_replica = false;
            }
            (Party::Metadata, Body::Joined(end)) if self.has_joined && self.metadata.is_none() => {
                self.metadata = Some(end);
            }
            (by @ (Party::Memory(_) | Party::Middlebox | Party::Metadata), Body::Refused(why)) => {
                return Err(AssemblyError::Refused { by, own: self.out.own, why });
            }
            (from, body) => return Err(self.out.unexpected(from, &body)),
        }
        Ok(())
    }

    /// Returns the party's name.
    pub fn party(&self) -> Party {
        self.out.own
    }

    /// Returns the next message to carry.
    pub fn next_message(&mut self) -> Option<Message> {
        self.out.queue.pop_front()
    }

    /// Returns whether all answers have come.
    pub fn is_ready(&self) -> bool {
        self.memory.is_some() && self.metadata.is_some() && !self.lacks_replica
    }

    /// Connects the client, once it [is ready](Self::is_ready).
    ///
    /// # Errors
    ///
    /// An answer is missing, a description is invalid, or there is no memory for buffers.
    pub fn connect(self, cache: &Arc<HostCache>) -> Result<Client, OpenError> {
        let (Some(memory), Some(metadata), false) = (&self.memory, &self.metadata, self.lacks_replica) else {
            return Err(OpenError::Unanswered);
        };
        self.end.connect(self.number, memory, metadata, cache)
    }
}
