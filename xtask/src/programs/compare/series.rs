//! Series of the comparison: the lines of the table.

use std::fmt;

use crate::figures::Goal;
use crate::programs::ucx;

/// Measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Latency,
    LatencyAsleep,
    Rate,
    RateOfLists,
    Bandwidth,
    BandwidthOfLong,
}

impl Quantity {
    pub(super) const ALL: [Self; 6] =
        [Self::Latency, Self::LatencyAsleep, Self::Rate, Self::RateOfLists, Self::Bandwidth, Self::BandwidthOfLong];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Latency => "16 B, latency, us",
            Self::LatencyAsleep => "16 B, latency, sleeping while waiting, us",
            Self::Rate => "16 B, million messages per second",
            Self::RateOfLists => "16 B, eight per post, million messages per second",
            Self::Bandwidth => "64 KiB, GB/s",
            Self::BandwidthOfLong => "1 MiB, GB/s",
        }
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Latency | Self::LatencyAsleep | Self::Rate | Self::RateOfLists => 16,
            Self::Bandwidth => 1 << 16,
            Self::BandwidthOfLong => 1 << 20,
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::LatencyAsleep => "us",
            Self::Rate | Self::RateOfLists => "M/s",
            Self::Bandwidth | Self::BandwidthOfLong => "GB/s",
        }
    }
}

/// Program of a series. The program determines the command and the format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Bench,
    /// Rate or latency of the kernel for the same datagrams.
    Limit,
    /// Rate or latency of memory that two processes share, for the same packets.
    LimitOfMemory,
    Perftest,
    /// libfabric with this provider.
    Libfabric(&'static str),
    /// UCX with this transport, which is one of [`ucx::OWN_TRANSPORTS`] or a transport over verbs.
    Ucx(&'static str),
}

impl Source {
    /// Returns whether the program runs on the software RNIC.
    fn is_on_doorbell(self) -> bool {
        match self {
            Self::Bench | Self::Perftest => true,
            Self::Limit | Self::LimitOfMemory | Self::Libfabric(_) => false,
            Self::Ucx(transport) => !ucx::OWN_TRANSPORTS.contains(&transport),
        }
    }
}

/// Link that carries the packets of the software RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Link {
    Udp,
    SharedMemory,
}

impl Link {
    const ALL: [Self; 2] = [Self::Udp, Self::SharedMemory];

    /// Returns the name of the link for `--link` and `DOORBELL_LINK`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::SharedMemory => "shm",
        }
    }
}

/// Name of a program, and its link if it runs on the software RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: &'static str,
    pub(super) link: Option<Link>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.link {
            None => f.pad(self.name),
            Some(link) => f.pad(&format!("{} [{}]", self.name, link.name())),
        }
    }
}

/// Receives that each end of `doorbell bench` posts beside those of `-r` (`CREDIT_RECEIVES` of the crate `exchange`).
/// Messages use the buffers of all receives in turn.
const CREDIT_RECEIVES: u64 = 3;

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Series {
    pub(super) quantity: Quantity,
    pub(super) name: Name,
    pub(super) source: Source,
    pub(super) arguments: &'static str,
    /// Other series with which this series is compared. The ratio is this series divided by the other series.
    pub(super) beside: Option<Name>,
    /// Goal of this ratio.
    pub(super) goal: Option<Goal>,
    /// Goal of the figure itself.
    pub(super) bound: Option<Goal>,
}

impl Series {
    /// Returns the bytes of all buffers that the messages of this series use in turn, of both ends together. Returns
    /// `None` for short messages, whose buffers fit into any cache, and for limits.
    ///
    /// `doorbell bench` has a buffer for each message in flight and for each receive, those for credits included. perftest
    /// and `ucx_perftest` send all messages from one buffer and receive them into another. `fi_pingpong` has these two
    /// for each direction.
    pub(super) fn buffer_bytes(&self) -> Option<u64> {
        if !matches!(self.quantity, Quantity::Bandwidth | Quantity::BandwidthOfLong) {
            return None;
        }
        let buffers = match self.source {
            Source::Bench => self.number_after("-t")? + self.number_after("-r")? + CREDIT_RECEIVES,
            Source::Perftest | Source::Ucx(_) => 2,
            Source::Libfabric(_) => 4,
            Source::Limit | Source::LimitOfMemory => return None,
        };
        Some(buffers * self.quantity.bytes())
    }

