//! Rules on a link whose packets have real headers.

use std::sync::{Arc, Mutex};

use doorbell_wire::{BTH_LEN, BthRepr, Check, Opcode, Psn, Qpn};

use super::outbound::leaving;
use super::*;

/// Writer whose text the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Returns a packet with this opcode, queue pair and PSN, and a payload that begins with `number`.
fn with_header(opcode: Opcode, qp: u32, psn: u32, number: u8) -> Vec<u8> {
    let mut header = [0; BTH_LEN];
    BthRepr { opcode, dest_qpn: Qpn::new(qp), psn: Psn::new(psn), ..BthRepr::default() }.write(&mut header);
    let mut bytes = header.to_vec();
    bytes.resize(BTH_LEN + opcode.extension_len(), 0);
    bytes.extend([number; 16]);
    bytes
}

/// Passes packets through a link with this plan, 1 us apart. Returns the received packets without their ICRCs, and the
/// link.
fn pass(plan: &str, packets: &[Vec<u8>]) -> (Vec<Vec<u8>>, Faults<MemoryLink>) {
    let (mut a, mut b) = pair(plan, true);
    let mut runs = Vec::new();
    for (now_ns, bytes) in (0..).step_by(1_000).zip(packets) {
        let mut batch = TransmitBatch::new(1 << 12, 4);
        batch.push(&crate::testing::path(address(2)), bytes.len(), crate::testing::info()).copy_from_slice(bytes);
        transmit_all(&mut a, now_ns, &batch);
        runs.extend(receive_all(&mut b, now_ns));
    }
    while let Some(due_ns) = b.poll_timeout() {
        runs.extend(receive_all(&mut b, due_ns));
    }
    (packets_of(&runs, 4), b)
}

/// Returns SENDs of one message with PSNs from 0xffffff on, and a WRITE. Each has its number as payload.
pub(super) fn message() -> Vec<Vec<u8>> {
    let opcodes = [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
        Opcode::RC_SEND_LAST, // a retransmission
        Opcode::RC_WRITE_ONLY,
    ];
    let psns = [0xff_ffff, 0, 1, 2, 2, 3];
    (0..).zip(opcodes).zip(psns).map(|((number, opcode), psn)| with_header(opcode, 17, psn, number)).collect()
}

/// Returns the numbers of the packets of a message that arrive under a plan.
fn arriving(plan: &str) -> Vec<u8> {
    let (arrived, link) = pass(plan, &message());
    assert_eq!(link.unfired(), Vec::<String>::new(), "{plan}");
    arrived.iter().map(|packet| packet[packet.len() - 1]).collect()
}

#[test]
fn each_condition_chooses_its_packets() {
    for (conditions, expected) in [
        ("nth=1", vec![1, 2, 3, 4, 5]),
        ("nth=2..4", vec![0, 4, 5]),
        ("nth=3..", vec![0, 1]),
        ("every=3", vec![0, 1, 3, 4]),
        ("nth=2..5 every=2", vec![0, 1, 3, 5]),
        ("opcode=send position=first", vec![1, 2, 3, 4, 5]),
        ("opcode=send position=middle nth=2", vec![0, 1, 3, 4, 5]),
        ("opcode=rc-send-last", vec![0, 1, 2, 5]),
        ("opcode=0x0a", vec![0, 1, 2, 3, 4]),
        ("opcode=request", vec![]),
        ("qp=17 opcode=write", vec![0, 1, 2, 3, 4]),
        ("qp-order=1", vec![]),
        ("psn=16777215", vec![1, 2, 3, 4, 5]),
        ("psn-offset=1..2", vec![0, 3, 4, 5]),
        ("retransmission=1", vec![0, 1, 2, 3, 5]),
        ("retransmission=0", vec![4]),
        ("message-offset=16", vec![0, 2, 3, 4, 5]),
        ("message-offset=32..48 nth=1", vec![0, 1, 3, 4, 5]),
        ("peer=10.0.0.1 nth=6", vec![0, 1, 2, 3, 4]),
        ("after=2us before=4us", vec![0, 1, 4, 5]),
        ("share=1", vec![]),
    ] {
        assert_eq!(arriving(&format!("drop {conditions}")), expected, "{conditions}");
        assert_eq!(leaving(&format!("drop direction=out {conditions}")), expected, "{conditions}");
    }
}

#[test]
fn each_action_has_its_effect() {
    for (plan, expected) in [
        ("duplicate nth=2 copies=2", vec![0, 1, 1, 1, 2, 3, 4, 5]),
        ("duplicate nth=1 for=1500ns", vec![0, 1, 0, 2, 3, 4, 5]),
        ("reorder nth=2 behind=3", vec![0, 2, 3, 4, 1, 5]),
        ("reorder nth=6 behind=64", vec![0, 1, 2, 3, 4, 5]),
        ("delay nth=1 for=2500ns", vec![1, 2, 0, 3, 4, 5]),
        ("black-hole nth=2 count=3", vec![0, 4, 5]),
        ("black-hole nth=2 for=2us", vec![0, 3, 4, 5]),
        ("drop nth=1; duplicate nth=2", vec![1, 1, 2, 3, 4, 5]),
        ("drop nth=1..5; black-hole nth=5 count=2", vec![]),
        ("drop nth=1..5; corrupt field=remote-address icrc=valid nth=1", vec![5]),
        ("ecn nth=1", vec![0, 1, 2, 3, 4, 5]),
    ] {
        assert_eq!(arriving(plan), expected, "{plan}");
        assert_eq!(leaving(&plan.replace(" nth", " direction=out nth")), expected, "{plan}");
    }
}

