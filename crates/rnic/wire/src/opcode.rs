use core::fmt;

use crate::{AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, DETH_LEN, IETH_LEN, IMM_DT_LEN, RETH_LEN, XRCETH_LEN};

/// Reserved bytes after the BTH of a congestion notification packet (Annex A17).
pub const CNP_RESERVED_LEN: usize = 16;

/// First byte of the BTH: the transport in the upper three bits, the operation in the lower five (IBTA Vol 1, chapter
/// 9).
///
/// Every value of the byte is representable. For reliable datagram and vendor opcodes, this crate knows only the
/// transport. RoCE devices do not support reliable datagrams, and IBTA leaves vendor opcodes to manufacturers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Opcode(pub u8);

/// Transport of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// RoCE v2's congestion notification.
    Cnp,
    /// Extended reliable connection (IBTA Vol 1, Annex A14).
    Xrc,
    /// Opcodes from 0xc0, which IBTA leaves to manufacturers.
    Vendor,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Rd => "RD",
            Transport::Ud => "UD",
            Transport::Cnp => "CNP",
            Transport::Xrc => "XRC",
            Transport::Vendor => "vendor",
        })
    }
}

/// Operation of a packet, without its position in the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketOperation {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// Request of an RDMA READ.
    ReadRequest,
    /// Data of an RDMA READ.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Response to an atomic operation.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Congestion notification.
    Cnp,
}

