//! Tests that verification finds wrong bytes.

use doorbell_verbs::soft::{self, SoftOptions};

use super::*;
use crate::executor::{self, Idle};
use doorbell_record::{Extent, Kind};

const BYTES: usize = 100;

fn parameters(operation: Operation) -> Parameters {
    Parameters {
        sizes: vec![],
        extent: Extent::Messages(50),
        window: 8,
        depth: 64,
        depths_are_defaults: false,
        batch: 4,
        inline: 0,
        verify: true,
        memory_bytes: 1 << 20,
        ..Parameters::plain(Kind::Bandwidth, operation, BYTES)
    }
}

/// Runs 50 operations after `tamper` has changed the target's memory. Returns three numbers of damaged messages: as
/// counted by the initiator, as counted by the target, and as counted by the target after one byte was changed.
fn damage(operation: Operation, tamper: impl Fn(&Region)) -> (u64, u64, u64) {
    let parameters = parameters(operation);
    let bytes = if operation.is_atomic() { 8 } else { BYTES };
    let fitted = parameters.fit(bytes).unwrap();
    let end = |side| {
        let device = soft::open(&SoftOptions::default()).unwrap();
        End::new(&device.create_pd().unwrap(), &parameters, bytes, &fitted, side).unwrap()
    };
    let (initiator, target) = (end(Role::Initiator(None)), end(Role::Target));
    initiator.connect(&target.description()).unwrap();
    target.connect(&initiator.description()).unwrap();
    tamper(&target.region);
    let plan = Plan {
        bytes,
        window: fitted.window,
        in_rounds: false,
        extent: parameters.extent,
        rate: None,
        think_ns: 0,
        verify: true,
        buffers: fitted.send_buffers,
    };
    let idle = Idle::spin();
    let task = stream(&initiator, target.memory(), &parameters, &fitted, plan, idle.clone(), &|_| {});
    let (tally, histogram) = executor::run(&idle, [task]).remove(0).unwrap();
    assert_eq!((tally.sent, histogram.len()), (50, 50), "each operation has a latency");
    let at_target = || target.damaged(operation, bytes, fitted.send_buffers, tally.sent);
    let before = at_target();
    let byte = target.region.load_acquire_u8(3);
    target.region.store_release_u8(3, byte ^ 1);
    (tally.damaged, before, at_target())
}

#[test]
fn a_wrong_byte_after_a_write_is_found() {
    assert_eq!(damage(Operation::Write, |_| {}), (0, 0, 1));
}

#[test]
fn each_read_of_a_wrong_byte_is_found() {
    assert_eq!(damage(Operation::Read, |_| {}).0, 0);
    // Of 50 READs over 8 slots, each of the first two slots gets seven READs, and each other slot six.
    let flip = |region: &Region, offset| region.store_release_u8(offset, region.load_acquire_u8(offset) ^ 0x80);
    assert_eq!(damage(Operation::Read, |region| flip(region, 0)).0, 7);
    assert_eq!(damage(Operation::Read, |region| flip(region, 7 * stride(BYTES) + BYTES - 1)).0, 6);
    // Bytes beyond the message are not checked.
    assert_eq!(damage(Operation::Read, |region| flip(region, BYTES)).0, 0);
}

#[test]
fn wrong_atomics_are_found() {
    for operation in [Operation::FetchAdd, Operation::CompareSwap] {
        assert_eq!(damage(operation, |_| {}), (0, 0, 50), "{operation:?}");
        // The word has a wrong value, as if another initiator had used it before.
        assert_eq!(damage(operation, |region| region.store_release_u64(0, 500)), (50, 50, 50), "{operation:?}");
    }
}

