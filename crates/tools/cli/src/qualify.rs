//! `doorbell qualify`.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use doorbell_exchange::address::with_port;
use doorbell_machine::Root;
use doorbell_qualify::{DeviceFacts, Part, Plan, Run, run_cases};
use doorbell_record::adapter_of;
use doorbell_verbs::soft::SoftOptions;

use crate::control::DEFAULT_TCP_PORT;
use crate::device::{Chosen, DeviceChoice};
use crate::failure::{Failure, Usage};
use crate::output::{line, note, pretty, print_note, write_text};
use crate::quantity;

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell qualify -d mlx5_0                both ends on this machine, in 10 to 30 minutes
  DOORBELL_TOKEN=secret doorbell study --listen -d mlx5_0       on the other machine, and
  DOORBELL_TOKEN=secret doorbell qualify -d mlx5_0 192.0.2.7    ... on this one
  doorbell qualify -d mlx5_0 --only verbs   the cases of verbs alone
  doorbell qualify -d mlx5_0 --only verbs,exchange --cases rnr    ... those with rnr in their names

The archive has the results of the cases, the deviations, the findings of the doctor, the records
of the study, and the judgement of captured packets. Addresses, GIDs, GUIDs, names of hosts and
users, and paths are replaced. It is complete after each step, so an interrupted run leaves a usable
archive.

Exit status: 0 if all parts were carried out, also with deviations; 1 if a part failed; 2 on wrong
usage.";

/// Time within which another machine accepts a connection.
const REACHING: Duration = Duration::from_secs(5);

/// Test an RDMA device with all cases of the conformance suites, measure the default study, and judge captured packets.
/// Each deviation from the software RNIC is named with its rule
#[derive(Args)]
pub(crate) struct Qualify {
    /// Other machine on which `doorbell study --listen` runs, as HOST or HOST:PORT. The study, the doctor and the
    /// captures use it; the suites need only this machine [default: a second process on this machine]
    #[arg(value_name = "HOST")]
    host: Option<String>,
    #[command(flatten)]
    device: DeviceChoice,
    /// Archive to write [default: doorbell-qualification-DEVICE.tar]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Carry out only these parts, separated by commas [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parts())]
    only: Vec<String>,
    /// Run only cases with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cases: String,
    /// Measure only these experiments, separated by commas [default: those of a study]
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',')]
    experiments: Vec<String>,
    /// TCP port on which both machines meet
    #[arg(short, long, default_value_t = DEFAULT_TCP_PORT, value_parser = quantity::port)]
    port: u16,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Run these cases, and write a line before and after each
    #[arg(long, hide = true, value_delimiter = ',')]
    run_cases: Vec<String>,
}

/// Returns the parser of names of parts, whose errors name all of them.
fn parts() -> clap::builder::PossibleValuesParser {
    Part::ALL.map(Part::name).into()
}

impl Qualify {
    /// Returns whether this process only runs cases for another one.
    pub(crate) fn runs_cases(&self) -> bool {
        !self.run_cases.is_empty()
    }
}

pub(crate) fn run(arguments: &Qualify) -> Result<ExitCode, Failure> {
    let chosen = if arguments.runs_cases() {
        arguments.device.choose_quietly(None)?.0
    } else {
        arguments.device.choose(None)?
    };
    if arguments.runs_cases() {
        let open = move || chosen.open(SoftOptions::default).unwrap_or_else(|error| panic!("{error}"));
        run_cases(&arguments.run_cases, open, |text| line(format_args!("{text}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let host = arguments.host.as_deref().map(|host| with_port(host, arguments.port));
    // A device that does not open, and a machine that does not answer, are errors before the first part.
    let plan = plan(arguments, &chosen, host.clone())?;
    host.as_deref().map_or(Ok(()), reach)?;
    let run = Run::new(&plan, &Root::default(), &print_note)?;
    note!(
        "qualifying {}; {} has the results until now, also if you interrupt this",
        plan.device.name,
        plan.archive.display()
    );
    let (result, page, has_failed) = run.carry_out()?;
    if arguments.json {
        pretty(&result)?;
    } else {
        write_text(&page)?;
    }
    note!(
        "the archive {} has neither addresses nor names of hosts and users: read it before you send it",
        plan.archive.display()
    );
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn plan(arguments: &Qualify, chosen: &Chosen, host: Option<String>) -> Result<Plan, Failure> {
    let device = chosen.open(SoftOptions::default)?;
    let attributes = device.attributes();
    let parts: Vec<Part> = match arguments.only.as_slice() {
        [] => Part::ALL.into(),
        only => only.iter().filter_map(|name| Part::named(name)).collect(),
    };
    let default = || format!("doorbell-qualification-{}.tar", attributes.name).into();
    Ok(Plan {
        program: std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?,
        device_arguments: chosen.arguments(),
        device: DeviceFacts {
            name: attributes.name.clone(),
            provider: attributes.provider.to_owned(),
            active_mtu: attributes.active_mtu.bytes(),
            adapter: adapter_of(&attributes),
        },
        host,
        parts,
        cases: arguments.cases.clone(),
        experiments: arguments.experiments.clone(),
        archive: arguments.out.clone().unwrap_or_else(default),
    })
}

/// Checks that a machine accepts connections at this address.
fn reach(address: &str) -> Result<(), Failure> {
    let remedy = "start `doorbell study --listen` there with the same DOORBELL_TOKEN, and open its TCP port";
    let found = address.to_socket_addrs().map_err(|error| Usage(format!("the host {address} is unknown: {error}")))?;
    let mut why = "the name has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, REACHING) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(format!("{address} cannot be reached: {why}; {remedy}").into())
}
