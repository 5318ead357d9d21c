//! Time, rates and times per byte, in whole numbers.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Picoseconds: a point in virtual time, or a duration.
///
/// The range is 2^64 ps, or 213 days. Arithmetic saturates, so a duration of [`Ps::MAX`] means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ps(pub u64);

impl Ps {
    /// Zero duration, or the beginning of time.
    pub const ZERO: Self = Self(0);
    /// A time that is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the whole nanoseconds, rounded down.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1000
    }

    /// Creates a duration from nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1000))
    }

    /// Returns the duration multiplied by `times`.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Ps {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Ps {
    type Output = Self;

    /// Works as [`Ps::since`].
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

impl std::iter::Sum for Ps {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

/// Prints nanoseconds without trailing zeros: 7840 ps are `7.84 ns`.
impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ns, ps) = (self.0 / 1000, self.0 % 1000);
        if ps == 0 {
            return f.pad(&format!("{ns} ns"));
        }
        let decimals = format!("{ps:03}");
        f.pad(&format!("{ns}.{} ns", decimals.trim_end_matches('0')))
    }
}

/// Rate of a link or bus in bits per second, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(std::num::NonZeroU64);

impl Rate {
    /// Creates a rate from bits per second; `None` for zero.
    pub const fn from_bits_per_s(bits: u64) -> Option<Self> {
        match std::num::NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Returns the bits per second.
    pub const fn bits_per_s(self) -> u64 {
        self.0.get()
    }

    /// Returns the time to carry `bytes`, rounded up to a picosecond.
    pub fn time_of(self, bytes: u64) -> Ps {
        let ps = (u128::from(bytes) * 8 * 1_000_000_000_000).div_ceil(u128::from(self.0.get()));
        Ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

impl Rate {
    /// Returns the number of whole bytes that the rate carries in a time.
    pub fn bytes_in(self, time: Ps) -> u64 {
        const BIT_PS_PER_BYTE: u64 = 8_000_000_000_000;
        if let Some(bits) = time.0.checked_mul(self.0.get()) {
            return bits / BIT_PS_PER_BYTE; // the usual case, without a slow division of 128 bits
        }
        let bytes = u128::from(time.0) * u128::from(self.0.get()) / u128::from(BIT_PS_PER_BYTE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Cost of copying, in femtoseconds per byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PerByte(pub u64);

impl PerByte {
    /// Returns the cost of `bytes`, rounded up to a picosecond.
    pub fn time_of(self, bytes: u64) -> Ps {
        match bytes.checked_mul(self.0) {
            Some(fs) => Ps(fs.div_ceil(1000)), // the usual case, without a slow division of 128 bits
            None => Ps(u64::try_from((u128::from(bytes) * u128::from(self.0)).div_ceil(1000)).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport, message_cost};

    use super::*;

    #[test]
    fn a_send_of_16_bytes_takes_7_84_ns_of_100_gb() {
        let cost = message_cost(MessageKind::Send, Transport::Rc, 16, PathMtu::Mtu4096, OuterKind::IPV4).unwrap();
        let rate = Rate::from_bits_per_s(100_000_000_000).unwrap();
        assert_eq!(rate.time_of(cost.request.line_bytes), Ps(7840));
        assert_eq!(rate.time_of(cost.request.line_bytes).to_string(), "7.84 ns");
    }

    #[test]
    fn times_are_rounded_up_and_do_not_wrap() {
        let rate = Rate::from_bits_per_s(3).unwrap();
        assert_eq!(rate.time_of(0), Ps::ZERO);
        assert_eq!(rate.time_of(1), Ps(2_666_666_666_667));
        assert_eq!(rate.time_of(u64::MAX), Ps::MAX);
        assert_eq!(Rate::from_bits_per_s(0), None);
        assert_eq!(PerByte(62).time_of(16), Ps(1));
        assert_eq!(PerByte(0).time_of(u64::MAX), Ps::ZERO);
        assert_eq!(PerByte(1 << 32).time_of(1 << 33), Ps(36_893_488_147_419_104));
        assert_eq!(PerByte(u64::MAX).time_of(u64::MAX), Ps::MAX);
        let rate = Rate::from_bits_per_s(100_000_000_000).unwrap();
        assert_eq!([7839, 7840, 1_000_000_000_000_000].map(|ps| rate.bytes_in(Ps(ps))), [97, 98, 12_500_000_000_000]);
        assert_eq!(rate.bytes_in(Ps::MAX), 230_584_300_921_369_395);
        assert_eq!(Ps::MAX + Ps(1), Ps::MAX);
        assert_eq!(Ps(1) - Ps(2), Ps::ZERO);
        assert_eq!(Ps(2000).to_string(), "2 ns");
    }
}
