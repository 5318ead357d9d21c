//! The conformance suite of doorbell-exchange on the provider in virtual time. It runs each protocol and variant, with
//! the same cases as on software RNICs and on RNICs of the machine.
//!
//! The callers are not simulated threads. Each poll of a caller that finds nothing lets the simulated hardware
//! continue.

use std::cell::RefCell;

use doorbell_exchange_conformance::{Provider, exchange_suite};
use doorbell_sim::{Simulation, Topology, testbed};
use doorbell_verbs::Device;

/// Number of nodes of the simulation. No case needs more devices.
const NODES: usize = 64;

thread_local! {
    /// Unused devices of the simulation of this test. Each test runs in a separate thread and has its own simulation.
    static DEVICES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

/// Opens a device that can reach all other devices of the same test.
fn device() -> Device {
    DEVICES.with_borrow_mut(|devices| {
        if devices.is_empty() {
            let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
            let simulation = Simulation::new(t1, Topology::Star { nodes: NODES }, 1).expect("a simulation");
            devices.extend((0..NODES).map(|node| simulation.device(node).clone()));
        }
        devices.pop().expect("the simulation has an unused device")
    })
}

/// Returns `None`, because the simulation injects no faults. A simulated network loses packets only at a full switch.
fn lossy() -> Option<[Device; 2]> {
    None
}

/// The provider does not work while callers sleep, because virtual time advances only during calls. `exchange.rs` tests
/// wake-ups in virtual time.
const PROVIDER: Provider = Provider { works_while_callers_sleep: false, device, lossy };

exchange_suite!(crate::exchange_conformance::PROVIDER);
