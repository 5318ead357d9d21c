use core::fmt;

use crate::Error;

const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits that wrap (IBTA Vol 1, chapter 9).
///
/// There is no `Ord`: which of two PSNs comes first depends on the window they are seen in, so
/// the question is asked with [`is_before`](Psn::is_before).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The bits a PSN has.
    pub const MASK: u32 = MASK_24;

    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & Self::MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later, modulo 2^24.
    #[inline]
    pub const fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }

    /// The PSN `packets` earlier, modulo 2^24.
    #[inline]
    pub const fn sub(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }

    /// The PSN of the packet after this one.
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// How many packets after `earlier` this one comes, modulo 2^24.
    #[inline]
    pub const fn distance_from(self, earlier: Psn) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Whether this PSN lies in the half of the sequence space that precedes `other`.
    ///
    /// Equal PSNs are not before each other. The half counts 2^23 PSNs, as IBTA's region of
    /// duplicates does, so of two PSNs just 2^23 apart each is before the other.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        let distance = other.distance_from(self);
        distance != 0 && distance <= 1 << 23
    }
}

/// Message sequence number: 24 bits that wrap, counting the requests that a responder completed
/// (IBTA Vol 1, chapter 9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Msn(u32);

impl Msn {
    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Msn {
        Msn(value & MASK_24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The MSN after one more request.
    #[inline]
    pub const fn next(self) -> Msn {
        Msn::new(self.0.wrapping_add(1))
    }
}

/// Queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK_24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Remote key: what a peer shows to reach a memory region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RKey(u32);

impl RKey {
    /// The key with this value.
    #[inline]
    pub const fn new(value: u32) -> RKey {
        RKey(value)
    }

    /// The key's value.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Queue key: what a datagram must show to be received by a UD queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QKey(u32);

impl QKey {
    /// The key with this value.
    #[inline]
    pub const fn new(value: u32) -> QKey {
        QKey(value)
    }

    /// The key's value.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Does a work request with this key mean the key of the queue pair that sends it? That is what the highest
    /// bit says (IBTA Vol 1, 10.2.5).
    #[inline]
    pub const fn means_senders_own(self) -> bool {
        self.0 >> 31 == 1
    }
}

/// Partition key: the upper bit is full membership, the others name the partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionKey(u16);

impl PartitionKey {
    /// The default partition with full membership, the only one that RoCE uses.
    pub const DEFAULT: PartitionKey = PartitionKey(0xffff);

    /// The key with this value.
    #[inline]
    pub const fn new(value: u16) -> PartitionKey {
        PartitionKey(value)
    }

    /// The key's value.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for PartitionKey {
    fn default() -> PartitionKey {
        PartitionKey::DEFAULT
    }
}

/// The largest payload of a packet on a path. The discriminant is IBTA's code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every path MTU, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// The payload bytes it allows.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// IBTA's code, 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The path MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: usize) -> Option<PathMtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest path MTU of at most `bytes` bytes.
    pub fn largest_within(bytes: usize) -> Option<PathMtu> {
        Self::ALL.into_iter().rfind(|mtu| mtu.bytes() <= bytes)
    }
}

impl TryFrom<u8> for PathMtu {
    type Error = Error;

    fn try_from(code: u8) -> Result<PathMtu, Error> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code).ok_or(Error::PathMtuCode(code))
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Shows a number as `0x` and as many hexadecimal digits as its bits fill.
macro_rules! display_hex {
    ($($name:ident $format:literal)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}

display_hex! {
    Psn "0x{:06x}"
    Msn "0x{:06x}"
    Qpn "0x{:06x}"
    RKey "0x{:08x}"
    QKey "0x{:08x}"
    PartitionKey "0x{:04x}"
}
