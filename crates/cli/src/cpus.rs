//! Which CPUs the threads of a command poll on.

use clap::Args;
use doorbell_study::pinning::{CpuChoice, Pinning};
use doorbell_verbs::Device;

use crate::Usage;

/// CPUs for threads that poll.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Cpus {
    /// Pin threads that poll to these CPUs, which they take in this order: numbers and ranges, such as 0,2,4-7, or `none`.
    /// Two processes of one machine take them in turn; nothing is pinned where more threads poll than there are CPUs
    /// [default: `study` takes CPUs near the device first, one of each core before any second one; `bench` pins nothing]
    #[arg(long = "cpus", value_name = "LIST")]
    given: Option<CpuChoice>,
}

impl Cpus {
    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// What is to be pinned in processes that use this device.
    pub(crate) fn pinning(&self, device: &Device) -> Result<Pinning, Usage> {
        self.of(device).map_err(|error| Usage(error.to_string()))
    }

    /// The same of two processes that measure on this machine.
    pub(crate) fn pinning_of_both_ends(&self, device: &Device) -> Result<Pinning, Usage> {
        let choice = self.choice();
        self.of(device).and_then(|pinning| pinning.for_both_ends(&choice)).map_err(|error| Usage(error.to_string()))
    }

    fn of(&self, device: &Device) -> Result<Pinning, doorbell_study::pinning::CpuError> {
        Pinning::of(&self.choice(), &device.attributes())
    }

    fn choice(&self) -> CpuChoice {
        self.given.clone().unwrap_or_default()
    }

    /// The option for another process, if it was given.
    pub(crate) fn argument(&self) -> Option<String> {
        self.given.as_ref().map(ToString::to_string)
    }
}

/// The option that pins the threads of a second process so.
pub(crate) fn argument_of(pinning: &Pinning) -> String {
    match pinning.cpus.is_empty() {
        true => CpuChoice::Unpinned,
        false => CpuChoice::Listed(pinning.cpus.clone()),
    }
    .to_string()
}
