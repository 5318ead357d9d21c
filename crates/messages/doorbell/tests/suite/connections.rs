//! Tests of listening and connecting: errors, every protocol, and connections in two halves.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use doorbell::exchange::direct_read::Acknowledge;
use doorbell::exchange::protocols::Protocol;
use doorbell::exchange::setup::{self, EndpointDescription, SetupError};
use doorbell::exchange::{self, with_connector};
use doorbell::verbs::{PathMtu, Psn, QpCapacities, Qpn};
use doorbell::{
    AcceptError, Blocking, Config, ConnectError, ConnectionError, Connector, Device, DirectRead, EstablishError,
    MessageConnection, Options, QueuePairError, Received, SendReceive,
};
use doorbell_testing::strangers;

/// Time limit of one step of a test, longer than any step takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Deadline of calls that must fail at their deadline.
const SHORT: Duration = Duration::from_millis(50);

type Connection = exchange::send_receive::Connection;

fn device() -> Device {
    Device::open().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the server's end and the client's end of a connection.
fn pair<P>(options: Options<P>) -> (Blocking<P::Connection>, Blocking<P::Connection>)
where
    P: Connector + Clone + Send + 'static,
    P::Connection: Send,
{
    let listener = device().listen("127.0.0.1:0", options.clone()).unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || device().connect(address, options, PATIENCE).unwrap());
    (listener.accept(PATIENCE).unwrap(), client.join().unwrap())
}

/// Returns options with a short timeout, so that a connection soon notices the death of its peer.
fn hasty() -> Options {
    let config = Config::default().timeout(Duration::from_millis(1)).retry_count(1);
    Options::default().config(config.keepalive(Duration::from_millis(20)))
}

#[test]
fn every_protocol_listens_and_connects() {
    for protocol in Protocol::ALL {
        with_connector!(protocol, connector => {
            for options in [Options::of(connector), Options::of(connector).busy_poll()] {
                let (mut server, mut client) = pair(options.config(Config::default().window(4).depth(4)));
                let server = thread::spawn(move || {
                    let question = server.receive().unwrap().to_vec();
                    server.send(&question).unwrap();
                    server.finish()
                });
                client.send(b"a question").unwrap();
                assert_eq!(client.receive().unwrap().to_vec(), b"a question", "{protocol}");
                client.finish().unwrap();
                server.join().unwrap().unwrap();
            }
        });
    }
}

#[test]
fn connect_fails_without_a_listener() {
    // The test needs a port without a listener. While a TCP connection is open, no process can listen on its local
    // port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = elsewhere.local_addr().unwrap();
    let error = device().connect(address, Options::default(), PATIENCE).unwrap_err();
    let ConnectError::Unreachable { server, error } = error else { panic!("{error}") };
    assert_eq!((server, error.kind()), (address, std::io::ErrorKind::ConnectionRefused));
    let error = device().connect("nowhere", Options::default(), PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectError::Address(_)), "{error}");
}

#[test]
fn a_second_listener_on_an_address_is_rejected() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let error = device().listen(address, Options::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
}

#[test]
fn accept_reports_an_expired_deadline() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let error = listener.accept(SHORT).unwrap_err();
    assert!(matches!(error, AcceptError::Deadline(SHORT)), "{error}");
    assert_eq!(error.to_string(), "no client came within 0.05 s");
}

#[test]
fn connect_gives_up_on_a_silent_server() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = device().connect(silent.local_addr().unwrap(), Options::default(), SHORT).unwrap_err();
    assert!(matches!(error, ConnectError::Server(EstablishError::Setup(SetupError::Deadline { .. }))), "{error}");
}

