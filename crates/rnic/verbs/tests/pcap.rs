//! Captures packets of each operation. Beside each capture, the test writes the contents that other programs must find
//! in the capture, and `cargo xtask test` runs these programs. If `DOORBELL_PCAP_DIR` is not set, only this process
//! checks the captures.
//!
//! These tests have a process of their own. A device takes the first free address, which a closed device of another
//! test may have had. Late retransmissions to that device would be in the capture.

use doorbell_verbs_conformance::common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use doorbell_verbs::soft::SoftOptions;
use doorbell_verbs::{PathMtu, Psn, QpKind, QpState, SendFlags, SendOperation, SendRequest, Status};
use doorbell_wire::{BthPacket, FaultMarks, Flow, ICRC_LEN, NakCode, Opcode, Syndrome, parse_frame};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};

const MTU: usize = 1024;

/// Two connected ends whose devices write captures, and the expected contents of the captures.
struct Script {
    name: &'static str,
    directory: PathBuf,
    a: Side,
    b: Side,
    /// Sequence number of the next request.
    psn: Psn,
    requests: Vec<String>,
    responses: Vec<String>,
    /// Number of requests that the responder answers only with an acknowledgement.
    acknowledged: usize,
}

impl Script {
    fn new(name: &'static str, plan: &Plan, faults: Option<&str>) -> Self {
        let directory = match std::env::var_os("DOORBELL_PCAP_DIR") {
            Some(directory) => PathBuf::from(directory),
            None => std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id())),
        };
        std::fs::create_dir_all(&directory).unwrap();
        let open = |role: &str, faults: Option<&str>| {
            open_soft(SoftOptions {
                pcap: Some(directory.join(format!("{name}-{role}.pcap"))),
                faults: faults.map(|plan| plan.parse().unwrap()),
                // An early retransmission could arrive together with the packets after a gap. The retransmission would
                // then fill the gap before the responder sends a NAK.
                retransmits_early: false,
                ..SoftOptions::default()
            })
        };
        let devices = (open("requester", None), open("responder", faults));
        let plan = Plan { mtu: PathMtu::from_bytes(MTU).unwrap(), ..*plan };
        let (a, b) = plan.connect(&devices);
        let psn = a.qp.query().attributes.send_psn.unwrap();
        let (requests, responses) = (Vec::new(), Vec::new());
        Self { name, directory, a, b, psn, requests, responses, acknowledged: 0 }
    }

    /// Adds one request packet to the expected contents.
    fn request(&mut self, opcode: Opcode, more: &str) {
        let (psn, qpn) = (self.psn.get(), self.b.qp.qpn().get());
        self.requests.push(format!("opcode={} psn={psn} dqpn={qpn} {more}", opcode.0));
        self.psn = self.psn.next();
    }

    fn response(&mut self, opcode: Opcode, psn: Psn, more: &str) {
        let qpn = self.a.qp.qpn().get();
        self.responses.push(format!("opcode={} psn={} dqpn={qpn} {more}", opcode.0, psn.get()));
    }

    fn nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, &format!("syndrome={}", syndrome.0));
    }

    /// Adds the packets of a SEND or WRITE of `bytes` bytes to the expected contents. `opcodes` are those of the first,
    /// middle, last and only packet. `first` and `last` are fields of the first and of the last packet.
    fn message(&mut self, opcodes: [Opcode; 4], bytes: usize, first: &str, last: &str) {
        let packets = bytes.div_ceil(MTU).max(1);
        for packet in 0..packets {
            let payload = (bytes - packet * MTU).min(MTU);
            let mut more = format!("pad={}", payload.wrapping_neg() & 3);
            let [begins, ends] = [packet == 0, packet + 1 == packets];
            let opcode = match (begins, ends) {
                (true, true) => opcodes[3],
                (true, false) => opcodes[0],
                (false, true) => opcodes[2],
                (false, false) => opcodes[1],
            };
            for (fields, here) in [(first, begins), (last, ends)] {
                if here {
                    let _ = write!(more, " {fields}");
                }
            }
            self.request(opcode, &more);
        }
        self.acknowledged += packets;
    }

    /// Posts a work request of `bytes` bytes and waits for its completion.
    fn run(&mut self, operation: SendOperation, bytes: usize) {
        let from = self.a.patterned(bytes.max(1), 1);
        self.a.post(1, operation, &[from.sge(0, bytes)]);
        self.a.expect(1);
    }

    /// Closes both devices, and writes the expected contents of their captures. A device stays open while its memory
    /// lives, so the caller also passes the memory.
    fn finish(self, memory: impl Sized) {
        let Self { name, directory, a, b, requests, responses, acknowledged, .. } = self;
        let reliable = a.qp.query().kind == QpKind::Rc && b.state() != QpState::Error && a.state() != QpState::Error;
        let mut expected = format!("requester {}\n", a.device.attributes().address);
        requests.iter().for_each(|row| _ = writeln!(expected, "> {}", row.trim_end()));
        responses.iter().for_each(|row| _ = writeln!(expected, "< {}", row.trim_end()));
        let least = usize::from(reliable && acknowledged > 0);
        let _ = writeln!(expected, "acks {least} {acknowledged}");
        drop((a, b, memory));
        for role in ["requester", "responder"] {
            let capture = directory.join(format!("{name}-{role}.pcap"));
            std::fs::write(capture.with_extension("expected"), &expected).unwrap();
            check(&capture, requests.len() + responses.len());
        }
        if std::env::var_os("DOORBELL_PCAP_DIR").is_none() {
            std::fs::remove_dir_all(directory).unwrap();
        }
    }
}

