//! Unmodified verbs programs on the software RNIC, from Debian's packages: libibverbs' examples, perftest, and the
//! tests of rdma-core.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::place;
use crate::shell::{cargo, command, output_of, root, run, target};

mod captures;
mod compare;
mod dapl;
mod drop_ins;
mod iser;
pub(crate) mod middlebox;
mod opens;
pub(crate) mod page;
mod port_flap;
pub(crate) mod ports;
mod qemu;
mod rdma_cm;
mod rping;
mod rust_crates;
mod several_devices;
mod transfers;
mod ucx;

pub(crate) use compare::{compare, cpus, kernel};
pub(crate) use dapl::all as dapl;
pub(crate) use iser::all as iser;
pub(crate) use rdma_cm::all as rdma_cm;
pub(crate) use rust_crates::all as rust_crates;
pub(crate) use several_devices::all as several_devices;
pub(crate) use transfers::{WHEELS, of_debian, of_pypi};
pub(crate) use ucx::all as ucx;

/// Time after which a program counts as hanging. No program takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Message of perftest if it cannot measure the clock of the processor. Load by other programs causes this failure.
pub(crate) const NO_CLOCK: &str = "Correlation coefficient";

/// Maximum number of further attempts after the message [`NO_CLOCK`].
pub(crate) const OTHER_TRIES: usize = 4;

/// For each module of rdma-core's tests, the minimum number of tests that must pass. These numbers may only rise.
const PYVERBS_OK: &str = include_str!("../pyverbs-ok.txt");

/// Environment variable that selects the link of the software RNIC.
pub(crate) const LINK_VARIABLE: &str = "DOORBELL_LINK";

/// Options that set vendor id and part id. With these ids, perftest uses inline data and the calls `ibv_wr_*`.
const KNOWN_VENDOR: &[&str] = &["--vendor-id", "0x2c9:4119"];

/// Command lines of pairs of processes. Server and client have the same command line, and the client also gets an
/// address.
const PAIRS: &[&str] = &[
    "ibv_rc_pingpong -g 0",
    "ibv_rc_pingpong -g 0 -c",
    "ibv_rc_pingpong -g 0 -e",
    "ibv_rc_pingpong -g 0 -N",
    "ibv_uc_pingpong -g 0",
    "ibv_uc_pingpong -g 0 -c",
    "ibv_uc_pingpong -g 0 -e",
    "ibv_ud_pingpong -g 0",
    "ibv_ud_pingpong -g 0 -c",
    "ibv_ud_pingpong -g 0 -e",
    "ibv_srq_pingpong -g 0",
    "ibv_srq_pingpong -g 0 -c",
    "ibv_srq_pingpong -g 0 -e",
    "ib_send_bw -n 500",
    "ib_send_bw -n 100 -a",
    "ib_send_bw -n 500 -b",
    "ib_send_bw -n 500 -q 4",
    "ib_send_bw -n 500 -e",
    "ib_send_bw -n 800 -l 8",
    "ib_send_bw -n 500 --use-srq",
    "ib_send_bw -n 500 --use-srq -q 4",
    "ib_send_bw -n 500 -m 256",
    "ib_send_bw -n 500 -m 512",
    "ib_send_bw -n 500 -m 1024",
    "ib_send_bw -n 500 -m 2048",
    // UC does not retransmit, so all messages have to fit into the receive buffer.
    "ib_send_bw -n 100 -s 1024 -c UC",
    "ib_send_bw -n 100 -s 1024 -c UD",
    "ib_send_lat -n 500",
    "ib_send_lat -n 500 -e",
    "ib_send_lat -n 500 -I 64",
    "ib_send_lat -n 500 --use-srq",
    "ib_send_lat -n 500 -c UC",
    "ib_send_lat -n 500 -c UD",
    "ib_write_bw -n 500",
    "ib_write_bw -n 100 -a",
    "ib_write_bw -n 500 -b",
    "ib_write_bw -n 800 -q 4 -l 8",
    "ib_write_bw -n 500 -c UC",
    "ib_write_lat -n 100",
    "ib_write_lat -n 100 -I 64",
    "ib_write_lat -n 100 -c UC",
    "ib_read_bw -n 500",
    "ib_read_bw -n 500 -q 4 -o 16",
    "ib_read_lat -n 500",
    "ib_read_lat -n 500 -e",
    "ib_atomic_bw -n 500 -A CMP_AND_SWAP",
    "ib_atomic_bw -n 500 -A FETCH_AND_ADD",
    "ib_atomic_lat -n 500 -A CMP_AND_SWAP",
    "ib_atomic_lat -n 500 -A FETCH_AND_ADD",
];

