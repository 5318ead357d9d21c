//! `doorbell model fit`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_model::fit::{Estimate, Fit as Fitted, fit};
use doorbell_model::observation::{Observation, Quantity, Residual, median_and_p90, residuals};
use doorbell_model::parameters::{Parameters, RnicKind};
use doorbell_model::record::Observed;
use doorbell_output::files;
use doorbell_report::read_observations;
use doorbell_study::measure::Quantity as Measured;
use serde_json::{Value, json};

use super::arguments::{digits, parameters};
use super::measure;
use crate::failure::{Failure, Usage};
use crate::output::{line, note};

/// Maximum size of a file of measured parameters.
const MOST_RECORD_BYTES: u64 = 256 << 20;

#[derive(Args)]
pub(crate) struct Fit {
    /// Records of `doorbell bench --json` and `doorbell study`, and directories of `doorbell study`
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Initial parameters: a testbed, such as t1, or a file. The fit keeps their limits, path MTU and batch [default:
    /// plausible numbers for the provider of the records]
    #[arg(long, value_name = "TESTBED|FILE")]
    params: Option<String>,
    /// Fit only to every Nth result, and print how well the other results are predicted
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    every: u32,
    /// Output of `doorbell model measure --json` on this machine, to compare with the fitted values
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Write the parameters to a new file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Fit) -> Result<(), Failure> {
    let Observed { rnic, observations: all, left_out, .. } = read_observations(&arguments.records)?;
    left_out.iter().for_each(|reason| note!("{reason}"));
    let base = match &arguments.params {
        Some(name) => parameters(name)?,
        None => Parameters::starting_point(rnic),
    };
    if base.rnic != rnic {
        let kind = |rnic| match rnic {
            RnicKind::Hardware => "hardware",
            RnicKind::Software => "software",
        };
        let (given, measured) = (kind(base.rnic), kind(rnic));
        return Err(Usage(format!("--params are of a {given} RNIC, the records of a {measured} RNIC")).into());
    }
    let measured = match &arguments.measured {
        Some(path) => measure::read(&path.display().to_string(), &files::read_text(path, MOST_RECORD_BYTES)?)?,
        None => Vec::new(),
    };
    let every = arguments.every as usize;
    let (chosen, others): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(index, _)| index % every == 0);
    let plain = |numbered: Vec<(usize, Observation)>| numbered.into_iter().map(|(_, one)| one).collect::<Vec<_>>();
    let (chosen, others) = (plain(chosen), plain(others));
    let fitted = fit(&base, &chosen)?;
    let others = residuals(&fitted.parameters, &others)?;
    if let Some(path) = &arguments.out {
        write_new(path, &fitted.parameters)?;
    }
    if arguments.json {
        line(object(&fitted, &others, &measured, &left_out))?;
    } else {
        tables(&fitted, &others, &measured)?;
    }
    Ok(())
}

/// Writes parameters to a new file.
pub(super) fn write_new(path: &Path, parameters: &Parameters) -> Result<(), Failure> {
    let name = path.display();
    files::create_new(path, 0o666).and_then(|mut file| file.write_all(parameters.to_toml().as_bytes())).map_err(
        |error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!("{name} exists already: choose a new file"),
            _ => format!("{name} cannot be written: {error}"),
        },
    )?;
    note!("wrote {name}");
    Ok(())
}

fn tables(fitted: &Fitted, others: &[Residual], measured: &[Measured]) -> io::Result<()> {
    let row = |text: std::fmt::Arguments<'_>| line(text.to_string().trim_end());
    let estimates = |heading: &str, estimates: &[Estimate]| {
        let directly = if measured.is_empty() { "" } else { "timed directly" };
        row(format_args!("{heading:<60} {:>12}        {:<26} {directly}", "value", "95 % lie within"))?;
        for Estimate { name, value, unit, interval } in estimates {
            let interval = match interval {
                Some((low, high)) => format!("{} to {}", digits(*low), digits(*high)),
                None => "not separated by the data".to_owned(),
            };
            let timed = timed(measured, name).map_or_else(String::new, digits);
            row(format_args!("{name:<60} {:>12} {:<5}  {interval:<26} {timed}", digits(*value), unit.name()))?;
        }
        io::Result::Ok(())
    };
    estimates("parameter", &fitted.estimates)?;
    if !fitted.sums.is_empty() {
        line("")?;
        estimates("sum that the data determines", &fitted.sums)?;
    }
    let figures = |heading: &str, residuals: &[Residual]| {
        line(format_args!("\n{:>14} {:>14} {:>9}   {heading}", "measured", "predicted", "error"))?;
        for residual in residuals {
            let (measured, predicted) = (digits(residual.measured), digits(residual.predicted));
            let (error, name) = (100.0 * residual.relative_error(), &residual.name);
            let unit = match residual.quantity {
                Quantity::LatencyNs => "ns",
                Quantity::MessagesPerS => "messages/s",
            };
            line(format_args!("{measured:>14} {predicted:>14} {error:>7.1} %   {name}, {unit}"))?;
        }
        io::Result::Ok(())
    };
    figures("fitted to", &fitted.residuals)?;
    if !others.is_empty() {
        figures("not fitted to", others)?;
    }
    line("")?;
    let summary = |what: &str, count: usize, (median, p90): (f64, f64)| {
        let (median, p90) = (100.0 * median, 100.0 * p90);
        line(format_args!("{count} figures {what}: median error {median:.1} %, nine tenths within {p90:.1} %"))
    };
    summary("fitted to", fitted.residuals.len(), (fitted.median_error, fitted.p90_error))?;
    median_and_p90(others).map_or(Ok(()), |errors| summary("not fitted to", others.len(), errors))
}

/// Returns the directly timed value of a parameter or a sum.
fn timed(measured: &[Measured], name: &str) -> Option<f64> {
    measured.iter().find(|quantity| quantity.name == name).map(|quantity| quantity.median)
}

fn object(fitted: &Fitted, others: &[Residual], measured: &[Measured], left_out: &[String]) -> Value {
    let estimates = |estimates: &[Estimate]| -> Vec<Value> {
        let one = |estimate: &Estimate| {
            json!({
                "name": estimate.name,
                "value": estimate.value,
                "unit": estimate.unit.name(),
                "interval_95": estimate.interval.map(|(low, high)| [low, high]),
                "measured": timed(measured, &estimate.name),
            })
        };
        estimates.iter().map(one).collect()
    };
    let figures = |residuals: &[Residual]| -> Vec<Value> {
        let one = |residual: &Residual| {
            json!({
                "name": residual.name,
                "quantity": match residual.quantity {
                    Quantity::LatencyNs => "latency_ns",
                    Quantity::MessagesPerS => "messages_per_s",
                },
                "measured": residual.measured,
                "predicted": residual.predicted,
                "relative_error": residual.relative_error(),
            })
        };
        residuals.iter().map(one).collect()
    };
    let of_others = median_and_p90(others);
    json!({
        "schema": "doorbell-model-fit/1",
        "parameters": fitted.parameters,
        "estimates": estimates(&fitted.estimates),
        "sums": estimates(&fitted.sums),
        "rank": fitted.rank,
        "median_error": fitted.median_error,
        "p90_error": fitted.p90_error,
        "residuals": figures(&fitted.residuals),
        "others_median_error": of_others.map(|(median, _)| median),
        "others_p90_error": of_others.map(|(_, p90)| p90),
        "others": figures(others),
        "left_out": left_out,
    })
}
