//! Tests of connections of tasks: many connections in one runtime, split connections, cancellation, and peers that are
//! no clients.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use doorbell::exchange::setup::{self, SetupError};
use doorbell::{
    AcceptError, Config, ConnectError, ConnectionError, Device, EstablishError, Options, Tokio, TokioListener,
};
use doorbell_testing::strangers;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Time limit of one step of a test, longer than any step takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(50);

fn tokio_device() -> Tokio {
    Device::open().unwrap_or_else(|error| panic!("{error}")).on_tokio().unwrap()
}

async fn listener(options: Options) -> (TokioListener, SocketAddr) {
    let listener = tokio_device().listen("127.0.0.1:0", options).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns options with small buffers, for many connections.
fn small() -> Options {
    Options::default().config(Config::default().window(2).depth(2).max_message(64))
}

/// Opens a thousand connections at the same time.
#[test]
fn a_thousand_connections_in_one_runtime() {
    const CONNECTIONS: u32 = 1000;
    /// Maximum number of connections that are set up at the same time. The backlog of a listener is at most 128 on some
    /// machines.
    const AT_ONCE: usize = 64;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (listener, address) = listener(small()).await;
        let mut server = JoinSet::new();
        let accepting = tokio::spawn(async move {
            for _ in 0..CONNECTIONS {
                let mut connection = listener.accept(PATIENCE).await.unwrap();
                server.spawn(async move {
                    while let Ok(message) = connection.receive().await {
                        connection.send(&message).await.unwrap();
                    }
                    connection.close().await.unwrap();
                });
            }
            server
        });
        let device = tokio_device();
        let (turns, mut connections) = (std::sync::Arc::new(tokio::sync::Semaphore::new(AT_ONCE)), JoinSet::new());
        for number in 0..CONNECTIONS {
            let (device, turns) = (device.clone(), turns.clone());
            connections.spawn(async move {
                let _turn = turns.acquire().await.unwrap();
                (number, device.connect(address, small(), PATIENCE).await.unwrap())
            });
        }
        let mut open = connections.join_all().await;
        let mut server = accepting.await.unwrap();
        assert_eq!(open.len(), 1000);
        for round in 0..3_u32 {
            let mut rounds = JoinSet::new();
            for (number, mut connection) in open {
                rounds.spawn(async move {
                    let message = (number * 3 + round).to_be_bytes();
                    connection.send(&message).await.unwrap();
                    assert_eq!(*connection.receive().await.unwrap(), message);
                    (number, connection)
                });
            }
            open = rounds.join_all().await;
        }
        let mut closing = JoinSet::new();
        for (_, connection) in open {
            closing.spawn(connection.finish());
        }
        while let Some(closed) = closing.join_next().await {
            closed.unwrap().unwrap();
        }
        while let Some(served) = server.join_next().await {
            served.unwrap();
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_in_two_tasks_exchange_messages() {
    const MESSAGES: u64 = 2000;
    async fn both_ways(connection: doorbell::Async<doorbell::exchange::TokioWaiter>) {
        let (mut send, mut receive) = connection.split();
        let sender = tokio::spawn(async move {
            for number in 0..MESSAGES {
                send.send(&number.to_be_bytes()).await.unwrap();
            }
            send.close().await.unwrap();
        });
        for number in 0..MESSAGES {
            assert_eq!(*receive.receive().await.unwrap(), number.to_be_bytes());
        }
        assert_eq!(receive.receive().await.map(drop), Err(ConnectionError::PeerClosed));
        sender.await.unwrap();
    }
    let (listener, address) = listener(small()).await;
    let client = tokio::spawn(async move {
        let connection = tokio_device().connect(address, small(), PATIENCE).await.unwrap();
        both_ways(connection).await;
    });
    both_ways(listener.accept(PATIENCE).await.unwrap()).await;
    client.await.unwrap();
}

#[tokio::test]
async fn a_cancelled_receive_loses_no_message() {
    let (listener, address) = listener(small()).await;
    let device = tokio_device();
    let (server, client) = tokio::join!(listener.accept(PATIENCE), device.connect(address, small(), PATIENCE));
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    let sender = tokio::spawn(async move {
        for number in 0..200_u64 {
            client.send(&number.to_be_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        client.finish().await
    });
    let mut expected = 0_u64;
    while expected < 200 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {} // drops the future of the other branch
            message = server.receive() => {
                assert_eq!(*message.unwrap(), expected.to_be_bytes());
                expected += 1;
            }
        }
        // The loop below receives the remaining messages by a half of the split connection.
        if expected == 100 {
            break;
        }
    }
    let (send, mut receive) = server.split();
    while expected < 200 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            message = receive.receive() => {
                assert_eq!(*message.unwrap(), expected.to_be_bytes());
                expected += 1;
            }
        }
    }
    send.close().await.unwrap();
    assert_eq!(receive.receive().await.map(drop), Err(ConnectionError::PeerClosed));
    sender.await.unwrap().unwrap();
}

/// Drops the half that waits for notifications. The other half must then wait for notifications itself.
#[tokio::test]
async fn a_cancelled_half_lets_the_other_drive() {
    let (listener, address) = listener(small()).await;
    let device = tokio_device();
    let (server, client) = tokio::join!(listener.accept(PATIENCE), device.connect(address, small(), PATIENCE));
    let (server, mut client) = (server.unwrap(), client.unwrap());
    let (mut send, mut receive) = server.split();
    let receiving = tokio::spawn(async move { receive.receive().await.map(drop) });
    tokio::task::yield_now().await;
    // The sender soon has no credits left, and must then wait for a notification.
    let sending = tokio::spawn(async move {
        for _ in 0..20 {
            send.send(b"more than the peer takes").await.unwrap();
        }
        send
    });
    tokio::task::yield_now().await;
    receiving.abort();
    assert!(receiving.await.unwrap_err().is_cancelled());
    for _ in 0..20 {
        client.receive().await.unwrap();
    }
    sending.await.unwrap().close().await.unwrap();
    assert_eq!(client.receive().await.map(drop), Err(ConnectionError::PeerClosed));
}

#[tokio::test]
async fn invalid_clients_do_not_affect_the_listener() {
    let (mut listener, address) = listener(small()).await;
    listener.set_client_deadline(SHORT);
    assert!(matches!(listener.accept(SHORT).await.unwrap_err(), AcceptError::Deadline(SHORT)));
    let mut garbage = tokio::net::TcpStream::connect(address).await.unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let error = listener.accept(PATIENCE).await.unwrap_err();
    let is_garbage = |error: &SetupError| matches!(error, SetupError::NotDoorbell { .. });
    assert!(
        matches!(&error, AcceptError::Client { error: EstablishError::Setup(error), .. } if is_garbage(error)),
        "{error}"
    );
    let _silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let error = listener.accept(PATIENCE).await.unwrap_err();
    let is_late = |error: &SetupError| matches!(error, SetupError::Deadline { .. });
    assert!(
        matches!(&error, AcceptError::Client { error: EstablishError::Setup(error), .. } if is_late(error)),
        "{error}"
    );
    listener.set_client_deadline(PATIENCE);
    let device = tokio_device();
    let (server, client) = tokio::join!(listener.accept(PATIENCE), device.connect(address, small(), PATIENCE));
    client.unwrap().send(b"a client at last").await.unwrap();
    assert_eq!(&*server.unwrap().receive().await.unwrap(), b"a client at last");
}

#[tokio::test]
async fn silent_peers_do_not_delay_clients() {
    let (listener, address) = listener(small()).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let device = tokio_device();
    let accept = async {
        // More peers arrived than the listener has room for, so the listener evicted some peers.
        loop {
            match listener.accept(PATIENCE).await {
                Ok(server) => break server,
                Err(AcceptError::Client { error: EstablishError::Evicted { .. }, .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let (mut server, client) = tokio::join!(accept, device.connect(address, small(), PATIENCE));
    client.unwrap().send(b"served").await.unwrap();
    assert_eq!(&*server.receive().await.unwrap(), b"served");
}

#[tokio::test]
async fn a_client_is_served_beside_strangers() {
    let (listener, address) = listener(small()).await;
    let beside = tokio::task::spawn_blocking(move || {
        strangers::beside(&address.to_string(), &setup::hello(&[]), || {
            let device = Device::open().unwrap_or_else(|error| panic!("{error}"));
            let mut client = device.connect(address, small(), PATIENCE).unwrap();
            client.send(b"a question").unwrap();
            assert_eq!(&*client.receive().unwrap(), b"a question");
        });
    });
    let mut server = loop {
        match listener.accept(PATIENCE).await {
            Ok(server) => break server,
            Err(AcceptError::Client { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let question = server.receive().await.unwrap();
    server.send(&question).await.unwrap();
    beside.await.unwrap();
}

#[tokio::test]
async fn deadlines_and_refusals_are_errors() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let error = tokio_device().connect(address, small(), SHORT).await.unwrap_err();
    assert!(matches!(error, ConnectError::Server(EstablishError::Setup(SetupError::Deadline { .. }))), "{error}");
    drop(silent);
    let error = tokio_device().connect(address, small(), PATIENCE).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_task_that_sleeps_notices_that_its_peer_died() {
    let config = Config::default().timeout(Duration::from_millis(1)).retry_count(1);
    let options = Options::default().config(config.keepalive(Duration::from_millis(20)));
    let (listener, address) = listener(options.clone()).await;
    let device = tokio_device();
    let (server, client) = tokio::join!(listener.accept(PATIENCE), device.connect(address, options, PATIENCE));
    drop(client.unwrap());
    let mut server = server.unwrap();
    tokio::select! {
        error = server.receive() => {
            let error = error.map(drop).unwrap_err();
            assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
        }
        () = pending() => {}
    }
}
