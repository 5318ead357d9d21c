//! Examination of a machine for conditions that spoil measurements, with remedies.
//!
//! [`examine`] examines this machine and the device under test.

mod counters;
mod machine;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_verbs::DeviceAttributes;
use serde::{Deserialize, Serialize};

use crate::{Adapter, Machine, Root};

use counters::CounterSnapshot;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The state does not affect measurements.
    Fine,
    /// The state is unknown.
    Unknown,
    /// Measured values are biased or have a larger spread.
    Shifts,
    /// Results are wrong or missing.
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

/// Finding about one property of the machine, its device or the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Examined property, in one or two words.
    pub subject: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// Observed state.
    pub what: String,
    /// Remedy, or an empty text if no remedy is needed.
    pub remedy: String,
}

impl Finding {
    /// Creates a finding.
    pub fn new(subject: &str, severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject: subject.to_owned(), severity, what: what.into(), remedy: remedy.into() }
    }

    /// Creates a finding about a state that does not affect measurements.
    pub fn fine(subject: &str, what: impl Into<String>) -> Self {
        Self::new(subject, Severity::Fine, what, "")
    }
}

/// Time between two reads of the counters. A counter that changes less often does not spoil a measurement of seconds.
const WATCHED: Duration = Duration::from_secs(1);

/// Examines this machine and the device under test for programs that register `memory_bytes`. The examination takes one
/// second. Counters of congestion and loss should not change during that second.
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
    let before = CounterSnapshot::now(&root, device, interface, ethtool);
    std::thread::sleep(WATCHED);
    findings.extend(CounterSnapshot::now(&root, device, interface, ethtool).since(&before));
    findings
}

/// Returns the output of `ethtool -S` for an interface, if the command exists and knows the interface.
fn ethtool(interface: &str) -> Option<String> {
    // `PATH` of an ordinary user may lack /usr/sbin.
    let usual = Path::new("/usr/sbin/ethtool");
    let command = if usual.exists() { usual } else { Path::new("ethtool") };
    let output = Command::new(command).args(["-S", interface]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
