//! What would spoil a measurement on a machine, and what to do about it.
//!
//! [`examine`] looks at this machine and at the device that is to be measured. What lies between two machines is
//! measured by packets: see [`path`].

mod counters;
mod machine;
pub mod path;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_verbs::DeviceAttributes;
use serde::{Deserialize, Serialize};

use crate::machine::{Adapter, Machine, Root};

pub use counters::Moved;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It could not be found out.
    Unknown,
    /// It moves figures, so that they are other ones than the machine could have, or spread.
    Shifts,
    /// Results are wrong, or there are none.
    Spoils,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Unknown => "unknown",
            Self::Shifts => "shifts",
            Self::Spoils => "SPOILS",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub subject: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is the case.
    pub what: String,
    /// What helps; empty if nothing has to be done.
    pub remedy: String,
}

impl Finding {
    fn new(subject: &str, severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject: subject.to_owned(), severity, what: what.into(), remedy: remedy.into() }
    }

    fn fine(subject: &str, what: impl Into<String>) -> Self {
        Self::new(subject, Severity::Fine, what, "")
    }
}

/// How long counters are watched: what moves less often than that does not spoil a measurement of seconds.
const WATCHED: Duration = Duration::from_secs(1);

/// Looks at this machine and at the device that is to be measured, by programs that register so many bytes. That takes
/// a second, in which counters of congestion and loss should not move.
#[expect(clippy::disallowed_methods, reason = "counters of the machine move by the clock, which no device has")]
pub fn examine(device: &DeviceAttributes, memory_bytes: usize) -> Vec<Finding> {
    let root = Root::default();
    let machine = Machine::of(&root);
    let is_soft = device.provider == doorbell_verbs::soft::PROVIDER;
    let adapter = if is_soft { None } else { Adapter::of(&root, &device.name, device.port) };
    let mut findings = vec![
        machine::memlock(&machine, is_soft, memory_bytes),
        machine::processors(&machine),
        machine::governor(&machine),
        machine::idle(&machine),
        machine::load(&machine),
    ];
    if is_soft {
        findings.push(machine::receive_buffer(device.receive_buffer_bytes, &machine));
    }
    if let Some(adapter) = &adapter {
        findings.push(machine::numa(&machine, adapter));
        findings.push(machine::pcie(adapter));
        findings.push(machine::interface(adapter));
    }
    findings.push(machine::gid(device));
    let interface = adapter.as_ref().and_then(|adapter| adapter.interface.as_deref());
    let device = adapter.as_ref().map(|adapter| (adapter.name.as_str(), device.port));
    let before = Moved::now(&root, device, interface, ethtool);
    std::thread::sleep(WATCHED);
    findings.extend(Moved::now(&root, device, interface, ethtool).since(&before));
    findings
}

/// What `ethtool -S` prints of an interface, if there is that command and it knows the interface.
fn ethtool(interface: &str) -> Option<String> {
    // Where it is not on the path of an ordinary user.
    let usual = Path::new("/usr/sbin/ethtool");
    let command = if usual.exists() { usual } else { Path::new("ethtool") };
    let output = Command::new(command).args(["-S", interface]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
