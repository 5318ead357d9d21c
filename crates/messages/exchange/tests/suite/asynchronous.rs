//! Tests of tasks that wait for connections: deadlines, death of the peer, and shared channels.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::bare::config;
use crate::common::wire;
use doorbell_exchange::asynchronous::{Async, Waiter};
use doorbell_exchange::{Config, ConnectionError, Connector, MessageConnection, SendReceive, Submit};
use doorbell_verbs::{Channel, Device};

type Connection = <SendReceive as Connector>::Connection;

/// Returns a connection whose notifications come on `channel`, and the connection of its peer.
fn pair(devices: &[Device; 2], channel: &Channel, config: &Config) -> (Connection, Connection) {
    let end = |index: usize, channel| {
        SendReceive.endpoint(&devices[index].create_pd().unwrap(), config, channel).expect("an endpoint")
    };
    let (a, b) = (end(0, Some(channel)), end(1, None));
    let (of_a, of_b) = (a.description(), b.description());
    (a.connect(&of_b).unwrap(), b.connect(&of_a).unwrap())
}

/// A waiter that blocks the thread until a notification arrives or the deadline passes.
struct Asleep;

impl Waiter for Asleep {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        let deadline_ns = deadline_ns.expect("a sleeping waiter gets a deadline");
        let channel = channel.expect("the connection has a channel");
        channel.wait(Some(channel.device().time_until(deadline_ns))).unwrap();
    }

    fn wants_notification(&self) -> bool {
        true
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

#[test]
fn a_task_that_sleeps_notices_that_its_peer_died() {
    let devices = wire::devices();
    let channel = devices[0].create_channel().unwrap();
    let config = config().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(20));
    let (a, b) = pair(&devices, &channel, &config);
    drop(b);
    let mut a = Async::new(a, Asleep);
    let error = block_on(a.receive()).unwrap_err();
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
}

#[test]
fn close_reports_a_dead_peer() {
    let devices = wire::devices();
    let channel = devices[0].create_channel().unwrap();
    let hasty = config().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(20));
    let (a, b) = pair(&devices, &channel, &hasty);
    drop(b);
    let mut a = Async::new(a, Asleep);
    let died = block_on(a.receive()).unwrap_err();
    assert_eq!(block_on(a.close()), Err(died));
    // If the peer has sent its goodbye, `progress` returns Ok, and earlier messages of the peer can still be taken.
    let (a, mut b) = pair(&devices, &channel, &config());
    let mut a = Async::new(a, Asleep);
    b.close();
    while !b.is_closed() {
        b.poll().unwrap();
        devices[0].drive();
    }
    assert_eq!(block_on(a.close()), Ok(()));
}

/// A waiter that sleeps until its waker is called. The test sets `looks` to make the waiter check the descriptor.
struct Asked<'a> {
    looks: &'a Cell<bool>,
}

