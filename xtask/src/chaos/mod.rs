//! `cargo xtask chaos`: pairs of programs under `doorbell run`, of which one is killed, stopped, forked, deprived of
//! memory, descriptors or disk space, or ends by itself at a random time.
//!
//! A round passes if both processes end in bounded time in a way that the disturbance allows, the programs saw no wrong
//! byte, and no process, socket, name or file is left. A seed determines everything but the scheduling of the kernel.

mod place;
mod plan;
mod process;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::network;
use crate::programs::{compile, compile_with, doorbell};
use crate::shell::command;
use place::Place;
use plan::{Disturbance, End, Plan, Programs};
use process::Process;

/// Statuses of `xtask/programs/chaos.c`.
const FINISHED: i32 = 0;
const ENDED: i32 = 3;
const REFUSED: i32 = 4;
const LEFT: i32 = 7;

/// Protection against hanging: longer than any program of a round takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time after which a foreign program that only receives is asked to end: verbs tell it of no dead peer.
const PASSIVE: Duration = Duration::from_secs(5);

/// Rounds run at the same time, each in a network of its own.
const LANES: usize = 2;

/// The port of servers; each lane has a network of its own where it may.
const PORT: u16 = 17_471;

/// The programs of a run.
struct Built {
    chaos: String,
    clock: String,
}

