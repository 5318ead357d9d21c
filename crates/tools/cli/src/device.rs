//! The RNIC of a command, and `doorbell devices`.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Args;
use doorbell_fabric::{BindError, shorten_time_slices};
use doorbell_verbs::soft::{DevicesError, SoftDevice, SoftOptions};
use doorbell_verbs::system::{self, SystemDevice, SystemError, SystemOptions, SystemPort};
use doorbell_verbs::{Device, Limits, soft};
use doorbell_wire::ROCE_UDP_PORT;
use serde_json::{Value, json};

use crate::failure::{Failure, Usage};
use crate::output::{line, note, pretty, wrapped};
use crate::quantity;

/// Options that choose the RNIC, with perftest's names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeviceChoice {
    /// RNIC to use. `doorbell devices` lists the RNICs. doorbell0 is the embedded software RNIC. DOORBELL_DEVICES=N
    /// adds doorbell1 and more. The default is the first active RNIC. Without one, or with an option that only software
    /// RNICs have, it is doorbell0
    #[arg(short = 'd', long = "device", value_name = "DEVICE")]
    pub(crate) name: Option<String>,
    /// Port of an RNIC of the machine [default: the first active port]
    #[arg(short = 'i', long, value_name = "PORT", requires = "name", value_parser = quantity::count::<u8>)]
    pub(crate) ib_port: Option<u8>,
    /// Index of the GID at which peers reach an RNIC of the machine [default: the GID of RoCE v2 over IPv4]
    #[arg(short = 'x', long, value_name = "INDEX", requires = "name", value_parser = quantity::count::<u32>)]
    pub(crate) gid_index: Option<u32>,
}

/// UDP port of the software RNICs of a command.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct UdpPort {
    /// UDP port of both ends; the port of RoCE is 4791
    #[arg(
        long = "udp-port",
        id = "udp_port",
        value_name = "PORT",
        env = "DOORBELL_PORT",
        hide_env_values = true,
        default_value_t = ROCE_UDP_PORT,
        value_parser = quantity::udp_port
    )]
    pub(crate) port: u16,
}

impl UdpPort {
    /// Returns whether this is RoCE's port.
    pub(crate) fn is_roce(self) -> bool {
        self.port == ROCE_UDP_PORT
    }

    /// Prints a note if this is not RoCE's port.
    pub(crate) fn note_if_other(self) {
        if !self.is_roce() {
            note!("UDP port {}: not RoCE's 4791, so other devices and dissectors do not know it", self.port);
        }
    }
}

/// Parses the address of a command that has one device. From a list, as in DOORBELL_BIND, takes the first address,
/// which is that of doorbell0.
pub(crate) fn first_address(text: &str) -> Result<IpAddr, String> {
    quantity::address(text.split(',').next().unwrap_or(text).trim())
}

/// Asks the kernel for short time slices on the first call. Returns whether this process has short time slices.
pub(crate) fn ask_for_short_time_slices() -> bool {
    static SHORT: OnceLock<bool> = OnceLock::new();
    *SHORT.get_or_init(|| shorten_time_slices().unwrap_or(false))
}

/// The chosen RNIC.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    Soft(SoftDevice),
    System(SystemOptions),
}

impl Chosen {
    pub(crate) fn is_soft(&self) -> bool {
        matches!(self, Self::Soft(_))
    }

    /// Returns the address that the environment gives to the chosen software RNIC.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Soft(device) => device.address,
            Self::System(_) => None,
        }
    }

    /// Opens the RNIC. `soft_options` returns the options of the embedded software RNIC, except its name.
    pub(crate) fn open(&self, soft_options: impl FnOnce() -> SoftOptions) -> Result<Device, Failure> {
        Ok(match self {
            Self::System(options) => system::open(options)?,
            Self::Soft(device) => {
                // If CPUs are few, the threads of the RNIC and of its peers share them. Long time slices would then
                // delay each packet.
                ask_for_short_time_slices();
                soft::open(&SoftOptions { name: Some(device.name()), ..soft_options() })?
            }
        })
    }

    /// Returns the options that choose the same RNIC in another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let options = match self {
            Self::Soft(device) => return vec!["-d".to_owned(), device.name()],
            Self::System(options) => options,
        };
        let given = [
            ("-d", options.device.clone()),
            ("-i", options.port.map(|port| port.to_string())),
            ("-x", options.gid_index.map(|index| index.to_string())),
        ];
        given.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?])).flatten().collect()
    }
}

