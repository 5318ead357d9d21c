//! Runs the conformance suite on the providers of this crate. Each `provider!` line adds a provider and names the
//! function that runs its tests. The crate doorbell-sim adds the provider in virtual time.

use doorbell_verbs_conformance::provider;

provider!(soft, doorbell_verbs_conformance::common::as_it_is, doorbell_verbs_conformance::common::soft_pair);
provider!(@exact soft_exactly, doorbell_verbs_conformance::common::as_it_is, doorbell_verbs_conformance::common::soft_pair);
provider!(
    several_engines,
    doorbell_verbs_conformance::common::as_it_is,
    doorbell_verbs_conformance::common::engines_pair
);
provider!(
    several_engines_through_memory,
    doorbell_verbs_conformance::common::as_it_is,
    doorbell_verbs_conformance::common::engines_shm_pair
);
provider!(shared_memory, doorbell_verbs_conformance::common::as_it_is, doorbell_verbs_conformance::common::shm_pair);
provider!(@exact shared_memory_exactly, doorbell_verbs_conformance::common::as_it_is, doorbell_verbs_conformance::common::shm_pair);
provider!(system, doorbell_verbs_conformance::common::as_it_is, doorbell_verbs_conformance::common::system_pair, #[ignore = "needs a device of the machine"]);
provider!(soft_over_ipv6, crate::namespace::within, crate::namespace::soft_pair);
provider!(@exact soft_over_ipv6_exactly, crate::namespace::within, crate::namespace::soft_pair);
