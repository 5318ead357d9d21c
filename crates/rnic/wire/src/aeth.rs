//! Acknowledge extended transport header: progress of a responder, or the reason for its NAK (IBTA Vol 1, chapter 9).

use core::fmt;

use crate::view::{from_be_24, to_be_24};
use crate::{Error, Msn};

/// Bytes of the header.
pub const AETH_LEN: usize = 4;

mod at {
    pub(super) const SYNDROME: usize = 0;
    pub(super) const MSN: usize = 1;
}

header_view! {
    /// A view of an acknowledge extended transport header.
    AETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the syndrome: ACK, RNR NAK or NAK.
    #[inline]
    pub fn syndrome(&self) -> Syndrome {
        let [syndrome] = self.get(at::SYNDROME);
        Syndrome(syndrome)
    }

    /// Returns the message sequence number.
    #[inline]
    pub fn msn(&self) -> Msn {
        Msn::new(from_be_24(self.get(at::MSN)))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the syndrome.
    #[inline]
    pub fn set_syndrome(&mut self, syndrome: Syndrome) {
        self.set(at::SYNDROME, [syndrome.0]);
    }

    /// Sets the message sequence number.
    #[inline]
    pub fn set_msn(&mut self, msn: Msn) {
        self.set(at::MSN, to_be_24(msn.get()));
    }
}

/// An acknowledge extended transport header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// Syndrome: ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// The message sequence number.
    pub msn: Msn,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; AETH_LEN]) -> Repr {
        let packet = Packet::new_unchecked(bytes);
        Repr { syndrome: packet.syndrome(), msn: packet.msn() }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; AETH_LEN]) {
        let mut packet = Packet::new_unchecked(out);
        packet.set_syndrome(self.syndrome);
        packet.set_msn(self.msn);
    }
}

/// First byte of an AETH. Bits 6 and 5 hold the kind of the syndrome, the lower five bits hold the value of that kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Syndrome(pub u8);

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