#[test]
fn invalid_clients_do_not_affect_the_listener() {
    let mut listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    listener.set_client_deadline(SHORT);
    let address = listener.local_addr().unwrap();

    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent = TcpStream::connect(address).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let mut expected = Vec::new();
    for _ in 0..3 {
        let AcceptError::Client { peer, error: EstablishError::Setup(error) } = listener.accept(PATIENCE).unwrap_err()
        else {
            panic!("the error does not belong to a client");
        };
        expected.push((peer, error));
    }
    assert!(matches!(&expected[0], (peer, SetupError::NotDoorbell { .. }) if *peer == garbage.local_addr().unwrap()));
    assert!(matches!(&expected[1].1, SetupError::Io { .. }), "{}", expected[1].1);
    // The silent peer fails at its own deadline, after the other peers.
    assert!(matches!(&expected[2], (peer, SetupError::Deadline { .. }) if *peer == silent.local_addr().unwrap()));

    listener.set_client_deadline(PATIENCE);
    let client = thread::spawn(move || device().connect(address, Options::default(), PATIENCE).unwrap());
    let mut server = listener.accept(PATIENCE).unwrap();
    let mut client = client.join().unwrap();
    client.send(b"a client at last").unwrap();
    assert_eq!(&*server.receive().unwrap(), b"a client at last");
}

#[test]
fn both_sides_report_a_protocol_mismatch() {
    let listener = device().listen("127.0.0.1:0", Options::of(DirectRead::default())).unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || device().connect(address, Options::of(SendReceive), PATIENCE).unwrap_err());
    let error = listener.accept(PATIENCE).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("this end uses the protocol Direct-Read with signal bytes, but the peer uses Send-Receive"),
        "{error}"
    );
    let error = client.join().unwrap();
    assert!(
        error
            .to_string()
            .contains("this end uses the protocol Send-Receive, but the peer uses Direct-Read with signal bytes"),
        "{error}"
    );
}

#[test]
fn both_sides_fail_when_one_side_gives_up() {
    // The server sets up a queue pair, and the client sets up a message connection. Each side rejects the description
    // of the other side, or notices that the other side gave up.
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let capacities = QpCapacities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let server = thread::spawn(move || {
        let (stream, _) = tcp.accept().unwrap();
        device().queue_pair(&stream, None, capacities, PATIENCE).unwrap_err()
    });
    let error = device().connect(address, Options::default(), PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectError::Server(EstablishError::Unfit(_) | EstablishError::GaveUp { .. })), "{error}");
    let error = server.join().unwrap();
    assert!(matches!(error, QueuePairError::Messages), "{error}");
}

#[test]
fn errors_name_the_allowed_values() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let options = Options::default().config(Config::default().window(0));
    let error = device().connect(listener.local_addr().unwrap(), options, PATIENCE).unwrap_err().to_string();
    assert_eq!(error, "the connection cannot be made: the window is 0, allowed is 1 to 16384");
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let (mut server, client) = pair(hasty());
    drop(client);
    let error = server.receive().unwrap_err();
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
}

/// Sends messages in one thread and receives messages in another thread, over one connection.
fn both_ways<C: MessageConnection + Send + 'static>(connection: Blocking<C>, messages: u64) {
    let (mut send, mut receive) = connection.split();
    let sender = thread::spawn(move || {
        for number in 0..messages {
            send.send(&number.to_be_bytes()).unwrap();
        }
        send.close().unwrap();
    });
    for number in 0..messages {
        assert_eq!(receive.receive().unwrap().to_vec(), number.to_be_bytes());
    }
    assert_eq!(receive.receive().map(drop), Err(ConnectionError::PeerClosed));
    sender.join().unwrap();
}

#[test]
fn halves_in_two_threads_exchange_messages() {
    fn go<P: Connector<Connection: Send + 'static> + Clone + Send + 'static>(options: Options<P>) {
        let (server, client) = pair(options.config(Config::default().window(8).depth(8).max_message(64)));
        let server = thread::spawn(move || both_ways(server, 2000));
        both_ways(client, 2000);
        server.join().unwrap();
    }
    go(Options::default());
    go(Options::default().busy_poll());
    go(Options::of(DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() }));
}

#[test]
fn a_sending_half_that_is_dropped_closes_its_side() {
    let (server, mut client) = pair(Options::default());
    let (send, mut receive) = server.split();
    drop(send);
    assert_eq!(client.receive().map(drop), Err(ConnectionError::PeerClosed));
    client.send(b"still heard").unwrap();
    assert_eq!(&*receive.receive().unwrap(), b"still heard");
}

