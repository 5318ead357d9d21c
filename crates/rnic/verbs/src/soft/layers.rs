//! Layers of a device's link: faults, and a capture with the clock of the device's driver.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell_fabric::{Faults, Link, OwnProcess, Pcap, VirtualClock};
use doorbell_output::files;

use super::SoftOptions;
use super::faults::open_journal;
use crate::error::Error;

/// Driver of an RNIC beside the calls of the program.
pub(super) enum Drive {
    /// A thread, which sleeps until this descriptor is readable.
    Thread(OwnProcess),
    /// None, since the program moves this clock.
    Virtual(VirtualClock),
}

impl Drive {
    /// Returns the function that maps the device's clock to the times of a capture.
    fn capture_clock(&self) -> Box<dyn Fn(u64) -> Duration + Send> {
        match self {
            Self::Thread(_) => {
                // Timestamps use the monotonic clock, so they never decrease.
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let begun = Instant::now();
                Box::new(move |_| since_1970 + begun.elapsed())
            }
            Self::Virtual(_) => Box::new(Duration::from_nanos),
        }
    }
}

/// Returns a path for a capture that this process has not used yet.
///
/// A forked child inherits the list of its parent's captures, so the child does not overwrite them.
fn unused(path: &Path) -> PathBuf {
    static GIVEN: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());
    let numbered = |number: u32| {
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{number}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        path.with_file_name(name)
    };
    for _ in 0..100 {
        match GIVEN.try_lock() {
            Ok(mut given) => {
                let times = given.entry(path.to_owned()).or_default();
                *times = times.saturating_add(1);
                return if *times == 1 { path.to_owned() } else { numbered(*times) };
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    // If another thread held the lock of `GIVEN` when this process was forked, the child can never take the lock. The
    // child then puts its process id into the names of its captures.
    numbered(std::process::id())
}

/// Wraps the link in a layer that injects faults and in a layer that captures packets, if the options request them. The
/// capture is the outermost layer, so it records the packets after the faults.
pub(super) fn stack(
    mut link: Box<dyn Link>,
    local: IpAddr,
    port: u16,
    drive: &Drive,
    options: &SoftOptions,
) -> Result<Box<dyn Link>, Error> {
    if let Some(plan) = &options.faults {
        let faults = Faults::new(link, plan.clone()).of_device(local, port);
        link = match &options.fault_journal {
            Some(path) => Box::new(faults.with_journal(open_journal(path)?)),
            None => Box::new(faults),
        };
    }
    if let Some(path) = &options.pcap {
        let what = "the pcap file could not be created";
        let file = files::create(&unused(path)).and_then(files::GuardedFile::new).map_err(Error::os(what))?;
        link = Box::new(Pcap::new(link, local, port, file, drive.capture_clock()).map_err(Error::os(what))?);
    }
    Ok(link)
}
