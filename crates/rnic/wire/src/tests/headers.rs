use proptest::prelude::*;

use crate::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, BthPacket, BthRepr, DethRepr, Error, IethPacket, IethRepr, ImmDtRepr,
    Msn, NakCode, Opcode, PartitionKey, Psn, QKey, Qpn, RKey, RethRepr, Syndrome, SyndromeKind,
};

/// Tests a header against golden bytes: the getters and setters of `Packet`, `Repr::parse`, `Repr::emit`, the array
/// functions of `Repr`, and buffers that are too short.
macro_rules! golden {
    ($module:ident, $bytes:expr, $repr:expr, { $($get:ident, $set:ident: $value:expr;)* }) => {
        mod $module {
            use super::*;
            use crate::$module::{Packet, Repr};

            const BYTES: &[u8] = &$bytes;
            const LEN: usize = BYTES.len();

            #[test]
            fn deconstruct() {
                let packet = Packet::new_checked(BYTES).unwrap();
                $(assert_eq!(packet.$get(), $value);)*
                assert!(packet.payload().is_empty());
            }

            #[test]
            fn construct() {
                let mut packet = Packet::new_unchecked([0; LEN]);
                $(packet.$set($value);)*
                assert_eq!(packet.into_inner(), BYTES);
            }

            #[test]
            fn parse() {
                assert_eq!(Repr::parse(&Packet::new_unchecked(BYTES)), Ok($repr));
                assert_eq!(Repr::read(BYTES.try_into().unwrap()), $repr);
            }

            #[test]
            fn emit() {
                let mut packet = Packet::new_unchecked([0xa5; LEN + 1]);
                $repr.emit(&mut packet);
                let buffer = packet.into_inner();
                assert_eq!(buffer[..LEN], *BYTES);
                assert_eq!(buffer[LEN], 0xa5);
                let mut array = [0xa5; LEN];
                $repr.write(&mut array);
                assert_eq!(array, BYTES);
                assert_eq!(Repr::buffer_len(), LEN);
            }

            #[test]
            fn too_short() {
                for found in 0..LEN {
                    let error = Error::Truncated { needed: LEN, found };
                    let buffer = &BYTES[..found];
                    assert_eq!(Packet::new_checked(buffer), Err(error));
                    assert_eq!(Repr::parse(&Packet::new_unchecked(buffer)), Err(error));
                }
            }
        }
    };
}

// Fields of two BTHs that scapy built, `golden::ACKNOWLEDGE` and `golden::WRITE_ONLY`.
golden! {
    bth,
    [0x0a, 0xf0, 0xff, 0xfe, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef],
    Repr {
        opcode: Opcode::RC_WRITE_ONLY,
        solicited: true,
        migrated: true,
        pad_count: 3,
        version: 0,
        partition_key: PartitionKey::new(0xfffe),
        fecn: true,
        becn: true,
        dest_qpn: Qpn::new(0x123456),
        ack_request: true,
        psn: Psn::new(0xabcdef),
    },
    {
        opcode, set_opcode: Opcode::RC_WRITE_ONLY;
        solicited, set_solicited: true;
        migrated, set_migrated: true;
        pad_count, set_pad_count: 3;
        version, set_version: 0;
        partition_key, set_partition_key: PartitionKey::new(0xfffe);
        fecn, set_fecn: true;
        becn, set_becn: true;
        dest_qpn, set_dest_qpn: Qpn::new(0x123456);
        ack_request, set_ack_request: true;
        psn, set_psn: Psn::new(0xabcdef);
    }
}

golden! {
    reth,
    [0x7f, 0, 0x12, 0x34, 0x56, 0x78, 0x90, 1, 0xa1, 0xb2, 0xc3, 0xd4, 0x80, 0, 0, 5],
    Repr {
        virtual_address: 0x7f00_1234_5678_9001,
        rkey: RKey::new(0xa1b2c3d4),
        dma_length: 0x8000_0005,
    },
    {
        virtual_address, set_virtual_address: 0x7f00_1234_5678_9001;
        rkey, set_rkey: RKey::new(0xa1b2c3d4);
        dma_length, set_dma_length: 0x8000_0005;
    }
}

golden! {
    aeth,
    [0x61, 0x0f, 0xed, 0xcb],
    Repr {
        syndrome: Syndrome::nak(NakCode::INVALID_REQUEST),
        msn: Msn::new(0x0fedcb),
    },
    {
        syndrome, set_syndrome: Syndrome::nak(NakCode::INVALID_REQUEST);
        msn, set_msn: Msn::new(0x0fedcb);
    }
}

golden! {
    deth,
    [0x80, 1, 2, 3, 0, 0xfe, 0xdc, 0xba],
    Repr {
        qkey: QKey::new(0x80010203),
        source_qpn: Qpn::new(0xfedcba),
    },
    {
        qkey, set_qkey: QKey::new(0x80010203);
        source_qpn, set_source_qpn: Qpn::new(0xfedcba);
    }
}

