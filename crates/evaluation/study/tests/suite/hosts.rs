//! Points on several hosts. Each host is a thread with its own software RNIC and its own control connection.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::common::MEMORY_BYTES;
use doorbell_machine::pinning::ProcessPosition;
use doorbell_protocols::Protocol;
use doorbell_record::{Extent, Kind, Operation, Parameters, PointResult, Serving, Transport};
use doorbell_study::experiment::Layout;
use doorbell_study::session::{self, Dealt, HostError, Introduction, SessionError, Terms, measure_on};
use doorbell_verbs::soft::{self, SoftOptions};

const TOKEN: &str = "a secret";

type Served = JoinHandle<Result<(), SessionError>>;

/// Starts a thread that runs `answer` with one end of a stream. Returns the other end.
fn join<T: Send + 'static>(answer: impl FnOnce(TcpStream) -> T + Send + 'static) -> (TcpStream, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (stream, std::thread::spawn(move || answer(accepted)))
}

fn serve() -> (TcpStream, Served) {
    let terms = Terms { token: TOKEN.parse().ok(), ..Terms::open(MEMORY_BYTES) };
    join(move |stream| session::serve(soft::open(&SoftOptions::default()).unwrap(), stream, &terms))
}

fn introduction() -> Introduction {
    Introduction { token: TOKEN.parse().ok(), ..Introduction::default() }
}

fn named(streams: impl IntoIterator<Item = TcpStream>) -> Vec<(String, TcpStream, ProcessPosition)> {
    let named = |(index, stream)| (format!("host {index}"), stream, ProcessPosition::default());
    streams.into_iter().enumerate().map(named).collect()
}

/// Measures on `hosts` hosts, and checks that all of them succeed.
fn measure(layout: Layout, hosts: usize, parameters: &Parameters) -> PointResult {
    let dealt = Dealt::new(layout, parameters.connections, hosts);
    let (streams, servers): (Vec<_>, Vec<_>) = dealt.shares().iter().map(|_| serve()).unzip();
    let bytes = parameters.sizes[0];
    let result = measure_on(named(streams), &introduction(), parameters, bytes, &dealt);
    let result = result.unwrap_or_else(|error| panic!("{layout:?} of {parameters:?}: {error}"));
    for server in servers {
        server.join().unwrap().unwrap();
    }
    result
}

fn stream(protocol: Protocol, bytes: usize, connections: usize) -> Parameters {
    Parameters {
        protocol,
        connections,
        extent: Extent::Seconds(0.05),
        memory_bytes: MEMORY_BYTES,
        verify: true,
        ..Parameters::plain(Kind::Bandwidth, Operation::Send, bytes)
    }
}

/// Checks that all messages arrived at each host, and that each host sent the expected number of packets.
fn check(layout: Layout, parameters: &Parameters, result: &PointResult, roles: &[(&str, usize)]) {
    let what = format!("{layout:?}, {}, {:?}", parameters.protocol, parameters.operation);
    let found: Vec<_> = result.hosts.iter().map(|host| (host.role.as_str(), host.connections)).collect();
    assert_eq!(found, roles, "{what}");
    for host in &result.hosts {
        let (counted, predicted) = (&host.counted, &host.predicted);
        assert!(counted.data_packets >= predicted.data_packets, "{what}: {host:?}");
        assert!(predicted.asks || counted.data_packets <= predicted.data_packets_max, "{what}: {host:?}");
        assert_eq!(host.late_ns.is_some(), host.asks, "{what}: {host:?}");
        let messages = if host.asks { host.sent } else { host.received };
        assert_eq!(host.cpu_per_message, host.cpu.per_message(messages), "{what}: {host:?}");
        assert!(host.cpu_per_message.all_us.is_some_and(|us| us > 0.0), "{what}: {host:?}");
    }
    let sum = |field: fn(&doorbell_record::HostResult) -> u64| result.hosts.iter().map(field).sum::<u64>();
    assert!(result.messages > 0 && result.messages_per_s > 0.0, "{what}: {result:?}");
    assert_eq!((result.damaged, result.lost), (0, 0), "{what}");
    assert_eq!(sum(|host| host.sent), sum(|host| host.received), "{what}");
    let sent: u64 = result.sent_by_connection.iter().sum();
    assert_eq!(sent, sum(|host| if host.asks { host.sent } else { 0 }), "{what}");
    // Messages of the result were sent in the common time, so there are at most as many as were sent.
    assert!(result.messages <= sent, "{what}: {} of {sent}", result.messages);
}

#[test]
fn senders_of_every_protocol_on_three_hosts_reach_one_receiver() {
    let roles = [("receiver", 5), ("sender", 2), ("sender", 2), ("sender", 1)];
    for protocol in [
        Protocol::SendReceive,
        Protocol::DirectRead,
        Protocol::DirectWrite,
        Protocol::BufferedWriteImmediateSend,
        Protocol::SharedWrite,
        Protocol::BufferedRead,
    ] {
        let parameters = stream(protocol, 512, 5);
        check(Layout::ManyToOne, &parameters, &measure(Layout::ManyToOne, 4, &parameters), &roles);
    }
    let single = Serving { single_receiver: true, ..Serving::default() };
    let parameters = Parameters { serving: single, ..stream(Protocol::SendReceive, 16, 5) };
    check(Layout::ManyToOne, &parameters, &measure(Layout::ManyToOne, 4, &parameters), &roles);
}

