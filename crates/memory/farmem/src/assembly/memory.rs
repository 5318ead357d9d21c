//! The memory node as a party.

use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::Pd;

use super::{AssemblyError, Body, Message, Outbox, Party, Plan};
use crate::error::OpenError;
use crate::memory::MemoryNode;
use crate::steering::BOX;

/// Number of times per lease that a memory node asks for the next lease.
const ASKS: u64 = 8;

/// Lease of a memory node in a store with two.
#[derive(Debug)]
struct Lease {
    lease_ns: u64,
    asked_ns: u64,
    is_waiting: bool,
}

/// A memory node with the messages that it exchanges. It never ends by itself: drop it when no party needs it.
#[derive(Debug)]
pub struct MemoryParty {
    node: MemoryNode,
    out: Outbox,
    is_entrance: bool,
    is_boxed: bool,
    lease: Option<Lease>,
    /// Queue pair of the present middlebox.
    middlebox: Option<EndpointDescription>,
}

impl MemoryParty {
    /// Allocates the region of memory node `index`, and writes the keys of the plan.
    ///
    /// # Errors
    ///
    /// A size of the plan is out of range, or there is not enough memory.
    pub fn new(pd: &Pd, plan: &Plan, index: u8) -> Result<Self, OpenError> {
        let mut node = MemoryNode::new(pd, plan.geometry)?;
        node.fill(plan.strategy, plan.keys, plan.value_bytes)?;
        // A first lease limits the time for which clients can read before the first answer.
        let now_ns = pd.device().now_ns();
        let lease = plan.lease_ns.map(|lease_ns| {
            node.serve_until(now_ns + lease_ns);
            Lease { lease_ns, asked_ns: now_ns, is_waiting: false }
        });
        let out = Outbox::new(Party::Memory(index), plan);
        Ok(Self { node, out, is_entrance: index == 0, is_boxed: plan.is_boxed, lease, middlebox: None })
    }

    /// Handles a message of another party.
    ///
    /// # Errors
    ///
    /// The message is for another party, repeats a request, or its sender may not send it.
    pub fn receive(&mut self, message: Message) -> Result<(), AssemblyError> {
        self.out.check(&message)?;
        let Message { from, body, .. } = message;
        let what = body.name();
        // Behind a middlebox, the middlebox is the only client of the memory node.
        let may_enter = !self.is_boxed || !self.is_entrance;
        match (from, body) {
            (_, Body::Enter(ends)) if may_enter != (from == Party::Middlebox) => {
                let Some(number) = from.number() else { return Err(self.out.unexpected(from, &Body::Enter(ends))) };
                if from == Party::Middlebox {
                    if self.middlebox.replace(ends.lane) == Some(ends.lane) {
                        return Err(self.out.unexpected(from, &Body::Enter(ends)));
                    }
                    // A previous middlebox has ended. Its requests must not be executed any more.
                    self.node.fence(number).map_err(OpenError::from)?;
                }
                let entered = self.node.accept(number, &ends).map(|memory| Body::Entered(memory.ends()));
                self.out.answer(from, entered, what)
            }
            // The requests of a middlebox that has ended must not be executed any more.
            (Party::Middlebox, Body::Ended) => Ok(self.node.fence(BOX).map(drop).map_err(OpenError::from)?),
            (Party::Metadata, Body::Fence { client, .. }) => {
                let fenced = self.node.fence(client).map(|_| Body::Fenced { client });
                self.out.answer(from, fenced.map_err(OpenError::from), what)
            }
            (Party::Metadata, Body::Stop) => {
                let stopped = self.node.stop().map(|()| Body::Stopped);
                self.out.answer(from, stopped.map_err(OpenError::from), what)
            }
            (Party::Metadata, Body::Check { place, key }) => {
                let node = self.node.inspect(place);
                let is_intact = node.is_some_and(|node| node.is_intact && !node.is_tombstone && node.key == key);
                self.out.push(from, Body::Checked { is_intact });
                Ok(())
            }
            (Party::Metadata, body @ Body::Lease) => match &mut self.lease {
                Some(lease) if lease.is_waiting => {
                    lease.is_waiting = false;
                    self.node.serve_until(lease.asked_ns + lease.lease_ns);
                    Ok(())
                }
                _ => Err(self.out.unexpected(from, &body)),
            },
            (from, body) => Err(self.out.unexpected(from, &body)),
        }
    }

    /// Executes requests of clients of strategy `server`, asks for the next lease, and stops the memory node at the end
    /// of a lease. Returns whether anything changed.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        if let Some(lease) = &mut self.lease
            && !lease.is_waiting
            && !self.node.is_stopped()
            && now_ns >= lease.asked_ns + lease.lease_ns / ASKS
            && self.out.has_room()
        {
            (lease.asked_ns, lease.is_waiting) = (now_ns, true);
            self.out.push(Party::Metadata, Body::AskLease);
        }
        self.node.poll()
    }

    /// Returns the time, on the device's clock, at which the memory node needs a poll without an event.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.node.deadline_ns()
    }

    /// Returns the next message to carry.
    pub fn next_message(&mut self) -> Option<Message> {
        self.out.queue.pop_front()
    }

    /// Returns the memory node.
    pub fn node(&self) -> &MemoryNode {
        &self.node
    }
}
