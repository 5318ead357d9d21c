//! `doorbell run` and `doorbell env`: unmodified verbs programs on the software RNIC.

mod processes;
mod watched;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_fabric::FaultPlan;
use doorbell_verbs::soft::{
    self, ACK_VARIABLE, AckPolicy, BIND_VARIABLE, DEVICE_VARIABLE, DEVICES_VARIABLE, DevicesError, LINK_VARIABLE,
    LinkChoice, SoftDevice,
};

use crate::drop_ins;
use crate::ending;
use crate::failure::{Failure, Usage};
use crate::faults::{FaultCheck, FaultFiles};
use crate::output::{line, note, pretty};
use crate::quantity;

pub(crate) const EXAMPLES: &str = "\
Examples, in two terminals:
  doorbell run -- ib_send_bw -d doorbell0
  doorbell run -- ib_send_bw -d doorbell0 127.0.0.1
  doorbell run --pcap /tmp/pingpong.pcap -- ibv_rc_pingpong -g 0
  doorbell run -- make check              programs that the command starts have a device too
  doorbell run --devices 2 --device doorbell1:numa=1,speed=200 -- ibv_devinfo
  doorbell run --processes                processes with open devices, and their traffic

The program replaces `doorbell` in its process, and so has its terminal, signals and exit status.
With rules of a fault plan, the program is a child of `doorbell`, which forwards signals and exit
status. The status is 1 if the program succeeds, but a rule without `optional` never fired.
Programs that it starts inherit the device, as long as LD_PRELOAD, LD_LIBRARY_PATH and the DOORBELL_
variables are passed on. Programs that are linked statically, or setuid, cannot be reached;
--explain names each such program that is started. Programs that open libibverbs themselves find the
library of this name in the folder that LD_LIBRARY_PATH names.";

/// Settings of the software RNIC that the program finds.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// Address of the device [default: next free loopback address]. With several devices, the address of each one,
    /// separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = quantity::address)]
    bind: Vec<IpAddr>,
    /// Number of devices that the program finds, 1 to 64: doorbell0, doorbell1 and so on. A device is opened when the
    /// program opens it [default: 1]
    #[arg(long, value_name = "N")]
    devices: Option<String>,
    /// Options of one device, such as doorbell1:numa=1,pci=0000:41:00.0,speed=200. The place of the device in /sys has
    /// the options numa and pci. The rate of its port in Gb/s is speed, and does not limit it. The last option may be
    /// fault=PLAN, which replaces --fault for this device
    #[arg(long = "device", value_name = "NAME:OPTIONS")]
    device_options: Vec<String>,
    /// UDP port of both ends; the port of RoCE is 4791
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    udp_port: Option<u16>,
    /// Write every packet that a process sends or receives to a pcap file. In its name, %p stands for the process ID,
    /// and %d for the name of the device
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Faults of arriving packets, separated by commas: any of drop=P, duplicate=P, reorder=P, corrupt=P (a share, 0
    /// to 1), delay=T (such as 5us), seed=N. Or rules, separated by semicolons, such as 'drop opcode=ack nth=1' (see
    /// docs/faults.md)
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,
    #[command(flatten)]
    fault_files: FaultFiles,
    /// Print counters of each process to standard error when it ends
    #[arg(long)]
    stats: bool,
    /// IDs of the vendor and part that the device reports. Some programs choose their features by these IDs: perftest
    /// uses inline data and ibv_wr_* with 0x2c9:4119
    #[arg(long, value_name = "VENDOR[:PART]", value_parser = parse_vendor)]
    vendor_id: Option<String>,
    /// Report on standard error, each only once: requested calls and files of RDMA devices that are not supported,
    /// probable causes of failed completions, and started programs that cannot be reached
    #[arg(long)]
    explain: bool,
    /// Time at which the device acknowledges a message. With `strict`, the device acknowledges a message before the
    /// program sees it. `answer` does the same, unless the program has answered the last eight messages [default:
    /// answer]
    #[arg(long, value_name = "POLICY")]
    ack: Option<AckPolicy>,
    /// Path of packets between processes of this machine and user: `udp`, `shm` (memory that both processes share), or
    /// `auto` (`shm` if both processes support shared memory, else `udp`) [default: auto]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkChoice>,
}

