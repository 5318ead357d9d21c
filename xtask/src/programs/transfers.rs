//! Programs of Debian and PyPI that move bytes between processes through a library on top of verbs: gloo, librpma,
//! MPICH, rdma4py, the Mooncake Transfer Engine, NIXL and InfiniStore. Each compares all bytes, once over a network
//! that loses packets, and each must report the death of a peer.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{PATIENCE, Started, on_doorbell, opens, ports, start, ucx};
use crate::shell::{command, root, run};
use crate::test::StepEnd;
use crate::{peers, place};

/// Packages of PyPI in the tested versions.
pub(crate) const WHEELS: [&str; 4] = [
    "ibverbs==2026.10.22",
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "numpy==2.4.6",
    // InfiniStore passes the loop of uvloop to a libuv of its own, and newer versions have another layout.
    "uvloop==0.21.0",
];

/// Packages that are installed without their dependencies. They need only the packages above, and torch is large.
const WITHOUT_DEPENDENCIES: [&str; 3] = ["--no-deps", "nixl-cu12==1.5.1", "infinistore==0.2.35"];

/// Scripts in `xtask/programs/transfers`, one for each package.
const SCRIPTS: [&str; 4] = ["rdma4py", "mooncake_engine", "nixl_agent", "infinistore_blocks"];

/// Text of an end that has compared all bytes.
pub(super) const RIGHT: &str = "all bytes are right";

/// Text of a server whose client writes until the server is gone.
const READY: &str = "ready to be killed";

/// Text of a client that has seen the death of its server.
const GONE: &str = "the peer is gone: ";

/// Text of the RNIC for a queue pair whose peer does not answer. Each process prints it on standard error.
pub(super) const UNANSWERED: &str = "unanswered by";

/// Time for which a client writes before its server is killed.
pub(super) const SOME_TRANSFERS: Duration = Duration::from_millis(300);

/// Source of a program of this repository.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(super) compiler: &'static str,
    /// Path below `xtask/programs`.
    pub(super) file: &'static str,
    /// Options of the compiler, after the name of the file.
    pub(super) options: &'static [&'static str],
}

/// Both ends of transfers through gloo.
pub(super) const GLOO: Source =
    Source { compiler: "c++", file: "transfers/gloo.cc", options: &["-std=c++17", "-lgloo", "-libverbs"] };

/// Both ends of transfers through librpma.
pub(super) const LIBRPMA: Source =
    Source { compiler: "cc", file: "transfers/rpma.c", options: &["-lrpma", "-libverbs"] };

/// Surroundings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// Packets are lost.
    Loss,
    /// One process is killed.
    Killed,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Loss, Self::Killed];

    /// Returns the options of `doorbell run`.
    pub(super) fn options(self) -> &'static [&'static str] {
        if self == Self::Loss { &["--fault", "drop=0.01,seed=3"] } else { &[] }
    }

    /// Returns the word by which the programs know whether a process will be killed.
    pub(super) fn word(self) -> &'static str {
        if self == Self::Killed { "killed" } else { "data" }
    }
}

/// Runs the programs of Debian.
pub(crate) fn of_debian() -> Result<(), String> {
    peers::install_for_transfers()?;
    let gloo = GLOO.build()?;
    each_way("gloo", |way| pair_of_gloo(&gloo, way))?;
    let rpma = LIBRPMA.build()?;
    each_way("librpma", |way| pair_of_librpma(&rpma, way))?;
    let mpi = Source { compiler: "mpicc.mpich", file: "mpi.c", options: &[] }.build()?;
    each_way("MPICH, 2 ranks", |way| ranks(&mpi, "2", way))?;
    each_way("MPICH, 4 ranks", |way| ranks(&mpi, "4", way))
}

/// Runs the programs of PyPI. The step is left out if the packages cannot be installed.
pub(crate) fn of_pypi() -> StepEnd {
    let run_all = |python: &str| {
        SCRIPTS.iter().try_for_each(|script| {
            each_way(script, |way| {
                with_script(python, script, way.options(), way.word(), |server, client| pair(server, client, way))
                    .and_then(|said| expect_death(said, way))
            })
        })
    };
    match python() {
        Ok(python) => run_all(&python).into(),
        Err(why) => StepEnd::LeftOut(format!("packages of PyPI cannot be installed: {why}")),
    }
}

