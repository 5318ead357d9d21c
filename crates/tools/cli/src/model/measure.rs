//! `doorbell model measure`: the model's parameters, timed call by call.

use std::io;
use std::net::IpAddr;

use clap::Args;
use doorbell_study::measure::{MeasureError, Measurement, Quantity, SCHEMA, measure};
use doorbell_verbs::soft::{SoftOptions, open};

use super::arguments::digits;
use crate::device::{UdpPort, first_address};
use crate::failure::{Failure, Usage};
use crate::output::{line, note};
use crate::quantity;

#[derive(Args)]
pub(crate) struct Measure {
    /// Number of rounds; the output shows the medians of all rounds
    #[arg(short = 'n', long, value_name = "N", default_value = "5000", value_parser = quantity::count::<usize>)]
    rounds: usize,
    /// Address of the sending device [default: next free loopback address]; the receiving device takes the next free
    /// loopback address
    #[arg(long, value_name = "ADDRESS", env = "DOORBELL_BIND", hide_env_values = true, value_parser = first_address)]
    bind: Option<IpAddr>,
    #[command(flatten)]
    udp: UdpPort,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Measure) -> Result<(), Failure> {
    let port = arguments.udp.port;
    let sender = open(&SoftOptions { address: arguments.bind, port, ..SoftOptions::default() })?;
    let receiver = open(&SoftOptions { port, ..SoftOptions::default() })?;
    let measurement = measure(&sender, &receiver, arguments.rounds).map_err(|error| match error {
        MeasureError::Rounds { .. } => Failure::from(Usage(format!("-n: {error}"))),
        error => error.into(),
    })?;
    if arguments.json {
        line(serde_json::to_string(&measurement)?)?;
        return Ok(());
    }
    let environment = &measurement.environment;
    note!(
        "{} and a second device of this process, {} provider; {} on {} CPUs, Linux {}",
        environment.device,
        environment.provider,
        environment.cpu,
        environment.cpus,
        environment.kernel
    );
    table(&measurement)?;
    Ok(())
}

fn table(measurement: &Measurement) -> io::Result<()> {
    line(format_args!(
        "{:<28} {:>9} {:>9} {:>9} {:>9}   what was timed",
        "parameter, ns", "median", "10 %", "90 %", "samples"
    ))?;
    for Quantity { name, what, median, p10, p90, samples } in &measurement.quantities {
        let [median, p10, p90] = [Some(*median), *p10, *p90].map(|value| value.map_or_else(String::new, digits));
        line(format_args!("{name:<28} {median:>9} {p10:>9} {p90:>9} {samples:>9}   {what}"))?;
    }
    line(format_args!("\n{:>9} {:>11}", "bytes", "g, ns"))?;
    measurement.gaps.iter().try_for_each(|gap| line(format_args!("{:>9} {:>11.0}", gap.bytes, gap.median_ns)))
}

/// Reads the quantities from the text of a file that `doorbell model measure --json` wrote.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<Quantity>, Failure> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("{name}: no JSON: {error}"))?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => return Err(format!("{name}: schema is \"{other}\", allowed is \"{SCHEMA}\"").into()),
        None => return Err(format!("{name}: schema is missing, allowed is \"{SCHEMA}\"").into()),
    }
    let quantities = value.get("quantities").cloned().unwrap_or_default();
    let quantities: Vec<Quantity> =
        serde_json::from_value(quantities).map_err(|error| format!("{name}: quantities: {error}"))?;
    Ok(quantities)
}
