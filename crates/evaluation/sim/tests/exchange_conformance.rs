//! The suite of doorbell-exchange on the provider in virtual time: each protocol and variant, with the same cases as
//! between software RNICs and on RNICs of the machine.
//!
//! The callers are not simulated threads: each of their polls that finds nothing lets the hardware continue.

use std::cell::RefCell;

use doorbell_exchange_conformance::{Provider, exchange_suite};
use doorbell_sim::{Simulation, Topology, testbed};
use doorbell_verbs::Device;

/// Number of nodes, more than any case needs.
const NODES: usize = 64;

thread_local! {
    /// Each test has a separate thread and simulation.
    static DEVICES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

/// Opens a device that reaches the others.
fn device() -> Device {
    DEVICES.with_borrow_mut(|devices| {
        if devices.is_empty() {
            let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
            let simulation = Simulation::new(t1, Topology::Star { nodes: NODES }, 1).expect("a simulation");
            devices.extend((0..NODES).map(|node| simulation.device(node).clone()));
        }
        devices.pop().expect("there are some")
    })
}

/// Returns `None`: a simulated network loses packets only if a switch has no room, and no faults are injected.
fn lossy() -> Option<[Device; 2]> {
    None
}

/// Virtual time advances only during calls. The test of wake-ups in virtual time is in `exchange.rs`.
const PROVIDER: Provider = Provider { works_while_callers_sleep: false, device, lossy };

exchange_suite!(crate::PROVIDER);
