//! Tests of Send-Receive between two software RNICs of this process.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_exchange::blocking::Blocking;
use doorbell_exchange::send_receive::{
    Backpressure, CREDIT_RECEIVES, Config, Connection, Endpoint, Message, Outcome, Reposting, SharedOptions,
    SharedReceives, Submit,
};
use doorbell_exchange::{ConnectionError, MessageConnection};
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, MemoryOptions, SoftOptions, VirtualNetwork};
use tracing_subscriber::fmt::MakeWriter;

fn device() -> Device {
    soft::open(&SoftOptions::default()).expect("a software RNIC opens")
}

fn pair(one: Config, other: Config) -> (Connection, Connection) {
    let (a, b) = (device(), device());
    let a = Endpoint::new(&a.create_pd().unwrap(), one, None).unwrap();
    let b = Endpoint::new(&b.create_pd().unwrap(), other, None).unwrap();
    let (of_a, of_b) = (a.description(), b.description());
    (a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap())
}

fn payload(id: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (id as usize * 31 + at) as u8).collect()
}

#[test]
fn messages_arrive_once_in_order_and_intact() {
    for config in [Config::sequential(), Config::unbatched(), Config::batched()] {
        let config = config.max_message(10_000);
        let (mut a, mut b) = pair(config.clone(), config);
        let lengths = [0, 1, 4, 64, 65, 4095, 4096, 4097, 10_000];
        let (mut sent, mut received) = (0_u64, 0_u64);
        let mut held: Vec<Message> = Vec::new();
        while received < 2000 {
            if sent < 2000 {
                let message = payload(sent, lengths[sent as usize % lengths.len()]);
                if let Submit::Accepted(id) = a.send(&message).unwrap() {
                    sent += 1;
                    assert_eq!(id, sent);
                }
            }
            a.poll().unwrap();
            while let Some(message) = b.receive().unwrap() {
                let length = lengths[received as usize % lengths.len()];
                assert_eq!(&*message, &payload(received, length)[..], "message {received}");
                received += 1;
                held.push(message);
                if held.len() > 20 {
                    held.swap_remove(received as usize * 7 % 20); // frees messages out of order
                }
            }
        }
        while a.last_done() < sent {
            a.poll().unwrap();
        }
        let counters = (a.qp().pd().device().counters().unwrap(), b.qp().pd().device().counters().unwrap());
        assert_eq!(counters.0.rnr_nak_received + counters.1.rnr_nak_received, 0);
        assert_eq!(a.outcome(sent), Outcome::Done);
    }
}

#[test]
fn discarded_messages_arrive_empty_in_shared_buffers() {
    for buffers in [1, 3, 1000] {
        let config = Config::default().depth(16).max_message(10_000).discard_into(buffers);
        assert_eq!(config.memory_bytes(), (buffers.min(16 + CREDIT_RECEIVES) + 64) * 10_048);
        let (mut a, mut b) = pair(config.clone(), config);
        let (mut sent, mut received) = (0_u64, 0_u64);
        while received < 500 {
            if sent < 500
                && let Submit::Accepted(id) = a.send(&payload(sent, 10_000)).unwrap()
            {
                sent = id;
            }
            a.poll().unwrap();
            while let Some(message) = b.receive().unwrap() {
                assert!(message.is_empty(), "another message may overwrite the bytes of this message");
                received += 1;
            }
        }
        while a.last_done() < sent {
            a.poll().unwrap();
        }
    }
}

#[test]
fn a_receiver_that_stops_reading_only_causes_back_pressure() {
    let config = Config::default().window(32).depth(16);
    let (mut a, mut b) = pair(config.clone(), config);
    let mut accepted = 0;
    let mut refused = None;
    for _ in 0..100_000 {
        match a.send(b"hello").unwrap() {
            Submit::Accepted(_) => accepted += 1,
            Submit::Full(why) => refused = Some(why),
        }
        a.poll().unwrap();
    }
    assert_eq!((accepted, refused), (16, Some(Backpressure::Credits)));
    let mut messages = Vec::new();
    while messages.len() < 16 {
        messages.extend(b.receive().unwrap());
    }
    drop(messages); // the drops free a quarter of the depth, so they repost receives and send a credit message
    while !matches!(a.send(b"again").unwrap(), Submit::Accepted(_)) {
        a.poll().unwrap();
    }
    let counters = b.qp().pd().device().counters().unwrap();
    assert_eq!(counters.rnr_nak_sent, 0);
}

#[test]
fn a_goodbye_and_a_death_are_distinguished() {
    let (a, b) = pair(Config::default(), Config::default());
    let (mut a, mut b) = (Blocking::new(a), Blocking::new(b));
    let id = a.send(b"last words").unwrap();
    let closer = std::thread::spawn(move || {
        a.close().unwrap();
        a
    });
    assert_eq!(&*b.receive().unwrap(), b"last words");
    assert_eq!(b.receive().unwrap_err(), ConnectionError::PeerClosed);
    let a = closer.join().unwrap();
    assert_eq!(a.get().outcome(id), Outcome::Done);

    let config = Config::default().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(50));
    let (mut a, b) = pair(config.clone(), config);
    drop(b);
    let Submit::Accepted(id) = a.send(b"anyone?").unwrap() else { panic!("the window is full") };
    let error = loop {
        if let Err(error) = a.poll() {
            break error;
        }
    };
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
    assert_eq!(a.outcome(id), Outcome::Failed(error));
}

