//! RDMA devices of the machine and their properties, read from sysfs.

use serde::{Deserialize, Serialize};

use crate::Root;

/// RDMA device of the machine with the properties of its hardware. The embedded software RNIC has no adapter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adapter {
    /// Name of the device.
    pub name: String,
    /// Board identifier that the driver reports, such as `MT_0000000008`.
    pub board: Option<String>,
    /// Version of the firmware.
    pub firmware: Option<String>,
    /// Name of the device's kernel driver.
    pub driver: Option<String>,
    /// Negotiated rate of the port's link in bits per second.
    pub rate_bps: Option<u64>,
    /// Network interface of the port.
    pub interface: Option<String>,
    /// Maximum bytes of an IP packet on the network interface.
    pub mtu: Option<u64>,
    /// NUMA node to which the device is attached.
    pub node: Option<usize>,
    /// Current PCIe link between device and processor.
    pub pcie: Option<PcieLink>,
    /// Fastest and widest PCIe link that the device supports.
    pub pcie_max: Option<PcieLink>,
}

/// PCIe link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Speed of a lane, as the kernel writes it, such as `8.0 GT/s PCIe`.
    pub speed: String,
    /// Number of lanes.
    pub lanes: u32,
}

impl std::fmt::Display for PcieLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lanes of {}", self.lanes, self.speed)
    }
}

impl std::fmt::Display for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if let Some(rate_bps) = self.rate_bps {
            write!(f, ", {} Gbit/s", rate_bps as f64 / 1e9)?;
        }
        if let Some(firmware) = &self.firmware {
            write!(f, ", firmware {firmware}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(pcie) = &self.pcie {
            write!(f, ", PCIe {pcie}")?;
        }
        if let Some(node) = self.node {
            write!(f, ", NUMA node {node}")?;
        }
        Ok(())
    }
}

impl Adapter {
    /// Returns the names of all RDMA devices of the machine.
    pub fn names(root: &Root) -> Vec<String> {
        root.names("sys/class/infiniband")
    }

    /// Returns the properties of a device and of one of its ports, or `None` if the machine has no device of that name.
    pub fn of(root: &Root, name: &str, port: u8) -> Option<Self> {
        // The name becomes one component of a path. A name with a slash or a leading dot could lead outside the
        // directory.
        if name.contains('/') || name.starts_with('.') {
            return None;
        }
        let class = format!("sys/class/infiniband/{name}");
        root.names("sys/class/infiniband").iter().find(|known| *known == name)?;
        let of = |field: &str| root.text(format!("{class}/{field}"));
        let interface = interface(root, &class, port);
        let link = |which: &str| {
            let lanes = of(&format!("device/{which}_link_width"))?.parse().ok()?;
            Some(PcieLink { speed: of(&format!("device/{which}_link_speed"))?, lanes })
        };
        Some(Self {
            name: name.to_owned(),
            board: of("board_id"),
            firmware: of("fw_ver"),
            driver: root.link_name(format!("{class}/device/driver")),
            // A device with a `parent` file is rdma_rxe, the kernel's software RNIC. Its rate is fictitious, so drop
            // the rate.
            rate_bps: of(&format!("ports/{port}/rate"))
                .as_deref()
                .and_then(rate_bps)
                .filter(|_| of("parent").is_none()),
            mtu: interface
                .as_deref()
                .and_then(|name| root.number(format!("sys/class/net/{name}/mtu")))
                .and_then(|mtu| mtu.try_into().ok()),
            interface,
            // The kernel reports -1 for a device that is attached to no node. That value does not parse as `usize`.
            node: of("device/numa_node").and_then(|node| node.parse().ok()),
            pcie: link("current"),
            pcie_max: link("max"),
        })
    }
}

/// Returns the network interface of a port: the interface of the port's first GID, otherwise the first interface of the
/// device.
fn interface(root: &Root, class: &str, port: u8) -> Option<String> {
    let gids = root.names(format!("{class}/ports/{port}/gid_attrs/ndevs"));
    let named = gids.iter().find_map(|gid| root.text(format!("{class}/ports/{port}/gid_attrs/ndevs/{gid}")));
    named.or_else(|| {
        let device = root.canonical(format!("{class}/device"))?;
        device.names("net").into_iter().next()
    })
}

