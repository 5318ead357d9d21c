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
    let tally = executor::run(&idle, [task]).remove(0).unwrap();
    assert_eq!(tally.sent, 50);
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
