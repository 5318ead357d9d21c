use std::format;
use std::string::ToString;

use crate::{Opcode, PacketOperation, Transport};

/// Expected rows of the table: value, transport, operation, position in the message, extension headers with their
/// bytes, whether a payload may follow.
type Row = (u8, Transport, PacketOperation, Position, &'static [(&'static str, usize)], bool);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Position {
    First,
    Middle,
    Last,
    Only,
}

const R: (&str, usize) = ("RETH", 16);
const A: (&str, usize) = ("AETH", 4);
const D: (&str, usize) = ("DETH", 8);
const I: (&str, usize) = ("ImmDt", 4);
const INV: (&str, usize) = ("IETH", 4);
const AT: (&str, usize) = ("AtomicETH", 28);
const AT_ACK: (&str, usize) = ("AtomicAckETH", 8);
const X: (&str, usize) = ("XRCETH", 4);

#[rustfmt::skip]
const ROWS: [Row; 60] = {
    use PacketOperation::*;
    use Position::*;
    use Transport::*;
    [
        (0x00, Rc, Send, First, &[], true),
        (0x01, Rc, Send, Middle, &[], true),
        (0x02, Rc, Send, Last, &[], true),
        (0x03, Rc, Send, Last, &[I], true),
        (0x04, Rc, Send, Only, &[], true),
        (0x05, Rc, Send, Only, &[I], true),
        (0x06, Rc, Write, First, &[R], true),
        (0x07, Rc, Write, Middle, &[], true),
        (0x08, Rc, Write, Last, &[], true),
        (0x09, Rc, Write, Last, &[I], true),
        (0x0a, Rc, Write, Only, &[R], true),
        (0x0b, Rc, Write, Only, &[R, I], true),
        (0x0c, Rc, ReadRequest, Only, &[R], false),
        (0x0d, Rc, ReadResponse, First, &[A], true),
        (0x0e, Rc, ReadResponse, Middle, &[], true),
        (0x0f, Rc, ReadResponse, Last, &[A], true),
        (0x10, Rc, ReadResponse, Only, &[A], true),
        (0x11, Rc, Acknowledge, Only, &[A], false),
        (0x12, Rc, AtomicAcknowledge, Only, &[A, AT_ACK], false),
        (0x13, Rc, CompareSwap, Only, &[AT], false),
        (0x14, Rc, FetchAdd, Only, &[AT], false),
        (0x16, Rc, Send, Last, &[INV], true),
        (0x17, Rc, Send, Only, &[INV], true),
        (0x20, Uc, Send, First, &[], true),
        (0x21, Uc, Send, Middle, &[], true),
        (0x22, Uc, Send, Last, &[], true),
        (0x23, Uc, Send, Last, &[I], true),
        (0x24, Uc, Send, Only, &[], true),
        (0x25, Uc, Send, Only, &[I], true),
        (0x26, Uc, Write, First, &[R], true),
        (0x27, Uc, Write, Middle, &[], true),
        (0x28, Uc, Write, Last, &[], true),
        (0x29, Uc, Write, Last, &[I], true),
        (0x2a, Uc, Write, Only, &[R], true),
        (0x2b, Uc, Write, Only, &[R, I], true),
        (0x64, Ud, Send, Only, &[D], true),
        (0x65, Ud, Send, Only, &[D, I], true),
        (0xa0, Xrc, Send, First, &[X], true),
        (0xa1, Xrc, Send, Middle, &[X], true),
        (0xa2, Xrc, Send, Last, &[X], true),
        (0xa3, Xrc, Send, Last, &[X, I], true),
        (0xa4, Xrc, Send, Only, &[X], true),
        (0xa5, Xrc, Send, Only, &[X, I], true),
        (0xa6, Xrc, Write, First, &[X, R], true),
        (0xa7, Xrc, Write, Middle, &[X], true),
        (0xa8, Xrc, Write, Last, &[X], true),
        (0xa9, Xrc, Write, Last, &[X, I], true),
        (0xaa, Xrc, Write, Only, &[X, R], true),
        (0xab, Xrc, Write, Only, &[X, R, I], true),
        (0xac, Xrc, ReadRequest, Only, &[X, R], false),
        (0xad, Xrc, ReadResponse, First, &[A], true),
        (0xae, Xrc, ReadResponse, Middle, &[], true),
        (0xaf, Xrc, ReadResponse, Last, &[A], true),
        (0xb0, Xrc, ReadResponse, Only, &[A], true),
        (0xb1, Xrc, Acknowledge, Only, &[A], false),
        (0xb2, Xrc, AtomicAcknowledge, Only, &[A, AT_ACK], false),
        (0xb3, Xrc, CompareSwap, Only, &[X, AT], false),
        (0xb4, Xrc, FetchAdd, Only, &[X, AT], false),
        (0xb6, Xrc, Send, Last, &[X, INV], true),
        (0xb7, Xrc, Send, Only, &[X, INV], true),
    ]
};

