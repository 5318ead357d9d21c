//! Where something was measured.

use serde::{Deserialize, Serialize};

use doorbell_verbs::DeviceAttributes;

use crate::machine::{Adapter, Machine, Root};
use crate::parameters::Parameters;
use crate::pinning::Pinning;
use crate::session::Parties;

/// The machine and the device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Version of Doorbell.
    pub doorbell: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: usize,
    /// Seconds since 1970 when it was measured.
    pub unix_time_s: u64,
    /// The device's name.
    pub device: String,
    /// Its provider: `soft` is the embedded software RNIC.
    pub provider: String,
    /// Its UDP port. Anything but 4791 is not RoCE's.
    pub udp_port: u16,
    /// Largest path MTU that its port carries.
    pub active_mtu: usize,
    /// Receive buffer that the kernel granted, in its bytes.
    pub receive_buffer_bytes: usize,
    /// The rest of what the machine says of itself. Records of earlier releases have none.
    #[serde(default)]
    pub machine: Machine,
    /// The device's hardware, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// The options of the software RNIC: `--link`, `--ack` and the version of IP. Records of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_options: Option<String>,
    /// The CPUs that threads which poll were pinned to. Records of earlier releases do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
    /// The other end, if it is another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Box<Environment>>,
    /// The other hosts, where there are more than two or a launcher started them, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Environment>,
    /// The testbed whose parts were simulated, in virtual time. Then kernel, processor and processors are its own, and
    /// nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub testbed: Option<SimulatedTestbed>,
}

/// A testbed in virtual time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedTestbed {
    /// Its name.
    pub name: String,
    /// A digest of all its values, which differs where one of them does.
    pub values: String,
}

impl Environment {
    /// This machine, now.
    pub fn of(device: &DeviceAttributes) -> Self {
        let root = Root::default();
        let is_of_machine = device.provider != doorbell_verbs::soft::PROVIDER;
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
            adapter: is_of_machine.then(|| Adapter::of(&root, &device.name, device.port)).flatten(),
            soft_options: None,
            pinning: None,
            peer: None,
            hosts: Vec::new(),
            testbed: None,
        }
    }

    /// The same while this is measured: every host pins as many threads as it has then.
    #[must_use]
    pub fn of_point(&self, parameters: &Parameters) -> Self {
        let hosts = 1 + self.others().count();
        match &parameters.far {
            Some(point) if hosts > 1 => {
                let duties = Parties::deal(hosts).duties(point);
                self.pinned_by(|number, pinning| {
                    let part = duties.iter().find(|(host, _)| *host == number);
                    part.map_or_else(
                        || Pinning::none("this host has no part in this point"),
                        |(_, duties)| pinning.of_threads(duties.threads(point)),
                    )
                })
            }
            _ => self.pinned_by(|_, pinning| pinning.of_point(parameters)),
        }
    }

    /// The same with what `pinned` makes of each host's number and of what that host pins at most.
    fn pinned_by(&self, pinned: impl Fn(usize, &Pinning) -> Pinning) -> Self {
        let of = |number, host: &Self| Self {
            pinning: host.pinning.as_ref().map(|pinning| pinned(number, pinning)),
            ..host.clone()
        };
        Self {
            peer: self.peer.as_ref().map(|peer| Box::new(of(1, peer))),
            hosts: self.hosts.iter().enumerate().map(|(index, host)| of(index + 1, host)).collect(),
            ..of(0, self)
        }
    }

    /// The other hosts.
    pub fn others(&self) -> impl Iterator<Item = &Environment> {
        self.peer.as_deref().into_iter().chain(&self.hosts)
    }

    /// Was it measured, or where was it simulated: in words.
    pub fn substrate(&self) -> String {
        match &self.testbed {
            None => format!("measured, provider {}", self.provider),
            Some(testbed) => format!("simulated testbed {}, values {}", testbed.name, testbed.values),
        }
    }

    /// Seconds since 1970.
    #[expect(clippy::disallowed_methods, reason = "the date of a record is the calendar's, which no device has")]
    pub fn now_s() -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}
