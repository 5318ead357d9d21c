//! Developer tasks. `cargo xtask test` runs all checks and tests.
#![forbid(unsafe_code)]

mod action;
mod bindings;
mod browser;
mod chaos;
mod cores;
mod deep;
mod digests;
mod dist;
mod figures;
mod fuzz;
mod guide;
mod house;
mod instructions;
mod journeys;
mod network;
mod packages;
mod packets;
mod peers;
mod place;
mod profile;
mod programs;
mod prose;
mod regressions;
mod repeat;
mod seeds;
mod shell;
mod site;
mod soak;
mod steps;
mod test;
mod two_machines;
mod versus;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};

use crate::steps::Group;

/// Developer tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs all checks and tests. In CI (CI=true) a step that cannot run is a failure.
    ///
    /// With names, runs only these steps, after the builds that they need.
    Test {
        /// Steps: a name as the summary prints it, or a part of names.
        #[arg(value_name = "STEP", conflicts_with = "fast")]
        steps: Vec<String>,
        /// Skips the checks that need other programs (tshark, scapy, ip, ethtool, chromium, perftest, qemu).
        #[arg(long)]
        fast: bool,
    },
    /// Runs one, several or all steps of `test` many times, and counts the passes of each.
    ///
    /// Each run is a separate process. The log of a failed run has the end of its output, the seeds that it printed,
    /// and the backtraces of crashed programs.
    Repeat(repeat::Repeat),
    /// Runs tools that find defects which tests miss: sanitizers, valgrind, loom, mutants, and checks of dependencies.
    ///
    /// The parts take from seconds to hours; docs/deep.md has the results.
    Deep(deep::Deep),
    /// Checks captured packets with tshark and scapy, as `test` does with the captures of its tests.
    Packets {
        /// Directory of captures. Each `NAME.pcap` needs a `NAME.expected` beside it.
        directory: PathBuf,
    },
    /// Runs all checks of `test` between machines, as `machines` without a name.
    EndToEnd,
    /// Runs the whole study between two machines, and among four machines of which one loses packets. Checks the
    /// results.
    ///
    /// The machines are network namespaces. The command prints the duration relative to a study on loopback.
    Hosts {
        /// Directory of the records and reports [default: `xtask/hosts` in the target directory]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Runs only the check of `test` that opens a report in a browser.
    Report,
    /// Runs only the steps of `test` with unmodified verbs programs on the software RNIC.
    Programs {
        /// Runs only these: C programs of `xtask/programs`, or programs of docs/programs.md (fio, qperf, ...). `ucx`
        /// selects all programs over UCX, and `box` perftest through a middlebox. `rdma_cm` selects librdmacm's
        /// examples, perftest with `-R` and rdma-core's tests. `gloo`, `librpma` and `mpich` select one step with all
        /// three. `pypi` selects rdma4py, the Mooncake Transfer Engine, NIXL and InfiniStore. `iser` selects tgt with
        /// QEMU's tools, `dapltest` uDAPL, `two-devices` programs with two devices, and `crates` tests of Rust crates.
        /// These words also select the rows of docs/programs.md with that name, such as those of UCX. A run without
        /// names leaves out the rows for gloo and for PyPI's packages. Their names on that page select them.
        #[arg(value_name = "NAME")]
        only: Vec<String>,
        /// Runs nothing. Writes the commands, and the figures that docs/programs.md names, into that page anew.
        #[arg(long, conflicts_with = "only")]
        write_docs: bool,
    },
    /// Measures unmodified verbs programs beside `doorbell bench`, libfabric, UCX and the kernel's limit.
    ///
    /// Each round runs every program once, on loopback, every second round in reverse order. The table has the medians
    /// over all rounds, intervals of the ratios, and the bytes of all buffers. The machine must be idle.
    ///
    /// With --against or --against-revision, compares this build of Doorbell with another one instead. It runs
    /// `doorbell bench` of both in turns, and counts instructions per message under valgrind.
    Compare {
        /// Number of rounds, 1 to 1000 [default: 6, the minimum for intervals of ratios; for two builds 15, their
        /// minimum]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: Option<u32>,
        /// Measures the programs of docs/programs.md beside TCP, and writes the tables of that page anew. The figures
        /// go to --out [default: `programs.json` below today's date in `benchmarks`].
        #[arg(long, conflicts_with_all = ["against", "against_revision", "instructions"])]
        programs: bool,
        /// Measures latency and rate in turns without and with N spinning programs (1 to 64).
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64),
            conflicts_with_all = ["programs", "against", "against_revision"])]
        busy: Option<u32>,
        /// File for the figures of all rounds, as JSON.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Another build of `doorbell`, measured in turns with this one.
        #[arg(long, value_name = "BINARY")]
        against: Option<PathBuf>,
        /// Another revision to build. Its instructions are counted. Without --against, its `doorbell` is also
        /// measured.
        #[arg(long, value_name = "REVISION")]
        against_revision: Option<String>,
        /// Counts instructions and measures no time.
        #[arg(long, requires = "against_revision")]
        instructions: bool,
        /// Times release builds of a revision and of --against-revision instead, each from an empty directory, in
        /// three rounds without --rounds [default revision: HEAD].
        #[arg(long, value_name = "REVISION", num_args = 0..=1, default_missing_value = "HEAD",
            requires = "against_revision", conflicts_with_all = ["against", "busy", "instructions", "programs"])]
        build: Option<String>,
    },
    /// Counts instructions per message by group of functions, system calls and context switches.
    ///
    /// The groups are the state machine, driver, link, copies, CRC, clock, locks and others. The workloads are those of
    /// benchmarks/README.md, with both ends in one process. docs/internals/profile.md describes the output.
    Profile(profile::Options),
    /// Runs more seeds of the simulation that creates and destroys objects of RNICs than `test` does.
    ///
    /// For a seed that fails, it prints the last events and the command that replays the seed.
    #[command(group(ArgGroup::new("which").args(["hours", "from"]).required(true).multiple(true)))]
    Seeds {
        /// Hours of the run, 0.0003 to 8760, also with a fraction.
        #[arg(long, value_parser = |text: &str| number(text, 0.0003, 8760.0))]
        hours: Option<f64>,
        /// First seed. Without --hours, the only one.
        #[arg(long, value_name = "SEED", value_parser = seed)]
        from: Option<u64>,
    },
    /// Runs pairs of verbs programs. In each pair one program is killed, stopped or forked, or loses memory,
    /// descriptors or disk space.
    ///
    /// A round that fails prints its seed, the output of both programs, and the stacks of a process that crashed or
    /// hangs. Consecutive seeds select all kinds of disturbance in turn.
    Chaos {
        /// Seed of the first round. Each further round takes the next number [default: a new seed]
        #[arg(long, value_name = "SEED", value_parser = seed)]
        seed: Option<u64>,
        /// Number of rounds, 1 to 1000000.
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rounds: u64,
    },
    /// Runs servers, lasting clients, clients that finish or die, and perftest on both links under loss.
    ///
    /// The programs check every payload. The run fails on an error, on an unexpected end of a process, and if memory,
    /// descriptors, threads or tables of a lasting process grow after the warm-up.
    Soak {
        /// Minutes of traffic, 0.2 to 100000, also with a fraction.
        #[arg(long, value_parser = |text: &str| number(text, 0.2, 100_000.0))]
        minutes: f64,
        /// Seed of faults and clients [default: a new seed]
        #[arg(long, value_name = "SEED", value_parser = seed)]
        seed: Option<u64>,
        /// Directory of summary, samples and plot [default: the run's folder, which stays only if the run fails]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Makes an archive with the command and the library that it preloads, or all artefacts for users.
    ///
    /// Each artefact is made twice, and both must have the same bytes.
    Dist(dist::Options),
    /// Builds a site of README.md, docs and the other pages with mdBook, and checks its links.
    ///
    /// The first run installs mdBook from crates.io into the target directory.
    Site {
        /// Directory of the site [default: `site` in the target directory]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
        /// Address of the files of the repository, to which links to other files than pages lead [default: no such
        /// links]
        #[arg(long, value_name = "URL")]
        repository: Option<String>,
    },
    /// Runs a command in a virtual machine with Linux's rdma_rxe, whose device is `rxe0`.
    ///
    /// The command finds `doorbell` and `libdoorbell_ibverbs.so` in its PATH. `--keep` copies the files that it writes
    /// to `/host`. Its standard output, standard error and exit status are passed on.
    Vm {
        /// Path of another program that the command needs. May be given several times.
        #[arg(long, value_name = "PATH")]
        file: Vec<PathBuf>,
        /// Folder to which the files in `/host` are copied afterwards.
        #[arg(long, value_name = "FOLDER")]
        keep: Option<PathBuf>,
        /// Time limit of the machine in seconds.
        #[arg(long, default_value_t = 600)]
        limit_s: u64,
        /// Command and its arguments. A single word is a line for the shell.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs only the steps of `test` in virtual machines with rdma_rxe.
    Guest {
        /// Part of the names of the steps to run [default: all steps]
        only: Option<String>,
    },
    /// Runs only the checks of `test` between machines, which are network namespaces.
    Machines {
        /// Part of the names of the steps to run [default: all steps]
        only: Option<String>,
    },
    /// Captures the packets between rdma_rxe and the software RNIC anew. Tests of `wire` and `rnic` read these
    /// captures.
    CaptureRxe,
    /// Measures perftest on rdma_rxe and on the software RNIC, and `doorbell bench` beside perftest, in a virtual
    /// machine.
    ///
    /// The host must be idle. The table of medians and ratios goes to standard output. A folder gets the table and the
    /// raw figures.
    Ratios {
        /// Number of rounds, 1 to 100. Each round measures every case once.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Folder of the results [default: `xtask/ratios` in the target directory]
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// Runs fuzz targets under libFuzzer and minimizes the corpora in the repository.
    ///
    /// The corpus becomes the smallest set of old and found inputs that reaches the same code. It holds at most 256
    /// inputs and 64 KiB. Small inputs come first, and inputs that a person named always stay.
    Fuzz {
        /// Name of one target [default: all targets, in turn]
        target: Option<String>,
        /// Minutes for each target, 0.01 to 100000, also with a fraction.
        #[arg(long, default_value_t = 5.0, value_parser = |text: &str| number(text, 0.01, 100_000.0))]
        minutes: f64,
    },
    /// Brings fixed defects back, one at a time, and checks that the tests named for them fail.
    ///
    /// Each defect is a patch in `regressions`, applied to a clone of HEAD. `test` only checks that the patches apply.
    Regressions {
        /// Names of patches, without `.patch` [default: all patches]
        names: Vec<String>,
    },
    /// Checks the language of comments, error texts and pages, and the titles of commits, as `test` does.
    ///
    /// Each part of the tree has a stored maximum number of findings. `--lower` only lowers it. The pages of `docs`
    /// that are written by hand have a maximum number of words.
    Prose {
        /// Part whose findings are printed: a crate, `xtask`, `docs` or `README.md`. May be given several times.
        #[arg(long, value_name = "PART")]
        list: Vec<String>,
        /// Stores each current number that is lower than the stored one.
        #[arg(long)]
        lower: bool,
    },
    /// Prints the crates with their arrows, circles between modules, and long files, and fails on new ones.
    ///
    /// `test` does this too. The list of violations that are still allowed is `xtask/src/house/house.toml`.
    House(house::Options),
    /// Runs the commands that answer eight questions of new users, and prints the seconds until each answer.
    ///
    /// `benchmarks/journeys/journeys.toml` has the questions. The machine must be idle.
    Journeys(journeys::Options),
    /// Generates the C layouts of libibverbs and librdmacm anew from rdma-core's headers, with libclang.
    Bindings,
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    place::own(); // also removes the remains of killed runs
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
            ended(test::measure(rounds.unwrap_or(figures::INTERVAL_FIGURES), out.as_deref()))
        }
        Command::Compare { rounds, busy, out, against: None, against_revision: None, .. } => {
            ended(programs::compare(rounds.unwrap_or(figures::INTERVAL_FIGURES), busy, out.as_deref()))
        }
        Command::Compare { rounds, out, build: Some(own), against_revision: Some(other), .. } => {
            let rounds = rounds.unwrap_or(versus::builds::ROUNDS);
            ended(versus::builds::compare([&own, &other], rounds, out.as_deref()))
        }
        Command::Compare { rounds, out, against: binary, against_revision: revision, instructions, .. } => {
            let rounds = rounds.unwrap_or(versus::LEAST_ROUNDS);
            if rounds < versus::LEAST_ROUNDS {
                eprintln!("--rounds {rounds}: must be at least {} for two builds", versus::LEAST_ROUNDS);
                return ExitCode::from(2);
            }
            let against = versus::Against { binary, revision, rounds, only_instructions: instructions };
            ended(versus::compare(&against, out.as_deref()))
        }
        Command::Profile(options) => ended(profile::run(&options)),
        Command::Dist(options) => ended(dist::make(&options)),
        Command::Site { out, repository } => {
            let built = programs::build().and_then(|()| site::build(out.as_deref(), repository.as_deref()));
            ended(built.map(|site| println!("{}", site.join("index.html").display())))
        }
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
        Command::Journeys(options) => ended(journeys::run(&options)),
        Command::Bindings => {
            peers::install_for_bindings();
            ended(bindings::generate().and_then(|()| bindings::check_layout()))
        }
    }
}

/// Parses a number within bounds, which may have a fraction.
fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("allowed are numbers from {least} to {most}")),
    }
}

/// Parses a seed.
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
    fn builds_are_timed_beside_another_revision() {
        let parse =
            |arguments: &str| Arguments::try_parse_from(format!("xtask compare {arguments}").split_whitespace());
        for good in ["--build --against-revision a", "--build b --against-revision a --rounds 1 --out c"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for wrong in ["--build", "--build b", "--build --against-revision a --instructions", "--build --programs"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_all_artefacts_are_rebuilt() {
        let parse = |arguments: &str| Arguments::try_parse_from(format!("xtask dist {arguments}").split_whitespace());
        for good in ["", "--out a", "--all", "--all --rebuild --out a", "--wheel", "--wheel --target aarch64"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        let error = parse("--wheel --target riscv64").expect_err("no such wheel").to_string();
        assert!(error.contains("x86_64, aarch64"), "{error}");
        assert!(parse("--all --target aarch64").is_err());
        let error = parse("--rebuild").expect_err("--rebuild needs --all").to_string();
        assert!(error.contains("--all"), "{error}");
    }

    #[test]
    fn seeds_are_whole_numbers_and_required() {
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
