//! The kinds of rounds, and the random choices of one round. The seed of the round determines all choices.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::surroundings;

/// Allowed ends of a disturbed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process ends after all messages have arrived.
    Finishes,
    /// The process ends by an act of its own, such as `_exit`, with the status for this case.
    Leaves,
    /// The signal ends the process, unless the process has already finished.
    Dies(Signal),
    /// The process ends after a completion with an error.
    Fails,
    /// The process ends after a refused call, after a completion with an error, or after all messages.
    MayFail,
    /// The process ends with any status except that of a panic. A server may wait for SIGTERM.
    Ends,
}

/// A disturbance of one process of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// An act of the program `xtask/programs/chaos.c` itself, at a stage of its set-up or end, or during its traffic.
    Act(&'static str, When),
    /// A signal from outside.
    Signal(Signal),
    /// SIGSTOP, and then SIGCONT before the retries of the peer run out.
    Pause,
    /// SIGSTOP, and SIGKILL later.
    StopAndKill,
    /// SIGKILL of both processes.
    KillBoth,
    /// Threads with a stack only a little above the minimum of the C library.
    SmallStacks,
    /// A full file system for the capture and the counters.
    FullDisk,
    /// A time of day that jumps.
    Clock,
    /// A time namespace whose monotonic clock is eleven days ahead.
    TimeNamespace,
    /// Many short stops. The kernel then restarts or interrupts the system calls that wait.
    Stutter,
    /// A limit of descriptors, set from outside, so that no further descriptor can be opened.
    FewDescriptors,
}

/// Times at which an act may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// At any stage, or during the traffic.
    Anytime,
    /// Only during the traffic.
    Traffic,
}

/// Programs of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Programs {
    /// Two processes of `xtask/programs/chaos.c`.
    Own,
    /// Server and client of perftest.
    Perftest,
    /// `rping`.
    Rping,
    /// `doorbell bench`, a Rust program, on the preloaded library.
    Bench,
    /// `doorbell bench` without `doorbell run`, on a software RNIC of its own.
    Soft,
}

/// A kind of round.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) programs: Programs,
    pub(super) disturbance: Disturbance,
    pub(super) end: End,
}

const fn own(act: &'static str, when: When, end: End) -> Kind {
    Kind { programs: Programs::Own, disturbance: Disturbance::Act(act, when), end }
}

const fn outside(programs: Programs, disturbance: Disturbance, end: End) -> Kind {
    Kind { programs, disturbance, end }
}

