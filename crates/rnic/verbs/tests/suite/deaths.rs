//! Log events of dead queue pairs. A device logs them without its lock, so a subscriber may call the device.

use doorbell_verbs_conformance::common;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use common::*;
use doorbell_verbs::soft::{MemoryOptions, SoftOptions, VirtualNetwork};
use doorbell_verbs::{Device, QP_DEATHS, QpState, RKey, SendOperation, Status};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Subscriber that collects the messages of dead queue pairs, and calls both devices for each message.
struct Deaths {
    devices: [Device; 2],
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Deaths {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == QP_DEATHS
    }

    fn event(&self, event: &Event<'_>) {
        for device in &self.devices {
            assert!(device.counters().is_some());
        }
        event.record(&mut |_: &Field, value: &dyn Debug| self.lines.lock().unwrap().push(format!("{value:?}")));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The devices have no threads, so this thread drives them and gets the events.
#[test]
fn a_subscriber_may_call_the_device_whose_queue_pair_has_died() {
    let network = VirtualNetwork::new(MemoryOptions::default());
    let open = |last: u8| {
        let options = SoftOptions { publish: false, ..SoftOptions::default() };
        network.open([10, 0, 0, last].into(), &options).unwrap()
    };
    let devices = (open(1), open(2));
    let (a, b) = Plan::rc().connect(&devices);
    let memory = a.memory(8);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let deaths = Deaths { devices: [devices.0.clone(), devices.1.clone()], lines: Arc::clone(&lines) };
    tracing::subscriber::with_default(deaths, || {
        a.post(1, SendOperation::Write { remote_address: 0, rkey: RKey::new(0) }, &[memory.sge(0, 8)]);
        while a.state() != QpState::Error {
            network.advance_to(network.next_event_ns().expect("the WRITE is not answered yet"));
            network.drive();
        }
    });
    a.expect_failure(1, Status::RemoteAccess);
    assert_eq!(b.state(), QpState::Error);
    let lines = lines.lock().unwrap();
    let [of_b, of_a] = &lines[..] else { panic!("{lines:?}") };
    assert!(of_b.contains(" refused the request with PSN ") && of_b.contains(" of 10.0.0.1: "), "{of_b}");
    assert!(of_a.contains(" to 10.0.0.2 failed with status 10: "), "{of_a}");
}
