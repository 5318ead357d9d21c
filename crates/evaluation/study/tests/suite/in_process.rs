//! Sessions with both ends in one process and without TCP. The ends are tasks of one thread, or two threads.

use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::Rc;

use crate::common::{MEMORY_BYTES, parameters};
use doorbell_exchange::asynchronous::{Spin, Waiter, yield_now};
use doorbell_protocols::Protocol;
use doorbell_record::{Extent, Kind, Operation, Parameters, PointResult, Serving, SharedBy, SizeMix};
use doorbell_study::executor::{self, Idle, block_on};
use doorbell_study::session::{self, Asking, Client, SessionError, Terms, answer, local_pair};
use doorbell_study::threads::{OneThread, OsThreads, Threads};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Channel, Device};
use serde_json::Value;

fn device() -> Device {
    soft::open(&SoftOptions::default()).unwrap()
}

async fn ask(
    device: &Device,
    peer: impl session::Peer<Says = session::ToServer, Hears = session::FromServer>,
    threads: impl Threads,
    parameters: &Parameters,
) -> Result<Vec<PointResult>, SessionError> {
    let mut asking = Asking::new(device, peer, threads, parameters.clone()).await?;
    let mut results = Vec::new();
    for &bytes in &parameters.sizes {
        results.push(asking.measure(bytes, &|_| {}).await?);
    }
    asking.finish().await?;
    Ok(results)
}

/// Runs both ends, and all tasks that they start, on this thread.
fn on_one_thread(parameters: &Parameters) -> Result<Vec<PointResult>, SessionError> {
    waiting_by(Default::default(), parameters)
}

/// Runs both ends on this thread, with one waiter for each end. The asking end uses the first waiter.
fn waiting_by(waiters: [Breaths; 2], parameters: &Parameters) -> Result<Vec<PointResult>, SessionError> {
    let (one, other) = (device(), device());
    let (server, client) = local_pair();
    type Task<'a> = Pin<Box<dyn Future<Output = Result<Vec<PointResult>, SessionError>> + 'a>>;
    let [asks, answers] = waiters.map(OneThread);
    let asking: Task<'_> = Box::pin(ask(&one, server, asks, parameters));
    let answering: Task<'_> =
        Box::pin(async { answer(&other, client, &answers, &Terms::open(MEMORY_BYTES)).await.map(|()| Vec::new()) });
    let mut ended = executor::run(&Idle::spin(), [asking, answering]);
    let (answered, asked) = (ended.pop().unwrap(), ended.pop().unwrap());
    let results = asked?;
    answered?;
    Ok(results)
}

/// Runs each end in a thread, which distributes its connections over further threads.
fn on_two_threads(parameters: &Parameters) -> Result<Vec<PointResult>, SessionError> {
    let (server, client) = local_pair();
    std::thread::scope(|scope| {
        let answering =
            scope.spawn(|| block_on(answer(&device(), client, &OsThreads::default(), &Terms::open(MEMORY_BYTES))));
        let results = block_on(ask(&device(), server, OsThreads::default(), parameters))?;
        answering.join().unwrap()?;
        Ok(results)
    })
}

/// Runs two threads that are joined by TCP, as two processes would be.
fn over_tcp(parameters: &Parameters) -> Result<Vec<PointResult>, SessionError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let answering = std::thread::spawn(move || session::serve(device(), accepted, &Terms::open(MEMORY_BYTES)));
    let mut client = Client::new(&device(), stream, parameters.clone())?;
    let results = parameters.sizes.iter().map(|&bytes| client.measure(bytes, |_| {})).collect::<Result<_, _>>()?;
    client.finish()?;
    answering.join().unwrap()?;
    Ok(results)
}

/// Collects the names of all fields at every depth.
fn fields(value: &Value, path: &str, names: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| fields(value, &format!("{path}.{name}"), names)),
        _ => names.push(path.to_owned()),
    }
}

