//! Log events of dead queue pairs.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use doorbell_sim::{Simulation, Topology};
use doorbell_verbs::{QP_DEATHS, QpState, RKey, SendOperation, Status};
use doorbell_verbs_conformance::common::Plan;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::t1;

/// Subscriber that collects the messages of dead queue pairs.
struct Deaths(Arc<Mutex<Vec<String>>>);

impl Subscriber for Deaths {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == QP_DEATHS
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn Debug| self.0.lock().unwrap().push(format!("{value:?}")));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn the_deaths_of_simulated_queue_pairs_are_logged() {
    let simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Deaths(Arc::clone(&lines)), || {
        let (a, b) = Plan::rc().connect(&(simulation.device(0).clone(), simulation.device(1).clone()));
        let memory = a.memory(8);
        a.post(1, SendOperation::Write { remote_address: 0, rkey: RKey::new(0) }, &[memory.sge(0, 8)]);
        a.expect_failure(1, Status::RemoteAccess);
        assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    });
    let lines = lines.lock().unwrap();
    let [of_b, of_a] = &lines[..] else { panic!("{lines:?}") };
    assert!(of_b.contains(" refused the request with PSN "), "{of_b}");
    assert!(of_a.contains(" failed with status 10: "), "{of_a}");
}