/// Fields of one frame in a capture.
struct Captured {
    at: Duration,
    bytes: Vec<u8>,
    marks: FaultMarks,
}

impl Captured {
    fn opcode(&self) -> Opcode {
        BthPacket::new_checked(parse_frame(&self.bytes).unwrap().payload).unwrap().opcode()
    }
}

fn frames_of(capture: &Path) -> Vec<Captured> {
    let mut reader = PcapNgReader::new(std::fs::File::open(capture).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let marks = |option: &EnhancedPacketOption<'_>| match option {
            EnhancedPacketOption::Comment(text) => FaultMarks::parse(text.as_bytes()),
            _ => None,
        };
        let marks = packet.options.iter().find_map(marks).unwrap_or_default();
        frames.push(Captured { at: packet.timestamp, bytes: packet.data.into_owned(), marks });
    }
    frames
}

/// Checks a capture. The ICRC of each packet must match the packet, and each answer must come after its request in both
/// captures.
fn check(capture: &Path, least_packets: usize) {
    let frames = frames_of(capture);
    let mut before = (Duration::ZERO, false);
    for (packets, captured) in frames.iter().enumerate() {
        let frame = parse_frame(&captured.bytes).unwrap();
        let (packet, icrc) = frame.payload.split_last_chunk::<ICRC_LEN>().unwrap();
        let (outer, ports) = (frame.outer, frame.encapsulation);
        let flow = Flow::new(outer.src, outer.dst, ports.src_port, ports.dst_port);
        let identification = outer.identification.unwrap();
        let expected = flow.icrc(identification, outer.dont_fragment.unwrap(), packet);
        let opcode = BthPacket::new_checked(packet).unwrap().opcode();
        assert_eq!(u32::from_le_bytes(*icrc), expected, "{}: packet {packets}, {opcode:?}", capture.display());
        let now = (captured.at, opcode.is_response());
        let is_later = if now.1 && !before.1 { now.0 > before.0 } else { now.0 >= before.0 };
        assert!(is_later, "{}: packet {packets}, {opcode:?}: {before:?}, then {now:?}", capture.display());
        before = now;
    }
    let packets = frames.len();
    assert!(packets >= least_packets, "{}: {packets} packets, at least {least_packets} expected", capture.display());
}