/// Runs this many rounds, from this seed on.
pub(crate) fn run(seed: Option<u64>, rounds: u64) -> Result<(), String> {
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let first = seed.unwrap_or_else(now_ns);
    let built = Built {
        chaos: compile("cc", "chaos", &["-Wl,--as-needed", "-libverbs", "-lrdmacm"])?,
        clock: compile_with("cc", "clock", &["-shared", "-fPIC"], &["-ldl"])?,
    };
    eprintln!("chaos: {rounds} rounds from seed {first}");
    let (next, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    // Without a network of its own a lane would meet the ports and names of the other.
    let lanes = if crate::peers::is_root() { LANES } else { 1 };
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (built, next, failures, done) = (&built, &next, &failures, &done);
            scope.spawn(move || {
                let ended: Result<(), String> = network::apart(|| {
                    let place = Place::new(lane)?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= rounds {
                            break;
                        }
                        let plan = Plan::new(first.wrapping_add(number));
                        eprintln!("chaos: round {number}, seed {}: {plan}", plan.seed);
                        if let Err(why) = round(&plan, built, &place) {
                            let replay = format!("replay: cargo xtask chaos --seed {} --rounds 1", plan.seed);
                            let why = format!("round {number}, seed {}: {plan}: {why}\n{replay}", plan.seed);
                            eprintln!("FAILED: {why}");
                            failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(why);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                });
                if let Err(why) = ended {
                    failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(why);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    eprintln!("chaos: {} of {rounds} rounds, {} failures", done.into_inner(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs one pair. An error has the output of both programs and a backtrace of each that crashed or hangs.
fn round(plan: &Plan, built: &Built, place: &Place) -> Result<(), String> {
    place.begin(plan)?;
    let mut pair = start(plan, built, place)?;
    let outcome = disturb(plan, &mut pair).and_then(|()| judge(plan, &mut pair));
    let said = |pair: &Pair| format!("\n{}\n{}", pair.disturbed.report(), pair.other.report());
    let outcome = outcome.map_err(|why| format!("{why}{}", said(&pair)));
    pair.disturbed.kill();
    pair.other.kill();
    outcome.and_then(|()| place.check(PATIENCE).map_err(|why| format!("{why}{}", said(&pair))))
}

/// The processes of a round.
struct Pair {
    disturbed: Process,
    other: Process,
}

fn start(plan: &Plan, built: &Built, place: &Place) -> Result<Pair, String> {
    let ends = match plan.kind.programs {
        Programs::Own => {
            let (one, other) = UnixStream::pair().map_err(|error| format!("no pair of sockets: {error}"))?;
            let with = |link: UnixStream, is_disturbed: bool| {
                let is_server = is_disturbed == plan.disturbs_server;
                let mut words =
                    vec![built.chaos.clone(), format!("port={PORT}"), format!("server={}", is_server as u8)];
                words.extend(plan.words.iter().cloned());
                words.extend(plan.act.iter().filter(|_| is_disturbed).cloned());
                let run = on_doorbell(plan, built, place, is_disturbed, &words);
                let link = Stdio::from(OwnedFd::from(link));
                place.start(if is_server { "server" } else { "client" }, run, &built.chaos, link)
            };
            [with(one, true)?, with(other, false)?]
        }
        _ => {
            let [server, client] = foreign(plan);
            let run = |words: &[String], name| {
                let run = on_doorbell(plan, built, place, (name == "server") == plan.disturbs_server, words);
                place.start(name, run, &words[0], Stdio::null())
            };
            let mut server = run(&server, "server")?;
            place.wait_until_listening(&mut server, PORT, PATIENCE)?;
            let client = run(&client, "client")?;
            if plan.disturbs_server { [server, client] } else { [client, server] }
        }
    };
    let [disturbed, other] = ends;
    Ok(Pair { disturbed, other })
}

/// Words of a foreign server and its client.
fn foreign(plan: &Plan) -> [Vec<String>; 2] {
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let bench = doorbell().to_string_lossy().into_owned();
    match plan.kind.programs {
        Programs::Bench => [
            words(format!("{bench} bench lat -d doorbell0 -D 30 --listen 127.0.0.1:{PORT}")),
            words(format!("{bench} bench lat -d doorbell0 -D 30 127.0.0.1:{PORT}")),
        ],
        Programs::Rping => {
            [words(format!("rping -s -V -p {PORT}")), words(format!("rping -c -V -a 127.0.0.1 -p {PORT}"))]
        }
        Programs::Perftest | Programs::Own => {
            let line = plan.words.join(" ");
            [words(format!("{line} -p {PORT}")), words(format!("{line} -p {PORT} 127.0.0.1"))]
        }
    }
}

/// `doorbell run` of a program, with what the plan puts around the process that is disturbed.
fn on_doorbell(plan: &Plan, built: &Built, place: &Place, is_disturbed: bool, words: &[String]) -> Command {
    let mut options = plan.options.clone();
    let disturbance = is_disturbed.then_some(plan.kind.disturbance);
    if disturbance == Some(Disturbance::FullDisk) {
        options.extend(["--pcap".to_owned(), place.full().join("%p.pcap").to_string_lossy().into_owned()]);
    }
    let mut run = match disturbance {
        Some(Disturbance::TimeNamespace) if place.is_own() => {
            let mut apart = command("unshare", &["--time", "--monotonic", "1000000", "--"]);
            apart.arg(doorbell());
            apart
        }
        _ => command(doorbell(), &[]),
    };
    run.arg("run").args(&options).arg("--").args(words);
    match disturbance {
        Some(Disturbance::FullDisk) => run.env(place::COUNTERS_VARIABLE, place.full().join("counters")),
        _ => run.env(place::COUNTERS_VARIABLE, place.counters()),
    };
    if disturbance == Some(Disturbance::Clock) {
        run.env("LD_PRELOAD", &built.clock);
    }
    run
}

/// Brings the disturbance about, if it comes from outside.
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
            // A foreign client gives up a connection that is set up with a stopped server, as it may.
            std::thread::sleep(if is_foreign { plan.after + Duration::from_millis(500) } else { plan.after });
            pair.disturbed.signal(Signal::SIGSTOP)?;
            std::thread::sleep(plan.pause);
            pair.disturbed.signal(Signal::SIGCONT)
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

/// Waits until both processes have ended, and compares how with what the plan allows.
fn judge(plan: &Plan, pair: &mut Pair) -> Result<(), String> {
    let disturbed = pair.disturbed.wait(PATIENCE)?;
    let end = plan.kind.end;
    if !is_allowed(end, disturbed) {
        return Err(format!("the disturbed process ended with {disturbed}, allowed is {end:?}"));
    }
    if plan.kind.programs != Programs::Own {
        return judge_foreign(end, pair);
    }
    let other = pair.other.wait(PATIENCE)?;
    let is_killed = plan.kind.disturbance == Disturbance::KillBoth && is_allowed(End::Dies(Signal::SIGKILL), other);
    let allowed: &[i32] = if end == End::Finishes { &[FINISHED] } else { &[FINISHED, ENDED] };
    if is_killed || other.code().is_some_and(|code| allowed.contains(&code)) {
        return Ok(());
    }
    Err(format!("the other process ended with {other}, allowed are the statuses {allowed:?}"))
}

/// A foreign program whose peer has died ends with some error; one that only receives ends when it is asked to.
fn judge_foreign(end: End, pair: &mut Pair) -> Result<(), String> {
    let status = match pair.other.wait_at_most(PASSIVE) {
        _ if end == End::Finishes => pair.other.wait(PATIENCE)?,
        Some(status) => status,
        None => {
            pair.other.signal(Signal::SIGTERM)?;
            pair.other.wait(PATIENCE)?
        }
    };
    if end == End::Finishes && !status.success() {
        return Err(format!("the other process ended with {status}, although its peer was only stopped for a while"));
    }
    match process::crash(status) {
        Some(signal) => Err(format!("the other process crashed by {signal}")),
        None => Ok(()),
    }
}

fn is_allowed(end: End, status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    match end {
        End::Finishes => status.success(),
        End::Leaves => status.code() == Some(LEFT),
        End::Dies(signal) => status.signal() == Some(signal as i32) || matches!(status.code(), Some(FINISHED | ENDED)),
        End::Fails => status.code() == Some(ENDED),
        End::MayFail => matches!(status.code(), Some(FINISHED | ENDED | REFUSED)),
    }
}

/// The folder of a run's rounds.
fn home(lane: usize) -> std::path::PathBuf {
    crate::place::own().join(format!("chaos-{lane}"))
}

/// Makes a folder that is not there.
fn make(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}
