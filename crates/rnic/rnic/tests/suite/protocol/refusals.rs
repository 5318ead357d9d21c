//! Invalid requests, which the responder rejects with a NAK. The NAK ends the connection (IBTA Vol 1, 9.7.5.2, 9.9.3).

use crate::common::End;
use crate::common::script::{OWN, PEER_PSN, Say, Script, nak_of};
use doorbell_verbs_core::{Access, AsyncEvent, QpState, RecvRequest, Sge, Status};
use doorbell_wire::{NakCode, Opcode, Psn, RKey};

/// Creates a queue pair with one receive of 300 B, lets `play` send packets to it, and returns the NAK.
fn refused(end: &End, play: impl Fn(&mut Script)) -> (Option<NakCode>, Psn, Vec<AsyncEvent>, Script) {
    let mut script = Script::rc(end);
    script.receive(0, 300);
    play(&mut script);
    let sent = script.sent();
    let last = sent.last().expect("the RNIC answers");
    let (code, psn) = (nak_of(last), last.psn());
    let events = script.events();
    (code, psn, events, script)
}

#[test]
fn malformed_requests_get_an_invalid_request_nak() {
    type Play = Box<dyn Fn(&mut Script)>;
    let one = |make: fn(&Script) -> Say| -> Play { Box::new(move |script| script.hear(&make(script))) };
    let cases: Vec<(&str, Play)> = vec![
        ("a middle without a first", one(|s| s.say(Opcode::RC_SEND_MIDDLE).payload(&[0; 256]))),
        ("a last without a first", one(|s| s.say(Opcode::RC_WRITE_LAST).payload(&[0; 8]))),
        ("a short first", one(|s| s.say(Opcode::RC_SEND_FIRST).payload(&[0; 200]))),
        ("a packet longer than the path MTU", one(|s| s.say(Opcode::RC_SEND_ONLY).payload(&[0; 260]))),
        (
            "a WRITE shorter than announced",
            one(|s| s.say(Opcode::RC_WRITE_ONLY).reth(s.base(), s.rkey(), 9).payload(&[0; 8])),
        ),
        (
            "a WRITE longer than announced",
            one(|s| s.say(Opcode::RC_WRITE_ONLY).reth(s.base(), s.rkey(), 7).payload(&[0; 8])),
        ),
        (
            "a first packet that completes the WRITE",
            one(|s| s.say(Opcode::RC_WRITE_FIRST).reth(s.base(), s.rkey(), 256).payload(&[0; 256])),
        ),
        ("a READ with payload", one(|s| s.say(Opcode::RC_READ_REQUEST).reth(s.base(), s.rkey(), 9).payload(&[0; 8]))),
        ("a READ of more than 2 GiB", one(|s| s.say(Opcode::RC_READ_REQUEST).reth(s.base(), s.rkey(), (1 << 31) + 1))),
        ("a misaligned atomic", one(|s| s.say(Opcode::RC_FETCH_ADD).atomic(s.base() + 4, s.rkey(), 1, 0))),
        (
            "an atomic with payload",
            one(|s| s.say(Opcode::RC_FETCH_ADD).atomic(s.base(), s.rkey(), 1, 0).payload(&[0; 4])),
        ),
        (
            "an empty last packet",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_SEND_LAST).psn(PEER_PSN.add(1)));
            }),
        ),
        (
            "another first",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_SEND_FIRST).psn(PEER_PSN.add(1)).payload(&[0; 256]));
            }),
        ),
        (
            "a WRITE within a SEND",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_WRITE_LAST).psn(PEER_PSN.add(1)).payload(&[0; 8]));
            }),
        ),
        (
            "a READ within a SEND",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(s.base(), s.rkey(), 8));
            }),
        ),
    ];
    for (name, play) in cases {
        let (code, psn, events, mut script) = refused(&End::default(), play);
        assert_eq!(code, Some(NakCode::INVALID_REQUEST), "{name}");
        assert!(psn == PEER_PSN || psn == PEER_PSN.add(1), "{name}: the NAK names another packet");
        assert_eq!(events, [AsyncEvent::QpRequestError(script.qpn)], "{name}");
        assert_eq!(script.counters().resp_invalid_request, 1, "{name}");
        assert_eq!(script.state(), QpState::Error, "{name}");
        assert_eq!(script.ends(), [(0, Status::WorkRequestFlushed)], "{name}: the receive was not flushed");
    }
}

#[test]
fn a_send_longer_than_its_receive_ends_both_sides() {
    let (code, _, _, mut script) = refused(&End::default(), |script| {
        script.hear(&script.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
        script.hear(&script.say(Opcode::RC_SEND_LAST).psn(PEER_PSN.add(1)).payload(&[0; 45]));
    });
    assert_eq!(code, Some(NakCode::INVALID_REQUEST));
    assert_eq!(script.ends(), [(0, Status::LocalLength)]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let end = End { max_dest_rd_atomic: 2, ..End::default() };
    let (code, psn, _, mut script) = refused(&end, |script| {
        for index in 0..3 {
            let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(index));
            script.hear(&read.reth(script.base(), script.rkey(), 8));
        }
    });
    assert_eq!((code, psn), (Some(NakCode::INVALID_REQUEST), PEER_PSN.add(2)));
    assert_eq!(script.counters().tx_response_packets, 2, "an earlier request was not answered");
    assert_eq!(script.state(), QpState::Error);
    script.ends();
    // The peer waits for at most two answers. If two answers are unsent and a new request arrives, its answer takes the
    // place of the oldest unsent answer to a repeated request.
    let mut script = Script::rc(&end);
    let (base, rkey) = (script.base(), script.rkey());
    let read =
        |script: &Script, index| script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(index)).reth(base, rkey, 8);
    script.hear(&read(&script, 0));
    script.hear(&read(&script, 1));
    assert_eq!(script.sent().len(), 2);
    for index in [0, 1, 2] {
        script.hear(&read(&script, index));
    }
    let expected: Vec<_> = [1, 2].map(|index| (Opcode::RC_READ_RESPONSE_ONLY, PEER_PSN.add(index))).into();
    assert_eq!(script.shapes(), expected);
}

