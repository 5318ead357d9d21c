//! Parties of one thread, which exchange their messages without a transport.

use std::collections::VecDeque;

use doorbell_steer::Steer;

use super::{AssemblyError, BoxParty, ClientParty, MemoryParty, Message, MetadataParty, Party};

/// Parties of one thread. Messages among them are delivered at once. Messages to other parties are
/// [to be carried](Self::next_message).
///
/// Methods take the state of the middlebox, if it is one of these parties, and the time on the clock of the devices.
#[derive(Debug, Default)]
pub struct LocalParties {
    /// Memory nodes, by index.
    pub memories: [Option<MemoryParty>; 2],
    /// Middlebox.
    pub middlebox: Option<BoxParty>,
    /// Metadata service.
    pub metadata: Option<MetadataParty>,
    outgoing: VecDeque<Message>,
}

impl LocalParties {
    /// Delivers a message to its party, and all messages that follow from it.
    ///
    /// # Errors
    ///
    /// A party rejects a message.
    pub fn deliver(
        &mut self,
        message: Message,
        mut steer: Option<&mut Steer>,
        now_ns: u64,
    ) -> Result<(), AssemblyError> {
        self.hand_over(message, steer.as_deref_mut(), now_ns)?;
        self.settle(steer, now_ns)
    }

    fn hand_over(&mut self, message: Message, steer: Option<&mut Steer>, now_ns: u64) -> Result<(), AssemblyError> {
        let memory = match message.to {
            Party::Memory(index) => self.memories.get_mut(usize::from(index)).and_then(Option::as_mut),
            _ => None,
        };
        match (message.to, memory, &mut self.metadata, self.middlebox.as_mut().zip(steer)) {
            (_, Some(memory), ..) => memory.receive(message),
            (Party::Metadata, _, Some(metadata), _) => metadata.receive(message, now_ns),
            (Party::Middlebox, .., Some((middlebox, steer))) => middlebox.receive(steer, message),
            _ => {
                self.outgoing.push_back(message);
                Ok(())
            }
        }
    }

    /// Delivers the messages of all parties until none is left.
    ///
    /// # Errors
    ///
    /// A party rejects a message.
    pub fn settle(&mut self, mut steer: Option<&mut Steer>, now_ns: u64) -> Result<(), AssemblyError> {
        let next = |own: &mut Self| {
            let memories = own.memories.iter_mut().flatten().find_map(MemoryParty::next_message);
            let middlebox = || own.middlebox.as_mut().and_then(BoxParty::next_message);
            let message = memories.or_else(middlebox);
            message.or_else(|| own.metadata.as_mut().and_then(MetadataParty::next_message))
        };
        while let Some(message) = next(self) {
            self.hand_over(message, steer.as_deref_mut(), now_ns)?;
        }
        Ok(())
    }

    /// Advances the metadata service, and delivers its messages. Memory nodes are polled apart, since each may have a
    /// processor of its own. Returns whether anything changed.
    ///
    /// # Errors
    ///
    /// A party rejects a message.
    pub fn poll(&mut self, now_ns: u64) -> Result<bool, AssemblyError> {
        let happened = self.metadata.as_mut().is_some_and(|metadata| metadata.poll(now_ns));
        self.settle(None, now_ns)?;
        Ok(happened)
    }

    /// Returns whether the middlebox has messages to handle or clients to shut out.
    pub fn wants_middlebox(&self) -> bool {
        let is_asked = || self.outgoing.iter().any(|message| message.to == Party::Middlebox);
        self.middlebox.as_ref().is_some_and(|middlebox| middlebox.is_fencing() || is_asked())
    }

    /// Advances the middlebox, and delivers its messages and those to it.
    ///
    /// # Errors
    ///
    /// A party rejects a message.
    pub fn poll_middlebox(&mut self, steer: &mut Steer, now_ns: u64) -> Result<(), AssemblyError> {
        for message in std::mem::take(&mut self.outgoing) {
            self.hand_over(message, Some(steer), now_ns)?;
        }
        self.settle(Some(steer), now_ns)?;
        if let Some(middlebox) = &mut self.middlebox {
            middlebox.poll(steer);
        }
        self.settle(Some(steer), now_ns)
    }

    /// Carries messages between these parties and a client until the client is ready or waits for other parties.
    ///
    /// # Errors
    ///
    /// A party rejects a message or refuses the client.
    pub fn admit(
        &mut self,
        client: &mut ClientParty,
        mut steer: Option<&mut Steer>,
        now_ns: u64,
    ) -> Result<(), AssemblyError> {
        while let Some(message) = client.next_message() {
            self.deliver(message, steer.as_deref_mut(), now_ns)?;
            let (own, others): (VecDeque<_>, _) =
                self.outgoing.drain(..).partition(|message| message.to == client.party());
            self.outgoing = others;
            own.into_iter().try_for_each(|message| client.receive(message))?;
        }
        Ok(())
    }

    /// Returns the next message to a party elsewhere.
    pub fn next_message(&mut self) -> Option<Message> {
        self.outgoing.pop_front()
    }
}
