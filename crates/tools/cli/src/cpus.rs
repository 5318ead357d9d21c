//! CPUs on which the threads of a command poll.

use clap::Args;
use doorbell_machine::pinning::{CpuChoice, CpuError, Pinning};
use doorbell_record::adapter_of;
use doorbell_verbs::Device;

use crate::failure::Usage;

/// CPUs for threads that poll.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Cpus {
    /// CPUs to which polling threads are pinned, in this order: numbers and ranges, such as 0,2,4-7, or `none`. Two
    /// processes on one machine take CPUs of the list alternately. No thread is pinned if more threads poll than CPUs
    /// exist [default: `study` takes CPUs near the device, one of each core first; `bench` pins no thread]
    #[arg(long = "cpus", value_name = "LIST")]
    given: Option<CpuChoice>,
}

impl Cpus {
    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Returns the pinning of processes that use this device.
    pub(crate) fn pinning(&self, device: &Device) -> Result<Pinning, Usage> {
        self.of(device).map_err(|error| Usage(error.to_string()))
    }

    /// Returns the pinning of two processes that measure on this machine.
    pub(crate) fn pinning_of_both_ends(&self, device: &Device) -> Result<Pinning, Usage> {
        let choice = self.choice();
        self.of(device).and_then(|pinning| pinning.for_both_ends(&choice)).map_err(|error| Usage(error.to_string()))
    }

    fn of(&self, device: &Device) -> Result<Pinning, CpuError> {
        let adapter = adapter_of(&device.attributes());
        Pinning::of(&self.choice(), adapter.and_then(|adapter| adapter.node))
    }

    fn choice(&self) -> CpuChoice {
        self.given.clone().unwrap_or_default()
    }

    /// Returns the value of `--cpus` for another process, or `None` if the user has given no value.
    pub(crate) fn argument(&self) -> Option<String> {
        self.given.as_ref().map(ToString::to_string)
    }
}

/// Returns the value of `--cpus` that gives a second process this pinning.
pub(crate) fn argument_of(pinning: &Pinning) -> String {
    match pinning.cpus.is_empty() {
        true => CpuChoice::Unpinned,
        false => CpuChoice::Listed(pinning.cpus.clone()),
    }
    .to_string()
}
