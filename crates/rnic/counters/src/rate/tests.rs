use proptest::prelude::*;

use super::*;
use crate::sample::{Identity, Kind};

fn sample(at_ns: u64, values: &[(Set, &str, u64)]) -> Sample {
    Sample {
        identity: Identity {
            label: "rnic".to_owned(),
            kind: Kind::Kernel,
            name: "rnic".to_owned(),
            port: Some(1),
            address: None,
            gid: None,
            udp_port: None,
            program: None,
            pid: None,
            command: None,
            netdev: None,
            driver: None,
            board: None,
        },
        incarnation: 1,
        at_ns,
        born_ns: None,
        ended: false,
        raw: values.iter().map(|&(set, name, value)| (Name::new(set, name), value)).collect(),
    }
}

#[test]
fn counters_grow_wrap_or_were_reset() {
    let top = u64::from(u32::MAX);
    for (bits, earlier, later, expected) in [
        (64, 5, 5, Change::Grew(0)),
        (64, 5, 12, Change::Grew(7)),
        (64, u64::MAX, 1, Change::Grew(2)),
        (64, 12, 5, Change::WentBack),
        (64, top, 0, Change::WentBack),
        (64, u64::MAX, u64::MAX - 1, Change::WentBack),
        (32, top, 0, Change::Grew(1)),
        (32, top - 9, 90, Change::Grew(100)),
        (32, 1 << 31, 0, Change::WentBack),
        (32, (1 << 31) + 1, 0, Change::Grew((1 << 31) - 1)),
        (32, 1000, 3, Change::WentBack),
        (32, top, top - 1, Change::WentBack),
        (32, top + 1, 0, Change::WentBack),
        (32, 7, top + 8, Change::Grew(top + 1)),
    ] {
        assert_eq!(change(bits, earlier, later), expected, "{bits} bits: {earlier} to {later}");
    }
}

#[test]
fn rates_are_differences_divided_by_time() {
    let names = [
        (Set::Ethtool, "tx_vport_rdma_unicast_bytes", 1000),
        (Set::Ethtool, "tx_vport_rdma_unicast_packets", 10),
        (Set::Hardware, "np_cnp_sent", 3),
        (Set::Hardware, "rx_dct_connect", 0),
    ];
    let mut later = names;
    later[0].2 += 500;
    later[1].2 += 5;
    later[3].2 += 8;
    let rates = Rates::between(&sample(1_000_000_000, &names), &sample(1_500_000_000, &later));
    assert_eq!(rates.seconds, 0.5);
    assert_eq!(rates.per_second(Common::TxBytes), Some(1000.0));
    assert_eq!(rates.per_second(Common::TxPackets), Some(10.0));
    assert_eq!(rates.per_second(Common::CnpSent), Some(0.0));
    assert_eq!(rates.per_second(Common::RxBytes), None, "an absent counter must have no rate");
    let others: Vec<_> = rates.others_per_second().map(|(name, rate)| (name.to_string(), rate)).collect();
    assert_eq!(others, [("hw_counters/rx_dct_connect".to_owned(), 16.0)]);
    assert!(rates.remarks.is_empty(), "{:?}", rates.remarks);
}

#[test]
fn a_narrow_counter_is_followed_across_its_wrap() {
    let top = u64::from(u32::MAX);
    let values =
        |received| [(Set::Hardware, "rnr_nak_retry_err", received), (Set::Hardware, "local_ack_timeout_err", 1)];
    let rates = Rates::between(&sample(0, &values(top - 9)), &sample(1_000_000_000, &values(10)));
    assert_eq!(rates.delta(Common::RnrReceived), Some(20));
    let duplicates = |value| {
        let mut values = values(0).to_vec();
        values.push((Set::Hardware, "duplicate_request", value));
        values
    };
    let rates = Rates::between(&sample(0, &duplicates(top)), &sample(1_000_000_000, &duplicates(0)));
    assert_eq!(rates.others[&Name::new(Set::Hardware, "duplicate_request")], 1, "mlx5 counts 32 bits");
}

#[test]
fn a_reset_device_has_no_rates_for_one_interval() {
    let values = |bytes, packets| [(Set::Hardware, "tx_bytes", bytes), (Set::Hardware, "tx_pkts", packets)];
    // The second counter is already above its value from before the reset, so only the first counter shows the reset.
    let rates = Rates::between(&sample(0, &values(1_000_000, 5)), &sample(1, &values(10, 7)));
    assert_eq!(rates.deltas, [None; COMMON]);
    assert!(rates.remarks[0].contains("the device was reset"), "{:?}", rates.remarks);
    let rates = Rates::between(&sample(1, &values(10, 7)), &sample(2, &values(20, 9)));
    assert_eq!(rates.delta(Common::TxPackets), Some(2));
}

