//! Readings in the OpenMetrics text format, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::{Common, Interval, Look, is_gauge};

/// The devices at the time of a request.
#[derive(Debug)]
struct Scrape(Vec<Interval>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let devices = || self.0.iter().filter(|device| !device.sample.ended);
        for common in Common::ALL {
            let name = format!("doorbell_rdma_{}", common.name());
            let mut family = encoder.encode_descriptor(&name, common.description(), None, MetricType::Counter)?;
            for device in devices() {
                // Omit a counter that the device lacks.
                if let Some(total) = common.total(&device.sample.raw) {
                    let labels = [("device", device.sample.identity.label.as_str())];
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&total, None)?;
                }
            }
        }
        self.vendors(&mut encoder, MetricType::Counter)?;
        self.vendors(&mut encoder, MetricType::Gauge)?;
        let help = "RDMA devices of this machine";
        let mut family = encoder.encode_descriptor("doorbell_rdma_device", help, None, MetricType::Info)?;
        for device in devices() {
            let identity = &device.sample.identity;
            let text = |value: Option<String>| value.unwrap_or_default();
            let labels = [
                ("device", identity.label.clone()),
                ("kind", identity.kind.name().to_owned()),
                ("name", identity.name.clone()),
                ("port", text(identity.port.map(|port| port.to_string()))),
                ("address", text(identity.address.map(|address| address.to_string()))),
                ("gid", text(identity.gid.map(|gid| gid.to_string()))),
                ("udp_port", text(identity.udp_port.map(|port| port.to_string()))),
                ("program", text(identity.program.clone())),
                ("pid", text(identity.pid.map(|pid| pid.to_string()))),
                ("netdev", text(identity.netdev.clone())),
                ("driver", text(identity.driver.clone())),
            ];
            // An empty label value equals an absent label (OpenMetrics 1.0).
            let labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            family.encode_info(&labels)?;
        }
        Ok(())
    }
}

impl Scrape {
    /// Encodes the vendors' counters, or for `MetricType::Gauge` the vendors' levels, under the vendors' names.
    fn vendors(&self, encoder: &mut DescriptorEncoder<'_>, kind: MetricType) -> Result<(), fmt::Error> {
        let levels = matches!(kind, MetricType::Gauge);
        let (name, help) = match levels {
            false => ("doorbell_rdma_vendor", "Counters under the names of the device's vendor"),
            true => ("doorbell_rdma_vendor_level", "Levels, which may fall, under the names of the device's vendor"),
        };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for device in self.0.iter().filter(|device| !device.sample.ended) {
            for (name, value) in device.sample.raw.iter().filter(|(name, _)| is_gauge(name) == levels) {
                let label = device.sample.identity.label.as_str();
                let labels = [("device", label), ("set", name.set.name()), ("counter", name.name.as_str())];
                let mut metric = family.encode_family(&labels)?;
                if levels {
                    metric.encode_gauge(value)?;
                } else {
                    metric.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the text of a scrape.
///
/// # Errors
///
/// A text could not be written.
pub fn text(look: Look) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(look.devices)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
