use proptest::prelude::*;
use std::string::ToString;

use crate::{
    Error, Msn, PartitionKey, PathMtu, Psn, QKey, Qpn, RKey, ack_timeout_ns, rnr_timer_code_at_least, rnr_timer_ns,
};

#[test]
fn numbers_of_24_bits_are_masked() {
    assert_eq!(Psn::new(0xff12_3456).get(), 0x12_3456);
    assert_eq!(Msn::new(0xff12_3456).get(), 0x12_3456);
    assert_eq!(Qpn::new(0xff12_3456).get(), 0x12_3456);
}

#[test]
fn psns_and_msns_wrap() {
    assert_eq!(Psn::new(Psn::MASK).next(), Psn::new(0));
    assert_eq!(Psn::new(0).sub(1), Psn::new(Psn::MASK));
    assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
    assert_eq!(Psn::new(2).distance_from(Psn::new(0xff_fffe)), 4);
    assert!(Psn::new(0xff_fffe).is_before(Psn::new(2)));
    assert!(!Psn::new(2).is_before(Psn::new(0xff_fffe)));
}

#[test]
fn the_half_before_a_psn() {
    let half = 1 << 23;
    let psn = Psn::new(100);
    assert!(!psn.is_before(psn));
    assert!(psn.sub(1).is_before(psn));
    assert!(psn.sub(half).is_before(psn));
    assert!(!psn.sub(half + 1).is_before(psn));
    assert!(!psn.add(half - 1).is_before(psn));
}

#[test]
fn display() {
    assert_eq!(Psn::new(0xabc).to_string(), "0x000abc");
    assert_eq!(Qpn::new(0x11).to_string(), "0x000011");
    assert_eq!(RKey::new(0xabc).to_string(), "0x00000abc");
    assert_eq!(QKey::new(0xabc).to_string(), "0x00000abc");
    assert_eq!(PartitionKey::default().to_string(), "0xffff");
    assert_eq!(PathMtu::Mtu1024.to_string(), "1024");
}

#[test]
fn the_high_bit_of_a_queue_key_selects_the_senders_key() {
    assert!(QKey::new(0x8000_0000).means_senders_own() && QKey::new(u32::MAX).means_senders_own());
    assert!(!QKey::new(0x7fff_ffff).means_senders_own());
}

#[test]
fn path_mtus() {
    let bytes = PathMtu::ALL.map(PathMtu::bytes);
    assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
    for (mtu, code) in PathMtu::ALL.into_iter().zip(1..) {
        assert_eq!(mtu.code(), code);
        assert_eq!(PathMtu::try_from(code), Ok(mtu));
        assert_eq!(PathMtu::from_bytes(mtu.bytes()), Some(mtu));
        assert_eq!(PathMtu::from_bytes(mtu.bytes() + 1), None);
        assert_eq!(PathMtu::largest_within(mtu.bytes()), Some(mtu));
        assert_eq!(PathMtu::largest_within(mtu.bytes() * 2 - 1), Some(mtu));
    }
    assert_eq!(PathMtu::largest_within(255), None);
    assert_eq!(PathMtu::largest_within(1500), Some(PathMtu::Mtu1024));
    assert_eq!(PathMtu::largest_within(9000), Some(PathMtu::Mtu4096));
    assert_eq!(PathMtu::try_from(0), Err(Error::PathMtuCode(0)));
    assert_eq!(PathMtu::try_from(6), Err(Error::PathMtuCode(6)));
    assert!(PathMtu::Mtu512 < PathMtu::Mtu4096);
}

#[test]
fn rnr_timers() {
    assert_eq!(rnr_timer_ns(0), 655_360_000);
    assert_eq!(rnr_timer_ns(1), 10_000);
    assert_eq!(rnr_timer_ns(5), 60_000);
    assert_eq!(rnr_timer_ns(12), 640_000);
    assert_eq!(rnr_timer_ns(14), 1_280_000);
    assert_eq!(rnr_timer_ns(31), 491_520_000);
    assert_eq!(rnr_timer_ns(32), rnr_timer_ns(0));
    // From code 6 on, the delays double with every second code.
    for code in 6..=31 {
        assert_eq!(rnr_timer_ns(code), 2 * rnr_timer_ns(code - 2), "{code}");
    }
}

#[test]
fn rnr_timer_codes() {
    assert_eq!(rnr_timer_code_at_least(0), 1);
    assert_eq!(rnr_timer_code_at_least(10_000), 1);
    assert_eq!(rnr_timer_code_at_least(10_001), 2);
    assert_eq!(rnr_timer_code_at_least(491_520_001), 0);
    assert_eq!(rnr_timer_code_at_least(u64::MAX), 0);
    for code in 0..32 {
        assert_eq!(rnr_timer_code_at_least(rnr_timer_ns(code)), code);
    }
}

#[test]
fn ack_timeouts() {
    assert_eq!(ack_timeout_ns(0), None);
    assert_eq!(ack_timeout_ns(1), Some(8_192));
    assert_eq!(ack_timeout_ns(14), Some(67_108_864));
    assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
    assert_eq!(ack_timeout_ns(32), None);
}

proptest! {
    #[test]
    fn psn_arithmetic(start: u32, packets in 0..=Psn::MASK) {
        let earlier = Psn::new(start);
        let later = earlier.add(packets);
        prop_assert_eq!(later.sub(packets), earlier);
        prop_assert_eq!(later.distance_from(earlier), packets);
        prop_assert_eq!(earlier.is_before(later), (1..=1 << 23).contains(&packets));
        prop_assert_eq!(earlier.add(packets).next(), earlier.next().add(packets));
    }

    #[test]
    fn one_of_two_psns_is_before(a: u32, b: u32) {
        let (a, b) = (Psn::new(a), Psn::new(b));
        if a != b && a.distance_from(b) != 1 << 23 {
            prop_assert_ne!(a.is_before(b), b.is_before(a));
        }
    }
}
