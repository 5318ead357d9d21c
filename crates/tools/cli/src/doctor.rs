//! `doorbell doctor`.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use doorbell_campaign::examination::{Examination, Examined};
use doorbell_machine::doctor::Severity;
use doorbell_machine::pinning::Pinning;
use doorbell_verbs::Device;
use doorbell_verbs::soft::SoftOptions;
use serde_json::json;

use crate::control::Meeting;
use crate::device::{Chosen, DeviceChoice, UdpPort, without_bind};
use crate::failure::Failure;
use crate::output::{line, pretty};
use crate::quantity;

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell doctor                                     this machine
  DOORBELL_TOKEN=secret doorbell doctor --listen      the other machine, until it is interrupted
  DOORBELL_TOKEN=secret doorbell doctor 192.0.2.7     both machines, and the path between them

Exit status: 0 if no finding makes results wrong, 1 if one does, 2 on wrong usage.";

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
    let examination = Examination {
        introduction: doctor.meeting.introduction(true),
        memory_bytes: doctor.memory_bytes(),
        open: &|toward| doctor.open(&chosen, toward),
    };
    let examined = examination.of_all(&doctor.hosts, |host| doctor.meeting.at(host));
    if doctor.json {
        print_json(&examined)?;
    } else {
        print(&examined)?;
    }
    let spoils = examined.iter().any(|machine| machine.worst() == Severity::Spoils);
    Ok(if spoils { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
    Ok(pretty(&json!({ "schema": "doorbell-doctor/1", "machines": machines }))?)
}
