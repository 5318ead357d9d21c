//! Tests of invalid calls of programs and invalid descriptions of peers. Each invalid value must cause an error that
//! contains the given and the allowed value. After an invalid call, the connection must stay usable.

use crate::common::bare::{Bare, config, pair};
use crate::common::wire;
use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{Acknowledge, DirectRead, Fence, Placement};
use doorbell_exchange::direct_write::Grants;
use doorbell_exchange::send_receive::{Endpoint, Hub};
use doorbell_exchange::shared_write::Reserves;
use doorbell_exchange::{
    BufferedRead, ConnectError, ConnectionError, Connector, DirectWrite, MessageConnection, Misuse, Received,
    Replication, SendReceive, SharedWrite, Submit,
};
use doorbell_verbs::{Access, Device, MemoryKind, Pd};

/// Runs the check `$check` with every protocol and variant.
macro_rules! each_protocol {
    ($check:expr) => {{
        let check = $check;
        check.of(SendReceive);
        for acknowledge in [Acknowledge::SignalByte, Acknowledge::Send] {
            for fence in [Fence::Nothing, Fence::ReadCompletion, Fence::AcknowledgementCompletion] {
                check.of(DirectRead { fence, acknowledge, ..DirectRead::default() });
            }
        }
        for grants in [Grants::Groups, Grants::Each] {
            check.of(DirectWrite { grants });
        }
        for notification in [Notification::Immediate, Notification::TailOffset, Notification::Reverse] {
            for acknowledge in [buffered_write::Acknowledge::Send, buffered_write::Acknowledge::Read] {
                check.of(BufferedWrite { notification, acknowledge });
            }
        }
        for reserves in [Reserves::Waiting, Reserves::Each] {
            check.of(SharedWrite { reserves });
        }
        check.of(BufferedRead);
    }};
}

fn pds() -> ([Device; 2], [Pd; 2]) {
    let devices = wire::devices();
    let pds = [0, 1].map(|index: usize| devices[index].create_pd().unwrap());
    (devices, pds)
}

#[track_caller]
fn refused(result: Result<Submit, ConnectionError>, expected: &str) {
    match result {
        Err(ConnectionError::Misuse(misuse)) => assert_eq!(misuse.to_string(), expected),
        other => panic!("{other:?} instead of: {expected}"),
    }
}

/// Sends a message from `a` to `b`, and checks that the message arrives and is done.
fn deliver<C: MessageConnection>(a: &mut C, b: &mut C, message: &[u8]) {
    let Submit::Accepted(id) = a.send(message).unwrap() else { panic!("the message was not accepted") };
    let mut received = None;
    while received.is_none() || !a.is_done(id) {
        a.poll().unwrap();
        b.poll().unwrap();
        received = received.or_else(|| b.take());
    }
    assert_eq!(received.unwrap().to_vec(), message);
}

struct TooLong;

impl TooLong {
    fn of<P: Connector>(&self, protocol: P) {
        let (_devices, pds) = pds();
        let (mut a, mut b) = pair(&protocol, [&pds[0], &pds[1]], &config());
        refused(a.send(&[1; 401]), "a message of 401 B is too long: at most 400 B are allowed");
        let region = pds[0].allocate(1000, protocol.source_access(), MemoryKind::Plain).unwrap();
        refused(a.send_from(&region, 0, 401), "a message of 401 B is too long: at most 400 B are allowed");
        let behind = protocol.bytes_behind();
        for (offset, length) in [(1000, 1), (601, 400), (usize::MAX, 400)] {
            let length_behind = length + behind;
            let expected = format!("{length_behind} B at offset {offset} are not inside a region of 1000 B");
            refused(a.send_from(&region, offset, length), &expected);
        }
        assert_eq!(a.over(), None);
        deliver(&mut a, &mut b, &[2; 400]);
    }
}

#[test]
fn an_oversized_message_does_not_end_the_connection() {
    each_protocol!(TooLong);
}

struct NothingTaken;

impl NothingTaken {
    fn of<P: Connector>(&self, protocol: P) {
        let (_devices, pds) = pds();
        let deaf = config().max_message(0);
        let a = protocol.endpoint(&pds[0], &config(), None).unwrap();
        let b = protocol.endpoint(&pds[1], &deaf, None).unwrap();
        let (of_a, of_b) = (protocol.describe(&a), protocol.describe(&b));
        let (mut a, mut b) = (protocol.connect(a, &of_b).unwrap(), protocol.connect(b, &of_a).unwrap());
        refused(a.send(&[1]), "a message of 1 B is too long: at most 0 B are allowed");
        assert_eq!(a.over(), None);
        deliver(&mut a, &mut b, &[]);
    }
}

