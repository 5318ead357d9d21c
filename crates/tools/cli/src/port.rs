//! `doorbell port`: the port of a software RNIC that another process has open.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use doorbell_counters::{PortRequest, PublishedPort, PublishedSource};
use doorbell_verbs::PortError;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{line, pretty};

/// Name of the JSON layout.
const SCHEMA: &str = "doorbell-port/1";

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell port 127.0.0.2               print whether the port is up
  doorbell port doorbell0@127.0.0.2 down
  doorbell port doorbell0@127.0.0.2 up
  doorbell port 4711 fatal              the device of process 4711 fails

The device is a software RNIC that a process of this user has open, also under doorbell run. While
its port is down, the device loses all packets in both directions, and requests fail after their
retries. The program gets the asynchronous events of an RNIC: PORT_ERR, then PORT_ACTIVE and
GID_CHANGE, or DEVICE_FATAL.";

/// Print the state of a software RNIC's port, take the port down, bring it up, or let the device fail
#[derive(Args)]
pub(crate) struct Port {
    /// Device of a running process: its name (doorbell0, doorbell0@127.0.0.1), its address, or the ID of the process
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Change of the port [default: none, print its state]
    #[arg(value_enum, value_name = "ORDER")]
    order: Option<Order>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// The port goes down
    Down,
    /// The port comes up again
    Up,
    /// The device fails permanently, and all its queue pairs enter the error state
    Fatal,
}

pub(crate) fn run(arguments: &Port) -> Result<ExitCode, Failure> {
    let (request, refusal) = match arguments.order {
        None => (PortRequest::State, None),
        Some(Order::Down) => (PortRequest::Down, Some(PortError::AlreadyDown)),
        Some(Order::Up) => (PortRequest::Up, Some(PortError::AlreadyUp)),
        Some(Order::Fatal) => (PortRequest::DeviceFatal, None),
    };
    // If no datagram reaches the device, as in another network namespace, it looks by itself within seconds.
    let wake = |address, port| drop(doorbell_fabric::wake_device(address, port));
    let answered = PublishedSource::new().ask_port(&arguments.device, request, wake)?;
    let (label, state) = (&answered.label, answered.reply.state);
    if answered.reply.was_refused {
        let refusal = refusal.filter(|_| state != PublishedPort::Failed).unwrap_or(PortError::DeviceFatal);
        return Err(format!("{label}: {refusal}").into());
    }
    let (name, sentence) = match state {
        PublishedPort::Active => ("active", "the port is up"),
        PublishedPort::Down => ("down", "the port is down"),
        PublishedPort::Failed => ("failed", "the device has failed"),
    };
    if arguments.json {
        pretty(&json!({ "schema": SCHEMA, "device": label, "pid": answered.pid, "state": name }))?;
    } else {
        line(format_args!("{label}: {sentence}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
