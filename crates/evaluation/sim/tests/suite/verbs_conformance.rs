//! The conformance suite of doorbell-verbs on the provider in virtual time, with all cases that run on the software
//! RNIC and on RNICs of the machine.
//!
//! The callers are not simulated threads. Each poll of a caller that finds nothing lets the simulated hardware
//! continue.

use doorbell_sim::{Simulation, Topology, testbed};
use doorbell_verbs::Device;
use doorbell_verbs_conformance::provider;

fn pair() -> (Device, Device) {
    let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
    let simulation = Simulation::new(t1, Topology::Pair, 1).expect("a simulation");
    (simulation.device(0).clone(), simulation.device(1).clone())
}

provider!(simulated, doorbell_verbs_conformance::common::as_it_is, crate::verbs_conformance::pair);
provider!(@exact simulated_exactly, doorbell_verbs_conformance::common::as_it_is, crate::verbs_conformance::pair);
