//! Ports that go down and come up again, and devices that fail, over both links.

use doorbell_verbs_conformance::common;

use common::*;
use doorbell_verbs::{
    AsyncEvent, Device, Error, LinkCounters, ModifyError, ObjectError, PortError, PortOrder, PortState, QpAttributes,
    QpState, SendOperation, Status,
};

const LENGTH: usize = 10_000;

fn events(device: &Device) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| device.poll_event()).collect()
}

/// Runs `body` with two devices over UDP, and with two devices that share memory.
fn over_both_links(body: impl Fn(&(Device, Device))) {
    for devices in [soft_pair(), shm_pair()] {
        body(&devices);
    }
}

/// Checks that a message from `a` to `b` arrives.
fn reaches(a: &Side, b: &Side, seed: u64) {
    let (from, to) = (a.patterned(LENGTH, seed), b.memory(LENGTH));
    b.post_recv(1, &[to.sge(0, LENGTH)]);
    a.post(2, SendOperation::Send, &[from.sge(0, LENGTH)]);
    a.expect(2);
    b.expect(1);
    assert_bytes(&to, 0, &pattern(LENGTH, seed), "the message");
}

/// Returns the number of packets that a device lost in each direction because its port was down.
fn lost(device: &Device) -> (u64, u64) {
    let LinkCounters { tx_port_down, rx_port_down, .. } = device.link_counters();
    (tx_port_down, rx_port_down)
}

#[test]
fn connections_go_on_if_the_port_returns_in_time() {
    over_both_links(|devices| {
        for owner in [&devices.0, &devices.1] {
            let (a, b) = Plan::rc().connect(devices);
            reaches(&a, &b, 3);
            let before = lost(owner);
            owner.order_port(PortOrder::Down).unwrap();
            assert_eq!(owner.port_state().unwrap(), PortState::Down);
            let (from, to) = (a.patterned(LENGTH, 4), b.memory(LENGTH));
            b.post_recv(5, &[to.sge(0, LENGTH)]);
            a.post(6, SendOperation::Send, &[from.sge(0, LENGTH)]);
            eventually("packets were lost", || {
                devices.0.drive();
                devices.1.drive();
                lost(owner) != before
            });
            owner.order_port(PortOrder::Up).unwrap();
            assert_eq!(owner.port_state().unwrap(), PortState::Active);
            a.expect(6);
            b.expect(5);
            assert_bytes(&to, 0, &pattern(LENGTH, 4), "the message");
            let expected = [AsyncEvent::PortError(1), AsyncEvent::PortActive(1), AsyncEvent::GidChange(1)];
            assert_eq!(events(owner), expected);
        }
    });
}

#[test]
fn a_port_that_stays_down_ends_the_retries() {
    over_both_links(|devices| {
        let brief = Plan { timeout: 8, retry_count: 2, ..Plan::rc() };
        let (a, _b) = brief.connect(devices);
        devices.1.order_port(PortOrder::Down).unwrap();
        let from = a.patterned(LENGTH, 1);
        a.post(1, SendOperation::Send, &[from.sge(0, LENGTH)]);
        a.post(2, SendOperation::Send, &[from.sge(0, LENGTH)]);
        a.expect_failure(1, Status::RetryExceeded);
        a.expect_failure(2, Status::WorkRequestFlushed);
        assert_eq!(a.qp.query().state, QpState::Error);
        devices.1.order_port(PortOrder::Up).unwrap();
        let (a, b) = Plan::rc().connect(devices);
        reaches(&a, &b, 2);
    });
}

#[test]
fn a_device_that_fails_ends_its_work_and_its_calls() {
    over_both_links(|devices| {
        let (a, b) = Plan { timeout: 8, retry_count: 2, ..Plan::rc() }.connect(devices);
        let to = b.memory(LENGTH);
        b.post_recv(1, &[to.sge(0, LENGTH)]);
        devices.1.order_port(PortOrder::DeviceFatal).unwrap();
        b.expect_failure(1, Status::WorkRequestFlushed);
        b.post_recv(2, &[to.sge(0, LENGTH)]);
        b.expect_failure(2, Status::WorkRequestFlushed);
        assert_eq!(events(&devices.1), [AsyncEvent::DeviceFatal]);
        let (pd, cq) = (devices.1.create_pd().map(|_| ()), devices.1.create_cq(1).map(|_| ()));
        assert!(matches!(pd, Err(Error::Object(ObjectError::DeviceFatal))), "{pd:?}");
        assert!(matches!(cq, Err(Error::Object(ObjectError::DeviceFatal))), "{cq:?}");
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        assert_eq!(b.qp.modify(&reset), Err(ModifyError::DeviceFatal));
        assert!(matches!(devices.1.port_state(), Err(Error::Port(PortError::DeviceFatal))));
        let up = devices.1.order_port(PortOrder::Up);
        assert!(matches!(up, Err(Error::Port(PortError::DeviceFatal))), "{up:?}");
        // The peer notices the failure only by its retries.
        let from = a.patterned(LENGTH, 1);
        a.post(3, SendOperation::Send, &[from.sge(0, LENGTH)]);
        a.expect_failure(3, Status::RetryExceeded);
    });
}

#[test]
fn an_order_without_effect_is_refused() {
    let (device, _) = soft_pair();
    let error = |order| device.order_port(order).unwrap_err().to_string();
    assert_eq!(error(PortOrder::Up), "the port is up already: only a port that is down can come up");
    device.order_port(PortOrder::Down).unwrap();
    assert_eq!(error(PortOrder::Down), "the port is down already: only a port that is up can go down");
}
