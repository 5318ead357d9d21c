//! Mutations of a written conversation.

use proptest::prelude::*;

use super::*;

type Mutation = (&'static str, fn(&mut Script));

/// Mutations of the clean conversation. `tests/mutations` has those of captures.
const MUTATIONS: &[Mutation] = &[
    ("icrc", |it| it.nth(Opcode::RC_SEND_ONLY, 1).is_damaged = true),
    ("icrc", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 2).is_damaged = true),
    ("padding", |it| it.nth(Opcode::RC_SEND_ONLY, 1).body.push(0)),
    ("padding", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 1).body.extend([0; 4])),
    ("padding", |it| it.nth(Opcode::RC_READ_REQUEST, 0).bth.pad_count = 2),
    ("mtu", |it| it.nth(Opcode::RC_WRITE_FIRST, 1).body.truncate(MTU - 4)),
    ("mtu", |it| it.nth(Opcode::RC_SEND_ONLY, 5).body.resize(2 * MTU, 0)),
    ("mtu", |it| it.nth(Opcode::RC_WRITE_FIRST, 1).body.truncate(MTU / 2)),
    ("opcode-order", |it| it.nth(Opcode::RC_WRITE_MIDDLE, 0).bth.opcode = Opcode::RC_WRITE_LAST),
    ("opcode-order", |it| it.nth(Opcode::RC_SEND_ONLY, 2).bth.opcode = Opcode::RC_SEND_LAST),
    ("opcode-order", |it| it.nth(Opcode::RC_WRITE_LAST, 1).bth.opcode = Opcode::RC_SEND_LAST),
    ("dma-length", |it| it.nth(Opcode::RC_WRITE_FIRST, 0).extension[15] ^= 1),
    ("dma-length", |it| it.nth(Opcode::RC_WRITE_LAST, 1).body.truncate(496)),
    ("psn-order", |it| move_psn(it.nth(Opcode::RC_SEND_ONLY, 2), 1 << 22)),
    ("psn-order", |it| move_psn(it.nth(Opcode::RC_WRITE_MIDDLE, 1), 3 << 20)),
    ("retransmission", |it| it.nth(Opcode::RC_SEND_ONLY, SENDS_BEFORE_LOSS + 5).body.truncate(40)),
    ("retransmission", |it| it.nth(Opcode::RC_FETCH_ADD, 1).extension[19] ^= 4),
    ("retransmission", |it| it.nth(Opcode::RC_SEND_ONLY, SENDS_BEFORE_LOSS + 5).bth.solicited = true),
    ("retransmission", |it| move_psn(it.nth(Opcode::RC_WRITE_MIDDLE, 1), Psn::MASK)),
    ("go-back-n", |it| it.remove(Opcode::RC_SEND_ONLY, SENDS_BEFORE_LOSS + 4)),
    ("go-back-n", |it| move_psn(it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS), Psn::MASK)),
    ("rnr-timer", |it| (0..9).for_each(|_| it.remove(Opcode::CNP, 0))),
    ("rnr-timer", |it| it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS + 2).extension[0] = Syndrome::rnr_nak(31).0),
    ("unsent-psn", |it| move_psn(it.nth(Opcode::RC_ACKNOWLEDGE, 5), 1000)),
    ("unsent-psn", |it| move_psn(it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS + 3), 200)),
    ("unsent-psn", early_ack),
    ("nak-sequence", |it| it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS).bth.psn = Psn::new(FIRST)),
    ("nak-sequence", |it| {
        let ack = it.nth(Opcode::RC_ACKNOWLEDGE, 3);
        ack.extension[0] = 0x60;
        move_psn(ack, Psn::MASK);
    }),
    ("syndrome", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 1).extension[0] = 0x40),
    ("syndrome", |it| it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS).extension[0] = 0x69),
    ("syndrome", |it| it.nth(Opcode::RC_READ_RESPONSE_LAST, 0).extension[0] = 0x61),
    ("msn", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 3).extension[3] += 1),
    ("msn", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 5).extension[3] -= 1),
    ("msn", |it| it.nth(Opcode::RC_ACKNOWLEDGE, ACKS_BEFORE_LOSS).extension[3] += 1),
    ("credits", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 3).extension[0] = Syndrome::ack(5).0),
    ("credits", |it| it.nth(Opcode::RC_READ_RESPONSE_FIRST, 1).extension[0] = Syndrome::ack(0).0),
    ("read-response", |it| it.nth(Opcode::RC_READ_RESPONSE_LAST, 1).body.truncate(448)),
    ("read-response", |it| it.nth(Opcode::RC_READ_RESPONSE_MIDDLE, 1).bth.opcode = Opcode::RC_READ_RESPONSE_LAST),
    ("read-response", |it| move_psn(it.nth(Opcode::RC_READ_RESPONSE_LAST, 0), Psn::MASK)),
    ("atomic-replay", |it| it.nth(Opcode::RC_ATOMIC_ACKNOWLEDGE, 1).extension[11] ^= 1),
    ("atomic-replay", |it| move_psn(it.nth(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0), Psn::MASK)),
    ("atomic-address", |it| (0..2).for_each(|nth| it.nth(Opcode::RC_FETCH_ADD, nth).extension[7] = 1)),
    ("solicited", |it| it.nth(Opcode::RC_READ_REQUEST, 1).bth.solicited = true),
    ("solicited", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 1).bth.solicited = true),
    ("solicited", |it| it.nth(Opcode::RC_WRITE_LAST, 1).bth.solicited = true),
    ("ack-request", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 1).bth.ack_request = true),
    ("ack-request", |it| it.nth(Opcode::RC_READ_RESPONSE_MIDDLE, 1).bth.ack_request = true),
    ("migration", |it| it.nth(Opcode::RC_SEND_ONLY, 3).bth.migrated = true),
    ("migration", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 4).bth.migrated = true),
    ("partition-key", |it| it.nth(Opcode::RC_SEND_ONLY, 3).bth.partition_key = PartitionKey::new(0x7fff)),
    ("partition-key", |it| it.nth(Opcode::RC_ACKNOWLEDGE, 4).bth.partition_key = PartitionKey::new(0x8001)),
    ("cnp-format", |it| it.nth(Opcode::CNP, 0).bth.becn = false),
    ("cnp-format", |it| it.nth(Opcode::CNP, 3).extension[7] = 1),
];

