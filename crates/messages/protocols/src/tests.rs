use std::collections::BTreeSet;

use doorbell_wire::MessageKind;

use crate::*;

#[test]
fn names_are_unique_and_found_again() {
    for protocol in Protocol::ALL {
        assert_eq!(Protocol::by_name(protocol.name()), Some(protocol));
        assert_eq!(protocol.to_string(), protocol.name());
        assert!(protocol.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{protocol}");
    }
    assert_eq!(Protocol::by_name("telepathy"), None);
    for protocol in Protocol::ALL {
        assert!(protocol.name().starts_with(protocol.description().family), "{protocol}");
    }
    let titles: BTreeSet<_> = Protocol::ALL.map(|protocol| protocol.description().title).into();
    assert_eq!(titles.len(), Protocol::ALL.len());
}

/// Each page names all variants of its protocol, and the list of pages links to the page.
#[test]
fn every_protocol_has_a_page() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |page: &str| std::fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let list = read(Protocol::PAGES);
    for protocol in Protocol::ALL {
        let family = protocol.description().family;
        assert_eq!(protocol.page(), format!("docs/protocols/{family}.md"));
        assert!(list.contains(&format!("({family}.md)")), "{} has no link to {}", Protocol::PAGES, protocol.page());
        let option = format!("`--protocol {protocol}`");
        // The default protocol needs no option.
        let is_named = protocol == Protocol::default() || read(protocol.page()).contains(&option);
        assert!(is_named, "{} does not name {option}", protocol.page());
    }
}

/// The ids on the wire must never change, since peers of different releases connect to each other.
#[test]
fn wire_ids_stay_as_they_are() {
    for (name, id) in [
        ("send-receive", 1),
        ("direct-read", 3),
        ("direct-read-fenced", 3),
        ("direct-read-fenced-awaited", 3),
        ("direct-read-send", 4),
        ("direct-read-fenced-send", 4),
        ("direct-write", 5),
        ("buffered-write-immediate-send", 6),
        ("buffered-write-immediate-read", 7),
        ("buffered-write-tail-send", 8),
        ("buffered-write-tail-read", 9),
        ("buffered-write-reverse-send", 10),
        ("buffered-write-reverse-read", 11),
        ("shared-write", 12),
        ("buffered-read", 13),
        ("direct-write-each", 14),
        ("shared-write-each", 12),
    ] {
        assert_eq!(Protocol::by_name(name).map(|protocol| protocol.wire_id().get()), Some(id), "{name}");
    }
    assert!(Protocol::ALL.iter().all(|protocol| protocol.wire_id() != WireId::ONE_SIDED));
    assert_eq!(WireId::known(2), Some(WireId::ONE_SIDED));
    assert_eq!(WireId::ONE_SIDED.to_string(), "one-sided operations");
    assert_eq!(WireId::known(3).map(|id| id.to_string()).as_deref(), Some("Direct-Read with signal bytes"));
    for unknown in [0, 255] {
        assert_eq!(WireId::known(unknown), None);
    }
}

/// Protocols that share a wire id must post the same operations of the same size. Only their fences may differ.
#[test]
fn variants_of_one_wire_id_look_equal_to_the_peer() {
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().filter(|b| b.wire_id() == a.wire_id()) {
            let seen = |step: &Step| (step.by, step.operation, step.size, step.noticed);
            let steps = |protocol: Protocol| protocol.steps().iter().map(seen).collect::<Vec<_>>();
            assert_eq!(steps(a), steps(b), "{a} and {b}");
        }
    }
}

#[test]
fn every_step_is_consistent_with_its_operation() {
    for protocol in Protocol::ALL {
        for (index, step) in protocol.steps().iter().enumerate() {
            let takes_receive =
                matches!(step.operation, MessageKind::Send | MessageKind::SendImm | MessageKind::WriteImm);
            assert_eq!(step.noticed == Noticed::Completion, takes_receive, "{protocol}: {step:?}");
            if step.noticed == Noticed::Memory {
                assert_eq!(step.operation, MessageKind::Write, "{protocol}: only a WRITE can be noticed in memory");
            }
            let before = index.checked_sub(1).map(|before| &protocol.steps()[before]);
            if step.joined != Joined::Alone {
                assert!(
                    before.is_some_and(|before| before.by == step.by),
                    "{protocol}: the step before {step:?} must be by the same end"
                );
            }
            if matches!(step.joined, Joined::Fenced { .. }) {
                assert!(
                    before.is_some_and(Step::is_two_way),
                    "{protocol}: the step before a fence must be a READ or an atomic"
                );
            }
            if let When::Freed { parts, most } = step.when {
                assert!(parts > 0 && most > 0 && step.role == Role::Release, "{protocol}: {step:?}");
            }
            if let When::Short { parts } = step.when {
                assert!(parts > 0 && step.role == Role::Release && step.is_two_way(), "{protocol}: {step:?}");
            }
        }
    }
}

