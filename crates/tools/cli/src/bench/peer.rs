//! Connections to the other side.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_study::parameters::Kind;
use doorbell_study::pinning::Pinning;
use doorbell_study::session::{Call, CallOpening, Caller, Token, call};

use super::arguments::DeviceArguments;
use crate::admission::{Client, Clients};
use crate::control::{self, random_token};
use crate::cpus::argument_of;
use crate::device::Chosen;
use crate::failure::Failure;

/// Time within which the second process must call back, and must later end. An emulated or busy machine starts
/// processes slowly. The first process notices a failed second process at once, without this deadline.
const SECOND_DEADLINE: Duration = Duration::from_secs(60);

/// Processes of a measurement on one machine.
const PROCESSES: usize = 2;

/// Interval at which the first process checks whether the second process has called back or ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Second process of this machine. Dropping this handle ends the process.
pub(crate) struct Second {
    child: Child,
}

impl Second {
    /// Waits until the second process ends by itself, and returns its failure. If this process has not `succeeded`,
    /// does not wait.
    pub(crate) fn finish(mut self, succeeded: bool) -> Result<(), Failure> {
        if !succeeded {
            return Ok(()); // dropping the handle kills the process
        }
        let until = Instant::now() + SECOND_DEADLINE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the second process failed: {status}").into()),
                None if Instant::now() >= until => return Err("the second process did not end within 60 s".into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the other side as a second process, which calls back and pins its threads as `pinning` says. The process
/// receives all device options that both sides must share.
pub(crate) fn spawn(
    kind: Kind,
    device: &DeviceArguments,
    chosen: &Chosen,
    memory_mib: usize,
    pinning: &Pinning,
) -> Result<(TcpStream, Second), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let token = random_token()?;
    let mut clients = Clients::new(listener, CallOpening::new(Some(token.clone()), PROCESSES))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").arg(match kind {
        Kind::Latency => "lat",
        Kind::Bandwidth => "bw",
    });
    command.arg("--serve-back").arg(address.to_string());
    // Other users of the machine can see the arguments of a process, but not its environment.
    command.env("DOORBELL_TOKEN", token.secret());
    command.args(chosen.arguments());
    if chosen.is_soft() {
        command.arg("--udp-port").arg(device.udp.port.to_string());
    }
    command.arg("--memory").arg(memory_mib.to_string());
    command.arg("--cpus").arg(argument_of(pinning));
    if let Some(plan) = &device.fault {
        command.arg("--fault").arg(plan.to_string());
    }
    if let Some(ack) = device.ack {
        command.arg("--ack").arg(ack.to_string());
    }
    if let Some(link) = device.link {
        command.arg("--link").arg(link.name());
    }
    if let Some(bytes) = device.receive_buffer {
        command.arg("--receive-buffer").arg(bytes.to_string());
    }
    // Nothing is written to this pipe. The pipe closes when this process ends, and then the second process ends.
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let child = command.spawn().map_err(|error| format!("the second process cannot be started: {error}"))?;
    let mut second = Second { child };
    let until = Instant::now() + SECOND_DEADLINE;
    loop {
        if let Some(Client { stream, opening, .. }) = clients.next_until(Instant::now() + PAUSE) {
            return Ok((Caller::new(stream, opening)?.serve()?, second));
        }
        if let Some(status) = second.child.try_wait()? {
            return Err(format!("the second process failed before it called back: {status}").into());
        }
        if Instant::now() >= until {
            return Err("the second process did not call back within 60 s".into());
        }
    }
}

/// Connects to the process that started this one and listens at `address`, to serve its measurement.
pub(crate) fn call_back(address: &str, token: Option<Token>) -> Result<TcpStream, Failure> {
    let stream = control::connect(address, "doorbell bench ... --listen")?;
    let called = call(stream, &Call::new(PROCESSES - 1, PROCESSES, token), || false)?;
    Ok(called.ok_or("the process that started this one has nothing to measure")?)
}
