//! Tests of Shared-Write with many senders and one ring: senders join, leave and die.

use std::time::Duration;

use doorbell_exchange::shared_write::{Connection, SharedRing, SharedWrite};
use doorbell_exchange::{Config, ConnectionError, Connector, MessageConnection, Received, Submit};
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, SoftOptions};

fn device() -> Device {
    soft::open(&SoftOptions::default()).expect("a software RNIC opens")
}

fn config() -> Config {
    Config::default()
        .window(16)
        .depth(8)
        .max_message(1000)
        .timeout_exponent(14)
        .retry_count(2)
        .keepalive(Duration::from_millis(20))
}

fn payload(sender: usize, number: u64) -> Vec<u8> {
    let length = [1000, 0, 1, 16, 17, 500][(number as usize + sender) % 6];
    (0..length).map(|at| (number as usize * 31 + sender * 7 + at) as u8).collect()
}

/// Both ends of a connection: the sender's end and the receiver's end.
struct Pair {
    sender: Option<Connection>,
    receiver: Connection,
    sent: u64,
    received: u64,
    over: Option<ConnectionError>,
}

fn join(ring: &SharedRing) -> Pair {
    let sender = SharedWrite::default().endpoint(&device().create_pd().unwrap(), &config(), None).unwrap();
    let receiver = ring.endpoint(&config(), None).unwrap();
    let (of_sender, of_receiver) = (sender.description(), receiver.description());
    let receiver = receiver.connect(&of_sender).unwrap();
    let sender = Some(sender.connect(&of_receiver).unwrap());
    Pair { sender, receiver, sent: 0, received: 0, over: None }
}

impl Pair {
    fn send(&mut self, index: usize, messages: u64) {
        let Some(sender) = &mut self.sender else { return };
        while self.sent < messages
            && let Submit::Accepted(_) = sender.send(&payload(index, self.sent)).unwrap()
        {
            self.sent += 1;
        }
        sender.poll().unwrap();
    }

    fn receive(&mut self, index: usize) {
        if self.over.is_none()
            && let Err(error) = self.receiver.poll()
        {
            self.over = Some(error);
        }
        while let Some(message) = self.receiver.take() {
            assert!(message.to_vec() == payload(index, self.received), "message {} of {index}", self.received);
            self.received += 1;
        }
    }
}

fn until(pairs: &mut [Pair], messages: u64, mut is_enough: impl FnMut(&[Pair]) -> bool) {
    while !is_enough(pairs) {
        for (index, pair) in pairs.iter_mut().enumerate() {
            pair.send(index, messages);
            pair.receive(index);
        }
    }
}

fn all_received(pairs: &[Pair], messages: u64) -> bool {
    pairs.iter().all(|pair| pair.sender.is_none() || pair.received == messages)
}

#[test]
fn many_senders_share_one_ring() {
    let ring = SharedRing::new(&device().create_pd().unwrap(), &config()).unwrap();
    let mut pairs: Vec<_> = (0..4).map(|_| join(&ring)).collect();
    until(&mut pairs, 2000, |pairs| all_received(pairs, 2000));
    // A new sender can join, and other senders can leave with a goodbye.
    pairs.push(join(&ring));
    for pair in &mut pairs[..2] {
        pair.sender.as_mut().unwrap().close();
    }
    until(&mut pairs, 2000, |pairs| {
        pairs.iter().take(2).all(|pair| pair.receiver.is_peer_closed()) && pairs[4].received == 2000
    });
    assert_eq!(ring.recovered(), 0, "a sender that said goodbye left a hole");
}

#[test]
fn an_endpoint_rejects_messages_longer_than_the_ring() {
    let ring = SharedRing::new(&device().create_pd().unwrap(), &config()).unwrap();
    let long = config().max_message(1 << 20);
    let error = ring.endpoint(&long, None).unwrap_err();
    assert_eq!(error.to_string(), "the longest message is 1048576, allowed is at most the maximum of the shared ring");
}

#[test]
fn a_sender_that_dies_after_reserving_does_not_block_the_others() {
    let ring = SharedRing::new(&device().create_pd().unwrap(), &config()).unwrap();
    let mut pairs: Vec<_> = (0..3).map(|_| join(&ring)).collect();
    until(&mut pairs, 50, |pairs| all_received(pairs, 50));
    // The dying sender reserves space with several FETCH_ADDs. It never writes into the space, since its connection is
    // not polled any more.
    let dying = pairs[1].sender.as_mut().unwrap();
    for number in 50..53 {
        assert!(matches!(dying.send(&payload(1, number)).unwrap(), Submit::Accepted(_)));
    }
    let atomics = |pair: &Pair| pair.receiver.qp().pd().device().counters().unwrap().rx_atomic_requests;
    let before = atomics(&pairs[1]);
    while atomics(&pairs[1]) < before + 3 {
        for (index, pair) in pairs.iter_mut().enumerate() {
            pair.receive(index);
        }
    }
    // The other senders must stop once the ring is full, since the head cannot pass the hole.
    let mut rounds = 0;
    let mut seen = 0;
    while rounds < 300 {
        for (index, pair) in pairs.iter_mut().enumerate().filter(|(index, _)| index % 2 == 0) {
            pair.send(index, 10_000);
            pair.receive(index);
        }
        let received = pairs[0].received + pairs[2].received;
        rounds = if received == seen { rounds + 1 } else { 0 };
        seen = received;
    }
    assert!(seen < 1000, "the hole does not block the ring: {seen} messages");
    assert_eq!(ring.recovered(), 0);
    pairs[1].sender = None;
    until(&mut pairs, 10_000, |pairs| all_received(pairs, 10_000));
    assert_eq!(ring.recovered(), 1);
    assert!(matches!(pairs[1].over, Some(ConnectionError::PeerUnreachable(_))), "{:?}", pairs[1].over);
    assert_eq!(pairs[1].received, 50);
}

/// Senders die at any moment, even while the receiver recovers the space of a sender that died earlier.
#[test]
fn senders_that_die_at_any_time_do_not_block_others() {
    for seed in 1..=12_u64 {
        let ring = SharedRing::new(&device().create_pd().unwrap(), &config()).unwrap();
        let mut pairs: Vec<_> = (0..5).map(|_| join(&ring)).collect();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for victim in 0..3 {
            let rounds = next(300);
            let mut left = rounds;
            until(&mut pairs, u64::MAX, |_| {
                left = left.saturating_sub(1);
                left == 0
            });
            if next(2) == 0 {
                let sender = pairs[victim].sender.as_mut().unwrap();
                while let Submit::Accepted(_) = sender.send(b"never to be read").unwrap() {}
            }
            pairs[victim].sender = None;
        }
        let goal = pairs.iter().map(|pair| pair.sent).max().unwrap() + 500;
        until(&mut pairs, goal, |pairs| all_received(pairs, goal));
        until(&mut pairs, goal, |pairs| pairs[..3].iter().all(|pair| pair.over.is_some()));
        assert!(ring.recovered() >= 1, "seed {seed}");
    }
}
