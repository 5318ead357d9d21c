//! Buffers of a workload: the source of sent messages, and the receiver of messages.

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_exchange::{Backpressure, ConnectionError, MessageConnection, Received, Submit};
use doorbell_verbs::Device;
use doorbell_wire::{fill_scrambled, is_scrambled};

use super::{Plan, Reception, SendMemory, Sizes, Tally};

/// Source of the messages of a plan.
pub(super) struct Source {
    pub(super) plan: Plan,
    pub(super) memory: SendMemory,
    /// Bytes of the next message.
    pub(super) bytes: usize,
    slot: usize,
    is_filled: bool,
    pub(super) sent: u64,
    stalled_on_credits: u64,
    scratch: Vec<u8>,
}

impl Source {
    pub(super) fn new(plan: Plan, memory: SendMemory) -> Self {
        let scratch = vec![0; if plan.verify { plan.bytes } else { 0 }];
        let bytes = plan.bytes;
        let mut source =
            Self { plan, memory, bytes, slot: 0, is_filled: false, sent: 0, stalled_on_credits: 0, scratch };
        source.size_next();
        source
    }

    /// Sets the bytes of the next message if the messages have a mix of sizes.
    fn size_next(&mut self) {
        if let Sizes::Mixed(sequence, from) = &self.memory.sizes {
            self.bytes = sequence.bytes(from.wrapping_add(self.sent));
        }
    }

    /// Sets the bytes of the reply to a request of `bytes` bytes.
    pub(super) fn size_reply(&mut self, bytes: usize) {
        if matches!(self.memory.sizes, Sizes::AsReceived) {
            self.bytes = bytes.min(self.plan.bytes);
        }
    }

    pub(super) fn offset(&self) -> usize {
        self.slot * self.memory.stride
    }

    /// Writes the payload of the next message if payloads are verified and the next buffer is free.
    pub(super) fn fill(&mut self, connection: &impl MessageConnection) {
        // There is one buffer for each message of the window, so a buffer is free while the window is not full.
        if connection.unacknowledged() < self.plan.window as u64 {
            self.write();
        }
    }

    /// Writes the payload of the next message. The caller ensures that the next buffer is free.
    pub(super) fn write(&mut self) {
        if self.plan.verify && !self.is_filled {
            let message = &mut self.scratch[..self.bytes];
            fill_scrambled(self.sent, message);
            self.memory.region.copy_in(self.slot * self.memory.stride, message);
            self.is_filled = true;
        }
    }

    /// Sends the next message. Returns whether the connection accepted it.
    pub(super) fn offer(&mut self, connection: &mut impl MessageConnection) -> Result<bool, ConnectionError> {
        self.fill(connection);
        let submit = connection.send_from(&self.memory.region, self.offset(), self.bytes)?;
        Ok(self.note(submit))
    }

    /// Records the result of a submission. If the connection accepted the message, advances to the next message and
    /// returns `true`.
    pub(super) fn note(&mut self, submit: Submit) -> bool {
        if let Submit::Full(why) = submit {
            self.stalled_on_credits += u64::from(why == Backpressure::Credits);
            return false;
        }
        self.is_filled = false;
        self.sent += 1;
        self.slot = if self.slot + 1 == self.plan.buffers { 0 } else { self.slot + 1 };
        self.size_next();
        true
    }

    /// Stores the number of sent messages and stalls in the tally.
    pub(super) fn close(&self, tally: &mut Tally) {
        tally.sent = self.sent;
        tally.stalled_on_credits = self.stalled_on_credits;
        if let Sizes::Mixed(_, from) = self.memory.sizes {
            tally.sequence_from = from;
        }
    }
}

/// The receiving side of a connection.
pub(super) struct Receiver<'a> {
    device: &'a Device,
    reception: Reception,
    scratch: Vec<u8>,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(device: &'a Device, reception: Reception) -> Self {
        Self { device, reception, scratch: Vec::new() }
    }

    /// Returns whether the receiver pauses for each message, so that it takes long to receive all arrived messages.
    pub(super) fn is_slow(&self) -> bool {
        self.reception.pause_ns > 0
    }

    /// Takes all messages that have arrived, or only one message if the receiver pauses. Returns the number of taken
    /// messages.
    pub(super) async fn take_all(
        &mut self,
        connection: &mut impl MessageConnection,
        waiter: &impl Waiter,
        tally: &mut Tally,
    ) -> usize {
        let mut count = 0;
        while let Some(message) = connection.take() {
            self.receive(message, tally);
            waiter.breathe().await;
            count += 1;
            if self.is_slow() {
                break;
            }
        }
        count
    }

    /// Takes the messages that have arrived. If the receiver pauses, the function yields after each message. It always
    /// yields at the end.
    pub(super) async fn take_in_turns(
        &mut self,
        connection: &mut impl MessageConnection,
        waiter: &impl Waiter,
        tally: &mut Tally,
    ) -> usize {
        let mut count = 0;
        loop {
            let taken = self.take_all(connection, waiter, tally).await;
            count += taken;
            yield_now().await;
            if taken == 0 || !self.is_slow() {
                return count;
            }
        }
    }

    /// Checks a message, pauses if the receiver is slow, and counts the message.
    pub(super) fn receive(&mut self, message: impl Received, tally: &mut Tally) {
        if self.reception.verify {
            self.scratch.resize(message.len(), 0);
            message.copy_to(&mut self.scratch);
            tally.damaged += u64::from(!is_scrambled(tally.received, &self.scratch));
        }
        if self.reception.pause_ns > 0 {
            let until_ns = self.device.now_ns() + self.reception.pause_ns;
            while self.device.now_ns() < until_ns {
                std::hint::spin_loop();
            }
        }
        tally.received += 1;
    }
}
