//! Tests of requests that are never acknowledged.

use super::*;

/// Returns the repeated request of A after these frames. Frames have a distance of 1 us.
fn unanswered(frames: &[Vec<u8>]) -> Option<(u32, u64, u64, Option<u64>)> {
    let direction = only(&read(&pcap(frames))).from_a.clone();
    direction.unanswered.map(|it| (it.psn, it.transmissions, it.rnr_naks, it.duration_ns))
}

fn only_send(psn: u32) -> Vec<u8> {
    send(Opcode::RC_SEND_ONLY, psn, 64)
}

#[test]
fn a_request_without_an_acknowledgement_is_named() {
    let start = [only_send(7), ack(7), only_send(8), only_send(9), only_send(8), only_send(9), only_send(8)];
    assert_eq!(unanswered(&start), Some((8, 3, 0, Some(5000))));
    let with = |answer: Vec<u8>| [&start[..], &[answer]].concat();
    for (answer, expected) in [
        (ack(8), None),
        (ack(9), None),
        (ack(7), Some((8, 3, 0, Some(5000)))),
        (answer(8, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR)), Some((8, 3, 0, Some(5000)))),
        (answer(9, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR)), None),
    ] {
        assert_eq!(unanswered(&with(answer)), expected);
    }
}

#[test]
fn rnr_naks_are_counted_until_an_acknowledgement() {
    let rnr = || answer(8, Syndrome::rnr_nak(1));
    let mut frames = vec![only_send(7), ack(7), only_send(8), rnr(), only_send(8), rnr(), only_send(8), rnr()];
    // The first RNR NAK comes before the first repetition.
    assert_eq!(unanswered(&frames).map(|it| (it.0, it.1, it.2)), Some((8, 3, 2)));
    frames.extend([only_send(8), ack(8)]);
    assert_eq!(unanswered(&frames), None);
}

#[test]
fn answers_to_reads_acknowledge_them() {
    let request = || frame(A, B, Opcode::RC_READ_REQUEST, 0xb, 5, &reth(64), &[]);
    let response = frame(B, A, Opcode::RC_READ_RESPONSE_ONLY, 0xa, 5, &aeth(Syndrome::ACK_UNLIMITED), &[1; 64]);
    let frames = [only_send(4), ack(4), request(), request(), request()];
    assert_eq!(unanswered(&frames).map(|it| (it.0, it.1)), Some((5, 3)));
    assert_eq!(unanswered(&[&frames[..], &[response]].concat()), None);
}