golden! {
    atomic_eth,
    [
        0, 0, 0x55, 0xaa, 1, 2, 3, 8, // virtual address
        0xa1, 0xb2, 0xc3, 0xd4, // rkey
        1, 2, 3, 4, 5, 6, 7, 8, // swap or add
        9, 10, 11, 12, 13, 14, 15, 16, // compare
    ],
    Repr {
        virtual_address: 0x55aa_0102_0308,
        rkey: RKey::new(0xa1b2c3d4),
        swap_or_add: 0x0102_0304_0506_0708,
        compare: 0x090a_0b0c_0d0e_0f10,
    },
    {
        virtual_address, set_virtual_address: 0x55aa_0102_0308;
        rkey, set_rkey: RKey::new(0xa1b2c3d4);
        swap_or_add, set_swap_or_add: 0x0102_0304_0506_0708;
        compare, set_compare: 0x090a_0b0c_0d0e_0f10;
    }
}

golden! {
    atomic_ack_eth,
    [0xf1, 2, 3, 4, 5, 6, 7, 8],
    Repr { original: 0xf102_0304_0506_0708 },
    { original, set_original: 0xf102_0304_0506_0708; }
}

golden! {
    imm_dt,
    [0xde, 0xad, 0xbe, 0xef],
    Repr { value: 0xdead_beef },
    { value, set_value: 0xdead_beef; }
}

golden! {
    ieth,
    [0xa1, 0xb2, 0xc3, 0xd4],
    Repr { rkey: RKey::new(0xa1b2c3d4) },
    { rkey, set_rkey: RKey::new(0xa1b2c3d4); }
}

#[test]
fn payload_follows_the_header() {
    let bytes = [0xa1, 0xb2, 0xc3, 0xd4, 5, 6];
    assert_eq!(IethPacket::new_unchecked(&bytes).payload(), [5, 6]);
}

#[test]
fn bits_of_a_bth_are_set_and_cleared_apart() {
    let mut packet = BthPacket::new_unchecked([0xff; 12]);
    packet.set_solicited(false);
    packet.set_migrated(false);
    packet.set_pad_count(2);
    packet.set_version(0);
    packet.set_fecn(false);
    packet.set_ack_request(false);
    let expected = [0xff, 0x20, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff];
    assert_eq!(packet.into_inner(), expected);
}

#[test]
fn unknown_versions_are_read_but_not_parsed() {
    let bytes = [0x04, 0x05, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(BthRepr::read(&bytes).version, 5);
    let parsed = BthRepr::parse(&BthPacket::new_unchecked(&bytes));
    assert_eq!(parsed, Err(Error::HeaderVersion(5)));
}

#[test]
fn syndromes() {
    assert_eq!(Syndrome::ACK_UNLIMITED, Syndrome(0x1f));
    assert_eq!(Syndrome::ack(0), Syndrome(0x00));
    assert_eq!(Syndrome::rnr_nak(12), Syndrome(0x2c));
    let nak = Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!(nak, Syndrome(0x62));
    for byte in 0..=255 {
        let value = byte & 0x1f;
        let expected = match byte >> 5 {
            0 => SyndromeKind::Ack { credits: value },
            1 => SyndromeKind::RnrNak { timer: value },
            3 => SyndromeKind::Nak(NakCode(value)),
            _ => SyndromeKind::Unknown(byte),
        };
        assert_eq!(Syndrome(byte).kind(), expected);
        let again = match Syndrome(byte).kind() {
            SyndromeKind::Ack { credits } => Syndrome::ack(credits),
            SyndromeKind::RnrNak { timer } => Syndrome::rnr_nak(timer),
            SyndromeKind::Nak(code) => Syndrome::nak(code),
            SyndromeKind::Unknown(byte) => Syndrome(byte),
        };
        assert_eq!(again, Syndrome(byte));
    }
}

proptest! {
    /// Emitting and parsing preserves the fields and clears reserved bits.
    #[test]
    fn bth_round_trip(bytes: [u8; 12]) {
        let repr = BthRepr::read(&bytes);
        let mut out = [0xa5; 12];
        repr.write(&mut out);
        prop_assert_eq!(BthRepr::read(&out), repr);
        let mut masked = bytes;
        masked[4] &= 0xc0;
        masked[8] &= 0x80;
        prop_assert_eq!(out, masked);
    }

    #[test]
    fn deth_round_trip(mut bytes: [u8; 8]) {
        let mut out = [0xa5; 8];
        DethRepr::read(&bytes).write(&mut out);
        bytes[4] = 0;
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn reth_round_trip(bytes: [u8; 16]) {
        let mut out = [0; 16];
        RethRepr::read(&bytes).write(&mut out);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn aeth_round_trip(bytes: [u8; 4]) {
        let mut out = [0; 4];
        AethRepr::read(&bytes).write(&mut out);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn atomic_eth_round_trip(bytes: [u8; 28]) {
        let mut out = [0; 28];
        AtomicEthRepr::read(&bytes).write(&mut out);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn small_headers_round_trip(bytes: [u8; 8], four: [u8; 4]) {
        let mut out = [0; 8];
        AtomicAckEthRepr::read(&bytes).write(&mut out);
        prop_assert_eq!(out, bytes);
        let mut out = [0; 4];
        ImmDtRepr::read(&four).write(&mut out);
        prop_assert_eq!(out, four);
        let mut out = [0; 4];
        IethRepr::read(&four).write(&mut out);
        prop_assert_eq!(out, four);
    }
}
