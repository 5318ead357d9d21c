//! Environment of a measurement: machine, device and options.

use serde::{Deserialize, Serialize};

use doorbell_verbs::DeviceAttributes;

use crate::described::described;
use doorbell_machine::pinning::Pinning;
use doorbell_machine::{Adapter, Machine, Root};

described! {
    /// Machine and device of a measurement.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    pub struct Environment {
        /// Version of Doorbell.
        pub doorbell: String,
        /// Kernel release.
        pub kernel: String,
        /// Model of the processor.
        pub cpu: String,
        /// Number of processors that the process may use.
        pub cpus: usize,
        /// Time of the measurement, in seconds since 1970.
        pub unix_time_s: u64,
        /// Name of the device.
        pub device: String,
        /// Provider of the device: `soft` is the embedded software RNIC.
        pub provider: String,
        /// UDP port of the device. RoCE v2 uses 4791.
        pub udp_port: u16,
        /// Largest path MTU of the device's port.
        pub active_mtu: usize,
        /// Bytes of the receive buffer that the kernel granted, including the kernel's own overhead.
        pub receive_buffer_bytes: usize,
        /// Further properties of the machine. Records of earlier releases have none.
        #[serde(default)]
        pub machine: Machine,
        /// Hardware of the device. The embedded software RNIC has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub adapter: Option<Adapter>,
        /// Options of the software RNIC: `--link`, `--ack` and the version of IP. Records of earlier releases have
        /// none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_options: Option<String>,
        /// Faults that were injected (`--fault`, `--fault-plan`), as text that `--fault` takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub fault_plan: Option<String>,
        /// CPUs to which polling threads were pinned. Records of earlier releases have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pinning: Option<Pinning>,
        /// Environment of the other end, if the other end is on another machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub peer: Option<Box<Environment>>,
        /// Environments of the other hosts in the order of their numbers, if there are more than two hosts or a
        /// launcher started the hosts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub hosts: Vec<Environment>,
        /// Testbed that was simulated in virtual time. With a testbed, nothing was measured, and kernel and processors
        /// describe the testbed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub testbed: Option<SimulatedTestbed>,
    }
}

/// Testbed in virtual time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedTestbed {
    /// Name of the testbed.
    pub name: String,
    /// Digest of all values of the testbed.
    pub values: String,
}

impl Environment {
    /// Returns the environment of this machine, now.
    pub fn of(device: &DeviceAttributes) -> Self {
        let root = Root::default();
        Self {
            doorbell: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: root.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            cpu: root.cpu_field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            unix_time_s: Self::now_s(),
            device: device.name.clone(),
            provider: device.provider.to_owned(),
            udp_port: device.udp_port,
            active_mtu: device.active_mtu.bytes(),
            receive_buffer_bytes: device.receive_buffer_bytes,
            machine: Machine::of(&root),
            adapter: adapter_of(device),
            soft_options: None,
            fault_plan: None,
            pinning: None,
            peer: None,
            hosts: Vec::new(),
            testbed: None,
        }
    }

    /// Returns the environments of the other hosts.
    pub fn others(&self) -> impl Iterator<Item = &Environment> {
        self.peer.as_deref().into_iter().chain(&self.hosts)
    }

    /// Returns the faults that were injected at any host.
    pub fn injected_faults(&self) -> Option<&str> {
        std::iter::once(self).chain(self.others()).find_map(|host| host.fault_plan.as_deref())
    }

    /// Returns a text that names the provider of a measured record, or the testbed of a simulated record.
    pub fn substrate(&self) -> String {
        match &self.testbed {
            None => format!("measured, provider {}", self.provider),
            Some(testbed) => format!("simulated testbed {}, values {}", testbed.name, testbed.values),
        }
    }

    /// Returns the time in seconds since 1970.
    pub fn now_s() -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Returns the hardware of a device. The embedded software RNIC has none.
pub fn adapter_of(device: &DeviceAttributes) -> Option<Adapter> {
    let is_of_machine = device.provider != doorbell_verbs::soft::PROVIDER;
    is_of_machine.then(|| Adapter::of(&Root::default(), &device.name, device.port)).flatten()
}
