//! Cases for Direct-Read only, in which the receiver chooses the address of a message.

use std::io::Write;
use std::time::Duration;

use super::{Config, MessageConnection, Submit, device, join, memory, pair, payload};
use doorbell_exchange::direct_read::{Acknowledge, Connection, DirectRead, Fence, Placement, ReadId};
use doorbell_exchange::{ConnectError, ConnectionError, Connector, Received, Replication, SendReceive};
use doorbell_verbs::{Access, MemoryKind, Status};

fn by_hand() -> DirectRead {
    DirectRead { placement: Placement::ByHand, ..DirectRead::default() }
}

fn small() -> Config {
    Config::default().window(8).depth(8).max_message(5000)
}

fn wait_for_request(a: &mut Connection, b: &mut Connection) {
    while b.request().is_none() {
        a.poll().unwrap();
        b.poll().unwrap();
    }
}

fn read(a: &mut Connection, b: &mut Connection, id: ReadId) {
    while !b.is_read(id) {
        a.poll().unwrap();
        b.poll().unwrap();
    }
}

pub fn the_receiver_places_messages_by_application_data() {
    let (mut a, mut b) = pair(&by_hand(), &small());
    let place = b.qp().pd().allocate(1 << 16, Access::LOCAL_WRITE, MemoryKind::Plain).unwrap();
    for (number, offset) in [(0, 40_000_u32), (1, 0), (2, 10_000)] {
        let sent = a.send_with(&payload(number, 5000), &offset.to_be_bytes()).unwrap();
        assert_eq!(sent, Submit::Accepted(number + 1));
    }
    let mut last = 0;
    for _ in 0..3 {
        wait_for_request(&mut a, &mut b);
        let request = b.request().unwrap();
        assert_eq!(request.len(), 5000);
        let offset = u32::from_be_bytes(request.application().try_into().unwrap());
        last = b.read_into(&place, offset as usize).unwrap().unwrap();
    }
    assert_eq!(last, 3);
    assert!(b.take().is_none(), "a message was placed without the program");
    read(&mut a, &mut b, last);
    for (number, offset) in [(0, 40_000), (1, 0), (2, 10_000)] {
        let mut bytes = vec![0; 5000];
        place.copy_out(offset, &mut bytes);
        assert_eq!(bytes, payload(number, 5000));
    }
    while a.last_done() < 3 {
        a.poll().unwrap();
        b.poll().unwrap();
    }
}

