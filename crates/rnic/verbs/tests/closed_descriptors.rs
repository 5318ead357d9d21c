//! A program that closes all its descriptors also closes those of a device. Requests of the device end in bounded time,
//! even if all threads of the program sleep.
//!
//! This test has a process of its own, since it closes descriptors by their numbers.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{Device, Notify, SendOperation, Status};
use doorbell_verbs_conformance::common::{Plan, open_soft};

/// Time within which the request must end, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn descriptors() -> BTreeSet<RawFd> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<RawFd> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // `numbers` includes the descriptor through which this function read `/proc/self/fd`. It is closed by now, so drop
    // its number.
    numbers.into_iter().filter(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok()).collect()
}

/// Opens a device, and closes all its descriptors.
fn without_descriptors(options: SoftOptions) -> Device {
    let before = descriptors();
    let device = open_soft(options);
    let own: Vec<RawFd> = descriptors().difference(&before).copied().collect();
    assert!(!own.is_empty(), "a device has descriptors");
    for descriptor in own {
        nix::unistd::close(descriptor).unwrap();
    }
    device
}

// Both links are in one test, since tests of one process run at the same time and share the numbers of descriptors.
#[test]
fn requests_end_after_the_program_has_closed_the_descriptors() {
    for link in [LinkChoice::Udp, LinkChoice::Auto] {
        let options = SoftOptions { link: Some(link), ..SoftOptions::default() };
        let peer = open_soft(options.clone());
        let device = without_descriptors(options);
        // The new descriptor of the channel gets a number that the device had.
        let channel = device.create_channel().unwrap();
        let cq = device.create_cq_on(16, &channel).unwrap();
        let plan = Plan::rc();
        let (a, b) = (plan.side_on(&device.create_pd().unwrap(), &cq, None), plan.side(&peer));
        plan.join(&a, &b);
        b.post_recv(2, &[]);
        a.post(1, SendOperation::Send, &[]);
        cq.arm(Notify::Next);
        let begun = Instant::now();
        while channel.next().is_none() {
            assert!(begun.elapsed() < PATIENCE, "{link:?}: no notification");
            channel.wait(Some(Duration::from_secs(1))).unwrap();
        }
        // Through shared memory, two devices of one process may still exchange packets without descriptors, so the
        // request may succeed.
        let status = a.reap(1)[0].status;
        let is_expected = status == Status::RetryExceeded || link == LinkChoice::Auto && status == Status::Success;
        assert!(is_expected, "{link:?}: {status:?}");
    }
}