    /// Returns the number after an option in the arguments.
    fn number_after(&self, option: &str) -> Option<u64> {
        self.arguments.split(' ').skip_while(|word| *word != option).nth(1)?.parse().ok()
    }
}

/// A program of the table. A program on the software RNIC is measured over each link.
struct Program {
    quantity: Quantity,
    name: &'static str,
    source: Source,
    arguments: &'static str,
    beside: Option<&'static str>,
    goal: Option<Goal>,
}

impl Program {
    const fn new(quantity: Quantity, name: &'static str, source: Source, arguments: &'static str) -> Self {
        Self { quantity, name, source, arguments, beside: None, goal: None }
    }

    const fn beside(mut self, name: &'static str) -> Self {
        self.beside = Some(name);
        self
    }

    const fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Returns the series of the program over a link. The program is compared with another program over the same link,
    /// or over UDP if this program has no link.
    fn over(&self, link: Option<Link>) -> Series {
        let beside = self.beside.map(|name| {
            let is_ours = PROGRAMS.iter().any(|other| other.name == name && other.source.is_on_doorbell());
            Name { name, link: link.or(Some(Link::Udp)).filter(|_| is_ours) }
        });
        let name = Name { name: self.name, link };
        let Self { quantity, source, arguments, goal, .. } = *self;
        let mut series = Series { quantity, name, source, arguments, beside, goal, bound: None };
        let is_in_memory = link == Some(Link::SharedMemory);
        for wanted in IN_MEMORY.iter().filter(|wanted| is_in_memory && wanted.name == self.name) {
            match wanted.of {
                Of::Figure(bound) => series.bound = Some(bound),
                Of::RatioTo(beside, goal) => (series.beside, series.goal) = (Some(beside), Some(goal)),
            }
        }
        series
    }
}

/// Goal of a program whose packets go through shared memory: of its figure, or of a ratio that replaces the usual one.
struct InMemory {
    name: &'static str,
    of: Of,
}

enum Of {
    Figure(Goal),
    RatioTo(Name, Goal),
}

const BENCH_LAT: &str = "doorbell bench lat";
const BENCH_LAT_E: &str = "doorbell bench lat -e";
const BENCH_RATE: &str = "doorbell bench bw -s 16";
const BENCH_RATE_OF_LISTS: &str = "doorbell bench bw -s 16 --config batched";
const BENCH_BW: &str = "doorbell bench bw";
const BENCH_LONG: &str = "doorbell bench bw -s 1048576";
const SEND_LAT: &str = "ib_send_lat";
const WRITE_LAT: &str = "ib_write_lat";
const READ_LAT: &str = "ib_read_lat";
const UCX_RC_LAT: &str = "UCX rc_verbs, tag_lat";
const PING_PONG_OF_MEMORY: &str = "packets through shared memory, ping-pong";
const LONG_OF_MEMORY: &str = "packets of 4154 B through shared memory";

/// Goal for the latency of verbs programs in C, compared with `doorbell bench`: nearly equal.
const NEAR: Goal = Goal::AtMost(1.15);
const NEAR_FROM_BELOW: Goal = Goal::AtLeast(0.85);

/// Goal for programs whose responder does not work by itself: one-sided operations.
const PASSIVE: Goal = Goal::AtMost(3.0);

/// Goal for the latency of threads that sleep, compared with threads that poll.
const ASLEEP: Goal = Goal::AtMost(2.2);

/// Goal for the spinning ping-pong of datagrams, compared with the latency over UDP: this latency is at most 1.35 times
/// as long.
const PING_PONG: Goal = Goal::AtLeast(0.74);

/// Goal for the latency of UCX's transports over verbs, compared with UCX over TCP.
const UCX_LATENCY: Goal = Goal::AtMost(1.3);
const UCX_RATE: Goal = Goal::AtLeast(3.0);
const UCX_BANDWIDTH: Goal = Goal::AtLeast(1.0);

pub(super) const UCX_LAT: &str = "UCX tcp, tag_lat";
const UCX_TAG_RATE: &str = "UCX tcp, tag_bw of 16 B";
const UCX_BW: &str = "UCX tcp, tag_bw of 64 KiB";
const UCX_LONG: &str = "UCX tcp, tag_bw of 1 MiB";
const UCX_UD_LONG: &str = "UCX ud_verbs, tag_bw of 1 MiB";

const TAG_LAT: &str = "-t tag_lat -s 16 -n 80000";
const TAG_RATE: &str = "-t tag_bw -s 16 -n 500000";
const TAG_BW: &str = "-t tag_bw -s 65536 -n 10000";
const TAG_LONG: &str = "-t tag_bw -s 1048576 -n 3000";