/// Operations of a list complete together. In an open loop, a latency begins when the operation was due.
#[test]
fn latencies_begin_with_the_post_or_when_the_operation_was_due() {
    let device = soft::open(&SoftOptions::default()).unwrap();
    let latencies = |rate| {
        let plan = Plan {
            bytes: BYTES,
            window: 8,
            in_rounds: false,
            extent: Extent::Messages(6),
            rate,
            think_ns: 0,
            verify: false,
            buffers: 8,
        };
        let pace = Pace::start(&device, &plan);
        let mut latencies = Latencies::new();
        // Posted a second late.
        let now_ns = pace.began_ns() + 1_000_000_000;
        latencies.posted(0, 4, now_ns, &pace);
        latencies.posted(4, 6, now_ns, &pace);
        assert_eq!(latencies.outstanding.len(), if rate.is_some() { 6 } else { 2 });
        let since = latencies.outstanding.iter().map(|(_, since_ns)| now_ns - since_ns).collect::<Vec<_>>();
        latencies.completed(4, &device);
        assert_eq!((latencies.recorded, latencies.histogram.len()), (4, 4));
        latencies.completed(6, &device);
        assert_eq!((latencies.recorded, latencies.histogram.len()), (6, 6));
        since
    };
    assert_eq!(latencies(None), [0, 0]);
    assert_eq!(latencies(Some(10.0)), [1000, 900, 800, 700, 600, 500].map(|ms: u64| ms * 1_000_000));
}

/// Both operations of a connection are half an interval of 20 ms later than those of a connection without a phase.
#[test]
fn operations_at_a_rate_are_delayed_by_the_phase() {
    let parameters = Parameters { batch: 1, ..parameters(Operation::Write) };
    let fitted = parameters.fit(BYTES).unwrap();
    let end = |side| {
        let device = soft::open(&SoftOptions::default()).unwrap();
        End::new(&device.create_pd().unwrap(), &parameters, BYTES, &fitted, side).unwrap()
    };
    let (mut initiator, target) = (end(Role::Initiator(None)), end(Role::Target));
    initiator.connect(&target.description()).unwrap();
    target.connect(&initiator.description()).unwrap();
    initiator.phase = 0.5;
    let plan = Plan {
        bytes: BYTES,
        window: fitted.window,
        in_rounds: false,
        extent: Extent::Messages(2),
        rate: Some(50.0),
        think_ns: 0,
        verify: false,
        buffers: fitted.send_buffers,
    };
    let idle = Idle::spin();
    let task = stream(&initiator, target.memory(), &parameters, &fitted, plan, idle.clone(), &|_| {});
    let (tally, _) = executor::run(&idle, [task]).remove(0).unwrap();
    let lasted_ns = tally.ended_ns - tally.began_ns;
    assert!(tally.sent == 2 && lasted_ns >= 30_000_000, "{lasted_ns} ns");
}

/// The target's memory permits only the measured operation.
#[test]
fn a_target_allows_only_its_operation() {
    let given = parameters(Operation::Read);
    let fitted = given.fit(BYTES).unwrap();
    let end = |parameters: &Parameters, side| {
        let device = soft::open(&SoftOptions::default()).unwrap();
        End::new(&device.create_pd().unwrap(), parameters, BYTES, &fitted, side).unwrap()
    };
    let asked = parameters(Operation::Write);
    let (initiator, target) = (end(&asked, Role::Initiator(None)), end(&given, Role::Target));
    initiator.connect(&target.description()).unwrap();
    target.connect(&initiator.description()).unwrap();
    let plan = Plan {
        bytes: BYTES,
        window: fitted.window,
        in_rounds: false,
        extent: given.extent,
        rate: None,
        think_ns: 0,
        verify: true,
        buffers: fitted.send_buffers,
    };
    let idle = Idle::spin();
    let task = stream(&initiator, target.memory(), &asked, &fitted, plan, idle.clone(), &|_| {});
    let error = executor::run(&idle, [task]).remove(0).unwrap_err();
    assert!(matches!(error, ConnectionError::PeerRefused(Status::RemoteAccess)), "{error}");
}
