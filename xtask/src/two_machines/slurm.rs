//! `doorbell study` as a step of Debian's Slurm. The controller and two nodes of Slurm run on this machine.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io::Write};

use super::PATIENCE;
use crate::peers;
use crate::place;
use crate::programs::doorbell;
use crate::shell::{Running, command, output_of};
use crate::test::StepEnd;

/// Runs a study whose hosts are two tasks of a Slurm step, each on a separate node.
pub(crate) fn slurm() -> StepEnd {
    if !peers::is_root() {
        return StepEnd::LeftOut("only root can start Slurm's daemons".to_owned());
    }
    let programs = [("munged", "munge"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client")];
    let missing: Vec<_> = programs.into_iter().filter(|(program, _)| !peers::has(program)).collect();
    if let Some((program, package)) = missing.first() {
        return StepEnd::LeftOut(format!("there is no {program}; Debian's package is {package}"));
    }
    step().into()
}

fn step() -> Result<(), String> {
    // Use a temporary directory. munge rejects paths that other users may write to, and Slurm rejects paths as long as
    // those in the folder of a run.
    let directory = tempfile::Builder::new().prefix("doorbell-slurm-").tempdir().map_err(|error| error.to_string())?;
    let directory = directory.path();
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let _daemons = start(directory).map_err(|why| format!("{why}: {}", logs(directory)))?;
    let doorbell = doorbell();
    let out = place::own().join("study-slurm");
    let shared = directory.join("shared");
    fs::DirBuilder::new().mode(0o700).create(&shared).map_err(failed)?;
    let study = |words: &[&str]| {
        let (doorbell, out) = (doorbell.to_string_lossy(), out.to_string_lossy());
        let asks = ["-N", "2", &doorbell, "study", "-d", "doorbell0", "--out", &out, "hosts/pairs"];
        let mut srun = command("srun", &[&asks[..], words].concat());
        srun.env("SLURM_CONF", directory.join("slurm.conf")).env_remove("DOORBELL_TOKEN");
        srun.output().map_err(|error| format!("srun: {error}"))
    };
    // Without --rendezvous, the nodes get no token, so the study must fail.
    let refused = study(&[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    if refused.status.success() || said.matches("DOORBELL_TOKEN").count() != 1 {
        return Err(format!("a step without a token: {said}"));
    }
    let finished = study(&["--rendezvous", &shared.to_string_lossy()])?;
    let said = [finished.stdout, finished.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !finished.status.success() || said[0].lines().count() != 1 || !said[1].contains("host 1: ") {
        return Err(format!("a step with two tasks: {}: {}{}", finished.status, said[0], said[1]));
    }
    let records = fs::read_dir(&out).map_err(failed)?.flatten();
    let records = records.filter(|file| file.path().extension().is_some_and(|extension| extension == "json")).count();
    eprintln!("srun: {records} points between two tasks");
    if records == 0 { Err("srun: no records".to_owned()) } else { Ok(()) }
}

/// Starts the daemons and waits until both nodes can be used.
fn start(directory: &Path) -> Result<Vec<Running>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let host = output_of(command("hostname", &["-s"]))?;
    let at = directory.display().to_string();
    let configuration = configuration(host.trim(), &at);
    fs::write(directory.join("slurm.conf"), configuration).map_err(failed)?;
    let key = directory.join("munge.key");
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key).map_err(failed)?;
    // The key need not be secret, because only the daemons of this check use it.
    file.write_all(&[b'k'; 1024]).map_err(failed)?;
    fs::create_dir(directory.join("state")).map_err(failed)?;
    let own = |option: &str, name: &str| format!("--{option}={at}/{name}");
    let files = [
        own("key-file", "munge.key"),
        own("socket", "munge.sock"),
        own("pid-file", "munge.pid"),
        own("log-file", "munge.log"),
        own("seed-file", "munge.seed"),
    ];
    let mut munged = command("munged", &["--foreground", "--force"]);
    munged.args(&files);
    let mut daemons = vec![Running::start(munged)?];
    wait("munged", || directory.join("munge.sock").exists())?;
    let with_configuration = |program: &str, arguments: &[&str]| {
        let mut command = command(program, arguments);
        command.env("SLURM_CONF", directory.join("slurm.conf"));
        command
    };
    daemons.push(Running::start(with_configuration("slurmctld", &["-D"]))?);
    for node in ["n1", "n2"] {
        daemons.push(Running::start(with_configuration("slurmd", &["-D", "-N", node]))?);
    }
    let are_idle =
        || output_of(with_configuration("sinfo", &["-h", "-o", "%D %T"])).is_ok_and(|said| said.trim() == "2 idle");
    wait("slurmd", are_idle)?;
    Ok(daemons)
}

fn wait(what: &str, is_there: impl Fn() -> bool) -> Result<(), String> {
    let until = Instant::now() + PATIENCE / 5;
    while !is_there() {
        if Instant::now() > until {
            return Err(format!("{what} is not ready in time"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn configuration(host: &str, at: &str) -> String {
    format!(
        "ClusterName=doorbell
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={at}/munge.sock
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldPidFile={at}/slurmctld.pid
SlurmdLogFile={at}/slurmd-%n.log
SlurmctldLogFile={at}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=2
SelectType=select/cons_tres
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[16821-16822] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"
    )
}

/// Returns the logs of the daemons, for the report of a failure.
fn logs(directory: &Path) -> String {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = files.filter(|file| file.extension().is_some_and(|extension| extension == "log"));
    logs.filter_map(|file| fs::read_to_string(file).ok()).collect::<Vec<_>>().join("\n")
}