/// Run a program on the software RNIC
#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    settings: Settings,
    /// List the processes of this user (for root, of all users) that have a device open, with the addresses and the
    /// traffic of the device
    #[arg(long, conflicts_with_all = ["program", "bind", "devices", "device_options", "udp_port", "pcap", "fault", "fault_plan",
        "fault_journal", "stats", "vendor_id", "explain", "ack", "link"])]
    processes: bool,
    /// Print the list as one JSON object
    #[arg(long, requires = "processes", conflicts_with = "program")]
    json: bool,
    /// Journal of the fault plan, whose rules the parent process checks at the end.
    #[arg(long, hide = true, value_name = "FILE")]
    watched: Option<PathBuf>,
    /// Start the watched program with SIGCHLD ignored.
    #[arg(long, hide = true, requires = "watched")]
    ignore_children: bool,
    /// File to write to if the watched program could not be started.
    #[arg(long, hide = true, requires = "watched", value_name = "FILE")]
    unstarted: Option<PathBuf>,
    /// Program and its arguments, with or without `--` before the program. The program must be dynamically linked, and
    /// must not be setuid
    #[arg(trailing_var_arg = true, required_unless_present = "processes", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Print the variables that make programs run on the software RNIC
#[derive(Args, Debug)]
pub(crate) struct Env {
    #[command(flatten)]
    settings: Settings,
    /// Print one JSON object instead of lines for a shell
    #[arg(long)]
    json: bool,
}

/// Runs the program in place of `doorbell`, in the same process. Returns only with `--processes`, after an error, or if
/// a fault plan has rules to check at the end of the program.
pub(crate) fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    if arguments.processes {
        return processes::list(arguments.json);
    }
    if arguments.watched.is_none()
        && let Some(check) = arguments.settings.check()?
    {
        return watched::run(check);
    }
    let started = start(arguments);
    if let Some(file) = arguments.unstarted.as_ref().filter(|_| started.is_err()) {
        // Without this mark, the parent also names the rules that never fired.
        let _ = fs::write(file, "1");
    }
    started
}

/// Runs the program in this process. Returns only after an error.
fn start(arguments: &Run) -> Result<ExitCode, Failure> {
    let words = &arguments.program[..];
    let Some(name) = words.first() else {
        return Err(Usage("no program is given: use doorbell run PROGRAM".to_owned()).into());
    };
    let variables = arguments.settings.variables(arguments.watched.as_deref())?;
    if arguments.watched.is_some() {
        ending::with_parent()?;
        if arguments.ignore_children {
            doorbell_reach::discard_ended_children()?;
        }
    }
    let error = doorbell_reach::execute_by_name(name, words, &variables, |found| {
        // The preloaded library writes this note for programs that the program starts.
        if arguments.settings.explain
            && let Some(barrier) = doorbell_reach::barrier(found)
        {
            note!("doorbell: {} cannot be reached: {barrier}", found.display());
        }
    });
    let is_missing = error.kind() == ErrorKind::NotFound && !name.to_string_lossy().contains('/');
    let remedy = if is_missing { ": install the program, or give its path" } else { "" };
    Err(format!("{} could not be started: {error}{remedy}", name.display()).into())
}

