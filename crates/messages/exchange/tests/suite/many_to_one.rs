//! Tests of many senders and one receiver. All connections share one completion queue, and have their own or shared
//! receive buffers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_exchange::send_receive::{
    CREDIT_RECEIVES, Config, Connection, Endpoint, Hub, Key, Message, Reposting, SharedOptions, SharedReceives, Submit,
};
use doorbell_exchange::{ConnectError, ConnectionError, MessageConnection};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Device, Pd};

fn device() -> Device {
    soft::open(&SoftOptions::default()).expect("a software RNIC opens")
}

const SENDERS: usize = 4;

fn config() -> Config {
    Config::default().window(32).depth(16).max_message(5000)
}

fn shared(pd: &Pd, depth: usize, reposting: Reposting) -> SharedReceives {
    SharedReceives::new(pd, SharedOptions { depth, connections: SENDERS, max_message: 5000, reposting }).unwrap()
}

/// Returns a sender on its own device, and the key of its connection in the hub.
fn join(hub: &mut Hub, config: Config, shared: Option<&SharedReceives>) -> Result<(Connection, Key), ConnectError> {
    let sender = Endpoint::new(&device().create_pd().unwrap(), config.clone(), None).unwrap();
    let receiver = hub.endpoint(config, shared)?;
    let (of_sender, of_receiver) = (sender.description(), receiver.description());
    let connection = receiver.connect(&of_sender)?;
    Ok((sender.connect(&of_receiver).unwrap(), hub.add(connection)?))
}

/// Returns the payload of message `number` of a sender. The number determines the length.
fn payload(sender: usize, number: u64) -> Vec<u8> {
    let lengths = [16, 1, 64, 65, 4096, 5000, 300, 0];
    let length = lengths[(number as usize + sender) % lengths.len()];
    (0..length).map(|at| (number as usize * 31 + sender * 7 + at) as u8).collect()
}

/// Delivers `messages` messages of each sender, and checks that each message arrives once, in order and unchanged.
fn deliver(hub: &mut Hub, senders: &mut [(Connection, Key)], messages: u64) {
    deliver_after(hub, senders, 0, messages);
}

/// Does the same as [`deliver`] if each sender has already sent its first `already` messages.
fn deliver_after(hub: &mut Hub, senders: &mut [(Connection, Key)], already: u64, messages: u64) {
    let mut sent = vec![already; senders.len()];
    let mut received = vec![0; senders.len()];
    let mut held: Vec<Message> = Vec::new();
    while received.iter().any(|&count| count < messages) {
        for (index, (connection, _)) in senders.iter_mut().enumerate() {
            if sent[index] < messages
                && let Submit::Accepted(_) = connection.send(&payload(index, sent[index])).unwrap()
            {
                sent[index] += 1;
            }
            connection.poll().unwrap();
        }
        for _ in 0..2 * senders.len() {
            let Some((key, message)) = hub.receive().unwrap() else { break };
            let index = senders.iter().position(|(_, name)| *name == key).expect("a key that was given out");
            assert_eq!(&*message, &payload(index, received[index])[..], "message {} of {index}", received[index]);
            received[index] += 1;
            held.push(message);
            if held.len() > 10 {
                held.swap_remove(received[index] as usize * 7 % 10); // frees messages out of order
            }
        }
        assert_eq!(hub.next_ended(), None);
    }
}

fn rnr_naks(hub_device: &Device, senders: &[(Connection, Key)]) -> u64 {
    let of = |device: &Device| device.counters().unwrap().rnr_nak_sent;
    of(hub_device) + senders.iter().map(|(connection, _)| of(connection.qp().pd().device())).sum::<u64>()
}

#[test]
fn one_receiver_serves_many_senders_with_separate_buffers() {
    let device = device();
    let pd = device.create_pd().unwrap();
    let mut hub = Hub::for_connections(&pd, &config(), SENDERS, None).unwrap();
    let mut senders: Vec<_> = (0..SENDERS).map(|_| join(&mut hub, config(), None).unwrap()).collect();
    assert!(matches!(hub.endpoint(config(), None), Err(ConnectError::Crowded("completion queue"))));
    deliver(&mut hub, &mut senders, 1000);
    assert_eq!(rnr_naks(&device, &senders), 0);
}

/// A poll of a hub advances only a few connections. When a poll first returns false, the hub must have sent all
/// goodbyes, since the program may then sleep.
#[test]
fn a_hub_sends_all_goodbyes_before_it_reports_no_event() {
    const MANY: usize = 20;
    let device = device();
    let pd = device.create_pd().unwrap();
    let small = Config::default().window(2).depth(2).max_message(64);
    let mut hub = Hub::for_connections(&pd, &small, MANY, None).unwrap();
    let mut senders: Vec<_> = (0..MANY).map(|_| join(&mut hub, small.clone(), None).unwrap()).collect();
    while hub.poll().unwrap() {}
    for (_, key) in &senders {
        hub.get_mut(*key).expect("a connection of the hub").close();
    }
    while hub.poll().unwrap() {}
    // The program now sleeps, so the hub is not polled any more.
    let until_ns = device.now_ns() + 60_000_000_000;
    for (index, (sender, _)) in senders.iter_mut().enumerate() {
        while !sender.is_peer_closed() {
            sender.poll().unwrap();
            assert!(device.now_ns() < until_ns, "connection {index} has not said goodbye");
        }
    }
}

