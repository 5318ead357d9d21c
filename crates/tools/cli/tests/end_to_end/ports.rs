//! `doorbell port`.

use serde_json::Value;

use crate::command::{Finished, Running, list, measuring};
use crate::counters::World;

impl World {
    fn port(&self, arguments: &str) -> Finished {
        Running::start(self.command(&format!("port {arguments}"))).finish()
    }

    /// Returns the labels of all open devices.
    fn labels(&self) -> Vec<String> {
        let open = Running::start(self.command("run --processes --json")).finish().expect_status(0).json();
        let labels = list(&open, "/devices").iter().map(|device| device["device"].as_str().unwrap_or_default());
        labels.map(str::to_owned).collect()
    }
}

#[test]
fn a_command_orders_the_port_of_a_running_measurement() {
    let _one_at_a_time = measuring();
    for link in ["udp", "shm"] {
        let world = World::new();
        // The timeout covers the time for which the port is down, on a slow machine too.
        let bench = Running::start(world.command(&format!("bench bw -s 4096 -D 100 -u 17 --link {link}")));
        world.wait_for_packets();
        let labels = world.labels();
        let [label, other] = labels.as_slice() else { panic!("two devices, but {labels:?}") };
        world.port("doorbell0 down").expect_complaint(1, &["\"doorbell0\" is the name of 2 devices", label, other]);
        world.port("doorbell7 down").expect_complaint(1, &["\"doorbell7\"", "open are", label]);
        for (order, said) in [("", "up"), ("down", "down"), ("", "down"), ("up", "up"), ("", "up")] {
            let finished = world.port(&format!("{label} {order}")).expect_status(0);
            assert_eq!(finished.stdout, format!("{label}: the port is {said}\n"), "{order}");
        }
        world.port(&format!("{label} up")).expect_complaint(1, &[label, "is up already"]);
        world.port(&format!("{label} down")).expect_status(0);
        world.port(&format!("{label} down")).expect_complaint(1, &[label, "is down already"]);
        let shown = world.port(&format!("{label} --json")).expect_status(0).json();
        assert_eq!((&shown["device"], &shown["state"]), (&Value::from(label.as_str()), &"down".into()));
        world.port(&format!("{label} fatal")).expect_status(0);
        world.port(&format!("{label} up")).expect_complaint(1, &[label, "has failed"]);
        let finished = bench.finish().expect_status(1);
        let named = finished.stderr.matches("has failed (asynchronous event DEVICE_FATAL)").count();
        assert!(named == 1 && !finished.stderr.contains("flushed"), "{}", finished.stderr);
    }
}

#[test]
fn a_port_of_no_process_is_a_sentence() {
    let world = World::new();
    world.port("doorbell0 down").expect_complaint(1, &["\"doorbell0\"", "none is open"]);
}
