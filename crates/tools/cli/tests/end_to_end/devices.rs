//! Several software RNICs, as DOORBELL_DEVICES states them.

use std::fs;

use serde_json::Value;

use crate::command::{Running, doorbell, list, measuring};
use crate::counters::World;
use crate::study::{Scratch, records};

/// The dynamic linker finds an empty file before a libibverbs of this machine.
#[test]
fn a_missing_libibverbs_has_a_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    std::fs::write(folder.path().join("libibverbs.so.1"), "").expect("the temporary folder can be written");
    let mut command = doorbell("bench lat -n 1 -s 16 -d mlx5_0");
    command.env("LD_LIBRARY_PATH", folder.path());
    let words = ["libibverbs cannot be loaded (", "Debian's packages libibverbs1 and ibverbs-providers"];
    Running::start(command).finish().expect_complaint(1, &words);
}

/// With DOORBELL_DEVICES, `-d` takes each device of the list. The device has its address of DOORBELL_BIND.
#[test]
fn each_software_rnic_of_the_list_can_be_measured() {
    let mut command = doorbell("bench bw -d doorbell1 -s 64 -n 2000 --json");
    command.env("DOORBELL_DEVICES", "2").env("DOORBELL_BIND", "127.0.0.251,127.0.0.252");
    let found = {
        let _one_at_a_time = measuring();
        Running::start(command).finish().expect_status(0).json()
    };
    assert_eq!(found["environment"]["device"], "doorbell1");
    let mut command = doorbell("devices --json");
    command.env("DOORBELL_DEVICES", "2");
    let devices = Running::start(command).finish().expect_status(0).json();
    let names = list(&devices, "/devices").iter().filter(|device| device["provider"] == "soft");
    assert_eq!(names.map(|device| &device["name"]).collect::<Vec<_>>(), ["doorbell0", "doorbell1"]);
    for (devices, bind, words) in [
        ("2", "", "there is no software RNIC doorbell2, only doorbell0 to doorbell1"),
        ("0", "", "is \"0\", allowed is 1 to 64"),
        ("3", "127.0.0.251", "is 1, and the number of software RNICs"),
    ] {
        let mut command = doorbell("bench bw -d doorbell2 -n 1");
        command.env("DOORBELL_DEVICES", devices).env("DOORBELL_BIND", bind);
        Running::start(command).finish().expect_complaint(2, &[words]);
    }
}

/// The study takes a device of the list as the benchmark does, and each record names it.
#[test]
fn a_study_measures_a_software_rnic_of_the_list() {
    let scratch = Scratch::new("devices");
    let mut command = doorbell(&format!("study -d doorbell1 --out {} wire/request-response", scratch.path()));
    command.env("DOORBELL_DEVICES", "2").env("DOORBELL_BIND", "127.0.0.247,127.0.0.248");
    {
        let _one_at_a_time = measuring();
        Running::start(command).finish().expect_status(0);
    }
    let files = records(&scratch.0);
    assert!(!files.is_empty());
    for file in files {
        let record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(record["environment"]["device"], "doorbell1", "{}", file.display());
    }
}

/// Both sides of a measurement have a device of the same name, and no other name of the list is open.
#[test]
fn counters_find_a_software_rnic_of_the_list_by_its_name() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let mut command = world.command("bench bw -d doorbell1 -s 4096 -D 100");
    command.env("DOORBELL_DEVICES", "2").env("DOORBELL_BIND", "127.0.0.249,127.0.0.250");
    let _bench = Running::start(command);
    world.wait_for_packets();
    let counters =
        |device: &str| Running::start(world.looking(&format!("counters {device} -n 1 -i 0.1 --json"))).finish();
    let look = counters("doorbell1").expect_status(0).json();
    let devices = list(&look, "/devices");
    assert_eq!(devices.len(), 2, "{look:#}");
    assert!(devices.iter().all(|device| device["name"] == "doorbell1"), "{look:#}");
    assert!(devices.iter().any(|device| device["address"] == "127.0.0.250"), "{look:#}");
    counters("doorbell0").expect_complaint(1, &["no RDMA device \"doorbell0\"", "doorbell1@127.0.0.250"]);
}