const LIMIT: &str = "limit --repetitions 1 -D 0.3";

/// Programs of the table. Without the ids of a known vendor, perftest sends nothing inline. For short messages, its
/// queues hold 128 requests and 512 receives. `doorbell bench` gets options for the same behaviour.
///
/// `doorbell bench` has a buffer for each request and receive. With long messages, both programs have few of them, so
/// that the buffers fit into a cache. Each request of perftest has a completion (`-Q 1`), as with `doorbell bench`.
const PROGRAMS: &[Program] = &{
    use Quantity::{Bandwidth, BandwidthOfLong, Latency, LatencyAsleep, Rate, RateOfLists};
    use Source::{Bench, Libfabric, Limit, LimitOfMemory, Perftest, Ucx};
    const TCP: Source = Ucx("tcp");
    const POSIX: Source = Ucx("posix");
    // `rc_v` also allows `ud_verbs`, which UCX needs to connect.
    const RC: Source = Ucx("rc_v");
    const UD: Source = Ucx("ud_verbs");
    const FI_TCP: Source = Libfabric("tcp");
    const FI_SHM: Source = Libfabric("shm");
    [
        Program::new(Latency, BENCH_LAT, Bench, "lat -s 16 -I 0 -D 0.5"),
        Program::new(Latency, SEND_LAT, Perftest, "ib_send_lat -s 16 -n 80000").beside(BENCH_LAT).goal(NEAR),
        Program::new(Latency, WRITE_LAT, Perftest, "ib_write_lat -s 16 -n 40000").beside(SEND_LAT).goal(PASSIVE),
        Program::new(Latency, READ_LAT, Perftest, "ib_read_lat -s 16 -n 40000").beside(SEND_LAT).goal(PASSIVE),
        Program::new(Latency, "fi_pingpong -e msg (mean)", FI_TCP, "-e msg -S 16 -I 50000").beside(BENCH_LAT),
        Program::new(Latency, "fi_pingpong -e rdm (mean)", FI_TCP, "-e rdm -S 16 -I 20000").beside(BENCH_LAT),
        Program::new(Latency, "fi_pingpong -p shm (mean)", FI_SHM, "-e rdm -S 16 -I 50000").beside(BENCH_LAT),
        Program::new(Latency, UCX_LAT, TCP, TAG_LAT).beside(BENCH_LAT),
        Program::new(Latency, "UCX posix, tag_lat", POSIX, TAG_LAT).beside(BENCH_LAT),
        Program::new(Latency, UCX_RC_LAT, RC, TAG_LAT).beside(UCX_LAT).goal(UCX_LATENCY),
        Program::new(Latency, "UCX ud_verbs, tag_lat", UD, TAG_LAT).beside(UCX_LAT),
        Program::new(Latency, "UCX tcp, ucp_put_lat", TCP, "-t ucp_put_lat -s 16 -n 50000").beside(BENCH_LAT),
        Program::new(Latency, "UDP ping-pong, spinning", Limit, LIMIT).beside(BENCH_LAT).goal(PING_PONG),
        Program::new(Latency, PING_PONG_OF_MEMORY, LimitOfMemory, LIMIT).beside(BENCH_LAT),
        Program::new(LatencyAsleep, BENCH_LAT_E, Bench, "lat -s 16 -I 0 -e -D 0.5"),
        Program::new(LatencyAsleep, "ib_send_lat -e", Perftest, "ib_send_lat -e -s 16 -n 20000")
            .beside(SEND_LAT)
            .goal(ASLEEP),
        Program::new(LatencyAsleep, "UDP ping-pong, blocking", Limit, LIMIT).beside(SEND_LAT),
        Program::new(Rate, BENCH_RATE, Bench, "bw -s 16 -I 0 -t 128 -r 512 -D 0.5"),
        Program::new(Rate, "ib_send_bw -s 16", Perftest, "ib_send_bw -s 16 -N -n 1000000")
            .beside(BENCH_RATE)
            .goal(NEAR_FROM_BELOW),
        Program::new(Rate, UCX_TAG_RATE, TCP, TAG_RATE).beside(BENCH_RATE),
        Program::new(Rate, "UCX posix, tag_bw of 16 B", POSIX, TAG_RATE).beside(BENCH_RATE),
        Program::new(Rate, "UCX rc_verbs, tag_bw of 16 B", RC, TAG_RATE).beside(UCX_TAG_RATE).goal(UCX_RATE),
        Program::new(Rate, "UCX ud_verbs, tag_bw of 16 B", UD, TAG_RATE).beside(UCX_TAG_RATE),
        Program::new(Rate, "UDP datagrams of 78 B", Limit, LIMIT).beside(BENCH_RATE),
        Program::new(Rate, "packets of 78 B through shared memory", LimitOfMemory, LIMIT).beside(BENCH_RATE),
        Program::new(RateOfLists, BENCH_RATE_OF_LISTS, Bench, "bw -s 16 --config batched -D 0.5").beside(BENCH_RATE),
        Program::new(Bandwidth, BENCH_BW, Bench, "bw -s 65536 -t 8 -r 16 -D 0.5"),
        Program::new(Bandwidth, "ib_send_bw", Perftest, "ib_send_bw -s 65536 -t 8 -r 16 -Q 1 -N -n 40000")
            .beside(BENCH_BW)
            .goal(NEAR_FROM_BELOW),
        Program::new(Bandwidth, "ib_write_bw", Perftest, "ib_write_bw -s 65536 -t 8 -Q 1 -N -n 40000").beside(BENCH_BW),
        Program::new(Bandwidth, "ib_read_bw", Perftest, "ib_read_bw -s 65536 -t 8 -Q 1 -N -n 40000").beside(BENCH_BW),
        Program::new(Bandwidth, "fi_pingpong -e msg", FI_TCP, "-e msg -S 65536 -I 10000").beside(BENCH_BW),
        Program::new(Bandwidth, "fi_pingpong -e rdm", FI_TCP, "-e rdm -S 65536 -I 5000").beside(BENCH_BW),
        Program::new(Bandwidth, "fi_pingpong -p shm", FI_SHM, "-e rdm -S 65536 -I 10000").beside(BENCH_BW),
        Program::new(Bandwidth, UCX_BW, TCP, TAG_BW).beside(BENCH_BW).goal(Goal::AtMost(1.0)),
        Program::new(Bandwidth, "UCX posix, tag_bw of 64 KiB", POSIX, TAG_BW).beside(BENCH_BW),
        Program::new(Bandwidth, "UDP datagrams of 4154 B", Limit, LIMIT).beside(BENCH_BW),
        Program::new(Bandwidth, LONG_OF_MEMORY, LimitOfMemory, LIMIT).beside(BENCH_BW),
        Program::new(BandwidthOfLong, BENCH_LONG, Bench, "bw -s 1048576 -t 2 -r 4 -D 0.5")
            .beside(UCX_LONG)
            .goal(Goal::AtLeast(0.8)),
        Program::new(
            BandwidthOfLong,
            "ib_send_bw -s 1048576",
            Perftest,
            "ib_send_bw -s 1048576 -t 2 -r 4 -Q 1 -N -n 3000",
        )
        .beside(UCX_LONG),
        Program::new(BandwidthOfLong, "ib_read_bw -s 1048576", Perftest, "ib_read_bw -s 1048576 -t 2 -Q 1 -N -n 3000")
            .beside(UCX_LONG),
        Program::new(BandwidthOfLong, UCX_LONG, TCP, TAG_LONG),
        Program::new(BandwidthOfLong, "UCX posix, tag_bw of 1 MiB", POSIX, TAG_LONG).beside(UCX_LONG),
        Program::new(BandwidthOfLong, "UCX rc_verbs, tag_bw of 1 MiB", RC, TAG_LONG)
            .beside(UCX_LONG)
            .goal(UCX_BANDWIDTH),
        Program::new(BandwidthOfLong, UCX_UD_LONG, UD, TAG_LONG).beside(UCX_LONG).goal(Goal::AtLeast(0.4)),
    ]
};

