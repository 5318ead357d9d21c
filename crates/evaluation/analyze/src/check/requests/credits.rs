//! Messages that consume a receive, beyond the credits that the responder has granted, in a complete capture.

use std::collections::VecDeque;

use doorbell_wire::{AethRepr, Opcode, PacketOperation, Psn, SyndromeKind};

use super::super::findings::{Draft, Drafts, Needs};
use super::super::packet::{Packet, Place};
use super::super::rules::RuleId;
use super::Requests;

/// Maximum number of findings that wait for later answers.
const MAX_HELD: usize = 64;

/// Limit of messages that the credits of an answer set.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Number of the last allowed message, modulo 2^24, counted from the first captured message.
    message: u32,
    /// Packet number of the answer.
    answer: u64,
}

#[derive(Debug, Default)]
pub(super) struct Credits {
    /// Newest limit; `None` if it is unknown, or if the responder grants unlimited credits.
    limit: Option<Limit>,
    /// Findings that an answer later in the file explains, if it has an earlier time.
    held: VecDeque<Draft>,
}

impl Requests {
    /// Records an answer of a complete capture. `base` is the MSN before the first captured message, if it is known.
    pub(in super::super) fn grant(&mut self, base: Option<u32>, aeth: &AethRepr, answer: Place) {
        if let Some(base) = base {
            self.is_whole.get_or_insert(base == 0);
        }
        let SyndromeKind::Ack { credits } = aeth.syndrome.kind() else { return };
        let limit = base.zip(granted(credits)).map(|(base, credits)| {
            let done = aeth.msn.get().wrapping_sub(base) & Psn::MASK;
            done.wrapping_add(credits).wrapping_add(self.free_after(done)) & Psn::MASK
        });
        self.credits.grant(limit, answer);
    }

    /// Returns the number of remembered messages after the message `done` that consume no receive, and so no credit.
    fn free_after(&self, done: u32) -> u32 {
        let later = self.sent.iter().rev().take_while(|sent| exceeding(sent.messages, done) > 0);
        later.map(|sent| u32::from(is_free(sent.opcode))).sum()
    }
}

impl Credits {
    /// Records an answer with the limit that it sets. The requester may not have received the answer yet, so the limit
    /// is never below the one that the requester knows.
    fn grant(&mut self, limit: Option<u32>, answer: Place) {
        let is_earlier = |sent: Place| answer.at_ns.zip(sent.at_ns).is_some_and(|(answer, sent)| answer < sent);
        self.held.retain(|draft| !is_earlier(draft.place));
        let newest = limit.map(|message| Limit { message, answer: answer.packet });
        self.limit = match (self.limit, newest) {
            (Some(known), Some(new)) if exceeding(new.message, known.message) == 0 => Some(known),
            (_, newest) => newest,
        };
    }

    /// Judges a new request, or raises the limit if the request consumes no receive. `message` is the number of its
    /// message.
    pub(super) fn send(&mut self, packet: &Packet<'_>, message: u32, drafts: &mut Drafts) {
        let Some(limit) = &mut self.limit else { return };
        let opcode = packet.bth.opcode;
        if is_free(opcode) {
            limit.message = limit.message.wrapping_add(1) & Psn::MASK;
        }
        if !shows_receive(opcode) {
            return;
        }
        let limit = *limit;
        drafts.judged(RuleId::CreditLimit);
        // A requester without credits may send one message, whose answer has new credits.
        let beyond = exceeding(message, limit.message);
        if beyond < 2 {
            return;
        }
        if self.held.len() == MAX_HELD
            && let Some(oldest) = self.held.pop_front()
        {
            drafts.push(oldest);
        }
        self.held.push_back(Draft {
            rule: RuleId::CreditLimit,
            place: packet.place,
            related: Some(limit.answer),
            needs: Needs::Requests,
            expected: "at most one message beyond the granted credits".to_owned(),
            found: format!("message {beyond} beyond the credits of packet {}", limit.answer),
        });
    }

    /// Reports the findings that no answer has explained.
    pub(super) fn report(&mut self, drafts: &mut Drafts) {
        self.held.drain(..).for_each(|draft| drafts.push(draft));
    }
}

/// Returns whether a packet shows that its message consumes a receive: the first packet of a SEND, and the packet of a
/// WRITE that has the immediate data.
fn shows_receive(opcode: Opcode) -> bool {
    match opcode.operation() {
        Some(PacketOperation::Send) => opcode.is_first(),
        Some(PacketOperation::Write) => opcode.has_imm(),
        _ => false,
    }
}

/// Returns whether a packet ends a message that consumes no receive. Credits do not limit such a message.
fn is_free(opcode: Opcode) -> bool {
    match opcode.operation() {
        Some(PacketOperation::Write) => opcode.is_last() && !opcode.has_imm(),
        Some(PacketOperation::ReadRequest | PacketOperation::CompareSwap | PacketOperation::FetchAdd) => true,
        _ => false,
    }
}

/// Returns by how much a number of a message exceeds another one, modulo 2^24; 0 if it does not.
fn exceeding(message: u32, limit: u32) -> u32 {
    let beyond = message.wrapping_sub(limit) & Psn::MASK;
    if beyond < 1 << 23 { beyond } else { 0 }
}

/// Returns the number of credits that a code of the AETH grants (IBTA Vol 1, 9.7.7.2); `None` means unlimited.
fn granted(code: u8) -> Option<u32> {
    match code {
        0..=3 => Some(code.into()),
        4..=30 => Some((4 + 2 * u32::from(code % 2)) << ((code - 4) / 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_grant_the_credits_of_the_table() {
        let table = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
        for (code, credits) in (0..).zip(table) {
            assert_eq!(granted(code), Some(credits), "code {code}");
        }
        assert_eq!([29, 30, 31].map(granted), [Some(24_576), Some(32_768), None]);
    }

    #[test]
    fn numbers_of_messages_wrap() {
        assert_eq!([exceeding(7, 5), exceeding(5, 7), exceeding(1, Psn::MASK)], [2, 0, 2]);
    }
}
