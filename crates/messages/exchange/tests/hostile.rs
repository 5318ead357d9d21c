//! Tests of peers that use verbs correctly but break the message protocol. Connections must reject such peers.
//!
//! These tests have a process of their own, since they measure how much its memory grows.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use common::bare::{OPEN_BYTES, config};
use common::fuzz::messages::{STEPS, VARIANTS, converse};
use common::{Bare, Rng, Stage};
use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{Acknowledge, DirectRead};
use doorbell_exchange::send_receive::{Endpoint, Hub, Reposting, SharedOptions, SharedReceives};
use doorbell_exchange::setup::{self, SetupError, VERSION};
use doorbell_exchange::{
    BufferedRead, ConnectionError, Connector, DirectWrite, MessageConnection, Received, SendReceive, SharedWrite,
    Submit,
};
use doorbell_verbs::{Access, Device, MemoryKind, SendOperation};

/// Maximum time until a connection ends, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Polls until the connection ends, and returns the reason. Checks that the connection has received no message of the
/// bare peer.
#[track_caller]
fn ending<C: MessageConnection>(device: &Device, bare: &mut Bare, connection: &mut C) -> ConnectionError {
    let until_ns = device.now_ns() + PATIENCE_NS;
    loop {
        bare.settle(|| {
            let _ = connection.poll();
            assert_eq!(connection.take().map(|message| message.to_vec()), None, "the peer sent no message");
        });
        if let Some(error) = connection.over() {
            return error;
        }
        assert!(device.now_ns() < until_ns, "the connection is not over");
    }
}

/// The peer sends WRITEs with immediate data into memory of another region. Such a WRITE consumes a receive, but its
/// bytes are not in the receive's memory, so the connection must reject it.
#[test]
fn send_receive_rejects_data_with_a_write_immediate() {
    let mut stage = Stage::new();
    let writable =
        stage.pd.allocate(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE, MemoryKind::Plain).expect("memory");
    for credits in [true, false] {
        for length in [0, 10, 400, 60_000] {
            let config = config().credits(credits);
            let (mut bare, connection) = Bare::meet(&SendReceive, &stage.pd, &stage.other, &config, |_| {});
            let mut connection = connection.unwrap();
            let (remote_address, rkey) = (writable.address(), writable.rkey());
            bare.post(SendOperation::WriteImmediate { remote_address, rkey, immediate: 4 }, &vec![7; length]);
            let error = ending(&stage.other, &mut bare, &mut connection);
            let expected =
                "the peer broke the protocol: it sent a WRITE with immediate data where only SENDs are expected";
            assert_eq!(error.to_string(), expected, "{length} B");
            stage.check_health();
        }
    }
}

