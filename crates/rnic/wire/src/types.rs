use core::fmt;

use crate::Error;

const MASK_24: u32 = 0x00ff_ffff;

/// Defines numbers with `new` and `get`, which are displayed as `0x` and the hexadecimal digits of all bits.
macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident($type:ty) $(& $mask:ident)?, $format:literal;)*) => {$(
        $(#[$meta])*
        pub struct $name($type);

        impl $name {
            /// Creates the value from its number. Ignores bits that the field does not have.
            #[inline]
            pub const fn new(number: $type) -> $name {
                $name(number $(& $mask)?)
            }

            /// Returns the number.
            #[inline]
            pub const fn get(self) -> $type {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}

numbers! {
    /// Packet sequence number: 24 bits that wrap (IBTA Vol 1, chapter 9).
    ///
    /// A PSN has no `Ord`, since the order of two PSNs depends on the window around them. Use
    /// [`is_before`](Psn::is_before) instead.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    Psn(u32) & MASK_24, "0x{:06x}";

    /// Message sequence number: 24 bits that wrap, the count of requests that a responder completed (IBTA Vol 1,
    /// chapter 9).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    Msn(u32) & MASK_24, "0x{:06x}";

    /// Queue pair number: 24 bits.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    Qpn(u32) & MASK_24, "0x{:06x}";

    /// Remote key, with which a peer accesses a memory region.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    RKey(u32), "0x{:08x}";

    /// Queue key (Q_Key). A UD queue pair receives only datagrams that carry its own Q_Key.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    QKey(u32), "0x{:08x}";

    /// Partition key. The upper bit means full membership, the other bits name the partition.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    PartitionKey(u16), "0x{:04x}";
}

impl Psn {
    /// Bits of a PSN.
    pub const MASK: u32 = MASK_24;

    /// Returns the PSN `packets` later, modulo 2^24.
    #[inline]
    pub const fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }

    /// Returns the PSN `packets` earlier, modulo 2^24.
    #[inline]
    pub const fn sub(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }

    /// Returns the PSN of the packet after this one.
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// Returns the number of packets from `earlier` to this PSN, modulo 2^24.
    #[inline]
    pub const fn distance_from(self, earlier: Psn) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Returns whether this PSN lies in the half of the sequence space that precedes `other`.
    ///
    /// No PSN is before itself. The half has 2^23 PSNs, like IBTA's region of duplicates. If two PSNs are exactly 2^23
    /// apart, each is therefore before the other.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        let distance = other.distance_from(self);
        distance != 0 && distance <= 1 << 23
    }
}

impl Msn {
    /// Returns the MSN after one more request.
    #[inline]
    pub const fn next(self) -> Msn {
        Msn::new(self.0.wrapping_add(1))
    }
}

impl QKey {
    /// Returns whether this key is a placeholder for the Q_Key of the sending queue pair: its highest bit is set (IBTA
    /// Vol 1, 10.2.5).
    #[inline]
    pub const fn means_senders_own(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl PartitionKey {
    /// Default partition with full membership, the only partition that RoCE uses.
    pub const DEFAULT: PartitionKey = PartitionKey(0xffff);
}

impl Default for PartitionKey {
    fn default() -> PartitionKey {
        PartitionKey::DEFAULT
    }
}

/// Maximum payload of a packet on a path. The discriminant is IBTA's code.
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
    /// All path MTUs, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Returns the maximum bytes of payload.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// Returns IBTA's code, 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the path MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: usize) -> Option<PathMtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Returns the largest path MTU of at most `bytes` bytes.
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