/// Parses a rate in the kernel's notation, such as `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`. Returns bits per
/// second.
fn rate_bps(rate: &str) -> Option<u64> {
    let number = rate.strip_suffix(')').map_or(rate, |rate| rate.split('(').next().unwrap_or(rate)).trim();
    let gbps: f64 = number.strip_suffix("Gb/sec")?.trim().parse().ok()?;
    (0.0..1e6).contains(&gbps).then_some((gbps * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::made_of;
    use super::*;

    #[test]
    fn adapter_is_read_from_sysfs() {
        let (directory, root) = made_of(&[
            ("sys/devices/pci0/numa_node", "1\n"),
            ("sys/devices/pci0/current_link_speed", "8.0 GT/s PCIe\n"),
            ("sys/devices/pci0/current_link_width", "8\n"),
            ("sys/devices/pci0/max_link_speed", "8.0 GT/s PCIe\n"),
            ("sys/devices/pci0/max_link_width", "16\n"),
            ("sys/devices/pci0/net/ens1/x", ""),
            ("sys/class/infiniband/mlx5_0/fw_ver", "16.35.2000\n"),
            ("sys/class/infiniband/mlx5_0/board_id", "MT_0000000008\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("sys/class/net/ens1/mtu", "4200\n"),
            ("sys/bus/pci/drivers/mlx5_core/bind", ""),
        ]);
        let at = |path: &str| directory.as_ref().join(path);
        std::os::unix::fs::symlink(at("sys/devices/pci0"), at("sys/class/infiniband/mlx5_0/device")).unwrap();
        std::os::unix::fs::symlink(at("sys/bus/pci/drivers/mlx5_core"), at("sys/devices/pci0/driver")).unwrap();
        assert_eq!(Adapter::names(&root), ["mlx5_0"]);
        let adapter = Adapter::of(&root, "mlx5_0", 1).unwrap();
        let expected = Adapter {
            name: "mlx5_0".to_owned(),
            board: Some("MT_0000000008".to_owned()),
            firmware: Some("16.35.2000".to_owned()),
            driver: Some("mlx5_core".to_owned()),
            rate_bps: Some(100_000_000_000),
            interface: Some("ens1".to_owned()),
            mtu: Some(4200),
            node: Some(1),
            pcie: Some(PcieLink { speed: "8.0 GT/s PCIe".to_owned(), lanes: 8 }),
            pcie_max: Some(PcieLink { speed: "8.0 GT/s PCIe".to_owned(), lanes: 16 }),
        };
        assert_eq!(adapter, expected);
        // Port 2 has no `rate` file in this sysfs. All other properties belong to the device.
        assert_eq!(Adapter::of(&root, "mlx5_0", 2), Some(Adapter { rate_bps: None, ..expected }));
    }

    #[test]
    fn a_device_that_is_not_there_has_no_adapter() {
        let (_directory, root) = made_of(&[("sys/class/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n")]);
        assert_eq!(Adapter::of(&root, "rxe0", 1).unwrap().rate_bps, Some(2_500_000_000));
        let (_software, root) = made_of(&[
            ("sys/class/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n"),
            ("sys/class/infiniband/rxe0/parent", "eth0\n"),
        ]);
        assert_eq!(Adapter::of(&root, "rxe0", 1).unwrap().rate_bps, None);
        for name in ["rxe1", "", ".", "..", "../infiniband/rxe0"] {
            assert_eq!(Adapter::of(&root, name, 1), None, "{name}");
        }
    }

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rate_bps("100 Gb/sec (4X EDR)"), Some(100_000_000_000));
        assert_eq!(rate_bps("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        for none in ["", "fast", "-1 Gb/sec", "nan Gb/sec", "1e300 Gb/sec"] {
            assert_eq!(rate_bps(none), None, "{none}");
        }
    }
}
