//! `doorbell study`.

mod ends;
mod list;
mod own;
mod source;

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use clap::Args;
use doorbell_campaign::callers::{Callers, Invitation, be_called, be_called_by_ssh};
use doorbell_campaign::launch::Launch;
use doorbell_campaign::rounds::{Source, measure_all};
use doorbell_campaign::{MEMORY_BYTES, OwnDevice};
use doorbell_exchange::address::scope_hint;
use doorbell_fabric::FaultPlan;
use doorbell_machine::pinning::Pinning;
use doorbell_record::Environment;
use doorbell_sim::Testbed;
use doorbell_sim::reproduce::Effort as SimulatedEffort;
use doorbell_study::experiment::{self, DirectoryError, Effort, Experiment, RunDirectory};
use doorbell_verbs::soft::{self, AckPolicy, LinkChoice, SoftOptions};
use doorbell_verbs::{Device, DeviceAttributes};
use serde_json::json;

use crate::control::Meeting;
use crate::cpus::Cpus;
use crate::device::{Chosen, DeviceChoice, UdpPort, ask_for_short_time_slices, without_bind};
use crate::failure::{Failure, Usage, WRONG_USAGE};
use crate::faults::{FaultCheck, FaultFiles};
use crate::output::{note, pretty, print_note, wrapped};
use crate::progress::StudyBar;
use crate::report;
use crate::sim::arguments::Simulated;
use own::OwnArguments;
use source::PointSource;

const EXAMPLES: &str = "\
Examples:
  doorbell study                            everything, three minutes at most
  doorbell study --standard                 everything, with more points, ten minutes at most
  doorbell study send-receive/window        one experiment
  doorbell study --request 200 --reply 64K --clients 24
                                            your requests, with every protocol
  doorbell study --sizes 64:0.9,64K:0.1 --reply 64 --clients 8 --rate 50k
                                            a mix of sizes at an offered rate
  doorbell study links                      every protocol over UDP and through shared memory
  doorbell study far-memory --testbed connectx5-100g-far
                                            passive memory that many clients share, simulated
  doorbell study --out DIR                  records and report in DIR; points already in DIR are not
                                            measured again, so an interrupted study continues there
  doorbell study --testbed connectx5-100g   everything, on simulated RNICs
  DOORBELL_TOKEN=secret doorbell study --listen      be the other machine of a study
  DOORBELL_TOKEN=secret doorbell study 192.0.2.7     ... and the study with that machine
  mpirun -np 4 doorbell study               ... on the hosts of a launcher (Open MPI, MPICH, srun)
  doorbell study --via ssh node7 node8      ... on hosts where ssh can start it
  DOORBELL_TOKEN=secret doorbell study hosts 192.0.2.7 192.0.2.8 192.0.2.9
                                            experiments on many hosts, on four of them";

/// File name of the report in the directory of the records.
const REPORT: &str = "report.html";

/// Measure message exchange between two processes on this machine, or between this machine and others, or simulate it
/// (--testbed). A study runs every published experiment, and writes one record per point and a report. Experiments on
/// memory that many clients share (far-memory), and experiments that compare UDP with shared memory (links), run only
/// if they are named.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Study {
    /// Experiments, or families of experiments such as send-receive. `all` means those that compare the protocols by
    /// latency and bandwidth [default: all except far-memory, links and, with fewer than two other machines, hosts].
    /// Any other name is a machine on which `doorbell study --listen` runs, as HOST or HOST:PORT [default: a second
    /// process on this machine]
    #[arg(value_name = "EXPERIMENT|HOST", conflicts_with = "listen")]
    names: Vec<String>,
    /// Former name of the default
    #[arg(long, hide = true, conflicts_with_all = ["standard", "full"])]
    quick: bool,
    /// Measure more points for a longer time: at most ten minutes on two processors
    #[arg(long, conflicts_with = "full")]
    standard: bool,
    /// Measure all points of every variant for a longer time: about four hours
    #[arg(long)]
    full: bool,
    /// Directory of the records and of the report [default: doorbell-study, followed by -standard or -full, with
    /// --request or --sizes by -requests, and with --testbed by the testbed's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only list the experiments and their numbers of points
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    udp: UdpPort,
    /// Time at which both ends acknowledge a message. With `strict`, a device acknowledges a message before the program
    /// sees it. `answer` does the same, unless the program has answered the last eight messages [default: DOORBELL_ACK,
    /// else answer]
    #[arg(long, value_name = "POLICY")]
    ack: Option<AckPolicy>,
    /// Path of packets between processes of this machine: `udp`, `shm` (memory that both processes share), or `auto`
    /// (`shm` if available, else `udp`) [default: DOORBELL_LINK, else auto]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkChoice>,
    /// Faults of packets, calls and completions at both ends, as for `doorbell bench` (see docs/faults.md). Each device
    /// of a point begins the plan anew. The records state the plan, and no claim about a clean link is judged
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,
    #[command(flatten)]
    fault_files: FaultFiles,
    #[command(flatten)]
    cpus: Cpus,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    simulated: Simulated,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    meeting: Meeting,
    /// Start doorbell on the other machines by ssh, so that no `doorbell study --listen` must run there; hosts are then
    /// names for ssh
    #[arg(long, value_name = "PROGRAM", value_parser = ["ssh"], conflicts_with = "listen", help_heading = MACHINES)]
    via: Option<String>,
    /// Path of doorbell on the other machines
    #[arg(long, value_name = "PATH", default_value = "doorbell", requires = "via", help_heading = MACHINES)]
    remote: String,
    /// Meeting point of processes that a launcher has started. Give HOST:PORT of process number 0, or a directory that
    /// all machines share, with a slash in its name [default: from the launcher]
    #[arg(long, value_name = "PLACE", help_heading = MACHINES)]
    rendezvous: Option<String>,
    /// Read from standard input the address of the process that started this process by ssh
    #[arg(long, hide = true, conflicts_with_all = ["listen", "via"])]
    called_by_ssh: bool,
    #[command(flatten)]
    own: OwnArguments,
}

