//! Parsers of the programs' output.

use serde_json::Value;

use super::series::{Quantity, Source};
use crate::programs::page::read::{perftest_row, pingpong, ucx as ucx_figure};

/// Bytes that perftest and UCX call one MB.
const MIB: f64 = 1_048_576.0;

/// Returns the figure of a run, in the quantity's unit.
pub(super) fn figure(source: Source, quantity: Quantity, text: &str) -> Result<f64, String> {
    let figure = match source {
        Source::Bench => bench(quantity, text),
        Source::Limit => serde_json::from_str(text).ok().and_then(|record: Value| limit(quantity, &record)),
        Source::LimitOfMemory => {
            serde_json::from_str(text).ok().and_then(|record: Value| limit(quantity, &record["shared_memory"]))
        }
        Source::Perftest => perftest(quantity, text),
        Source::Libfabric(_) => libfabric(quantity, text),
        Source::Ucx(_) => ucx(quantity, text),
    };
    match figure {
        Some(figure) if figure.is_finite() && figure > 0.0 => Ok(figure),
        _ => Err(format!("there is no figure for {:?} in:\n{text}", quantity.title())),
    }
}

fn bench(quantity: Quantity, text: &str) -> Option<f64> {
    let record: Value = serde_json::from_str(text).ok()?;
    let result = record["results"].as_array()?.iter().find(|result| result["bytes"] == quantity.bytes())?;
    Some(match quantity {
        Quantity::Latency | Quantity::LatencyAsleep => result["latency_ns"]["p50"].as_f64()? / 1e3,
        Quantity::Rate | Quantity::RateOfLists => result["messages_per_s"].as_f64()? / 1e6,
        Quantity::Bandwidth | Quantity::BandwidthOfLong => result["bytes_per_s"].as_f64()? / 1e9,
        Quantity::PingPong => quantity.bytes() as f64 / result["latency_ns"]["mean"].as_f64()?,
    })
}

fn limit(quantity: Quantity, record: &Value) -> Option<f64> {
    let of =
        |frame_bytes: u64| record["results"].as_array()?.iter().find(|result| result["frame_bytes"] == frame_bytes);
    Some(match quantity {
        Quantity::Latency => record["ping_pong_ns"].as_f64()? / 1e3,
        Quantity::LatencyAsleep => record["ping_pong_blocking_ns"].as_f64()? / 1e3,
        Quantity::Rate | Quantity::RateOfLists => of(78)?["datagrams_per_s"].as_f64()? / 1e6,
        Quantity::Bandwidth => of(4154)?["bytes_per_s"].as_f64()? / 1e9,
        Quantity::PingPong | Quantity::BandwidthOfLong => return None,
    })
}

fn perftest(quantity: Quantity, text: &str) -> Option<f64> {
    let (heading, column) = match quantity {
        Quantity::Latency | Quantity::LatencyAsleep => ("t_typical[usec]", 4),
        Quantity::Rate | Quantity::RateOfLists => ("MsgRate[Mpps]", 4),
        Quantity::Bandwidth | Quantity::BandwidthOfLong => ("BW average[MB/sec]", 3),
        Quantity::PingPong => return None,
    };
    let row = perftest_row(text, heading)?;
    if row.first()?.parse() != Ok(quantity.bytes()) {
        return None;
    }
    let figure: f64 = row.get(column)?.parse().ok()?;
    Some(if heading.starts_with("BW") { figure * MIB / 1e9 } else { figure })
}

/// Returns the figure of `fi_pingpong`, which has one message in flight.
fn libfabric(quantity: Quantity, text: &str) -> Option<f64> {
    match quantity {
        Quantity::Latency | Quantity::LatencyAsleep => pingpong(text, "16", "usec/xfer"),
        Quantity::PingPong => Some(quantity.bytes() as f64 / pingpong(text, "64k", "usec/xfer")? / 1e3),
        Quantity::Rate | Quantity::RateOfLists | Quantity::Bandwidth | Quantity::BandwidthOfLong => None,
    }
}

