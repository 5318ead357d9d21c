//! Memory that is paged on demand and may be absent when the device accesses it.

use std::sync::{Arc, Mutex};

use crate::common::script::{OWN, PEER_PSN, PEER_QPN, Script, nak_of};
use crate::common::{End, QKEY};
use doorbell_rnic::Pager;
use doorbell_verbs_core::{
    Access, Payload, QpKind, RecvRequest, SendFlags, SendOperation as Op, SendRequest, Sge, Status,
};
use doorbell_wire::{NakCode, Opcode, PathMtu};

/// Number of present bytes at the start of the memory of a node: `readable` for reading, `writable` for writing.
#[derive(Default)]
struct Present {
    base: usize,
    readable: usize,
    writable: usize,
    asked: usize,
}

struct Pages(Arc<Mutex<Present>>);

impl Pager for Pages {
    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool {
        let mut present = self.0.lock().unwrap();
        present.asked += 1;
        let there = if written { present.writable } else { present.readable };
        (base as usize).checked_sub(present.base).is_some_and(|offset| offset + length <= there)
    }
}

const LENGTH: usize = 1024;

/// Creates a queue pair and a region. The first half of the region is readable, the first quarter is writable.
fn start() -> (Script, Arc<doorbell_rnic::Region>, Arc<Mutex<Present>>) {
    let mut script = Script::new();
    let base = script.world.nodes[OWN].memory.base() as usize;
    let present = Present { base, readable: LENGTH / 2, writable: LENGTH / 4, asked: 0 };
    let present = Arc::new(Mutex::new(present));
    script.rnic().page_with(Arc::new(Pages(Arc::clone(&present))));
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region = script.region(0, LENGTH, all | Access::ON_DEMAND);
    (script, region, present)
}

#[test]
fn a_send_from_memory_that_is_gone_ends_with_an_error() {
    for (offset, status) in [(0, None), (256, None), (257, Some(Status::LocalProtection))] {
        let (mut script, region, _) = start();
        let sges = [Sge { address: region.address() + offset, length: 256, lkey: region.lkey() }];
        let (now_ns, qpn) = (script.world.now_ns, script.qpn);
        let payload = Payload::Sges(&sges);
        let send = SendRequest { wr_id: 3, operation: Op::Send, flags: SendFlags::empty(), payload, destination: None };
        script.rnic().post_send(now_ns, qpn, &[send]).expect("missing memory may become present before it is sent");
        assert_eq!(script.sent().len(), usize::from(status.is_none()));
        let ends: Vec<_> = script.ends().iter().map(|end| end.1).collect();
        assert_eq!(ends, Vec::from_iter(status), "{offset}");
    }
}

#[test]
fn a_receive_into_memory_that_is_gone_ends_with_an_error() {
    for (offset, status) in [(128, Status::Success), (129, Status::LocalProtection)] {
        let (mut script, region, _) = start();
        let sges = [Sge { address: region.address() + offset, length: 128, lkey: region.lkey() }];
        let qpn = script.qpn;
        script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 3, sges: &sges }]).expect("the queue has room");
        let said = script.say(Opcode::RC_SEND_ONLY).payload(&[1; 128]);
        script.hear(&said);
        assert_eq!(script.ends(), [(3, status)], "{offset}");
    }
}

#[test]
fn remote_access_to_missing_memory_is_refused() {
    // The responder notices the unreadable memory of the READ only when it builds the response. The READ therefore
    // gets another NAK code than the WRITE and the atomic.
    let cases = [
        (Opcode::RC_WRITE_ONLY, 248, None),
        (Opcode::RC_WRITE_ONLY, 256, Some(NakCode::REMOTE_ACCESS_ERROR)),
        (Opcode::RC_READ_REQUEST, 504, None),
        (Opcode::RC_READ_REQUEST, 512, Some(NakCode::REMOTE_OPERATIONAL_ERROR)),
        (Opcode::RC_FETCH_ADD, 248, None),
        (Opcode::RC_FETCH_ADD, 256, Some(NakCode::REMOTE_ACCESS_ERROR)),
    ];
    for (opcode, offset, refused) in cases {
        let (mut script, region, _) = start();
        let (address, rkey) = (region.address() + offset, region.rkey());
        let said = script.say(opcode).psn(PEER_PSN);
        let said = match opcode {
            Opcode::RC_WRITE_ONLY => said.reth(address, rkey, 8).payload(&[7; 8]),
            Opcode::RC_READ_REQUEST => said.reth(address, rkey, 8),
            _ => said.atomic(address, rkey, 1, 0),
        };
        script.hear(&said);
        assert_eq!(nak_of(&script.sent()[0]), refused, "{opcode:?} at {offset}");
    }
}

