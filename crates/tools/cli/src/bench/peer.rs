//! Connections to the other side.

use std::net::TcpStream;
use std::process::Command;

use doorbell_campaign::second::{Awaited, Second, call_back as call};
use doorbell_exchange::address::connect;
use doorbell_machine::pinning::Pinning;
use doorbell_record::Kind;
use doorbell_study::session::Token;

use super::arguments::DeviceArguments;
use crate::cpus::argument_of;
use crate::device::Chosen;
use crate::failure::Failure;
use crate::output::print_note;

/// Starts the other side as a second process, which calls back and pins its threads as `pinning` says. The process
/// receives all device options that both sides must share.
pub(crate) fn spawn(
    kind: Kind,
    device: &DeviceArguments,
    chosen: &Chosen,
    memory_mib: usize,
    pinning: &Pinning,
) -> Result<(TcpStream, Second), Failure> {
    let second = Awaited::new(print_note)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").arg(match kind {
        Kind::Latency => "lat",
        Kind::Bandwidth => "bw",
    });
    command.arg("--serve-back").arg(second.address().to_string());
    // Other users of the machine can see the arguments of a process, but not its environment.
    command.env("DOORBELL_TOKEN", second.token().secret());
    command.args(chosen.arguments());
    if chosen.is_soft() {
        command.arg("--udp-port").arg(device.udp.port.to_string());
    }
    command.arg("--memory").arg(memory_mib.to_string());
    command.arg("--cpus").arg(argument_of(pinning));
    if let Some(plan) = device.faults() {
        command.arg("--fault").arg(plan.to_string());
    }
    if let Some(journal) = &device.fault_files.fault_journal {
        command.arg("--fault-journal").arg(journal);
    }
    if let Some(ack) = device.ack {
        command.arg("--ack").arg(ack.to_string());
    }
    if let Some(link) = device.link {
        command.arg("--link").arg(link.name());
    }
    if let Some(psn) = device.first_psn {
        command.arg("--first-psn").arg(psn.to_string());
    }
    if let Some(bytes) = device.receive_buffer {
        command.arg("--receive-buffer").arg(bytes.to_string());
    }
    second.start(command)
}

/// Connects to the first process, which listens at `address`, and serves its measurement.
pub(crate) fn call_back(address: &str, token: Option<Token>) -> Result<TcpStream, Failure> {
    let stream = connect(address, "doorbell bench ... --listen")?;
    call(stream, token)
}
