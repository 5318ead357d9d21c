//! Peers that speak verbs, but not the protocol: what each connection makes of them.

mod common;

use std::sync::mpsc;

use common::bare::config;
use common::{Bare, Stage};
use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{Acknowledge, DirectRead};
use doorbell_exchange::send_receive::{Endpoint, Hub, Reposting, SharedOptions, SharedReceives};
use doorbell_exchange::{
    BufferedRead, Config, ConnectionError, DirectWrite, MessageConnection, Protocol, Received, SendReceive,
};
use doorbell_verbs::{Access, MemoryKind, SendOperation};

/// Polls until the connection ends, and tells why; what it hands out before that is no message of this peer.
#[track_caller]
fn ending<C: MessageConnection>(bare: &mut Bare, connection: &mut C) -> ConnectionError {
    let mut taken = Vec::new();
    bare.settle(|| {
        let _ = connection.poll();
        taken.extend(connection.take().map(|message| message.to_vec()));
    });
    assert_eq!(taken, Vec::<Vec<u8>>::new(), "nothing was sent that is a message");
    connection.over().expect("the connection is over")
}

/// The peer writes into memory of this side that another connection opened to it, and announces that here. The bytes
/// lie there, not in the receive that the announcement takes.
#[test]
fn a_write_with_immediate_is_no_message_where_messages_are_sends() {
    let mut stage = Stage::new();
    let writable =
        stage.pd.allocate(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE, MemoryKind::Plain).expect("memory");
    for credits in [true, false] {
        for length in [0, 10, 400, 60_000] {
            let config = Config { credits, ..config() };
            let (mut bare, connection) = Bare::meet(&SendReceive, &stage.pd, &stage.other, &config, |_| {});
            let mut connection = connection.unwrap();
            let (remote_address, rkey) = (writable.address(), writable.rkey());
            bare.post(SendOperation::WriteImmediate { remote_address, rkey, immediate: 4 }, &vec![7; length]);
            let error = ending(&mut bare, &mut connection);
            let expected =
                "the peer broke the protocol: it sent a WRITE with immediate data where only SENDs are expected";
            assert_eq!(error.to_string(), expected, "{length} B");
            stage.check_health();
        }
    }
}

/// Where words are SENDs without bytes, too.
#[test]
fn a_write_with_immediate_is_no_word() {
    fn check<P: Protocol>(stage: &mut Stage, protocol: P, goodbye: u32) {
        for word in [0, 1, goodbye] {
            let (mut bare, connection) = Bare::meet(&protocol, &stage.pd, &stage.other, &config(), |_| {});
            let mut connection = connection.unwrap();
            let nowhere = doorbell_verbs::RKey::new(0);
            bare.post(SendOperation::WriteImmediate { remote_address: 0, rkey: nowhere, immediate: word }, &[]);
            let error = ending(&mut bare, &mut connection);
            assert!(matches!(error, ConnectionError::Protocol(what) if what.contains("immediate data")), "{error}");
            assert!(!connection.is_peer_closed());
            stage.check_health();
        }
    }
    let mut stage = Stage::new();
    const GOODBYE: u32 = 1 << 31;
    check(&mut stage, SendReceive, 3 << 30);
    check(&mut stage, DirectRead::default(), GOODBYE);
    check(&mut stage, DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() }, GOODBYE);
    check(&mut stage, DirectWrite, GOODBYE);
    check(&mut stage, BufferedRead, GOODBYE);
    for notification in [Notification::TailOffset, Notification::Reverse] {
        check(&mut stage, BufferedWrite { notification, acknowledge: buffered_write::Acknowledge::Send }, GOODBYE);
    }
}

/// A connection that shares receives takes no more than it announced, though the shared buffers are longer.
#[test]
fn a_message_longer_than_announced_is_refused_where_shared_buffers_would_take_it() {
    let mut stage = Stage::new();
    let options = SharedOptions { depth: 8, connections: 2, max_message: 4096, reposting: Reposting::Locked };
    let shared = SharedReceives::new(&stage.pd, options).unwrap();
    for length in [401, 4096, 5000] {
        let endpoint = Endpoint::sharing(&shared, config(), None).unwrap();
        let peer = endpoint.description();
        let (mut bare, connection) = Bare::join(&stage.other, peer, |_| {}, |own| endpoint.connect(own));
        let mut connection = connection.unwrap();
        bare.post(SendOperation::SendImmediate(4), &vec![7; length]);
        let error = ending(&mut bare, &mut connection);
        let expected = if length <= 4096 {
            format!("it sent a message of {length} B, this side takes 400 B at most")
        } else {
            "it sent a message that is longer than the receive posted for it".to_owned()
        };
        assert_eq!(error.to_string(), format!("the peer broke the protocol: {expected}"));
        drop(connection);
        assert_eq!(shared.srq().posted(), Some(8 + 2 * 3), "no receive is lost");
        stage.check_health();
    }
}

/// Peers that send credits without end, with no message of this side to answer the last.
#[test]
fn credits_without_end_are_refused_and_hold_up_no_removal() {
    const ALONE: u32 = 1 << 31;
    let stage = Stage::new();
    let mut hub = Hub::for_connections(&stage.pd, &config(), 4, None).unwrap();
    let mut join = |bares: &mut Vec<Bare>| {
        let endpoint = hub.endpoint(config(), None).unwrap();
        let peer = endpoint.description();
        let (bare, connection) = Bare::join(&stage.other, peer, |_| {}, |own| endpoint.connect(own).unwrap());
        bares.push(bare);
        hub.add(connection).unwrap()
    };
    let (mut bares, mut quiet) = (Vec::new(), Vec::new());
    let removed = join(&mut quiet);
    let flooded: Vec<_> = (0..3).map(|_| join(&mut bares)).collect();
    let (done, is_done) = mpsc::channel();
    let remover = std::thread::spawn(move || {
        // There is something to take out.
        for _ in 0..100 {
            hub.poll().unwrap();
        }
        assert!(hub.remove(removed));
        for _ in 0..1_000_000 {
            hub.poll().unwrap();
            if flooded.iter().all(|&key| hub.get(key).is_some_and(|connection| connection.over().is_some())) {
                break;
            }
        }
        let ended: Vec<_> = std::iter::from_fn(|| hub.next_ended()).map(|(_, error)| error.to_string()).collect();
        let _ = done.send(ended);
    });
    let mut ended = None;
    let until_ns = stage.other.now_ns() + 60_000_000_000;
    while ended.is_none() && stage.other.now_ns() < until_ns {
        for bare in &mut bares {
            bare.post(SendOperation::SendImmediate(ALONE | 4), &[]);
        }
        ended = is_done.try_recv().ok();
    }
    let ended = ended.expect("the removal came to an end");
    remover.join().unwrap();
    let expected = "the peer broke the protocol: it sent credits again and again, without an answer to the last";
    assert_eq!(ended, [expected; 3]);
}