#[test]
fn the_pager_is_asked_only_for_on_demand_regions() {
    let (mut script, region, present) = start();
    let other = script.region(0, LENGTH, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    for (index, (rkey, asked)) in [(other.rkey(), 0), (region.rkey(), 1)].into_iter().enumerate() {
        let said = script.say(Opcode::RC_WRITE_ONLY).psn(PEER_PSN.add(index as u32));
        let said = said.reth(region.address(), rkey, 8).payload(&[7; 8]);
        script.hear(&said);
        assert_eq!(nak_of(&script.sent()[0]), None);
        assert_eq!(present.lock().unwrap().asked, asked);
    }
    let pd = script.world.nodes[OWN].pd;
    assert!(region.prefetch(pd, region.address(), 512, Access::empty()).is_ok());
    assert!(region.prefetch(pd, region.address(), 512, Access::LOCAL_WRITE).is_err());
    assert!(region.prefetch(pd, region.address() + 1, 512, Access::empty()).is_err());
}

#[test]
fn an_on_demand_region_may_span_the_address_space() {
    let (mut script, _, _) = start();
    let pd = script.world.nodes[OWN].pd;
    let nowhere = std::ptr::null_mut();
    let mut register = |access| {
        // SAFETY: no memory is accessed at the null address, since the device calls the pager before each access.
        unsafe { script.rnic().register(pd, nowhere, usize::MAX, 0, access, None) }
    };
    register(Access::LOCAL_WRITE).expect_err("the region is longer than any memory");
    let all = register(Access::LOCAL_WRITE | Access::ON_DEMAND)
        .expect("a region that is paged on demand may have any length");
    let address = script.base();
    assert!(all.prefetch(pd, address, 512, Access::empty()).is_ok());
    assert!(all.prefetch(pd, address + 1, 512, Access::empty()).is_err());
}

#[test]
fn a_null_region_reads_zeros_and_discards_writes() {
    let mut script = Script::new();
    let pd = script.world.nodes[OWN].pd;
    let null = script.rnic().register_null(pd).expect("the device has room for a region");
    let own = script.world.nodes[OWN].sge(0, 8);
    let sges = [Sge { address: u64::MAX - 20, length: 8, lkey: null.lkey() }, own];
    script.world.nodes[OWN].memory.write(0, &[9; 8]);
    let (now_ns, qpn) = (script.world.now_ns, script.qpn);
    let payload = Payload::Sges(&sges);
    let send = SendRequest { wr_id: 3, operation: Op::Send, flags: SendFlags::empty(), payload, destination: None };
    script.rnic().post_send(now_ns, qpn, &[send]).expect("the queue has room");
    let sent = script.sent();
    assert_eq!(sent[0].bytes[12..28], [[0; 8], [9; 8]].concat());

    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 4, sges: &sges }]).expect("the queue has room");
    let said = script.say(Opcode::RC_SEND_ONLY).payload(&[[1; 8], [2; 8]].concat());
    script.hear(&said);
    assert_eq!(script.ends(), [(4, Status::Success)]);
    assert_eq!(script.world.nodes[OWN].memory.read(0, 8), [2; 8]);

    let said = script.say(Opcode::RC_WRITE_ONLY).psn(PEER_PSN.add(1)).reth(64, null.rkey(), 8).payload(&[7; 8]);
    script.hear(&said);
    let refused = script.sent().iter().find_map(nak_of);
    assert_eq!(refused, Some(NakCode::REMOTE_ACCESS_ERROR), "peers can access the null region");
}

#[test]
fn a_completion_has_the_time_of_its_acknowledgement() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    assert_eq!(script.sent().len(), 1);
    script.pass(5_000);
    script.ack(crate::common::script::OWN_PSN);
    let now_ns = script.world.now_ns;
    let completions = script.reap();
    assert_eq!(completions.len(), 1);
    assert_eq!(completions[0].timestamp_ns, now_ns);
}

#[test]
fn a_datagram_for_memory_that_is_gone_ends_its_receive_with_an_error() {
    for (offset, status) in [(0, Status::Success), (208, Status::Success), (209, Status::LocalProtection)] {
        let mut script = Script::with(QpKind::Ud, PathMtu::Mtu256, &End::default());
        let base = script.world.nodes[OWN].memory.base() as usize;
        let present = Present { base, readable: LENGTH / 4, writable: LENGTH / 4, asked: 0 };
        script.rnic().page_with(Arc::new(Pages(Arc::new(Mutex::new(present)))));
        let region = script.region(0, LENGTH, Access::LOCAL_WRITE | Access::ON_DEMAND);
        let sges = [Sge { address: region.address() + offset, length: 64, lkey: region.lkey() }];
        let qpn = script.qpn;
        script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 5, sges: &sges }]).expect("the device has room");
        // The receive needs 48 bytes: 40 for the routing header, and 8 for the payload.
        let said = script.say(Opcode::UD_SEND_ONLY).quiet().deth(QKEY, PEER_QPN).payload(&[1; 8]);
        script.hear(&said);
        assert_eq!(script.ends(), [(5, status)], "{offset}");
    }
}