impl DeviceChoice {
    /// Returns the chosen RNIC, and prints its name if the user named none. `own` is an option that the user gave and
    /// that only the embedded RNIC has.
    pub(crate) fn choose(&self, own: Option<&str>) -> Result<Chosen, Failure> {
        let (chosen, why) = self.choose_quietly(own)?;
        if let Some(why) = why {
            note!("{}", wrapped(&why));
        }
        Ok(chosen)
    }

    /// Returns the chosen RNIC, and a note about the choice if the user named no RNIC.
    pub(crate) fn choose_quietly(&self, own: Option<&str>) -> Result<(Chosen, Option<String>), Failure> {
        let chosen = self.chosen(own)?;
        if let Some(chosen) = chosen {
            return Ok((chosen, None));
        }
        Ok(match first_active() {
            Ok(name) => {
                let why = format!("using {name}, an RNIC of this machine; -d {} is the embedded one", soft::NAME);
                let options = SystemOptions { device: Some(name), ..SystemOptions::default() };
                (Chosen::System(options), Some(why))
            }
            Err(why) => (embedded(0)?, Some(format!("using {}, the embedded software RNIC: {why}", soft::NAME))),
        })
    }

    /// Returns the requested RNIC, if the user requested one.
    fn chosen(&self, own: Option<&str>) -> Result<Option<Chosen>, Failure> {
        let options = |device: String| SystemOptions {
            device: Some(device),
            port: self.ib_port,
            gid_index: self.gid_index,
            ..SystemOptions::default()
        };
        let number = self.name.as_deref().and_then(soft::number_of);
        match (&self.name, number, own) {
            (Some(name), Some(number), _) => {
                let surplus = [("-i", self.ib_port.is_some()), ("-x", self.gid_index.is_some())];
                match surplus.into_iter().find(|(_, is_given)| *is_given) {
                    Some((option, _)) => Err(Usage(format!(
                        "{option} applies only to hardware devices: {name} has one port and one GID"
                    ))
                    .into()),
                    None => Ok(Some(embedded(number)?)),
                }
            }
            (Some(name), None, Some(own)) => Err(Usage(format!(
                "{own} applies only to {}, the embedded software RNIC: drop {own} or -d {name}",
                soft::NAME
            ))
            .into()),
            (Some(name), None, None) => Ok(Some(Chosen::System(options(name.clone())))),
            (None, _, Some(_)) => Ok(Some(embedded(0)?)),
            (None, _, None) => Ok(None),
        }
    }
}

/// Returns the embedded software RNIC of this number.
fn embedded(number: usize) -> Result<Chosen, Usage> {
    soft::device(number).map(Chosen::Soft).map_err(wrong)
}

fn wrong(error: DevicesError) -> Usage {
    Usage(error.to_string())
}

/// Replaces an error that suggests --bind. Commands that choose the addresses of their devices have no --bind.
pub(crate) fn without_bind(error: Failure) -> Failure {
    let taken = match error.downcast_ref() {
        Some(doorbell_verbs::Error::Bind(BindError::InUse { address, port })) => {
            format!("UDP port {port} of {address} is taken by another socket")
        }
        Some(doorbell_verbs::Error::Bind(BindError::LoopbackExhausted { port, tried })) => {
            format!("UDP port {port} is taken on all {tried} loopback addresses from 127.0.0.1 on")
        }
        _ => return error,
    };
    format!("{taken}: end a program that uses the port, or give all hosts another --udp-port").into()
}

