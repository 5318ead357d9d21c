//! Format of the tables of mutations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use doorbell_analyze::check::Limits;
use doorbell_wire::ack_timeout_ns;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) mutation: Vec<Mutation>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Mutation {
    /// Sentence with the rule of IBTA that the mutation violates.
    pub(crate) violates: String,
    pub(crate) capture: String,
    /// Name of the rule of `wire check` that must report the mutation; any rule without it.
    pub(crate) rule: Option<String>,
    #[serde(default)]
    pub(crate) settings: Settings,
    pub(crate) change: Vec<Change>,
}

/// Options of `wire check`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    pub(crate) timeout: Option<u8>,
    pub(crate) retry_count: Option<u32>,
    pub(crate) cnp_interval_us: Option<u64>,
    pub(crate) complete: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: None, retry_count: None, cnp_interval_us: None, complete: true }
    }
}

impl Settings {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            timeout_ns: self.timeout.and_then(ack_timeout_ns),
            retry_count: self.retry_count,
            cnp_interval_ns: self.cnp_interval_us.map(|us| us * 1000),
            complete: self.complete,
        }
    }
}

/// Change of one packet.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Change {
    pub(crate) packet: Selector,
    /// New values of fields.
    pub(crate) set: BTreeMap<String, u64>,
    /// Numbers to add to fields, modulo the largest value of the field.
    pub(crate) add: BTreeMap<String, i64>,
    /// Bytes to add to the end of the payload, or to remove from it.
    pub(crate) payload_bytes: i64,
    /// Whether the ICRC stays as it was.
    pub(crate) keep_icrc: bool,
    pub(crate) remove: bool,
    /// Packet after which a copy is inserted. The other changes concern the copy.
    pub(crate) copy_after: Option<Selector>,
    /// Packet after which the packet is moved.
    pub(crate) move_after: Option<Selector>,
    /// Whether a CNP to the queue pair is inserted after the packet. The other changes concern the CNP.
    pub(crate) insert_cnp: bool,
    /// Time of an inserted or moved packet after the packet before it.
    pub(crate) after_us: u64,
}

/// The `nth` packet with all of these properties.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Selector {
    /// Number of the frame in the capture, from 1.
    pub(crate) number: Option<u64>,
    /// Name of the opcode, such as `RC SEND Only`.
    pub(crate) opcode: Option<String>,
    pub(crate) from: Option<IpAddr>,
    pub(crate) to_qpn: Option<u32>,
    pub(crate) psn: Option<u32>,
    /// Kind of an AETH: `ack`, `rnr-nak` or `nak`.
    pub(crate) answer: Option<String>,
    /// Whether the same PSN came before with this opcode.
    pub(crate) repeated: Option<bool>,
    /// Number among the packets with these properties, from 1; 1 without it.
    pub(crate) nth: Option<usize>,
}

impl Table {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }
}