/// Defines the opcodes. Each line has the constant, value, operation, flags and name of one opcode. The flags and the
/// value determine all further properties of the opcode.
macro_rules! opcodes {
    ($($name:ident = $value:literal, $operation:ident, $flags:expr, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the names say it; `name` gives IBTA's words")]
        impl Opcode {
            $(pub const $name: Opcode = Opcode($value);)*

            /// All known opcodes, by value.
            pub const KNOWN: &[Opcode] = &[$(Opcode::$name),*];
        }

        const ROWS: [Row; 256] = {
            let mut rows = [UNKNOWN; 256];
            $(rows[$value] = Row::new(PacketOperation::$operation, $flags);)*
            rows
        };

        impl Opcode {
            /// Returns IBTA's name, or `"unknown"`.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown",
                }
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00, Send, FIRST | PAYLOAD, "RC SEND First";
    RC_SEND_MIDDLE = 0x01, Send, PAYLOAD, "RC SEND Middle";
    RC_SEND_LAST = 0x02, Send, LAST | PAYLOAD, "RC SEND Last";
    RC_SEND_LAST_IMM = 0x03, Send, LAST | IMM | PAYLOAD, "RC SEND Last with Immediate";
    RC_SEND_ONLY = 0x04, Send, ONLY | PAYLOAD, "RC SEND Only";
    RC_SEND_ONLY_IMM = 0x05, Send, ONLY | IMM | PAYLOAD, "RC SEND Only with Immediate";
    RC_WRITE_FIRST = 0x06, Write, FIRST | RETH | PAYLOAD, "RC RDMA WRITE First";
    RC_WRITE_MIDDLE = 0x07, Write, PAYLOAD, "RC RDMA WRITE Middle";
    RC_WRITE_LAST = 0x08, Write, LAST | PAYLOAD, "RC RDMA WRITE Last";
    RC_WRITE_LAST_IMM = 0x09, Write, LAST | IMM | PAYLOAD, "RC RDMA WRITE Last with Immediate";
    RC_WRITE_ONLY = 0x0a, Write, ONLY | RETH | PAYLOAD, "RC RDMA WRITE Only";
    RC_WRITE_ONLY_IMM = 0x0b, Write, ONLY | RETH | IMM | PAYLOAD, "RC RDMA WRITE Only with Immediate";
    RC_READ_REQUEST = 0x0c, ReadRequest, ONLY | RETH, "RC RDMA READ Request";
    RC_READ_RESPONSE_FIRST = 0x0d, ReadResponse, FIRST | AETH | PAYLOAD, "RC RDMA READ Response First";
    RC_READ_RESPONSE_MIDDLE = 0x0e, ReadResponse, PAYLOAD, "RC RDMA READ Response Middle";
    RC_READ_RESPONSE_LAST = 0x0f, ReadResponse, LAST | AETH | PAYLOAD, "RC RDMA READ Response Last";
    RC_READ_RESPONSE_ONLY = 0x10, ReadResponse, ONLY | AETH | PAYLOAD, "RC RDMA READ Response Only";
    RC_ACKNOWLEDGE = 0x11, Acknowledge, ONLY | AETH, "RC Acknowledge";
    RC_ATOMIC_ACKNOWLEDGE = 0x12, AtomicAcknowledge, ONLY | AETH | ATOMIC_ACK_ETH, "RC ATOMIC Acknowledge";
    RC_COMPARE_SWAP = 0x13, CompareSwap, ONLY | ATOMIC_ETH, "RC CmpSwap";
    RC_FETCH_ADD = 0x14, FetchAdd, ONLY | ATOMIC_ETH, "RC FetchAdd";
    RC_SEND_LAST_INV = 0x16, Send, LAST | IETH | PAYLOAD, "RC SEND Last with Invalidate";
    RC_SEND_ONLY_INV = 0x17, Send, ONLY | IETH | PAYLOAD, "RC SEND Only with Invalidate";
    UC_SEND_FIRST = 0x20, Send, FIRST | PAYLOAD, "UC SEND First";
    UC_SEND_MIDDLE = 0x21, Send, PAYLOAD, "UC SEND Middle";
    UC_SEND_LAST = 0x22, Send, LAST | PAYLOAD, "UC SEND Last";
    UC_SEND_LAST_IMM = 0x23, Send, LAST | IMM | PAYLOAD, "UC SEND Last with Immediate";
    UC_SEND_ONLY = 0x24, Send, ONLY | PAYLOAD, "UC SEND Only";
    UC_SEND_ONLY_IMM = 0x25, Send, ONLY | IMM | PAYLOAD, "UC SEND Only with Immediate";
    UC_WRITE_FIRST = 0x26, Write, FIRST | RETH | PAYLOAD, "UC RDMA WRITE First";
    UC_WRITE_MIDDLE = 0x27, Write, PAYLOAD, "UC RDMA WRITE Middle";
    UC_WRITE_LAST = 0x28, Write, LAST | PAYLOAD, "UC RDMA WRITE Last";
    UC_WRITE_LAST_IMM = 0x29, Write, LAST | IMM | PAYLOAD, "UC RDMA WRITE Last with Immediate";
    UC_WRITE_ONLY = 0x2a, Write, ONLY | RETH | PAYLOAD, "UC RDMA WRITE Only";
    UC_WRITE_ONLY_IMM = 0x2b, Write, ONLY | RETH | IMM | PAYLOAD, "UC RDMA WRITE Only with Immediate";
    UD_SEND_ONLY = 0x64, Send, ONLY | DETH | PAYLOAD, "UD SEND Only";
    UD_SEND_ONLY_IMM = 0x65, Send, ONLY | DETH | IMM | PAYLOAD, "UD SEND Only with Immediate";
    CNP = 0x81, Cnp, 0, "CNP";
    XRC_SEND_FIRST = 0xa0, Send, FIRST | XRCETH | PAYLOAD, "XRC SEND First";
    XRC_SEND_MIDDLE = 0xa1, Send, XRCETH | PAYLOAD, "XRC SEND Middle";
    XRC_SEND_LAST = 0xa2, Send, LAST | XRCETH | PAYLOAD, "XRC SEND Last";
    XRC_SEND_LAST_IMM = 0xa3, Send, LAST | XRCETH | IMM | PAYLOAD, "XRC SEND Last with Immediate";
    XRC_SEND_ONLY = 0xa4, Send, ONLY | XRCETH | PAYLOAD, "XRC SEND Only";
    XRC_SEND_ONLY_IMM = 0xa5, Send, ONLY | XRCETH | IMM | PAYLOAD, "XRC SEND Only with Immediate";
    XRC_WRITE_FIRST = 0xa6, Write, FIRST | XRCETH | RETH | PAYLOAD, "XRC RDMA WRITE First";
    XRC_WRITE_MIDDLE = 0xa7, Write, XRCETH | PAYLOAD, "XRC RDMA WRITE Middle";
    XRC_WRITE_LAST = 0xa8, Write, LAST | XRCETH | PAYLOAD, "XRC RDMA WRITE Last";
    XRC_WRITE_LAST_IMM = 0xa9, Write, LAST | XRCETH | IMM | PAYLOAD, "XRC RDMA WRITE Last with Immediate";
    XRC_WRITE_ONLY = 0xaa, Write, ONLY | XRCETH | RETH | PAYLOAD, "XRC RDMA WRITE Only";
    XRC_WRITE_ONLY_IMM = 0xab, Write, ONLY | XRCETH | RETH | IMM | PAYLOAD, "XRC RDMA WRITE Only with Immediate";
    XRC_READ_REQUEST = 0xac, ReadRequest, ONLY | XRCETH | RETH, "XRC RDMA READ Request";
    XRC_READ_RESPONSE_FIRST = 0xad, ReadResponse, FIRST | AETH | PAYLOAD, "XRC RDMA READ Response First";
    XRC_READ_RESPONSE_MIDDLE = 0xae, ReadResponse, PAYLOAD, "XRC RDMA READ Response Middle";
    XRC_READ_RESPONSE_LAST = 0xaf, ReadResponse, LAST | AETH | PAYLOAD, "XRC RDMA READ Response Last";
    XRC_READ_RESPONSE_ONLY = 0xb0, ReadResponse, ONLY | AETH | PAYLOAD, "XRC RDMA READ Response Only";
    XRC_ACKNOWLEDGE = 0xb1, Acknowledge, ONLY | AETH, "XRC Acknowledge";
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2, AtomicAcknowledge, ONLY | AETH | ATOMIC_ACK_ETH, "XRC ATOMIC Acknowledge";
    XRC_COMPARE_SWAP = 0xb3, CompareSwap, ONLY | XRCETH | ATOMIC_ETH, "XRC CmpSwap";
    XRC_FETCH_ADD = 0xb4, FetchAdd, ONLY | XRCETH | ATOMIC_ETH, "XRC FetchAdd";
    XRC_SEND_LAST_INV = 0xb6, Send, LAST | XRCETH | IETH | PAYLOAD, "XRC SEND Last with Invalidate";
    XRC_SEND_ONLY_INV = 0xb7, Send, ONLY | XRCETH | IETH | PAYLOAD, "XRC SEND Only with Invalidate";
}

impl Opcode {
    /// Returns the transport, which depends on the upper three bits alone.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            5 => Transport::Xrc,
            _ => Transport::Vendor,
        }
    }

    /// Returns the operation of the packet, or `None` for an unknown opcode.
    #[inline]
    pub const fn operation(self) -> Option<PacketOperation> {
        self.row().operation
    }

    /// Returns whether the packet begins a message: First or Only. A READ request, an acknowledgement and both
    /// packets of an atomic operation are messages of one packet.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.has(FIRST)
    }

    /// Returns whether the packet ends a message: Last or Only.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.has(LAST)
    }

    /// Returns whether the packet is a whole message.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.row().flags & ONLY == ONLY
    }

    /// Returns whether an XRC extended transport header follows the BTH, before all other headers.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Returns whether an RDMA extended transport header follows.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Returns whether an acknowledge extended transport header follows.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Returns whether a datagram extended transport header follows.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Returns whether an atomic extended transport header follows.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Returns whether an atomic acknowledge extended transport header follows, after the AETH.
    #[inline]
    pub const fn has_atomic_ack_eth(self) -> bool {
        self.has(ATOMIC_ACK_ETH)
    }

    /// Returns whether immediate data follows, after a RETH or DETH.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.has(IMM)
    }

    /// Returns whether an invalidate extended transport header follows.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.has(IETH)
    }

    /// Returns whether a payload may follow. The payload of a packet that ends a message may be empty.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.has(PAYLOAD)
    }

    /// Returns the bytes between the BTH and the payload; for a CNP, its reserved bytes.
    #[inline]
    pub const fn extension_len(self) -> usize {
        self.row().extension_len as usize
    }

    /// Returns whether a requester sends the packet.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.has(REQUEST)
    }

    /// Returns whether a responder sends the packet.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.has(RESPONSE)
    }

    #[inline]
    const fn has(self, flag: u16) -> bool {
        self.row().flags & flag != 0
    }

    #[inline]
    const fn row(self) -> &'static Row {
        &TABLE[self.0 as usize]
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(_) => f.write_str(self.name()),
            None => write!(f, "{} opcode 0x{:02x}", self.transport(), self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode(0x{:02x} {})", self.0, self.name())
    }
}

