//! Tests the published counters of a software RNIC. The counters are current, and a device opens even if it cannot
//! publish.

use doorbell_verbs_conformance::common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use doorbell_counters::{
    DIRECTORY_VARIABLE, Name, PortReply, PortRequest, PublishedPort, PublishedSource, Reading, SWITCH_VARIABLE, Sample,
    Set, Source,
};
use doorbell_testing::in_own_process;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{AsyncEvent, Device, PortState, SendOperation};

/// Runs `body` in a process of its own with its own directory for counters.
fn with_own_directory(switch: Option<&str>, body: impl FnOnce(&Path)) {
    let root = tempfile::tempdir().unwrap();
    let prepare = |command: &mut Command| {
        command.env(DIRECTORY_VARIABLE, root.path().join("counters"));
        command.env_remove(SWITCH_VARIABLE).envs(switch.map(|value| (SWITCH_VARIABLE, value)));
    };
    in_own_process(prepare, || body(Path::new(&std::env::var_os(DIRECTORY_VARIABLE).unwrap())));
}

fn published() -> Vec<Sample> {
    let mut reading = Reading::default();
    PublishedSource::new().read(&mut reading);
    assert!(reading.notes.is_empty(), "{:?}", reading.notes);
    reading.samples
}

/// Waits until the published counters equal the counters of the device.
fn wait_for(device: &Device) {
    let until = Instant::now() + Duration::from_secs(60);
    let address = device.attributes().address;
    loop {
        let sample = published().into_iter().find(|sample| sample.identity.address == Some(address)).unwrap();
        let counters = device.counters().unwrap();
        let names = doorbell_verbs::Counters::NAMES.iter().map(|name| Name::new(Set::Published, *name));
        if names.zip(counters.values()).all(|(name, value)| sample.raw[&name] == value) {
            assert_eq!(sample.raw.len(), counters.values().len());
            return;
        }
        assert!(Instant::now() < until, "{counters:?}\n{:?}", sample.raw);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn final_values_are_published_without_further_calls() {
    with_own_directory(None, |_| {
        let (a, b) = Plan::rc().connect(&(open_soft(SoftOptions::default()), open_soft(SoftOptions::default())));
        for round in 0..200 {
            b.post_recv(1, &[]);
            a.post(1, SendOperation::Send, &[]);
            a.expect(1);
            b.expect(1);
            if round % 50 == 0 {
                wait_for(&a.device);
                wait_for(&b.device);
            }
        }
        assert!(a.device.counters().unwrap().tx_data_packets >= 200);
        wait_for(&a.device);
        wait_for(&b.device);
        let pid = std::process::id();
        assert!(
            published().iter().all(|sample| sample.identity.pid == Some(pid) && sample.identity.name == "doorbell0")
        );
        drop((a, b));
        assert!(published().is_empty(), "the file of a closed device remains");
    });
}

/// Returns how many times the threads that drive engines went to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let ours =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "doorbell"));
    ours.map(|task| {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    })
    .sum()
}

#[test]
fn an_idle_device_wakes_no_thread_to_publish() {
    with_own_directory(None, |_| {
        let (a, b) = Plan::rc().connect(&(open_soft(SoftOptions::default()), open_soft(SoftOptions::default())));
        b.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        b.expect(1);
        wait_for(&a.device);
        wait_for(&b.device);
        // The threads go to sleep only when the timers of the traffic have expired. This takes long on a slow machine.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let before = sleeps();
            std::thread::sleep(Duration::from_millis(500));
            if sleeps() == before {
                break;
            }
            assert!(Instant::now() < until, "the threads do not go to sleep");
        }
    });
}

#[test]
fn another_process_orders_the_port_of_an_idle_device() {
    with_own_directory(None, |_| {
        for link in [LinkChoice::Udp, LinkChoice::Shm] {
            let device = open_soft(SoftOptions { link: Some(link), ..SoftOptions::default() });
            let address = device.attributes().address.to_string();
            let ask = |request| {
                let wake = |address, port| doorbell_fabric::wake_device(address, port).unwrap();
                PublishedSource::new().ask_port(&address, request, wake).unwrap().reply
            };
            let reply = |state, was_refused| PortReply { state, was_refused };
            assert_eq!(ask(PortRequest::State), reply(PublishedPort::Active, false));
            assert_eq!(ask(PortRequest::Down), reply(PublishedPort::Down, false));
            assert_eq!(ask(PortRequest::Down), reply(PublishedPort::Down, true));
            assert_eq!(device.port_state().unwrap(), PortState::Down);
            assert_eq!(ask(PortRequest::Up), reply(PublishedPort::Active, false));
            assert_eq!(ask(PortRequest::DeviceFatal), reply(PublishedPort::Failed, false));
            assert_eq!(ask(PortRequest::Up), reply(PublishedPort::Failed, true));
            let events: Vec<_> = std::iter::from_fn(|| device.poll_event()).collect();
            let expected = [
                AsyncEvent::PortError(1),
                AsyncEvent::PortActive(1),
                AsyncEvent::GidChange(1),
                AsyncEvent::DeviceFatal,
            ];
            assert_eq!(events, expected);
        }
    });
}

#[test]
fn publishing_can_be_switched_off() {
    with_own_directory(Some("0"), |directory| {
        let _device = open_soft(SoftOptions::default());
        assert!(!directory.exists());
    });
}

#[test]
fn a_device_opens_without_a_place_to_publish() {
    with_own_directory(None, |directory| {
        std::fs::write(directory, "a file in its place").unwrap();
        let (a, b) = Plan::rc().connect(&(open_soft(SoftOptions::default()), open_soft(SoftOptions::default())));
        b.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        b.expect(1);
    });
}