#[test]
fn a_field_is_corrupted_and_the_icrc_may_stay_valid() {
    let packet = with_header(Opcode::RC_SEND_ONLY, 17, 5, 0);
    let (arrived, link) = pass("corrupt opcode=send field=psn value=9", std::slice::from_ref(&packet));
    let mut expected = packet.clone();
    expected[11] = 9;
    assert_eq!((arrived, link.counters().corrupted), (vec![expected], 1));
    let (arrived, _) = pass("corrupt opcode=send byte=3", std::slice::from_ref(&packet));
    assert_eq!(arrived[0][BTH_LEN + 3], 1);

    let flow = Flow::new(address(1), address(2), 4791, 4791);
    let mut sealed = [&packet[..], &flow.icrc(7, true, &packet).to_le_bytes()].concat();
    let outer = crate::testing::outer(address(1), address(2));
    let old = sealed.clone();
    sealed[11] = 9;
    assert_ne!(flow.check(7, &sealed), Check::Valid { identification: 7, dont_fragment: true });
    reseal(&outer, &old, &mut sealed);
    assert_eq!(flow.check(7, &sealed), Check::Valid { identification: 7, dont_fragment: true });
}

#[test]
fn only_packets_with_the_field_or_byte_are_corrupted() {
    let mut acknowledgement = with_header(Opcode::RC_ACKNOWLEDGE, 17, 1, 0);
    acknowledgement.truncate(BTH_LEN + Opcode::RC_ACKNOWLEDGE.extension_len());
    let send = with_header(Opcode::RC_SEND_ONLY, 17, 2, 0);
    let packets = [acknowledgement, send, with_header(Opcode::RC_WRITE_ONLY, 17, 3, 0)];
    let changed = |plan: &str| {
        let (arrived, link) = pass(plan, &packets);
        let differing = arrived.iter().zip(&packets).enumerate().filter(|(_, (one, other))| one != other);
        (differing.map(|(at, _)| at).collect::<Vec<_>>(), link.unfired().len())
    };
    assert_eq!(changed("corrupt nth=1 byte=15 value=7"), (vec![1], 0));
    assert_eq!(changed("corrupt nth=1 field=rkey value=7"), (vec![2], 0));
    assert_eq!(changed("corrupt nth=1 field=syndrome value=7"), (vec![0], 0));
    assert_eq!(changed("corrupt nth=1.. byte=16"), (vec![], 1));
}

#[test]
fn acknowledgements_are_told_apart() {
    let with_syndrome = |syndrome: u8| {
        let mut packet = with_header(Opcode::RC_ACKNOWLEDGE, 17, 1, syndrome);
        packet[BTH_LEN] = syndrome;
        packet
    };
    let packets = [0x1f, 0x60, 0x25].map(with_syndrome);
    for (class, dropped) in [("ack", 0x1f), ("nak", 0x60), ("rnr-nak", 0x25)] {
        let (arrived, _) = pass(&format!("drop opcode={class}"), &packets);
        let kept: Vec<u8> = arrived.iter().map(|packet| packet[BTH_LEN]).collect();
        let expected: Vec<u8> = [0x1f, 0x60, 0x25].into_iter().filter(|syndrome| *syndrome != dropped).collect();
        assert_eq!(kept, expected, "{class}");
    }
}

#[test]
fn the_journal_shows_each_firing_and_the_rules_that_never_fired() {
    let text = "drop name=second nth=2;drop opcode=nak nth=1;ecn opcode=cnp optional=true";
    let (mut a, b) = pair(text, true);
    let journal = Shared::default();
    let mut b = b.with_journal(journal.clone());
    let mut batch = TransmitBatch::new(1 << 12, 4);
    for psn in [1, 2] {
        let bytes = with_header(Opcode::RC_SEND_ONLY, 17, psn, 0);
        batch.push(&crate::testing::path(address(2)), bytes.len(), crate::testing::info()).copy_from_slice(&bytes);
    }
    transmit_all(&mut a, 3, &batch);
    receive_all(&mut b, 3);
    let lines = journal.text();
    let expected = "{\"rule\":1,\"action\":\"drop\",\"name\":\"second\",\"count\":1,\"at_ns\":3,\"direction\":\"in\",\
                    \"from\":\"10.0.0.1\",\"to\":\"10.0.0.2\",\"opcode\":\"RC SEND Only\",\"qp\":17,\"psn\":2}\n";
    assert_eq!(lines, expected);
    let unfired = b.unfired();
    assert_eq!((unfired.len(), &unfired), (1, &b.plan().unfired(&lines)));
    assert!(unfired[0].contains("fault rule 2 never fired: drop opcode=nak nth=1"), "{unfired:?}");
}