#[test]
fn dropping_the_receiving_half_keeps_the_sending_half() {
    // At the end, the client does not poll, so its device sleeps and must wake when the goodbye arrives. A defect would
    // show only with some timings, so the exchange is repeated.
    for _ in 0..20 {
        let (server, mut client) = pair(Options::default());
        let (mut send, receive) = server.split();
        drop(receive);
        for number in 0..100_u64 {
            send.send(&number.to_be_bytes()).unwrap();
            assert_eq!(*client.receive().unwrap(), number.to_be_bytes());
        }
        send.close().unwrap();
    }
}

#[test]
fn both_halves_notice_that_the_peer_died() {
    let (server, client): (Blocking<Connection>, _) = pair(hasty());
    let (mut send, mut receive) = server.split();
    let receiver = thread::spawn(move || receive.receive().map(drop).unwrap_err());
    drop(client);
    let error = loop {
        if let Err(error) = send.send(b"is anybody there?") {
            break error;
        }
    };
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
    assert_eq!(receiver.join().unwrap(), error);
}

#[test]
fn silent_peers_do_not_delay_clients() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    let client = thread::spawn(move || device().connect(address, Options::default(), PATIENCE).unwrap());
    // More peers arrived than the listener has room for, so the listener evicted some peers.
    let mut server = loop {
        match listener.accept(PATIENCE) {
            Ok(server) => break server,
            Err(AcceptError::Client { error: EstablishError::Evicted { .. }, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    client.join().unwrap().send(b"served").unwrap();
    assert_eq!(&*server.receive().unwrap(), b"served");
    drop(silent);
}

/// Returns the description of an end that fits a listener with the default options.
fn described() -> EndpointDescription {
    let qp = EndpointDescription::one_sided(
        Ipv4Addr::new(127, 9, 9, 9).to_ipv6_mapped(),
        Qpn::new(7),
        Psn::new(1),
        PathMtu::Mtu4096,
        device().verbs().attributes().udp_port,
    );
    let protocol = Protocol::SendReceive.wire_id();
    EndpointDescription { protocol, depth: 16, max_message: 4096, credits: true, ..qp }
}

/// Some of the strangers describe an end that fits, and are silent then.
#[test]
fn a_client_is_served_beside_strangers() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut server = loop {
            match listener.accept(PATIENCE) {
                Ok(server) => break server,
                Err(AcceptError::Client { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        let question = server.receive().unwrap().to_vec();
        server.send(&question).unwrap();
        server.finish().unwrap();
    });
    strangers::beside(&address.to_string(), &setup::hello(&[described()]), || {
        let mut client = device().connect(address, Options::default(), PATIENCE).unwrap();
        client.send(b"a question").unwrap();
        assert_eq!(&*client.receive().unwrap(), b"a question");
        client.finish().unwrap();
    });
    server.join().unwrap();
}

#[test]
fn several_threads_accept_at_once() {
    let listener = device().listen("127.0.0.1:0", Options::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let _silent = TcpStream::connect(address).unwrap();
    thread::scope(|scope| {
        let accepts = [(); 3].map(|()| scope.spawn(|| listener.accept(PATIENCE)));
        let clients = [(); 2].map(|()| device().connect(address, Options::default(), PATIENCE).unwrap());
        let clients = clients.into_iter().enumerate().map(|(number, mut client)| {
            client.send(&[number as u8]).unwrap();
            client
        });
        let clients: Vec<_> = clients.collect();
        let mut heard: Vec<u8> = Vec::new();
        let mut refused = 0;
        for accept in accepts {
            match accept.join().unwrap() {
                Ok(mut server) => heard.push(server.receive().unwrap()[0]),
                Err(_) => refused += 1,
            }
        }
        heard.sort_unstable();
        assert_eq!((heard, refused), (vec![0, 1], 1));
        drop(clients);
    });
    // A thread that waits while another thread handles the visitors must also return at its deadline.
    thread::scope(|scope| {
        let first = scope.spawn(|| listener.accept(10 * SHORT));
        for _ in 0..3 {
            assert!(matches!(listener.accept(SHORT), Err(AcceptError::Deadline(SHORT))));
        }
        assert!(matches!(first.join().unwrap(), Err(AcceptError::Deadline(_))));
    });
}