/// Protocols whose words are SENDs of 0 B must also reject words that arrive by WRITE with immediate data.
#[test]
fn control_words_are_not_accepted_as_write_immediate() {
    fn check<P: Connector>(stage: &mut Stage, protocol: P, goodbye: u32) {
        for word in [0, 1, goodbye] {
            let (mut bare, connection) = Bare::meet(&protocol, &stage.pd, &stage.other, &config(), |_| {});
            let mut connection = connection.unwrap();
            let nowhere = doorbell_verbs::RKey::new(0);
            bare.post(SendOperation::WriteImmediate { remote_address: 0, rkey: nowhere, immediate: word }, &[]);
            let error = ending(&stage.other, &mut bare, &mut connection);
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
    check(&mut stage, DirectWrite::default(), GOODBYE);
    check(&mut stage, BufferedRead, GOODBYE);
    for notification in [Notification::TailOffset, Notification::Reverse] {
        check(&mut stage, BufferedWrite { notification, acknowledge: buffered_write::Acknowledge::Send }, GOODBYE);
    }
}

/// A connection with shared receives rejects a message above the maximum length in its description, even if the shared
/// buffers are longer.
#[test]
fn shared_receives_reject_messages_longer_than_announced() {
    let mut stage = Stage::new();
    let options = SharedOptions { depth: 8, connections: 2, max_message: 4096, reposting: Reposting::Locked };
    let shared = SharedReceives::new(&stage.pd, options).unwrap();
    for length in [401, 4096, 5000] {
        let endpoint = Endpoint::sharing(&shared, config(), None).unwrap();
        let peer = endpoint.description();
        let (mut bare, connection) = Bare::join(&stage.other, peer, |_| {}, |own| endpoint.connect(own));
        let mut connection = connection.unwrap();
        bare.post(SendOperation::SendImmediate(4), &vec![7; length]);
        let error = ending(&stage.other, &mut bare, &mut connection);
        let expected = if length <= 4096 {
            format!("it sent a message of {length} B, but this side accepts at most 400 B")
        } else {
            "it sent a message that is longer than the receive posted for it".to_owned()
        };
        assert_eq!(error.to_string(), format!("the peer broke the protocol: {expected}"));
        drop(connection);
        assert_eq!(shared.srq().posted(), Some(8 + 2 * 3), "a receive is lost");
        stage.check_health();
    }
}

/// The peer sends credit messages again and again, although no message of this side has answered the first credit
/// message.
#[test]
fn endless_credits_are_rejected_and_do_not_block_removal() {
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
        // After these polls, the completion queue still holds completions of the flooded connections. The removal must
        // take them.
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
    let ended = ended.expect("the removal did not end");
    remover.join().unwrap();
    let expected = "the peer broke the protocol: it sent a credit message while its last credit message is unanswered";
    assert_eq!(ended, [expected; 3]);
}

/// The peer writes an invalid number of granted buffers. The sender reads the number when it has no unused grants, and
/// must reject it.
#[test]
fn an_invalid_number_of_grants_ends_the_connection() {
    let mut stage = Stage::new();
    for number in [1_u64, 3, 13, u64::MAX] {
        let (mut bare, connection) = Bare::meet(&DirectWrite::default(), &stage.pd, &stage.other, &config(), |_| {});
        let mut connection = connection.unwrap();
        while let Submit::Accepted(_) = connection.send(b"one for each grant").unwrap() {}
        let grants = bare.peer.regions[0];
        let (remote_address, rkey) = (grants.address, grants.rkey);
        bare.post(SendOperation::Write { remote_address, rkey }, &number.to_le_bytes());
        let error = ending(&stage.other, &mut bare, &mut connection);
        let expected = "the peer broke the protocol: it sent a number of grants that is less than before, \
                        or more than the ring of grants can hold";
        assert_eq!(error.to_string(), expected, "{number}");
        stage.check_health();
    }
}

/// The tail of the peer is invalid. The receiver READs the tail and computes the length of its next READ from it, so
/// the receiver must reject this tail.
#[test]
fn an_invalid_tail_ends_the_connection() {
    let mut stage = Stage::new();
    for number in [1_u64 << 20, u64::MAX] {
        let (mut bare, connection) = Bare::meet(&BufferedRead, &stage.pd, &stage.other, &config(), |_| {});
        // The tail of a bare peer lies at the start of the second region of its description.
        for at in [0, 8] {
            bare.open.store_release_u64(OPEN_BYTES / 2 + at, number.to_le());
        }
        let error = ending(&stage.other, &mut bare, &mut connection.unwrap());
        let expected = "the peer broke the protocol: it sent a tail before the previous tail, \
                        or more than a ring length after the head";
        assert_eq!(error.to_string(), expected, "{number}");
        stage.check_health();
    }
}

/// The tail of a shared ring is invalid. The sender must blame the peer for the tail, not the device for a missing
/// result.
#[test]
fn an_invalid_tail_of_a_shared_ring_ends_the_connection() {
    let mut stage = Stage::new();
    for number in [1, 1 << 63, u64::MAX] {
        let (mut bare, connection) = Bare::meet(&SharedWrite::default(), &stage.pd, &stage.other, &config(), |_| {});
        let mut connection = connection.unwrap();
        bare.open.store_release_u64(OPEN_BYTES / 2, number);
        assert!(matches!(connection.send(b"message").unwrap(), Submit::Accepted(_)));
        let error = ending(&stage.other, &mut bare, &mut connection);
        let expected = "the peer broke the protocol: it sent a tail inside space that was reserved before, \
                        or a tail that no ring can have";
        assert_eq!(error.to_string(), expected, "{number}");
        stage.check_health();
    }
}

/// Returns the number of conversations of each variant. The environment variable `DOORBELL_HOSTILE_SEEDS` can change
/// the number.
fn seeds() -> u64 {
    std::env::var("DOORBELL_HOSTILE_SEEDS").map_or(200, |text| text.parse().expect("a number of seeds"))
}

/// Returns the fuzz input of a variant for this seed.
fn input(variant: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed << 8 | variant as u64);
    let length = rng.within(20, 1500);
    let mut bytes = vec![variant as u8];
    bytes.extend((0..length).map(|_| rng.next() as u8));
    bytes
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the kernel shows the memory of this process");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

/// Bare queue pairs send arbitrary operations to connections of every protocol and variant, beside a healthy
/// connection. An invalid operation may end only the connection of its sender, and must not affect other connections.
#[test]
fn hostile_peers_end_only_their_own_connection() {
    let mut steps = vec![[0_u64; STEPS.len()]; VARIANTS.len()];
    let mut endings: BTreeMap<String, u64> = BTreeMap::new();
    let (mut received, mut sent) = (vec![0; VARIANTS.len()], vec![0; VARIANTS.len()]);
    let mut resident = None;
    for seed in 0..seeds() {
        for variant in 0..VARIANTS.len() {
            let bytes = input(variant, seed);
            let ending = catch_unwind(AssertUnwindSafe(|| converse(&bytes)))
                .unwrap_or_else(|_| panic!("seed {seed} of {} failed", VARIANTS[variant]));
            for (all, one) in steps[variant].iter_mut().zip(ending.steps) {
                *all += one;
            }
            received[variant] += ending.received;
            sent[variant] += ending.sent;
            *endings.entry(ending.over.unwrap_or_else(|| "no end".to_owned())).or_default() += 1;
        }
        if seed == seeds() / 4 {
            resident = Some(resident_bytes());
        }
    }
    for (variant, name) in VARIANTS.iter().enumerate() {
        println!("{name}: {} received, {} sent, steps {:?}", received[variant], sent[variant], steps[variant]);
        assert!(steps[variant].iter().all(|&count| count > 0), "{name}: a step was never chosen: {:?}", steps[variant]);
        assert!(sent[variant] > 0, "{name}: the victim never sent");
        // With placement by hand, the victim takes no messages, so `received` stays 0.
        assert!(received[variant] > 0 || name.contains("by hand"), "{name}: no message arrived");
    }
    for (ending, count) in &endings {
        println!("{count:6} {ending}");
    }
    for words in [
        "no end",
        "a WRITE with immediate data where only SENDs",
        "a message that is longer than the receive",
        "a message after its goodbye",
        "a second goodbye",
        "a SEND of 0 B whose immediate data the protocol does not define",
        "message bytes in a SEND whose immediate data allows none",
        "a WRITE with immediate data, which the protocol does not use",
        "a SEND without immediate data",
        "more credits than it has receives",
        "credits although flow control is off",
        "a message without credits",
        "more messages than it has credits for",
        "a malformed read request",
        "a number of read messages that exceeds the sent messages",
        "but this side accepts at most 400 B",
        "a head that is",
        "a message whose position lies outside the ring",
        "a message in space that no sender has reserved",
        "an answer without a question",
        "the peer refused",
    ] {
        assert!(endings.keys().any(|ending| ending.contains(words)), "no connection ended with: {words}");
    }
    let grown = resident_bytes().saturating_sub(resident.expect("the first quarter has run"));
    assert!(grown < 64 << 20, "the process has grown by {grown} B");
}

/// The peer of a set-up is a bare socket. The socket sends arbitrary bytes, or a valid hello that is cut, repeated or
/// changed.
#[test]
fn hostile_sockets_fail_only_the_set_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [device, _other] = common::wire::devices();
    let endpoint = SendReceive.endpoint(&device.create_pd().unwrap(), &config(), None).unwrap();
    let own = endpoint.description();
    let mut hello = [&b"DOORBELL"[..], &VERSION.to_be_bytes(), &[0, 0, 0, 1]].concat();
    own.encode(&mut hello);
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut bytes = hello.clone();
        if rng.chance(100) {
            bytes = (0..rng.below(300)).map(|_| rng.next() as u8).collect();
        }
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            match rng.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.extend_from_within(at..),
                2 if at < bytes.len() => bytes[at] = rng.next() as u8,
                _ => bytes.insert(at, rng.next() as u8),
            }
        }
        let mut peer = TcpStream::connect(address).unwrap();
        let (stream, _) = listener.accept().unwrap();
        peer.write_all(&bytes).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let outcome = catch_unwind(|| setup::exchange(&stream, &[own], Duration::from_secs(10)))
            .unwrap_or_else(|_| panic!("seed {seed} failed"));
        let outcome = match outcome {
            Ok(_) => "is taken",
            Err(SetupError::NotDoorbell { .. }) => "speaks another language",
            Err(SetupError::Version { .. }) => "speaks another version",
            Err(SetupError::Count { .. }) => "has another number",
            Err(SetupError::Description { .. }) => "sends an invalid description",
            Err(SetupError::Io { .. }) => "breaks off",
            Err(other) => panic!("seed {seed}: {other}"),
        };
        *outcomes.entry(outcome.to_owned()).or_default() += 1;
    }
    println!("{outcomes:?}");
    assert_eq!(outcomes.len(), 6, "an outcome is missing: {outcomes:?}");
}