/// Returns the name of the first usable RNIC of the machine, or the reason why the machine has none.
fn first_active() -> Result<String, String> {
    let none = "this machine has no RNIC that is active";
    match system::list(&SystemOptions::default()) {
        Ok(devices) => {
            let usable = devices.iter().find(|device| device.usable_port().is_some());
            usable.map(|device| device.name.clone()).ok_or_else(|| none.to_owned())
        }
        // Most machines have no RNIC, so details of this error would not help the user.
        Err(SystemError::Absent { .. } | SystemError::NoDevices | SystemError::NoList(_)) => Err(none.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// List the RNICs that -d accepts: those of this machine that libibverbs reports, and the embedded software RNIC. With
/// DOORBELL_DEVICES=N, there are N embedded software RNICs.
#[derive(Args)]
pub(crate) struct Devices {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Devices) -> Result<ExitCode, Failure> {
    let embedded = soft::devices().map_err(wrong)?;
    let machine = match system::list(&SystemOptions::default()) {
        Ok(devices) => devices,
        Err(why) => {
            note!("no RNIC of this machine: {why}");
            Vec::new()
        }
    };
    if arguments.json {
        let mut devices: Vec<Value> = machine.iter().map(as_json).collect();
        devices.extend(embedded.iter().map(embedded_as_json));
        pretty(&json!({ "schema": "doorbell-rnics/1", "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for device in &machine {
        let firmware = if device.firmware.is_empty() { "" } else { ", firmware " };
        line(format_args!("{}: RNIC of this machine{firmware}{}", device.name, device.firmware))?;
        let no_atomics = if device.atomics { "" } else { ", no atomics" };
        line(format_args!("  {}{no_atomics}", sentence(&device.limits)))?;
        for port in &device.ports {
            line(format_args!(
                "  port {}: {}, {}, path MTU {}",
                port.number,
                port.state,
                port.link_layer,
                port.active_mtu.bytes()
            ))?;
            let used = port.default_gid();
            for gid in &port.gids {
                let is_used = if Some(*gid) == used { ", used unless -x names another" } else { "" };
                line(format_args!("    GID {gid}{is_used}"))?;
            }
        }
    }
    for device in &embedded {
        line(format_args!("{}: the embedded software RNIC, RoCE v2 in UDP datagrams of a socket", device.name()))?;
        line(format_args!("  {}", sentence(&soft::LIMITS)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(device: &SystemDevice) -> Value {
    let port = |port: &SystemPort| {
        let gids: Vec<Value> = port
            .gids
            .iter()
            .map(|gid| json!({ "index": gid.index, "gid": gid.gid.to_string(), "type": gid.kind }))
            .collect();
        json!({
            "port": port.number,
            "state": port.state,
            "link_layer": port.link_layer,
            "active_mtu": port.active_mtu.bytes(),
            "gids": gids,
            "default_gid_index": port.default_gid().map(|gid| gid.index),
        })
    };
    with_limits(
        &device.limits,
        json!({
            "name": device.name,
            "provider": "system",
            "firmware": device.firmware,
            "atomics": device.atomics,
            "ports": device.ports.iter().map(port).collect::<Vec<_>>(),
        }),
    )
}

fn embedded_as_json(device: &SoftDevice) -> Value {
    with_limits(&soft::LIMITS, json!({ "name": device.name(), "provider": soft::PROVIDER, "atomics": true }))
}

fn sentence(limits: &Limits) -> String {
    let Limits { max_qps, max_queue_depth, max_sges, max_cq_depth, max_rd_atomic, .. } = limits;
    format!(
        "at most {max_qps} queue pairs, {max_queue_depth} work requests and {max_sges} elements each, {max_cq_depth} \
         completions per queue, {max_rd_atomic} READs and atomics at once"
    )
}

fn with_limits(limits: &Limits, mut device: Value) -> Value {
    for (name, most) in [
        ("max_qps", limits.max_qps),
        ("max_queue_depth", limits.max_queue_depth),
        ("max_sges", limits.max_sges),
        ("max_cq_depth", limits.max_cq_depth),
        ("max_rd_atomic", limits.max_rd_atomic),
    ] {
        device[name] = most.into();
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_of_a_list_is_taken() {
        for text in ["127.0.0.5", "127.0.0.5,127.0.0.6", " 127.0.0.5 ,::1"] {
            assert_eq!(first_address(text), Ok(IpAddr::from([127, 0, 0, 5])), "{text:?}");
        }
        for bad in ["", ",127.0.0.5", "here"] {
            assert!(first_address(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn taken_port_error_names_no_missing_option() {
        let taken = BindError::InUse { address: [192, 0, 2, 1].into(), port: 4791 };
        assert!(taken.to_string().contains("--bind"));
        let exhausted = BindError::LoopbackExhausted { port: 4791, tried: 3 };
        for error in [taken, exhausted] {
            let told = without_bind(doorbell_verbs::Error::Bind(error).into()).to_string();
            assert!(told.contains("UDP port 4791") && told.contains("--udp-port"), "{told}");
            assert!(!told.contains("--bind"), "{told}");
        }
        assert_eq!(without_bind("something else, --bind".into()).to_string(), "something else, --bind");
    }
}
