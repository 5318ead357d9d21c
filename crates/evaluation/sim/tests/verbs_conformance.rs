//! The suite of doorbell-verbs on the provider in virtual time, with all cases that run on the software RNIC and on
//! RNICs of the machine.
//!
//! The callers are not simulated threads: each of their polls that finds nothing lets the hardware continue.

#[path = "../../../rnic/verbs/tests/common/mod.rs"]
mod common;
#[macro_use]
#[path = "../../../rnic/verbs/tests/conformance/provider.rs"]
mod provider;

#[path = "../../../rnic/verbs/tests/conformance/connected.rs"]
mod connected;
#[path = "../../../rnic/verbs/tests/conformance/lifetime.rs"]
mod lifetime;
#[path = "../../../rnic/verbs/tests/conformance/memory.rs"]
mod memory;
#[path = "../../../rnic/verbs/tests/conformance/misuse.rs"]
mod misuse;
#[path = "../../../rnic/verbs/tests/conformance/queues.rs"]
mod queues;
#[path = "../../../rnic/verbs/tests/conformance/states.rs"]
mod states;
#[path = "../../../rnic/verbs/tests/conformance/threads.rs"]
mod threads;
#[path = "../../../rnic/verbs/tests/conformance/unreliable.rs"]
mod unreliable;

use doorbell_sim::{Simulation, Topology, testbed};
use doorbell_verbs::Device;

/// Opens two devices that reach each other.
type Open<'a> = &'a dyn Fn() -> (Device, Device);

fn pair() -> (Device, Device) {
    let t1 = testbed::by_name("connectx5-100g").expect("a testbed of the program");
    let simulation = Simulation::new(t1, Topology::Pair, 1).expect("a simulation");
    (simulation.device(0).clone(), simulation.device(1).clone())
}

provider!(simulated, crate::common::as_it_is, crate::pair);
provider!(@exact simulated_exactly, crate::common::as_it_is, crate::pair);
