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
    PingPong,
    BandwidthOfLong,
}

impl Quantity {
    pub(super) const ALL: [Self; 7] = [
        Self::Latency,
        Self::LatencyAsleep,
        Self::Rate,
        Self::RateOfLists,
        Self::Bandwidth,
        Self::PingPong,
        Self::BandwidthOfLong,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Latency => "16 B, latency, us",
            Self::LatencyAsleep => "16 B, latency, sleeping while waiting, us",
            Self::Rate => "16 B, million messages per second",
            Self::RateOfLists => "16 B, eight per post, million messages per second",
            Self::Bandwidth => "64 KiB, GB/s",
            Self::PingPong => "64 KiB, one message in flight, GB/s",
            Self::BandwidthOfLong => "1 MiB, GB/s",
        }
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Latency | Self::LatencyAsleep | Self::Rate | Self::RateOfLists => 16,
            Self::Bandwidth | Self::PingPong => 1 << 16,
            Self::BandwidthOfLong => 1 << 20,
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::LatencyAsleep => "us",
            Self::Rate | Self::RateOfLists => "M/s",
            Self::Bandwidth | Self::PingPong | Self::BandwidthOfLong => "GB/s",
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

    /// Returns whether the program uses memory of two processes, and not the software RNIC.
    fn is_in_memory(self) -> bool {
        matches!(self, Self::LimitOfMemory | Self::Libfabric("shm") | Self::Ucx("posix"))
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
    arguments: &'static str,
    /// Number of messages or round trips. `None` if the program runs for a time.
    iterations: Option<u64>,
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
    /// `doorbell bench` has `--buffers` of them at each end, or one for each message in flight and for each receive.
    /// Those for credits count too. Perftest and `ucx_perftest` send all messages from one buffer and receive them into
    /// another. A ping-pong has these for each direction.
    pub(super) fn buffer_bytes(&self) -> Option<u64> {
        let directions = match self.quantity {
            Quantity::Bandwidth | Quantity::BandwidthOfLong => 1,
            Quantity::PingPong => 2,
            Quantity::Latency | Quantity::LatencyAsleep | Quantity::Rate | Quantity::RateOfLists => return None,
        };
        let buffers = match self.source {
            Source::Bench => match self.number_after("--buffers") {
                Some(of_each_end) => 2 * of_each_end,
                None => self.number_after("-t")? + self.number_after("-r")? + CREDIT_RECEIVES,
            },
            Source::Perftest | Source::Ucx(_) | Source::Libfabric(_) => 2,
            Source::Limit | Source::LimitOfMemory => return None,
        };
        Some(directions * buffers * self.quantity.bytes())
    }

    /// Returns the arguments of the program, the number of iterations included.
    pub(super) fn arguments(&self) -> String {
        let Some(iterations) = self.iterations else { return self.arguments.to_owned() };
        let option = if matches!(self.source, Source::Libfabric(_)) { "-I" } else { "-n" };
        format!("{} {option} {iterations}", self.arguments)
    }

    /// Returns the duration of a run with this figure, in seconds. Returns `None` if the program runs for a time.
    pub(super) fn seconds(&self, figure: f64) -> Option<f64> {
        let each = match self.quantity {
            // The figure of READs is the whole round trip.
            Quantity::Latency if self.name.name == READ_LAT => figure * 1e-6,
            Quantity::Latency | Quantity::LatencyAsleep => 2.0 * figure * 1e-6,
            Quantity::Rate | Quantity::RateOfLists => 1e-6 / figure,
            Quantity::Bandwidth | Quantity::BandwidthOfLong => self.quantity.bytes() as f64 * 1e-9 / figure,
            Quantity::PingPong => 2.0 * self.quantity.bytes() as f64 * 1e-9 / figure,
        };
        Some(self.iterations? as f64 * each)
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
    /// Number of messages or round trips: over UDP or without a link, and through shared memory.
    iterations: Option<[u64; 2]>,
    beside: Option<&'static str>,
    goal: Option<Goal>,
}

impl Program {
    const fn new(quantity: Quantity, name: &'static str, source: Source, arguments: &'static str) -> Self {
        Self { quantity, name, source, arguments, iterations: None, beside: None, goal: None }
    }

    const fn times(self, iterations: u64) -> Self {
        self.times_over([iterations; 2])
    }

    const fn times_over(mut self, iterations: [u64; 2]) -> Self {
        self.iterations = Some(iterations);
        self
    }

    const fn beside(mut self, name: &'static str) -> Self {
        self.beside = Some(name);
        self
    }

    const fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Returns the series of the program over a link. The program is compared with another program over the same link.
    /// A program without a link is compared with a run through shared memory if it uses memory, and otherwise over UDP.
    fn over(&self, link: Option<Link>) -> Series {
        let is_in_memory = link.map_or(self.source.is_in_memory(), |link| link == Link::SharedMemory);
        let of_link = if is_in_memory { Link::SharedMemory } else { Link::Udp };
        let other = self.beside.and_then(|name| PROGRAMS.iter().find(|other| other.name == name));
        // The limits of the kernel do not limit packets through memory.
        let other = other.filter(|other| !(is_in_memory && other.source == Source::Limit));
        let beside =
            other.map(|other| Name { name: other.name, link: other.source.is_on_doorbell().then_some(of_link) });
        let name = Name { name: self.name, link };
        let Self { quantity, source, arguments, .. } = *self;
        let iterations = self.iterations.map(|[udp, memory]| if is_in_memory { memory } else { udp });
        let goal = self.goal.filter(|_| beside.is_some());
        let mut series = Series { quantity, name, source, arguments, iterations, beside, goal, bound: None };
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
const BENCH_WRITE: &str = "doorbell bench bw --op write";
const BENCH_READ: &str = "doorbell bench bw --op read";
const BENCH_PING_PONG: &str = "doorbell bench lat -s 65536 (mean)";
const BENCH_LONG: &str = "doorbell bench bw -s 1048576";
const BENCH_LONG_READ: &str = "doorbell bench bw --op read -s 1048576";
const SEND_LAT: &str = "ib_send_lat";
const SEND_LAT_E: &str = "ib_send_lat -e";
const WRITE_LAT: &str = "ib_write_lat";
const READ_LAT: &str = "ib_read_lat";
const SEND_BW: &str = "ib_send_bw";
const SEND_LONG: &str = "ib_send_bw -s 1048576";
const UCX_RC_LAT: &str = "UCX rc_verbs, tag_lat";
const DATAGRAMS: &str = "UDP datagrams of 78 B";
const PING_PONG_OF_MEMORY: &str = "packets through shared memory, ping-pong";
const LONG_OF_MEMORY: &str = "packets of 4154 B through shared memory";

/// Goal for the latency of verbs programs in C, compared with `doorbell bench`: nearly equal.
const NEAR: Goal = Goal::AtMost(1.15);
const NEAR_FROM_BELOW: Goal = Goal::AtLeast(0.85);

/// Goal for the throughput of verbs programs in C over UDP, compared with `doorbell bench` with the same buffers.
const EQUAL: Goal = Goal::Between(0.95, 1.05);

/// Goal for programs whose responder does not work by itself: one-sided operations.
const PASSIVE: Goal = Goal::AtMost(3.0);

/// Goal for the latency of threads that sleep, compared with threads that poll.
const ASLEEP: Goal = Goal::AtMost(2.2);

/// Goal for the spinning ping-pong of datagrams, compared with the latency over UDP: this latency is at most 1.35 times
/// as long.
const PING_PONG: Goal = Goal::AtLeast(0.74);

/// Goal for the rate of messages over UDP, one per post, compared with the kernel's rate of the same datagrams.
const OF_DATAGRAMS: Goal = Goal::AtLeast(0.3);

/// Goal for the latency of UCX's transports over verbs, compared with UCX over TCP.
const UCX_LATENCY: Goal = Goal::AtMost(1.3);
const UCX_RATE: Goal = Goal::AtLeast(3.0);
const UCX_BANDWIDTH: Goal = Goal::AtLeast(1.0);

pub(super) const UCX_LAT: &str = "UCX tcp, tag_lat";
const UCX_TAG_RATE: &str = "UCX tcp, tag_bw of 16 B";
const UCX_BW: &str = "UCX tcp, tag_bw of 64 KiB";
const UCX_LONG: &str = "UCX tcp, tag_bw of 1 MiB";
const UCX_UD_LONG: &str = "UCX ud_verbs, tag_bw of 1 MiB";

const TAG_LAT: &str = "-t tag_lat -s 16";
const TAG_RATE: &str = "-t tag_bw -s 16";
const TAG_BW: &str = "-t tag_bw -s 65536";
const TAG_LONG: &str = "-t tag_bw -s 1048576";

const LIMIT: &str = "limit --repetitions 1 -D 0.5";

/// Minimum duration of a run in seconds. In shorter runs, the first messages and the state of the machine matter.
pub(super) const LEAST_SECONDS: f64 = 0.5;

/// Programs of the table. Without the ids of a known vendor, perftest sends nothing inline. For short messages, its
/// queues hold 128 requests and 512 receives. `doorbell bench` gets options for the same behaviour.
///
/// perftest sends all messages from one buffer, and receives them into one. `--buffers 1` does the same. Each request
/// of perftest has a completion (`-Q 1`), as with `doorbell bench`. The numbers of iterations let a run take at least
/// [`LEAST_SECONDS`].
const PROGRAMS: &[Program] = &{
    use Quantity::{Bandwidth, BandwidthOfLong, Latency, LatencyAsleep, PingPong, Rate, RateOfLists};
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
        Program::new(Latency, SEND_LAT, Perftest, "ib_send_lat -s 16")
            .times_over([100_000, 600_000])
            .beside(BENCH_LAT)
            .goal(NEAR),
        Program::new(Latency, WRITE_LAT, Perftest, "ib_write_lat -s 16")
            .times_over([100_000, 500_000])
            .beside(SEND_LAT)
            .goal(PASSIVE),
        Program::new(Latency, READ_LAT, Perftest, "ib_read_lat -s 16")
            .times_over([120_000, 700_000])
            .beside(SEND_LAT)
            .goal(PASSIVE),
        Program::new(Latency, "fi_pingpong -e msg (mean)", FI_TCP, "-e msg -S 16").times(80_000).beside(BENCH_LAT),
        Program::new(Latency, "fi_pingpong -e rdm (mean)", FI_TCP, "-e rdm -S 16").times(60_000).beside(BENCH_LAT),
        Program::new(Latency, "fi_pingpong -p shm (mean)", FI_SHM, "-e rdm -S 16").times(500_000).beside(BENCH_LAT),
        Program::new(Latency, UCX_LAT, TCP, TAG_LAT).times(90_000).beside(BENCH_LAT),
        Program::new(Latency, "UCX posix, tag_lat", POSIX, TAG_LAT).times(1_000_000).beside(BENCH_LAT),
        Program::new(Latency, UCX_RC_LAT, RC, TAG_LAT).times_over([100_000, 500_000]).beside(UCX_LAT).goal(UCX_LATENCY),
        Program::new(Latency, "UCX ud_verbs, tag_lat", UD, TAG_LAT).times_over([100_000, 450_000]).beside(UCX_LAT),
        Program::new(Latency, "UCX tcp, ucp_put_lat", TCP, "-t ucp_put_lat -s 16").times(50_000).beside(BENCH_LAT),
        Program::new(Latency, "UDP ping-pong, spinning", Limit, LIMIT).beside(BENCH_LAT).goal(PING_PONG),
        Program::new(Latency, PING_PONG_OF_MEMORY, LimitOfMemory, LIMIT).beside(BENCH_LAT),
        Program::new(LatencyAsleep, BENCH_LAT_E, Bench, "lat -s 16 -I 0 -e -D 0.5").beside(BENCH_LAT).goal(ASLEEP),
        Program::new(LatencyAsleep, SEND_LAT_E, Perftest, "ib_send_lat -e -s 16")
            .times_over([70_000, 300_000])
            .beside(SEND_LAT)
            .goal(ASLEEP),
        Program::new(LatencyAsleep, "UDP ping-pong, blocking", Limit, LIMIT).beside(SEND_LAT_E),
        Program::new(Rate, BENCH_RATE, Bench, "bw -s 16 -I 0 -t 128 -r 512 -D 0.5")
            .beside(DATAGRAMS)
            .goal(OF_DATAGRAMS),
        Program::new(Rate, "ib_send_bw -s 16", Perftest, "ib_send_bw -s 16 -N")
            .times_over([2_500_000, 5_000_000])
            .beside(BENCH_RATE)
            .goal(NEAR_FROM_BELOW),
        Program::new(Rate, UCX_TAG_RATE, TCP, TAG_RATE).times(300_000).beside(BENCH_RATE),
        Program::new(Rate, "UCX posix, tag_bw of 16 B", POSIX, TAG_RATE).times(4_000_000).beside(BENCH_RATE),
        Program::new(Rate, "UCX rc_verbs, tag_bw of 16 B", RC, TAG_RATE)
            .times_over([1_800_000, 3_000_000])
            .beside(UCX_TAG_RATE)
            .goal(UCX_RATE),
        Program::new(Rate, "UCX ud_verbs, tag_bw of 16 B", UD, TAG_RATE)
            .times_over([400_000, 1_500_000])
            .beside(UCX_TAG_RATE),
        Program::new(Rate, DATAGRAMS, Limit, LIMIT),
        Program::new(Rate, "packets of 78 B through shared memory", LimitOfMemory, LIMIT).beside(BENCH_RATE),
        Program::new(RateOfLists, BENCH_RATE_OF_LISTS, Bench, "bw -s 16 --config batched -D 0.5").beside(BENCH_RATE),
        Program::new(Bandwidth, BENCH_BW, Bench, "bw -s 65536 -t 8 -r 16 --buffers 1 -D 0.5"),
        Program::new(Bandwidth, "doorbell bench bw, 27 buffers", Bench, "bw -s 65536 -t 8 -r 16 -D 0.5")
            .beside(BENCH_BW),
        Program::new(Bandwidth, SEND_BW, Perftest, "ib_send_bw -s 65536 -t 8 -r 16 -Q 1 -N")
            .times_over([50_000, 130_000])
            .beside(BENCH_BW)
            .goal(EQUAL),
        Program::new(Bandwidth, BENCH_WRITE, Bench, "bw --op write -s 65536 -t 8 --buffers 1 -D 0.5"),
        Program::new(Bandwidth, "ib_write_bw", Perftest, "ib_write_bw -s 65536 -t 8 -Q 1 -N")
            .times_over([50_000, 130_000])
            .beside(BENCH_WRITE),
        Program::new(Bandwidth, BENCH_READ, Bench, "bw --op read -s 65536 -t 8 --buffers 1 -D 0.5"),
        Program::new(Bandwidth, "ib_read_bw", Perftest, "ib_read_bw -s 65536 -t 8 -Q 1 -N")
            .times_over([50_000, 130_000])
            .beside(BENCH_READ),
        Program::new(Bandwidth, UCX_BW, TCP, TAG_BW).times(40_000).beside(BENCH_BW).goal(Goal::AtMost(1.0)),
        Program::new(Bandwidth, "UCX posix, tag_bw of 64 KiB", POSIX, TAG_BW).times(120_000).beside(BENCH_BW),
        Program::new(Bandwidth, "UDP datagrams of 4154 B", Limit, LIMIT).beside(BENCH_BW),
        Program::new(Bandwidth, LONG_OF_MEMORY, LimitOfMemory, LIMIT).beside(BENCH_BW),
        Program::new(PingPong, BENCH_PING_PONG, Bench, "lat -s 65536 --buffers 1 -D 0.5"),
        Program::new(PingPong, "fi_pingpong -e msg", FI_TCP, "-e msg -S 65536").times(20_000).beside(BENCH_PING_PONG),
        Program::new(PingPong, "fi_pingpong -e rdm", FI_TCP, "-e rdm -S 65536").times(9_000).beside(BENCH_PING_PONG),
        Program::new(PingPong, "fi_pingpong -p shm", FI_SHM, "-e rdm -S 65536").times(70_000).beside(BENCH_PING_PONG),
        Program::new(BandwidthOfLong, BENCH_LONG, Bench, "bw -s 1048576 -t 2 -r 4 --buffers 1 -D 0.5")
            .beside(UCX_LONG)
            .goal(Goal::AtLeast(0.8)),
        Program::new(BandwidthOfLong, SEND_LONG, Perftest, "ib_send_bw -s 1048576 -t 2 -r 4 -Q 1 -N")
            .times_over([3_500, 8_000])
            .beside(BENCH_LONG)
            .goal(EQUAL),
        Program::new(BandwidthOfLong, BENCH_LONG_READ, Bench, "bw --op read -s 1048576 -t 2 --buffers 1 -D 0.5"),
        Program::new(BandwidthOfLong, "ib_read_bw -s 1048576", Perftest, "ib_read_bw -s 1048576 -t 2 -Q 1 -N")
            .times_over([3_500, 8_000])
            .beside(BENCH_LONG_READ),
        Program::new(BandwidthOfLong, UCX_LONG, TCP, TAG_LONG).times(4_500),
        Program::new(BandwidthOfLong, "UCX posix, tag_bw of 1 MiB", POSIX, TAG_LONG).times(8_000).beside(BENCH_LONG),
        Program::new(BandwidthOfLong, "UCX rc_verbs, tag_bw of 1 MiB", RC, TAG_LONG)
            .times_over([3_500, 8_000])
            .beside(UCX_LONG)
            .goal(UCX_BANDWIDTH),
        Program::new(BandwidthOfLong, UCX_UD_LONG, UD, TAG_LONG)
            .times_over([1_500, 3_500])
            .beside(UCX_LONG)
            .goal(Goal::AtLeast(0.4)),
    ]
};

const fn over_udp(name: &'static str) -> Name {
    Name { name, link: Some(Link::Udp) }
}

const fn in_memory(name: &'static str) -> Name {
    Name { name, link: Some(Link::SharedMemory) }
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
    InMemory { name: SEND_BW, of: Of::RatioTo(in_memory(BENCH_BW), NEAR_FROM_BELOW) },
    InMemory { name: SEND_LONG, of: Of::RatioTo(in_memory(BENCH_LONG), NEAR_FROM_BELOW) },
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
            let runs_for_a_time = matches!(series.source, Source::Bench | Source::Limit | Source::LimitOfMemory);
            assert_eq!(series.iterations.is_none(), runs_for_a_time, "{}", series.name);
            assert!(series.goal.is_none() || series.beside.is_some(), "{}", series.name);
        }
    }

    #[test]
    fn long_messages_have_buffers_within_a_cache() {
        for series in every() {
            let is_long = series.quantity.bytes() > 16;
            let is_limit = matches!(series.source, Source::Limit | Source::LimitOfMemory);
            assert_eq!(series.buffer_bytes().is_some(), is_long && !is_limit, "{}", series.name);
            assert!(series.buffer_bytes().is_none_or(|bytes| bytes <= 2 << 20), "{}", series.name);
        }
        let bytes = |name: Name| every().into_iter().find(|series| series.name == name).unwrap().buffer_bytes();
        assert_eq!(bytes(over_udp(BENCH_BW)), Some(2 << 16));
        assert_eq!(bytes(over_udp("doorbell bench bw, 27 buffers")), Some(27 << 16));
        assert_eq!(bytes(foreign("fi_pingpong -e msg")), Some(4 << 16), "two for each direction");
        let config = std::fs::read_to_string(root().join("crates/messages/exchange/src/connection/config.rs")).unwrap();
        assert!(config.contains(&format!("pub const CREDIT_RECEIVES: usize = {CREDIT_RECEIVES};")));
    }

    #[test]
    fn compared_programs_have_equal_queues_and_buffers() {
        let every = every();
        let of_buffers = |series: &&Series| series.source == Source::Perftest && series.buffer_bytes().is_some();
        for series in every.iter().filter(of_buffers) {
            let other = every.iter().find(|other| Some(other.name) == series.beside).unwrap();
            assert_eq!(other.source, Source::Bench, "{}", series.name);
            for option in ["-t", "-r"] {
                assert_eq!(series.number_after(option), other.number_after(option), "{}", series.name);
            }
            assert_eq!(series.buffer_bytes(), other.buffer_bytes(), "{}", series.name);
        }
        for series in every.iter().filter(|series| series.name.name.starts_with("fi_pingpong")) {
            let other = every.iter().find(|other| Some(other.name) == series.beside).unwrap();
            assert_eq!(series.buffer_bytes(), other.buffer_bytes(), "{}", series.name);
        }
    }

    #[test]
    fn programs_are_divided_by_a_run_of_the_same_kind() {
        let beside = |name: Name| every().into_iter().find(|series| series.name == name).unwrap().beside;
        for name in ["UCX posix, tag_lat", "fi_pingpong -p shm (mean)", PING_PONG_OF_MEMORY] {
            assert_eq!(beside(foreign(name)), Some(in_memory(BENCH_LAT)), "{name}");
        }
        for name in ["UCX tcp, tag_lat", "fi_pingpong -e msg (mean)", "UDP ping-pong, spinning"] {
            assert_eq!(beside(foreign(name)), Some(over_udp(BENCH_LAT)), "{name}");
        }
        assert_eq!(beside(over_udp(BENCH_RATE)), Some(foreign(DATAGRAMS)));
        assert_eq!(beside(in_memory(BENCH_RATE)), None, "the kernel does not limit packets through memory");
        assert_eq!(beside(in_memory(SEND_LONG)), Some(in_memory(BENCH_LONG)));
    }

    /// The stored figures are those of a machine with two processors.
    #[test]
    fn runs_take_half_a_second_at_stored_figures() {
        let stored = std::fs::read_to_string(root().join("benchmarks/2026-11-24/compare.json")).unwrap();
        let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
        let mut count = 0;
        for series in every() {
            let is_it = |other: &&serde_json::Value| {
                other["name"] == series.name.name && other["link"].as_str() == series.name.link.map(Link::name)
            };
            let found = stored["series"].as_array().unwrap().iter().find(is_it);
            let Some(seconds) = found.and_then(|found| series.seconds(found["median"].as_f64()?)) else { continue };
            assert!(seconds >= LEAST_SECONDS, "{}: {seconds} s", series.name);
            count += 1;
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn iterations_are_an_argument() {
        let of = |name: Name| every().into_iter().find(|series| series.name == name).unwrap();
        assert_eq!(of(over_udp(SEND_LAT)).arguments(), "ib_send_lat -s 16 -n 100000");
        assert_eq!(of(in_memory(SEND_LAT)).arguments(), "ib_send_lat -s 16 -n 600000");
        assert_eq!(of(foreign("fi_pingpong -e msg")).arguments(), "-e msg -S 65536 -I 20000");
        assert_eq!(of(over_udp(BENCH_LAT)).arguments(), "lat -s 16 -I 0 -D 0.5");
        assert_eq!(of(over_udp(BENCH_LAT)).seconds(3.0), None);
    }

    #[test]
    fn goals_name_only_existing_programs() {
        for name in IN_MEMORY.iter().map(|wanted| wanted.name).chain(OF_BUSY.iter().copied()) {
            assert!(PROGRAMS.iter().any(|program| program.name == name), "{name}");
        }
        for beside in PROGRAMS.iter().filter_map(|program| program.beside) {
            assert!(PROGRAMS.iter().any(|program| program.name == beside), "{beside}");
        }
        let latency = every().into_iter().find(|series| series.name == in_memory(BENCH_LAT)).unwrap();
        assert_eq!(latency.beside, Some(over_udp(BENCH_LAT)), "shared memory is compared with UDP");
        assert!(latency.goal.is_some() && latency.bound.is_some(), "the ratio and the figure have goals");
    }
}