#[test]
fn one_source_reaches_readers_on_two_hosts() {
    let parameters = Parameters { replicate: true, ..stream(Protocol::DirectReadSend, 4096, 3) };
    let result = measure(Layout::OneToMany, 3, &parameters);
    check(Layout::OneToMany, &parameters, &result, &[("source", 3), ("reader", 2), ("reader", 1)]);
}

#[test]
fn pairs_and_all_to_all_use_every_host() {
    let parameters = stream(Protocol::SendReceive, 512, 3);
    let result = measure(Layout::Pairs, 4, &parameters);
    let roles = [("sender", 2), ("receiver", 2), ("sender", 1), ("receiver", 1)];
    check(Layout::Pairs, &parameters, &result, &roles);
    let parameters = Parameters { bidirectional: true, ..stream(Protocol::SendReceive, 512, 6) };
    let result = measure(Layout::AllToAll, 4, &parameters);
    check(Layout::AllToAll, &parameters, &result, &[("sender", 3); 4]);
}

#[test]
fn the_coordinator_leads_all_other_workloads() {
    let parameters =
        Parameters { operation: Operation::Write, kind: Kind::Bandwidth, ..stream(Protocol::SendReceive, 64, 3) };
    let result = measure(Layout::ManyToOne, 3, &parameters);
    let roles = [("target", 3), ("initiator", 2), ("initiator", 1)];
    check(Layout::ManyToOne, &parameters, &result, &roles);
    let two = |parameters: &Parameters| measure(Layout::TwoEnds, 3, parameters);
    let ping = Parameters { window: 1, kind: Kind::Latency, ..stream(Protocol::SendReceive, 16, 1) };
    let result = two(&ping);
    assert!(result.latency_ns.is_some_and(|latency| latency.p50 > 0) && result.histogram_ns.is_some());
    check(Layout::TwoEnds, &ping, &result, &[("requester", 1), ("responder", 1)]);
    // A receiver that is too slow drops datagrams. The result counts the lost datagrams.
    let datagrams = Parameters { transport: Transport::Ud, rate: Some(2000.0), ..stream(Protocol::SendReceive, 64, 2) };
    let result = two(&datagrams);
    let received: u64 = result.hosts.iter().map(|host| host.received).sum();
    assert!(received > 0 && received + result.lost == result.sent_by_connection.iter().sum::<u64>(), "{result:?}");
}

/// Runs a study in which host 1 runs `answer` instead of serving. Returns the error of the study.
fn with_culprit<T: Send + 'static>(answer: impl FnOnce(TcpStream) -> T + Send + 'static) -> HostError {
    let parameters = Parameters { extent: Extent::Seconds(30.0), ..stream(Protocol::SendReceive, 16, 2) };
    let dealt = Dealt::new(Layout::ManyToOne, 2, 3);
    let (receiver, receives) = serve();
    let (culprit, _) = join(answer);
    let (sender, sends) = serve();
    let streams = named([receiver, culprit, sender]);
    let error = measure_on(streams, &introduction(), &parameters, 16, &dealt).unwrap_err();
    // All other hosts end long before the regular end of the point.
    assert!(receives.join().unwrap().is_err());
    assert!(sends.join().unwrap().is_err());
    error
}

#[test]
fn a_host_that_goes_or_refuses_is_named_and_the_others_end() {
    let error = with_culprit(drop);
    assert!(error.is_gone() && error.to_string().starts_with("host 1: the peer is gone"), "{error}");
    // If a host does not speak the protocol, the error names the host only once.
    let error = with_culprit(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let said = error.to_string();
    assert!(said.starts_with("host 1: it does not speak Doorbell's set-up") && !said.contains("127.0.0.1"), "{said}");
    let error = with_culprit(|stream| session::refuse(stream, "no device here"));
    assert_eq!(error.to_string(), "host 1: the peer failed: no device here");
    let terms = Terms { token: "another".parse().ok(), ..Terms::open(MEMORY_BYTES) };
    let device = soft::open(&SoftOptions::default()).unwrap();
    let error = with_culprit(move |stream| session::serve(device, stream, &terms));
    assert!(error.to_string().starts_with("host 1: the peer failed: the client shows another token"), "{error}");
}

/// A host closes its connection while all hosts measure. The coordinator reports the host at once and does not wait
/// until its peers give up.
#[test]
fn a_host_that_goes_while_it_measures_is_named() {
    let error = with_culprit(|stream| {
        let terms = Terms { token: TOKEN.parse().ok(), ..Terms::open(MEMORY_BYTES) };
        let cutting = stream.try_clone().unwrap();
        let device = soft::open(&SoftOptions::default()).unwrap();
        let probe = device.clone();
        let serving = std::thread::spawn(move || session::serve(device, stream, &terms));
        while probe.counters().is_none_or(|counters| counters.tx_data_packets < 100) {
            std::thread::yield_now();
        }
        cutting.shutdown(std::net::Shutdown::Both).unwrap();
        serving.join().unwrap()
    });
    assert!(error.is_gone() && error.host == "host 1", "{error}");
}
