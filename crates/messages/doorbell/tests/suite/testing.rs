//! Tests of pairs of devices in virtual time.

use std::fs;
use std::time::{Duration, Instant};

use doorbell::exchange::protocols::Protocol;
use doorbell::exchange::with_connector;
use doorbell::testing::{Clock, Pair, PairBuilder, PairConnection};
use doorbell::verbs::Counters;
use doorbell::{Config, ConnectionError, Connector, FaultPlan, MessageConnection, Options, Received};

/// Sends a message of each length and checks its echo. Returns the time of the last echo.
async fn ask<C: MessageConnection>(mut client: PairConnection<C>, clock: Clock) -> Result<Duration, ConnectionError> {
    for length in [0, 1, 100, 4096] {
        let question: Vec<u8> = (0..length).map(|at| at as u8).collect();
        client.send(&question).await?;
        assert_eq!(client.receive().await?.to_vec(), question);
    }
    let ended = clock.now();
    client.finish().await?;
    Ok(ended)
}

async fn echo<C: MessageConnection>(mut server: PairConnection<C>) -> Result<(), ConnectionError> {
    for _ in 0..4 {
        let message = server.receive().await?.to_vec();
        server.send(&message).await?;
    }
    server.finish().await
}

/// Returns the time of a conversation, and the counters of both devices.
fn converse<P: Connector>(builder: PairBuilder, protocol: P) -> (Duration, [Counters; 2]) {
    let pair = builder.open().unwrap();
    let options = Options::of(protocol).config(Config::default().window(4).depth(4).max_message(4096));
    let (client, server) = pair.connect(&options).unwrap();
    let (asked, answered) = pair.run(ask(client, pair.clock()), echo(server)).unwrap();
    answered.unwrap();
    let counters = pair.devices().each_ref().map(|device| device.verbs().counters().unwrap());
    (asked.unwrap(), counters)
}

#[test]
fn every_protocol_takes_the_same_virtual_time_in_each_run() {
    for protocol in Protocol::ALL {
        for plan in [None, Some("drop opcode=request nth=2")] {
            let builder = || match plan {
                None => Pair::builder(),
                Some(plan) => Pair::builder().faults(plan.parse().unwrap()),
            };
            let run = || with_connector!(protocol, connector => converse(builder(), connector));
            let (took, counters) = run();
            assert_eq!(run(), (took, counters), "{protocol} with {plan:?}");
            // Each of the four questions and answers takes at least the latency of one packet.
            assert!(took >= Duration::from_micros(8), "{protocol} with {plan:?}: {took:?}");
            let has_lost = counters.iter().any(|counters| counters.tx_retransmitted_packets > 0);
            assert_eq!(has_lost, plan.is_some(), "{protocol} with {plan:?}: {counters:?}");
        }
    }
}

#[test]
fn a_lost_packet_costs_virtual_time() {
    let (clean, _) = converse(Pair::builder(), doorbell::SendReceive);
    let lossy = Pair::builder().faults_of(1, "drop opcode=send nth=2".parse().unwrap());
    let (took, [client, server]) = converse(lossy, doorbell::SendReceive);
    // A loss that a later packet reveals costs a round trip.
    assert!(took >= clean + Duration::from_micros(2), "{clean:?} and {took:?}");
    assert!(client.tx_retransmitted_packets > 0, "{client:?}");
    assert_eq!(server.tx_retransmitted_packets, 0, "{server:?}");
}

#[test]
fn the_same_run_has_the_same_journal_of_faults() {
    let plan: FaultPlan = "drop opcode=send nth=2; drop opcode=cnp nth=1".parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let journals = ["one", "other"].map(|name| {
        let path = folder.path().join(name);
        converse(Pair::builder().faults(plan.clone()).fault_journal(&path), doorbell::SendReceive);
        fs::read_to_string(path).unwrap()
    });
    assert_eq!(journals[0], journals[1]);
    assert!(journals[0].starts_with("{\"rule\":1,\"action\":\"drop\""), "{}", journals[0]);
    let unfired = plan.unfired(&journals[0]);
    assert!(unfired.len() == 1 && unfired[0].starts_with("fault rule 2 never fired"), "{unfired:?}");
}

#[test]
fn latency_and_bandwidth_are_those_of_the_link() {
    let of = |builder: PairBuilder| converse(builder, doorbell::SendReceive).0;
    let near = of(Pair::builder());
    let far = of(Pair::builder().latency(Duration::from_millis(1)));
    assert!(far >= Duration::from_millis(8) && near < Duration::from_millis(4), "{near:?} and {far:?}");
    // The messages alone have more than 8000 B.
    let slow = of(Pair::builder().bandwidth(1_000_000));
    assert!(slow >= Duration::from_millis(8), "{slow:?}");
}

#[test]
fn waiting_takes_no_real_time_and_ends_at_the_limit() {
    let begun = Instant::now();
    let pair = Pair::builder().limit(Duration::from_secs(3600)).open().unwrap();
    let clock = pair.clock();
    pair.run(clock.sleep(Duration::from_secs(3000)), async {}).unwrap();
    assert_eq!(pair.clock().now(), Duration::from_secs(3000));

    let error = pair.run(async {}, std::future::pending::<()>()).unwrap_err();
    assert!(!error.has_events && error.other_waits && !error.one_waits, "{error:?}");
    assert!(error.to_string().starts_with("the second future waits at 3000"), "{error}");
    assert!(error.to_string().contains("no event is left"), "{error}");

    let error = pair.run(clock.sleep(Duration::from_secs(3601)), async {}).unwrap_err();
    assert!(error.has_events && error.one_waits, "{error:?}");
    assert!(error.to_string().contains("the limit of the virtual time is reached"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn a_capture_has_the_virtual_times() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("first.pcap");
    let (took, _) = converse(Pair::builder().latency(Duration::from_micros(7)).capture(&file), doorbell::SendReceive);
    assert!(took >= Duration::from_micros(56), "{took:?}");
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.len() > 8000, "the capture has {} B, but the messages alone have more than 8000 B", bytes.len());
}