fn ucx(quantity: Quantity, text: &str) -> Option<f64> {
    let (wanted, factor) = match quantity {
        Quantity::Latency | Quantity::LatencyAsleep => ("50.0_percentile_lat", 1.0),
        Quantity::Rate | Quantity::RateOfLists => ("overall_mr", 1e-6),
        Quantity::Bandwidth | Quantity::BandwidthOfLong => ("overall_bw", MIB / 1e9),
        Quantity::PingPong => return None,
    };
    Some(ucx_figure(text, wanted)? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(source: Source, quantity: Quantity, text: &str, expected: f64) {
        let figure = figure(source, quantity, text).unwrap();
        assert!((figure / expected - 1.0).abs() < 1e-9, "{figure} instead of {expected}");
    }

    const SEND_LAT: &str = "\
Device not recognized to implement inline feature. Disabling it
---------------------------------------------------------------------------------------
                    Send Latency Test
 Dual-port       : OFF\t\tDevice         : doorbell0
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 16      50000          2.75           133927.78      3.28     \t       80.42       \t672.17 \t\t281.99  \t\t12100.88
---------------------------------------------------------------------------------------
";

    const SEND_BW: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 16         500000           0.00               41.74  \t\t   2.735437
";

    const WRITE_BW: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      10000            0.00               3724.17\t\t   0.059587
";

    #[test]
    fn perftest_prints_tables() {
        near(Source::Perftest, Quantity::Latency, SEND_LAT, 3.28);
        near(Source::Perftest, Quantity::LatencyAsleep, SEND_LAT, 3.28);
        near(Source::Perftest, Quantity::Rate, SEND_BW, 2.735437);
        near(Source::Perftest, Quantity::Bandwidth, WRITE_BW, 3.90507528192);
    }

    #[test]
    fn output_without_the_figure_is_an_error() {
        for (quantity, text) in [
            (Quantity::Latency, SEND_BW),
            (Quantity::Bandwidth, SEND_BW),
            (Quantity::Rate, WRITE_BW),
            (Quantity::Latency, "Couldn't connect to 127.0.0.1:18515"),
            (Quantity::Latency, &SEND_LAT.replace("3.28", "nan")),
        ] {
            let why = figure(Source::Perftest, quantity, text).unwrap_err();
            assert!(why.contains(text), "{why}");
        }
    }

    #[test]
    fn fi_pingpong_prints_the_time_of_a_transfer() {
        let small = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
16      1k      =1k      31k         0.01s      2.99       5.36       0.19
";
        let large = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64k     5k      =5k      625m        0.15s   4286.93      15.29       0.07
";
        near(Source::Libfabric("tcp"), Quantity::Latency, small, 5.36);
        near(Source::Libfabric("tcp"), Quantity::PingPong, large, 4.286200130804448);
        assert!(figure(Source::Libfabric("tcp"), Quantity::Bandwidth, large).is_err(), "one message is in flight");
    }

    #[test]
    fn ucx_prints_commas() {
        let headings = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr";
        let latency = format!("{headings}\n20000,3.447,20.830,142.428,0.73,0.11,48007,7021\n");
        near(Source::Ucx("tcp"), Quantity::Latency, &latency, 3.447);
        let rate = format!("{headings}\n100000,0.281,0.885,0.885,17.25,17.25,1130339,1130339\n");
        near(Source::Ucx("tcp"), Quantity::Rate, &rate, 1.130339);
        let bandwidth = format!("{headings}\n5000,1.897,1582.267,277.776,39.50,225.00,632,3600\n");
        near(Source::Ucx("tcp"), Quantity::Bandwidth, &bandwidth, 0.2359296);
    }

    #[test]
    fn bench_prints_json() {
        let record = r#"{"results": [{"bytes": 16, "messages_per_s": 114211.87, "bytes_per_s": 1827389.9,
            "latency_ns": {"min": 2770, "p50": 3205}}, {"bytes": 65536, "bytes_per_s": 4.05e9,
            "latency_ns": {"p50": 8000, "mean": 8192.0}}]}"#;
        near(Source::Bench, Quantity::Latency, record, 3.205);
        near(Source::Bench, Quantity::Rate, record, 0.11421187);
        near(Source::Bench, Quantity::Bandwidth, record, 4.05);
        near(Source::Bench, Quantity::PingPong, record, 8.0);
        assert!(figure(Source::Bench, Quantity::Latency, "{}").is_err());
    }

    #[test]
    fn one_record_of_the_limit_gives_four_figures_of_each_link() {
        let record = r#"{"ping_pong_blocking_ns": 37921, "ping_pong_ns": 2330, "results": [
            {"bytes_per_s": 2182484859.6, "datagrams_per_s": 27980575.1, "frame_bytes": 78},
            {"bytes_per_s": 7759593001.9, "datagrams_per_s": 1867980.9, "frame_bytes": 4154}],
            "shared_memory": {"ping_pong_ns": 250, "results": [{"datagrams_per_s": 15e6, "frame_bytes": 78}]}}"#;
        near(Source::LimitOfMemory, Quantity::Latency, record, 0.25);
        near(Source::LimitOfMemory, Quantity::Rate, record, 15.0);
        assert!(figure(Source::LimitOfMemory, Quantity::Bandwidth, record).is_err());
        near(Source::Limit, Quantity::Latency, record, 2.33);
        near(Source::Limit, Quantity::LatencyAsleep, record, 37.921);
        near(Source::Limit, Quantity::Rate, record, 27.9805751);
        near(Source::Limit, Quantity::Bandwidth, record, 7.7595930019);
    }
}