#[test]
fn every_row() {
    for (value, transport, operation, place, extensions, payload) in ROWS {
        let opcode = Opcode(value);
        let has = |header| extensions.contains(&header);
        assert_eq!(opcode.transport(), transport, "{opcode:?}");
        assert_eq!(opcode.operation(), Some(operation), "{opcode:?}");
        assert_eq!(opcode.is_first(), matches!(place, Position::First | Position::Only));
        assert_eq!(opcode.is_last(), matches!(place, Position::Last | Position::Only));
        assert_eq!(opcode.is_only(), place == Position::Only, "{opcode:?}");
        assert_eq!(opcode.has_xrceth(), has(X), "{opcode:?}");
        assert_eq!(opcode.has_reth(), has(R), "{opcode:?}");
        assert_eq!(opcode.has_aeth(), has(A), "{opcode:?}");
        assert_eq!(opcode.has_deth(), has(D), "{opcode:?}");
        assert_eq!(opcode.has_atomic_eth(), has(AT), "{opcode:?}");
        assert_eq!(opcode.has_atomic_ack_eth(), has(AT_ACK), "{opcode:?}");
        assert_eq!(opcode.has_imm(), has(I), "{opcode:?}");
        assert_eq!(opcode.has_ieth(), has(INV), "{opcode:?}");
        assert_eq!(opcode.has_payload(), payload, "{opcode:?}");
        let extension_len = extensions.iter().map(|(_, len)| len).sum();
        assert_eq!(opcode.extension_len(), extension_len, "{opcode:?}");
        let response = matches!(
            operation,
            PacketOperation::ReadResponse | PacketOperation::Acknowledge | PacketOperation::AtomicAcknowledge
        );
        assert_eq!(opcode.is_response(), response, "{opcode:?}");
        assert_eq!(opcode.is_request(), !response, "{opcode:?}");
    }
}

#[test]
fn congestion_notification() {
    assert_eq!(Opcode::CNP, Opcode(0x81));
    assert_eq!(Opcode::CNP.transport(), Transport::Cnp);
    assert_eq!(Opcode::CNP.operation(), Some(PacketOperation::Cnp));
    assert_eq!(Opcode::CNP.extension_len(), 16);
    assert!(!Opcode::CNP.is_request() && !Opcode::CNP.is_response());
    assert!(!Opcode::CNP.has_payload());
}

#[test]
fn the_others_are_unknown() {
    let mut known = 0;
    for value in 0..=255 {
        let opcode = Opcode(value);
        if ROWS.iter().any(|row| row.0 == value) || opcode == Opcode::CNP {
            known += 1;
            assert!(Opcode::KNOWN.contains(&opcode));
            continue;
        }
        assert_eq!(opcode.operation(), None);
        assert_eq!(opcode.extension_len(), 0);
        assert_eq!(opcode.name(), "unknown");
        assert!(!opcode.is_first() && !opcode.is_last() && !opcode.has_payload());
        assert!(!opcode.is_request() && !opcode.is_response());
    }
    assert_eq!(known, Opcode::KNOWN.len());
    assert_eq!(Opcode(0x44).transport(), Transport::Rd);
    assert_eq!(Opcode(0xb5).transport(), Transport::Xrc);
    assert_eq!([0xc0, 0xe1, 0xff].map(|value| Opcode(value).transport()), [Transport::Vendor; 3]);
}

/// The words of an opcode's name (such as "Immediate" or "Last") must agree with the opcode's flags.
#[test]
fn names() {
    for opcode in Opcode::KNOWN {
        let name = opcode.name();
        let says = |word| name.split(' ').any(|found| found == word);
        assert_eq!(opcode.has_imm(), says("Immediate"), "{name}");
        assert_eq!(opcode.has_ieth(), says("Invalidate"), "{name}");
        if says("First") || says("Middle") || says("Last") || says("Only") {
            assert_eq!(opcode.is_first(), says("First") || says("Only"), "{name}");
            assert_eq!(opcode.is_last(), says("Last") || says("Only"), "{name}");
        }
        let transport = match opcode.transport() {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Xrc => "XRC",
            _ => "CNP",
        };
        assert!(says(transport), "{name}");
        assert_eq!(opcode.to_string(), name);
    }
    let name = Opcode::RC_SEND_ONLY_IMM.name();
    assert_eq!(name, "RC SEND Only with Immediate");
    let unassigned = [0x1f, 0x44, 0x7f, 0x80, 0xb5, 0xc4].map(|value| Opcode(value).to_string());
    let expected = [
        "RC opcode 0x1f",
        "RD opcode 0x44",
        "UD opcode 0x7f",
        "CNP opcode 0x80",
        "XRC opcode 0xb5",
        "vendor opcode 0xc4",
    ];
    assert_eq!(unassigned, expected);
    assert_eq!(format!("{:?}", Opcode(4)), "Opcode(0x04 RC SEND Only)");
}
