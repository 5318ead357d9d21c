//! Several software RNICs, as DOORBELL_DEVICES states them.

use crate::command::{Running, doorbell, list, measuring};

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
