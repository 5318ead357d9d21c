//! `cargo xtask soak`: runs many processes on both links, under loss, for a long time. These are a server, clients that
//! stay (lasting clients), clients that finish or die (visitors), and pairs of perftest. The processes check every
//! payload. Memory, descriptors, threads and tables of the lasting processes must not grow.

mod judge;
mod plot;
mod worker;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell_sync::IgnorePoison as _;
use nix::sys::signal::Signal;

use crate::shell::{cargo, command, run, target};
use crate::{network, peers, place, programs};
use judge::Outcome;
use worker::{Sample, TABLES, Worker, locked};

/// Package and name of the program whose processes run.
const PROGRAM: &str = "doorbell-soak";
/// Links. The traffic of both links runs at the same time.
const LINKS: [&str; 2] = ["udp", "shm"];
/// Number of lasting clients of each link.
const LASTING: usize = 2;
/// Number of visitors of each link that run at the same time.
const VISITORS: u64 = 2;
/// Time after which a process counts as hanging. No process takes this long to start or end, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Time within which the server must notice the end of its visitors.
const TO_SETTLE: Duration = Duration::from_secs(120);
const BETWEEN_SAMPLES: Duration = Duration::from_secs(1);
const STOPPED: Duration = Duration::from_millis(200);
const BETWEEN_STOPS: Duration = Duration::from_millis(500);
const SHORTEST_WARM_UP: Duration = Duration::from_secs(5);
const LONGEST_WARM_UP: Duration = Duration::from_secs(15 * 60);
/// Minutes of traffic in the step of a test run. With start and end, the step takes a minute.
const STEP_MINUTES: f64 = 0.8;
/// Distance between the seeds of two lasting processes. The visitors use consecutive seeds in the gap after the last
/// one.
const SEEDS_APART: u64 = 1 << 32;

/// Command lines of short runs of perftest.
const PERFTEST: [&str; 4] = [
    "ib_send_bw -n 1000 -s 4096",
    "ib_write_bw -n 1000 -s 4096",
    "ib_read_bw -n 1000 -s 4096",
    "ib_atomic_lat -n 500 -A FETCH_AND_ADD",
];

/// Runs the soak for `minutes` minutes, and writes summary, samples and plot to a folder.
pub(crate) fn run_for(minutes: f64, seed: Option<u64>, out: Option<&Path>) -> Result<(), String> {
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = seed.unwrap_or_else(now_ns);
    // With the packages of the release build, the dependencies have the same features, so they are not built again.
    run(cargo(&[programs::BUILD, &["--package", PROGRAM]].concat()))?;
    // The link keeps the program even if another build replaces the built file.
    let program = place::own().join("soak");
    place::link(&target().join("release").join(PROGRAM), &program)?;
    let program = program.to_string_lossy().into_owned();
    eprintln!("soak: {minutes} minutes from seed {seed}");
    let time = Duration::from_secs_f64(minutes * 60.0);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let lanes = LINKS.iter().zip(1..).map(|(link, number)| {
            let lane = Lane::new(link, seed.wrapping_add(SEEDS_APART.wrapping_mul(number * 1000)), &program, time);
            scope.spawn(move || {
                let mut outcome = Outcome::default();
                let ended: Result<(), String> = network::apart(|| {
                    outcome = lane.run();
                    Ok(())
                });
                outcome.failures.extend(ended.err());
                outcome
            })
        });
        let lanes: Vec<_> = lanes.collect();
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Outcome::failed("a lane has panicked"))).collect()
    });
    let folder = out.map_or_else(|| place::own().join("soak-results"), Path::to_path_buf);
    let report = judge::Report { minutes, seed, outcomes };
    report.write(&folder)?;
    println!("{}", report.summary());
    let failures = report.failures();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(format!("{}\nreplay: cargo xtask soak --minutes {minutes} --seed {seed}", failures.join("\n"))),
    }
}

/// Runs the soak as a step of the test run.
pub(crate) fn step() -> Result<(), String> {
    run_for(STEP_MINUTES, None, None)
}

/// The processes of one link.
struct Lane<'a> {
    link: &'static str,
    seed: u64,
    program: &'a str,
    time: Duration,
    begun: Instant,
    /// Whether a failure has ended the run.
    is_over: AtomicBool,
    failures: Mutex<Vec<String>>,
    next_visitor: AtomicU64,
    verified: AtomicU64,
    finished: AtomicU64,
    killed: AtomicU64,
    pairs: AtomicU64,
}