#[test]
fn a_peer_with_max_message_zero_gets_only_empty_messages() {
    each_protocol!(NothingTaken);
}

#[test]
fn direct_read_without_send_buffers_copies_only_empty_messages() {
    for acknowledge in [Acknowledge::SignalByte, Acknowledge::Send] {
        let (_devices, pds) = pds();
        let config = config().send_buffers(0);
        let (mut a, mut b) = pair(&DirectRead { acknowledge, ..DirectRead::default() }, [&pds[0], &pds[1]], &config);
        assert_eq!(a.max_send(), 0);
        refused(a.send(&[1]), "a message of 1 B is too long: at most 0 B are allowed");
        for _ in 0..10 {
            deliver(&mut a, &mut b, &[]);
        }
    }
}

#[test]
fn direct_read_rejects_unsuitable_memory_and_data() {
    let (_devices, pds) = pds();
    let protocol = DirectRead { placement: Placement::ByHand, ..DirectRead::default() };
    let (mut a, mut b) = pair(&protocol, [&pds[0], &pds[1]], &config());
    let local = pds[0].allocate(64, Access::LOCAL_WRITE, MemoryKind::Plain).unwrap();
    let needed = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let error = a.send_from(&local, 0, 10).unwrap_err();
    assert_eq!(error, ConnectionError::Misuse(Misuse::Access { given: Access::LOCAL_WRITE, needed }));
    refused(a.send_with(&[1; 10], &[0; 65]), "a message has 65 application bytes, but at most 64 are allowed");

    // The peer uses placement by hand, so a message may be longer than the peer's buffers.
    let region = pds[0].allocate(5001, protocol.source_access(), MemoryKind::Plain).unwrap();
    assert!(matches!(a.send_from(&region, 0, 5000).unwrap(), Submit::Accepted(1)));
    while b.request().is_none() {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    let place = |length, access| pds[1].allocate(length, access, MemoryKind::Plain).unwrap();
    let (short, read_only, fit) =
        (place(4999, Access::LOCAL_WRITE), place(5000, Access::empty()), place(5000, Access::LOCAL_WRITE));
    let error = b.read_into(&short, 0).unwrap_err();
    assert_eq!(error.to_string(), "5000 B at offset 0 are not inside a region of 4999 B");
    let error = b.read_into(&read_only, 0).unwrap_err();
    assert!(matches!(error, ConnectionError::Misuse(Misuse::Access { needed: Access::LOCAL_WRITE, .. })), "{error}");
    let id = b.read_into(&fit, 0).unwrap().unwrap();
    while !b.is_read(id) || !a.is_done(1) {
        a.poll().unwrap();
        b.poll().unwrap();
    }
}

#[test]
fn foreign_connections_are_not_added() {
    let (_devices, pds) = pds();
    let (a, b) = pair(&SendReceive, [&pds[0], &pds[1]], &config());
    let mut hub = Hub::for_connections(&pds[0], &config(), 2, None).unwrap();
    let mut other = Hub::for_connections(&pds[0], &config(), 2, None).unwrap();
    let endpoint = other.endpoint(config(), None).unwrap();
    let peer = Endpoint::new(&pds[1], config(), None).unwrap().description();
    for foreign in [a, b, endpoint.connect(&peer).unwrap()] {
        let error = hub.add(foreign).unwrap_err().to_string();
        assert_eq!(error, "the connection cannot be added: its end must be made by Hub::endpoint of this hub");
    }
    assert!(hub.is_empty());

    let mut replication = Replication::new();
    let (a, _b) = pair(&DirectRead::default(), [&pds[0], &pds[1]], &config());
    assert!(matches!(replication.add(a), Err(ConnectError::Unfit(_))));
    let by_send = DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() };
    let (mut a, _b) = pair(&by_send, [&pds[0], &pds[1]], &config());
    a.send(b"early").unwrap();
    assert!(matches!(replication.add(a), Err(ConnectError::Unfit(_))));
    let (a, _b) = pair(&by_send, [&pds[0], &pds[1]], &config());
    assert_eq!(replication.add(a).unwrap(), 0);
    let short = pds[0].allocate(10, Access::REMOTE_READ, MemoryKind::Plain).unwrap();
    let error = replication.publish(&short, 0, 11).unwrap_err().to_string();
    assert_eq!(error, "11 B at offset 0 are not inside a region of 10 B");
    let hidden = pds[0].allocate(10, Access::empty(), MemoryKind::Plain).unwrap();
    assert!(matches!(replication.publish(&hidden, 0, 10), Err(Misuse::Access { .. })));
    assert!(matches!(replication.publish(&short, 0, 10), Ok(Submit::Accepted(1))));
}

