//! `doorbell run --processes`: processes that have a device open.

use std::process::ExitCode;

use doorbell_counters::export::json as exported;
use doorbell_counters::{Common, Identity, Interval, Monitor, PublishedSource};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{line, note, pretty, widths};

/// Name of the JSON layout.
const SCHEMA: &str = "doorbell-processes/1";

/// Counters that the table shows for each device, with the headings of their columns.
const COUNTED: [(&str, Common); 4] = [
    ("packets out", Common::TxPackets),
    ("bytes out", Common::TxBytes),
    ("packets in", Common::RxPackets),
    ("bytes in", Common::RxBytes),
];

/// Prints the processes in the order of their IDs.
pub(super) fn list(as_json: bool) -> Result<ExitCode, Failure> {
    let look = Monitor::of(vec![Box::new(PublishedSource::new())]).look();
    for sentence in &look.notes {
        note!("{sentence}");
    }
    // Skip the devices of processes that have ended.
    let mut devices: Vec<Interval> = look.devices.into_iter().filter(|device| !device.sample.ended).collect();
    devices.sort_by_key(|device| (device.sample.identity.pid, device.sample.incarnation));
    if as_json {
        let devices: Vec<Value> = devices.iter().map(json).collect();
        pretty(&json!({ "schema": SCHEMA, "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if devices.is_empty() {
        note!("no process of this user has a software RNIC open, or none that publishes its counters");
        return Ok(ExitCode::SUCCESS);
    }
    table(&devices).into_iter().try_for_each(line)?;
    Ok(ExitCode::SUCCESS)
}

fn json(device: &Interval) -> Value {
    let mut object = exported::identity(device);
    let command = device.sample.identity.command.as_ref();
    object.insert("command".to_owned(), json!(command));
    object.insert("totals".to_owned(), exported::totals(&device.sample.raw));
    Value::Object(object)
}

/// Returns the headings and a line for each device, in columns as wide as their contents. The command comes last,
/// since it may be long.
fn table(devices: &[Interval]) -> Vec<String> {
    let headings = ["pid", "device", "address", "GID"].into_iter().chain(COUNTED.map(|(heading, _)| heading));
    let mut rows: Vec<Vec<String>> = vec![headings.map(str::to_owned).collect()];
    rows.extend(devices.iter().map(cells));
    let widths = widths(&rows);
    let commands = std::iter::once("command".to_owned()).chain(devices.iter().map(command));
    let lined_up = |row: &Vec<String>| -> String {
        // Align numbers right and names left.
        let cell = |(column, (text, &width)): (usize, (&String, &usize))| match column {
            1..=3 => format!("{text:<width$}  "),
            _ => format!("{text:>width$}  "),
        };
        row.iter().zip(&widths).enumerate().map(cell).collect()
    };
    rows.iter().zip(commands).map(|(row, command)| lined_up(row) + &command).collect()
}

fn cells(device: &Interval) -> Vec<String> {
    let (identity, raw) = (&device.sample.identity, &device.sample.raw);
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let known = [
        shown(identity.pid.map(|pid| pid.to_string())),
        identity.name.clone(),
        shown(identity.address.map(|address| address.to_string())),
        shown(identity.gid.map(|gid| gid.to_string())),
    ];
    let counted = COUNTED.map(|(_, common)| shown(common.total(raw).map(|total| total.to_string())));
    known.into_iter().chain(counted).collect()
}

/// Returns the command line of the process, or the name of its program if the command line is invisible.
fn command(device: &Interval) -> String {
    let Identity { command, program, .. } = &device.sample.identity;
    match command {
        Some(words) => words.join(" "),
        None => program.clone().unwrap_or_else(|| "-".to_owned()),
    }
}
