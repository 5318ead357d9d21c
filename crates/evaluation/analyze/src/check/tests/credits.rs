//! Tests of the credits that messages need.

use super::*;

#[test]
fn sends_need_credits() {
    let found = |credits: u8, sends: u32| {
        let mut script = Script::new();
        let psn = script.send();
        script.msn = 1;
        script.answer(psn, Syndrome::ack(credits));
        let sent: Vec<_> = (0..sends).map(|_| script.send()).collect();
        script.msn += sends;
        script.answer(*sent.last().unwrap(), Syndrome::ack(credits));
        found_if_complete(&script)
    };
    assert_eq!([found(0, 1), found(4, 5), found(31, 40)], [vec![], vec![], vec![]]);
    assert_eq!(found(0, 2), [("credit-limit", 4)]);
    assert_eq!(found(4, 6), [("credit-limit", 8)]);
}

#[test]
fn only_messages_that_consume_a_receive_need_credits() {
    const SEND: (Opcode, u32) = (Opcode::RC_SEND_ONLY, 0);
    const WRITE: (Opcode, u32) = (Opcode::RC_WRITE_ONLY, 62);
    let found = |before: u32, requests: &[(Opcode, u32)]| {
        let mut script = Script::new();
        let psn = script.send();
        let push = |script: &mut Script, &(opcode, length): &(Opcode, u32)| {
            let mut extension = vec![0; opcode.extension_len()];
            if opcode.has_reth() {
                let reth = reth(length);
                extension[..reth.len()].copy_from_slice(&reth);
            }
            let bytes = if opcode.has_payload() { 62 } else { 0 };
            script.request(opcode, &extension, bytes, 1);
        };
        // The requester sends these before the responder grants credits.
        (0..before).for_each(|_| push(&mut script, &WRITE));
        script.msn = 1;
        script.answer(psn, Syndrome::ack(0));
        for request in requests {
            push(&mut script, request);
        }
        found_if_complete(&script).into_iter().filter(|(rule, _)| *rule == "credit-limit").collect::<Vec<_>>()
    };
    let with_immediate = (Opcode::RC_WRITE_ONLY_IMM, 62);
    for free in [WRITE, (Opcode::RC_READ_REQUEST, 62), (Opcode::RC_COMPARE_SWAP, 0), (Opcode::RC_FETCH_ADD, 0)] {
        assert_eq!(found(0, &[free, free, SEND]), [], "{}", free.0);
        assert_eq!(found(0, &[free, free, SEND, SEND]), [("credit-limit", 6)], "{}", free.0);
    }
    assert_eq!(found(2, &[SEND]), []);
    assert_eq!(found(2, &[SEND, SEND]), [("credit-limit", 6)]);
    assert_eq!(found(0, &[WRITE, with_immediate]), []);
    assert_eq!(found(0, &[SEND, with_immediate]), [("credit-limit", 4)]);
    assert_eq!(found(0, &[with_immediate, SEND]), [("credit-limit", 4)]);
}

#[test]
fn an_answer_that_the_capturer_held_back_grants_credits() {
    let mut script = Script::new();
    let psn = script.send();
    script.msn = 1;
    script.answer(psn, Syndrome::ack(0));
    script.send();
    script.send();
    script.answer(psn, Syndrome::ack(2));
    let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    let mut file = pcap(&frames);
    let limits = Limits { complete: true, ..Limits::default() };
    let findings = |file: &[u8]| check(file, &Options::default(), &limits).unwrap().findings.len();
    assert_eq!(findings(&file), 1);
    // The second answer has the time of the first one.
    let at = 24 + frames[..4].iter().map(|frame| 16 + frame.len()).sum::<usize>();
    file[at + 4..at + 8].copy_from_slice(&1000_u32.to_le_bytes());
    assert_eq!(findings(&file), 0);
}