const MACHINES: &str = "Other machines";

impl Study {
    fn effort(&self) -> Effort {
        match (self.standard, self.full) {
            (true, _) => Effort::Usual,
            (_, true) => Effort::Full,
            _ => Effort::Quick,
        }
    }

    fn choose(&self) -> Result<Chosen, Failure> {
        self.device.choose(self.own_option())
    }

    /// Returns the RNIC of a process that another process has started, without a note about the choice.
    fn own_quietly(&self) -> Result<Own<'_>, Failure> {
        let chosen = self.device.choose_quietly(self.own_option())?.0;
        Ok(Own { study: self, chosen, journal: self.fault_files.fault_journal.clone() })
    }

    /// Returns the fault plan, if one was given.
    fn faults(&self) -> Option<&FaultPlan> {
        self.fault.as_ref().or(self.fault_files.fault_plan.as_ref())
    }

    /// Returns an option that the user gave and that only the embedded RNIC has.
    fn own_option(&self) -> Option<&'static str> {
        let own = [
            ("--udp-port", !self.udp.is_roce()),
            ("--ack", self.ack.is_some()),
            ("--link", self.link.is_some()),
            ("--fault", self.fault.is_some()),
            ("--fault-plan", self.fault_files.fault_plan.is_some()),
            ("--fault-journal", self.fault_files.fault_journal.is_some()),
        ];
        own.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Returns the arguments for doorbell on other machines, which must measure with the same options.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let given = [
            ("-d", self.device.name.clone()),
            ("-i", self.device.ib_port.map(|port| port.to_string())),
            ("-x", self.device.gid_index.map(|index| index.to_string())),
            ("--udp-port", (!self.udp.is_roce()).then(|| self.udp.port.to_string())),
            ("--ack", self.ack.map(|ack| ack.to_string())),
            ("--link", self.link.map(|link| link.name().to_owned())),
            ("--fault", self.faults().map(ToString::to_string)),
            ("--cpus", self.cpus.argument()),
        ];
        for (option, value) in given {
            arguments.extend(value.map(|value| [option.to_owned(), value]).into_iter().flatten());
        }
        arguments
    }

    /// Returns the launch that this process belongs to, or `None` if no launcher started this process.
    fn launch(&self) -> Result<Option<Launch>, Usage> {
        if self.listens() || self.called_by_ssh || self.list {
            return Ok(None);
        }
        let launch = Launch::of(|name| std::env::var(name).ok(), self.rendezvous.as_deref(), self.meeting.port())?;
        if launch.is_none() && self.rendezvous.is_some() {
            return Err(Usage(
                "--rendezvous requires a launcher such as mpirun or srun, but the environment names none".to_owned(),
            ));
        }
        Ok(launch)
    }

    /// Returns whether a launcher started this process.
    pub(crate) fn is_launched(&self) -> bool {
        matches!(self.launch(), Ok(Some(_)))
    }

    fn directory(&self, testbed: Option<&Testbed>) -> PathBuf {
        let by_effort = match self.effort() {
            Effort::Quick => "doorbell-study",
            Effort::Usual => "doorbell-study-standard",
            Effort::Full => "doorbell-study-full",
        };
        let own = if self.own.is_given() { "-requests" } else { "" };
        let faults = if self.faults().is_some() { "-faults" } else { "" };
        let default = || match testbed {
            Some(testbed) => format!("{by_effort}{own}-{}{faults}", testbed.name).into(),
            None => format!("{by_effort}{own}{faults}").into(),
        };
        self.out.clone().unwrap_or_else(default)
    }

    /// Returns the number of measurements of each point. A point is simulated only once, because repeated simulations
    /// are identical.
    fn repetitions(&self, testbed: Option<&Testbed>) -> usize {
        if testbed.is_some() { 1 } else { self.effort().repetitions() }
    }

    /// Returns the length of simulated runs.
    fn simulated_effort(&self) -> SimulatedEffort {
        match self.effort() {
            Effort::Quick => SimulatedEffort::QUICK,
            Effort::Usual => SimulatedEffort::USUAL,
            Effort::Full => SimulatedEffort::FULL,
        }
    }

    pub(crate) fn listens(&self) -> bool {
        self.meeting.listens()
    }

    /// Returns the experiments that the user named, also by the names of their families, and the other machines.
    fn chosen(&self, testbed: Option<&Testbed>, launched: usize) -> Result<(Vec<Experiment>, Vec<String>), Usage> {
        let mut all = experiment::all(self.effort());
        let is_meant = |name: &str, experiment: &Experiment| {
            // `all` means the experiments that compare protocols.
            if name == "all" {
                return experiment.name.ends_with("/latency") || experiment.name.ends_with("/bandwidth");
            }
            let rest = experiment.name.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let (experiments, hosts): (Vec<&String>, Vec<&String>) =
            self.names.iter().partition(|name| all.iter().any(|known| is_meant(name, known)));
        if let Some(unknown) = hosts.iter().find(|name| self.via.is_none() && !is_host(&self.meeting.at(name))) {
            let names: Vec<_> = all.iter().map(|experiment| experiment.name.as_str()).collect();
            return Err(Usage(format!(
                "there is no experiment {unknown}, and no host of that name is found{}; experiments are {}",
                scope_hint(unknown),
                names.join(", ")
            )));
        }
        if let Some(own) = self.own.experiment(self.effort())? {
            if let Some(named) = experiments.first() {
                let option = self.own.option().unwrap_or("--request");
                return Err(Usage(format!("{option} measures {} alone: leave out {named}", own.name)));
            }
            all = vec![own];
        } else if !experiments.is_empty() {
            all.retain(|experiment| experiments.iter().any(|name| is_meant(name, experiment)));
        } else if !self.list {
            all.retain(|experiment| !experiment.has_to_be_named(launched.max(1 + hosts.len())));
        }
        if let (Some(link), Some(comparing)) = (self.link, all.iter().find(|experiment| experiment.compares_links()))
            && !self.list
        {
            let name = &comparing.name;
            return Err(Usage(format!("{name} compares links, and sets the link of each point: drop --link {link}")));
        }
        let is_far = |experiment: &&Experiment| experiment.points.iter().any(|point| point.parameters.far.is_some());
        if let Some(far) = all.iter().find(is_far)
            && self.faults().is_some()
            && !self.list
        {
            return Err(Usage(format!(
                "{} measures far memory, whose parties take no fault plan: leave it out",
                far.name
            )));
        }
        if testbed.is_none() {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            all.iter_mut().for_each(|experiment| experiment.fit_to_machine(self.effort(), cpus));
            if let Some(empty) = all.iter().find(|experiment| experiment.points.is_empty())
                && experiments.iter().any(|name| **name == empty.name)
            {
                return Err(Usage(format!("{} has parts that exist only in virtual time: add --testbed", empty.name)));
            }
            all.retain(|experiment| !experiment.points.is_empty());
        } else {
            let effort = self.simulated_effort();
            for parameters in all.iter_mut().flat_map(|it| &mut it.points).map(|point| &mut point.parameters) {
                // Each point has exactly one size.
                parameters.extent = effort.extent(parameters, parameters.sizes.first().copied().unwrap_or(0));
            }
        }
        let at = |host: &String| if self.via.is_some() { host.clone() } else { self.meeting.at(host) };
        Ok((all, hosts.into_iter().map(at).collect()))
    }
}

