//! Failures of other implementations. Each case has the name of the property that such an implementation violates.

use super::{Config, Connector, MessageConnection, Received, Submit, pair, payload};

/// If credits only count messages, a sender can overwrite a held message after the receiver has freed newer messages.
pub fn a_held_message_is_not_overwritten_after_newer_ones_are_freed<P: Connector>(protocol: P) {
    let config = Config::default().window(8).depth(8).max_message(500);
    let (mut a, mut b) = pair(&protocol, &config);
    let (mut sent, mut received, mut idle) = (0, 0, 0);
    let mut held = None;
    // No ring has room for 400 messages. So if a held message blocks later ones, the loop ends before 400 messages
    // arrive.
    while received < 400 && idle < 3000 {
        if let Submit::Accepted(_) = a.send(&payload(sent, 400)).unwrap() {
            sent += 1;
        }
        a.poll().unwrap();
        // Count polls only after the first message, since the devices first resolve each other's addresses.
        idle += u32::from(held.is_some());
        while let Some(message) = b.receive().unwrap() {
            assert!(message.to_vec() == payload(received, 400), "message {received}");
            received += 1;
            held.get_or_insert(message); // the first message is held, the others are freed
            idle = 0;
        }
    }
    assert_eq!(received < 400, protocol.protocol().properties().slow_message_blocks, "{received} were received");
    let held = held.expect("messages came");
    assert!(held.to_vec() == payload(0, 400), "the held message has changed");
    drop(held);
    while received < 500 {
        if let Submit::Accepted(_) = a.send(&payload(sent, 400)).unwrap() {
            sent += 1;
        }
        a.poll().unwrap();
        while let Some(message) = b.receive().unwrap() {
            assert!(message.to_vec() == payload(received, 400), "message {received}");
            received += 1;
        }
    }
}

/// A send queue whose depth equals the number of slots of a ring can overflow: messages may be smaller than a slot, or
/// need two requests each.
pub fn a_send_queue_takes_all_that_a_window_allows<P: Connector>(protocol: P) {
    for (window, batch, depth) in [(1, 1, 512), (64, 1, 1024), (64, 7, 16), (256, 64, 1024)] {
        let config = Config::default().window(window).batch(batch).depth(depth).max_message(64);
        let (mut a, mut b) = pair(&protocol, &config);
        let (mut sent, mut received) = (0, 0);
        while sent < 20 * window as u64 {
            // Without a poll, completed requests stay in the send queue.
            while let Submit::Accepted(_) = a.send(&payload(sent, sent as usize % 3)).unwrap() {
                sent += 1;
            }
            a.flush().unwrap();
            while received < sent {
                a.poll().unwrap();
                while let Some(message) = b.receive().unwrap() {
                    assert!(message.to_vec() == payload(received, received as usize % 3), "message {received}");
                    received += 1;
                }
            }
            loop {
                a.poll().unwrap();
                b.poll().unwrap();
                if a.unacknowledged() == 0 {
                    break;
                }
            }
        }
    }
}

/// Two peers send until neither has credits, and then wait for each other.
pub fn two_peers_out_of_credit_free_each_other<P: Connector>(protocol: P) {
    let config = Config::default().window(64).depth(4).max_message(900);
    let (mut a, mut b) = pair(&protocol, &config);
    let (mut sent, mut received) = ([0_u64; 2], [0_u64; 2]);
    for round in 0..200 {
        for (side, connection) in [&mut a, &mut b].into_iter().enumerate() {
            while let Submit::Accepted(_) = connection.send(&payload(sent[side], 900)).unwrap() {
                sent[side] += 1;
            }
            for _ in 0..20 {
                connection.poll().unwrap();
            }
        }
        // Each side receives one message, and polls no more than necessary.
        let goal = [received[0] + 1, received[1] + 1];
        while received[0] < goal[0] || received[1] < goal[1] {
            for (from, connection) in [(1, &mut a), (0, &mut b)] {
                connection.poll().unwrap();
                if received[from] < goal[from]
                    && let Some(message) = connection.take()
                {
                    assert!(message.to_vec() == payload(received[from], 900), "message {}", received[from]);
                    received[from] += 1;
                }
            }
        }
        assert!(sent[0] > round && sent[1] > round, "{sent:?} after {round}");
    }
}

/// If the sender polls rarely, no message is lost or delayed.
pub fn a_slow_sender_delays_and_loses_nothing<P: Connector>(protocol: P) {
    let config = Config::default().window(8).depth(8).max_message(64);
    let (mut a, mut b) = pair(&protocol, &config);
    let (mut sent, mut received) = (0, 0);
    while received < 200 {
        if let Submit::Accepted(_) = a.send(&payload(sent, 40)).unwrap() {
            sent += 1;
        }
        a.poll().unwrap();
        for _ in 0..500 {
            while let Some(message) = b.receive().unwrap() {
                assert!(message.to_vec() == payload(received, 40), "message {received}");
                received += 1;
            }
        }
    }
}