const SEND: [Opcode; 4] = [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY];
const SEND_IMMEDIATE: [Opcode; 4] =
    [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST_IMM, Opcode::RC_SEND_ONLY_IMM];
const SEND_INVALIDATE: [Opcode; 4] =
    [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST_INV, Opcode::RC_SEND_ONLY_INV];
const WRITE: [Opcode; 4] =
    [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST, Opcode::RC_WRITE_ONLY];
const WRITE_IMMEDIATE: [Opcode; 4] =
    [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY_IMM];

/// Converts opcodes of RC to the opcodes of the same operations on UC (transport bits, IBTA).
fn unreliable(opcodes: [Opcode; 4]) -> [Opcode; 4] {
    opcodes.map(|opcode| Opcode(opcode.0 | 0x20))
}

const SIZES: [usize; 6] = [0, 1, 4, 5, MTU, 3 * MTU + 2];

#[test]
fn send() {
    let mut script = Script::new("rc-send", &Plan::rc(), None);
    let to = script.b.memory(4 * MTU);
    for bytes in SIZES {
        script.b.post_recv(1, &[to.sge(0, 4 * MTU)]);
        script.message(SEND, bytes, "", "se=0");
        script.run(SendOperation::Send, bytes);
        script.b.expect(1);
    }
    script.b.post_recv(1, &[]);
    script.message(SEND, 0, "", "se=1");
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    script.a.qp.post_send(&[SendRequest { flags, ..signalled(1, SendOperation::Send, &[]) }]).unwrap();
    script.a.expect(1);
    script.finish(to);
}

#[test]
fn send_with_immediate() {
    let mut script = Script::new("rc-send-immediate", &Plan::rc(), None);
    let to = script.b.memory(4 * MTU);
    for bytes in SIZES {
        script.b.post_recv(1, &[to.sge(0, 4 * MTU)]);
        script.message(SEND_IMMEDIATE, bytes, "", "imm=0102a0ff");
        script.run(SendOperation::SendImmediate(0x0102_a0ff), bytes);
    }
    script.finish(to);
}

#[test]
fn send_with_invalidate() {
    let mut script = Script::new("rc-send-invalidate", &Plan::rc(), None);
    let to = script.b.memory(4 * MTU);
    let lent = SIZES.map(|_| script.b.lend(8));
    for (bytes, lent) in SIZES.into_iter().zip(lent) {
        script.b.post_recv(1, &[to.sge(0, 4 * MTU)]);
        script.message(SEND_INVALIDATE, bytes, "", &format!("ieth={:08x}", lent.rkey().get()));
        script.run(SendOperation::SendInvalidate(lent.rkey()), bytes);
    }
    script.finish(to);
}

#[test]
fn write() {
    let mut script = Script::new("rc-write", &Plan::rc(), None);
    let to = script.b.memory(4 * MTU);
    for bytes in SIZES {
        script.message(WRITE, bytes, &format!("dmalen={bytes} rkey={}", to.rkey().get()), "");
        script.run(write_to(&to, 0), bytes);
    }
    script.finish(to);
}

#[test]
fn write_with_immediate() {
    let mut script = Script::new("rc-write-immediate", &Plan::rc(), None);
    let to = script.b.memory(4 * MTU);
    for bytes in SIZES {
        script.b.post_recv(1, &[]);
        let reth = format!("dmalen={bytes} rkey={}", to.rkey().get());
        script.message(WRITE_IMMEDIATE, bytes, &reth, "imm=00000007");
        let (remote_address, rkey) = (to.address(), to.rkey());
        script.run(SendOperation::WriteImmediate { remote_address, rkey, immediate: 7 }, bytes);
    }
    script.finish(to);
}