pub fn a_message_lands_in_a_file() {
    let path = std::env::temp_dir().join(format!("doorbell-direct-read-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&[0; 8192]).unwrap();
    let (mut a, mut b) = pair(&by_hand(), &small());
    let place = b.qp().pd().allocate(8192, Access::LOCAL_WRITE, MemoryKind::File(&file)).unwrap();
    assert!(matches!(a.send(&payload(9, 5000)).unwrap(), Submit::Accepted(1)));
    wait_for_request(&mut a, &mut b);
    let id = b.read_into(&place, 100).unwrap().unwrap();
    read(&mut a, &mut b, id);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bytes[100..5100], payload(9, 5000));
    assert!(bytes[..100].iter().chain(&bytes[5100..]).all(|&byte| byte == 0));
}

pub fn a_slow_message_blocks_only_beyond_its_window() {
    let (mut a, mut b) = pair(&by_hand(), &small());
    for number in 0..8 {
        assert!(matches!(a.send(&payload(number, 10)).unwrap(), Submit::Accepted(_)));
    }
    wait_for_request(&mut a, &mut b);
    for _ in 0..1000 {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    assert!(
        matches!(a.send(b"one more").unwrap(), Submit::Full(_)),
        "the source accepts a message although no reader has read one"
    );
    assert_eq!(a.last_done(), 0);
    let place = b.qp().pd().allocate(64, Access::LOCAL_WRITE, MemoryKind::Plain).unwrap();
    let id = b.read_into(&place, 0).unwrap().unwrap();
    read(&mut a, &mut b, id);
    while !matches!(a.send(b"one more").unwrap(), Submit::Accepted(9)) {
        a.poll().unwrap();
        b.poll().unwrap();
    }
}

pub fn many_readers_pull_the_same_memory() {
    let protocol = DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() };
    let source = device();
    let pd = source.create_pd().unwrap();
    let mut replication = Replication::new();
    let config = small().send_buffers(0).timeout_exponent(14).retry_count(2).keepalive(Duration::from_millis(20));
    let mut readers: Vec<_> = (0..3)
        .map(|_| {
            let own = protocol.endpoint(&pd, &config, None).unwrap();
            let reader = protocol.endpoint(&device().create_pd().unwrap(), &config, None).unwrap();
            let (of_own, of_reader) = (protocol.describe(&own), protocol.describe(&reader));
            let connection = protocol.connect(reader, &of_own).unwrap();
            replication.add(protocol.connect(own, &of_reader).unwrap()).unwrap();
            Some(connection)
        })
        .collect();
    let region = memory(&pd, 4096);
    let mut received = [0_u64; 3];
    let publish = |replication: &mut Replication<Connection>,
                   readers: &mut [Option<Connection>],
                   received: &mut [u64; 3],
                   number| {
        region.copy_in(0, &payload(number, 4096));
        assert_eq!(replication.publish(&region, 0, 4096).unwrap(), Submit::Accepted(number));
        while replication.last_done() < number {
            replication.poll();
            for (reader, count) in readers.iter_mut().zip(received.iter_mut()) {
                let Some(reader) = reader else { continue };
                if let Some(message) = reader.receive().unwrap() {
                    assert_eq!(&*message, &payload(number, 4096)[..]);
                    *count += 1;
                }
            }
        }
    };
    for number in 1..=50 {
        publish(&mut replication, &mut readers, &mut received, number);
    }
    assert_eq!(received, [50; 3]);
    readers[1] = None; // the connection dies with its device
    for number in 51..=60 {
        publish(&mut replication, &mut readers, &mut received, number);
    }
    assert_eq!(received, [60, 50, 60]);
    let (which, reason, last) = replication.next_ended().expect("the death was noticed");
    assert_eq!((which, last), (1, 50));
    assert!(matches!(reason, ConnectionError::PeerUnreachable(_)));
    assert_eq!(replication.next_ended(), None);
}

pub fn reading_freed_memory_of_the_sender_fails() {
    // The sender frees the memory before the receiver reads it.
    let (mut a, mut b) = pair(&by_hand(), &small());
    let region = memory(a.qp().pd(), 101);
    assert!(matches!(a.send_from(&region, 0, 100).unwrap(), Submit::Accepted(1)));
    wait_for_request(&mut a, &mut b);
    drop(a);
    drop(region);
    let place = b.qp().pd().allocate(100, Access::LOCAL_WRITE, MemoryKind::Plain).unwrap();
    b.read_into(&place, 0).unwrap();
    let reason = loop {
        if let Err(error) = b.poll() {
            break error;
        }
    };
    assert!(
        matches!(reason, ConnectionError::PeerUnreachable(_) | ConnectionError::PeerRefused(Status::RemoteAccess)),
        "{reason:?}"
    );
    let mut bytes = [1; 100];
    place.copy_out(0, &mut bytes);
    assert_eq!(bytes, [0; 100]);
}

pub fn ends_of_different_protocols_do_not_connect() {
    let end = |protocol: DirectRead| protocol.endpoint(&device().create_pd().unwrap(), &small(), None).unwrap();
    let by_byte = end(DirectRead::default());
    let by_send = DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() };
    let error = DirectRead::default().connect(by_byte, &by_send.describe(&end(by_send))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this end uses the protocol Direct-Read with signal bytes, but the peer uses Direct-Read acknowledged by SEND"
    );
    let messages = SendReceive.endpoint(&device().create_pd().unwrap(), &small(), None).unwrap();
    let error = by_send.connect(end(by_send), &SendReceive.describe(&messages)).unwrap_err();
    assert!(matches!(error, ConnectError::Protocol { .. }));
}

pub fn a_fenced_read_delays_later_messages_and_loses_none() {
    for fence in [Fence::ReadCompletion, Fence::AcknowledgementCompletion] {
        deliver_with_fence(fence);
    }
}

fn deliver_with_fence(fence: Fence) {
    let protocol = DirectRead { fence, ..DirectRead::default() };
    let config = Config::default().window(32).depth(32).max_message(20_000);
    let (mut a, mut b) = join(&protocol, [&device(), &device()], [&config, &config], None);
    let mut sent = 0;
    let mut received = 0;
    while received < 200 {
        if sent < 200 && matches!(a.send(&payload(sent, 20_000)).unwrap(), Submit::Accepted(_)) {
            sent += 1;
        }
        a.poll().unwrap();
        while let Some(message) = b.receive().unwrap() {
            // The receiver writes the signal byte only after its READ. So the sender never reuses a buffer that the
            // receiver still reads, and each message is intact.
            assert_eq!(&*message, &payload(received, 20_000)[..]);
            received += 1;
        }
        assert!(a.last_done() <= sent);
    }
    assert_eq!(b.acknowledgements(), 200);
}

/// Delivers messages as published evaluations do: each message generates a completion, and each poll takes at most one
/// completion.
fn deliver_one_by_one<C: Connector>(protocol: &C) {
    let config = Config::default().window(8).batch(4).depth(8).max_message(5000).signal_each(true).poll_list(1);
    let (mut a, mut b) = pair(protocol, &config);
    let (mut sent, mut received) = (0, 0);
    while received < 50 || a.last_done() < 50 {
        if sent < 50 && matches!(a.send(&payload(sent, 700)).unwrap(), Submit::Accepted(_)) {
            sent += 1;
        }
        if sent == 50 {
            a.flush().unwrap();
        }
        a.poll().unwrap();
        b.poll().unwrap();
        while let Some(message) = b.take() {
            assert_eq!(message.to_vec(), payload(received, 700));
            received += 1;
        }
    }
}

pub fn messages_arrive_with_one_completion_per_message() {
    deliver_one_by_one(&SendReceive);
    for acknowledge in [Acknowledge::SignalByte, Acknowledge::Send] {
        for fence in [Fence::Nothing, Fence::ReadCompletion, Fence::AcknowledgementCompletion] {
            deliver_one_by_one(&DirectRead { acknowledge, fence, ..DirectRead::default() });
        }
    }
}