#[test]
fn a_goodbye_is_heard_without_credits_too() {
    let config = Config::default().credits(false);
    let (a, b) = pair(config.clone(), config);
    let (mut a, mut b) = (Blocking::new(a), Blocking::new(b));
    a.send(b"last words").unwrap();
    let closer = std::thread::spawn(move || a.close().map(|()| a));
    assert_eq!(&*b.receive().unwrap(), b"last words");
    assert_eq!(b.receive().unwrap_err(), ConnectionError::PeerClosed);
    closer.join().unwrap().unwrap();
}

/// A side that exits early may leave the last goodbye of its peer without an acknowledgement. Both sides must still
/// close without an error.
#[test]
fn both_sides_close_cleanly_when_the_last_ack_is_lost() {
    for seed in 0..12 {
        let lossy = || {
            let plan = format!("drop=0.25,seed={seed}").parse().unwrap();
            soft::open(&SoftOptions { faults: Some(plan), ..SoftOptions::default() }).unwrap()
        };
        // The timeout is short, so that a side soon stops retransmitting to a peer that has exited. A busy peer still
        // has time to answer.
        let config = Config::default().timeout_exponent(12);
        let (a, b) = (lossy(), lossy());
        let a = Endpoint::new(&a.create_pd().unwrap(), config.clone(), None).unwrap();
        let b = Endpoint::new(&b.create_pd().unwrap(), config, None).unwrap();
        let (of_a, of_b) = (a.description(), b.description());
        let sides = [a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap()].map(|connection| {
            std::thread::spawn(move || {
                let mut connection = Blocking::new(connection);
                connection.send(b"hello").unwrap();
                connection.get_mut().close();
                assert_eq!(&*connection.receive().unwrap(), b"hello");
                assert_eq!(connection.receive().unwrap_err(), ConnectionError::PeerClosed);
                connection.close()
            })
        });
        for side in sides {
            side.join().unwrap().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

#[test]
fn a_silent_peer_that_dies_is_noticed() {
    let config = Config::default().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(20));
    let (a, b) = pair(config.clone(), config);
    drop(b);
    let error = Blocking::new(a).receive().unwrap_err();
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
}

/// The peer does not poll, and flow control is off. The peer's RNIC answers with RNR NAKs forever. RNR retries are
/// unlimited, so these NAKs are no error. The connection must continue and log one warning.
#[test]
fn a_stalled_connection_is_logged_once() {
    let told = Told::default();
    let subscriber = tracing_subscriber::fmt().with_writer(told.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, || {
        let config = Config::default().window(64).credits(false).depth(4).keepalive(Duration::from_millis(2));
        let (mut a, mut b) = pair(config.clone(), config);
        let device = a.qp().pd().device().clone();
        const MESSAGES: u64 = 64; // the size of the window, and more than the number of the peer's receives
        (0..MESSAGES).for_each(|_| assert!(matches!(a.send(b"hello").unwrap(), Submit::Accepted(_))));
        while device.counters().unwrap().rnr_nak_received == 0 {
            a.poll().unwrap();
        }
        a.poll().unwrap(); // takes the acknowledgements
        told.0.lock().unwrap().clear(); // a busy machine may have caused earlier warnings
        let start_ns = device.now_ns();
        while told.text().is_empty() {
            a.poll().unwrap();
            assert!(device.now_ns() < start_ns + 60_000_000_000, "no warning was logged");
        }
        let until_ns = device.now_ns() + 100_000_000;
        while device.now_ns() < until_ns {
            a.poll().unwrap();
        }
        assert!(a.last_done() < MESSAGES);
        assert_eq!(told.text().matches("makes no progress").count(), 1, "{}", told.text());
        for _ in 0..MESSAGES {
            while b.receive().unwrap().is_none() {
                a.poll().unwrap();
            }
        }
        while a.last_done() < MESSAGES {
            a.poll().unwrap();
        }
    });
}

/// Two connected ends on a virtual network. Their acknowledgement timeouts never expire, so a peer's RNIC may be
/// silent for any time. The second end has shared receives if `shared` is true.
fn on_virtual_network(network: &VirtualNetwork, shared: bool) -> [Connection; 2] {
    let config = Config::default().timeout_exponent(0).keepalive(Duration::from_secs(1));
    let endpoint = |last: u8, shared: bool| {
        let options = SoftOptions { publish: false, ..SoftOptions::default() };
        let pd = network.open([10, 0, 0, last].into(), &options).unwrap().create_pd().unwrap();
        if !shared {
            return Endpoint::new(&pd, config.clone(), None).unwrap();
        }
        let (depth, max_message) = (config.depth, config.max_message);
        let options = SharedOptions { depth, connections: 1, max_message, reposting: Reposting::Locked };
        Endpoint::sharing(&SharedReceives::new(&pd, options).unwrap(), config.clone(), None).unwrap()
    };
    let (a, b) = (endpoint(1, false), endpoint(2, shared));
    let (of_a, of_b) = (a.description(), b.description());
    [a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap()]
}

/// Polls both ends and moves the clock until `done` returns true.
fn exchange_until(network: &VirtualNetwork, ends: &mut [Connection; 2], done: impl Fn(&mut [Connection; 2]) -> bool) {
    for _ in 0..1000 {
        for end in ends.iter_mut() {
            end.poll().unwrap();
        }
        if done(ends) {
            return;
        }
        network.drive();
        network.advance_to(network.now_ns() + 1_000);
    }
    panic!("the ends do not finish: {ends:?}");
}

/// A sender at a low rate does not poll for 24000 s. The silence of the peer's RNIC begins with the keepalive.
#[test]
fn time_without_polls_is_no_silence_of_the_peer() {
    const ASKED_NS: u64 = 24_000_000_000_000;
    const STANDSTILL_NS: u64 = 10_000_000_000;
    let told = Told::default();
    let subscriber = tracing_subscriber::fmt().with_writer(told.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, || {
        let network = VirtualNetwork::new(MemoryOptions::default());
        let [mut a, _b] = on_virtual_network(&network, false);
        // The peer's device gets no time to answer.
        for at_ns in [ASKED_NS, ASKED_NS + STANDSTILL_NS - 1] {
            network.advance_to(at_ns);
            (0..3).for_each(|_| assert!(!a.poll().unwrap()));
            assert_eq!((a.keepalives(), a.poll_timeout_ns()), (1, Some(ASKED_NS + STANDSTILL_NS)));
            assert!(!told.text().contains("has not answered"), "{}", told.text());
        }
        network.advance_to(ASKED_NS + STANDSTILL_NS);
        a.poll().unwrap();
        assert!(told.text().contains("the peer's RNIC has not answered for 10.0 s"), "{}", told.text());
        assert_eq!(a.poll_timeout_ns(), None);
    });
}

/// The peer sends its goodbye, and its RNIC then answers nothing, as that of a process that has ended. `rdma_rxe`
/// retries forever in this state. The bound also holds if the silence was noticed before the close.
#[test]
fn a_peer_that_is_gone_after_its_goodbye_does_not_hold_a_close_forever() {
    for noticed_before in [false, true] {
        let told = Told::default();
        let subscriber = tracing_subscriber::fmt().with_writer(told.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            let network = VirtualNetwork::new(MemoryOptions::default());
            let mut ends = on_virtual_network(&network, false);
            ends[1].close();
            exchange_until(&network, &mut ends, |[a, b]| a.is_peer_closed() && b.is_closed());
            // The peer's device gets no time from here on.
            let [mut a, _b] = ends;
            while noticed_before && let Some(at_ns) = a.poll_timeout_ns() {
                network.advance_to(at_ns);
                a.poll().unwrap();
            }
            assert_eq!(told.text().contains("has not answered for 10.0 s"), noticed_before, "{}", told.text());
            a.close();
            a.poll().unwrap(); // sends the goodbye
            let mut moved = false;
            while !a.is_closed() {
                network.advance_to(a.poll_timeout_ns().expect("the close has a deadline"));
                moved = a.poll().unwrap();
            }
            assert!(moved, "callers that sleep do not notice the end of the close");
            assert_eq!(a.keepalives(), 1);
            assert!(told.text().contains("has not acknowledged the goodbye for 10.0 s"), "{}", told.text());
        });
    }
}

/// After both goodbyes a queue pair acknowledges until it is destroyed, unless it would take shared receives. A message
/// that the program holds keeps the queue pair alive here.
#[test]
fn a_connection_that_has_closed_in_peace_acknowledges_until_its_end() {
    for shared in [false, true] {
        let network = VirtualNetwork::new(MemoryOptions::default());
        let mut ends = on_virtual_network(&network, shared);
        ends[0].send(b"held").unwrap();
        ends.iter_mut().for_each(Connection::close);
        exchange_until(&network, &mut ends, |ends| ends.iter().all(|end| end.is_peer_closed() && end.is_closed()));
        let [mut a, mut b] = ends;
        let held = b.receive().unwrap().expect("a message");
        drop(b);
        a.poll().unwrap(); // finds nothing, and reads the clock
        network.advance_to(a.poll_timeout_ns().unwrap());
        a.poll().unwrap();
        assert_eq!(a.keepalives(), 1);
        for _ in 0..100 {
            network.drive();
            network.advance_to(network.now_ns() + 1_000);
        }
        a.poll().unwrap(); // takes the answer
        a.poll().unwrap(); // finds nothing, and reads the clock
        let is_answered = a.poll_timeout_ns() == Some(network.now_ns() + 1_000_000_000);
        assert_eq!(is_answered, !shared, "with shared receives: {shared}");
        assert_eq!(&*held, b"held");
    }
}

/// Text of the log.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Told {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Told {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Told {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