const fn over_udp(name: &'static str) -> Name {
    Name { name, link: Some(Link::Udp) }
}

const fn foreign(name: &'static str) -> Name {
    Name { name, link: None }
}

const IN_MEMORY: &[InMemory] = &[
    InMemory { name: BENCH_LAT, of: Of::RatioTo(over_udp(BENCH_LAT), Goal::AtMost(0.2)) },
    InMemory { name: BENCH_LAT, of: Of::Figure(Goal::AtMost(0.45)) },
    InMemory { name: SEND_LAT, of: Of::Figure(Goal::AtMost(0.45)) },
    InMemory { name: WRITE_LAT, of: Of::Figure(Goal::AtMost(1.0)) },
    InMemory { name: READ_LAT, of: Of::Figure(Goal::AtMost(1.5)) },
    InMemory { name: UCX_RC_LAT, of: Of::Figure(Goal::AtMost(1.5)) },
    InMemory { name: BENCH_RATE, of: Of::Figure(Goal::AtLeast(8.0)) },
    InMemory { name: BENCH_RATE_OF_LISTS, of: Of::Figure(Goal::AtLeast(10.0)) },
    InMemory { name: BENCH_RATE_OF_LISTS, of: Of::RatioTo(over_udp(BENCH_RATE_OF_LISTS), Goal::AtLeast(1.5)) },
    InMemory { name: BENCH_BW, of: Of::RatioTo(foreign(UCX_BW), Goal::AtLeast(1.5)) },
    InMemory { name: BENCH_LONG, of: Of::RatioTo(foreign(LONG_OF_MEMORY), Goal::AtLeast(0.6)) },
    InMemory { name: UCX_UD_LONG, of: Of::RatioTo(foreign(UCX_LONG), Goal::AtLeast(0.8)) },
];

