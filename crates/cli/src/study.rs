//! `doorbell study`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use doorbell_study::environment::Environment;
use doorbell_study::experiment::{self, DirectoryError, Effort, Experiment, Point, RunDirectory};
use doorbell_study::record::PointResult;
use doorbell_study::session::Client;
use doorbell_verbs::soft::{self, AckPolicy, SoftOptions};
use doorbell_verbs::{Device, system};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::bench::arguments::DeviceArguments;
use crate::bench::peer;
use crate::device::{Chosen, DeviceChoice, UdpPort};
use crate::output::{line, note};
use crate::report::write_report;
use crate::{Failure, Usage};

const EXAMPLES: &str = "\
Examples:
  doorbell study                            everything, a few minutes
  doorbell study --quick                    everything, three minutes at most
  doorbell study send-receive/window        one experiment
  doorbell study --out DIR                  records and report in DIR; what is in DIR already is not
                                            measured again, so an interrupted study goes on there";

/// Measurements that may fail one after the other before the study ends.
const MAX_FAILURES_IN_A_ROW: usize = 3;

/// Measures message exchange between two processes on this machine: every experiment that was
/// published of it, one record per point, and a report at the end.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Study {
    /// Experiments, or families of them such as send-receive; `all` compares the protocols by latency
    /// and bandwidth [default: everything]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Fewer points, shorter: three minutes at most on two processors
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All points of every variant, longer: some four hours
    #[arg(long)]
    full: bool,
    /// Directory of the records and of the report [default: doorbell-study, with -quick or -full]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only list the experiments, and how many points they have
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    udp: UdpPort,
    /// When both ends acknowledge a message: before the program sees it unless the program has answered the
    /// last eight (`answer`), or always before (`strict`) [default: what DOORBELL_ACK says, else answer]
    #[arg(long, value_name = "POLICY")]
    ack: Option<AckPolicy>,
    #[command(flatten)]
    device: DeviceChoice,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Study {
    fn effort(&self) -> Effort {
        match (self.quick, self.full) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Full,
            _ => Effort::Usual,
        }
    }

    fn directory(&self) -> PathBuf {
        let by_effort = match self.effort() {
            Effort::Quick => "doorbell-study-quick",
            Effort::Usual => "doorbell-study",
            Effort::Full => "doorbell-study-full",
        };
        self.out.clone().unwrap_or_else(|| by_effort.into())
    }

    /// What was asked for, each by its name or that of its family.
    fn chosen(&self) -> Result<Vec<Experiment>, Usage> {
        let mut all = experiment::all(self.effort());
        let is_meant = |name: &str, experiment: &Experiment| {
            // What protocols are compared by.
            if name == "all" {
                return experiment.name.ends_with("/latency") || experiment.name.ends_with("/bandwidth");
            }
            let rest = experiment.name.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if let Some(unknown) = self.experiments.iter().find(|name| !all.iter().any(|known| is_meant(name, known))) {
            let names: Vec<_> = all.iter().map(|experiment| experiment.name.as_str()).collect();
            return Err(Usage(format!("there is no experiment {unknown}; there are {}", names.join(", "))));
        }
        if !self.experiments.is_empty() {
            all.retain(|experiment| self.experiments.iter().any(|name| is_meant(name, experiment)));
        }
        Ok(all)
    }
}

