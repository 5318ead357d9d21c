//! Tests that the link of a device counts the packets that it loses, and still carries all other packets.

use doorbell_verbs_conformance::common;

use common::*;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{
    AddressVector, Device, LinkCounters, PathMtu, QpKind, SendOperation, SendRequest, Status, UdDestination,
};

use crate::namespace;

/// Returns the counters of lost packets of a device's link, with all other counters set to zero.
fn lost(device: &Device) -> LinkCounters {
    LinkCounters { tx_udp_packets: 0, ..device.link_counters() }
}

/// Checks that a message from `a` to `b` arrives intact.
fn reaches(a: &Side, b: &Side, length: usize) {
    let (from, to) = (a.patterned(length, 9), b.memory(length));
    b.post_recv(91, &[to.sge(0, length)]);
    a.post(90, SendOperation::Send, &[from.sge(0, length)]);
    a.expect(90);
    b.expect(91);
    assert_bytes(&to, 0, &pattern(length, 9), "the message");
}

#[test]
fn a_receive_buffer_that_is_too_small_shows_as_overflows() {
    const DEPTH: usize = 512;
    const LENGTH: usize = 1024;
    let over_udp = SoftOptions { link: Some(LinkChoice::Udp), ..SoftOptions::default() };
    let tiny = SoftOptions { receive_buffer_bytes: Some(8192), ..over_udp.clone() };
    let devices = (open_soft(over_udp), open_soft(tiny));
    // UD does not limit the number of datagrams in flight, so the sender can overflow the receive buffer.
    let plan = Plan { depth: DEPTH, cq_depth: 2 * DEPTH, ..Plan::new(QpKind::Ud) };
    let (a, b) = plan.connect(&devices);
    let from = a.patterned(LENGTH, 1);
    let sges = [from.sge(0, LENGTH)];
    let list: Vec<_> = (0..DEPTH as u64).map(|wr_id| datagram(wr_id, SendOperation::Send, &sges, &b)).collect();
    eventually("more arrived than the buffer holds", || {
        a.qp.post_send(&list).unwrap();
        a.reap(DEPTH);
        devices.1.link_counters().rx_overflow > 0
    });
    assert_eq!(lost(&devices.0), LinkCounters::default(), "the sender counts losses");
    let at_receiver = lost(&devices.1);
    assert_eq!(at_receiver, LinkCounters { rx_overflow: at_receiver.rx_overflow, ..LinkCounters::default() });
    // A reliable connection works even with this small receive buffer.
    let (a, b) = Plan::rc().connect(&devices);
    reaches(&a, &b, 100_000);
}

/// Sends more datagrams than the memory between two devices holds. Returns the number that the link has dropped, and
/// checks all datagrams if that is 0.
fn outrun() -> u64 {
    const DATAGRAMS: usize = 1 << 14;
    const LENGTH: usize = 4096;
    const HEADER: usize = 40;
    let devices = shm_pair();
    let plan = Plan { depth: DATAGRAMS, cq_depth: 2 * DATAGRAMS, sges: 1, ..Plan::new(QpKind::Ud) };
    let (a, b) = plan.connect(&devices);
    let (from, to) = (a.patterned(LENGTH, 1), b.memory(HEADER + LENGTH));
    (0..DATAGRAMS as u64).for_each(|wr_id| b.post_recv(wr_id, &[to.sge(0, HEADER + LENGTH)]));
    let sges = [from.sge(0, LENGTH)];
    for wr_id in 0..DATAGRAMS as u64 {
        a.qp.post_send(&[datagram(wr_id, SendOperation::Send, &sges, &b)]).unwrap();
    }
    for (side, bytes) in [(&a, LENGTH), (&b, HEADER + LENGTH)] {
        for (number, completion) in side.reap(DATAGRAMS).into_iter().enumerate() {
            let expected = (number as u64, Status::Success, bytes as u32);
            assert_eq!((completion.wr_id, completion.status, completion.byte_len), expected);
        }
        let dropped = devices.0.link_counters().tx_ring_full;
        if dropped > 0 {
            return dropped;
        }
    }
    assert_bytes(&to, HEADER, &pattern(LENGTH, 1), "the last datagram");
    0
}

