use doorbell_exchange::send_receive::CREDIT_RECEIVES;

use super::*;
use crate::serving::SharedBy;

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
fn fit_keeps_the_memory_cap_or_fails() {
    let mut fits = 0;
    for connections in [1, 2, 16, 4096] {
        for size in [0, 1, 4096, 1 << 20, 1 << 30] {
            for (window, inline) in [(1, 0), (64, 64), (256, 1024)] {
                let given = Parameters { connections, window, inline, batch: 1, sizes: vec![size], ..parameters() };
                let Ok(fitted) = given.fit(size) else {
                    assert_eq!(given.check().unwrap_err().setting, Setting::Memory);
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
fn each_setting_has_bounds() {
    let good = parameters;
    good().check().unwrap();
    let served = |serving| Parameters { serving, ..good() };
    let threads = Serving { threads: 2, ..Serving::default() };
    let single = Serving { single_receiver: true, ..Serving::default() };
    let shared = Serving { shared_receives: Some(SharedBy::Lock), ..Serving::default() };
    use Setting::*;
    use doorbell_protocols::Protocol;
    for (wrong, setting) in [
        (Parameters { sizes: vec![], ..good() }, Sizes),
        (Parameters { sizes: vec![1; 2000], ..good() }, Sizes),
        (Parameters { sizes: vec![16, usize::MAX], ..good() }, Size),
        (Parameters { extent: Extent::Messages(0), ..good() }, Messages),
        (Parameters { extent: Extent::Messages(u64::MAX), ..good() }, Messages),
        (Parameters { extent: Extent::Seconds(-1.0), ..good() }, Seconds),
        (Parameters { extent: Extent::Seconds(f64::NAN), ..good() }, Seconds),
        (Parameters { extent: Extent::Seconds(1e300), ..good() }, Seconds),
        (Parameters { window: 0, ..good() }, Window),
        (Parameters { window: usize::MAX, ..good() }, Window),
        (Parameters { depth: 0, ..good() }, Depth),
        (Parameters { depth: 16_384, connections: 100, ..good() }, Depth),
        (Parameters { batch: 0, ..good() }, Batch),
        (Parameters { batch: 8, window: 4, ..good() }, Batch),
        (Parameters { inline: usize::MAX, ..good() }, Inline),
        (Parameters { connections: 0, ..good() }, Connections),
        (Parameters { connections: usize::MAX, ..good() }, Connections),
        (Parameters { bidirectional: true, kind: Kind::Latency, ..good() }, Bidirectional),
        (Parameters { bidirectional: true, operation: Operation::Read, ..good() }, Bidirectional),
        (Parameters { bidirectional: true, operation: Operation::RequestResponse, ..good() }, Bidirectional),
        (Parameters { operation: Operation::FetchAdd, ..good() }, Size),
        (Parameters { operation: Operation::Write, slow_receiver_us: 1, ..good() }, SlowReceiver),
        (Parameters { protocol: Protocol::DirectRead, operation: Operation::Write, ..good() }, Setting::Protocol),
        (Parameters { protocol: Protocol::SharedWrite, credits: false, ..good() }, Credits),
        (Parameters { protocol: Protocol::DirectWrite, events: true, ..good() }, Events),
        (Parameters { protocol: Protocol::DirectWrite, ..served(single) }, SingleReceiver),
        (Parameters { protocol: Protocol::DirectRead, ..served(shared) }, SharedReceives),
        (Parameters { protocol: Protocol::DirectRead, replicate: true, ..good() }, Replicate),
        (Parameters { replicate: true, ..good() }, Replicate),
        (Parameters { protocol: Protocol::DirectReadSend, replicate: true, kind: Kind::Latency, ..good() }, Replicate),
        (Parameters { mtu: Some(1500), ..good() }, Mtu),
        (Parameters { rate: Some(0.0), ..good() }, Rate),
        (Parameters { rate: Some(f64::INFINITY), ..good() }, Rate),
        (Parameters { slow_receiver_us: u64::MAX, ..good() }, SlowReceiver),
        (Parameters { timeout: 32, ..good() }, Timeout),
        (Parameters { retry_count: 8, ..good() }, RetryCount),
        (Parameters { rnr_retry: 8, ..good() }, RnrRetry),
        (Parameters { memory_bytes: 0, ..good() }, Memory),
        (Parameters { memory_bytes: usize::MAX, ..good() }, Memory),
        (Parameters { sizes: vec![1 << 30], ..good() }, Memory),
        (served(Serving { threads: 0, ..Serving::default() }), Threads),
        (served(Serving { threads: 2, ..Serving::default() }), Threads),
        (Parameters { bidirectional: true, connections: 2, ..served(threads) }, Threads),
        (Parameters { events: true, ..served(single) }, SingleReceiver),
        (Parameters { operation: Operation::Write, ..served(shared) }, SharedReceives),
        (Parameters { connections: 200, ..served(shared) }, Depth),
        (served(Serving { poll_list: 33, ..Serving::default() }), PollList),
        (served(Serving { repost_list: 0, ..Serving::default() }), RepostList),
    ] {
        let error = wrong.check().expect_err("the parameter is out of range");
        assert_eq!(error.setting, setting, "{error}");
    }
}
