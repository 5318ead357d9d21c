//! Steering and conversion of requests before the box sends them to the node. The box transforms each request once, in
//! the order in which the node executes the requests. Retransmissions are sent unchanged.

use doorbell_verbs_core::Access;

use super::Steer;
use crate::client::Redirect;
use crate::key::Key;
use crate::message::{Answer, Kind, Message};
use crate::steering::Elsewhere;
use crate::values::behind;

impl Steer {
    /// Returns the key whose chain a request must lock, and whether another request has locked the chain.
    pub(super) fn lock_of(&self, message: &Message) -> Option<(Key, bool)> {
        let steering = self.steering.as_ref()?;
        let key = steering.appends(message)?;
        Some((key, steering.is_locked(&key)))
    }

    /// Steers and converts a request that the box is about to send for the first time.
    pub(super) fn transform(&mut self, message: &mut Message, append: Option<Key>) {
        if message.again {
            return;
        }
        let mtu = self.mtu();
        match message.kind {
            Kind::Write => {
                if message.exclusive {
                    self.values.written(message, mtu);
                    let start = message.first_payload(mtu);
                    if let Some((offset, word)) = self.steering.as_ref().and_then(|steering| steering.word_in(start)) {
                        self.values.set(message.address.wrapping_add(offset), word);
                    }
                }
                if let Some(steering) = &mut self.steering {
                    steering.written(message, mtu);
                }
            }
            Kind::Read => self.steer_read(message),
            Kind::CompareSwap { .. } => self.transform_cas(message, append),
            Kind::FetchAdd { add } => {
                if message.exclusive {
                    message.question = self.values.added(message.address, add);
                }
            }
        }
    }

    fn steer_read(&mut self, message: &mut Message) {
        let Some(to) = self.steering.as_ref().and_then(|steering| steering.steer_read(message)) else { return };
        if !self.may(to, message.length, Access::REMOTE_READ) {
            return;
        }
        let redirect = Redirect {
            psn: message.psn,
            packets: message.packets,
            from: message.address,
            to: to.address,
            node_rkey: to.node_rkey,
        };
        message.set_target(to.address, to.node_rkey);
        self.counters.reads_steered += 1;
        if let Some(client) = self.client(message.slot) {
            client.keep_redirect(redirect);
        }
    }

    fn transform_cas(&mut self, message: &mut Message, append: Option<Key>) {
        if let Some(key) = append
            && let Some(to) = self.steering.as_ref().and_then(|steering| steering.steer_append(&key, message))
            && self.may(to, 8, Access::REMOTE_ATOMIC)
        {
            message.exclusive = self.regions.is_exclusive(to.rkey);
            message.set_target(to.address, to.node_rkey);
            message.set_compare(to.tail_word);
            self.counters.cas_steered += 1;
        }
        let Kind::CompareSwap { compare, swap } = message.kind else { return };
        let known = message.exclusive.then(|| self.values.get(message.address)).flatten();
        if let Some(value) = known {
            // The outcome of the CAS is already known, so no client has to wait for it.
            let new = behind(message.kind, value);
            let prior = match message.answer {
                Answer::Steered => self.seen_by_client(compare, value),
                _ => value,
            };
            self.learn(message.address, compare, swap, value);
            message.convert(new, prior);
            self.values.set(message.address, new);
            self.counters.cas_converted += 1;
            return;
        }
        if message.exclusive {
            message.question = Some(self.values.ask(message.address));
        }
        if let (Some(key), Some(steering)) = (append, &mut self.steering) {
            steering.lock(key);
            message.lock = Some(key);
        }
    }

    /// Updates the tables from the node's answer to an atomic.
    pub(super) fn learn_from(&mut self, message: &Message, original: Option<u64>) {
        let Some(original) = original else { return };
        if let Kind::CompareSwap { compare, swap } = message.kind {
            self.learn(message.address, compare, swap, original);
        }
        if let Some(question) = message.question {
            self.values.answer(message.address, question, behind(message.kind, original));
        }
        if let (Some(key), Some(steering)) = (&message.lock, &mut self.steering) {
            self.ready.extend(steering.unlock(key));
        }
    }

    fn learn(&mut self, address: u64, compare: u64, swap: u64, original: u64) {
        if let Some(steering) = &mut self.steering {
            steering.swapped(address, compare, swap, original);
            self.counters.keys_replaced = steering.replaced;
        }
    }

    /// Returns whether the box still has the region of the steering target, and whether the region grants this access.
    fn may(&self, to: Elsewhere, length: u32, access: Access) -> bool {
        let region = self.regions.check(to.rkey, to.address, length, access);
        region.is_ok_and(|region| region.is_some_and(|region| region.node_rkey == to.node_rkey))
    }
}