impl Waiter for Asked<'_> {
    async fn wait(&self, channel: Option<&Channel>, _: Option<u64>) {
        poll_fn(|_| {
            match self.looks.get() && channel.is_some_and(|channel| channel.wait(Some(Duration::ZERO)).unwrap()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn wants_notification(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Two tasks sleep on one channel. The first task that wakes takes the notifications of both tasks, so the descriptor
/// is not readable any more. The first task must therefore wake the second task.
#[test]
fn a_task_that_takes_anothers_notification_wakes_it() {
    let devices = wire::devices();
    let channel = devices[0].create_channel().unwrap();
    let ((a, mut of_a), (b, mut of_b)) = (pair(&devices, &channel, &config()), pair(&devices, &channel, &config()));
    let (a_looks, b_looks) = (Cell::new(true), Cell::new(false));
    let (mut a, mut b) = (Async::new(a, Asked { looks: &a_looks }), Async::new(b, Asked { looks: &b_looks }));
    let woken = [Arc::<Woken>::default(), Arc::default()];
    let wakers = [Waker::from(Arc::clone(&woken[0])), Waker::from(Arc::clone(&woken[1]))];
    {
        let (mut a, mut b) = (pin!(a.receive()), pin!(b.receive()));
        let sleeps = |task: Pin<&mut dyn Future<Output = _>>, waker: &Waker| {
            task.poll(&mut Context::from_waker(waker)).map(|result: Result<_, ConnectionError>| result.unwrap())
        };
        assert!(sleeps(a.as_mut(), &wakers[0]).is_pending());
        assert!(sleeps(b.as_mut(), &wakers[1]).is_pending());
        for peer in [&mut of_a, &mut of_b] {
            let Submit::Accepted(id) = peer.send(b"hello").unwrap() else { panic!("the message was not accepted") };
            while !peer.is_done(id) {
                peer.poll().unwrap();
                devices[0].drive();
            }
        }
        let Poll::Ready(message) = sleeps(a.as_mut(), &wakers[0]) else { panic!("the task has no notification") };
        assert_eq!(&*message, b"hello");
        assert!(!channel.wait(Some(Duration::ZERO)).unwrap(), "the descriptor is still readable");
        assert_eq!(woken[1].0.load(Ordering::Relaxed), 1, "the second task was not woken");
        let Poll::Ready(message) = sleeps(b.as_mut(), &wakers[1]) else {
            panic!("the second task has no notification")
        };
        assert_eq!(&*message, b"hello");
    }
    // A notification must not wake a task that no longer sleeps.
    let Submit::Accepted(_) = of_b.send(b"again").unwrap() else { panic!("the message was not accepted") };
    assert_eq!(woken[1].0.load(Ordering::Relaxed), 1);
}

/// If both halves wait, one half drives. When the future of the driving half is dropped, the other half wakes and
/// drives.
#[test]
fn dropping_a_waiting_half_lets_the_other_drive() {
    let devices = wire::devices();
    let channel = devices[0].create_channel().unwrap();
    let (a, mut of_a) = pair(&devices, &channel, &config());
    let looks = Cell::new(true);
    let (mut send, mut receive) = Async::new(a, Asked { looks: &looks }).split();
    let woken = [Arc::<Woken>::default(), Arc::default()];
    let wakers = [Waker::from(Arc::clone(&woken[0])), Waker::from(Arc::clone(&woken[1]))];
    let id = block_on(send.send(b"question")).unwrap();
    {
        let mut done = pin!(send.wait(id));
        {
            let mut arrived = pin!(receive.receive());
            assert!(arrived.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
            assert!(done.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
            while of_a.take().is_none() {
                of_a.poll().unwrap();
                devices[0].drive();
            }
            let Submit::Accepted(answer) = of_a.send(b"answer").unwrap() else {
                panic!("the message was not accepted")
            };
            while !of_a.is_done(answer) {
                of_a.poll().unwrap();
                devices[0].drive();
            }
        }
        assert_eq!(woken[1].0.load(Ordering::Relaxed), 1, "the other half was not woken to drive");
        let Poll::Ready(result) = done.as_mut().poll(&mut Context::from_waker(&wakers[1])) else {
            panic!("the acknowledgement is missing")
        };
        result.unwrap();
    }
    let message = block_on(receive.receive()).unwrap();
    assert_eq!(&*message, b"answer", "a message that came while no task waited is lost");
}

#[test]
fn both_halves_report_the_same_peer_death() {
    let devices = wire::devices();
    let channel = devices[0].create_channel().unwrap();
    let hasty = config().timeout_exponent(8).retry_count(1).keepalive(Duration::from_millis(20));
    let (a, b) = pair(&devices, &channel, &hasty);
    drop(b);
    let (mut send, mut receive) = Async::new(a, Asleep).split();
    let died = block_on(receive.receive()).unwrap_err();
    assert!(matches!(died, ConnectionError::PeerUnreachable(_)), "{died}");
    assert_eq!(block_on(send.send(b"hello")), Err(died));
    assert_eq!(block_on(send.close()), Err(died));
}
