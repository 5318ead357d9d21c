//! Process-wide parts of the library: settings, started programs, forks, signals, waits, output, and the end of the
//! process.

pub(crate) mod config;
pub(crate) mod exit;
pub(crate) mod explain;
pub(crate) mod fork;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod launch;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod main_thread;
pub(crate) mod next;
pub(crate) mod others;
pub(crate) mod signals;
pub(crate) mod static_value;
pub(crate) mod stats;
pub(crate) mod wait;
