//! Parsers of the output of programs. All parsed figures are in seconds or bytes per second.

/// Format in which a program prints a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Read {
    /// `fi_pingpong`: time of a transfer of this size, such as `64k`.
    PingpongTime(&'static str),
    /// `fi_pingpong`: throughput with this size.
    PingpongRate(&'static str),
    /// qperf: value after `latency = ` or `bw = ` below the heading of this test.
    Qperf(&'static str),
    /// fio with `--ioengine=rdma`: rate of this direction, `READ` or `WRITE`, in the final summary. The rate excludes
    /// the sleep of the client after it has connected.
    Fio(&'static str),
    /// perftest: typical latency.
    PerftestTime,
    /// perftest: average bandwidth.
    PerftestRate,
    /// `ucx_perftest` with `-f -v`: half a round trip.
    UcxTime,
    /// `ucx_perftest` with `-f -v`: messages per second.
    UcxMessages,
    /// `ucx_perftest` with `-f -v`: throughput.
    UcxRate,
    /// QEMU: value after these words, in milliseconds.
    Milliseconds(&'static str),
    /// QEMU: value after these words, in Mbit/s.
    MegabitsPerSecond(&'static str),
    /// Programs of this repository: value with a unit after these words.
    Line(&'static str),
}

/// Bytes that perftest and UCX call one MB.
const MIB: f64 = 1_048_576.0;

impl Read {
    /// Returns the figure, if the text has it.
    pub(crate) fn find(self, text: &str) -> Option<f64> {
        match self {
            Self::PingpongTime(size) => Some(pingpong(text, size, "usec/xfer")? * 1e-6),
            Self::PingpongRate(size) => Some(pingpong(text, size, "MB/sec")? * 1e6),
            Self::Qperf(test) => qperf(text, test),
            Self::Fio(direction) => fio(text, direction),
            Self::PerftestTime => Some(perftest(text, "t_typical[usec]", 4)? * 1e-6),
            Self::PerftestRate => Some(perftest(text, "BW average[MB/sec]", 3)? * MIB),
            Self::UcxTime => Some(ucx(text, "50.0_percentile_lat")? * 1e-6),
            Self::UcxMessages => ucx(text, "overall_mr"),
            Self::UcxRate => Some(ucx(text, "overall_bw")? * MIB),
            Self::Milliseconds(words) => Some(number_after(text, words)? * 1e-3),
            Self::MegabitsPerSecond(words) => Some(number_after(text, words)? * 1e6 / 8.0),
            Self::Line(words) => {
                let (number, unit) = with_unit(text.split_once(words)?.1)?;
                Some(number * unit)
            }
        }
    }
}

/// Returns the value of a column in the table of `fi_pingpong`, from the row of a size.
pub(in crate::programs) fn pingpong(text: &str, size: &str, column: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let at = lines.next()?.split_whitespace().position(|heading| heading == column)?;
    let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&size))?.get(at)?.parse().ok()
}

/// Returns the first figure in qperf's output below a line with the name of the test.
fn qperf(text: &str, test: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| *line != format!("{test}:")).skip(1);
    let (_, figure) = lines.next()?.split_once('=')?;
    let (number, unit) = with_unit(figure)?;
    Some(number * unit)
}

/// Time that the client of fio's engine `rdma` sleeps after it has connected. fio counts it as time of the transfer
/// (`engines/rdma.c`, `fio_rdmaio_connect`).
const FIO_SLEEP_S: f64 = 0.5;

/// Returns the bytes per second of fio's line `WRITE: bw=..., io=4096MiB (4295MB), run=1031-1031msec`.
fn fio(text: &str, direction: &str) -> Option<f64> {
    let line = text.lines().map(str::trim_start).find(|line| line.starts_with(&format!("{direction}: bw=")))?;
    let (number, rest) = leading_number(line.split_once(" io=")?.1.split_once('(')?.1)?;
    let bytes = number
        * ["B", "kB", "MB", "GB"]
            .into_iter()
            .zip([1.0, 1e3, 1e6, 1e9])
            .find(|(name, _)| rest.strip_prefix(*name).is_some_and(|rest| rest.starts_with(')')))?
            .1;
    let (shortest_ms, _) = leading_number(line.split_once("run=")?.1)?;
    let seconds = shortest_ms * 1e-3 - FIO_SLEEP_S;
    (seconds > 0.0).then(|| bytes / seconds)
}

/// Returns the row of perftest's table with this heading. Headings contain blanks, so callers select columns by
/// position.
pub(in crate::programs) fn perftest_row<'a>(text: &'a str, heading: &str) -> Option<Vec<&'a str>> {
    let mut lines =
        text.lines().skip_while(|line| !(line.trim_start().starts_with("#bytes") && line.contains(heading)));
    Some(lines.nth(1)?.split_whitespace().collect())
}

/// Returns a value from the output of `ucx_perftest -f -v`: headings and one row, separated by commas.
pub(in crate::programs) fn ucx(text: &str, heading: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let column = lines.next()?.split(',').position(|other| other.trim() == heading)?;
    lines.next()?.split(',').nth(column)?.trim().parse().ok()
}

fn perftest(text: &str, heading: &str, column: usize) -> Option<f64> {
    perftest_row(text, heading)?.get(column)?.parse().ok()
}

fn number_after(text: &str, words: &str) -> Option<f64> {
    leading_number(text.split_once(words)?.1).map(|(number, _)| number)
}

/// Returns the number at the start of a text, and the rest of the text.
fn leading_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Returns a number, and its unit as a multiple of a second or of a byte per second.
fn with_unit(text: &str) -> Option<(f64, f64)> {
    let (number, rest) = leading_number(text)?;
    let rest = rest.trim_start();
    let end = rest.find(|letter: char| !letter.is_ascii_alphabetic() && letter != '/').unwrap_or(rest.len());
    Some((number, unit(&rest[..end])?))
}

fn unit(name: &str) -> Option<f64> {
    Some(match name {
        "nsec" | "ns" => 1e-9,
        "usec" | "us" => 1e-6,
        "msec" | "ms" => 1e-3,
        "sec" | "s" => 1.0,
        "KB/sec" | "KB/s" | "kB/s" => 1e3,
        "MB/sec" | "MB/s" => 1e6,
        "GB/sec" | "GB/s" => 1e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(read: Read, text: &str, expected: f64) {
        let found = read.find(text).unwrap_or_else(|| panic!("{read:?} finds nothing"));
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
    }

    #[test]
    fn fi_pingpong_prints_a_row_for_each_size() {
        let text = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      1k      =1k      125k        0.01s     15.39       4.16       0.24
1m      200     =200     400m        0.20s   2087.00     502.43       0.00
";
        near(Read::PingpongTime("64"), text, 4.16e-6);
        near(Read::PingpongRate("1m"), text, 2.087e9);
        assert_eq!(Read::PingpongRate("64k").find(text), None);
    }

    #[test]
    fn qperf_prints_several_units() {
        let text = "rc_lat:\n    latency  =  4.1 us\nrc_bw:\n    bw  =  2.98 GB/sec\ntcp_bw:\n    bw  =  439 MB/sec\n";
        near(Read::Qperf("rc_lat"), text, 4.1e-6);
        near(Read::Qperf("rc_bw"), text, 2.98e9);
        near(Read::Qperf("tcp_bw"), text, 4.39e8);
        assert_eq!(Read::Qperf("bw").find(text), None);
    }

    #[test]
    fn rates_of_fio_exclude_the_sleep_of_its_client() {
        let line = |run: &str| {
            format!(
                "  WRITE: bw=519MiB/s (544MB/s), 519MiB/s-519MiB/s (544MB/s-544MB/s), io=4096MiB (4295MB), run={run}\n"
            )
        };
        near(Read::Fio("WRITE"), &line("1000-1000msec"), 4.295e9 / 0.5);
        near(Read::Fio("WRITE"), &line("1000-1000msec").replace("(4295MB), run", "(17.2GB), run"), 17.2e9 / 0.5);
        assert_eq!(Read::Fio("READ").find(&line("1000-1000msec")), None);
        assert_eq!(Read::Fio("WRITE").find(&line("499-499msec")), None, "the run is shorter than the sleep");
    }

    #[test]
    fn other_programs_print_words_and_a_number() {
        near(Read::Milliseconds("downtime "), "total-time 640 ms\ndowntime 126 ms\n", 0.126);
        near(Read::MegabitsPerSecond("mbps "), "mbps 901.5\n", 901.5e6 / 8.0);
        near(Read::Line("one way, 8 B: "), "one way, 8 B: 5.25 us\nping-pong", 5.25e-6);
        near(Read::Line("ping-pong, 1 MiB: "), "ping-pong, 1 MiB: 186 MB/s\n", 1.86e8);
        // Libraries print lines of their own before.
        let writes =
            "I1127 engine.cpp:492] transferSync\none write, 8 B: 22.35 us\nwrites, 1 MiB: 3982 MB/s\nall bytes\n";
        near(Read::Line("one write, 8 B: "), writes, 22.35e-6);
        near(Read::Line("writes, 1 MiB: "), writes, 3.982e9);
        assert_eq!(Read::Line("one write, 16 KiB: ").find(writes), None);
    }
}