/// All kinds. The remainder of a round's seed selects one kind, so consecutive seeds pass through all kinds. New kinds
/// stand at the end, so seeds of rounds that failed once keep their kinds.
pub(super) static KINDS: &[Kind] = &[
    own("_exit", When::Anytime, End::Leaves),
    outside(Programs::Own, Disturbance::Signal(Signal::SIGKILL), End::Dies(Signal::SIGKILL)),
    own("fork", When::Anytime, End::Finishes),
    outside(Programs::Perftest, Disturbance::Signal(Signal::SIGKILL), End::Dies(Signal::SIGKILL)),
    own("exit", When::Anytime, End::Leaves),
    own("fork_open", When::Anytime, End::Finishes),
    outside(Programs::Own, Disturbance::Pause, End::Finishes),
    own("cancel", When::Traffic, End::Fails),
    own("restart", When::Traffic, End::Finishes),
    own("close", When::Anytime, End::MayFail),
    outside(Programs::Bench, Disturbance::Signal(Signal::SIGKILL), End::Dies(Signal::SIGKILL)),
    own("exec", When::Anytime, End::Leaves),
    own("fork_exit", When::Anytime, End::Finishes),
    outside(Programs::Own, Disturbance::FullDisk, End::Finishes),
    own("unmap", When::Traffic, End::Fails),
    outside(Programs::Own, Disturbance::StopAndKill, End::Dies(Signal::SIGKILL)),
    own("interrupt", When::Traffic, End::Finishes),
    own("exhaust", When::Anytime, End::MayFail),
    outside(Programs::Perftest, Disturbance::Pause, End::Finishes),
    own("orphan", When::Anytime, End::Leaves),
    outside(Programs::Own, Disturbance::Clock, End::Finishes),
    own("fork_exec", When::Anytime, End::Finishes),
    outside(Programs::Own, Disturbance::SmallStacks, End::Finishes),
    outside(Programs::Own, Disturbance::Signal(Signal::SIGTERM), End::Dies(Signal::SIGTERM)),
    own("vfork", When::Anytime, End::Finishes),
    outside(Programs::Rping, Disturbance::Signal(Signal::SIGKILL), End::Dies(Signal::SIGKILL)),
    own("quick_exit", When::Anytime, End::Leaves),
    outside(Programs::Own, Disturbance::TimeNamespace, End::Finishes),
    own("onstack", When::Traffic, End::Finishes),
    own("posix_spawn", When::Anytime, End::Finishes),
    outside(Programs::Own, Disturbance::KillBoth, End::Dies(Signal::SIGKILL)),
    own("system", When::Anytime, End::Finishes),
    outside(Programs::Soft, Disturbance::Signal(Signal::SIGKILL), End::Dies(Signal::SIGKILL)),
    outside(Programs::Bench, Disturbance::Pause, End::Finishes),
    outside(Programs::Perftest, Disturbance::FewDescriptors, End::Ends),
    outside(Programs::Soft, Disturbance::Stutter, End::Finishes),
    outside(Programs::Bench, Disturbance::Signal(Signal::SIGTERM), End::Dies(Signal::SIGTERM)),
    outside(Programs::Perftest, Disturbance::FullDisk, End::Finishes),
    outside(Programs::Soft, Disturbance::FewDescriptors, End::Ends),
    outside(Programs::Own, Disturbance::Stutter, End::Finishes),
    outside(Programs::Bench, Disturbance::Clock, End::Finishes),
    outside(Programs::Soft, Disturbance::StopAndKill, End::Dies(Signal::SIGKILL)),
    outside(Programs::Perftest, Disturbance::Signal(Signal::SIGTERM), End::Dies(Signal::SIGTERM)),
    outside(Programs::Bench, Disturbance::FullDisk, End::Finishes),
    outside(Programs::Soft, Disturbance::Pause, End::Finishes),
    outside(Programs::Perftest, Disturbance::Stutter, End::Finishes),
    outside(Programs::Bench, Disturbance::FewDescriptors, End::Ends),
    outside(Programs::Soft, Disturbance::Clock, End::Finishes),
    outside(Programs::Perftest, Disturbance::TimeNamespace, End::Finishes),
    outside(Programs::Soft, Disturbance::FullDisk, End::Finishes),
    outside(Programs::Bench, Disturbance::Stutter, End::Finishes),
    outside(Programs::Perftest, Disturbance::StopAndKill, End::Dies(Signal::SIGKILL)),
    outside(Programs::Soft, Disturbance::TimeNamespace, End::Finishes),
    outside(Programs::Bench, Disturbance::TimeNamespace, End::Finishes),
    outside(Programs::Soft, Disturbance::KillBoth, End::Dies(Signal::SIGKILL)),
    outside(Programs::Soft, Disturbance::Signal(Signal::SIGTERM), End::Dies(Signal::SIGTERM)),
    outside(Programs::Bench, Disturbance::StopAndKill, End::Dies(Signal::SIGKILL)),
];

/// Command lines of perftest. Their options keep perftest busy until after the disturbance of a round.
const PERFTEST: &[&str] = &[
    "ib_send_bw -n 200000 -s 4096",
    "ib_send_bw -n 100000 -q 4 -e",
    "ib_send_lat -n 200000",
    "ib_send_lat -n 50000 -e",
    "ib_write_bw -n 200000 -s 1024",
    "ib_write_lat -n 20000",
    "ib_read_bw -n 200000 -s 1024",
    "ib_read_lat -n 100000",
    "ib_atomic_lat -n 100000 -A FETCH_AND_ADD",
    "ib_send_bw -R -n 100000",
];

/// Seeds of rounds that failed once, each with the number of kinds at that time and the cause. A test run begins with
/// these seeds.
pub(super) const FAILED_ONCE: &[(u64, usize, &str)] = &[
    (1_795_591_807_680_939_945, 32, "a thread read a descriptor that the program had closed, and slept forever"),
    (
        1_795_591_807_680_939_949,
        32,
        "the file system had no room for the beginning of a capture, so the capture was refused",
    ),
    (1_795_600_222_052_981_711, 32, "a lane that only received sent no request, so it did not notice its peer's death"),
    (
        1_795_641_946_035_899_913,
        32,
        "the connection manager waited with an epoll whose descriptor the program had closed",
    ),
];

/// Number of stages of `xtask/programs/chaos.c`.
const STAGES: u64 = 7;

/// Duration of the traffic of a round.
pub(super) const TRAFFIC: Duration = Duration::from_millis(600);

