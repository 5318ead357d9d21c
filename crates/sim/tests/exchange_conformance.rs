//! The suite of doorbell-exchange on the provider in virtual time: every protocol and variant, the same cases as between
//! software RNICs and on RNICs of the machine. Its callers are no simulated threads: each look of theirs that finds nothing
//! lets the hardware go on.

mod provider {
    use std::cell::RefCell;

    use doorbell_sim::{Simulation, Topology, testbed};
    use doorbell_verbs::Device;

    /// More than any case needs.
    const NODES: usize = 64;

    thread_local! {
        /// Each test has a thread, and a simulation of its own.
        static DEVICES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
    }

    /// Time stands still while nobody calls. That a receiver in virtual time is woken, `exchange.rs` shows.
    pub(crate) const WORKS_WHILE_CALLERS_SLEEP: bool = false;

    /// One that reaches the others.
    pub(crate) fn device() -> Device {
        DEVICES.with_borrow_mut(|devices| {
            if devices.is_empty() {
                let t1 = testbed::by_name("connectx5-100g").expect("a testbed of the program");
                let simulation = Simulation::new(t1, Topology::Star { nodes: NODES }, 1).expect("a simulation");
                devices.extend((0..NODES).map(|node| simulation.device(node).clone()));
            }
            devices.pop().expect("there are some")
        })
    }

    /// None: a simulated network loses packets only where a switch has no room, and no faults are put in.
    pub(crate) fn lossy() -> Option<[Device; 2]> {
        None
    }
}

#[path = "../../exchange/tests/conformance/suite.rs"]
mod suite;