#[test]
fn credits_keep_shared_buffers_from_running_out() {
    for reposting in [Reposting::Locked, Reposting::Thread] {
        let device = device();
        let pd = device.create_pd().unwrap();
        let mut hub = Hub::for_connections(&pd, &config(), SENDERS, None).unwrap();
        let shared = shared(&pd, 16 * SENDERS, reposting);
        let mut senders: Vec<_> = (0..SENDERS).map(|_| join(&mut hub, config(), Some(&shared)).unwrap()).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if reposting == Reposting::Thread {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if shared.repost().unwrap() == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            deliver(&mut hub, &mut senders, 1000);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(rnr_naks(&device, &senders), 0, "{reposting:?}");
    }
}

#[test]
fn without_credits_overcommitted_buffers_cause_rnr_naks() {
    let device = device();
    let pd = device.create_pd().unwrap();
    let config = config().credits(false).min_rnr_timer_code(1);
    let mut hub = Hub::for_connections(&pd, &config, SENDERS, None).unwrap();
    let shared = shared(&pd, 12, Reposting::Locked);
    let mut senders: Vec<_> = (0..SENDERS).map(|_| join(&mut hub, config.clone(), Some(&shared)).unwrap()).collect();
    // The senders send more messages than the receiver can store: the receiver does not poll and has 24 buffers, and
    // each of the four senders sends 32 messages.
    for (index, (connection, _)) in senders.iter_mut().enumerate() {
        for number in 0..32 {
            assert!(matches!(connection.send(&payload(index, number)).unwrap(), Submit::Accepted(_)));
        }
    }
    while device.counters().unwrap().rnr_nak_sent == 0 {
        senders.iter_mut().for_each(|(connection, _)| assert!(connection.poll().is_ok()));
    }
    deliver_after(&mut hub, &mut senders, 32, 200);
}

#[test]
fn grants_never_exceed_posted_receives() {
    let pd = device().create_pd().unwrap();
    let mut hub = Hub::for_connections(&pd, &config(), SENDERS, None).unwrap();
    let shared = shared(&pd, 40, Reposting::Locked);
    let first = join(&mut hub, config(), Some(&shared)).unwrap();
    let (_second, name) = join(&mut hub, config(), Some(&shared)).unwrap();
    let error = join(&mut hub, config(), Some(&shared)).unwrap_err();
    assert_eq!(error.to_string(), "the connection needs 16 shared receives, but only 8 are left");
    assert!(hub.remove(name), "the connection was in the hub");
    let third = join(&mut hub, config(), Some(&shared)).unwrap();
    deliver(&mut hub, &mut [first, third], 100);
    let longer = config().max_message(5001);
    assert!(matches!(hub.endpoint(longer, Some(&shared)), Err(ConnectError::TooLongForShared { .. })));
}

#[test]
fn a_dead_sender_is_reported_once_and_its_buffers_are_reused() {
    let pd = device().create_pd().unwrap();
    let config = config().timeout_exponent(14).retry_count(3).keepalive(Duration::from_millis(20));
    let mut hub = Hub::for_connections(&pd, &config, SENDERS, None).unwrap();
    let shared = shared(&pd, 16 * SENDERS, Reposting::Locked);
    let mut senders: Vec<_> = (0..SENDERS).map(|_| join(&mut hub, config.clone(), Some(&shared)).unwrap()).collect();
    let (mut victim, name) = senders.pop().unwrap();
    for number in 0..8 {
        assert!(matches!(victim.send(&payload(3, number)).unwrap(), Submit::Accepted(_)));
    }
    while victim.last_done() < 8 {
        victim.poll().unwrap();
    }
    let mut kept = Vec::new();
    while kept.len() < 3 {
        kept.extend(hub.receive().unwrap());
    }
    drop(victim);
    let reason = loop {
        for (connection, _) in &mut senders {
            connection.poll().unwrap();
        }
        hub.poll().unwrap();
        if let Some((ended, reason)) = hub.next_ended() {
            assert_eq!(ended, name);
            break reason;
        }
    };
    assert!(matches!(reason, ConnectionError::PeerUnreachable(_)), "{reason:?}");
    assert!(hub.remove(name));
    assert_eq!(hub.next_ended(), None);
    drop(kept);
    shared.repost().unwrap();
    assert_eq!(shared.srq().posted().unwrap(), (16 + CREDIT_RECEIVES) * SENDERS, "a buffer was not reposted");
    senders.push(join(&mut hub, config, Some(&shared)).unwrap());
    deliver(&mut hub, &mut senders, 100);
}

#[test]
fn a_poll_takes_the_configured_number_of_completions() {
    let pd = device().create_pd().unwrap();
    let config = config().credits(false).poll_list(1).repost_list(1);
    let mut hub = Hub::for_connections(&pd, &config, 1, None).unwrap();
    let (mut sender, _) = join(&mut hub, config, None).unwrap();
    for number in 0..3 {
        assert!(matches!(sender.send(&payload(0, number)).unwrap(), Submit::Accepted(_)));
    }
    while sender.last_done() < 3 {
        sender.poll().unwrap();
        pd.device().drive();
    }
    for number in 0..3 {
        while !hub.poll().unwrap() {}
        let (_, message) = hub.take().expect("one message for each poll");
        assert_eq!(&*message, &payload(0, number)[..]);
        assert!(hub.take().is_none(), "a poll delivered two messages");
    }
}