/// Built files that all programs need.
pub(crate) const BUILT: [&str; 2] = ["doorbell", "libdoorbell_ibverbs.so"];

/// Drop-in libraries that the build of the library makes, in a folder beside it.
pub(crate) const DROP_INS: [&str; 4] = [
    "lib/doorbell/libibverbs.so",
    "lib/doorbell/libibverbs.so.1",
    "lib/doorbell/librdmacm.so",
    "lib/doorbell/librdmacm.so.1",
];

/// Arguments of cargo that build the command `doorbell` and the library that `doorbell run` preloads.
pub(crate) const BUILD: &[&str] = &["build", "--release", "--package", "doorbell-cli", "--package", "doorbell-ibverbs"];

/// Builds the command and the libraries, and links all files into this run's folder. The build of another run therefore
/// does not replace the files of this run.
pub(crate) fn build() -> Result<(), String> {
    run(cargo(BUILD))?;
    let (folder, drop_ins) = (built(), built().join("lib/doorbell"));
    fs::create_dir_all(&drop_ins).map_err(|error| format!("{}: {error}", drop_ins.display()))?;
    let mut names = BUILT.iter().chain(&DROP_INS);
    names.try_for_each(|name| place::link(&target().join("release").join(name), &folder.join(name)))
}

/// Returns the directory of the built files.
pub(crate) fn built() -> PathBuf {
    place::own().join("release")
}

/// Returns the path of the built `doorbell`.
pub(crate) fn doorbell() -> PathBuf {
    built().join("doorbell")
}

/// Returns the command `doorbell run` of a program, with these options.
fn on_doorbell(options: &[&str], program: &[&str]) -> Command {
    on(&doorbell(), options, program)
}

/// Returns the command `run` of a program, with these options, of the `doorbell` at this path.
fn on(doorbell: &Path, options: &[&str], program: &[&str]) -> Command {
    let mut doorbell = command(doorbell, &["run", "--explain"]);
    doorbell.args(options).arg("--").args(program);
    doorbell
}

/// Runs programs that print the device, and checks their output.
pub(crate) fn show() -> Result<(), String> {
    let list = output_of(on_doorbell(&[], &["ibv_devices"]))?;
    let info = output_of(on_doorbell(&[], &["ibv_devinfo", "-v"]))?;
    for (text, words) in [(&list, "doorbell0"), (&info, "PORT_ACTIVE"), (&info, "RoCE v2"), (&info, "Ethernet")] {
        if !text.contains(words) {
            return Err(format!("{words:?} is missing in:\n{text}"));
        }
    }
    sysfs()?;
    port_flap::all()
}