/// Returns whether this is an address, or a name that the system resolves.
fn is_host(address: &str) -> bool {
    address.to_socket_addrs().is_ok()
}

pub(crate) fn run(study: &Study) -> Result<ExitCode, Failure> {
    study.meeting.check()?;
    let others = [
        ("-d", study.device.name.is_some()),
        ("--ack", study.ack.is_some()),
        ("--link", study.link.is_some()),
        ("--cpus", study.cpus.is_given()),
        ("--listen", study.listens()),
    ];
    let testbed = study.simulated.read(&others)?;
    if study.listens() {
        let own = Own { study, chosen: study.choose()?, journal: study.fault_files.fault_journal.clone() };
        study.udp.note_if_other();
        let pinning = |device: &Device| {
            let pinning = study.cpus.pinning(device)?;
            note!("{pinning}");
            Ok(pinning)
        };
        match study.meeting.serve(MEMORY_BYTES, pinning, |toward| own.open(toward))? {}
    }
    if study.called_by_ssh {
        return serve_by_ssh(study).map(exit_code);
    }
    let launch = if testbed.is_none() { study.launch()? } else { None };
    let chosen = study.chosen(testbed.as_ref(), launch.as_ref().map_or(1, |launch| launch.ranks));
    if let Some(launch) = launch.as_ref().filter(|launch| launch.rank > 0) {
        // Process number 0 was started with the same command line, and reports its errors.
        let is_right = chosen.is_ok_and(|(_, hosts)| hosts.is_empty())
            && study.via.is_none()
            && launch.token(study.meeting.token()).is_ok();
        launch.check()?;
        return match is_right {
            true => be_called(&study.own_quietly()?, launch, study.meeting.token()).map(exit_code),
            false => Ok(ExitCode::from(WRONG_USAGE)),
        };
    }
    let (experiments, hosts) = chosen?;
    if study.quick {
        note!("--quick is the default of a study, and a later release rejects it: leave it out");
    }
    if let (Some(launch), Some(host)) = (&launch, hosts.first()) {
        return Err(Usage(format!(
            "a launcher has started {} processes, which are the hosts of this study: leave out {host}",
            launch.ranks
        ))
        .into());
    }
    if study.via.is_some() && hosts.is_empty() {
        return Err(Usage("--via ssh must have at least one host, on which it starts doorbell".to_owned()).into());
    }
    if let (Some(_), Some(host)) = (&testbed, hosts.first()) {
        return Err(
            Usage(format!("--testbed simulates both ends in this process: drop --testbed or the host {host}")).into()
        );
    }
    if study.list {
        return list::list(study, testbed.as_ref(), &experiments).map(|()| ExitCode::SUCCESS);
    }
    // Accept the other processes of a launch before any step that can fail, so that `refuse_all` can report the failure
    // to them.
    let callers =
        launch.map(|launch| Callers::of(&launch, study.meeting.token(), print_note)).transpose()?.map(Rc::new);
    let result = measure_and_report(study, testbed, callers.clone(), (experiments, hosts));
    if let (Err(error), Some(callers)) = (&result, &callers) {
        callers.refuse_all(&error.to_string());
    }
    result
}

