//! `cargo xtask chaos`: rounds with a pair of programs on software RNICs. At a random time one of the two programs
//! is killed, stopped or forked, loses memory, descriptors or disk space, or ends by itself. The programs are a C
//! program of this repository, perftest, `rping`, and `doorbell bench` with and without `doorbell run`.
//!
//! A round passes if both processes end in bounded time and in a way that the disturbance allows. The programs must
//! receive no wrong byte, and no process, socket, name or file may be left. A seed determines everything except the
//! scheduling of the kernel.

mod judge;
mod plan;
mod process;
mod surroundings;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell_sync::IgnorePoison as _;
use nix::sys::signal::Signal;

use crate::network;
use crate::programs::{LINK_VARIABLE, compile, compile_with, doorbell};
use crate::shell::command;
use plan::{Disturbance, End, FAILED_ONCE, Plan, Programs};
use process::Process;
use surroundings::Surroundings;

/// Time after which a program of a round counts as hanging. No program takes this long, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time during which a test run begins new rounds. At the end of this time, [`LANES`] rounds may still run.
const BUDGET: Duration = Duration::from_secs(60);

/// Number of rounds that run at the same time, each in a separate network.
const LANES: usize = 2;

/// Port of the servers. All lanes can use it, because each lane has a separate network if the user is root.
const PORT: u16 = 17_471;

/// Number of stops of a process that stutters, and the time of each stop and of each pause between two stops.
const STOPS: u32 = 50;
const SHORT_STOP: Duration = Duration::from_millis(2);

/// The programs of a run.
struct Built {
    chaos: String,
    clock: String,
}

/// Seeds of the rounds of one run.
struct Seeds {
    /// Seeds to try first.
    known: Vec<u64>,
    /// Seed of the first round after the `known` seeds. Each further round takes the next number.
    first: u64,
    rounds: u64,
    /// Time from the start after which no round begins.
    budget: Option<Duration>,
}

impl Seeds {
    /// Returns the seed of a round, or `None` if no further round may begin.
    fn of_round(&self, number: u64, since: Instant) -> Option<u64> {
        if number >= self.rounds || self.budget.is_some_and(|budget| since.elapsed() >= budget) {
            return None;
        }
        let known = self.known.get(number as usize).copied();
        Some(known.unwrap_or_else(|| self.first.wrapping_add(number - self.known.len() as u64)))
    }
}

/// Runs `rounds` rounds. The first round has the seed `seed`, or a fresh seed.
pub(crate) fn run(seed: Option<u64>, rounds: u64) -> Result<(), String> {
    run_all(&Seeds { known: Vec::new(), first: seed.unwrap_or_else(fresh), rounds, budget: None })
}

/// Runs the rounds that failed once, and then rounds from a fresh seed on, until [`BUDGET`] has passed.
pub(crate) fn step() -> Result<(), String> {
    let known = FAILED_ONCE.iter().map(|(seed, ..)| *seed).collect();
    run_all(&Seeds { known, first: fresh(), rounds: u64::MAX, budget: Some(BUDGET) })
}

fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn run_all(seeds: &Seeds) -> Result<(), String> {
    let built = Built {
        chaos: compile("cc", "chaos", &["-Wl,--as-needed", "-libverbs", "-lrdmacm"])?,
        clock: compile_with("cc", "clock", &["-shared", "-fPIC"], &["-ldl"])?,
    };
    eprintln!("chaos: rounds from seed {}", seeds.first);
    let (begun, next, done, failures) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let fail = |why| failures.lock().ignore_poison().push(why);
    let one_lane = |lane| -> Result<(), String> {
        let surroundings = Surroundings::new(home(lane))?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = seeds.of_round(number, begun) else { return Ok(()) };
            let plan = Plan::new(seed);
            eprintln!("chaos: round {number}, seed {seed}: {plan}");
            if let Err(why) = round(&plan, &built, &surroundings) {
                let replay = format!("replay: cargo xtask chaos --seed {seed} --rounds 1");
                let why = format!("round {number}, seed {seed}: {plan}: {why}\n{replay}");
                eprintln!("FAILED: {why}");
                fail(why);
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    // Without separate networks, the ports and names of two lanes would collide.
    let lanes = if crate::peers::is_root() { LANES } else { 1 };
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (one_lane, fail) = (&one_lane, &fail);
            scope.spawn(move || network::apart(|| one_lane(lane)).err().map(fail));
        }
    });
    let failures = failures.into_inner().ignore_poison();
    eprintln!("chaos: {} rounds, {} failures", done.into_inner(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs one pair of programs. An error contains the output of both programs, and a backtrace of each program that
/// crashed or hangs.
fn round(plan: &Plan, built: &Built, surroundings: &Surroundings) -> Result<(), String> {
    surroundings.begin(plan)?;
    let mut pair = start(plan, built, surroundings)?;
    let outcome = disturb(plan, &mut pair).and_then(|()| judge::judge(plan, &mut pair, PATIENCE));
    let said = |pair: &Pair| format!("\n{}\n{}", pair.disturbed.report(), pair.other.report());
    let outcome = outcome.map_err(|why| format!("{why}{}", said(&pair)));
    pair.disturbed.kill();
    pair.other.kill();
    outcome.and_then(|()| surroundings.check(PATIENCE).map_err(|why| format!("{why}{}", said(&pair))))
}

/// The processes of a round.
struct Pair {
    disturbed: Process,
    other: Process,
}

fn start(plan: &Plan, built: &Built, surroundings: &Surroundings) -> Result<Pair, String> {
    let ends = match plan.kind.programs {
        Programs::Own => {
            let (one, other) = UnixStream::pair().map_err(|error| format!("no pair of sockets: {error}"))?;
            let with = |link: UnixStream, is_disturbed: bool| {
                let is_server = is_disturbed == plan.disturbs_server;
                let mut words =
                    vec![built.chaos.clone(), format!("port={PORT}"), format!("server={}", is_server as u8)];
                words.extend(plan.words.iter().cloned());
                words.extend(plan.act.iter().filter(|_| is_disturbed).cloned());
                let run = on_doorbell(plan, built, surroundings, is_disturbed, &words);
                let link = Stdio::from(OwnedFd::from(link));
                surroundings.start(if is_server { "server" } else { "client" }, run, &built.chaos, link)
            };
            [with(one, true)?, with(other, false)?]
        }
        _ => {
            let [server, client] = foreign(plan);
            let run = |words: &[String], name| {
                let run = on_doorbell(plan, built, surroundings, (name == "server") == plan.disturbs_server, words);
                surroundings.start(name, run, &words[0], Stdio::null())
            };
            let mut server = run(&server, "server")?;
            surroundings.wait_until_listening(&mut server, PORT, PATIENCE)?;
            let client = run(&client, "client")?;
            if plan.disturbs_server { [server, client] } else { [client, server] }
        }
    };
    let [disturbed, other] = ends;
    Ok(Pair { disturbed, other })
}

/// Returns the command lines of a foreign server and of its client.
fn foreign(plan: &Plan) -> [Vec<String>; 2] {
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let bench = doorbell().to_string_lossy().into_owned();
    match plan.kind.programs {
        Programs::Bench | Programs::Soft => {
            let device = if plan.kind.programs == Programs::Bench { " -d doorbell0" } else { "" };
            let seconds = if matches!(plan.kind.end, End::Finishes | End::Ends) { 1 } else { 30 };
            let line = format!("{bench} bench lat{device} -D {seconds}");
            let client = format!("{line} -s 16,5000 --verify 127.0.0.1:{PORT}");
            [words(format!("{line} --listen 127.0.0.1:{PORT}")), words(client)]
        }
        Programs::Rping => {
            [words(format!("rping -s -V -p {PORT}")), words(format!("rping -c -V -a 127.0.0.1 -p {PORT}"))]
        }
        Programs::Perftest | Programs::Own => {
            let line = plan.words.join(" ");
            [words(format!("{line} -p {PORT}")), words(format!("{line} -p {PORT} 127.0.0.1"))]
        }
    }
}

/// Returns the command of a program, mostly with `doorbell run`. The disturbed process gets the surroundings of the
/// plan, such as a full disk.
fn on_doorbell(
    plan: &Plan,
    built: &Built,
    surroundings: &Surroundings,
    is_disturbed: bool,
    words: &[String],
) -> Command {
    let disturbance = is_disturbed.then_some(plan.kind.disturbance);
    let capture = match disturbance {
        Some(Disturbance::FullDisk) => {
            vec!["--pcap".to_owned(), surroundings.full().join("%p.pcap").to_string_lossy().into_owned()]
        }
        _ => Vec::new(),
    };
    let line = match plan.kind.programs {
        Programs::Soft => [words, &capture].concat(),
        _ => {
            let run = [doorbell().to_string_lossy().into_owned(), "run".to_owned()];
            [&run[..], &plan.options, &capture, &["--".to_owned()], words].concat()
        }
    };
    let mut run = match disturbance {
        Some(Disturbance::TimeNamespace) if surroundings.is_own() => {
            let mut apart = command("unshare", &["--time", "--monotonic", "1000000", "--"]);
            apart.args(line);
            apart
        }
        _ => {
            let mut run = command(&line[0], &[]);
            run.args(&line[1..]);
            run
        }
    };
    if plan.kind.programs == Programs::Soft {
        run.env(LINK_VARIABLE, &plan.options[1]);
    }
    match disturbance {
        Some(Disturbance::FullDisk) => run.env(surroundings::COUNTERS_VARIABLE, surroundings.full().join("counters")),
        _ => run.env(surroundings::COUNTERS_VARIABLE, surroundings.counters()),
    };
    if disturbance == Some(Disturbance::Clock) {
        run.env("LD_PRELOAD", &built.clock);
    }
    run
}

/// Disturbs a process of the pair, if the disturbance of the plan comes from outside the process.
fn disturb(plan: &Plan, pair: &mut Pair) -> Result<(), String> {
    let is_foreign = plan.kind.programs != Programs::Own;
    match plan.kind.disturbance {
        Disturbance::Signal(signal) => {
            std::thread::sleep(plan.after);
            pair.disturbed.signal(signal)
        }
        Disturbance::KillBoth => {
            std::thread::sleep(plan.after);
            pair.disturbed.signal(Signal::SIGKILL)?;
            pair.other.signal(Signal::SIGKILL)
        }
        Disturbance::Pause => {
            // A foreign client may give up if its server is stopped during the set-up of the connection, so wait
            // longer.
            std::thread::sleep(if is_foreign { plan.after + Duration::from_millis(500) } else { plan.after });
            pair.disturbed.signal(Signal::SIGSTOP)?;
            std::thread::sleep(plan.pause);
            pair.disturbed.signal(Signal::SIGCONT)
        }
        Disturbance::Stutter => {
            std::thread::sleep(plan.after);
            for _ in 0..STOPS {
                pair.disturbed.signal(Signal::SIGSTOP)?;
                std::thread::sleep(SHORT_STOP);
                pair.disturbed.signal(Signal::SIGCONT)?;
                std::thread::sleep(SHORT_STOP);
            }
            Ok(())
        }
        Disturbance::FewDescriptors => {
            std::thread::sleep(plan.after);
            pair.disturbed.limit_descriptors()
        }
        Disturbance::StopAndKill => {
            std::thread::sleep(plan.after);
            pair.disturbed.signal(Signal::SIGSTOP)?;
            std::thread::sleep(plan.pause);
            pair.disturbed.signal(Signal::SIGKILL)
        }
        _ => Ok(()),
    }
}

/// Returns the folder for the rounds of a lane.
fn home(lane: usize) -> std::path::PathBuf {
    crate::place::own().join(format!("chaos-{lane}"))
}

/// Creates a folder if it does not exist.
fn make(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_seeds_come_first_and_no_round_begins_after_the_budget() {
        let seeds = |budget| Seeds { known: vec![7, 9], first: u64::MAX, rounds: 5, budget };
        let all = |seeds: &Seeds| (0..9).map_while(|number| seeds.of_round(number, Instant::now())).collect::<Vec<_>>();
        assert_eq!(all(&seeds(None)), [7, 9, u64::MAX, 0, 1]);
        assert_eq!(all(&seeds(Some(Duration::from_secs(1000)))).len(), 5);
        assert_eq!(all(&seeds(Some(Duration::ZERO))), [0; 0]);
    }
}