static TABLE: [Row; 256] = ROWS;

/// Properties of an opcode. They take four bytes, so that the table of 256 opcodes fills 16 cache lines.
#[derive(Clone, Copy)]
struct Row {
    flags: u16,
    operation: Option<PacketOperation>,
    extension_len: u8,
}

const _: () = assert!(size_of::<Row>() == 4);

const UNKNOWN: Row = Row { flags: 0, operation: None, extension_len: 0 };

const FIRST: u16 = 1 << 0;
const LAST: u16 = 1 << 1;
const ONLY: u16 = FIRST | LAST;
const RETH: u16 = 1 << 2;
const AETH: u16 = 1 << 3;
const DETH: u16 = 1 << 4;
const ATOMIC_ETH: u16 = 1 << 5;
const ATOMIC_ACK_ETH: u16 = 1 << 6;
const IMM: u16 = 1 << 7;
const IETH: u16 = 1 << 8;
const PAYLOAD: u16 = 1 << 9;
const REQUEST: u16 = 1 << 10;
const RESPONSE: u16 = 1 << 11;
const XRCETH: u16 = 1 << 12;

/// Flags of the headers that may follow a BTH, and the length of each header in bytes.
const EXTENSIONS: [(u16, usize); 8] = [
    (XRCETH, XRCETH_LEN),
    (RETH, RETH_LEN),
    (AETH, AETH_LEN),
    (DETH, DETH_LEN),
    (ATOMIC_ETH, ATOMIC_ETH_LEN),
    (ATOMIC_ACK_ETH, ATOMIC_ACK_ETH_LEN),
    (IMM, IMM_DT_LEN),
    (IETH, IETH_LEN),
];

impl Row {
    const fn new(operation: PacketOperation, flags: u16) -> Row {
        let role = match operation {
            PacketOperation::ReadResponse | PacketOperation::Acknowledge | PacketOperation::AtomicAcknowledge => {
                RESPONSE
            }
            PacketOperation::Cnp => 0,
            _ => REQUEST,
        };
        let mut extension_len = match operation {
            PacketOperation::Cnp => CNP_RESERVED_LEN,
            _ => 0,
        };
        let mut i = 0;
        while i < EXTENSIONS.len() {
            if flags & EXTENSIONS[i].0 != 0 {
                extension_len += EXTENSIONS[i].1;
            }
            i += 1;
        }
        Row { flags: flags | role, operation: Some(operation), extension_len: extension_len as u8 }
    }
}
