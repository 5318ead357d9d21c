//! Server with untrusted clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{MEMORY_BYTES, parameters};
use doorbell_exchange::setup;
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_machine::{Machine, Root};
use doorbell_protocols::Protocol;
use doorbell_record::{Extent, Kind, Operation, Parameters, Serving, SharedBy};
use doorbell_study::session::{self, Client, Introduced, Introduction, SessionError, Terms};
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, SoftOptions};
use serde_json::{Value, json};

fn device() -> Device {
    soft::open(&SoftOptions::default()).unwrap()
}

/// Starts a server. Returns a stream to the server.
fn serve() -> (TcpStream, JoinHandle<Result<(), SessionError>>) {
    serve_on(Terms::open(MEMORY_BYTES))
}

fn serve_on(terms: Terms) -> (TcpStream, JoinHandle<Result<(), SessionError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (stream, std::thread::spawn(move || session::serve(device(), accepted, &terms)))
}

/// Sends these lines to a server. Returns the answers and the result of the server.
fn answers(lines: &[String]) -> (Vec<Value>, Result<(), SessionError>) {
    let (mut stream, server) = serve();
    setup::exchange(&stream, &[], Duration::from_secs(10)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let answers = lines.iter().map(|line| {
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: {answer}"))
    });
    let answers = answers.collect();
    // The server must end, whatever the lines contain.
    let ended = server.join().expect("the server does not panic");
    reader.read_to_end(&mut Vec::new()).unwrap();
    (answers, ended)
}

fn announcing(change: impl Fn(&mut Value)) -> String {
    let mut value = serde_json::to_value(parameters()).unwrap();
    change(&mut value);
    json!({ "parameters": value }).to_string()
}

#[track_caller]
fn expect_refusal(lines: &[String], words: &str) {
    let (answers, ended) = answers(lines);
    let (last, before) = answers.split_last().unwrap();
    assert!(before.iter().all(|answer| answer == "accepted"), "{answers:?}");
    let reason = last["failed"].as_str().unwrap_or_else(|| panic!("{last} to {}", lines.last().unwrap()));
    assert!(reason.contains(words), "{reason} to {}", lines.last().unwrap());
    assert_eq!(ended.unwrap_err().to_string(), reason);
}

#[test]
fn hostile_parameters_are_refused_with_a_reason() {
    for (field, value, words) in [
        ("extent", json!({ "seconds": -1.0 }), "duration is -1 s"),
        ("extent", json!({ "seconds": 1e300 }), "duration is 1"),
        ("extent", json!({ "seconds": null }), "unexpected message"),
        ("extent", json!({ "messages": 0 }), "number of messages is 0"),
        ("extent", json!({ "messages": u64::MAX }), "number of messages is 18446744073709551615"),
        ("sizes", json!([]), "number of message sizes is 0"),
        ("sizes", json!(vec![1; 5000]), "number of message sizes is 5000"),
        ("sizes", json!([u64::MAX]), "message size is 18446744073709551615 B"),
        ("sizes", json!([1 << 30]), "message memory is"),
        ("sizes", json!([-1]), "unexpected message"),
        ("window", json!(0), "window is 0"),
        ("window", json!(u64::MAX), "window is 18446744073709551615"),
        ("depth", json!(0), "depth is 0"),
        ("depth", json!(u64::MAX), "depth is 18446744073709551615"),
        ("batch", json!(0), "batch is 0"),
        ("batch", json!(17), "batch is 17, allowed is 1 to 16"),
        ("inline", json!(u64::MAX), "inline is 18446744073709551615 B"),
        ("connections", json!(0), "connections is 0"),
        ("connections", json!(u64::MAX), "connections is 18446744073709551615"),
        ("connections", json!("many"), "unexpected message"),
        ("mtu", json!(1), "path MTU is 1 B"),
        ("rate", json!(-1.0), "rate is -1"),
        ("slow_receiver_us", json!(u64::MAX), "receiver's pause is"),
        ("timeout", json!(255), "timeout is 255"),
        ("timeout", json!(256), "unexpected message"),
        ("retry_count", json!(8), "retry count is 8"),
        ("rnr_retry", json!(8), "RNR retry count is 8"),
        ("memory_bytes", json!(0), "message memory is 0 B"),
        ("memory_bytes", json!(MEMORY_BYTES + 1), "this side has 67108864 B"),
        ("protocol", json!("telepathy"), "unexpected message"),
        ("replicate", json!(true), "one source for all connections is on, allowed is off except for direct-read-send"),
        ("serving", json!({ "threads": 3 }), "number of threads is 3, allowed is 1 to 2"),
        ("serving", json!({ "shared_receives": "magic" }), "unexpected message"),
    ] {
        expect_refusal(&[announcing(|parameters| parameters[field] = value.clone())], words);
    }
    expect_refusal(&[announcing(|p| p["window"].take().as_u64().map_or((), drop))], "unexpected message");
    expect_refusal(&["\"end\"".to_owned()], "no parameters");
    expect_refusal(&["[[[[".to_owned()], "unexpected message");
}

#[test]
fn points_that_were_not_announced_are_refused() {
    for bytes in [0, 17, 1 << 40, u64::MAX] {
        let point = json!({ "point": { "bytes": bytes } }).to_string();
        expect_refusal(&[announcing(|_| {}), point], &format!("messages of {bytes} B are not among"));
    }
    expect_refusal(&[announcing(|_| {}), announcing(|_| {})], "a second message with parameters");
    let done = json!({ "done": { "messages": [1, 1] } }).to_string();
    expect_refusal(&[announcing(|_| {}), done], "done before the first point");
}

#[test]
fn an_honest_client_is_served() {
    let (stream, server) = serve();
    let mut client = Client::new(&device(), stream, parameters()).unwrap();
    for bytes in [16, 5000, 16] {
        let result = client.measure(bytes, |_| {}).unwrap();
        assert_eq!((result.messages, result.damaged), (200, 0));
    }
    client.finish().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn threads_a_single_receiver_and_shared_receives_are_served() {
    let threads = Serving { threads: 2, ..Serving::default() };
    let single = Serving { single_receiver: true, ..Serving::default() };
    for serving in [
        threads,
        Serving { shared_receives: Some(SharedBy::Lock), ..threads },
        Serving { shared_receives: Some(SharedBy::Thread), ..threads },
        single,
        Serving { shared_receives: Some(SharedBy::Thread), ..single },
        Serving { poll_list: 1, repost_list: 1, ..Serving::default() },
    ] {
        let (stream, server) = serve();
        let parameters = Parameters { serving, connections: 5, ..parameters() };
        let mut client = Client::new(&device(), stream, parameters).unwrap();
        for bytes in [16, 5000] {
            let result = client.measure(bytes, |_| {}).unwrap();
            assert_eq!((result.messages, result.damaged), (500, 0), "{serving:?}");
            assert_eq!(result.sent_by_connection, [100; 5]);
            assert_eq!(result.counted.server.rnr_naks, 0, "{serving:?}");
        }
        client.finish().unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn one_sided_operations_are_served() {
    for (operation, sizes) in [(Operation::Write, vec![0, 5000]), (Operation::CompareSwap, vec![8])] {
        let (stream, server) = serve();
        let parameters = Parameters { operation, sizes: sizes.clone(), ..parameters() };
        let mut client = Client::new(&device(), stream, parameters).unwrap();
        for bytes in sizes {
            let result = client.measure(bytes, |_| {}).unwrap();
            assert_eq!((result.messages, result.damaged), (200, 0));
        }
        client.finish().unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn every_protocol_is_served_by_one_thread_or_several() {
    for protocol in Protocol::ALL {
        for (threads, kind) in [(1, Kind::Bandwidth), (2, Kind::Bandwidth), (1, Kind::Latency)] {
            let (stream, server) = serve();
            let serving = Serving { threads, ..Serving::default() };
            let parameters = Parameters { protocol, serving, kind, connections: 3, ..parameters() };
            let mut client = Client::new(&device(), stream, parameters).unwrap();
            for bytes in [16, 5000] {
                let result = client.measure(bytes, |_| {}).unwrap();
                assert_eq!((result.messages, result.damaged), (300, 0), "{protocol}, {threads} threads, {kind:?}");
            }
            client.finish().unwrap();
            server.join().unwrap().unwrap();
        }
    }
}

#[test]
fn one_source_is_served_to_many_readers() {
    let (stream, server) = serve();
    let protocol = Protocol::DirectReadSend;
    let parameters = Parameters { protocol, replicate: true, connections: 3, ..parameters() };
    let mut client = Client::new(&device(), stream, parameters).unwrap();
    let result = client.measure(5000, |_| {}).unwrap();
    assert_eq!((result.messages, result.damaged), (300, 0));
    assert_eq!(result.sent_by_connection, [100; 3]);
    client.finish().unwrap();
    server.join().unwrap().unwrap();
}

/// Runs a client whose TCP connection closes and whose RNIC stops sending during a point. The server's RNIC could retry
/// for hours. Returns the error of the server.
fn vanish_in(parameters: Parameters) -> String {
    let (stream, server) = serve();
    let line = stream.try_clone().unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(server.join().unwrap()));
    let vanished = std::cell::RefCell::new(None);
    let mut client = Client::new(&device(), stream, parameters).unwrap();
    let result = client.measure(16, |_| {
        if vanished.borrow().is_none() {
            line.shutdown(Shutdown::Both).unwrap();
            // This call waits for long only if the server does not end.
            *vanished.borrow_mut() = Some(has_ended.recv_timeout(Duration::from_secs(60)).expect("the server ends"));
        }
    });
    assert!(matches!(&result, Err(SessionError::Control(_))), "the client closed its own connection: {result:?}");
    let ended = vanished.take().expect("the client had sent messages");
    ended.expect_err("the session was not served to the end").to_string()
}

#[test]
fn a_server_ends_with_the_tcp_connection_of_its_client() {
    let patient = Parameters { timeout: 31, retry_count: 7, extent: Extent::Seconds(86_400.0), ..parameters() };
    let single = Serving { single_receiver: true, ..Serving::default() };
    for parameters in [
        patient.clone(),
        Parameters { events: true, ..patient.clone() },
        Parameters { bidirectional: true, rate: Some(1000.0), ..patient.clone() },
        Parameters { kind: Kind::Latency, rate: Some(1000.0), ..patient.clone() },
        Parameters { operation: Operation::RequestResponse, ..patient.clone() },
        Parameters { serving: single, ..patient.clone() },
        Parameters { protocol: Protocol::DirectRead, ..patient.clone() },
        // The server would need minutes to process the messages that have arrived.
        Parameters { slow_receiver_us: 500_000, window: 512, depth: 512, ..patient.clone() },
        Parameters { slow_receiver_us: 500_000, window: 512, depth: 512, serving: single, ..patient.clone() },
    ] {
        let said = vanish_in(parameters.clone());
        assert_eq!(said, "the peer is gone: it hung up while a point ran", "{parameters:?}");
    }
}

/// A message that the client sends while a point runs would hide the end of its connection.
#[test]
fn a_client_that_speaks_while_a_point_runs_is_refused() {
    let (stream, server) = serve();
    let line = stream.try_clone().unwrap();
    let endless = Parameters { extent: Extent::Seconds(86_400.0), ..parameters() };
    let mut client = Client::new(&device(), stream, endless).unwrap();
    let has_spoken = std::cell::Cell::new(false);
    let result = client.measure(16, |_| {
        if !has_spoken.replace(true) {
            (&line).write_all(b"\"end\"\n").unwrap();
        }
    });
    let error = server.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the peer sent an unexpected message: something while a point ran");
    assert!(result.is_err(), "the server is gone");
}

/// The end that knows the reason of a failure sends it to the other end, even before any connection is established.
#[test]
fn the_client_hears_why_it_was_refused() {
    let (stream, server) = serve();
    let greedy = Parameters { memory_bytes: MEMORY_BYTES + 1, ..parameters() };
    let error = Client::new(&device(), stream, greedy).unwrap_err();
    assert!(matches!(&error, SessionError::Peer(reason) if reason.contains("message memory")), "{error}");
    assert!(matches!(server.join().unwrap(), Err(SessionError::Memory { .. })));

    let (stream, server) = serve();
    let mut client = Client::new(&device(), stream, parameters()).unwrap();
    let error = client.measure(17, |_| {}).unwrap_err();
    assert!(matches!(&error, SessionError::Peer(reason) if reason.contains("17 B")), "{error}");
    assert!(matches!(server.join().unwrap(), Err(SessionError::UnknownSize(17))));

    let (stream, server) = serve();
    let error = Client::new(&device(), stream, Parameters { window: 0, ..parameters() }).unwrap_err();
    assert!(matches!(error, SessionError::Parameters(_)), "{error}");
    assert!(server.join().unwrap().is_err(), "no client connected");
}

/// Returns the answer of a server with a token to this introduction.
fn admitted(introduction: Introduction) -> Result<Introduced, SessionError> {
    let (stream, server) = serve_on(Terms { token: "secret".parse().ok(), ..Terms::open(MEMORY_BYTES) });
    let told = Client::meet(stream, introduction);
    assert_eq!(server.join().expect("the server does not panic").is_ok(), told.is_ok());
    told
}

#[test]
fn a_server_introduces_itself_only_to_clients_with_its_token() {
    let token = "secret".parse().ok();
    let introduced = admitted(Introduction { token, ..Introduction::default() }).unwrap();
    assert_eq!((introduced.environment.provider.as_str(), introduced.findings.len()), ("soft", 0));
    for token in [None, "another".parse().ok()] {
        let refused = admitted(Introduction { token, ..Introduction::default() }).unwrap_err();
        assert!(refused.to_string().contains("token"), "{refused}");
    }
}

#[test]
fn a_server_measures_only_with_clients_that_show_its_token() {
    let terms = || Terms { token: "secret".parse().ok(), ..Terms::open(MEMORY_BYTES) };
    let (stream, server) = serve_on(terms());
    let introduction = Introduction { token: "secret".parse().ok(), ..Introduction::default() };
    let own = device();
    let (mut client, _) = Client::introduced(&own, stream, introduction, parameters()).unwrap();
    let bytes = parameters().sizes[0];
    assert!(client.measure(bytes, |_| {}).unwrap().messages > 0);
    client.finish().unwrap();
    server.join().unwrap().unwrap();
    // A client that sends no introduction shows no token.
    let (stream, server) = serve_on(terms());
    let refused = Client::new(&own, stream, parameters()).unwrap_err();
    assert!(refused.to_string().contains("no token"), "{refused}");
    server.join().unwrap().unwrap_err();
}

/// The server shares the CPUs with two other processes. It reports its own CPUs, and pins its threads while it
/// measures.
#[test]
fn a_server_pins_its_share_of_cpus_or_names_a_missing_cpu() {
    let allowed = Machine::of(&Root::default()).cpus;
    let measured = |cpus: Vec<usize>, number: usize| {
        let pinning = Pinning { cpus, because: "so".to_owned(), ..Pinning::default() };
        let (stream, server) = serve_on(Terms { pinning, ..Terms::open(MEMORY_BYTES) });
        let introduction = Introduction { place: ProcessPosition { number, of: 3 }, ..Introduction::default() };
        let (mut client, introduced) = Client::introduced(&device(), stream, introduction, parameters()).unwrap();
        let result = client.measure(parameters().sizes[0], |_| {});
        client.finish().ok();
        server.join().expect("the server does not panic").ok();
        (introduced.environment.pinning.unwrap(), result)
    };
    let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
    let (pinning, result) = measured(vec![usize::MAX, first, last], 1);
    assert_eq!(pinning.cpus, [first]);
    assert!(result.unwrap().messages > 0);
    let (_, refused) = measured(vec![usize::MAX, first, last], 0);
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("a thread cannot be pinned to CPU 18446744073709551615") && said.contains("--cpus"),
        "{said}"
    );
    let (pinning, result) = measured(vec![first, last], 2);
    assert_eq!(pinning.to_string(), "threads are not pinned (3 processes, and 2 CPU(s) for them: so)");
    assert!(result.unwrap().messages > 0);
}

#[test]
fn an_introduction_comes_first_and_once() {
    let introduction = json!({ "introduce": {} }).to_string();
    let parameters = announcing(|_| {});
    for lines in [vec![introduction.clone(); 2], vec![parameters, introduction]] {
        let (answers, ended) = answers(&lines);
        let reason = answers.last().unwrap()["failed"].as_str().unwrap().to_owned();
        assert!(
            reason.contains("no parameters") || reason.contains("an introduction after the parameters"),
            "{reason}"
        );
        ended.unwrap_err();
    }
}

#[test]
fn a_client_that_cannot_be_served_hears_why() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let refusing = std::thread::spawn(move || session::refuse(accepted, "there is no device"));
    let heard = Client::new(&device(), stream, parameters()).unwrap_err();
    assert!(heard.to_string().contains("there is no device"), "{heard}");
    refusing.join().unwrap().unwrap();
}