/// Runs programs that read sysfs, and checks their output.
fn sysfs() -> Result<(), String> {
    let ports = "/sys/class/infiniband/doorbell0/ports";
    let python = "import os, stat; print(os.listdir('/sys/class/infiniband'), os.path.realpath('/sys/class/infiniband/\
        doorbell0'), stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode), len(list(os.fwalk('/sys/class/infiniband/\
        doorbell0/'))), open('/sys/class/infiniband/doorbell0/ports/1/state').read())";
    let walk = "import os, glob; port = '/sys/class/infiniband/doorbell0/ports/1'; walked = list(os.walk(port + \
        '/gid_attrs')); print(walked[0][2], len(walked) + len(list(os.scandir(port + '/pkeys'))), sorted(walked[0][1]), \
        [(e.name, e.is_file()) for e in os.scandir(os.open(port + '/pkeys', os.O_RDONLY))], glob.glob(port + '/stat*')[0])";
    for (program, words) in [
        (&["/usr/sbin/ibstat"][..], &["CA 'doorbell0'", "State: Active", "Rate: 100", "Link layer: Ethernet"][..]),
        (&["/usr/sbin/ibstatus"], &["state:\t\t 4: ACTIVE", "rate:\t\t 100 Gb/sec (4X EDR)"]),
        (
            &["ls", "-l", "/sys/class/infiniband"],
            &["doorbell0 -> ../../devices/platform/doorbell.0/infiniband/doorbell0"],
        ),
        (&["ls", "-l", "/dev/infiniband"], &["crw-rw-rw-", "231, 192", "uverbs0", "rdma_cm"]),
        (&["cat", "/sys/class/infiniband_verbs/uverbs0/ibdev"], &["doorbell0\n"]),
        // UCX, NCCL and Mooncake read these files by such paths.
        (
            &[
                "cat",
                "/sys/class/infiniband/doorbell0/device/current_link_speed",
                "/sys/class/infiniband/doorbell0/device/current_link_width",
                "/sys/class/infiniband/doorbell0/device/class",
                "/sys/class/infiniband/doorbell0/../../numa_node",
                "/sys/class/infiniband/doorbell0/tc/1/traffic_class",
            ],
            &["8.0 GT/s PCIe\n16\n0x020700\n-1\nGlobal tclass=0\n"],
        ),
        (&["find", ports, "-name", "port_rcv_data"], &["doorbell0/ports/1/counters/port_rcv_data\n"]),
        (
            &["grep", "-r", ".", "/sys/class/infiniband/doorbell0/ports/1/gid_attrs"],
            &["types/0:RoCE v2\n", "ndevs/0:lo\n"],
        ),
        (&["sh", "-c", "cd /sys/class/infiniband/doorbell0/ports && cat */link_layer"], &["Ethernet\n"]),
        (
            &["ls", "-lR", "/sys/class/infiniband/doorbell0/"],
            &["ports/1/gid_attrs/ndevs:\n", "doorbell0/ports:\n", "device -> ../../../doorbell.0", "port_xmit_wait"],
        ),
        (
            &["find", "-L", "/sys/class/infiniband/doorbell0/ports", "-maxdepth", "2", "-name", "state"],
            &["/sys/class/infiniband/doorbell0/ports/1/state\n"],
        ),
        (
            &[
                "bash",
                "-c",
                "cd /sys/class/infiniband && echo */ports/*/pkeys/* && cd doorbell0/ports/1 && pwd -P && echo g*/*",
            ],
            &[
                "doorbell0/ports/1/pkeys/0\n",
                "/sys/devices/platform/doorbell.0/infiniband/doorbell0/ports/1\n",
                "gid_attrs/ndevs gid_attrs/types gids/0\n",
            ],
        ),
        (
            &["python3", "-c", walk],
            &["[] 4 ['ndevs', 'types'] [('0', True)] /sys/class/infiniband/doorbell0/ports/1/state"],
        ),
        (
            &["python3", "-c", python],
            &["['doorbell0'] /sys/devices/platform/doorbell.0/infiniband/doorbell0 True 12 4: ACTIVE"],
        ),
    ] {
        let text = output_of(on_doorbell(&[], program))?;
        if let Some(missing) = words.iter().find(|words| !text.contains(**words)) {
            return Err(format!("the output of {program:?} does not contain {missing:?}:\n{text}"));
        }
    }
    Ok(())
}

/// Programs of this repository, each with its options of `doorbell run`.
const OWN: &[(&str, &[&str])] = &[
    ("misuse", &[]),
    ("promises", &[]),
    ("ends", &[]),
    ("multicast", &[]),
    ("datagrams", &[]),
    ("datagrams", &["--bind", "::1"]),
    ("unmapped", &[]),
    ("dmabuf", &[]),
    ("waits", &[]),
    ("paths", &[]),
    ("paths_events", &[]),
    ("both_ports", &[]),
    ("devices", &["--devices", "3", "--device", "doorbell1:numa=0,pci=0000:fe:00.0,speed=200"]),
    ("same_address", &["--devices", "2", "--bind", "127.61.0.1,127.61.0.2"]),
    ("faulty", &["--fault", FAULTS]),
];