/// A sequence of numbers that a seed determines (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Choices that one seed determines.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: &'static Kind,
    /// Options of `doorbell run` of both processes.
    pub(super) options: Vec<String>,
    /// Arguments of both programs.
    pub(super) words: Vec<String>,
    /// Further arguments of the disturbed program.
    pub(super) act: Vec<String>,
    /// Whether the disturbed process is the server.
    pub(super) disturbs_server: bool,
    /// Time from the start of the pair to a disturbance from outside.
    pub(super) after: Duration,
    /// Time for which a process is stopped.
    pub(super) pause: Duration,
    /// KiB of the small file system that are used before the start.
    pub(super) used_kib: u64,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let kinds = FAILED_ONCE.iter().find(|(known, ..)| *known == seed).map_or(KINDS.len(), |(_, kinds, _)| *kinds);
        let kind = &KINDS[(seed % kinds as u64) as usize];
        let mut random = Random::new(seed);
        let link = ["udp", "shm", "auto"][random.below(3) as usize];
        let mut options = vec!["--link".to_owned(), link.to_owned()];
        if random.below(4) == 0 && kind.programs == Programs::Own {
            options.push("--fault".to_owned());
            options.push(format!("drop=0.002,reorder=0.002,seed={}", random.below(1000)));
        }
        let words = match kind.programs {
            Programs::Own => {
                let via = ["verbs", "cm"][random.below(2) as usize];
                // A request fails after eight timeouts of 4.096 us * 2^timeout. If the process must finish, these
                // timeouts must be longer than a pause of its peer.
                let timeout = if kind.end == End::Finishes { 17 } else { 12 };
                let numbers =
                    format!("timeout={timeout} us={} via={via} seed={}", TRAFFIC.as_micros(), seed % 1_000_000);
                numbers.split(' ').map(str::to_owned).collect()
            }
            Programs::Perftest => {
                let line = PERFTEST[random.below(PERFTEST.len() as u64) as usize];
                line.split(' ').map(str::to_owned).collect()
            }
            Programs::Rping | Programs::Bench | Programs::Soft => Vec::new(),
        };
        let mut act = Vec::new();
        match kind.disturbance {
            Disturbance::Act(name, when) => {
                act.push(format!("act={name}"));
                act.push(format!("lane={}", random.below(3)));
                if when == When::Anytime && random.below(2) == 0 {
                    act.push(format!("stage={}", random.below(STAGES)));
                } else {
                    act.push(format!("after={}", random.below(TRAFFIC.as_micros() as u64 * 4 / 5)));
                }
            }
            Disturbance::SmallStacks => act.push(format!("stack={}", 16_384 + random.below(16) * 1024)),
            _ => {}
        }
        Self {
            kind,
            options,
            words,
            act,
            disturbs_server: random.below(2) == 0,
            after: Duration::from_micros(random.below(800_000)),
            pause: Duration::from_millis(20 + random.below(300)),
            used_kib: random.below(surroundings::SMALL_KIB - surroundings::START_KIB + 1),
        }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = if self.disturbs_server { "server" } else { "client" };
        write!(f, "{:?} of the {who}, {:?}", self.kind.disturbance, self.kind.programs)?;
        write!(f, " [{}] {} {}", self.options.join(" "), self.words.join(" "), self.act.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_determine_plans_and_cover_each_kind() {
        for seed in [0, 7, u64::MAX] {
            assert_eq!(format!("{:?}", Plan::new(seed)), format!("{:?}", Plan::new(seed)));
        }
        let first = 1_000_003;
        let drawn: Vec<_> = (first..first + KINDS.len() as u64).map(|seed| Plan::new(seed).kind).collect();
        assert!(KINDS.iter().all(|kind| drawn.iter().any(|other| std::ptr::eq(*other, kind))));
    }

    #[test]
    fn rounds_that_failed_once_keep_their_kinds() {
        let kinds: Vec<_> = FAILED_ONCE.iter().map(|(seed, ..)| Plan::new(*seed).kind).collect();
        assert!(kinds.iter().all(|kind| kind.programs == Programs::Own));
        let disturbances: Vec<_> = kinds.iter().map(|kind| kind.disturbance).collect();
        let close = Disturbance::Act("close", When::Anytime);
        assert_eq!(disturbances, [close, Disturbance::FullDisk, Disturbance::StopAndKill, close]);
    }

    #[test]
    fn each_pair_of_programs_meets_each_disturbance_from_outside() {
        let (kill, end) = (Disturbance::Signal(Signal::SIGKILL), Disturbance::Signal(Signal::SIGTERM));
        let of_all = [kill, end, Disturbance::Pause, Disturbance::StopAndKill, Disturbance::Stutter];
        let of_all = of_all.into_iter().chain([Disturbance::FullDisk, Disturbance::TimeNamespace]);
        let meets = |programs, disturbance| {
            KINDS.iter().any(|kind| (kind.programs, kind.disturbance) == (programs, disturbance))
        };
        for disturbance in of_all {
            for programs in [Programs::Own, Programs::Perftest, Programs::Bench, Programs::Soft] {
                assert!(meets(programs, disturbance), "{disturbance:?} of {programs:?}");
            }
        }
        for programs in [Programs::Perftest, Programs::Bench, Programs::Soft] {
            assert!(meets(programs, Disturbance::FewDescriptors), "{programs:?}");
        }
    }
}