/// Returns all lines of the table. A program on the software RNIC has one line for each link.
pub(super) fn every() -> Vec<Series> {
    let lines = PROGRAMS.iter().flat_map(|program| {
        let links = if program.source.is_on_doorbell() { Link::ALL.map(Some).to_vec() } else { vec![None] };
        links.into_iter().map(|link| program.over(link))
    });
    lines.collect()
}

/// Programs that are also measured on a busy machine.
const OF_BUSY: &[&str] =
    &[BENCH_LAT, SEND_LAT, UCX_LAT, UCX_RC_LAT, "UDP ping-pong, spinning", BENCH_RATE, UCX_TAG_RATE];

/// Returns the lines of the table for a busy machine.
pub(super) fn of_busy() -> Vec<Series> {
    every().into_iter().filter(|series| OF_BUSY.contains(&series.name.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::root;

    #[test]
    fn series_have_unique_names_and_existing_counterparts() {
        let every = every();
        for series in &every {
            let named = |name: Name| every.iter().filter(|other| other.name == name).count();
            assert_eq!(named(series.name), 1, "{}", series.name);
            if let Some(beside) = series.beside {
                assert_eq!(named(beside), 1, "{beside}");
            }
            assert!(series.goal.is_none() || series.beside.is_some(), "{}", series.name);
        }
    }

    #[test]
    fn long_messages_have_buffers_within_a_cache() {
        for series in every() {
            let is_long = matches!(series.quantity, Quantity::Bandwidth | Quantity::BandwidthOfLong);
            let is_limit = matches!(series.source, Source::Limit | Source::LimitOfMemory);
            assert_eq!(series.buffer_bytes().is_some(), is_long && !is_limit, "{}", series.name);
            assert!(series.buffer_bytes().is_none_or(|bytes| bytes <= 9 << 20), "{}", series.name);
        }
        let bench = every().into_iter().find(|series| series.name == over_udp(BENCH_BW)).unwrap();
        assert_eq!(bench.buffer_bytes(), Some(27 << 16));
        let config = std::fs::read_to_string(root().join("crates/messages/exchange/src/connection/config.rs")).unwrap();
        assert!(config.contains(&format!("pub const CREDIT_RECEIVES: usize = {CREDIT_RECEIVES};")));
    }

    #[test]
    fn compared_programs_have_equal_queues() {
        let every = every();
        for series in every.iter().filter(|series| series.source == Source::Perftest) {
            let others =
                every.iter().filter(|other| other.quantity == series.quantity && other.source == Source::Bench);
            for other in others.filter(|_| series.buffer_bytes().is_some()) {
                assert_eq!(series.number_after("-t"), other.number_after("-t"), "{}", series.name);
                let receives = series.number_after("-r");
                assert!(receives.is_none() || receives == other.number_after("-r"), "{}", series.name);
            }
        }
    }

    #[test]
    fn goals_name_only_existing_programs() {
        for name in IN_MEMORY.iter().map(|wanted| wanted.name).chain(OF_BUSY.iter().copied()) {
            assert!(PROGRAMS.iter().any(|program| program.name == name), "{name}");
        }
        let memory = Name { name: BENCH_LAT, link: Some(Link::SharedMemory) };
        let latency = every().into_iter().find(|series| series.name == memory).unwrap();
        assert_eq!(latency.beside, Some(over_udp(BENCH_LAT)), "shared memory is compared with UDP");
        assert!(latency.goal.is_some() && latency.bound.is_some(), "the ratio and the figure have goals");
    }
}