#[test]
fn read() {
    let mut script = Script::new("rc-read", &Plan::rc(), None);
    let from = script.b.patterned(4 * MTU, 1);
    for bytes in SIZES {
        let first = script.psn;
        script.request(Opcode::RC_READ_REQUEST, &format!("dmalen={bytes} rkey={}", from.rkey().get()));
        let packets = bytes.div_ceil(MTU).max(1) as u32;
        for packet in 0..packets {
            let psn = first.add(packet);
            match (packet == 0, packet + 1 == packets) {
                (true, true) => script.response(Opcode::RC_READ_RESPONSE_ONLY, psn, "syndrome=31"),
                (true, false) => script.response(Opcode::RC_READ_RESPONSE_FIRST, psn, "syndrome=31"),
                (false, false) => script.response(Opcode::RC_READ_RESPONSE_MIDDLE, psn, ""),
                (false, true) => script.response(Opcode::RC_READ_RESPONSE_LAST, psn, "syndrome=31"),
            }
        }
        script.psn = first.add(packets);
        script.run(read_from(&from, 0), bytes);
    }
    script.finish(from);
}

#[test]
fn atomics() {
    let mut script = Script::new("rc-atomics", &Plan::rc(), None);
    let word = script.b.memory(8);
    word.store_release_u64(0, 5);
    let (remote_address, rkey) = (word.address(), word.rkey());
    let add = 0x0102_0304_0506_0708;
    let psn = script.psn;
    script.request(Opcode::RC_FETCH_ADD, &format!("swap={add}"));
    script.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, "original=5 syndrome=31");
    script.run(SendOperation::FetchAdd { remote_address, rkey, add }, 8);
    let psn = script.psn;
    script.request(Opcode::RC_COMPARE_SWAP, &format!("swap=9 compare={}", add + 5));
    script.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, &format!("original={} syndrome=31", add + 5));
    script.run(SendOperation::CompareSwap { remote_address, rkey, compare: add + 5, swap: 9 }, 8);
    assert_eq!(word.load_acquire_u64(0), 9);
    script.finish(word);
}

#[test]
fn unreliable_connection() {
    let mut script = Script::new("uc", &Plan::new(QpKind::Uc), None);
    let to = script.b.memory(4 * MTU);
    let (remote_address, rkey) = (to.address(), to.rkey());
    for bytes in SIZES {
        let reth = format!("dmalen={bytes} rkey={}", rkey.get());
        for (opcodes, operation, first, last) in [
            (SEND, SendOperation::Send, "", ""),
            (SEND_IMMEDIATE, SendOperation::SendImmediate(1), "", "imm=00000001"),
            (WRITE, write_to(&to, 0), &*reth, ""),
            (
                WRITE_IMMEDIATE,
                SendOperation::WriteImmediate { remote_address, rkey, immediate: 2 },
                &*reth,
                "imm=00000002",
            ),
        ] {
            script.b.post_recv(1, &[to.sge(0, 4 * MTU)]);
            script.message(unreliable(opcodes), bytes, first, last);
            script.run(operation, bytes);
            if opcodes != WRITE {
                script.b.expect(1);
            }
        }
    }
    script.acknowledged = 0;
    script.finish(to);
}

#[test]
fn datagrams() {
    let mut script = Script::new("ud", &Plan::new(QpKind::Ud), None);
    let (from, to) = (script.a.patterned(MTU, 1), script.b.memory(MTU + 40));
    for bytes in [0, 1, 4, 5, MTU] {
        for (opcode, operation, more) in [
            (Opcode::UD_SEND_ONLY, SendOperation::Send, ""),
            (Opcode::UD_SEND_ONLY_IMM, SendOperation::SendImmediate(3), "imm=00000003"),
        ] {
            script.b.post_recv(1, &[to.sge(0, MTU + 40)]);
            let deth =
                format!("qkey={} sqpn={} pad={} {more}", QKEY.get(), script.a.qp.qpn().get(), bytes.wrapping_neg() & 3);
            script.request(opcode, &deth);
            script.a.qp.post_send(&[datagram(1, operation, &[from.sge(0, bytes)], &script.b)]).unwrap();
            script.a.expect(1);
            script.b.expect(1);
        }
    }
    script.finish((from, to));
}