fn exit_code(has_ended_well: bool) -> ExitCode {
    if has_ended_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a process that ssh has started. Its standard input contains the address and the token.
fn serve_by_ssh(study: &Study) -> Result<bool, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let invitation: Invitation =
        serde_json::from_str(&line).map_err(|_| "standard input lacks the address of process 0")?;
    crate::ending::with_input()?;
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    be_called_by_ssh(&study.own_quietly()?, invitation, &connection)
}

/// Measures the missing points of these experiments, and writes the report.
fn measure_and_report(
    study: &Study,
    testbed: Option<Testbed>,
    callers: Option<Rc<Callers>>,
    (mut experiments, hosts): (Vec<Experiment>, Vec<String>),
) -> Result<ExitCode, Failure> {
    let path = study.directory(testbed.as_ref());
    let directory = RunDirectory::create(&path)?;
    let page = path.join(REPORT);
    // Check the files of the report before minutes of measuring.
    if page.is_dir() {
        return Err(format!(
            "{} is a directory, but the report needs this name: move it away, or choose another --out",
            page.display()
        )
        .into());
    }
    let there = match RunDirectory::read(&path) {
        Ok(records) => records,
        Err(DirectoryError::Empty(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let repetitions = study.repetitions(testbed.as_ref());
    let own;
    let mut check = None;
    let source = match testbed {
        Some(testbed) => {
            let journal = study.fault_files.simulated_journal(study.faults())?;
            PointSource::simulated(testbed, study.faults().cloned(), journal)?
        }
        None => {
            study.udp.note_if_other();
            let chosen = study.choose()?;
            check = FaultCheck::begin(study.faults(), study.fault_files.fault_journal.as_deref())?;
            own = Own { study, chosen, journal: check.as_ref().map(|check| check.journal().to_owned()) };
            PointSource::new(study, &own, callers, hosts)?
        }
    };
    source.fit(&mut experiments)?;
    let environment = source.environment();
    if let Some(other) = there.iter().find(|record| record.environment.testbed != environment.testbed) {
        return Err(Usage(format!(
            "{} has points of another kind ({}), not of {}: choose another --out",
            path.display(),
            other.environment.substrate(),
            environment.substrate()
        ))
        .into());
    }
    if let Some(other) = there.iter().find(|record| record.environment.fault_plan != environment.fault_plan) {
        let plan = |environment: &Environment| environment.fault_plan.clone().unwrap_or_else(|| "none".to_owned());
        return Err(Usage(format!(
            "{} has points with the faults {}, not {}: choose another --out",
            path.display(),
            plan(&other.environment),
            plan(environment)
        ))
        .into());
    }
    let outcome = measure_all(&source, &directory, &experiments, repetitions, StudyBar::new)?;
    source.dismiss();
    let mut all_fired = true;
    if outcome.measured > 0 {
        let unfired = source.unfired();
        for sentence in &unfired {
            note!("{}", wrapped(&format!("doorbell: {sentence}")));
        }
        all_fired = check.map_or(Ok(true), FaultCheck::finish)? && unfired.is_empty();
    }
    let written = doorbell_report::write_report(std::slice::from_ref(&path), None, &page)?;
    if study.json {
        pretty(&json!({
            "schema": "doorbell-study/1",
            "directory": path,
            "report": written.path,
            "points": outcome.points,
            "measured": outcome.measured,
            "missing": outcome.missing,
            "failures": outcome.failures,
            "verdicts": written.verdicts,
            "links": report::links_as_json(&written),
        }))?;
    } else {
        if outcome.missing > 0 {
            note!("{} measurements failed and are missing: run the same command again to repeat them", outcome.missing);
        } else if outcome.measured == 0 {
            note!(
                "all {} points were in {} already; with another --out they are measured anew",
                outcome.points,
                path.display()
            );
        }
        written.answers.iter().for_each(|sentence| note!("{sentence}"));
        if let Some(experiment) = experiments.first().filter(|_| study.own.is_given())
            && let Some(sentence) = own::answer(&path, experiment)?
        {
            note!("{sentence}");
        }
        report::print(&written)?;
    }
    Ok(if outcome.missing == 0 && all_fired { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The chosen RNIC of this machine, with the options of the study.
struct Own<'a> {
    study: &'a Study,
    chosen: Chosen,
    /// Journal of the rules that fire at this machine.
    journal: Option<PathBuf>,
}

impl OwnDevice for Own<'_> {
    fn open(&self, toward: Option<IpAddr>) -> Result<Device, Failure> {
        open_with(self, toward, self.study.link)
    }

    fn pinning(&self, device: &Device) -> Result<Pinning, Usage> {
        self.study.cpus.pinning(device)
    }

    fn environment(&self, toward: Option<IpAddr>, attributes: &DeviceAttributes) -> Result<Environment, Failure> {
        let environment = Environment::of(attributes);
        if environment.provider != soft::PROVIDER {
            return Ok(environment);
        }
        let Study { ack, link, .. } = *self.study;
        let (link, ack) = SoftOptions { ack, link, ..SoftOptions::default() }.effective()?;
        let ip = if toward.is_some_and(|address| address.is_ipv6()) { "IPv6" } else { "IPv4" };
        let slices = if ask_for_short_time_slices() { "short" } else { "the usual" };
        let said = format!("link {link}, acknowledgements {ack}, {ip}, {slices} time slices");
        let fault_plan = self.study.faults().map(ToString::to_string);
        Ok(Environment { soft_options: Some(said), fault_plan, ..environment })
    }
}

/// Opens the device with this link instead of the link of the study.
fn open_with(own: &Own<'_>, toward: Option<IpAddr>, link: Option<LinkChoice>) -> Result<Device, Failure> {
    let Own { study, chosen, journal } = own;
    let options = || SoftOptions {
        address: toward,
        port: study.udp.port,
        ack: study.ack,
        link,
        faults: study.faults().cloned(),
        fault_journal: journal.clone(),
        ..SoftOptions::default()
    };
    chosen.open(options).map_err(without_bind)
}
