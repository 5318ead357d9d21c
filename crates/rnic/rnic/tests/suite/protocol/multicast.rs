//! Multicast groups (IBTA Vol 1, 10.5.2).

use std::net::{IpAddr, Ipv4Addr};

use crate::common::script::{OWN, PEER, PEER_QPN, Script};
use crate::common::{End, QKEY};
use doorbell_rnic::LIMITS;
use doorbell_verbs_core::{ObjectError, QpKind, RecvRequest};
use doorbell_wire::{Opcode, Outer, PathMtu, QKey, Qpn};

const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

fn group(number: u8) -> IpAddr {
    Ipv4Addr::new(239, 1, 2, number).into()
}

/// Two UD queue pairs with posted receives. Each completion carries the number of its queue pair.
struct Two {
    script: Script,
    qpns: [Qpn; 2],
}

impl Two {
    fn new() -> Self {
        let mut script = Script::silent(PathMtu::Mtu256);
        let qpns = [(); 2].map(|()| script.add_qp(QpKind::Ud, PathMtu::Mtu256, &End::default()));
        for qpn in qpns {
            for place in 0..4 {
                let sges = [script.world.nodes[OWN].sge(place * 64, 64)];
                script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 0, sges: &sges }]).expect("the queue has room");
            }
        }
        Self { script, qpns }
    }

    fn attach(&mut self, index: usize, number: u8) -> Result<bool, ObjectError> {
        let qpn = self.qpns[index];
        self.script.rnic().attach(qpn, group(number))
    }

    fn detach(&mut self, index: usize, number: u8) -> Result<bool, ObjectError> {
        let qpn = self.qpns[index];
        self.script.rnic().detach(qpn, group(number))
    }

    /// Returns for each of the two queue pairs whether it gets a datagram to this address and queue pair number.
    fn hear(&mut self, to: IpAddr, qpn: Qpn, qkey: QKey) -> [bool; 2] {
        let mut said = self.script.say(Opcode::UD_SEND_ONLY).quiet().deth(qkey, PEER_QPN).payload(&[5; 8]);
        said.bth.dest_qpn = qpn;
        let outer = Outer {
            src: self.script.world.nodes[PEER].address,
            dst: to,
            traffic_class: 0,
            hop_limit: 1,
            identification: None,
            dont_fragment: None,
        };
        let now_ns = self.script.world.now_ns;
        self.script.rnic().handle_packet(now_ns, &outer, &said.bytes());
        let completions = self.script.reap();
        assert!(completions.iter().all(|completion| completion.byte_len == 48 && completion.source_qpn == PEER_QPN));
        self.qpns.map(|qpn| completions.iter().filter(|completion| completion.qpn == qpn).count() == 1)
    }

    fn hear_group(&mut self, number: u8) -> [bool; 2] {
        self.hear(group(number), MULTICAST_QPN, QKEY)
    }
}

#[test]
fn attached_queue_pairs_receive_datagrams_of_the_group() {
    let mut two = Two::new();
    assert_eq!(two.hear_group(1), [false, false]);
    assert_eq!(two.attach(0, 1), Ok(true), "the first member must make the link join");
    assert_eq!(two.attach(0, 1), Ok(false), "the link has already joined");
    assert_eq!(two.hear_group(1), [true, false]);
    assert_eq!(two.attach(1, 1), Ok(false));
    assert_eq!(two.hear_group(1), [true, true]);
    assert_eq!(two.hear_group(2), [false, false]);
    assert_eq!(two.detach(0, 1), Ok(false));
    assert_eq!(two.hear_group(1), [false, true]);
    assert_eq!(two.detach(1, 1), Ok(true), "the last member must make the link leave");
    assert_eq!(two.hear_group(1), [false, false]);
}

#[test]
fn only_datagrams_with_matching_keys_reach_a_group() {
    let mut two = Two::new();
    assert_eq!(two.attach(0, 1), Ok(true));
    let qkey = QKEY;
    let own = two.script.world.nodes[OWN].address;
    let first = two.qpns[0];
    assert_eq!(two.hear(group(1), MULTICAST_QPN, QKey::new(qkey.get() ^ 1)), [false, false]);
    assert_eq!(two.script.counters().rx_key_violation, 1);
    assert_eq!(
        two.hear(group(1), first, qkey),
        [false, false],
        "a datagram to a group address reached a single queue pair"
    );
    assert_eq!(two.hear(own, MULTICAST_QPN, qkey), [false, false], "a datagram to a unicast address reached a group");
    assert_eq!(two.script.counters().rx_unknown_qp, 2);
    assert_eq!(two.hear(own, first, qkey), [true, false]);
}

#[test]
fn invalid_attach_and_detach_requests_are_refused() {
    let mut two = Two::new();
    let refused = |result: Result<bool, ObjectError>| matches!(result, Err(ObjectError::Group { .. }));
    let (first, connected) = (two.qpns[0], two.script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default()));
    let rnic = two.script.rnic();
    assert!(refused(rnic.attach(connected, group(1))), "RC");
    assert!(refused(rnic.attach(first, Ipv4Addr::new(10, 0, 0, 1).into())), "no group");
    assert!(
        refused(rnic.attach(first, "ff02::1".parse().unwrap())),
        "a group of the other address family was accepted"
    );
    assert!(refused(rnic.detach(first, group(1))), "not attached");
    assert_eq!(rnic.attach(Qpn::new(2), group(1)), Err(ObjectError::Unknown("queue pair")));
    for number in 0..LIMITS.max_groups as u8 {
        assert_eq!(rnic.attach(first, group(number)), Ok(true));
    }
    assert_eq!(rnic.attach(first, group(LIMITS.max_groups as u8)), Err(ObjectError::Exhausted("multicast groups")));
    rnic.destroy_qp(first).expect("the queue pair exists");
    assert_eq!(two.attach(1, LIMITS.max_groups as u8), Ok(true), "the destroyed queue pair kept its groups");
}
