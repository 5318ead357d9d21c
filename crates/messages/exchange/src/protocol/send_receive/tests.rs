use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Attachment, Completion, CompletionOpcode, RKey, Status};

use super::*;
use crate::connection::MessageConnection;
use crate::connection::carrier::{Closing, GOODBYE_TAG, KEEPALIVE_TAG, RECEIVE_TAG};
use crate::connection::error::ConnectionError;
use crate::connection::receives::pool::CREDIT_TAG;

fn pair() -> (Connection, Connection) {
    let endpoint = || {
        let device = soft::open(&SoftOptions::default()).unwrap();
        Endpoint::new(&device.create_pd().unwrap(), Config::default(), None).unwrap()
    };
    let (a, b) = (endpoint(), endpoint());
    let (of_a, of_b) = (a.description(), b.description());
    (a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap())
}

/// Returns a connection whose goodbye was sent and not acknowledged, and the connection of its peer.
fn said_goodbye() -> (Connection, Connection) {
    let (mut a, b) = pair();
    a.close();
    a.poll().unwrap();
    assert_eq!(a.carrier.closing, Closing::Said);
    (a, b)
}

fn completion(wr_id: u64, status: Status) -> Completion {
    Completion { wr_id, status, opcode: CompletionOpcode::Send, ..Completion::default() }
}

/// The test makes the completion itself. No RNIC would accept a SEND that invalidates a key, since the memory of these
/// connections does not allow remote invalidation.
#[test]
fn a_send_with_invalidate_is_a_protocol_error() {
    let (mut a, _b) = pair();
    let invalidating = Completion {
        opcode: CompletionOpcode::Receive,
        attachment: Attachment::Invalidated(RKey::new(7)),
        ..completion(RECEIVE_TAG, Status::Success)
    };
    let error = a.take_completion(&invalidating).unwrap_err();
    assert_eq!(error, ConnectionError::Protocol("a SEND that invalidates a key"));
}

#[test]
fn only_completion_of_the_goodbye_finishes_a_close() {
    let (mut a, _b) = said_goodbye();
    a.take_completion(&completion(CREDIT_TAG, Status::Success)).unwrap();
    a.take_completion(&completion(KEEPALIVE_TAG, Status::Success)).unwrap();
    assert_eq!(a.carrier.closing, Closing::Said);
    while !a.is_closed() {
        a.poll().unwrap();
    }
    assert_eq!((a.carrier.closing, a.carrier.over), (Closing::Done, None));
}

/// The RNIC flushes the requests that were outstanding when the queue pair failed. These flushed requests are no
/// errors.
#[test]
fn a_failed_credit_before_the_goodbye_still_closes_cleanly() {
    let (mut a, _b) = said_goodbye();
    a.take_completion(&completion(CREDIT_TAG, Status::RetryExceeded)).unwrap();
    a.take_completion(&completion(GOODBYE_TAG, Status::WorkRequestFlushed)).unwrap();
    assert_eq!(a.carrier.closing, Closing::Done);
}

#[test]
fn dropped_connections_and_messages_return_shared_receives() {
    let device = soft::open(&SoftOptions::default()).unwrap();
    let pd = device.create_pd().unwrap();
    let options = SharedOptions { depth: 40, connections: 2, max_message: 64, reposting: Reposting::Locked };
    let shared = SharedReceives::new(&pd, options).unwrap();
    let config = Config { depth: 16, max_message: 64, ..Config::default() };
    let a = Endpoint::new(&soft::open(&SoftOptions::default()).unwrap().create_pd().unwrap(), config.clone(), None);
    let (a, b) = (a.unwrap(), Endpoint::sharing(&shared, config, None).unwrap());
    let (of_a, of_b) = (a.description(), b.description());
    let (mut a, mut b) = (a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap());
    assert_eq!(shared.unclaimed(), (24, 1));
    for _ in 0..10 {
        assert!(matches!(a.send(b"0123456789").unwrap(), Submit::Accepted(_)));
    }
    let mut held = Vec::new();
    while held.len() < 5 {
        held.extend(b.receive().unwrap());
    }
    while a.last_done() < 10 {
        a.poll().unwrap();
    }
    drop(b);
    assert_eq!(shared.unclaimed(), (35, 2), "expected all buffers except those that the program holds");
    drop(held);
    shared.repost().unwrap();
    assert_eq!(shared.unclaimed(), (40, 2));
    assert_eq!(shared.srq().posted().unwrap(), 40 + 2 * CREDIT_RECEIVES);
}

/// The goodbye also carries a grant, which must count as reported. Otherwise this side would report the grant again by
/// a credit message. The peer, which has used up the grant, would never answer that credit message.
#[test]
fn a_closing_side_keeps_granting_credits() {
    let endpoint = || {
        let device = soft::open(&SoftOptions::default()).unwrap();
        let config = Config { depth: 8, ..Config::default() };
        Endpoint::new(&device.create_pd().unwrap(), config, None).unwrap()
    };
    let (a, b) = (endpoint(), endpoint());
    let (of_a, of_b) = (a.description(), b.description());
    let (mut a, mut b) = (a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap());
    let fill = |a: &mut Connection| while let Submit::Accepted(_) = a.send(b"message").unwrap() {};
    let take = |b: &mut Connection, held: &mut Vec<Message>, count| {
        while held.len() < count {
            held.extend(b.receive().unwrap());
        }
    };
    let mut held = Vec::new();
    fill(&mut a);
    take(&mut b, &mut held, 8);
    drop(held.pop()); // the connection sends a grant of 9
    b.settle(0).unwrap();
    held.truncate(4);
    b.close(); // the goodbye grants 12 before the first grant is answered
    b.settle(0).unwrap();
    while !a.is_peer_closed() {
        a.poll().unwrap();
    }
    fill(&mut a);
    assert_eq!(a.unacknowledged() + a.last_done(), 12);
    take(&mut b, &mut held, 8);
    b.settle(0).unwrap(); // all grants are reported
    held.clear();
    for _ in 0..1_000_000 {
        b.poll().unwrap();
        a.poll().unwrap();
        if matches!(a.send(b"message").unwrap(), Submit::Accepted(_)) {
            return;
        }
    }
    panic!("all buffers are free, but the peer has no credit: {a:?}");
}