/// Moves an ACK a little beyond the newest request, and lets the responder acknowledge that request afterwards.
fn early_ack(script: &mut Script) {
    let mut acks = script.packets.iter().enumerate().filter(|(_, it)| it.bth.opcode == Opcode::RC_ACKNOWLEDGE);
    let at = acks.nth(2).unwrap().0;
    let copy = script.packets[at].clone();
    move_psn(&mut script.packets[at], 3);
    script.packets.insert(at + 1, copy);
}

#[test]
fn every_mutation_is_found() {
    for (number, (rule, mutate)) in MUTATIONS.iter().enumerate() {
        let mut script = clean();
        mutate(&mut script);
        let report = script.check(&Limits::default());
        let found = report.findings.iter().any(|finding| finding.rule == *rule);
        assert!(found, "mutation {number} of {rule}: {:#?}", report.findings);
        let count = report.rules.iter().find(|count| count.rule.name == *rule).unwrap();
        assert!(count.findings > 0, "{count:?}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_judged_without_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        only in any::<prop::sample::Index>(),
        drop_bad_icrc in any::<bool>(),
    ) {
        let frames: Vec<_> = clean().packets.iter().map(Sent::frame).collect();
        let mut file = pcap(&frames);
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        let options = Options { drop_bad_icrc, ..Options::default() };
        let limits = Limits { timeout_ns: Some(1), retry_count: Some(1), cnp_interval_ns: Some(1), complete: true };
        for bytes in [&file[..], &file[..only.index(file.len())]] {
            if let Ok(report) = check(bytes, &options, &limits) {
                prop_assert!(serde_json::to_string(&report).is_ok());
            }
        }
    }
}