#[test]
fn receiver_not_ready() {
    let plan = Plan { min_rnr_timer: 1, ..Plan::rc() };
    let mut script = Script::new("rc-rnr-nak", &plan, None);
    let psn = script.psn;
    script.message(SEND, 4, "", "");
    script.nak(psn, Syndrome::rnr_nak(1));
    let (from, to) = (script.a.patterned(4, 1), script.b.memory(4));
    script.a.post(1, SendOperation::Send, &[from.sge(0, 4)]);
    eventually("the peer was not ready", || script.a.device.counters().unwrap().rnr_nak_received > 0);
    script.b.post_recv(1, &[to.sge(0, 4)]);
    script.a.expect(1);
    script.finish((from, to));
}

#[test]
fn sequence_error() {
    // With seed 10, the fault plan drops only the second of the first hundred arriving packets.
    let plan = Plan { timeout: 20, ..Plan::rc() };
    let mut script = Script::new("rc-sequence-error", &plan, Some("drop=0.02,seed=10"));
    let to = script.b.memory(64);
    let second = script.psn.next();
    let list: Vec<_> = (1..=4).map(|wr_id| inline(wr_id, write_to(&to, 0), b"text")).collect();
    for _ in 0..4 {
        script.message(WRITE, 4, "dmalen=4", "");
    }
    script.nak(second, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    script.a.qp.post_send(&list).unwrap();
    script.a.reap(4);
    assert!(script.a.device.counters().unwrap().packet_seq_err >= 1);
    script.finish(to);
}

#[test]
fn refusals() {
    type MakeOperation = fn(&doorbell_verbs::Region) -> SendOperation;
    let cases: [(&'static str, NakCode, Status, MakeOperation); 3] = [
        ("rc-remote-access-error", NakCode::REMOTE_ACCESS_ERROR, Status::RemoteAccess, |region| SendOperation::Write {
            remote_address: region.address(),
            rkey: wrong(region.rkey()),
        }),
        ("rc-invalid-request", NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest, |_| SendOperation::Send),
        ("rc-remote-operational-error", NakCode::REMOTE_OPERATIONAL_ERROR, Status::RemoteOperation, |_| {
            SendOperation::Send
        }),
    ];
    for (name, code, status, operation) in cases {
        let mut script = Script::new(name, &Plan::rc(), None);
        let (from, to) = (script.a.patterned(16, 1), script.b.memory(16));
        let operation = operation(&to);
        let psn = script.psn;
        script.message(if operation == SendOperation::Send { SEND } else { WRITE }, 16, "", "");
        script.nak(psn, Syndrome::nak(code));
        // Cause the NAK: the receive buffer is too short for the message, or its memory is deregistered.
        let length = if code == NakCode::INVALID_REQUEST { 15 } else { 16 };
        script.b.post_recv(1, &[to.sge(0, length)]);
        let kept = (code != NakCode::REMOTE_OPERATIONAL_ERROR).then_some(to);
        script.a.post(1, operation, &[from.sge(0, 16)]);
        script.a.expect_failure(1, status);
        script.finish((from, kept));
    }
}

/// Without early retransmission, only the timeout of the queue pair starts a retransmission.
#[test]
fn a_lost_request_waits_for_the_timeout_of_its_queue_pair() {
    // With seed 10, the fault plan drops only the second of the first hundred arriving packets.
    let faults = Some("drop=0.02,seed=10".parse().unwrap());
    let requester = SoftOptions { retransmits_early: false, ..SoftOptions::default() };
    let devices = (open_soft(requester), open_soft(SoftOptions { faults, ..SoftOptions::default() }));
    let (a, b) = Plan::rc().connect(&devices);
    let to = b.memory(8);
    for wr_id in [1, 2] {
        a.qp.post_send(&[inline(wr_id, write_to(&to, 0), b"text")]).unwrap();
        a.expect(wr_id);
    }
    let counted = a.device.counters().unwrap();
    assert!(counted.local_ack_timeout_err >= 1 && counted.early_retransmit == 0, "{counted:?}");
}

/// The capture of a device marks the frames that injected faults drop. The device counts these frames.
#[test]
fn dropped_frames_are_in_the_capture_and_in_the_counters() {
    const WRITES: u64 = 20;
    let path = std::env::temp_dir().join(format!("doorbell-dropped-{}.pcap", std::process::id()));
    let faults = Some("drop=0.3,seed=1".parse().unwrap());
    let options = SoftOptions { pcap: Some(path.clone()), faults, ..SoftOptions::default() };
    let devices = (open_soft(SoftOptions::default()), open_soft(options));
    let (a, b) = Plan::rc().connect(&devices);
    let to = b.memory(8);
    for number in 1..=WRITES {
        a.qp.post_send(&[inline(number, write_to(&to, 0), b"text")]).unwrap();
        a.expect(number);
    }
    let counted = b.device.link_counters().fault_dropped;
    drop((a, b, to, devices));
    let frames = frames_of(&path);
    std::fs::remove_file(&path).unwrap();
    let dropped = frames.iter().filter(|frame| frame.marks == FaultMarks::DROPPED).count() as u64;
    assert!(counted > 0 && dropped >= counted, "{dropped} frames are marked, {counted} were counted before the end");
    let arrived = frames.iter().filter(|frame| frame.marks.is_empty() && frame.opcode() == Opcode::RC_WRITE_ONLY);
    assert!(arrived.count() as u64 >= WRITES);
}

/// A program may close its device and open a device with the same options again.
#[test]
fn a_device_that_is_opened_again_keeps_its_first_capture() {
    let directory = std::env::temp_dir().join(format!("doorbell-reopened-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("a.b.pcap");
    let open = || open_soft(SoftOptions { pcap: Some(path.clone()), ..SoftOptions::default() });
    drop(open());
    let mark = b"packets of the first opening";
    std::fs::write(&path, mark).unwrap();
    drop(open());
    let both_at_once = (open(), open());
    drop(both_at_once);
    assert_eq!(std::fs::read(&path).unwrap(), mark);
    for number in 2..=4 {
        let header = std::fs::read(directory.join(format!("a.b-{number}.pcap"))).unwrap();
        assert!(header.len() >= 24, "the second device has no capture file");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// Environment variable with the path of the capture. It is set in the process that ends without closing its device.
const ENDS: &str = "DOORBELL_TEST_CAPTURE_OF";

/// The capture is complete even if a program returns from `main` or calls `exit` without closing its device.
#[test]
fn a_capture_is_whole_when_its_process_exits() {
    const WRITES: usize = 10;
    if let Some(path) = std::env::var_os(ENDS) {
        let options = SoftOptions { pcap: Some(path.into()), ..SoftOptions::default() };
        let devices = (open_soft(options), open_soft(SoftOptions::default()));
        let (a, b) = Plan::rc().connect(&devices);
        let to = b.memory(8);
        for number in 1..=WRITES as u64 {
            a.qp.post_send(&[inline(number, write_to(&to, 0), b"text")]).unwrap();
            a.expect(number);
        }
        std::process::exit(0);
    }
    let path = std::env::temp_dir().join(format!("doorbell-exits-{}.pcap", std::process::id()));
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "a_capture_is_whole_when_its_process_exits", "--nocapture"]).env(ENDS, &path);
    assert!(process.status().unwrap().success());
    let frames = frames_of(&path);
    std::fs::remove_file(&path).unwrap();
    // The capture may hold more WRITEs than were posted, since the device retransmits a WRITE if its acknowledgement is
    // late.
    for kind in [Opcode::RC_WRITE_ONLY, Opcode::RC_ACKNOWLEDGE] {
        let found = frames.iter().filter(|frame| frame.opcode() == kind).count();
        assert!(found >= WRITES, "{found} of {kind:?} among {} frames", frames.len());
    }
}