pub(crate) fn run(study: &Study) -> Result<ExitCode, Failure> {
    let experiments = study.chosen()?;
    if study.list {
        return list(study, &experiments).map(|()| ExitCode::SUCCESS);
    }
    study.udp.note_if_other();
    let path = study.directory();
    let directory = RunDirectory::create(&path)?;
    // What the report could not be written of is better known before minutes of measuring.
    match RunDirectory::read(&path) {
        Ok(_) | Err(DirectoryError::Empty(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let outcome = measure_all(study, &directory, &experiments)?;
    let written = write_report(std::slice::from_ref(&path), None, &path.join("report.html"))?;
    if study.json {
        line(serde_json::to_string_pretty(&json!({
            "schema": "doorbell-study/1",
            "directory": path,
            "report": written.path,
            "points": outcome.points,
            "measured": outcome.measured,
            "missing": outcome.missing,
            "failures": outcome.failures,
            "verdicts": written.verdicts,
        }))?)?;
    } else {
        if outcome.missing > 0 {
            note!("{} measurements failed and are missing: the same command makes up for them", outcome.missing);
        } else if outcome.measured == 0 {
            note!(
                "all {} points were in {} already; with another --out they are measured anew",
                outcome.points,
                path.display()
            );
        }
        written.print()?;
    }
    Ok(if outcome.missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(study: &Study, experiments: &[Experiment]) -> Result<(), Failure> {
    if study.json {
        let list: Vec<_> = experiments
            .iter()
            .map(|experiment| {
                json!({
                    "experiment": experiment.name,
                    "question": experiment.question,
                    "setting": experiment.setting,
                    "sweep": experiment.sweep,
                    "points": experiment.points.len(),
                    "published": experiment.claims.iter().map(|claim| claim.published).collect::<Vec<_>>(),
                })
            })
            .collect();
        return Ok(line(serde_json::to_string_pretty(&list)?)?);
    }
    let repetitions = study.effort().repetitions();
    for experiment in experiments {
        line(format_args!("{:<32} {:>3} points  {}", experiment.name, experiment.points.len(), experiment.question))?;
    }
    let points: usize = experiments.iter().map(|experiment| experiment.points.len()).sum();
    line(format_args!("{points} points, each {repetitions} times {} s", study.effort().seconds()))?;
    Ok(())
}

/// What came of a study.
struct Studied {
    points: usize,
    /// Repetitions that were measured now.
    measured: usize,
    failures: Vec<String>,
    /// Repetitions that are still to be measured.
    missing: usize,
}

/// Measures every point as often as it is to be, in rounds: what changes on the machine meanwhile
/// then shows in the spread of each point, instead of as a step between two.
fn measure_all(study: &Study, directory: &RunDirectory, experiments: &[Experiment]) -> Result<Studied, Failure> {
    let repetitions = study.effort().repetitions();
    let points: Vec<(&Experiment, &Point)> = experiments
        .iter()
        .flat_map(|experiment| experiment.points.iter().map(move |point| (experiment, point)))
        .collect();
    let own = [("--udp-port", !study.udp.is_roce()), ("--ack", study.ack.is_some())];
    let chosen = study.device.choose(own.into_iter().find_map(|(name, is_given)| is_given.then_some(name)))?;
    let environment = Environment::of(&open(study, &chosen)?.attributes());
    let mut done = Vec::new();
    for &(experiment, point) in &points {
        done.push(directory.get(experiment, point, &environment)?.map_or(0, |record| record.repetitions.len()));
    }
    let already: usize = done.iter().map(|&count| count.min(repetitions)).sum();
    let bar = progress_bar(points.len() * repetitions, already);
    let mut outcome = Studied { points: points.len(), measured: 0, failures: Vec::new(), missing: 0 };
    let mut failed_in_a_row = 0;
    // One round more: what failed once on a busy machine is tried again.
    for round in 1..=repetitions + 1 {
        for (&(experiment, point), done) in points.iter().zip(&mut done) {
            if *done >= round.min(repetitions) {
                continue;
            }
            bar.set_message(format!("{}, {}, {}", experiment.name, point.series, point.x));
            match measure(study, &chosen, point) {
                Ok(result) => {
                    let environment = Environment { unix_time_s: Environment::now_s(), ..environment.clone() };
                    directory.add(experiment, point, &environment, result)?;
                    *done += 1;
                    outcome.measured += 1;
                    failed_in_a_row = 0;
                    bar.inc(1);
                }
                Err(error) => {
                    let what = format!("{}, {}, {}: {error}", experiment.name, point.series, point.x);
                    bar.suspend(|| note!("{what}"));
                    outcome.failures.push(what);
                    failed_in_a_row += 1;
                    if failed_in_a_row == MAX_FAILURES_IN_A_ROW {
                        bar.finish_and_clear();
                        return Err(format!(
                            "{failed_in_a_row} measurements failed in a row, the last of them {error}"
                        )
                        .into());
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    outcome.missing = done.iter().map(|&count| repetitions.saturating_sub(count)).sum();
    Ok(outcome)
}

fn open(study: &Study, chosen: &Chosen) -> Result<Device, Failure> {
    Ok(match chosen {
        Chosen::System(options) => system::open(options)?,
        Chosen::Soft => soft::open(&SoftOptions { port: study.udp.port, ack: study.ack, ..SoftOptions::default() })?,
    })
}

/// Measures a point once, between two fresh devices in two processes.
fn measure(study: &Study, chosen: &Chosen, point: &Point) -> Result<PointResult, Failure> {
    let parameters = point.parameters.clone();
    let memory_mib = parameters.memory_bytes >> 20;
    let bytes = *parameters.sizes.first().ok_or("a point has one size")?;
    let device = open(study, chosen)?;
    let arguments = DeviceArguments {
        choice: study.device.clone(),
        bind: None,
        udp: study.udp,
        receive_buffer: None,
        pcap: None,
        fault: None,
        ack: study.ack,
    };
    let (stream, second) = peer::spawn(parameters.kind, &arguments, chosen, memory_mib)?;
    let measure = || -> Result<PointResult, Failure> {
        let mut client = Client::new(&device, stream, parameters)?;
        let result = client.measure(bytes, |_| {})?;
        client.finish()?;
        Ok(result)
    };
    let result = measure();
    second.finish(result.is_ok())?;
    result
}

fn progress_bar(length: usize, already: usize) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::with_draw_target(Some(length as u64), ProgressDrawTarget::stderr_with_hz(10))
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %  {eta:>4} left  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_position(already as u64);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
