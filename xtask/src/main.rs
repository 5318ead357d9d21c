//! Developer chores: `cargo xtask test` runs all tests with everything they need.
#![forbid(unsafe_code)]

mod bindings;
mod browser;
mod chaos;
mod cores;
mod deep;
mod digests;
mod dist;
mod figures;
mod fuzz;
mod house;
mod network;
mod packets;
mod peers;
mod place;
mod programs;
mod prose;
mod regressions;
mod repeat;
mod seeds;
mod shell;
mod soak;
mod steps;
mod test;
mod two_machines;
mod versus;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};

use crate::steps::Group;

/// Developer chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks and tests everything. In CI (CI=true) nothing may be left out.
    ///
    /// With names it runs only those steps, after the builds that they need.
    Test {
        /// Steps: a name as the summary prints it, or a part of names.
        #[arg(value_name = "STEP", conflicts_with = "fast")]
        steps: Vec<String>,
        /// Leaves out the checks that need other programs (tshark, scapy, ip, ethtool, chromium, perftest, qemu).
        #[arg(long)]
        fast: bool,
    },
    /// Runs one step of `test`, or several or all of them, many times, and counts the passes of each.
    ///
    /// Each run is a process of its own. The log of a failed run has the end of its output, the seeds in it, and
    /// the backtraces of programs that died.
    Repeat(repeat::Repeat),
    /// Runs tools that look deeper than tests: sanitizers, valgrind, loom, mutants, and checks of dependencies.
    ///
    /// The parts take from seconds to hours; docs/deep.md has the results.
    Deep(deep::Deep),
    /// Has other programs check captured packets, as `test` does with those that the tests write.
    Packets {
        /// Holds captures, and beside each what is expected of it.
        directory: PathBuf,
    },
    /// Only runs the command end to end, as `test` does.
    EndToEnd,
    /// Runs the whole quick study between two machines, and among four of which one loses packets, and judges it.
    ///
    /// The machines are network namespaces. It says how long the study takes beside one on loopback.
    Hosts {
        /// Keeps the records and reports here [default: `xtask/hosts` in the target directory]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Only opens a report in a browser, as `test` does.
    Report,
    /// Only runs unmodified verbs programs on the software RNIC, as `test` does.
    Programs {
        /// Runs only these: C programs of `xtask/programs`, or programs of docs/programs.md (fio, qperf, ...). `ucx`
        /// selects all programs over UCX, and `box` perftest through a middlebox. `rdma_cm` selects librdmacm's
        /// examples, perftest with `-R` and rdma-core's tests.
        #[arg(value_name = "NAME")]
        only: Vec<String>,
        /// Runs nothing, but writes the commands into docs/programs.md anew, with the figures that it names.
        #[arg(long, conflicts_with = "only")]
        write_docs: bool,
    },
    /// Measures unmodified verbs programs beside `doorbell bench`, libfabric, UCX and the kernel's limit.
    ///
    /// Everything runs once in each round, on loopback, and each line of the table is the median of the
    /// rounds. It says something on a machine that does nothing else.
    ///
    /// With --against or --against-revision it measures two builds of Doorbell instead, this one and another:
    /// `doorbell bench` in turns, and instructions per message under valgrind.
    Compare {
        /// How often everything is measured [default: 5; of two builds 15, which is the least]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: Option<u32>,
        /// Measures the programs of docs/programs.md instead, beside TCP, and writes the page's tables anew. The
        /// figures go to --out, by default `programs.json` below today's date in `benchmarks`.
        #[arg(long, conflicts_with_all = ["against", "against_revision", "instructions"])]
        programs: bool,
        /// Measures latency and rate in turns without and with N programs (1 to 64) that spin and use processor time.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64),
            conflicts_with_all = ["programs", "against", "against_revision"])]
        busy: Option<u32>,
        /// Writes each figure of each round to this file, as JSON.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Another build of `doorbell`, which is measured in turns with this one.
        #[arg(long, value_name = "BINARY")]
        against: Option<PathBuf>,
        /// Another revision, which is built: its instructions are counted, and without --against its `doorbell`
        /// is measured.
        #[arg(long, value_name = "REVISION")]
        against_revision: Option<String>,
        /// Only counts instructions.
        #[arg(long, requires = "against_revision")]
        instructions: bool,
    },
    /// Runs the simulation of RNICs whose objects come and go, beyond the seeds that `test` tries.
    ///
    /// A seed that fails is printed with its last events and the command that replays it.
    #[command(group(ArgGroup::new("which").args(["hours", "from"]).required(true).multiple(true)))]
    Seeds {
        /// Tries seeds for so long, a fraction included.
        #[arg(long, value_parser = |text: &str| number(text, 0.0003, 8760.0))]
        hours: Option<f64>,
        /// Starts with this seed; without --hours it is the only one.
        #[arg(long, value_name = "SEED", value_parser = seed)]
        from: Option<u64>,
    },
    /// Runs pairs of verbs programs of which one is killed, stopped, forked, or loses memory, descriptors or disk
    /// space.
    ///
    /// A round that fails prints its seed, the output of both programs, and the stacks of a process that crashed or
    /// hangs. Consecutive seeds pass through all kinds of disturbance.
    Chaos {
        /// Seed of the first round; each further round takes the next number [default: one never tried before]
        #[arg(long, value_name = "SEED", value_parser = seed)]
        seed: Option<u64>,
        /// Number of rounds.
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rounds: u64,
    },
    /// Runs servers, lasting clients, clients that finish or die, and perftest on both links under loss, for minutes.
    ///
    /// Every payload is checked. It fails on an error, on an unexpected end, and if memory, descriptors, threads or
    /// tables of a lasting process grow after the warm-up.
    Soak {
        /// Time of the traffic, a fraction included.
        #[arg(long, value_parser = |text: &str| number(text, 0.2, 100_000.0))]
        minutes: f64,
        /// Seed of faults and clients [default: one never tried before]
        #[arg(long, value_name = "SEED", value_parser = seed)]
        seed: Option<u64>,
        /// Writes summary, samples and plot here [default: the run's folder, which stays if the run fails]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Makes an archive with the command and the library that it preloads.
    Dist {
        /// Directory of the archive [default: `dist` in the target directory]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Runs a command in a virtual machine with Linux's rdma_rxe, whose device is `rxe0`.
    ///
    /// It finds `doorbell` and `libdoorbell_ibverbs.so` in its PATH, and what it writes to `/host` can
    /// be kept with `--keep`. Its output, standard error included, and its exit status are returned.
    Vm {
        /// Another program that the command needs.
        #[arg(long, value_name = "PATH")]
        file: Vec<PathBuf>,
        /// Copies what the command left in `/host` to this folder.
        #[arg(long, value_name = "FOLDER")]
        keep: Option<PathBuf>,
        /// Time limit of the machine in seconds.
        #[arg(long, default_value_t = 600)]
        limit_s: u64,
        /// The command, and its arguments; one word alone is a line for its shell.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Only runs what `test` runs in that machine.
    Guest {
        /// Only the steps whose names contain this.
        only: Option<String>,
    },
    /// Runs only the checks of `test` between two machines, which are network namespaces.
    Machines {
        /// Only the steps whose names contain this.
        only: Option<String>,
    },
    /// Captures anew what rdma_rxe and our RNIC send each other, which the tests of `wire` and `rnic` read.
    CaptureRxe,
    /// Measures perftest on rdma_rxe and on the software RNIC, and our bench beside perftest, in that machine.
    ///
    /// It wants a machine that does nothing else. The table of medians and ratios goes to standard output and,
    /// with the raw figures, to a folder.
    Ratios {
        /// How often each is measured, in turn.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Folder of the results [default: `xtask/ratios` in the target directory]
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// Runs fuzz targets under libFuzzer and minimizes the corpora in the repository. A corpus keeps the fewest
    /// inputs that reach all code that its inputs and the found ones reach. Inputs with a given name stay.
    ///
    /// A corpus holds 256 inputs and 64 KiB at most: the smallest of them, and all that have a name.
    Fuzz {
        /// Only this one [default: all, one after the other]
        target: Option<String>,
        /// How long each runs, a fraction included.
        #[arg(long, default_value_t = 5.0, value_parser = |text: &str| number(text, 0.01, 100_000.0))]
        minutes: f64,
    },
    /// Brings defects that were mended back, one at a time, and checks that the tests named for them fail.
    ///
    /// Each is a patch in `regressions`, applied to a clone of HEAD. `test` only checks that they still apply.
    Regressions {
        /// Only these: names of files, without `.patch`.
        names: Vec<String>,
    },
    /// Checks the language of comments, error texts and pages, and the titles of commits, as `test` does.
    ///
    /// Each part of the tree has a stored number of findings. `--lower` only lowers it.
    Prose {
        /// Prints the findings of these parts: names of crates, `xtask`, `docs`, `README.md`.
        #[arg(long, value_name = "PART")]
        list: Vec<String>,
        /// Stores the present numbers that are lower than the stored ones.
        #[arg(long)]
        lower: bool,
    },
    /// Prints the crates with their arrows, circles between modules, and long files, and fails on new ones.
    ///
    /// `test` does this too. The list of violations that are still allowed is `xtask/src/house/house.toml`.
    House(house::Options),
    /// Generates the C layouts of libibverbs and librdmacm anew from rdma-core's headers, with libclang.
    Bindings,
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    place::own(); // first removes the remains of killed runs
    place::close(run(command))
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Test { fast, steps } if steps.is_empty() => test::everything(fast),
        Command::Test { steps, .. } => test::some(&steps),
        Command::Repeat(repeat) => ended(repeat.run()),
        Command::Deep(deep) => ended(deep.run()),
        Command::Packets { directory } => test::packets(&directory),
        Command::EndToEnd => test::group(Group::Machines, None),
        Command::Hosts { out } => ended(two_machines::hosts(out.as_deref())),
        Command::Report => test::group(Group::Report, None),
        Command::Programs { write_docs: true, .. } => ended(programs::page::write()),
        Command::Programs { only, .. } => test::programs(&only),
        Command::Compare { rounds, out, programs: true, .. } => {
            ended(test::measure(rounds.unwrap_or(5), out.as_deref()))
        }
        Command::Compare { rounds, busy, out, against: None, against_revision: None, .. } => {
            ended(programs::compare(rounds.unwrap_or(5), busy, out.as_deref()))
        }
        Command::Compare { rounds, out, against: binary, against_revision: revision, instructions, .. } => {
            let rounds = rounds.unwrap_or(versus::LEAST_ROUNDS);
            if rounds < versus::LEAST_ROUNDS {
                eprintln!("--rounds is {rounds}, allowed is {} or more for two builds", versus::LEAST_ROUNDS);
                return ExitCode::from(2);
            }
            let against = versus::Against { binary, revision, rounds, only_instructions: instructions };
            ended(versus::compare(&against, out.as_deref()))
        }
        Command::Dist { out } => ended(dist::build(out.as_deref()).map(|archive| println!("{}", archive.display()))),
        Command::Chaos { seed, rounds } => {
            peers::install();
            ended(programs::build().and_then(|()| chaos::run(seed, rounds)))
        }
        Command::Soak { minutes, seed, out } => {
            ended(programs::build().and_then(|()| soak::run_for(minutes, seed, out.as_deref())))
        }
        Command::Seeds { hours, from } => ended(seeds::try_for(hours, from)),
        Command::CaptureRxe => ended(programs::build().and_then(|()| vm::capture())),
        Command::Ratios { rounds, out } => {
            let out = out.unwrap_or_else(|| shell::target().join("xtask").join("ratios"));
            let alone = || programs::build().and_then(|()| place::measuring());
            ended(alone().and_then(|_alone| vm::ratios(rounds, &out)))
        }
        Command::Guest { only } => test::group(Group::Guests, only.as_deref()),
        Command::Machines { only } => test::group(Group::Machines, only.as_deref()),
        Command::Vm { file, keep, limit_s, command } => vm(file, keep, limit_s, &command),
        Command::Fuzz { target, minutes } => ended(fuzz::fuzz(target.as_deref(), minutes)),
        Command::Regressions { names } => ended(regressions::judge(&names)),
        Command::Prose { list, lower } => ended(prose::run(&list, lower)),
        Command::House(options) => ended(house::run(&options)),
        Command::Bindings => {
            peers::install_for_bindings();
            ended(bindings::generate().and_then(|()| bindings::check_layout()))
        }
    }
}

/// A number within bounds; a fraction is one too.
fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("allowed are numbers from {least} to {most}")),
    }
}