impl<'a> Lane<'a> {
    fn new(link: &'static str, seed: u64, program: &'a str, time: Duration) -> Self {
        Self {
            link,
            seed,
            program,
            time,
            begun: Instant::now(),
            is_over: AtomicBool::new(false),
            failures: Mutex::new(Vec::new()),
            next_visitor: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            pairs: AtomicU64::new(0),
        }
    }

    fn fail(&self, why: &str) {
        let why = format!("{}: {why}", self.link);
        eprintln!("FAILED: {why}");
        locked(&self.failures).push(why);
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn fault(seed: u64) -> String {
        format!("drop=0.001,reorder=0.001,seed={}", seed % 1_000_000)
    }

    /// Starts a process of [`PROGRAM`] in the mode `mode`, with the seed `seed`.
    fn start(&self, name: String, mode: &str, seed: u64, port: Option<u64>) -> Result<Worker, String> {
        let mut run = command(self.program, &[mode, &seed.to_string(), &Self::fault(seed)]);
        run.args(port.map(|port| port.to_string())).env(programs::LINK_VARIABLE, self.link);
        // With one arena, all threads of a process reuse the same free memory.
        run.env("MALLOC_ARENA_MAX", "1");
        Worker::start(name, run)
    }

    fn run(&self) -> Outcome {
        let mut outcome = self.lasting().unwrap_or_else(|why| {
            self.fail(&why);
            Outcome::default()
        });
        outcome.link = self.link;
        outcome.failures.append(&mut locked(&self.failures));
        outcome.verified += self.verified.load(Ordering::Relaxed);
        outcome.finished = self.finished.load(Ordering::Relaxed);
        outcome.killed = self.killed.load(Ordering::Relaxed);
        outcome.pairs = self.pairs.load(Ordering::Relaxed);
        outcome
    }

    /// Starts the lasting processes and runs the traffic in two parts. Compares samples from the begin and the end of
    /// the second part.
    fn lasting(&self) -> Result<Outcome, String> {
        let mut workers = vec![self.start("server".to_owned(), "serve", self.seed, None)?];
        let port = workers[0].wait_for("port", PATIENCE)?;
        for number in 1..=LASTING {
            let seed = self.seed.wrapping_add(SEEDS_APART.wrapping_mul(number as u64));
            workers.push(self.start(format!("client {number}"), "stay", seed, Some(port))?);
        }
        for worker in &workers {
            worker.wait_for("verified", PATIENCE)?;
            worker.expect_all_numbers()?;
        }
        let (samples, is_done) = (Mutex::new(vec![Vec::new(); workers.len()]), AtomicBool::new(false));
        let ends = std::thread::scope(|scope| {
            scope.spawn(|| self.sample(&workers, &samples, &is_done));
            let ends = self.both_parts(&workers, port);
            is_done.store(true, Ordering::Relaxed);
            ends
        });
        // Clients end first, so that they can disconnect from a running server.
        for group in [&workers[1..], &workers[..1]] {
            group.iter().for_each(Worker::ask_to_end);
            for worker in group {
                match worker.wait(PATIENCE) {
                    Ok(status) if status.success() => {}
                    Ok(_) => self.fail(&worker.report()),
                    Err(why) => self.fail(&why),
                }
            }
        }
        let total = |name: &str| workers.iter().map(|worker| worker.value(name)).sum();
        let (verified, errors) = (total("verified"), total("errors"));
        let samples = samples.into_inner().ignore_poison();
        let names = workers.iter().map(|worker| worker.name.clone());
        let processes = match ends {
            Ok([before, after]) => {
                let processes = names.zip(samples).zip(before.into_iter().zip(after));
                processes.map(|((name, samples), ends)| judge::Lasting { name, samples, ends }).collect()
            }
            Err(why) => {
                self.fail(&why);
                Vec::new()
            }
        };
        Ok(Outcome { verified, errors, processes, ..Outcome::default() })
    }

    fn warm_up(&self) -> Duration {
        (self.time / 4).clamp(SHORTEST_WARM_UP, LONGEST_WARM_UP)
    }

    /// Runs both parts of the traffic. Returns samples of each lasting process after the first part, which is the
    /// warm-up, and after the second part. No visitor is connected at these times.
    fn both_parts(&self, workers: &[Worker], port: u64) -> Result<[Vec<Sample>; 2], String> {
        let until = self.begun + self.warm_up();
        std::thread::scope(|scope| {
            scope.spawn(|| self.fill_queues(workers, until));
            self.traffic(port, until);
        });
        let before = self.settled(workers, None)?;
        self.traffic(port, self.begun + self.time);
        let after = self.settled(workers, Some(&before))?;
        Ok([before, after])
    }

    /// Stops each lasting process for a moment, in turns, while its running peers fill its queues. With this, the
    /// queues reach their maximum size already during the warm-up.
    fn fill_queues(&self, workers: &[Worker], until: Instant) {
        for worker in workers.iter().cycle() {
            if Instant::now() >= until || self.is_over.load(Ordering::Relaxed) {
                return;
            }
            worker.stop_for(STOPPED);
            std::thread::sleep(BETWEEN_STOPS);
        }
    }

    /// Runs visitors and perftest until the instant `until`, and then waits for the processes that still run.
    fn traffic(&self, port: u64, until: Instant) {
        let goes_on = || Instant::now() < until && !self.is_over.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..VISITORS {
                scope.spawn(|| {
                    while goes_on() {
                        if let Err(why) = self.visit(port) {
                            self.fail(&why);
                        }
                    }
                });
            }
            scope.spawn(|| {
                let is_there = |line: &&str| line.split(' ').next().is_some_and(peers::has);
                for line in PERFTEST.iter().copied().filter(is_there).cycle() {
                    if !goes_on() {
                        break;
                    }
                    let number = self.pairs.fetch_add(1, Ordering::Relaxed);
                    let fault = Self::fault(self.seed.wrapping_add(number));
                    if let Err(why) = programs::pair_with_clock(line, &["--link", self.link, "--fault", &fault]) {
                        self.fail(&why);
                    }
                }
            });
        });
    }

    /// Runs one visitor, which finishes or kills itself.
    fn visit(&self, port: u64) -> Result<(), String> {
        let number = self.next_visitor.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(SEEDS_APART.wrapping_mul(100) + number);
        let visitor = self.start(format!("visitor {number}, seed {seed}"), "visit", seed, Some(port))?;
        let status = visitor.wait(PATIENCE)?;
        self.verified.fetch_add(visitor.value("verified"), Ordering::Relaxed);
        let ended = match status.signal() {
            Some(signal) if signal == Signal::SIGKILL as i32 => &self.killed,
            None if status.success() => &self.finished,
            _ => return Err(visitor.report()),
        };
        ended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until the server has noticed the end of all visitors, and the numbers of all processes are stable or back
    /// at `before`.
    ///
    /// With `before`, numbers that stay higher are no error of this function, because the report judges them.
    fn settled(&self, workers: &[Worker], before: Option<&[Sample]>) -> Result<Vec<Sample>, String> {
        let until = Instant::now() + TO_SETTLE;
        let sample = || -> Result<Vec<Sample>, String> {
            let all = workers.iter().map(|worker| worker.sample(self.begun.elapsed().as_secs_f64()));
            all.collect::<Option<_>>().ok_or_else(|| "a lasting process has ended".to_owned())
        };
        let conversations = workers[1..].iter().map(|worker| worker.value(TABLES[0])).sum::<u64>();
        let mut last = sample()?;
        loop {
            let lines: Vec<u64> = workers.iter().map(Worker::lines).collect();
            // Wait until each process has printed all its numbers once more, after the traffic has ended.
            while workers.iter().zip(&lines).any(|(worker, lines)| worker.lines() < lines + 2) {
                if workers.iter().any(|worker| worker.ended().is_some()) || Instant::now() > until + PATIENCE {
                    return Err("a lasting process has ended, or has stopped printing".to_owned());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let now = sample()?;
            let is_alone = now[0].tables[0] == conversations;
            let rests = match before {
                Some(before) => before.iter().zip(&now).all(|(before, now)| judge::grown(before, now).is_empty()),
                None => last.iter().zip(&now).all(|(last, now)| last.returning() == now.returning()),
            };
            if is_alone && rests || before.is_some() && Instant::now() > until {
                return Ok(now);
            }
            if Instant::now() > until {
                let numbers = now[0].returning();
                return Err(format!(
                    "the numbers of the server do not settle, expected {conversations} conversations: {numbers:?}"
                ));
            }
            last = now;
        }
    }

    /// Samples all processes once a second. If a process ends, the run fails.
    fn sample(&self, workers: &[Worker], samples: &Mutex<Vec<Vec<Sample>>>, is_done: &AtomicBool) {
        while !is_done.load(Ordering::Relaxed) {
            for (worker, samples) in workers.iter().zip(locked(samples).iter_mut()) {
                samples.extend(worker.sample(self.begun.elapsed().as_secs_f64()));
            }
            let is_over = self.is_over.load(Ordering::Relaxed);
            if let Some(ended) = workers.iter().find(|worker| worker.ended().is_some() && !is_over) {
                self.fail(&ended.report());
            }
            std::thread::sleep(BETWEEN_SAMPLES);
        }
    }
}