/// Fault plan of the program `faulty`.
const FAULTS: &str = "call-error call=create-cq nth=1 errno=ENOMEM;call-error call=reg-mr nth=1 errno=EAGAIN;\
                      call-error call=modify-qp nth=1 errno=ETIMEDOUT;post-error operation=send nth=2 errno=EIO;\
                      completion operation=write nth=2 status=rem-op-err;slow-poll operation=receive nth=1 for=20ms;\
                      event operation=read nth=1 event=qp-access-err queue-pair=kept";

/// Runs programs of this repository. They test errors and guarantees of verbs that foreign programs do not test. `only`
/// has the names of the programs to run; if it is empty, all programs run.
pub(crate) fn own(only: &[&str]) -> Result<(), String> {
    let names: Vec<_> = OWN.iter().map(|(name, _)| *name).chain([captures::NAME, drop_ins::NAME]).collect();
    if let Some(unknown) = unknown(&names, only) {
        return Err(format!("{unknown} is no program of this repository, allowed are {}", names.join(", ")));
    }
    for (name, options) in OWN.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|other| other == name)) {
        let program = compile("cc", name, &["-Wl,--as-needed", "-libverbs", "-lrdmacm"])?;
        start(on_doorbell(options, &[&program]))?.finish(PATIENCE).map_err(|why| format!("{name}: {why}"))?;
    }
    if only.is_empty() || only.contains(&captures::NAME) {
        captures::check_captures()?;
    }
    if only.is_empty() || only.contains(&drop_ins::NAME) {
        drop_ins::check()?;
    }
    Ok(())
}

/// Returns the first name in `only` that is neither in `own` nor a program of docs/programs.md. Another step runs the
/// latter.
fn unknown<'a>(own: &[&str], only: &[&'a str]) -> Option<&'a str> {
    let of_page = page::names();
    only.iter().copied().find(|name| !own.contains(name) && !of_page.contains(name))
}