pub(super) fn each_way(name: &str, run: impl Fn(Way) -> Result<(), String>) -> Result<(), String> {
    for way in Way::ALL {
        let begun = Instant::now();
        run(way).map_err(|why| format!("{name}, {way:?}: {why}"))?;
        eprintln!("{:>5.1} s  {name}, {way:?}", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

impl Source {
    /// Compiles the program, and returns its path.
    pub(super) fn build(&self) -> Result<String, String> {
        let source = root().join("xtask/programs").join(self.file).to_string_lossy().into_owned();
        let program = place::own_file("transfer").to_string_lossy().into_owned();
        let arguments = ["-O1", "-Wall", "-Wextra", "-Werror", "-o", &program, &source];
        run(command(self.compiler, &[&arguments[..], self.options].concat()))?;
        Ok(program)
    }
}

/// Installs the packages of PyPI, if they are missing, and returns the path of a Python interpreter that has them. Only
/// the first call runs pip.
pub(super) fn python() -> Result<String, String> {
    static PYTHON: OnceLock<Result<String, String>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let python = peers::python_with("wheels", &[&WHEELS, &WITHOUT_DEPENDENCIES])?;
        Ok(python.to_string_lossy().into_owned())
    });
    python.clone()
}

/// Returns the packages of PyPI with their versions: `numpy 2.4.6`.
pub(super) fn wheels() -> impl Iterator<Item = String> {
    let all = WHEELS.iter().chain(&WITHOUT_DEPENDENCIES);
    all.filter_map(|package| package.split_once("==")).map(|(name, version)| format!("{name} {version}"))
}

fn pair_of_gloo(program: &str, way: Way) -> Result<(), String> {
    // Both ranks find each other by files in this folder.
    let folder = place::own_file("gloo");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let meeting = folder.to_string_lossy();
    let end = |rank: &str| start(on_doorbell(way.options(), &[program, rank, &meeting, way.word()]));
    pair(end("0")?, end("1")?, way).and_then(|said| expect_death(said, way))
}

fn pair_of_librpma(program: &str, way: Way) -> Result<(), String> {
    ports::on_free_port(|port| {
        let end = |role: &str| start(on_doorbell(way.options(), &[program, role, port, way.word()]));
        let mut server = end("server")?;
        ports::wait_until_listening(port, &mut server)?;
        pair(server, end("client")?, way).map(drop)
    })
}

/// Starts server and client of a script, with these options of `doorbell run`, and passes them to `run`.
pub(super) fn with_script<T>(
    python: &str,
    script: &str,
    options: &[&str],
    word: &str,
    run: impl Fn(Started, Started) -> Result<T, String>,
) -> Result<T, String> {
    let path = root().join("xtask/programs/transfers").join(script).with_extension("py");
    let path = path.to_string_lossy();
    ports::on_free_port(|port| {
        let end = |role: &str| {
            let mut end = on_doorbell(options, &[python, &path, role, port, word]);
            end.env("PYTHONDONTWRITEBYTECODE", "1");
            start(with_ucx(end, "rc_v"))
        };
        let mut server = end("server")?;
        ports::wait_until_listening(port, &mut server)?;
        run(server, end("client")?)
    })
}

/// Sets the transports of UCX, and timeouts after which it reports the death of a peer.
pub(super) fn with_ucx(mut program: Command, transports: &str) -> Command {
    program.envs([("UCX_TLS", transports), ("UCX_LOG_LEVEL", "error")]);
    program.envs(ucx::SHORT_TIMEOUTS.iter().copied());
    program
}

/// Runs server and client to their ends, or kills the server while the client writes. Returns the client's output.
pub(super) fn pair(mut server: Started, client: Started, way: Way) -> Result<String, String> {
    if way == Way::Killed {
        server.wait_until(|server| server.said().contains(READY) || server.has_ended())?;
        if server.has_ended() {
            return Err(format!("the server has ended: {}", server.said()));
        }
        std::thread::sleep(SOME_TRANSFERS);
        drop(server); // kills the process
        return client.finish(PATIENCE).and_then(opens::check).and_then(|said| expect(said, GONE));
    }
    let [client, server] = [client, server].map(|end| end.finish(PATIENCE).and_then(opens::check));
    match (client, server) {
        (Ok(said), Ok(_)) => expect(said, RIGHT),
        (Err(client), Err(server)) => Err(format!("{client}\nthe server: {server}")),
        (Err(why), Ok(_)) => Err(why),
        (Ok(_), Err(why)) => Err(format!("the server: {why}")),
    }
}

/// Checks in the output of a killed server's client that its queue pair has died because the server did not answer. An
/// error of another cause, such as a limit of the program, is not enough.
fn expect_death(said: String, way: Way) -> Result<(), String> {
    if way == Way::Killed { expect(said, UNANSWERED).map(drop) } else { Ok(()) }
}

/// Runs ranks of MPICH over UCX. MPICH itself reports the death of a rank, and ends the others.
fn ranks(program: &str, count: &str, way: Way) -> Result<(), String> {
    let mut own = on_doorbell(way.options(), &["mpiexec.mpich", "-n", count, program, way.word()]);
    // Without this variable, ranks of one machine use shared memory of MPICH's own.
    own.env("MPIR_CVAR_NOLOCAL", "1");
    let mut mpiexec = start(with_ucx(own, "self,rc_v"))?;
    if way == Way::Killed {
        return expect(mpiexec.ended()?, "Killed (signal 9)").map(drop);
    }
    let said = mpiexec.finish(PATIENCE).and_then(opens::check)?;
    expect(said, &format!("all bytes of {count} ranks are right")).map(drop)
}

/// Returns the output of a program if it contains `words`.
pub(super) fn expect(said: String, words: &str) -> Result<String, String> {
    if said.contains(words) { Ok(said) } else { Err(format!("{words:?} is missing in:\n{said}")) }
}
