use doorbell_verbs_core::Status;
use doorbell_wire::{MessageKind, PathMtu, Transport};
use proptest::prelude::*;

use super::read;
use crate::claim::{Figure, LinkType, Output, Tool};

const PERFTEST: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Read BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_1
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 TX depth        : 128
 Mtu             : 1024[B]
 Link type       : Ethernet
 Max inline data : 0[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0108 PSN 0x63ad7d
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:05
 remote address: LID 0000 QPN 0x0076 PSN 0xf3810c
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:04
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 3400.000000 != 800.000000. CPU Frequency is not max.
 65536      5000             103.71             90.04              0.001441
---------------------------------------------------------------------------------------
";

fn bytes_per_s(output: &Output) -> Option<f64> {
    output.claims.last()?.average.as_ref().map(Figure::bytes_per_s)
}

#[test]
fn perftest_has_its_settings_and_rows() {
    let output = read(PERFTEST, &[]);
    let setup = &output.setup;
    assert_eq!(
        (output.tool, setup.operation, setup.transport),
        (Some(Tool::Perftest), Some(MessageKind::Read), Some(Transport::Rc))
    );
    assert_eq!((setup.path_mtu, setup.link_type), (Some(PathMtu::Mtu1024), Some(LinkType::Ethernet)));
    assert_eq!((setup.queue_pairs, setup.depth, setup.inline), (Some(2), Some(128), Some(0)));
    assert_eq!((setup.device.as_deref(), setup.gids.len(), setup.cpu_is_slow), (Some("mlx5_1"), 2, true));
    let [claim] = &output.claims[..] else { panic!("{:?}", output.claims) };
    assert_eq!(
        (claim.bytes, claim.iterations, claim.messages_per_s.map(f64::round)),
        (Some(65536), Some(5000), Some(1441.0))
    );
    assert_eq!(bytes_per_s(&output), Some(90.04 * 1_048_576.0));
    assert_eq!(claim.peak.as_ref().map(|peak| peak.printed), Some(103.71));
    assert!(output.notes.is_empty(), "{:?}", output.notes);
}

/// Reads a row of perftest with this bandwidth. Returns the number of claims with it, and the notes.
fn with_average(average: &str) -> (usize, Vec<String>) {
    let output = read(&PERFTEST.replace("90.04", average), &[]);
    (output.claims.iter().filter(|claim| claim.average.is_some()).count(), output.notes)
}

#[test]
fn numbers_of_other_formats_are_not_used_and_noted() {
    for (average, part) in [
        ("11.728", "its point may separate thousands"),
        ("11,728", "its comma may separate thousands"),
        ("11 728.47", "6 of 5 columns"),
        ("nan", "\"nan\" is not used"),
        ("1e400", "\"1e400\" is not used"),
        ("11'728.47", "\"11'728.47\" is not used"),
    ] {
        let (claims, notes) = with_average(average);
        assert!(claims == 0 && notes.iter().any(|note| note.contains(part)), "{average}: {claims} {notes:?}");
    }
    assert_eq!(with_average("90.04 "), (1, Vec::new()));
}

#[test]
fn unknown_columns_shift_no_numbers() {
    let output = read(&PERFTEST.replace("BW average[", "Bandbreite["), &[]);
    assert!(output.claims.is_empty() && output.notes[0].contains("the rows are not used"), "{:?}", output.notes);
    // Known columns keep their places before a column of a later version.
    let later = PERFTEST.replace("MsgRate[Mpps]", "MsgRate[Mpps]  Retries[1/s]").replace("0.001441", "0.001441  17.0");
    let output = read(&later, &[]);
    assert_eq!((bytes_per_s(&output), output.notes.len()), (Some(90.04 * 1_048_576.0), 0), "{:?}", output.notes);
}

#[test]
fn each_end_has_one_gid_with_several_queue_pairs() {
    let lines =
        |side: &str, gid: &str| format!(" {side} address: LID 0000 QPN 0x0108 PSN 0x63ad7d\n GID: {gid}\n").repeat(2);
    let (before, rest) = PERFTEST.split_once(" local address").unwrap();
    let (_, table) = rest.split_once("10:00:00:04\n").unwrap();
    let output = read(&format!("{before}{}{}{table}", lines("local", "00:01"), lines("remote", "00:02")), &[]);
    assert_eq!(output.setup.gids, ["00:01", "00:02"]);
}

#[test]
fn multicast_and_raw_ethernet_are_recognized() {
    let kind = |text: &str, command: &str| {
        read(text, &command.split(' ').map(str::to_owned).collect::<Vec<_>>()).setup.other_packets
    };
    assert_eq!(kind(PERFTEST, "ib_read_bw -d mlx5_0"), None);
    assert_eq!(kind(PERFTEST, "ib_send_bw -c UD -g 2"), Some("multicast"));
    assert_eq!(kind(PERFTEST, "raw_ethernet_bw --client"), Some("raw Ethernet"));
    assert_eq!(kind(&PERFTEST.replace("type : RC", "type : RawEth"), ""), Some("raw Ethernet"));
}

#[test]
fn rows_of_latency_have_no_bandwidth() {
    let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n 2       1000          1.02           3.67         1.05     \t       1.06        \t0.05   \t\t1.25    \t\t3.67\n";
    let output = read(text, &[]);
    assert_eq!(output.claims[0].latency_us, Some(1.05));
    assert_eq!((bytes_per_s(&output), output.claims[0].messages_per_s), (None, None));
}

#[test]
fn commands_and_pasted_command_lines_have_the_duration() {
    let command = ["ib_write_bw", "-D", "10"].map(str::to_owned);
    assert_eq!(read(PERFTEST, &command).setup.duration_s, Some(10.0));
    assert_eq!(read(&format!("$ ib_write_bw -D5 -F host\n{PERFTEST}"), &[]).setup.duration_s, Some(5.0));
    assert_eq!(read(PERFTEST, &[]).setup.duration_s, None);
}

#[test]
fn localised_numbers_are_read_or_left_out() {
    let output = read(&PERFTEST.replace("90.04", "90,04").replace("0.001441", "0,001441"), &[]);
    assert_eq!(bytes_per_s(&output), Some(90.04 * 1_048_576.0));
    assert!(output.notes.iter().any(|note| note.contains("decimal commas")), "{:?}", output.notes);
    let output = read(&PERFTEST.replace("90.04", "11,728"), &[]);
    assert_eq!(bytes_per_s(&output), None);
    assert!(output.notes.iter().any(|note| note.contains("may separate thousands")), "{:?}", output.notes);
}

#[test]
fn cut_outputs_lose_their_last_number() {
    let cut = &PERFTEST[..PERFTEST.find("0.001441").unwrap() + 5];
    let output = read(cut, &[]);
    assert_eq!((output.claims[0].messages_per_s, bytes_per_s(&output)), (None, Some(90.04 * 1_048_576.0)));
    assert!(output.notes.iter().any(|note| note.contains("ends within a row")), "{:?}", output.notes);
    let headings = &PERFTEST[..PERFTEST.find(" 65536").unwrap()];
    let output = read(headings, &[]);
    assert!(output.claims.is_empty());
    assert!(output.notes.iter().any(|note| note.contains("no complete row")), "{:?}", output.notes);
}

#[test]
fn negative_numbers_are_not_used() {
    let output = read(&PERFTEST.replace("90.04", "-2.31"), &[]);
    assert_eq!(bytes_per_s(&output), None);
    assert!(output.notes.iter().any(|note| note.contains("-2.31 is negative")), "{:?}", output.notes);
}

#[test]
fn json_of_perftest_gets_its_unit_from_the_message_rate() {
    let json = |average: f64| {
        format!(
            "{{\"test_info\": {{\"test\": \"RDMA_Write BW Test\", \"Device\": \"mlx5_0\", \"Mtu\": 4096, \
             \"Link_type\": \"IB\", \"Number_of_qps\": 1}}, \"results\": {{\"MsgSize\": 65536, \
             \"n_iterations\": 5000, \"BW_peak\": 0.0, \"BW_average\": {average}, \"MsgRate\": 0.180000}}}}"
        )
    };
    assert_eq!(bytes_per_s(&read(&json(11250.0), &[])), Some(11250.0 * 1_048_576.0));
    assert_eq!(bytes_per_s(&read(&json(94.37), &[])), Some(94.37 * 125e6));
    let output = read(&json(500.0), &[]);
    assert_eq!((output.tool, bytes_per_s(&output)), (Some(Tool::PerftestJson), None));
    assert!(output.notes[0].contains("neither MB/sec nor Gb/sec"), "{:?}", output.notes);
    assert!(read("{\"test_info\": {", &[]).notes[0].contains("perhaps since it is cut"));
}

#[test]
fn ucx_has_its_overall_values() {
    let text = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
| Test:         tag match bandwidth                                                                        |
| Message size: 8192                                                                                       |
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
[thread 0]            100000      0.500     1.000     1.000     7812.50    7812.50     1000000     1000000
Final:                200000      0.500     1.000     1.000     7812.50    7800.00     1000000      998400
";
    let output = read(&format!("|  overhead (usec) |\n{text}"), &[]);
    assert_eq!((output.tool, output.claims[0].bytes), (Some(Tool::UcxPerftest), Some(8192)));
    assert_eq!((bytes_per_s(&output), output.claims[0].messages_per_s), (Some(7800.0 * 1_048_576.0), Some(998_400.0)));
    let unfinished = text.lines().take(5).collect::<Vec<_>>().join("\n") + "\n";
    let output = read(&format!("|  overhead (usec) |\n{unfinished}"), &[]);
    assert!(output.claims.is_empty() && output.notes[0].contains("has not ended"), "{:?}", output.notes);
}

#[test]
fn qperf_has_decimal_units() {
    let text = "rc_rdma_write_bw:\n    bw  =  11.3 GB/sec\nrc_lat:\n    latency  =  1.28 us\nud_bw:\n    send_bw  =  2 GB/sec\n    recv_bw  =  1.5 GB/sec\n";
    let output = read(text, &[]);
    let rates: Vec<Option<f64>> =
        output.claims.iter().map(|claim| claim.average.as_ref().map(Figure::bytes_per_s)).collect();
    assert_eq!(rates, [Some(11.3e9), None, Some(1.5e9)]);
    assert_eq!(output.claims[1].latency_us, Some(1.28));
}

#[test]
fn fio_is_read_from_text_and_json() {
    let text = "\
job: (g=0): rw=write, bs=(R) 4096B-4096B, (W) 4096B-4096B, (T) 4096B-4096B, ioengine=rdma, iodepth=16
  write: IOPS=124k, BW=484MiB/s (508MB/s)(4096MiB/8455msec)
";
    let output = read(text, &[]);
    assert_eq!((output.tool, bytes_per_s(&output)), (Some(Tool::Fio), Some(484.0 * 1_048_576.0)));
    assert_eq!((output.claims[0].bytes, output.claims[0].messages_per_s), (Some(4096), Some(124e3)));
    let json = "{\"fio version\": \"fio-3.36\", \"jobs\": [{\"jobname\": \"a\", \"job options\": {\"bs\": \"4k\"}, \
                \"read\": {\"bw_bytes\": 0, \"iops\": 0.0}, \
                \"write\": {\"bw_bytes\": 507904000, \"iops\": 124000.0, \"total_ios\": 1048576}}]}";
    let output = read(json, &[]);
    let [claim] = &output.claims[..] else { panic!("{:?}", output.claims) };
    assert_eq!(
        (claim.bytes, claim.messages_per_s, bytes_per_s(&output)),
        (Some(4096), Some(124e3), Some(507_904_000.0))
    );
}

#[test]
fn osu_tables_have_decimal_units_and_directions() {
    let text = "# OSU MPI Bi-Directional Bandwidth Test v5.1\n# Size      Bandwidth (MB/s)\n1                       2.60\n4194304             24700.13\n";
    let output = read(text, &[]);
    assert_eq!((output.tool, output.setup.is_bidirectional), (Some(Tool::Osu), true));
    assert_eq!(
        (output.claims.len(), output.claims[1].bytes, bytes_per_s(&output)),
        (2, Some(4_194_304), Some(24_700.13e6))
    );
    let text = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.7\n# Size                  MB/s        Messages/s\n8   100.00   12500000.00\n";
    assert_eq!(read(text, &[]).claims[0].messages_per_s, Some(12.5e6));
}

#[test]
fn failures_are_found_by_number_text_and_symbol() {
    for text in [
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
        "Send completion with error on qp 0x10e55: transport retry counter exceeded syndrome 0x81\n",
        "FATAL: Error on QP 0x6b10 wqe[057]: Transport retry count exceeded (synd 0x15 vend 0x81) opcode SEND\n",
        "wc.status = IBV_WC_RETRY_EXC_ERR\n",
    ] {
        assert_eq!(read(text, &[]).failures, [Status::RetryExceeded], "{text}");
    }
    assert!(read("Failed status 0\nFailed status 99999999999\n", &[]).failures.is_empty());
    assert_eq!(read("RNR retry counter exceeded\n", &[]).failures, [Status::RnrRetryExceeded]);
}

#[test]
fn other_texts_have_a_note() {
    for text in ["", "hello\n", "{}", "{\"a\": 1}", "#bytes\n", "Final:\n", "IOPS=\n", "rc_bw:\n"] {
        let output = read(text, &[]);
        assert!(output.claims.is_empty() && !output.notes.is_empty(), "{text:?}: {output:?}");
    }
}

/// Lines of all tools, which random texts contain.
const PIECES: [&str; 16] = [
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
    " 65536      5000             103,71             90.04              0.001441",
    " BW average[",
    "Final:  1 2 3 4 5 6 7 8",
    "| Message size: é",
    "|  overhead (usec) |",
    "  write: IOPS=1k, BW=é/s",
    "  read: IOPS=1,2, BW=9MiB/s",
    "bs=(R) 4096B-é, ioengine=",
    "# Size  Bandwidth (MB/s)  Latency (us)",
    "8 1.5 2.5",
    "rc_rdma_write_bw:",
    "    bw  =  11.3 GB/sec",
    " Mtu : 99999999999999999999[B]",
    "Failed status 12é",
    "ib_write_bw -D -D9 --duration=é",
];

proptest! {
    #[test]
    fn readers_accept_any_text(text in proptest::collection::vec(any::<char>(), 0..256)) {
        read(&text.into_iter().collect::<String>(), &[]);
    }

    #[test]
    fn readers_accept_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        read(&String::from_utf8_lossy(&bytes), &["-D".to_owned()]);
    }

    #[test]
    fn readers_accept_any_order_of_lines(order in proptest::collection::vec(0..PIECES.len(), 0..24), cut in 0..2000_usize) {
        let text: Vec<&str> = order.into_iter().map(|piece| PIECES[piece]).collect();
        let text = text.join("\n");
        let cut: String = text.chars().take(cut).collect();
        read(&cut, &["-s".to_owned()]);
        read(&format!("{{{cut}"), &[]);
    }
}
