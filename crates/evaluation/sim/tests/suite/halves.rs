//! Connections that are split into two halves. Each half runs in a separate simulated thread, and the threads wait for
//! the lock of the connection.

use std::time::Duration;

use doorbell_exchange::asynchronous::{Async, LockObserver, Waiter};
use doorbell_exchange::{Config, Connector, Received, SendReceive, with_connector};
use doorbell_protocols::Protocol;
use doorbell_sim::{Ps, Simulation, Summary, Topology, VirtualWaiter, testbed};
use doorbell_verbs::{Access, Channel, MemoryKind};

const MESSAGES: u64 = 400;
const LENGTH: usize = 16;

fn simulation<'a>() -> Simulation<'a> {
    let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
    Simulation::new(t1, Topology::Pair, 1).expect("a simulation")
}

/// Waiter in virtual time that does not observe the lock of a split connection.
#[derive(Clone)]
struct Unobserved(VirtualWaiter);

impl Waiter for Unobserved {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        self.0.wait(channel, deadline_ns).await;
    }

    fn wants_notification(&self) -> bool {
        self.0.wants_notification()
    }

    async fn breathe(&self) {
        self.0.breathe().await;
    }
}

/// Sends messages in both directions. Each end is split into two halves with separate threads.
fn both_ways<P: Connector, W: Waiter + Clone + 'static>(protocol: &P, waiter: impl Fn(VirtualWaiter) -> W) -> Summary
where
    P::Connection: 'static,
{
    let mut simulation = simulation();
    let config = Config::unbatched().keepalive(Duration::ZERO).max_message(64);
    let ends = [0, 1].map(|node| {
        let pd = simulation.device(node).create_pd().expect("the device has room");
        protocol.endpoint(&pd, &config, None).expect("the device has room")
    });
    let descriptions = ends.each_ref().map(|end| protocol.describe(end));
    let mut received = Vec::new();
    for (node, end) in ends.into_iter().enumerate() {
        let connection = protocol.connect(end, &descriptions[1 - node]).expect("both ends connect");
        let waiter = waiter(simulation.polling());
        let (mut send, mut receive) = Async::new(connection, waiter.clone()).split();
        let breathes = waiter.clone();
        simulation.spawn(node, format!("sender {node}"), async move {
            for number in 0..MESSAGES {
                send.send(&[number as u8; LENGTH]).await.expect("the message is sent");
                breathes.breathe().await;
            }
            send.close().await.expect("the peer has received all messages");
        });
        received.push(simulation.spawn(node, format!("receiver {node}"), async move {
            let mut count = 0;
            while let Ok(message) = receive.receive().await {
                assert_eq!(message.to_vec(), [count as u8; LENGTH]);
                drop(message);
                count += 1;
                waiter.breathe().await;
            }
            count
        }));
    }
    let summary = simulation.run().unwrap_or_else(|error| panic!("{}: {error}", protocol.protocol().name()));
    for count in received {
        assert_eq!(count.take(), Some(MESSAGES), "{}", protocol.protocol().name());
    }
    summary
}

#[test]
fn halves_of_every_protocol_carry_messages_both_ways_at_once() {
    for protocol in Protocol::ALL {
        with_connector!(protocol, connector => both_ways(&connector, |waiter| waiter));
    }
}

#[test]
fn halves_wait_for_their_shared_lock() {
    let with = both_ways(&SendReceive, |waiter| waiter);
    let without = both_ways(&SendReceive, Unobserved);
    assert!(with.ended > without.ended, "{} with the lock, {} without", with.ended, without.ended);
    let worked = |summary: &Summary| -> Ps { summary.threads.iter().map(|thread| thread.worked).sum() };
    assert!(worked(&with) > worked(&without), "a thread that waits for a lock spins");
}

#[test]
fn a_thread_waits_until_the_holder_releases_the_lock() {
    /// Bytes that each thread copies while it holds the lock.
    const BYTES: usize = 10_000;
    let mut simulation = simulation();
    let pd = simulation.device(0).create_pd().expect("the device has room");
    let regions =
        [(); 3].map(|()| pd.allocate(BYTES, Access::empty(), MemoryKind::Plain).expect("the device has room"));
    let waiter = simulation.polling();
    let lock = waiter.observe_lock().expect("a simulated thread waits for locks");
    let lock: &'static dyn LockObserver = Box::leak(lock);
    let mut held = Vec::new();
    for (number, region) in regions.into_iter().enumerate() {
        let waiter = waiter.clone();
        held.push(simulation.spawn(0, format!("thread {number}"), async move {
            // The third thread takes the lock after the other threads have finished.
            let begin_ns = if number == 2 { 10_000 } else { 100 + number as u64 };
            waiter.wait(None, Some(begin_ns)).await;
            let came = waiter.now();
            lock.taken();
            let began = waiter.now();
            region.copy_in(0, &[1; BYTES]);
            lock.released();
            (came, began, waiter.now())
        }));
    }
    simulation.run().expect("the simulation ends");
    let times: Vec<_> = held.iter().map(|thread| thread.take().expect("the thread has ended")).collect();
    let (first, second, third) = (times[0], times[1], times[2]);
    assert!(first.2 > second.0, "the second thread comes while the first thread has the lock: {times:?}");
    assert_eq!(second.1, first.2, "{times:?}");
    assert!(second.2 - second.1 >= first.2 - first.1, "{times:?}");
    assert_eq!(third.0, third.1, "the third thread finds the lock free: {times:?}");
}
