//! Tests on artificial trees of devices whose counters have the names of real drivers.

mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use doorbell_counters::{Common, Monitor, Name, Reading, Set, Source, SysfsSource};

use tree::{Listed, Tree, assert_deltas, deltas, nothing, only, texts};

#[test]
fn mlx5() {
    let tree = Tree::new();
    let device = "mlx5_0";
    tree.write(device, "ports/1/gid_attrs/ndevs/0", "ens1f0np0");
    tree.write(device, "ports/1/gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe00:0001");
    tree.write(device, "ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0207");
    tree.write(device, "ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
    tree.count(
        device,
        &[
            ("counters/port_xmit_data", 25),
            ("counters/port_xmit_packets", 2),
            ("hw_counters/local_ack_timeout_err", 1),
            ("hw_counters/packet_seq_err", 2),
            ("hw_counters/implied_nak_seq_err", 4),
            ("hw_counters/rnr_nak_retry_err", 8),
            ("hw_counters/out_of_buffer", 16),
            ("hw_counters/out_of_sequence", 32),
            ("hw_counters/np_cnp_sent", 64),
            ("hw_counters/rp_cnp_handled", 128),
            ("hw_counters/rp_cnp_ignored", 256),
            ("hw_counters/rx_write_requests", 512),
            ("hw_counters/rx_read_requests", 1024),
            ("hw_counters/rx_atomic_requests", 2048),
            ("hw_counters/lifespan", 10),
        ],
    );
    let statistics = vec![
        ("rx_packets", 1),
        ("tx_vport_rdma_unicast_packets", 100),
        ("tx_vport_rdma_unicast_bytes", 7800),
        ("rx_vport_rdma_unicast_packets", 99),
        ("rx_vport_rdma_unicast_bytes", 6138),
        ("rx_vport_rdma_multicast_packets", 5),
    ];
    let reading = tree.read(Listed(BTreeMap::from([("ens1f0np0", statistics)])));
    assert_eq!(texts(&reading), [] as [&str; 0]);
    let sample = &reading.samples[0];
    assert_eq!(sample.identity.label, "mlx5_0");
    assert_eq!(sample.identity.netdev.as_deref(), Some("ens1f0np0"));
    assert_eq!(sample.identity.address, Some([192, 0, 2, 7].into()));
    let expected = [7800, 100, 0, 6138, 99, 3584, 7, 16, 8, 32, 64, 384];
    for (common, expected) in Common::ALL.into_iter().zip(expected) {
        let expected = (common != Common::TxOperations).then_some(expected);
        assert_eq!(common.total(&sample.raw), expected, "{}", common.name());
    }
    assert!(sample.raw.contains_key(&Name::new(Set::Ethtool, "rx_vport_rdma_multicast_packets")));
    assert!(
        !sample.raw.contains_key(&Name::new(Set::Ethtool, "rx_packets")),
        "a counter of other traffic than RDMA was kept"
    );
    assert!(!sample.raw.contains_key(&Name::new(Set::Hardware, "lifespan")), "no counter");
    // Without statistics of the interface, the counters of the port are used. The port counts words of four bytes.
    let reading = tree.read(nothing());
    assert_eq!(texts(&reading), ["mlx5_0: no statistics of ens1f0np0: the adapter does not answer"]);
    assert_eq!(Common::TxBytes.total(&reading.samples[0].raw), Some(100));
    assert_eq!(Common::TxPackets.total(&reading.samples[0].raw), Some(2));
    assert_eq!(Common::RxBytes.total(&reading.samples[0].raw), None);
}

#[test]
fn rxe() {
    let rates = deltas(
        "rxe0",
        &[
            ("hw_counters/sent_pkts", 1 << 40, 1),
            ("hw_counters/rcvd_pkts", 5, 2),
            ("hw_counters/rdma_sends", 5, 3),
            ("hw_counters/rdma_recvs", 5, 4),
            ("hw_counters/completer_retry_err", 5, 5),
            ("hw_counters/send_rnr_err", 5, 6),
            ("hw_counters/rcvd_rnr_err", 5, 7),
            ("hw_counters/out_of_seq_request", 5, 8),
            ("hw_counters/duplicate_request", u64::from(u32::MAX), 9),
        ],
    );
    use Common::*;
    let expected = [
        (TxPackets, 1),
        (RxPackets, 2),
        (TxOperations, 3),
        (RxOperations, 4),
        (Retransmissions, 5),
        (RnrSent, 6),
        (RnrReceived, 7),
        (OutOfSequence, 8),
    ];
    assert_deltas(&rates, &expected);
    let others: Vec<_> = rates.others.into_iter().collect();
    assert_eq!(others, [(Name::new(Set::Hardware, "duplicate_request"), 9)]);
}

#[test]
fn bnxt_re() {
    let rates = deltas(
        "bnxt_re0",
        &[
            ("hw_counters/tx_pkts", 1, 1000),
            ("hw_counters/tx_bytes", 1, 1000),
            ("hw_counters/rx_pkts", 1, 1000),
            ("hw_counters/rx_bytes", 1, 1000),
            ("hw_counters/tx_roce_only_pkts", 1, 1),
            ("hw_counters/tx_roce_only_bytes", 1, 2),
            ("hw_counters/rx_roce_only_pkts", 1, 3),
            ("hw_counters/rx_roce_only_bytes", 1, 4),
            ("hw_counters/tx_send_req", 1, 10),
            ("hw_counters/tx_write_req", 1, 20),
            ("hw_counters/tx_read_req", 1, 30),
            ("hw_counters/tx_atomic_req", 1, 40),
            ("hw_counters/rx_send_req", 1, 5),
            ("hw_counters/rx_write_req", 1, 6),
            ("hw_counters/rx_read_req", 1, 7),
            ("hw_counters/rx_atomic_req", 1, 8),
            ("hw_counters/to_retransmits", 1, 50),
            ("hw_counters/seq_err_naks_rcvd", 1, 60),
            ("hw_counters/missing_resp", 1, 70),
            ("hw_counters/rx_out_of_buffer", 1, 11),
            ("hw_counters/rnr_naks_rcvd", 1, 12),
            ("hw_counters/oos_drop_count", 1, 13),
            ("hw_counters/tx_cnp_pkts", 1, 14),
            ("hw_counters/rx_cnp_pkts", 1, 15),
            ("hw_counters/active_qps", 9, u64::MAX - 3),
        ],
    );
    use Common::*;
    let expected = [
        (TxBytes, 2),
        (TxPackets, 1),
        (TxOperations, 100),
        (RxBytes, 4),
        (RxPackets, 3),
        (RxOperations, 26),
        (Retransmissions, 180),
        (RnrSent, 11),
        (RnrReceived, 12),
        (OutOfSequence, 13),
        (CnpSent, 14),
        (CnpReceived, 15),
    ];
    assert_deltas(&rates, &expected);
    assert!(rates.remarks.is_empty(), "the number of queue pairs may fall: {:?}", rates.remarks);
    assert!(!rates.others.keys().any(|name| name.name == "active_qps"));
    // Adapters of the previous generation have fewer counters.
    let rates = deltas("bnxt_re0", &[("hw_counters/tx_pkts", 1, 5), ("hw_counters/tx_bytes", 1, 390)]);
    assert_deltas(&rates, &[(TxPackets, 5), (TxBytes, 390)]);
}

#[test]
fn irdma() {
    use Common::*;
    let rates = deltas(
        "irdma0",
        &[
            ("hw_counters/ip4OutOctets", 1, 100),
            ("hw_counters/ip6OutOctets", 1, 11),
            ("hw_counters/ip4OutPkts", 1, 2),
            ("hw_counters/ip6OutPkts", 1, 1),
            ("hw_counters/ip4InOctets", 1, 200),
            ("hw_counters/ip6InOctets", 1, 22),
            ("hw_counters/ip4InPkts", 1, 4),
            ("hw_counters/ip6InPkts", 1, 3),
            ("hw_counters/iwOutRdmaSends", 1, 5),
            ("hw_counters/iwOutRdmaWrites", 1, 6),
            ("hw_counters/iwOutRdmaReads", 1, 7),
            ("hw_counters/iwInRdmaSends", 1, 8),
            ("hw_counters/iwInRdmaWrites", 1, 9),
            ("hw_counters/iwInRdmaReads", 1, 10),
            ("hw_counters/tcpRetransSegs", 1, 11),
            ("hw_counters/cnpSent", 1, 12),
            ("hw_counters/cnpHandled", 1, 13),
            ("hw_counters/cnpIgnored", 1, 14),
        ],
    );
    let common = [(TxBytes, 111), (TxPackets, 3), (RxBytes, 222), (RxPackets, 7), (CnpSent, 12), (CnpReceived, 27)];
    let expected = [&common[..], &[(TxOperations, 18), (RxOperations, 27), (Retransmissions, 11)]].concat();
    assert_deltas(&rates, &expected);
    // The third generation of adapters has counter names with spaces.
    let rates = deltas(
        "rocep1",
        &[
            ("hw_counters/OutRdmaSends", 1, 1),
            ("hw_counters/Tx atomics", 1, 2),
            ("hw_counters/InRdmaReads", 1, 4),
            ("hw_counters/RetransSegs", 1, 8),
            ("hw_counters/RNR sent", 1, 16),
            ("hw_counters/RNR received", 1, 32),
            ("hw_counters/Rcvd Out of order packets", 1, 64),
            ("hw_counters/RTO", 1, 128),
        ],
    );
    let expected = [
        (TxOperations, 3),
        (RxOperations, 4),
        (Retransmissions, 8),
        (RnrSent, 16),
        (RnrReceived, 32),
        (OutOfSequence, 64),
    ];
    assert_deltas(&rates, &expected);
    assert_eq!(rates.others.into_iter().collect::<Vec<_>>(), [(Name::new(Set::Hardware, "RTO"), 128)]);
}

#[test]
fn hns() {
    use Common::*;
    let counters = [
        ("rx_rc_pkt", 1, 30),
        ("rx_uc_pkt", 1, 1),
        ("rx_ud_pkt", 1, 2),
        ("rx_xrc_pkt", 1, 3),
        ("rx_pkt", 1, 36),
        ("rx_err_pkt", 1, 4),
        ("rx_cnp_pkt", 1, 5),
        ("tx_rc_pkt", 1, 60),
        ("tx_pkt", 1, 66),
        ("tx_err_pkt", 1, 7),
        ("tx_cnp_pkt", 1, 8),
        ("cq_cqe", 1, 9),
        ("qp_create_err", 0, 0),
    ]
    .map(|(name, before, more)| (format!("hw_counters/{name}"), before, more));
    let counters: Vec<_> = counters.iter().map(|(name, before, more)| (name.as_str(), *before, *more)).collect();
    let rates = deltas("hns_0", &counters);
    assert_deltas(&rates, &[(TxPackets, 66), (RxPackets, 36), (CnpSent, 8), (CnpReceived, 5)]);
    assert_eq!(rates.others[&Name::new(Set::Hardware, "rx_rc_pkt")], 30, "a part of the sum is missing");
}

#[test]
fn efa() {
    use Common::*;
    let rates = deltas(
        "rdmap0s31",
        &[
            ("hw_counters/tx_bytes", 1, 1),
            ("hw_counters/tx_pkts", 1, 2),
            ("hw_counters/rx_bytes", 1, 3),
            ("hw_counters/rx_pkts", 1, 4),
            ("hw_counters/rx_drops", 1, 5),
            ("hw_counters/send_wrs", 1, 6),
            ("hw_counters/recv_wrs", 1, 7),
            ("hw_counters/rdma_read_wrs", 1, 8),
            ("hw_counters/rdma_write_wrs", 1, 9),
            ("hw_counters/retrans_pkts", 1, 10),
        ],
    );
    let traffic = [(TxBytes, 1), (TxPackets, 2), (RxBytes, 3), (RxPackets, 4)];
    let expected = [&traffic[..], &[(TxOperations, 23), (RxOperations, 7), (Retransmissions, 10)]].concat();
    assert_deltas(&rates, &expected);
}

/// mana counts sent CNPs per device, and all other counters per port.
#[test]
fn mana() {
    use Common::*;
    let tree = Tree::new();
    tree.count(
        "mana_0",
        &[
            ("hw_counters/tx_bytes", 1),
            ("hw_counters/rx_bytes", 2),
            ("hw_counters/tx_packets", 3),
            ("hw_counters/rx_packets", 4),
            ("hw_counters/rx_send_requests", 5),
            ("hw_counters/rx_write_requests", 1 << 40),
            ("hw_counters/rx_read_requests", 7),
            ("hw_counters/requester_timeout", 8),
            ("hw_counters/requester_oos_nak", 9),
            ("hw_counters/requester_implicit_nak", 10),
            ("hw_counters/requester_rnr_nak", 11),
            ("hw_counters/responder_rnr_nak", 12),
            ("hw_counters/responder_oos", 13),
            ("hw_counters/received_cnps", 14),
            ("hw_counters/current_rate", 99),
            ("hw_counters/rate_inc_events", 1),
        ],
    );
    tree.write("mana_0", "hw_counters/sent_cnps", "15");
    tree.write("mana_0", "hw_counters/rate_inc_events", "1000");
    let sample = only(&mut tree.monitor()).sample;
    let found: Vec<_> = Common::ALL.into_iter().map(|common| (common, common.total(&sample.raw))).collect();
    let expected = [
        (TxBytes, Some(1)),
        (TxPackets, Some(3)),
        (TxOperations, None),
        (RxBytes, Some(2)),
        (RxPackets, Some(4)),
        (RxOperations, Some((1 << 40) + 12)),
        (Retransmissions, Some(27)),
        (RnrSent, Some(12)),
        (RnrReceived, Some(11)),
        (OutOfSequence, Some(13)),
        (CnpSent, Some(15)),
        (CnpReceived, Some(14)),
    ];
    assert_eq!(found, expected);
    assert_eq!(RxOperations.rule(&sample.raw).unwrap().counts, "requests", "requests must include SENDs");
    // If the device and the port have a counter of the same name, the value of the port is used.
    assert_eq!(sample.raw[&Name::new(Set::Hardware, "rate_inc_events")], 1);
    let wide = Name::new(Set::Hardware, "rx_write_requests");
    assert_eq!(doorbell_counters::bits(&wide, &sample.raw), 64, "only mlx5 counts 32 bits under this name");
    assert!(doorbell_counters::is_gauge(&Name::new(Set::Hardware, "current_rate")));
}

#[test]
fn erdma_and_ionic() {
    use Common::*;
    // The driver in the kernel tree uses names without a prefix. The vendor's driver uses the prefix `hw_`.
    for prefix in ["", "hw_"] {
        let names = ["tx_reqs_cnt", "tx_packets_cnt", "tx_bytes_cnt", "rx_packets_cnt", "rx_bytes_cnt"]
            .map(|name| format!("hw_counters/{prefix}{name}"));
        let counters: Vec<_> = (1..).zip(&names).map(|(more, name)| (name.as_str(), 7, more)).collect();
        let rates = deltas("erdma_0", &counters);
        assert_deltas(&rates, &[(TxOperations, 1), (TxPackets, 2), (TxBytes, 3), (RxPackets, 4), (RxBytes, 5)]);
    }
    let rates = deltas(
        "ionic_0",
        &[
            ("hw_counters/tx_rdma_ucast_bytes", 1, 1),
            ("hw_counters/tx_rdma_ucast_pkts", 1, 2),
            ("hw_counters/rx_rdma_ucast_bytes", 1, 3),
            ("hw_counters/rx_rdma_ucast_pkts", 1, 4),
            ("hw_counters/tx_rdma_retx_pkts", 1, 5),
            ("hw_counters/resp_rx_outouf_seq", 1, 6),
            ("hw_counters/tx_rdma_cnp_pkts", 1, 7),
            ("hw_counters/rx_rdma_cnp_pkts", 1, 8),
        ],
    );
    let traffic = [(TxBytes, 1), (TxPackets, 2), (RxBytes, 3), (RxPackets, 4)];
    let expected = [&traffic[..], &[(Retransmissions, 5), (OutOfSequence, 6), (CnpSent, 7), (CnpReceived, 8)]].concat();
    assert_deltas(&rates, &expected);
}

#[test]
fn mlx4_cxgb4_and_representors_of_mlx5() {
    use Common::*;
    let narrow = u64::from(u32::MAX);
    let tree = Tree::new();
    tree.write("mlx4_0", "ports/1/counters/port_xmit_packets", "1");
    let diagnostics =
        [("rq_num_rnr", 1), ("sq_num_rnr", 2), ("rq_num_oos", 3), ("sq_num_oos", 4), ("sq_num_to", narrow)];
    diagnostics
        .iter()
        .for_each(|(name, value)| tree.write("mlx4_0", &format!("hw_counters/{name}"), &value.to_string()));
    let mut monitor = tree.monitor();
    only(&mut monitor);
    diagnostics.iter().for_each(|(name, _)| tree.write("mlx4_0", &format!("hw_counters/{name}"), "9"));
    let rates = only(&mut monitor).rates.unwrap();
    let expected = [(TxPackets, 0), (RnrSent, 8), (RnrReceived, 7), (OutOfSequence, 6), (Retransmissions, 15)];
    assert_deltas(&rates, &expected);
    let tree = Tree::new();
    tree.write("cxgb4_0", "ports/1/state", "4: ACTIVE");
    let segments = [("ip4InSegs", 1), ("ip6InSegs", 2), ("ip4OutSegs", 4), ("ip6OutSegs", 8), ("ip4RetransSegs", 16)];
    segments.iter().for_each(|(name, value)| tree.write("cxgb4_0", &format!("hw_counters/{name}"), &value.to_string()));
    let raw = only(&mut tree.monitor()).sample.raw;
    let found = [RxPackets, TxPackets, Retransmissions, TxBytes].map(|common| common.total(&raw));
    assert_eq!(found, [Some(3), Some(12), Some(16), None]);
    let rates = deltas(
        "mlx5_0",
        &[
            ("hw_counters/vport_rx_write_requests", narrow, 1),
            ("hw_counters/vport_rx_read_requests", 1, 2),
            ("hw_counters/vport_out_of_buffer", 1, 3),
            ("hw_counters/vport_out_of_sequence", 1, 4),
            ("hw_counters/vport_rnr_nak_retry_err", 1, 5),
            ("hw_counters/vport_packet_seq_err", 1, 6),
        ],
    );
    let narrow_writes = rates.delta(RxOperations);
    assert!(narrow_writes.is_some(), "a counter that wrapped must have a rate");
    let expected = [
        (RnrSent, 3),
        (OutOfSequence, 4),
        (RnrReceived, 5),
        (Retransmissions, 6),
        (RxOperations, narrow_writes.unwrap()),
    ];
    assert_deltas(&rates, &expected);
}

/// Once devices are selected, a reading of the counters has notes about these devices only.
#[test]
fn notes_concern_only_the_selected_device() {
    let tree = Tree::new();
    tree.count("rxe0", &[("hw_counters/sent_pkts", 5)]);
    for port in 1..=2 {
        tree.write("mlx5_0", &format!("ports/{port}/hw_counters/out_of_buffer"), "1");
        tree.write("mlx5_0", &format!("ports/{port}/hw_counters/odd{port}"), "many");
    }
    tree.write("mlx5_0", "ports/x/counters/port_xmit_data", "1");
    tree.write("bnxt_re0", "ports/1/hw_counters/odd0", "many");
    std::fs::write(tree.root.path().join("class/infiniband/a file"), "no device").unwrap();
    let notes = |selector: Option<&str>| {
        let mut monitor = tree.monitor();
        selector.into_iter().for_each(|selector| monitor.select(selector).unwrap());
        let look = monitor.look();
        let words = ["odd0", "odd1", "odd2", "not a port", "a file"];
        words.into_iter().filter(|word| look.notes.iter().any(|note| note.contains(word))).collect::<Vec<_>>()
    };
    assert_eq!(notes(None), ["odd0", "odd1", "odd2", "not a port", "a file"]);
    assert_eq!(notes(Some("rxe0")), [] as [&str; 0]);
    assert_eq!(notes(Some("mlx5_0")), ["odd1", "odd2", "not a port"]);
    assert_eq!(notes(Some("mlx5_0/2")), ["odd2", "not a port"]);
    // The selected device disappeared. Notes about other devices cannot contain the reason, so they are left out.
    let mut monitor = tree.monitor();
    monitor.select("rxe0").unwrap();
    monitor.look();
    std::fs::remove_dir_all(tree.device("rxe0")).unwrap();
    assert_eq!(monitor.look().notes, [] as [String; 0]);
}

#[test]
fn each_port_is_a_device_and_a_single_port_has_device_counters() {
    let tree = Tree::new();
    for port in 1..=2 {
        tree.write("mlx4_0", &format!("ports/{port}/counters/port_xmit_packets"), &port.to_string());
    }
    tree.write("mlx4_0", "hw_counters/of_both", "5");
    tree.write("one", "ports/1/counters/port_xmit_packets", "3");
    tree.write("one", "hw_counters/of_the_device", "5");
    tree.write("one", "parent", "eth0");
    let reading = tree.read(Listed(BTreeMap::from([("eth0", Vec::new())])));
    assert_eq!(texts(&reading), [] as [&str; 0]);
    let labels: Vec<_> = reading.samples.iter().map(|sample| sample.identity.label.as_str()).collect();
    assert_eq!(labels, ["one", "mlx4_0/1", "mlx4_0/2"]);
    assert_eq!(reading.samples[0].identity.netdev.as_deref(), Some("eth0"));
    assert_eq!(reading.samples[0].raw[&Name::new(Set::Hardware, "of_the_device")], 5);
    assert_eq!(reading.samples[1].raw.len(), 1);
    assert!(reading.samples[1].identity.is_meant_by("mlx4_0") && reading.samples[1].identity.is_meant_by("mlx4_0/1"));
    assert!(!reading.samples[1].identity.is_meant_by("mlx4_0/2"));
}

#[test]
fn unreadable_counters_are_reported_and_left_out() {
    let tree = Tree::new();
    tree.count("rxe0", &[("hw_counters/sent_pkts", 5)]);
    let hardware = tree.device("rxe0").join("ports/1/hw_counters");
    for (name, content) in [("text", "many"), ("negative", "-1"), ("empty", ""), ("long", &"9".repeat(500))] {
        std::fs::write(hardware.join(name), content).unwrap();
    }
    std::fs::write(hardware.join("bytes"), b"\xff\xfe").unwrap();
    std::fs::create_dir(hardware.join("directory")).unwrap();
    nix::unistd::mkfifo(&hardware.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/no/such/file", hardware.join("dangling")).unwrap();
    std::fs::create_dir_all(tree.device("rxe0").join("ports/one")).unwrap();
    std::fs::write(tree.root.path().join("class/infiniband/a file"), "no device").unwrap();
    tree.write("rxe0", "ports/1/counters/port_xmit_data", "N/A (no PMA)");
    let reading = tree.read(nothing());
    let sample = &reading.samples[0];
    assert_eq!(
        sample.raw.iter().map(|(name, &value)| (name.name.as_str(), value)).collect::<Vec<_>>(),
        [("sent_pkts", 5)]
    );
    for name in ["text", "negative", "empty", "long", "bytes", "counters/directory", "pipe", "ports/one", "a file"] {
        let said = texts(&reading).iter().filter(|note| note.contains(name)).count();
        assert_eq!(said, 1, "{name}: {:#?}", reading.notes);
    }
    assert_eq!(reading.notes.len(), 9, "{:#?}", reading.notes);
}

#[test]
fn devices_come_and_go_and_are_recreated() {
    let tree = Tree::new();
    let mut monitor = tree.monitor();
    assert!(monitor.look().devices.is_empty(), "a missing tree must give no devices and no notes");
    tree.count("rxe0", &[("hw_counters/sent_pkts", 1000)]);
    assert!(only(&mut monitor).rates.is_none());
    tree.count("rxe0", &[("hw_counters/sent_pkts", 1001)]);
    assert_eq!(only(&mut monitor).rates.unwrap().delta(Common::TxPackets), Some(1));
    std::fs::rename(tree.device("rxe0"), tree.root.path().join("elsewhere")).unwrap();
    let gone = only(&mut monitor);
    assert!(gone.sample.ended && gone.rates.is_none());
    assert!(monitor.look().devices.is_empty());
    // The old directory still exists under another name, so the new directory has another inode number.
    tree.count("rxe0", &[("hw_counters/sent_pkts", 5000)]);
    assert!(only(&mut monitor).rates.is_none(), "a new device of the same name must have no rate yet");
    std::fs::rename(tree.device("rxe0"), tree.root.path().join("far")).unwrap();
    tree.count("rxe0", &[("hw_counters/sent_pkts", 9000)]);
    let devices = monitor.look().devices;
    assert_eq!(devices.len(), 2);
    assert!(
        devices.iter().all(|device| device.rates.is_none()),
        "devices recreated between two looks must have no rates"
    );
}

#[test]
fn traffic_selects_a_device_by_name() {
    use std::time::Duration;
    let tree = Tree::new();
    tree.count("rxe0", &[("hw_counters/sent_pkts", 7)]);
    let traffic = |name| doorbell_counters::traffic(tree.monitor(), name, Duration::from_millis(1));
    let found = traffic("rxe0").unwrap();
    assert_eq!((found.tx_packets_per_s, found.tx_bytes_per_s, found.bytes_are), (Some(0.0), None, None));
    assert!(found.seconds > 0.0);
    let error = traffic("rxe1").unwrap_err().to_string();
    assert_eq!(error, "there is no RDMA device \"rxe1\"; there are: rxe0");
    tree.write("rxe0", "ports/2/hw_counters/sent_pkts", "1");
    let error = traffic("rxe0").unwrap_err().to_string();
    assert_eq!(error, "\"rxe0\" matches several devices: name one of rxe0/1, rxe0/2");
    assert_eq!(traffic("rxe0/2").unwrap().device, "rxe0/2");
}

/// Source for a tree that changes before the third read. That read is at the end of the measurement of
/// [`doorbell_counters::traffic`].
struct Fateful {
    source: SysfsSource,
    reads: u32,
    happens: Box<dyn FnMut() + Send>,
}

impl Source for Fateful {
    fn read(&mut self, reading: &mut Reading) {
        self.reads += 1;
        if self.reads == 3 {
            (self.happens)();
        }
        self.source.read(reading);
    }
}

#[test]
fn traffic_reports_a_reset_or_removed_device() {
    let during = std::time::Duration::from_millis(1);
    let look = |tree: &Tree, happens: Box<dyn FnMut() + Send>| {
        let source = Fateful { source: SysfsSource::new(tree.root.path()), reads: 0, happens };
        doorbell_counters::traffic(Monitor::of(vec![Box::new(source)]), "rxe0", during)
    };
    let tree = Tree::new();
    tree.count("rxe0", &[("hw_counters/sent_pkts", 7), ("hw_counters/rcvd_pkts", 7)]);
    let path = tree.device("rxe0").join("ports/1/hw_counters/sent_pkts");
    let reset = look(&tree, Box::new(move || std::fs::write(&path, "3").unwrap())).unwrap();
    assert_eq!((reset.tx_packets_per_s, reset.rx_packets_per_s), (None, None), "a reset must give no rates");
    assert_eq!(reset.remarks, ["the counters decreased, so the device was reset: this interval has no rates"]);
    let path = tree.device("rxe0");
    let gone = look(&tree, Box::new(move || std::fs::remove_dir_all(&path).unwrap())).unwrap_err();
    assert_eq!(gone.to_string(), "rxe0 disappeared during the measurement");
}

#[test]
fn a_recorded_tree_is_read_without_the_kernel() {
    let tree = Tree::new();
    tree.write("mlx5_0", "ports/1/gid_attrs/ndevs/0", "eth7");
    let directory = tree.root.path().join("ethtool");
    std::fs::create_dir(&directory).unwrap();
    let text = "NIC statistics:\n     rx_packets: 1\n     tx_vport_rdma_unicast_bytes: 78\n     odd\n";
    std::fs::write(directory.join("eth7"), text).unwrap();
    let sample = only(&mut tree.monitor()).sample;
    assert_eq!(Common::TxBytes.total(&sample.raw), Some(78));
    assert_eq!(sample.raw.len(), 1);
}

#[test]
fn only_valid_interface_names_are_looked_up() {
    let outside = "tx_vport_rdma_unicast_bytes: 78";
    for name in ["../outside", "/dev/zero", "..", "sixteen-letters_", "a b", "a\x1b[2J"] {
        let tree = Tree::new();
        tree.count("mlx5_0", &[("counters/port_xmit_data", 1)]);
        tree.write("mlx5_0", "ports/1/gid_attrs/ndevs/0", name);
        tree.write("mlx5_0", "parent", name);
        std::fs::create_dir(tree.root.path().join("ethtool")).unwrap();
        std::fs::write(tree.root.path().join("outside"), outside).unwrap();
        let sample = only(&mut tree.monitor()).sample;
        assert_eq!((sample.identity.netdev, sample.raw.len()), (None, 1), "{name:?}");
    }
}

#[test]
fn no_two_ports_have_one_number() {
    let tree = Tree::new();
    for port in ["1", "01", "+1"] {
        tree.write("mlx5_0", &format!("ports/{port}/counters/port_xmit_data"), "7");
    }
    let look = tree.monitor().look();
    let labels: Vec<&str> = look.devices.iter().map(|device| device.sample.identity.label.as_str()).collect();
    assert_eq!(labels, ["mlx5_0/1"], "{:?}", look.notes);
    assert!(look.notes.iter().all(|note| note.contains("is not a port")) && look.notes.len() == 2, "{:?}", look.notes);
}

#[test]
fn counters_of_this_machine_can_be_read() {
    let mut reading = Reading::default();
    SysfsSource::new(Path::new(doorbell_counters::SYSFS)).read(&mut reading);
    assert!(reading.samples.iter().all(|sample| !sample.identity.label.is_empty()));
}
