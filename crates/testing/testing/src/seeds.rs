//! Chooses the seeds of a test, runs them on all cores, and replays a failing seed.
//!
//! - `SEED=n` replays one seed.
//! - `DOORBELL_SEEDS=n` tries n fixed seeds. Tests with fresh seeds also try n / 5 fresh seeds.
//! - `DOORBELL_SEEDS_FROM=n` with `DOORBELL_SEEDS_S=s` tries seeds from n on for s seconds, as `cargo xtask seeds`
//!   does.
//! - `DOORBELL_TRACE=n` prints the last n events of a failing seed.
//! - `DOORBELL_COMMIT=id` derives the fresh seeds from this id instead of the commit.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;

use crate::{Rng, trace};

/// Writes directly to standard error. The test harness does not capture this text, so it appears even if the test
/// succeeds.
pub fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn number(name: &str) -> Option<u64> {
    let wrong = |text: &str| -> u64 { panic!("{name} is {text:?}, allowed are whole numbers from 0 to {}", u64::MAX) };
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| wrong(&text)))
}

/// Default number of events that are printed for a failing seed.
const LAST_EVENTS: usize = 100;

/// Counts of events in a run. The counts of all seeds are added.
pub trait Tally: Default + Send {
    /// Adds the counts of another run to these counts.
    fn plus(&mut self, other: &Self);
}

/// Names of a test. The command that replays a seed contains these names.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Package of the test.
    pub package: &'static str,
    /// Name of the test program.
    pub file: &'static str,
    /// Name of the test function.
    pub name: &'static str,
}

/// Names a test of the file that uses this macro.
#[macro_export]
macro_rules! seeded_test {
    ($name:literal) => {
        $crate::seeds::Test { package: env!("CARGO_PKG_NAME"), file: env!("CARGO_CRATE_NAME"), name: $name }
    };
}

/// Numbers and kinds of the seeds that a test tries.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of seeds that are the same in each run.
    pub fixed: u64,
    /// Number of seeds that differ for each commit.
    pub fresh: u64,
    /// Seeds that failed in the past. They are tried first.
    pub stored: &'static [u64],
}

/// Returns the first fresh seed, and a description of its source.
fn fresh_base() -> (u64, String) {
    let from_git = || {
        let out =
            Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        let id = String::from_utf8(out.stdout).ok()?.trim().to_owned();
        (out.status.success() && !id.is_empty()).then(|| format!("commit {id}"))
    };
    let named = std::env::var("DOORBELL_COMMIT").ok().map(|id| format!("commit {id}"));
    let source = named
        .or_else(from_git)
        .unwrap_or_else(|| concat!("version ", env!("CARGO_PKG_VERSION"), ", since there is no git here").to_owned());
    let mixed = source.bytes().fold(0, |mixed, byte| Rng::new(mixed ^ u64::from(byte)).next());
    // The seed is short enough to type, and much larger than the fixed seeds.
    ((mixed >> 24) + (1 << 32), source)
}

struct SeedRun<T> {
    test: Test,
    failed: AtomicBool,
    met: Mutex<T>,
    tried: AtomicU64,
}

impl<T: Tally> SeedRun<T> {
    fn try_seed(&self, seed: u64, body: &(impl Fn(u64) -> T + Sync)) {
        match catch_unwind(AssertUnwindSafe(|| body(seed))) {
            Ok(tally) => {
                self.tried.fetch_add(1, Ordering::Relaxed);
                self.met.lock().ignore_poison().plus(&tally);
            }
            Err(why) => {
                // Run the failing seed again and keep its events, since a seed replays exactly.
                trace::start(number("DOORBELL_TRACE").map_or(LAST_EVENTS, |most| most as usize));
                let again = catch_unwind(AssertUnwindSafe(|| body(seed)));
                let mut text = format!("\nthe last events of seed {seed}:\n");
                let why = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied());
                trace::stop().iter().for_each(|event| text += &format!("  {event}\n"));
                text += &format!("seed {seed} failed: {}\n", why.unwrap_or("with a panic that has no text"));
                if again.is_ok() {
                    text += "THE SEED DID NOT FAIL AGAIN: something in the run does not depend on the seed alone\n";
                }
                text += &format!(
                    "replay with SEED={seed} cargo test -p {} --test {} {}\n",
                    self.test.package, self.test.file, self.test.name
                );
                if !self.failed.swap(true, Ordering::Relaxed) {
                    say(&text);
                }
            }
        }
    }

    /// Tries `count` seeds from `first` on, or fewer if `until` is reached before. The largest seed is followed by seed
    /// 0.
    fn run(&self, first: u64, count: u64, until: Option<Instant>, body: &(impl Fn(u64) -> T + Sync)) {
        let next = AtomicU64::new(0);
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !self.failed.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= count {
                            return;
                        }
                        self.try_seed(first.wrapping_add(index), body);
                    }
                });
            }
        });
    }
}

/// Runs seeds on all cores. If a seed fails, the test prints the seed with its last events, and fails. Returns the
/// counts of all runs, if at least the planned number of seeds ran.
///
/// # Panics
///
/// If a seed fails.
pub fn for_seeds<T: Tally>(test: Test, plan: Plan, body: impl Fn(u64) -> T + Sync) -> Option<T> {
    let shared =
        SeedRun { test, failed: AtomicBool::new(false), met: Mutex::new(T::default()), tried: AtomicU64::new(0) };
    let name = test.name;
    if let Some(seed) = number("SEED") {
        shared.try_seed(seed, &body);
        if !shared.failed.load(Ordering::Relaxed) {
            say(&format!("{name}: seed {seed} passed\n"));
        }
    } else if let (Some(from), Some(seconds)) = (number("DOORBELL_SEEDS_FROM"), number("DOORBELL_SEEDS_S")) {
        shared.run(from, u64::MAX, Some(Instant::now() + Duration::from_secs(seconds)), &body);
        let tried = shared.tried.load(Ordering::Relaxed);
        say(&format!("{name}: {tried} seeds from {from} on passed\n"));
    } else {
        let asked = number("DOORBELL_SEEDS");
        plan.stored.iter().for_each(|&seed| shared.try_seed(seed, &body));
        shared.run(0, asked.unwrap_or(plan.fixed), None, &body);
        let fresh = asked.map_or(plan.fresh, |asked| asked * plan.fresh / plan.fixed);
        if fresh > 0 && !shared.failed.load(Ordering::Relaxed) {
            let (base, source) = fresh_base();
            say(&format!("{name}: {fresh} fresh seeds from {base} on, derived from {source}\n"));
            shared.run(base, fresh, None, &body);
        }
    }
    assert!(!shared.failed.load(Ordering::Relaxed), "a seed failed: its last events and its replay are printed above");
    let whole = shared.tried.load(Ordering::Relaxed) >= plan.fixed + plan.fresh;
    let met = shared.met.into_inner().ignore_poison();
    whole.then_some(met)
}
