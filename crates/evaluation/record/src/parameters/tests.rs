use doorbell_exchange::send_receive::CREDIT_RECEIVES;

use super::*;
use crate::serving::SharedBy;
use crate::settings::*;

fn parameters() -> Parameters {
    Parameters { batch: 8, depths_are_defaults: false, ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16) }
}

#[test]
fn fit_reduces_only_oversized_parameters() {
    let fitted = parameters().fit(16).unwrap();
    assert_eq!((fitted.window, fitted.depth, fitted.send_buffers, fitted.notes.len()), (64, 128, 64, 0));
    for verify in [false, true] {
        let parameters = Parameters { verify, ..parameters() };
        let fitted = parameters.fit(8 << 20).unwrap();
        assert!((fitted.depth + CREDIT_RECEIVES + fitted.send_buffers) << 23 <= parameters.memory_bytes);
        assert_eq!(fitted.notes.len(), 2);
        assert_eq!(fitted.window < 64, verify, "only verified messages need a buffer for each window slot");
    }
    // A quarter of the memory is reserved for sending.
    let fitted = Parameters { verify: true, ..parameters() }.fit(1 << 20).unwrap();
    assert_eq!((fitted.window, fitted.send_buffers), (64, 64));
}

#[test]
fn all_slots_of_the_window_share_a_given_number_of_buffers() {
    let sharing = |buffers| Parameters { buffers: Some(buffers), ..parameters() };
    for (buffers, send_buffers) in [(1, 1), (5, 5), (64, 64), (1000, 64)] {
        let fitted = sharing(buffers).fit(4096).unwrap();
        assert_eq!((fitted.window, fitted.depth, fitted.send_buffers), (64, 128, send_buffers));
        assert_eq!(fitted.notes, [""; 0], "the user has asked for it");
        assert_eq!(sharing(buffers).config(4096, &fitted).discard_into, Some(buffers));
    }
    // The memory cap limits the number of buffers too.
    assert_eq!(sharing(64).fit(8 << 20).unwrap().send_buffers, parameters().fit(8 << 20).unwrap().send_buffers);
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        Parameters { operation, ..sharing(1) }.check().unwrap();
    }
}

#[test]
fn fit_keeps_the_memory_cap_or_fails() {
    let mut fits = 0;
    for connections in [1, 2, 16, 4096] {
        for size in [0, 1, 4096, 1 << 20, 1 << 30] {
            for (window, inline) in [(1, 0), (64, 64), (256, 1024)] {
                let given = Parameters { connections, window, inline, batch: 1, sizes: vec![size], ..parameters() };
                let Ok(fitted) = given.fit(size) else {
                    assert_eq!(given.check().unwrap_err().setting, &MEMORY);
                    continue;
                };
                fits += 1;
                assert!(fitted.depth >= 1 && fitted.send_buffers >= 1 && fitted.window >= 1);
                let buffers = fitted.depth + CREDIT_RECEIVES + fitted.send_buffers;
                for bytes in [buffers * stride(size), 2 * window * inline] {
                    assert!(connections * bytes <= given.memory_bytes, "{connections} {size} {window} {inline}");
                }
            }
        }
    }
    assert!(fits > 20, "{fits}");
}

#[test]
fn buffers_have_space_for_request_and_reply() {
    let of = |operation, reply| Parameters { reply, ..Parameters::plain(Kind::Bandwidth, operation, 200) };
    let answered = of(Operation::RequestResponse, Some(65_536));
    answered.check().unwrap();
    assert_eq!(
        (answered.reply_bytes(200), answered.longest(200), answered.longest(1 << 20)),
        (65_536, 65_536, 1 << 20)
    );
    // The window shrinks as for messages of the longer size.
    let long = of(Operation::RequestResponse, None);
    assert_eq!(answered.fit(200), long.fit(65_536));
    assert_eq!(answered.stride(200), long.stride(65_536));
    for alike in [of(Operation::RequestResponse, None), of(Operation::Send, Some(0)), of(Operation::Send, None)] {
        alike.check().unwrap();
        assert_eq!((alike.reply_bytes(200), alike.longest(200)), (200, 200));
    }
}

