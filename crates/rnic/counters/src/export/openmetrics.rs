//! Readings in the OpenMetrics text format, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::infiniband;
use crate::{Common, Interval, Look, Pause, Quantity, Sample, Set, is_gauge};

/// The devices at the time of a request.
#[derive(Debug)]
struct Scrape(Vec<Interval>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for common in Common::ALL {
            let name = format!("doorbell_rdma_{}", common.name());
            let mut family = encoder.encode_descriptor(&name, common.description(), None, MetricType::Counter)?;
            for sample in self.samples() {
                // Omit a counter that the device lacks.
                if let Some(total) = common.total(&sample.raw) {
                    let labels = [("device", sample.identity.label.as_str())];
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&total, None)?;
                }
            }
        }
        self.vendors(&mut encoder, MetricType::Counter)?;
        self.vendors(&mut encoder, MetricType::Gauge)?;
        self.pauses(&mut encoder)?;
        infiniband::encode(&mut encoder, &self.samples().collect::<Vec<_>>())?;
        let help = "RDMA devices of this machine";
        let mut family = encoder.encode_descriptor("doorbell_rdma_device", help, None, MetricType::Info)?;
        for sample in self.samples() {
            let identity = &sample.identity;
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
    /// Returns the devices that have not ended.
    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter().map(|device| &device.sample).filter(|sample| !sample.ended)
    }

    /// Encodes the vendors' counters, or for `MetricType::Gauge` the vendors' levels, under the vendors' names.
    fn vendors(&self, encoder: &mut DescriptorEncoder<'_>, kind: MetricType) -> Result<(), fmt::Error> {
        let levels = matches!(kind, MetricType::Gauge);
        let (name, help) = match levels {
            false => ("doorbell_rdma_vendor", "Counters under the names of the device's vendor"),
            true => ("doorbell_rdma_vendor_level", "Levels, which may fall, under the names of the device's vendor"),
        };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for sample in self.samples() {
            // The state of a port is no vendor's level. It has metrics of its own.
            let values = sample.raw.iter().filter(|(name, _)| is_gauge(name) == levels && name.set != Set::State);
            for (name, value) in values {
                let label = sample.identity.label.as_str();
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

    /// Encodes pause frames and the time of pauses, by direction and priority.
    fn pauses(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, quantity) in [
            ("doorbell_rdma_pause_frames", "Pause frames of the network interface", Quantity::Frames),
            ("doorbell_rdma_pause_seconds", "Time of pauses of the network interface", Quantity::Microseconds),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for sample in self.samples() {
                let pauses = sample.raw.iter().filter_map(|(name, &value)| Some((Pause::of(name)?, value)));
                for (pause, value) in pauses.filter(|(pause, _)| pause.quantity == quantity) {
                    let priority = pause.priority.map(|priority| ("priority", priority.to_string()));
                    let mut labels = vec![
                        ("device", sample.identity.label.clone()),
                        ("direction", pause.direction.name().to_owned()),
                    ];
                    labels.extend(priority);
                    let mut metric = family.encode_family(&labels)?;
                    match quantity {
                        Quantity::Frames => metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
                        Quantity::Microseconds => {
                            metric.encode_counter::<NoLabelSet, _, u64>(&(value as f64 / 1e6), None)?;
                        }
                    }
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