#[test]
fn every_remote_access_is_checked() {
    type Make = Box<dyn Fn(&mut Script, u64, RKey) -> Say>;
    let operations: [(&str, u64, Make); 4] = [
        ("WRITE", 8, Box::new(|s, at, key| s.say(Opcode::RC_WRITE_ONLY).reth(at, key, 8).payload(&[1; 8]))),
        ("long WRITE", 300, Box::new(|s, at, key| s.say(Opcode::RC_WRITE_FIRST).reth(at, key, 300).payload(&[1; 256]))),
        ("READ", 8, Box::new(|s, at, key| s.say(Opcode::RC_READ_REQUEST).reth(at, key, 8))),
        ("atomic", 8, Box::new(|s, at, key| s.say(Opcode::RC_COMPARE_SWAP).atomic(at, key, 1, 0))),
    ];
    type Spoil = Box<dyn Fn(&mut Script, u64) -> (u64, RKey)>;
    let end = |script: &Script| script.base() + script.world.nodes[OWN].memory.len() as u64;
    let faults: [(&str, Spoil); 8] = [
        ("no such key", Box::new(|s, _| (s.base(), RKey::new(0xdead_be00)))),
        ("the lower 8 bits changed", Box::new(|s, _| (s.base(), RKey::new(s.rkey().get() ^ 1)))),
        ("behind the end", Box::new(move |s, length| (end(s) - (length - 1) / 8 * 8, s.rkey()))),
        ("before the start", Box::new(|s, _| (s.base() - 8, s.rkey()))),
        ("around the end of the address space", Box::new(|s, _| (u64::MAX - 7, s.rkey()))),
        (
            "a region of another protection domain",
            Box::new(|s, _| {
                let pd = s.rnic().create_pd();
                let (base, address) = (s.world.nodes[OWN].memory.base(), s.base());
                // SAFETY: the block lives as long as the node's RNIC.
                let region = unsafe { s.rnic().register(pd, base, 4096, address, Access::all(), None) };
                (address, region.expect("the device has room for a region").rkey())
            }),
        ),
        ("a region without the right", Box::new(|s, _| (s.base(), s.region(0, 4096, Access::LOCAL_WRITE).rkey()))),
        (
            "a deregistered region",
            Box::new(|s, _| {
                let region = s.region(0, 4096, Access::all());
                s.rnic().deregister(&region).expect("the region was registered");
                (s.base(), region.rkey())
            }),
        ),
    ];
    for (operation, length, make) in &operations {
        for (fault, spoil) in &faults {
            let (code, psn, events, mut script) = refused(&End::default(), |script| {
                let (address, key) = spoil(script, *length);
                let request = make(script, address, key);
                script.hear(&request);
            });
            assert_eq!((code, psn), (Some(NakCode::REMOTE_ACCESS_ERROR), PEER_PSN), "{operation}: {fault}");
            assert_eq!(events, [AsyncEvent::QpAccessError(script.qpn)], "{operation}: {fault}");
            assert_eq!(script.counters().resp_remote_access_errors, 1, "{operation}: {fault}");
            assert_eq!(script.world.nodes[OWN].memory.read(0, 8), [0; 8], "{operation}: {fault}: memory was written");
            assert_eq!(script.ends(), [(0, Status::WorkRequestFlushed)], "{operation}: {fault}");
        }
        // The queue pair must allow the access as well.
        let end = End { access: Access::LOCAL_WRITE, ..End::default() };
        let (code, ..) = refused(&end, |script| {
            let (address, key) = (script.base(), script.rkey());
            let request = make(script, address, key);
            script.hear(&request);
        });
        assert_eq!(
            code,
            Some(NakCode::REMOTE_ACCESS_ERROR),
            "{operation}: allowed although the queue pair lacks the access"
        );
    }
}

#[test]
fn memory_that_goes_away_meanwhile_is_an_operational_error() {
    // The region of a receive is deregistered before the message arrives.
    let mut script = Script::new();
    let region = script.region(0, 64, Access::LOCAL_WRITE);
    let sge = Sge { address: region.address(), length: 64, lkey: region.lkey() };
    let qpn = script.qpn;
    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 4, sges: &[sge] }]).expect("the device has room");
    script.rnic().deregister(&region).expect("the region was registered");
    script.hear(&script.say(Opcode::RC_SEND_ONLY).payload(&[1; 8]));
    assert_eq!(nak_of(&script.sent()[0]), Some(NakCode::REMOTE_OPERATIONAL_ERROR));
    assert_eq!(script.ends(), [(4, Status::LocalProtection)]);
    assert_eq!(script.counters().resp_remote_operational_errors, 1);
    assert_eq!(script.events(), [AsyncEvent::QpFatal(qpn)]);

    // The region of a READ is deregistered before the answer leaves.
    let mut script = Script::new();
    let region = script.region(0, 600, Access::REMOTE_READ);
    script.hear(&script.say(Opcode::RC_READ_REQUEST).reth(region.address(), region.rkey(), 600));
    script.rnic().deregister(&region).expect("the region was registered");
    let sent = script.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((nak_of(&sent[0]), sent[0].psn()), (Some(NakCode::REMOTE_OPERATIONAL_ERROR), PEER_PSN));
    assert_eq!(script.state(), QpState::Error);
    assert_eq!(script.counters().tx_vport_rdma_unicast_packets, 1, "a withdrawn packet was counted");
}
