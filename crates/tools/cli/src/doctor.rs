//! `doorbell doctor`.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use doorbell_study::doctor::{self, Finding, Severity, path};
use doorbell_study::environment::Environment;
use doorbell_study::pinning::Pinning;
use doorbell_study::session::{Client, Introduced, SessionError};
use doorbell_verbs::Device;
use doorbell_verbs::soft::SoftOptions;
use serde_json::json;

use crate::control::{self, Meeting};
use crate::device::{Chosen, DeviceChoice, UdpPort, without_bind};
use crate::failure::Failure;
use crate::output::line;
use crate::quantity;
use crate::study::{fits, same_host};

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell doctor                                     this machine
  DOORBELL_TOKEN=secret doorbell doctor --listen      the other machine, until it is interrupted
  DOORBELL_TOKEN=secret doorbell doctor 192.0.2.7     both machines, and the path between them

Exit status: 0 if no finding makes results wrong, 1 if one does, 2 on wrong usage.";

/// Command that the user starts on another machine, so that this machine can examine it.
const THERE: &str = "doorbell doctor --listen";

/// Find conditions that would spoil a measurement, on this machine, on other machines and between machines, and show
/// remedies
#[derive(Args)]
pub(crate) struct Doctor {
    /// Machines on which `doorbell doctor --listen` or `doorbell study --listen` runs, as HOST or HOST:PORT
    #[arg(value_name = "HOST", conflicts_with = "listen")]
    hosts: Vec<String>,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    udp: UdpPort,
    /// Message memory that measurements need, in MiB or with a unit, as in 4G
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = quantity::mebibytes)]
    memory: usize,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    meeting: Meeting,
}

impl Doctor {
    pub(crate) fn listens(&self) -> bool {
        self.meeting.listens()
    }

    fn memory_bytes(&self) -> usize {
        self.memory.saturating_mul(1 << 20)
    }

    fn open(&self, chosen: &Chosen, toward: Option<IpAddr>) -> Result<Device, Failure> {
        chosen
            .open(|| SoftOptions { address: toward, port: self.udp.port, ..SoftOptions::default() })
            .map_err(without_bind)
    }
}

/// Findings about this machine, or about another machine and the path to that machine.
struct Examined {
    /// Name of the machine that the user gave.
    name: String,
    environment: Option<Environment>,
    /// ID of the process that answered on that machine.
    process: Option<u64>,
    findings: Vec<Finding>,
}

impl Examined {
    /// Returns the entry of a machine that could not be examined. `finding` has the reason.
    fn not(name: &str, finding: Finding) -> Self {
        Self { name: name.to_owned(), environment: None, process: None, findings: vec![finding] }
    }

    fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine)
    }
}