#[test]
fn copy_to_copies_as_much_as_fits() {
    struct Copies;
    impl Copies {
        fn of<P: Connector>(&self, protocol: P) {
            let (_devices, pds) = pds();
            let (mut a, mut b) = pair(&protocol, [&pds[0], &pds[1]], &config());
            a.send(b"0123456789").unwrap();
            let message = loop {
                a.poll().unwrap();
                if let Some(message) = b.receive().unwrap() {
                    break message;
                }
            };
            for (room, copied) in [(0, 0), (4, 4), (10, 10), (12, 10)] {
                let mut out = vec![b'-'; room];
                assert_eq!(message.copy_to(&mut out), copied);
                assert_eq!(out, b"0123456789--"[..room]);
            }
        }
    }
    each_protocol!(Copies);
}

/// Check with extreme configurations. Either the end works, or the error contains the allowed values.
struct Extremes;

impl Extremes {
    fn of<P: Connector>(&self, protocol: P) {
        let (_devices, pds) = pds();
        let base = config();
        for (change, words) in [
            (base.clone().window(0), "the window is 0, allowed is 1 to 16384"),
            (base.clone().window(usize::MAX), "the window is 18446744073709551615"),
            (base.clone().batch(0), "the batch is 0"),
            (base.clone().batch(5), "the batch is 5"),
            (base.clone().depth(0), "the receive depth is 0"),
            (base.clone().depth(usize::MAX), "the receive depth is 18446744073709551615"),
            (base.clone().discard_into(0), "the number of buffers for discarded messages is 0, allowed is 1 to 16384"),
            (base.clone().poll_list(0), "the completions of one poll is 0"),
            (base.clone().repost_list(65), "the receives of one post is 65"),
            (base.clone().max_message(usize::MAX), "the longest message is 18446744073709551615"),
            (base.clone().send_buffers(3), "the number of send buffers is 3"),
            (base.clone().send_buffers(usize::MAX), "the number of send buffers is 18446744073709551615"),
        ] {
            let error = protocol.endpoint(&pds[0], &change, None).map(drop).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
            assert!(change.memory_bytes() > 0);
        }
        // An inline size above the limit of the device is valid and is reduced to the limit.
        let inline = base.clone().inline(usize::MAX);
        let (mut a, mut b) = pair(&protocol, [&pds[0], &pds[1]], &inline);
        deliver(&mut a, &mut b, &[3; 400]);
        if protocol.protocol().properties().slow_message_blocks {
            let long = base.depth(16384).max_message(1 << 20);
            let error = protocol.endpoint(&pds[0], &long, None).map(drop).unwrap_err().to_string();
            let expected = "the length of the ring that the depth and the longest message need is 19634438144, \
                            allowed is up to 2147483648 B";
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn invalid_configurations_are_rejected_with_the_allowed_range() {
    each_protocol!(Extremes);
}

/// A ring of more than 2 GiB is invalid: the words cannot express all its positions, and one READ cannot read all its
/// messages.
#[test]
fn a_peer_with_a_ring_that_is_too_long_is_refused() {
    struct TooLongRing;
    impl TooLongRing {
        fn of<P: Connector>(&self, protocol: P) {
            if !protocol.protocol().properties().slow_message_blocks {
                return;
            }
            let ([device, other], [pd, _]) = pds();
            for length in [0, 4096, 2 * 4097, (4 << 30) + 8192, u64::MAX] {
                let (_bare, connected) =
                    Bare::meet(&protocol, &pd, &other, &config(), |own| own.regions[0].length = length);
                let error = connected.map(drop).unwrap_err().to_string();
                let expected = format!(
                    "the length of the peer's ring is {}, allowed is a multiple of 4096 B up to 2147483648 B",
                    length / 2
                );
                assert_eq!(error, expected);
            }
            drop(device);
        }
    }
    each_protocol!(TooLongRing);
}