fn shape(result: &PointResult) -> Vec<String> {
    let mut names = Vec::new();
    fields(&serde_json::to_value(result).unwrap(), "", &mut names);
    names
}

/// Checks all values that are determined by the parameters and do not depend on time.
fn check(parameters: &Parameters, results: &[PointResult], how: &str) {
    assert_eq!(results.len(), parameters.sizes.len());
    for result in results {
        let what = format!("{how}, {} B: {parameters:?}", result.bytes);
        let both_ways = if parameters.bidirectional { 2 } else { 1 };
        let expected = 100 * parameters.connections as u64 * both_ways;
        assert_eq!((result.messages, result.damaged), (expected, 0), "{what}");
        let is_timed = parameters.kind == Kind::Latency
            || parameters.operation == Operation::RequestResponse
            || parameters.operation.is_one_sided();
        assert_eq!(result.histogram_ns.is_some(), is_timed, "{what}");
        for (counted, predicted) in
            [(&result.counted.client, &result.predicted.client), (&result.counted.server, &result.predicted.server)]
        {
            assert!(counted.data_packets >= predicted.data_packets, "{what}: {counted:?} {predicted:?}");
            let bounded = predicted.asks || counted.data_packets <= predicted.data_packets_max;
            assert!(bounded, "{what}: {counted:?} {predicted:?}");
        }
    }
}

#[test]
fn one_process_and_two_give_the_same_record_fields() {
    for kind in [Kind::Bandwidth, Kind::Latency] {
        let parameters = Parameters { kind, ..parameters() };
        let runs = [
            ("tcp", over_tcp(&parameters)),
            ("task", on_one_thread(&parameters)),
            ("thread", { on_two_threads(&parameters) }),
        ];
        let runs = runs.map(|(how, results)| {
            let results = results.unwrap_or_else(|error| panic!("{how}: {error}"));
            check(&parameters, &results, how);
            results
        });
        let [tcp, local, threads] = runs;
        for ((tcp, local), threads) in tcp.iter().zip(&local).zip(&threads) {
            assert_eq!(shape(tcp), shape(local));
            assert_eq!(shape(tcp), shape(threads));
            // Values that are determined by the parameters are equal.
            let fixed = |result: &PointResult| (result.fitted.clone(), result.mtu, result.sent_by_connection.clone());
            assert_eq!(fixed(tcp), fixed(local));
            assert_eq!(fixed(tcp), fixed(threads));
        }
    }
}

/// Runs each protocol and each role on the thread of the test. Only the devices have further threads.
#[test]
fn every_role_is_performed_by_tasks_of_one_thread() {
    let stream = parameters();
    let one_size = |bytes| Parameters { sizes: vec![bytes], ..parameters() };
    for protocol in Protocol::ALL {
        for kind in [Kind::Bandwidth, Kind::Latency] {
            let parameters = Parameters { protocol, kind, ..stream.clone() };
            check(&parameters, &on_one_thread(&parameters).unwrap(), "tasks");
        }
    }
    let serve = |serving| Parameters { serving, connections: 5, ..stream.clone() };
    let (threads, single) =
        (Serving { threads: 2, ..Serving::default() }, Serving { single_receiver: true, ..Serving::default() });
    for parameters in [
        Parameters { operation: Operation::RequestResponse, ..stream.clone() },
        Parameters { operation: Operation::RequestResponse, kind: Kind::Latency, ..stream.clone() },
        Parameters { operation: Operation::RequestResponse, ..serve(threads) },
        Parameters { bidirectional: true, ..stream.clone() },
        Parameters { events: true, ..stream.clone() },
        Parameters { operation: Operation::Write, ..one_size(5000) },
        Parameters { operation: Operation::Read, kind: Kind::Latency, ..one_size(5000) },
        Parameters { operation: Operation::FetchAdd, ..one_size(8) },
        Parameters { protocol: Protocol::DirectReadSend, replicate: true, ..one_size(5000) },
        serve(threads),
        serve(Serving { shared_receives: Some(SharedBy::Thread), ..threads }),
        serve(Serving { shared_receives: Some(SharedBy::Lock), ..threads }),
        serve(Serving { shared_receives: Some(SharedBy::Thread), ..single }),
        serve(single),
    ] {
        let results = on_one_thread(&parameters).unwrap_or_else(|error| panic!("{error}: {parameters:?}"));
        check(&parameters, &results, "tasks");
    }
}

