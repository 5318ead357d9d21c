//! Tests of the waiter for tokio: cancel safety, deadlines, and connections that share a channel.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use doorbell_exchange::asynchronous::Async;
use doorbell_exchange::{Config, ConnectionError, Connector, MessageConnection, SendReceive, TokioWaiter};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Channel, Device};
use tokio::task::LocalSet;
use tokio::time::timeout;

/// Time limit of a test, longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout that is short enough to drop many futures before they are complete.
const HASTE: Duration = Duration::from_micros(200);

type Task = Async<TokioWaiter>;

/// A device with a completion channel, and a waiter that is registered with the current runtime.
struct Node {
    device: Device,
    channel: Channel,
    waiter: TokioWaiter,
}

impl Node {
    fn new() -> Self {
        let device = soft::open(&SoftOptions::default()).unwrap();
        let channel = device.create_channel().unwrap();
        let waiter = TokioWaiter::new(&channel).unwrap();
        Self { device, channel, waiter }
    }

    fn endpoint(&self, config: &Config) -> <SendReceive as Connector>::Endpoint {
        SendReceive.endpoint(&self.device.create_pd().unwrap(), config, Some(&self.channel)).unwrap()
    }
}

fn connected(nodes: [&Node; 2], config: &Config) -> [Task; 2] {
    let [a, b] = nodes.map(|node| node.endpoint(config));
    let (of_a, of_b) = (a.description(), b.description());
    let connections = [a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap()];
    let mut waiters = nodes.map(|node| node.waiter.clone()).into_iter();
    connections.map(|connection| Async::new(connection, waiters.next().unwrap()))
}

fn config() -> Config {
    Config::default().window(4).depth(4).max_message(64)
}

/// Runs a test in a tokio runtime of one thread.
fn in_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime
        .block_on(async { timeout(PATIENCE, LocalSet::new().run_until(test)).await.expect("the test ends in time") });
}

#[test]
fn receives_that_are_dropped_lose_no_message() {
    in_runtime(async {
        let nodes = [Node::new(), Node::new()];
        let [mut a, mut b] = connected([&nodes[0], &nodes[1]], &config());
        let wanted = Rc::new(Cell::new(0));
        let asked = Rc::clone(&wanted);
        let sender = tokio::task::spawn_local(async move {
            for number in 0..50_u32 {
                while asked.get() <= number {
                    tokio::task::yield_now().await;
                }
                a.send(&number.to_be_bytes()).await.unwrap();
            }
            a.finish().await.unwrap();
        });
        for number in 0..50_u32 {
            let dropped = timeout(HASTE, b.receive()).await;
            assert!(dropped.is_err(), "no message is sent yet, so this wait is dropped");
            wanted.set(number + 1);
            // The timeout drops futures while a message is in flight.
            let message = loop {
                if let Ok(message) = timeout(HASTE, b.receive()).await {
                    break message.unwrap();
                }
            };
            assert_eq!(message.to_vec(), number.to_be_bytes());
        }
        b.finish().await.unwrap();
        sender.await.unwrap();
    });
}

/// Drops futures of both halves of one end.
#[test]
fn halves_with_dropped_futures_deliver_each_message_once() {
    in_runtime(async {
        let nodes = [Node::new(), Node::new()];
        let [a, mut b] = connected([&nodes[0], &nodes[1]], &config());
        let (mut send, mut receive) = a.split();
        let echo = tokio::task::spawn_local(async move {
            loop {
                match b.receive().await {
                    Ok(message) => b.send(&message).await.map(drop).unwrap(),
                    Err(ConnectionError::PeerClosed) => return b.close().await.unwrap(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let sending = tokio::task::spawn_local(async move {
            for number in 0..200_u32 {
                // A dropped send future has sent no message, so the loop sends the message again.
                while timeout(HASTE, send.send(&number.to_be_bytes())).await.map(Result::unwrap).is_err() {}
            }
            send.close().await.unwrap();
        });
        for number in 0..200_u32 {
            let message = loop {
                if let Ok(message) = timeout(HASTE, receive.receive()).await {
                    break message.unwrap();
                }
            };
            assert_eq!(message.to_vec(), number.to_be_bytes());
        }
        sending.await.unwrap();
        assert_eq!(receive.receive().await.map(|message| message.to_vec()), Err(ConnectionError::PeerClosed));
        echo.await.unwrap();
    });
}

#[test]
fn many_connections_of_one_channel_are_each_woken() {
    in_runtime(async {
        let nodes = [Node::new(), Node::new()];
        let tasks: Vec<_> = (0..16_u32)
            .map(|number| {
                let [mut a, mut b] = connected([&nodes[0], &nodes[1]], &config());
                let answering = tokio::task::spawn_local(async move {
                    for _ in 0..20 {
                        let message = b.receive().await.unwrap();
                        b.send(&message).await.unwrap();
                    }
                    b.finish().await.unwrap();
                });
                tokio::task::spawn_local(async move {
                    for round in 0..20_u32 {
                        let bytes = (number * 1000 + round).to_be_bytes();
                        a.send(&bytes).await.unwrap();
                        assert_eq!(a.receive().await.unwrap().to_vec(), bytes);
                    }
                    a.finish().await.unwrap();
                    answering.await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// If a peer dies without a packet, only the keepalive detects its death, so the sleeping task must wake at the
/// deadline of the keepalive.
#[test]
fn a_task_that_sleeps_in_tokio_notices_that_its_peer_died() {
    in_runtime(async {
        let nodes = [Node::new(), Node::new()];
        let hasty = config().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(20));
        let [mut a, b] = connected([&nodes[0], &nodes[1]], &hasty);
        drop(b);
        let error = a.receive().await.map(|message| message.to_vec()).unwrap_err();
        assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
        assert!(a.get().keepalives() > 0);
    });
}