pub(crate) fn run(doctor: &Doctor) -> Result<ExitCode, Failure> {
    doctor.meeting.check()?;
    let own = (!doctor.udp.is_roce()).then_some("--udp-port");
    let chosen = doctor.device.choose(own)?;
    if doctor.listens() {
        match doctor.meeting.serve(
            doctor.memory_bytes(),
            |_| Ok(Pinning::none("doctor measures nothing")),
            |toward| doctor.open(&chosen, toward),
        )? {}
    }
    let mut examined = vec![this_machine(doctor, &chosen)];
    for host in &doctor.hosts {
        if examined.iter().any(|other| &other.name == host) {
            examined.push(Examined::not(host, named_twice(format!("{host} is named twice"))));
            continue;
        }
        let other = other_machine(doctor, &chosen, host).map(|mut other| {
            let same = examined.iter().find(|known| known.process.is_some() && known.process == other.process);
            other.findings.extend(same.map(|known| named_twice(same_host(host, &known.name))));
            other
        });
        examined.push(other.unwrap_or_else(|error| {
            Examined::not(
                host,
                Finding {
                    subject: "control".to_owned(),
                    severity: Severity::Spoils,
                    what: error.to_string(),
                    remedy: format!("start `{THERE}` there with the same token, and open its TCP port"),
                },
            )
        }));
    }
    if doctor.json {
        print_json(&examined)?;
    } else {
        print(&examined)?;
    }
    let spoils = examined.iter().any(|machine| machine.worst() == Severity::Spoils);
    Ok(if spoils { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn this_machine(doctor: &Doctor, chosen: &Chosen) -> Examined {
    let name = "this machine".to_owned();
    match doctor.open(chosen, None) {
        Ok(device) => {
            let attributes = device.attributes();
            let environment = Environment::of(&attributes);
            Examined {
                name,
                environment: Some(environment),
                process: None,
                findings: doctor::examine(&attributes, doctor.memory_bytes()),
            }
        }
        Err(error) => {
            let finding = Finding {
                subject: "device".to_owned(),
                severity: Severity::Spoils,
                what: error.to_string(),
                remedy: "`doorbell devices` lists what there is".to_owned(),
            };
            Examined::not(&name, finding)
        }
    }
}

/// Examines another machine, and the path to that machine.
fn other_machine(doctor: &Doctor, chosen: &Chosen, host: &str) -> Result<Examined, Failure> {
    let address = doctor.meeting.at(host);
    let connect_with = |segment: Option<u32>| match segment {
        Some(bytes) => control::connect_in_segments(&address, THERE, bytes),
        None => control::connect(&address, THERE),
    };
    let introduction = doctor.meeting.introduction(true);
    let short = path::probe_control(&introduction, connect_with)?;
    // If the path drops long packets, connect with short TCP segments, so that the rest can still be examined.
    let connect = || connect_with(short.as_ref().map(|_| path::SHORT_SEGMENT_BYTES));
    let stream = connect()?;
    let toward = control::address_toward(&stream);
    let Introduced { environment, mut findings, process, .. } = Client::meet(stream, introduction.clone())?;
    findings.push(versions(&environment));
    let device = doctor.open(chosen, toward)?;
    if let Err(error) = fits(&Environment::of(&device.attributes()), &environment, host)
        && environment.doorbell == env!("CARGO_PKG_VERSION")
    {
        findings.push(Finding {
            subject: "both devices".to_owned(),
            severity: Severity::Spoils,
            what: error.to_string(),
            remedy: "a study refuses to measure between these two".to_owned(),
        });
    }
    findings.push(
        path::probe::<Failure>(&device, environment.active_mtu, &introduction, connect).unwrap_or_else(not_found_out),
    );
    findings.extend(short);
    Ok(Examined { name: host.to_owned(), environment: Some(environment), process, findings })
}

/// Returns the finding that the path could not be examined because of this error.
fn not_found_out(error: Failure) -> Finding {
    let is_broken = matches!(error.downcast_ref(), Some(SessionError::Control(_)));
    let (what, remedy) = match is_broken {
        true => (
            "the control connection broke while full packets of RoCE v2 were sent there and back",
            "examine again; if the connection breaks again, something on the path drops its packets",
        ),
        false => ("no packets of RoCE v2 could be sent there and back", "remove the cause, and examine again"),
    };
    let (subject, severity) = ("path".to_owned(), Severity::Spoils);
    Finding { subject, severity, what: format!("{what}: {error}"), remedy: remedy.to_owned() }
}

fn named_twice(what: String) -> Finding {
    Finding {
        subject: "hosts".to_owned(),
        severity: Severity::Spoils,
        what,
        remedy: "name each host once: a study refuses to measure with one that is named twice".to_owned(),
    }
}

fn versions(theirs: &Environment) -> Finding {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let is_same = theirs.doorbell == OWN;
    Finding {
        subject: "version".to_owned(),
        severity: if is_same { Severity::Fine } else { Severity::Spoils },
        what: if is_same { OWN.to_owned() } else { format!("{} there, {OWN} here", theirs.doorbell) },
        remedy: if is_same { String::new() } else { "use the same release on both".to_owned() },
    }
}

fn print(examined: &[Examined]) -> Result<(), Failure> {
    for machine in examined {
        match &machine.environment {
            Some(environment) => line(format_args!(
                "{}: {}, {}, {} CPUs, Linux {}, device {}",
                machine.name,
                environment.machine.host,
                environment.cpu,
                environment.cpus,
                environment.kernel,
                environment.device
            ))?,
            None => line(&machine.name)?,
        }
        for finding in &machine.findings {
            line(format_args!("  {:<8}{:<20}{}", finding.severity, finding.subject, finding.what))?;
            if !finding.remedy.is_empty() {
                line(format_args!("{:>30}{}", "-> ", finding.remedy))?;
            }
        }
    }
    Ok(())
}

fn print_json(examined: &[Examined]) -> Result<(), Failure> {
    let machines: Vec<_> = examined
        .iter()
        .map(|machine| {
            json!({
                "name": machine.name,
                "worst": machine.worst(),
                "environment": machine.environment,
                "findings": machine.findings,
            })
        })
        .collect();
    Ok(line(serde_json::to_string_pretty(&json!({ "schema": "doorbell-doctor/1", "machines": machines }))?)?)
}