#[test]
fn datagrams_through_memory_arrive_if_the_sender_posts_more_than_the_memory_holds() {
    // On a machine that stands still for 200 ms, the link rightly drops datagrams.
    assert!((0..3).any(|_| outrun() == 0), "datagrams were lost in each of three runs");
}

#[test]
fn datagrams_without_a_route_are_counted() {
    namespace::within(|| {
        let pairs = [(soft_pair(), "198.51.100.1"), (namespace::soft_pair(), "2001:db8::1")];
        for (devices, nowhere) in pairs {
            let (a, b) = Plan::new(QpKind::Ud).connect(&devices);
            let destination =
                UdDestination { address: AddressVector::to(nowhere.parse().unwrap()), ..b.as_destination() };
            let request = inline(1, SendOperation::Send, b"lost");
            a.qp.post_send(&[SendRequest { destination: Some(destination), ..request }]).unwrap();
            a.expect(1);
            let expected = LinkCounters { tx_unreachable: 1, ..LinkCounters::default() };
            eventually("the kernel refused the datagram", || lost(&devices.0) == expected);
            let (a, b) = Plan::rc().connect(&devices);
            reaches(&a, &b, 1000);
        }
    });
}

/// Shrinks the MTU of the interface below the path MTU of existing connections.
fn an_mtu_that_shrinks(devices: &(Device, Device)) {
    assert_eq!(devices.0.attributes().active_mtu, PathMtu::Mtu4096);
    let large = Plan { mtu: PathMtu::Mtu4096, ..Plan::rc() };
    let small = Plan { mtu: PathMtu::Mtu1024, ..Plan::rc() };
    let (a, b) = large.connect(devices);
    let (c, d) = small.connect(devices);
    reaches(&a, &b, 20_000);
    namespace::ip("link set lo mtu 1500");
    assert_eq!(lost(&devices.0), LinkCounters::default());
    let from = a.patterned(20_000, 1);
    a.post(1, SendOperation::Send, &[from.sge(0, 20_000)]);
    // The large packets of `a` are lost until its retries end. Meanwhile, the device must not delay its other
    // connections.
    reaches(&c, &d, 20_000);
    a.expect_failure(1, Status::RetryExceeded);
    let counted = lost(&devices.0);
    assert!(counted.tx_oversize >= 1, "{counted:?}");
    assert_eq!(counted, LinkCounters { tx_oversize: counted.tx_oversize, ..LinkCounters::default() });
    reaches(&c, &d, 20_000);
    // Once the MTU of the interface is large again, large packets pass.
    namespace::ip("link set lo mtu 65536");
    let (a, b) = large.connect(devices);
    reaches(&a, &b, 20_000);
    assert_eq!(lost(&devices.0), counted);
}

#[test]
fn packets_beyond_the_mtu_are_counted_and_end_the_retries() {
    namespace::within(|| an_mtu_that_shrinks(&soft_pair()));
}

#[test]
fn packets_beyond_the_mtu_are_counted_over_ipv6_too() {
    namespace::within(|| an_mtu_that_shrinks(&namespace::soft_pair()));
}

#[test]
fn a_device_takes_the_path_mtu_that_its_interface_carries() {
    namespace::within(|| {
        for (mtu, over_ipv4, over_ipv6) in
            [(9000, 4096, 4096), (4170, 4096, 2048), (1500, 1024, 1024), (1280, 1024, 1024)]
        {
            namespace::ip(&format!("link set lo mtu {mtu}"));
            for (devices, bytes) in [(soft_pair(), over_ipv4), (namespace::soft_pair(), over_ipv6)] {
                let active = devices.0.attributes().active_mtu;
                assert_eq!(
                    active.bytes(),
                    bytes,
                    "path MTU of an interface with MTU {mtu} at {}",
                    devices.0.attributes().address
                );
                let (a, b) = Plan { mtu: active, ..Plan::rc() }.connect(&devices);
                reaches(&a, &b, 3 * bytes + 1);
                let largest = a.qp.query().attributes.path_mtu;
                assert_eq!(largest, Some(active));
                assert_eq!(lost(&devices.0), LinkCounters::default());
            }
        }
    });
}