#[test]
fn every_protocol_delivers_each_message_once_and_reports_space() {
    for protocol in Protocol::ALL {
        for credits in [true, false] {
            let steps = || protocol.steps().iter().filter(|step| step.is_part(credits));
            assert_eq!(steps().filter(|step| step.size.carries_messages()).count(), 1, "{protocol}");
            assert!(steps().all(|step| !step.size.carries_messages() || step.role == Role::Delivery), "{protocol}");
            let reports = steps().filter(|step| step.role == Role::Release).count() > 0;
            assert!(reports || !credits, "{protocol}: with credits, a step must report space to the sender");
        }
        let description = protocol.description();
        let pulls = protocol.release() == Release::Receiver;
        assert!(
            description.zero_copy != ZeroCopy::Yes || pulls,
            "{protocol}: only a receiver that READs can choose the memory"
        );
        let all_new = description.steps.iter().any(|step| matches!(step.size, Size::AllNew { .. }));
        assert_eq!(
            description.sent_from == Store::Ring,
            all_new,
            "{protocol}: only a ring at the sender allows one READ of all new messages"
        );
    }
}

/// The steps must imply the properties on which programs rely.
#[test]
fn properties_follow_from_the_steps() {
    let of = |passive, receiver_sleeps, sender_sleeps, slow_message_blocks, variable_size| {
        (passive, receiver_sleeps, sender_sleeps, slow_message_blocks, variable_size)
    };
    let (receiver, sender) = (Some(End::Receiver), Some(End::Sender));
    for (name, expected) in [
        ("send-receive", of(None, true, true, false, false)),
        ("direct-read", of(None, true, false, false, true)),
        ("direct-read-fenced", of(None, true, false, false, true)),
        ("direct-read-fenced-awaited", of(None, true, false, false, true)),
        ("direct-read-send", of(None, true, true, false, true)),
        ("direct-read-fenced-send", of(None, true, true, false, true)),
        ("direct-write", of(None, false, true, false, false)),
        ("direct-write-each", of(None, false, true, false, false)),
        ("buffered-write-immediate-send", of(None, true, true, true, true)),
        // The receiver reposts receives, so the receiver is not passive.
        ("buffered-write-immediate-read", of(None, true, true, true, true)),
        // The receiver reports space by SEND, so the receiver is not passive.
        ("buffered-write-tail-send", of(None, false, true, true, true)),
        ("buffered-write-tail-read", of(receiver, false, true, true, true)),
        ("buffered-write-reverse-send", of(None, false, true, true, true)),
        ("buffered-write-reverse-read", of(receiver, false, true, true, true)),
        ("shared-write", of(None, true, true, true, true)),
        ("shared-write-each", of(None, true, true, true, true)),
        ("buffered-read", of(sender, false, false, true, true)),
    ] {
        let Some(protocol) = Protocol::by_name(name) else { panic!("no protocol has the name {name}") };
        let Properties { passive, receiver_sleeps, sender_sleeps, slow_message_blocks, variable_size, .. } =
            protocol.properties();
        let found = of(passive, receiver_sleeps, sender_sleeps, slow_message_blocks, variable_size);
        assert_eq!(found, expected, "{name}: passive, receiver sleeps, sender sleeps, blocks, variable size");
        assert_eq!(protocol.is_fenced(), name.contains("fenced"), "{name}");
    }
    assert_eq!(Protocol::DirectWrite.properties().zero_copy, ZeroCopy::Partly);
    assert_eq!(Protocol::DirectReadSend.properties().zero_copy, ZeroCopy::Yes);
}

#[test]
fn with_space_for_one_each_step_is_posted_once_per_message() {
    let run = Run { messages: 10, bytes: 100, space: Some(1), polls: Some(30), ..Run::default() };
    for protocol in Protocol::ALL {
        for step in protocol.steps().iter().filter(|step| step.is_part(true)) {
            let posts = step.posts(&run);
            let least = match step.when {
                When::Polled => 30,
                // No report is needed for the first message, since the receiver has space for one message.
                When::Freed { .. } | When::Short { .. } => 9,
                _ => 10,
            };
            assert_eq!(posts.least, least, "{protocol}: {step:?}");
            assert!(posts.most.is_some_and(|most| most >= least), "{protocol}: {step:?}");
            let per_message = step.when.per_message(1, 1);
            assert!((per_message - 1.0).abs() < 1e-9, "{protocol}: {step:?}");
        }
    }
}

#[test]
fn without_messages_only_polled_steps_are_posted() {
    for protocol in Protocol::ALL {
        for step in protocol.steps() {
            let posts = step.posts(&Run { depth: 64, window: 64, ..Run::default() });
            assert_eq!(posts.least, 0);
            assert_eq!(posts.most, if step.when == When::Polled { None } else { Some(0) }, "{protocol}: {step:?}");
        }
    }
}

#[test]
fn space_and_answers_make_reports_rarer() {
    let quarter = When::Freed { parts: 4, most: 16 };
    let at_once = [1, 8, 64, 1024].map(|depth| quarter.freed_at_once(depth));
    assert_eq!(at_once, [Some(1), Some(2), Some(16), Some(16)]);
    assert_eq!(When::Short { parts: 2 }.freed_at_once(64), None);
    assert!((When::Short { parts: 2 }.per_message(8, 64) - 2.0 / 64.0).abs() < 1e-9);
    assert!((When::Post.per_message(8, 64) - 0.125).abs() < 1e-9);
    // If the other direction has messages, they carry the credits, so no report is needed.
    let run = Run { messages: 100, space: Some(10), depth: 10, ..Run::default() };
    let report = &Protocol::SendReceive.steps()[2];
    assert_eq!(report.posts(&run).least, 9);
    assert_eq!(report.posts(&Run { is_answered: true, ..run }).least, 0);
}