/// Runs the programs of this repository under valgrind's memcheck. A program in which memcheck finds an error fails.
pub(crate) fn under_memcheck() -> Result<(), String> {
    const FOUND: &str = "--error-exitcode=99";
    let mut failures = Vec::new();
    // These programs access memory that is gone on purpose.
    for (name, options) in OWN.iter().filter(|(name, _)| !["unmapped", "dmabuf"].contains(name)) {
        let program = compile("cc", name, &["-g", "-Wl,--as-needed", "-libverbs", "-lrdmacm"])?;
        // valgrind runs one thread at a time. Without fair scheduling, a polling thread would starve the other threads.
        let suppressions = format!("--suppressions={}", root().join("xtask/programs/memcheck.supp").display());
        let words = ["valgrind", "--quiet", FOUND, "--fair-sched=yes", "--num-callers=30", &suppressions, &program];
        let outcome = start(on_doorbell(options, &words))?.finish(2 * PATIENCE);
        eprintln!("{name}: {}", if outcome.is_ok() { "no error" } else { "FAILED" });
        failures.extend(outcome.err().map(|why| format!("{name}: {why}")));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Compiles the program that registers DMA buffers, for a guest whose kernel has some. Returns its path.
pub(crate) fn of_dma_buffers() -> Result<PathBuf, String> {
    let options = &["-Wl,--as-needed", "-libverbs", "-lrdmacm"];
    transfers::Source { compiler: "cc", file: "dmabuf.c", options }.build().map(PathBuf::from)
}

/// Compiles a program of this repository, and returns its path.
pub(crate) fn compile(compiler: &str, name: &str, libraries: &[&str]) -> Result<String, String> {
    compile_with(compiler, name, &[], libraries)
}

/// Compiles a source of this repository with further options, and returns the path of the result.
pub(crate) fn compile_with(compiler: &str, name: &str, options: &[&str], libraries: &[&str]) -> Result<String, String> {
    let source = root().join("xtask/programs").join(name).with_extension("c").to_string_lossy().into_owned();
    let program = place::own().join(name).to_string_lossy().into_owned();
    let arguments = ["-O1", "-Wall", "-Wextra", "-Werror", "-o", &program, &source];
    run(command(compiler, &[&arguments[..], options, libraries].concat()))?;
    Ok(program)
}

/// Runs each pair of [`PAIRS`] through shared memory, which is the default link. Pairs of perftest also run over UDP,
/// with the options [`KNOWN_VENDOR`].
pub(crate) fn pairs() -> Result<(), String> {
    pairs_of(PAIRS)
}

fn pairs_of(lines: &[&str]) -> Result<(), String> {
    let mut failures = Vec::new();
    for line in lines {
        let over_udp = [KNOWN_VENDOR, &["--link", "udp"]].concat();
        let ways: &[&[&str]] = if line.starts_with("ib_") { &[&[], &over_udp] } else { &[&[]] };
        for options in ways {
            if let Err(why) = pair_with_clock(line, options) {
                eprintln!("FAILED: {why}");
                failures.push(why);
            }
        }
    }
    eprintln!("{} programs, {} failures", lines.len(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs a pair, and repeats the run if perftest cannot measure the clock of the processor.
pub(crate) fn pair_with_clock(line: &str, options: &[&str]) -> Result<(), String> {
    pair_of(&doorbell(), line, options)
}

/// Runs a pair as [`pair_with_clock`], with the `doorbell` at this path.
pub(crate) fn pair_of(doorbell: &Path, line: &str, options: &[&str]) -> Result<(), String> {
    outputs_of_pair(doorbell, line, options).map(drop)
}

/// Runs a pair as [`pair_of`], and returns the outputs of client and server.
pub(crate) fn outputs_of_pair(doorbell: &Path, line: &str, options: &[&str]) -> Result<[String; 2], String> {
    let mut result = pair(doorbell, line, options);
    for _ in 0..OTHER_TRIES {
        if !result.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
            break;
        }
        result = pair(doorbell, line, options);
    }
    result
}

fn pair(doorbell: &Path, line: &str, options: &[&str]) -> Result<[String; 2], String> {
    let words: Vec<&str> = line.split(' ').collect();
    ports::on_free_port(|port| {
        let words = [&words[..], &["-p", port]].concat();
        let mut server = start(on(doorbell, options, &words))?;
        ports::wait_until_listening(port, &mut server)?;
        let client = start(on(doorbell, options, &[&words[..], &["127.0.0.1"]].concat()))?;
        let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
        Ok([client?, server?])
    })
    .map_err(|why| format!("{line}: {why}"))
}

/// A started program. Dropping it kills the program.
struct Started {
    child: std::process::Child,
    /// Folder for the output and the core file of the program. No other program uses this folder.
    folder: PathBuf,
}

/// Name of the file with a program's output.
const OUTPUT: &str = "output.txt";

/// Starts a program in a new folder, unless its command sets a working directory. With separate folders, two programs
/// that crash write separate core files.
fn start(mut command: Command) -> Result<Started, String> {
    let folder = place::own_file("program");
    let file = fs::create_dir_all(&folder).and_then(|()| fs::File::create(folder.join(OUTPUT)));
    let file = file.map_err(|error| format!("{} could not be written: {error}", folder.display()))?;
    let both = file.try_clone().map_err(|error| error.to_string())?;
    if command.get_current_dir().is_none_or(|current| current == root()) {
        command.current_dir(&folder);
    }
    let child = command.stdout(Stdio::from(file)).stderr(Stdio::from(both)).spawn();
    let child = child.map_err(|error| format!("{command:?} could not be started: {error}"))?;
    Ok(Started { child, folder })
}

impl Started {
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the program ends with any status, and returns its output.
    fn ended(&mut self) -> Result<String, String> {
        self.wait_until(Self::has_ended)?;
        Ok(self.said())
    }

    fn wait_until(&mut self, done: impl Fn(&mut Self) -> bool) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if done(self) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("the program does not reach the expected state\n{}", self.said()))
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join(OUTPUT)).unwrap_or_default()
    }

    /// Waits until the program succeeds, and returns its output.
    fn finish(mut self, patience: Duration) -> Result<String, String> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    let said = self.said();
                    let is_good = status.success() || rping::failed_by_late_event_call(status.code(), &said);
                    return if is_good { Ok(said) } else { Err(format!("{status}\n{said}")) };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("the program does not end\n{}", self.said()))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A folder with a core file is not empty, so `remove_dir` keeps it for the report of the step.
        let _ = fs::remove_file(self.folder.join(OUTPUT));
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Runs rdma-core's tests. No test may fail, and each module must reach its number of passed tests in [`PYVERBS_OK`].
pub(crate) fn pyverbs() -> Result<(), String> {
    let tests = unpacked_tests()?;
    let own = root().join("xtask/programs/rdmacm.py");
    let all = [tests.join("run_tests.py")];
    // The tests of librdmacm skip a device without a network interface. rdmacm.py gives them the address of the device.
    let with_addresses = [own, tests];
    let output = place::own().join("pyverbs.txt");
    let file = fs::File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let mut success = true;
    for script in [&all[..], &with_addresses] {
        let script: Vec<_> = script.iter().map(|path| path.to_string_lossy()).collect();
        let mut arguments = vec!["/usr/bin/python3"];
        arguments.extend(script.iter().map(|path| path.as_ref()));
        arguments.extend(["--dev", "doorbell0", "--gid", "0", "-v"]);
        let handle = || file.try_clone().map(Stdio::from).map_err(|error| error.to_string());
        let status = on_doorbell(&[], &arguments).stdout(handle()?).stderr(handle()?).status();
        success &= status.map_err(|error| format!("the tests could not be started: {error}"))?.success();
    }
    let text = fs::read_to_string(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let passed = passed_per_module(&text);
    let all: usize = passed.values().sum();
    eprintln!("rdma-core's tests: {all} pass");
    for line in PYVERBS_OK.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (module, least) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no module and a number"))?;
        let least: usize = least.parse().map_err(|error| format!("{line:?}: {error}"))?;
        let now = passed.get(module).copied().unwrap_or(0);
        if now < least {
            return Err(format!("{now} tests of {module} pass, must be at least {least}: {}", output.display()));
        }
    }
    if success { Ok(()) } else { Err(format!("rdma-core's tests failed: {}", output.display())) }
}

/// Counts the passed tests of each module, from lines `test_name (tests.module.Class...) ... ok`. If a test prints
/// something, `ok` comes in a later line of its own.
fn passed_per_module(text: &str) -> std::collections::BTreeMap<String, usize> {
    let mut passed = std::collections::BTreeMap::new();
    let mut module = "";
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("(tests.")
            && line.starts_with("test_")
        {
            module = rest.split('.').next().unwrap_or("");
        }
        if (line.ends_with("... ok") || line == "ok") && !module.is_empty() {
            *passed.entry(module.to_owned()).or_default() += 1;
        }
    }
    passed
}