#[test]
fn one_odd_counter_does_not_hide_the_others() {
    let values = |level, active, packets| {
        [
            (Set::Hardware, "some_level_of_a_new_driver", level),
            (Set::Hardware, "active_qps", active),
            (Set::Hardware, "sent_pkts", packets),
        ]
    };
    let rates = Rates::between(&sample(0, &values(9, 9, 0)), &sample(1_000_000_000, &values(3, 3, 6)));
    assert_eq!(rates.delta(Common::TxPackets), Some(6));
    assert!(rates.others.is_empty());
    assert_eq!(rates.remarks, ["hw_counters/some_level_of_a_new_driver decreased: no rate in this interval"]);
}

#[test]
fn a_counter_at_its_maximum_is_not_idle() {
    let full = [(Set::Port, "port_xmit_data", u64::from(u32::MAX)), (Set::Port, "port_xmit_packets", 7)];
    let rates = Rates::between(&sample(0, &full), &sample(1_000_000_000, &full));
    assert_eq!(rates.delta(Common::TxBytes), None);
    assert_eq!(rates.delta(Common::TxPackets), Some(0));
    assert!(rates.remarks[0].contains("reached its maximum"), "{:?}", rates.remarks);
}

#[test]
fn counters_that_appear_or_disappear_have_no_rate() {
    let one = [(Set::Hardware, "ip4InOctets", 5)];
    let two = [(Set::Hardware, "ip4InOctets", 6), (Set::Hardware, "ip6InOctets", 1000)];
    assert_eq!(Rates::between(&sample(0, &one), &sample(1, &two)).delta(Common::RxBytes), None);
    assert_eq!(
        Rates::between(&sample(0, &two), &sample(1, &one)).delta(Common::RxBytes),
        None,
        "fewer counters must give no rate"
    );
    assert_eq!(Rates::between(&sample(0, &one), &sample(1, &[])).delta(Common::RxBytes), None);
}

#[test]
fn without_time_there_is_no_rate() {
    for (earlier, later) in [(5, 5), (6, 5)] {
        let rates = Rates::between(&sample(earlier, &[]), &sample(later, &[]));
        assert_eq!(rates.deltas, [None; COMMON]);
        assert_eq!(rates.remarks.len(), 1);
    }
}

proptest! {
    #[test]
    fn a_counter_is_followed_from_any_start(start: u64, step in 0_u64..1 << 31, narrow: bool) {
        let (bits, mask) = if narrow { (32, u64::from(u32::MAX)) } else { (64, u64::MAX) };
        let earlier = start & mask;
        prop_assert_eq!(change(bits, earlier, earlier.wrapping_add(step) & mask), Change::Grew(step));
    }

    #[test]
    fn no_rate_is_negative_or_infinite(
        at in 0_u64..u64::MAX, after in 0_u64..u64::MAX,
        before in proptest::collection::vec(any::<u64>(), 6), now in proptest::collection::vec(any::<u64>(), 6),
        lacking_before: u8, lacking_now: u8,
    ) {
        let names = [
            (Set::Hardware, "sent_pkts"), (Set::Port, "port_xmit_data"), (Set::Hardware, "out_of_buffer"),
            (Set::Hardware, "cnpHandled"), (Set::Hardware, "cnpIgnored"), (Set::Hardware, "unheard_of"),
        ];
        let some = |values: &[u64], lacking: u8| -> Vec<(Set, &str, u64)> {
            let all = names.iter().zip(values).enumerate();
            all.filter(|(index, _)| lacking & 1 << index == 0).map(|(_, (&(set, name), &value))| (set, name, value)).collect()
        };
        let rates = Rates::between(&sample(at, &some(&before, lacking_before)), &sample(after, &some(&now, lacking_now)));
        for common in Common::ALL {
            if let Some(rate) = rates.per_second(common) {
                prop_assert!(rate.is_finite() && rate >= 0.0, "{}: {rate}", common.name());
            }
        }
        prop_assert!(rates.others_per_second().all(|(_, rate)| rate.is_finite() && rate >= 0.0));
    }
}
