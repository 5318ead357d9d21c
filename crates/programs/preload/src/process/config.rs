//! Settings in the environment: `doorbell run` sets them, and `doorbell env` prints them.

use std::ffi::OsString;
use std::path::PathBuf;

use doorbell_fabric::FaultPlan;
use doorbell_verbs::soft::{self, ACK_VARIABLE, AckPolicy, DevicesError, SoftDevice, SoftOptions};

use crate::objects::answer::{Answer, Refused};
use crate::process::signals::replaces_the_c_library;
use crate::process::static_value::StaticValue;

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str) -> Answer<Option<T>> {
    let Some(value) = variable(name) else { return Ok(None) };
    let text = value.to_string_lossy();
    text.parse().map(Some).map_err(|error| Refused::invalid(format!("{name} is {text:?}: {error}")))
}

/// Returns the devices of this process. The first call reads them from the environment, and they never change
/// afterwards: programs keep pointers to the listed devices.
///
/// # Errors
///
/// The environment contains a value that is not allowed.
pub(crate) fn devices() -> Answer<&'static [SoftDevice]> {
    static DEVICES: StaticValue<Result<Vec<SoftDevice>, DevicesError>> = StaticValue::new();
    // SAFETY: the value is never freed, and no thread changes it.
    match unsafe { &*DEVICES.get_or_make(|| Box::new(soft::devices())) } {
        Ok(devices) => Ok(devices),
        Err(error) => Err(Refused::invalid(error.to_string())),
    }
}

/// Returns whether other machines can reach an RNIC of this process. The default address of an RNIC is a loopback
/// address.
pub(crate) fn is_on_network() -> bool {
    let devices = devices().unwrap_or_default();
    devices.iter().any(|device| device.address.is_some_and(|address| !address.is_loopback()))
}

/// Returns the options for opening the RNIC of this number.
pub(crate) fn options(number: usize) -> Answer<SoftOptions> {
    let device = soft::device(number).map_err(|error| Refused::invalid(error.to_string()))?;
    let mut options = SoftOptions {
        pcap: variable("DOORBELL_PCAP").map(|path| own_file(path, &device)),
        faults: parsed::<FaultPlan>("DOORBELL_FAULT")?,
        fault_journal: fault_journal(),
        check_elements_late: true,
        guards_memory: true,
        ..SoftOptions::default()
    };
    // The library does not see that such a program ends by `_exit` or `exec`, so no acknowledgement may wait.
    if variable(ACK_VARIABLE).is_none() && !replaces_the_c_library() {
        options.ack = Some(AckPolicy::Strict);
    }
    if let Some(port) = parsed("DOORBELL_PORT")? {
        options.port = port;
    }
    if device.faults.is_some()
        && let Some(journal) = &mut options.fault_journal
    {
        // Journals name rules by their number within a plan, so another plan needs another journal.
        journal.as_mut_os_string().push(format!(".{}", device.name()));
    }
    Ok(device.options(options))
}

/// Replaces `%p` in a file name by the process ID and `%d` by the name of the device, so that each device of each
/// process writes its own file.
fn own_file(path: OsString, device: &SoftDevice) -> PathBuf {
    match path.into_string() {
        Ok(text) => text.replace("%p", &std::process::id().to_string()).replace("%d", &device.name()).into(),
        Err(path) => path.into(),
    }
}

/// Default vendor and part numbers of the device. The vendor is a locally administered identifier that no vendor owns.
const OWN_VENDOR: (u32, u32) = (0x02_646f, 1);

/// Returns the vendor and part numbers of the device. Some programs select features by these numbers.
pub(crate) fn vendor() -> Answer<(u32, u32)> {
    let Some(value) = variable("DOORBELL_VENDOR_ID") else { return Ok(OWN_VENDOR) };
    let text = value.to_string_lossy();
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (vendor, part) = text.split_once(':').unwrap_or((&text, "0"));
    number(vendor).zip(number(part)).ok_or_else(|| {
        Refused::invalid(format!(
            "DOORBELL_VENDOR_ID is {text:?}; allowed is VENDOR or VENDOR:PART, such as 0x2c9:4119"
        ))
    })
}

/// Returns the file to which the processes of a program append the rules of the fault plan that fire.
pub(crate) fn fault_journal() -> Option<PathBuf> {
    variable("DOORBELL_FAULT_JOURNAL").map(PathBuf::from)
}

/// Returns whether the library prints the rules of the fault plan that never fired when the process ends. With
/// `doorbell run`, the parent of the program prints them instead, after the last process that it waits for.
pub(crate) fn prints_unfired_rules() -> bool {
    fault_journal().is_some() && variable("DOORBELL_FAULT_WATCHED").is_none()
}

/// Returns whether the library prints counters when the process ends.
pub(crate) fn wants_stats() -> bool {
    variable("DOORBELL_STATS").is_some_and(|value| value != "0")
}

/// Returns whether the library reports queue pairs that die on standard error.
pub(crate) fn reports_deaths() -> bool {
    variable("DOORBELL_LOG").is_none_or(|level| level != "off")
}

/// Returns whether the library explains refused requests on standard error.
pub(crate) fn explains() -> bool {
    let quiet = ["off", "error", "warn"].map(OsString::from);
    variable("DOORBELL_LOG").is_some_and(|level| !quiet.contains(&level))
}