/// Unpacks rdma-core's tests and returns their folder. Debian installs these tests compressed, with the documentation.
fn unpacked_tests() -> Result<PathBuf, String> {
    let from = Path::new("/usr/share/doc/rdma-core/tests");
    let to = place::own().join("rdma-core").join("tests");
    let failed = |error: std::io::Error| format!("rdma-core's tests could not be unpacked: {error}");
    fs::create_dir_all(&to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = match name.strip_suffix(".gz") {
            Some(_) => {
                let gunzip = command("gzip", &["-dc", &path.to_string_lossy()]).stdout(Stdio::piped()).spawn();
                let mut bytes = Vec::new();
                let mut gunzip = gunzip.map_err(failed)?;
                if let Some(mut pipe) = gunzip.stdout.take() {
                    pipe.read_to_end(&mut bytes).map_err(failed)?;
                }
                gunzip.wait().map_err(failed)?;
                bytes
            }
            None if path.is_file() => fs::read(&path).map_err(failed)?,
            None => continue,
        };
        let place = to.join(name.strip_suffix(".gz").unwrap_or(&name));
        fs::File::create(place).and_then(|mut file| file.write_all(&bytes)).map_err(failed)?;
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_page_are_known_beside_own_programs() {
        let own = ["misuse", drop_ins::NAME];
        assert_eq!(unknown(&own, &["UCX", drop_ins::NAME, "fio"]), None);
        assert_eq!(unknown(&own, &["misuse", "ucx", "nonsense"]), Some("ucx"));
    }
}