/// Replies may be longer or shorter than their requests. Payloads of both sizes are checked.
#[test]
fn replies_of_another_size_cross_every_protocol() {
    let answered = Parameters { operation: Operation::RequestResponse, ..parameters() };
    for protocol in Protocol::ALL {
        for (request, reply) in [(200, 20_000), (20_000, 200)] {
            for kind in [Kind::Bandwidth, Kind::Latency] {
                let sizes = vec![request];
                let parameters = Parameters { protocol, kind, sizes, reply: Some(reply), ..answered.clone() };
                let results = on_one_thread(&parameters).unwrap_or_else(|error| panic!("{protocol}: {error}"));
                check(&parameters, &results, "replies");
                let [result] = &results[..] else { panic!("one size has one result") };
                let payload = result.bytes_per_s / result.messages_per_s;
                assert!((payload - 20_000.0).abs() < 1.0, "{payload} B per message in the longer direction");
            }
        }
    }
    let serving = Serving { threads: 3, server_threads: 1, ..Serving::default() };
    let parameters = Parameters { connections: 3, serving, reply: Some(5000), sizes: vec![200], ..answered };
    check(&parameters, &on_two_threads(&parameters).unwrap(), "three clients and one server thread");
}

/// Messages of several sizes, one way and with replies of the same sizes.
#[test]
fn a_mix_of_sizes_crosses_every_protocol_with_one_message_per_operation() {
    let mix = SizeMix(vec![(64, 0.9), (5000, 0.1)]);
    for protocol in Protocol::ALL {
        for operation in [Operation::Send, Operation::RequestResponse] {
            let sizes = vec![5000];
            let parameters = Parameters { protocol, operation, sizes, mix: Some(mix.clone()), ..parameters() };
            if protocol == Protocol::BufferedRead {
                assert!(parameters.check().is_err(), "a READ has several messages");
                continue;
            }
            let results = on_one_thread(&parameters).unwrap_or_else(|error| panic!("{protocol}: {error}"));
            check(&parameters, &results, "mix");
            let payload = results[0].bytes_per_s / results[0].messages_per_s;
            assert!((100.0..2000.0).contains(&payload), "{payload} B per message");
        }
    }
}

/// A client that thinks sends no request before it has thought.
#[test]
fn clients_think_between_a_reply_and_the_next_request() {
    for kind in [Kind::Bandwidth, Kind::Latency] {
        let parameters = Parameters {
            kind,
            operation: Operation::RequestResponse,
            sizes: vec![64],
            extent: Extent::Messages(50),
            window: 1,
            connections: 1,
            think_us: 500,
            ..parameters()
        };
        let results = on_one_thread(&parameters).unwrap();
        assert_eq!((results[0].messages, results[0].damaged), (50, 0));
        // 49 pauses of 500 us lie between 50 requests.
        assert!(results[0].seconds >= 49.0 * 500e-6, "{kind:?}: {} s", results[0].seconds);
    }
}

