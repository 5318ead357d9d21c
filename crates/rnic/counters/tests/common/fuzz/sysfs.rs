//! Fuzz body for a tree of devices, as the kernel's sysfs or a copy of it contains.

use std::os::unix::fs::symlink;

use doorbell_counters::{Monitor, SysfsSource};

use super::{Choices, MOST_STEPS, change, check, directory, place, remove, replace, word, write};

const PLACES: [&str; 23] = [
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets",
    "class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer",
    "class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err",
    "class/infiniband/mlx5_0/ports/1/hw_counters/duplicate_request",
    "class/infiniband/mlx5_0/ports/1/hw_counters/lifespan",
    "class/infiniband/mlx5_0/ports/1/hw_counters/\x1b[2J",
    "class/infiniband/mlx5_0/ports/1/hw_counters",
    "class/infiniband/mlx5_0/ports/1/gids/0",
    "class/infiniband/mlx5_0/ports/1/gids/1",
    "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
    "class/infiniband/mlx5_0/ports/2/counters/port_rcv_data",
    "class/infiniband/mlx5_0/ports/02/counters/port_rcv_data",
    "class/infiniband/mlx5_0/ports/x/counters/port_rcv_data",
    "class/infiniband/mlx5_0/ports",
    "class/infiniband/mlx5_0/device/net/eth0",
    "class/infiniband/mlx5_0/hw_counters/rcvd_pkts",
    "class/infiniband/rxe0/ports/1/hw_counters/sent_pkts",
    "class/infiniband/rxe0/parent",
    "class/infiniband/rxe0",
    "class/infiniband",
    "ethtool/eth0",
    "elsewhere",
];

/// Creates and changes trees as the input bytes determine, and reads the devices after each step.
pub fn fuzz_sysfs(data: &[u8]) {
    let mut choices = Choices(data);
    let root = directory();
    let mut monitor = Monitor::of(vec![Box::new(SysfsSource::new(root.path()))]);
    for _ in 0..MOST_STEPS {
        if choices.is_empty() {
            break;
        }
        let path = place(root.path(), &PLACES, &mut choices);
        match choices.below(10) {
            0..=2 => write(&path, format!("{}\n", word(&mut choices)).as_bytes()),
            3 => write(&path, format!("::ffff:192.0.2.{}\n", choices.byte()).as_bytes()),
            4 => {
                let names = ["eth0", "../elsewhere", "/dev/zero", ".", "a name", "N/A (no counters)"];
                write(&path, names[choices.below(names.len())].as_bytes());
            }
            5 => {
                let length = choices.short() % 512;
                write(&path, &choices.bytes(length));
            }
            6 => change(&path, &mut choices),
            7 => replace(&path, &mut choices),
            8 => {
                let driver = root.path().join("class/infiniband/mlx5_0/device/driver");
                remove(&driver);
                let length = choices.below(16);
                let name = String::from_utf8_lossy(&choices.bytes(length)).replace('\0', "0");
                // This fails if the tree has no such device, which does not matter.
                let _ = symlink(format!("drivers/{name}"), driver);
            }
            _ => look(&mut monitor),
        }
    }
    look(&mut monitor);
    look(&mut monitor);
}

fn look(monitor: &mut Monitor) {
    let look = monitor.look();
    check(&look);
    assert!(look.devices.len() <= 2 * PLACES.len(), "{} devices", look.devices.len());
}
