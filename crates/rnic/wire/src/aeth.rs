//! Acknowledge extended transport header: progress of a responder, or the reason for its NAK (IBTA Vol 1, chapter 9).

use core::fmt;

use crate::{Error, Msn};

/// Bytes of the header.
pub const AETH_LEN: usize = 4;

plain_header! {
    /// A view of an acknowledge extended transport header.
    AETH_LEN
    /// An acknowledge extended transport header's fields.
    Repr {
        /// Syndrome: ACK, RNR NAK or NAK.
        syndrome, set_syndrome: Syndrome = 0;
        /// The message sequence number.
        msn, set_msn: Msn = 1;
    }
}

/// First byte of an AETH. Bits 6 and 5 hold the kind of the syndrome, the lower five bits hold the value of that kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Syndrome(pub u8);

field!(Syndrome: 1, bytes => Syndrome(bytes[0]), syndrome => [syndrome.0]);

const VALUE: u8 = 0x1f;
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

impl Syndrome {
    /// ACK of a responder without credit-based flow control. The requester may send without limit.
    pub const ACK_UNLIMITED: Syndrome = Syndrome::ack(31);

    /// Returns an ACK that grants credits by their 5-bit code; 31 means unlimited.
    #[inline]
    pub const fn ack(credits: u8) -> Syndrome {
        Syndrome(ACK | credits & VALUE)
    }

    /// Returns an RNR NAK with the 5-bit code of the delay before a retry ([`rnr_timer_ns`](crate::rnr_timer_ns)).
    #[inline]
    pub const fn rnr_nak(timer: u8) -> Syndrome {
        Syndrome(RNR_NAK | timer & VALUE)
    }

    /// Returns a NAK with this reason.
    #[inline]
    pub const fn nak(code: NakCode) -> Syndrome {
        Syndrome(NAK | code.0 & VALUE)
    }

    /// Returns the decoded syndrome.
    #[inline]
    pub const fn kind(self) -> SyndromeKind {
        let value = self.0 & VALUE;
        match self.0 & !VALUE {
            ACK => SyndromeKind::Ack { credits: value },
            RNR_NAK => SyndromeKind::RnrNak { timer: value },
            NAK => SyndromeKind::Nak(NakCode(value)),
            _ => SyndromeKind::Unknown(self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome(0x{:02x} {:?})", self.0, self.kind())
    }
}

/// Decoded [`Syndrome`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyndromeKind {
    /// All packets up to the PSN of this packet have arrived.
    Ack {
        /// Code of the granted credits; 31 means unlimited.
        credits: u8,
    },
    /// The responder had no receive buffer.
    RnrNak {
        /// Code of the delay before a retry.
        timer: u8,
    },
    /// The responder rejected the request.
    Nak(NakCode),
    /// Syndrome of a kind that IBTA reserves; contains the whole byte.
    Unknown(u8),
}

/// Reason for which a responder rejects a request: five bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet is missing. The requester retransmits from the PSN of the NAK.
    pub const PSN_SEQUENCE_ERROR: NakCode = NakCode(0);
    /// The request is malformed, or the queue pair does not support the request.
    pub const INVALID_REQUEST: NakCode = NakCode(1);
    /// The key, the bounds or the access rights forbid the request.
    pub const REMOTE_ACCESS_ERROR: NakCode = NakCode(2);
    /// The responder cannot continue, for a local reason.
    pub const REMOTE_OPERATIONAL_ERROR: NakCode = NakCode(3);
    /// The reliable datagram context of the request is invalid.
    pub const INVALID_RD_REQUEST: NakCode = NakCode(4);
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            NakCode::PSN_SEQUENCE_ERROR => "PSN sequence error",
            NakCode::INVALID_REQUEST => "invalid request",
            NakCode::REMOTE_ACCESS_ERROR => "remote access error",
            NakCode::REMOTE_OPERATIONAL_ERROR => "remote operational error",
            NakCode::INVALID_RD_REQUEST => "invalid RD request",
            NakCode(code) => return write!(f, "NAK code {code}"),
        })
    }
}