/// Prints the variables that [`run`] sets.
pub(crate) fn print_env(arguments: &Env) -> Result<ExitCode, Failure> {
    let variables = arguments.settings.variables(None)?;
    let texts = variables.iter().map(|(name, value)| (*name, value.to_string_lossy()));
    if arguments.json {
        let object: serde_json::Map<_, _> =
            texts.map(|(name, value)| (name.to_owned(), value.into_owned().into())).collect();
        pretty(&object)?;
    } else {
        for (name, value) in texts {
            line(format_args!("export {name}={}", quoted(&value)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Settings {
    /// Returns the check of the rules at the end of the program; `None` if no plan has a required rule.
    fn check(&self) -> Result<Option<FaultCheck>, Failure> {
        let (_, listed) = self.devices()?;
        let plan = self.fault.as_ref().or(self.fault_files.fault_plan.as_ref());
        // The common plan has no effect if each device has its own plan.
        let common = plan.filter(|_| listed.iter().any(|device| device.faults.is_none()));
        let own = listed.iter().filter_map(|device| Some((device.name(), device.faults.clone()?)));
        let own: Vec<(String, FaultPlan)> = own.collect();
        if !common.into_iter().chain(own.iter().map(|(_, plan)| plan)).any(has_required_rule) {
            return Ok(None);
        }
        FaultCheck::of_program(common, own, self.fault_files.fault_journal.as_deref()).map(Some)
    }

    /// Returns the variables of the program. `watched` is the journal of a program whose parent checks the rules.
    fn variables(&self, watched: Option<&Path>) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let mut variables = drop_ins::variables()?;
        let mut set = |name, value: Option<String>| variables.extend(value.map(|value| (name, value.into())));
        let (devices, listed) = self.devices()?;
        devices.into_iter().for_each(|(name, value)| set(name, Some(value)));
        set("DOORBELL_PORT", self.udp_port.map(|port| port.to_string()));
        let faults = self.fault.as_ref().or(self.fault_files.fault_plan.as_ref());
        set("DOORBELL_FAULT", faults.map(|plan| plan.to_string()));
        set("DOORBELL_STATS", self.stats.then(|| "1".to_owned()));
        set("DOORBELL_VENDOR_ID", self.vendor_id.clone());
        set("DOORBELL_LOG", self.explain.then(|| "debug".to_owned()));
        set(ACK_VARIABLE, self.ack.map(|policy| policy.to_string()));
        set(LINK_VARIABLE, self.link.map(|link| link.to_string()));
        if let Some(journal) = watched {
            variables.push(("DOORBELL_FAULT_JOURNAL", journal.into()));
            variables.push(("DOORBELL_FAULT_WATCHED", "1".into()));
        } else if let Some(path) = &self.fault_files.fault_journal {
            let of_a_device = || listed.iter().find_map(|device| device.faults.as_ref());
            // The processes of the program append to the journal, each what fires in its device.
            if let Some(check) = FaultCheck::begin(faults.or_else(of_a_device), Some(path))? {
                variables.push(("DOORBELL_FAULT_JOURNAL", check.journal().into()));
            }
        }
        if let Some(pcap) = &self.pcap {
            // The program may change its directory before it opens the device.
            variables.push(("DOORBELL_PCAP", std::path::absolute(pcap)?.into_os_string()));
        }
        Ok(variables)
    }
}

/// A variable of the program's environment, and its value.
type Variable = (&'static str, String);

impl Settings {
    /// Returns the variables of the options that concern the list of devices, and the list that results from them and
    /// from the environment of this process.
    fn devices(&self) -> Result<(Vec<Variable>, Vec<SoftDevice>), Failure> {
        let (mut variables, mut numbers): (Vec<Variable>, Vec<usize>) = Default::default();
        if !self.bind.is_empty() {
            let addresses: Vec<String> = self.bind.iter().map(IpAddr::to_string).collect();
            variables.push((BIND_VARIABLE, addresses.join(",")));
        }
        variables.extend(self.devices.clone().map(|count| (DEVICES_VARIABLE, count)));
        for text in &self.device_options {
            let parts = text.split_once(':').and_then(|(name, options)| Some((soft::number_of(name)?, options)));
            let Some((number, options)) = parts else {
                let form = "must be NAME:OPTIONS, such as doorbell1:numa=1,pci=0000:41:00.0,speed=200";
                return Err(Usage(format!("--device {text}: {form}")).into());
            };
            // The name lives until the program replaces this process.
            let name: &str = format!("{DEVICE_VARIABLE}{number}").leak();
            if numbers.contains(&number) {
                return Err(Usage(format!("--device doorbell{number} is given twice, allowed is once")).into());
            }
            variables.push((name, options.to_owned()));
            numbers.push(number);
        }
        let given = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone());
        let inherited = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
        let wrong = |error: DevicesError| Usage(error.to_string());
        let listed = SoftDevice::list_of(|name| given(name).or_else(|| inherited(name))).map_err(wrong)?;
        numbers.iter().try_for_each(|&number| SoftDevice::expect(&listed, number)).map_err(wrong)?;
        Ok((variables, listed))
    }
}

fn has_required_rule(plan: &FaultPlan) -> bool {
    plan.rules().iter().any(|rule| !rule.is_optional())
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-:=,%+".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn parse_vendor(text: &str) -> Result<String, String> {
    let is_number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).is_ok(),
        None => text.parse::<u32>().is_ok(),
    };
    if text.split(':').count() <= 2 && text.split(':').all(is_number) {
        return Ok(text.to_owned());
    }
    Err("must be a number, or two separated by a colon, such as 0x2c9:4119".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_stays_one_word() {
        assert_eq!(quoted("/a/b.so:/c"), "/a/b.so:/c");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn vendors_are_one_number_or_two() {
        for good in ["0x2c9", "713:4119", "0x2c9:0x1017"] {
            assert_eq!(parse_vendor(good).as_deref(), Ok(good));
        }
        for bad in ["", "0x", "1:2:3", "1:", "mellanox", "-1", "4294967296"] {
            assert!(parse_vendor(bad).is_err(), "{bad:?}");
        }
    }
}
