//! Requirements for every provider, as one suite. Each test gets a function that opens two devices that reach each
//! other. A line at the end adds a provider and names the function that runs its tests. The crate doorbell-sim, which
//! is above this one, adds the provider in virtual time.

#[path = "../common/mod.rs"]
mod common;
#[macro_use]
mod provider;

mod connected;
mod lifetime;
mod memory;
mod misuse;
mod queues;
mod states;
mod threads;
mod unreliable;

use doorbell_verbs::Device;

/// Opens two devices that reach each other.
type Open<'a> = &'a dyn Fn() -> (Device, Device);

provider!(soft, crate::common::as_it_is, crate::common::soft_pair);
provider!(@exact soft_exactly, crate::common::as_it_is, crate::common::soft_pair);
provider!(shared_memory, crate::common::as_it_is, crate::common::shm_pair);
provider!(@exact shared_memory_exactly, crate::common::as_it_is, crate::common::shm_pair);
provider!(system, crate::common::as_it_is, crate::common::system_pair, #[ignore = "needs a device of the machine"]);
provider!(soft_over_ipv6, crate::common::namespace::within, crate::common::namespace::soft_pair);
provider!(@exact soft_over_ipv6_exactly, crate::common::namespace::within, crate::common::namespace::soft_pair);