/// A seed of the simulations.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("allowed are whole numbers from 0 to {}", u64::MAX))
}

fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn vm(file: Vec<PathBuf>, keep: Option<PathBuf>, limit_s: u64, command: &[String]) -> ExitCode {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    let script = match command {
        [line] => line.clone(),
        words => words.iter().map(quoted).collect::<Vec<_>>().join(" "),
    };
    let mut guest = vm::Guest::new(Duration::from_secs(limit_s));
    let named =
        file.into_iter().map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path));
    guest.files.extend(named);
    let ended = vm::missing().map_or(Ok(()), Err).and_then(|()| programs::build()).and_then(|()| guest.run(&script));
    let kept = ended.and_then(|ended| match &keep {
        None => Ok(ended.status),
        Some(folder) => ended.keep(folder).map(|()| ended.status),
    });
    match kept {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_number_out_of_bounds_is_rejected_with_the_range() {
        assert_eq!(number("0.2", 0.01, 100.0), Ok(0.2));
        assert_eq!(number("100", 0.01, 100.0), Ok(100.0));
        for text in ["", "0", "-1", "100.1", "NaN", "inf", "5m"] {
            assert_eq!(number(text, 0.01, 100.0), Err("allowed are numbers from 0.01 to 100".to_owned()), "{text}");
        }
    }
    #[test]
    fn seeds_are_whole_numbers_and_some_are_asked_for() {
        let parse = |arguments: &str| Arguments::try_parse_from(format!("xtask seeds {arguments}").split_whitespace());
        for good in ["--from 0", "--from 18446744073709551615", "--hours 0.001", "--hours 8760 --from 7"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (wrong, why) in [
            ("", "<--hours <HOURS>|--from <SEED>>"),
            ("--from -1", "'-1'"),
            ("--from=-1", "allowed are whole numbers from 0 to 18446744073709551615"),
            ("--from 1.5", "allowed are whole numbers from 0 to 18446744073709551615"),
            ("--from 18446744073709551616", "allowed are whole numbers from 0 to 18446744073709551615"),
            ("--hours 0", "allowed are numbers from 0.0003 to 8760"),
            ("--hours ever", "allowed are numbers from 0.0003 to 8760"),
        ] {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