/// With a rate, a latency counts from the time at which the request was due. A receiver that needs 200 us for each
/// request cannot keep up with one request per 100 us, so the last of 100 requests is answered 10 ms late.
#[test]
fn latencies_of_an_open_loop_count_from_the_time_at_which_a_request_was_due() {
    let parameters = |rate| Parameters {
        operation: Operation::RequestResponse,
        sizes: vec![64],
        window: 1,
        connections: 1,
        slow_receiver_us: 200,
        rate,
        ..parameters()
    };
    let longest = |rate| {
        let results = on_one_thread(&parameters(rate)).unwrap();
        results[0].latency_ns.expect("requests have latencies")
    };
    let (closed, open) = (longest(None), longest(Some(10_000.0)));
    assert!(open.max >= 9_000_000, "{open:?}");
    assert!(open.p50 >= 2 * closed.p50, "{open:?} {closed:?}");
}

/// Waiter that counts the calls of `breathe`.
#[derive(Clone, Default)]
struct Breaths(Rc<Cell<u64>>);

impl Waiter for Breaths {
    async fn wait(&self, _: Option<&Channel>, _: Option<u64>) {
        yield_now().await;
    }

    fn wants_notification(&self) -> bool {
        false
    }

    async fn breathe(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// In virtual time, a task that always finds work lets time pass only by calls of `breathe`.
#[test]
fn every_workload_breathes_after_each_message() {
    let plain = Parameters { sizes: vec![8], ..parameters() };
    let single = Serving { single_receiver: true, ..Serving::default() };
    // Minimum number of calls of `breathe` at each end, for 100 messages on each of two connections.
    for (parameters, least) in [
        (plain.clone(), [200, 200]),
        (Parameters { bidirectional: true, ..plain.clone() }, [400, 400]),
        (Parameters { serving: single, ..plain.clone() }, [200, 200]),
        (Parameters { kind: Kind::Latency, ..plain.clone() }, [200, 200]),
        (Parameters { operation: Operation::RequestResponse, ..plain.clone() }, [400, 200]),
        (Parameters { operation: Operation::Write, ..plain.clone() }, [200, 0]),
        (Parameters { operation: Operation::Read, kind: Kind::Latency, ..plain.clone() }, [200, 0]),
        (Parameters { protocol: Protocol::DirectReadSend, replicate: true, ..plain.clone() }, [100, 200]),
    ] {
        let waiters = [Breaths::default(), Breaths::default()];
        waiting_by(waiters.clone(), &parameters).unwrap();
        let breaths = waiters.map(|waiter| waiter.0.get());
        assert!(breaths[0] >= least[0] && breaths[1] >= least[1], "{breaths:?} of {least:?}: {parameters:?}");
    }
}

#[test]
fn one_process_reports_refusals_and_closed_peers() {
    let greedy = Parameters { memory_bytes: MEMORY_BYTES + 1, ..parameters() };
    let error = on_one_thread(&greedy).unwrap_err();
    assert!(matches!(&error, SessionError::Peer(reason) if reason.contains("message memory")), "{error}");

    // The asking end is dropped while its point runs.
    let (one, other) = (device(), device());
    let (server, client) = local_pair();
    let endless = Parameters { extent: Extent::Seconds(86_400.0), sizes: vec![16], ..parameters() };
    let progressed = Cell::new(false);
    let asking = async {
        let mut asking = Asking::new(&one, server, OneThread(Spin), endless).await?;
        asking.measure(16, &|_| progressed.set(true)).await.map(drop)
    };
    let until = || if progressed.get() { Err(()) } else { Ok(()) };
    let terms = Terms::open(MEMORY_BYTES);
    let answering = answer(&other, client, &OneThread(Spin), &terms);
    let dropped = async {
        let ended = OneThread(Spin).run(&Spin, [asking], until).await;
        assert!(ended.is_err(), "the session had begun: {ended:?}");
        Ok(())
    };
    type Task<'a> = Pin<Box<dyn Future<Output = Result<(), SessionError>> + 'a>>;
    let tasks: [Task<'_>; 2] = [Box::pin(dropped), Box::pin(answering)];
    let ended = executor::run(&Idle::spin(), tasks);
    let said = ended[1].as_ref().expect_err("the asking end is gone").to_string();
    assert_eq!(said, "the peer is gone: it hung up while a point ran");
}
