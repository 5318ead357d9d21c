//! Requirements on every protocol and variant, on software RNICs or hardware. The crate doorbell-sim runs the same
//! suite in virtual time.
//!
//! The devices are software RNICs of this process, or the hardware device that `DOORBELL_TEST_DEVICE` names. With a
//! hardware device, the tests with packet loss need a second hardware device, which `DOORBELL_TEST_PEER_DEVICE` names.
//! The network between both hardware devices must lose packets.

use doorbell_exchange_conformance::{Provider, exchange_suite};
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::system::{self, SystemOptions};

/// Returns a device that can reach all devices of the suite.
fn device() -> Device {
    system_device("DOORBELL_TEST_DEVICE")
        .unwrap_or_else(|| soft::open(&SoftOptions::default()).expect("a software RNIC opens"))
}

/// Returns the hardware device that an environment variable names.
fn system_device(variable: &str) -> Option<Device> {
    let name = std::env::var(variable).ok()?;
    let options = SystemOptions { device: Some(name), ..SystemOptions::default() };
    Some(system::open(&options).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns two devices whose network loses packets, or `None` if there is no second hardware device.
fn lossy() -> Option<[Device; 2]> {
    Some(match system_device("DOORBELL_TEST_DEVICE") {
        None => [faulty("drop=0.01,seed=5"), faulty("drop=0.01,duplicate=0.01,seed=6")],
        Some(one) => {
            let other = system_device("DOORBELL_TEST_PEER_DEVICE");
            [one, other.expect("DOORBELL_TEST_PEER_DEVICE names a device across a network that loses packets")]
        }
    })
}

fn faulty(faults: &str) -> Device {
    let faults = Some(faults.parse().expect("a fault plan"));
    soft::open(&SoftOptions { faults, ..SoftOptions::default() }).expect("a software RNIC opens")
}

const PROVIDER: Provider = Provider { works_while_callers_sleep: true, device, lossy };

exchange_suite!(crate::conformance::PROVIDER);