#[test]
fn each_setting_has_bounds() {
    let good = parameters;
    good().check().unwrap();
    let served = |serving| Parameters { serving, ..good() };
    let threads = Serving { threads: 2, ..Serving::default() };
    let single = Serving { single_receiver: true, ..Serving::default() };
    let shared = Serving { shared_receives: Some(SharedBy::Lock), ..Serving::default() };
    use doorbell_protocols::Protocol;
    for (wrong, setting) in [
        (Parameters { sizes: vec![], ..good() }, &SIZES),
        (Parameters { sizes: vec![1; 2000], ..good() }, &SIZES),
        (Parameters { sizes: vec![16, usize::MAX], ..good() }, &SIZE),
        (Parameters { extent: Extent::Messages(0), ..good() }, &MESSAGES),
        (Parameters { extent: Extent::Messages(u64::MAX), ..good() }, &MESSAGES),
        (Parameters { extent: Extent::Seconds(-1.0), ..good() }, &SECONDS),
        (Parameters { extent: Extent::Seconds(f64::NAN), ..good() }, &SECONDS),
        (Parameters { extent: Extent::Seconds(1e300), ..good() }, &SECONDS),
        (Parameters { window: 0, ..good() }, &WINDOW),
        (Parameters { window: usize::MAX, ..good() }, &WINDOW),
        (Parameters { depth: 0, ..good() }, &DEPTH),
        (Parameters { depth: 16_384, connections: 100, ..good() }, &DEPTH),
        (Parameters { buffers: Some(0), ..good() }, &BUFFERS),
        (Parameters { buffers: Some(1), verify: true, ..good() }, &BUFFERS),
        (Parameters { buffers: Some(1), protocol: Protocol::DirectRead, ..good() }, &BUFFERS),
        (Parameters { buffers: Some(1), transport: Transport::Uc, ..good() }, &BUFFERS),
        (Parameters { buffers: Some(1), operation: Operation::RequestResponse, ..good() }, &BUFFERS),
        (Parameters { buffers: Some(1), ..served(shared) }, &BUFFERS),
        (Parameters { batch: 0, ..good() }, &BATCH),
        (Parameters { batch: 8, window: 4, ..good() }, &BATCH),
        (Parameters { inline: usize::MAX, ..good() }, &INLINE),
        (Parameters { connections: 0, ..good() }, &CONNECTIONS),
        (Parameters { connections: usize::MAX, ..good() }, &CONNECTIONS),
        (Parameters { bidirectional: true, kind: Kind::Latency, ..good() }, &BIDIRECTIONAL),
        (Parameters { bidirectional: true, operation: Operation::Read, ..good() }, &BIDIRECTIONAL),
        (Parameters { bidirectional: true, operation: Operation::RequestResponse, ..good() }, &BIDIRECTIONAL),
        (Parameters { operation: Operation::FetchAdd, ..good() }, &SIZE),
        (Parameters { reply: Some(usize::MAX), operation: Operation::RequestResponse, ..good() }, &REPLY),
        (Parameters { reply: Some(0), operation: Operation::RequestResponse, ..good() }, &REPLY),
        (Parameters { reply: Some(64), ..good() }, &REPLY),
        (Parameters { reply: Some(1 << 30), operation: Operation::RequestResponse, ..good() }, &MEMORY),
        (Parameters { think_us: 5, ..good() }, &THINK),
        (Parameters { think_us: 5, rate: Some(1.0), operation: Operation::RequestResponse, ..good() }, &THINK),
        (Parameters { think_us: u64::MAX, operation: Operation::RequestResponse, ..good() }, &THINK),
        (Parameters { operation: Operation::Write, slow_receiver_us: 1, ..good() }, &SLOW_RECEIVER),
        (Parameters { protocol: Protocol::DirectRead, operation: Operation::Write, ..good() }, &PROTOCOL),
        (Parameters { protocol: Protocol::SharedWrite, credits: false, ..good() }, &CREDITS),
        (Parameters { protocol: Protocol::DirectWrite, events: true, ..good() }, &EVENTS),
        (Parameters { protocol: Protocol::DirectWrite, ..served(single) }, &SINGLE_RECEIVER),
        (Parameters { protocol: Protocol::DirectRead, ..served(shared) }, &SHARED_RECEIVES),
        (Parameters { protocol: Protocol::DirectRead, replicate: true, ..good() }, &REPLICATE),
        (Parameters { replicate: true, ..good() }, &REPLICATE),
        (Parameters { protocol: Protocol::DirectReadSend, replicate: true, kind: Kind::Latency, ..good() }, &REPLICATE),
        (Parameters { mtu: Some(1500), ..good() }, &MTU),
        (Parameters { rate: Some(0.0), ..good() }, &RATE),
        (Parameters { rate: Some(f64::INFINITY), ..good() }, &RATE),
        (Parameters { slow_receiver_us: u64::MAX, ..good() }, &SLOW_RECEIVER),
        (Parameters { timeout: 32, ..good() }, &TIMEOUT),
        (Parameters { retry_count: 8, ..good() }, &RETRY_COUNT),
        (Parameters { rnr_retry: 8, ..good() }, &RNR_RETRY),
        (Parameters { memory_bytes: 0, ..good() }, &MEMORY),
        (Parameters { memory_bytes: usize::MAX, ..good() }, &MEMORY),
        (Parameters { sizes: vec![1 << 30], ..good() }, &MEMORY),
        (served(Serving { threads: 0, ..Serving::default() }), &THREADS),
        (served(Serving { threads: 2, ..Serving::default() }), &THREADS),
        (Parameters { bidirectional: true, connections: 2, ..served(threads) }, &THREADS),
        (Parameters { events: true, ..served(single) }, &SINGLE_RECEIVER),
        (served(Serving { server_threads: 65, ..Serving::default() }), &SERVER_THREADS),
        (served(Serving { server_threads: 2, ..single }), &SERVER_THREADS),
        (
            Parameters {
                operation: Operation::Read,
                connections: 2,
                ..served(Serving { server_threads: 2, ..threads })
            },
            &SERVER_THREADS,
        ),
        (Parameters { operation: Operation::Write, ..served(shared) }, &SHARED_RECEIVES),
        (Parameters { connections: 200, ..served(shared) }, &DEPTH),
        (served(Serving { poll_list: 33, ..Serving::default() }), &POLL_LIST),
        (served(Serving { repost_list: 0, ..Serving::default() }), &REPOST_LIST),
    ] {
        let error = wrong.check().expect_err("the parameter is out of range");
        assert_eq!(error.setting, setting, "{error}");
    }
    // The depth of connections that share receives is that of all connections together.
    let sharing = Parameters { connections: 1000, depth: 16_384, ..served(shared) };
    sharing.check().unwrap();
    let beyond = Parameters { depth: 16_385, ..sharing }.check().unwrap_err();
    assert_eq!((beyond.setting, beyond.allowed.as_str()), (&DEPTH, "1 to 16384"));
}
