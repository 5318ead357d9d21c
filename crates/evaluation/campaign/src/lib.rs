//! A whole study: the processes and hosts that take part, and the measurement of all points.
//!
//! Processes meet in three ways. A launcher starts them ([`launch`]), this process starts them by ssh ([`callers`]), or
//! users start them ([`hosts::Listening`]). Then they introduce themselves to each other ([`hosts`]). Points that they
//! cannot measure are left out ([`omissions`]), and the other points are measured in [`rounds`].

pub mod callers;
pub mod examination;
pub mod hosts;
pub mod launch;
pub mod listening;
pub mod omissions;
pub mod rounds;
pub mod second;

use std::net::IpAddr;

use doorbell_verbs::{Device, DeviceAttributes};

use doorbell_machine::pinning::Pinning;
use doorbell_record::Environment;
use doorbell_study::{Failure, Usage};

/// Command that starts the other side on another machine.
pub const THERE: &str = "doorbell study --listen";

/// Bytes of message memory that an end grants a client. They suffice for every point of a study.
pub const MEMORY_BYTES: usize = 4096 << 20;

/// RNIC of this machine in a study.
pub trait OwnDevice {
    /// Opens the RNIC. `toward` is the address at which other machines reach it, if the address differs from the
    /// default.
    ///
    /// # Errors
    ///
    /// The RNIC cannot be opened.
    fn open(&self, toward: Option<IpAddr>) -> Result<Device, Failure>;

    /// Returns the CPUs for the threads of processes that use this device.
    ///
    /// # Errors
    ///
    /// The machine lacks a CPU that the user named.
    fn pinning(&self, device: &Device) -> Result<Pinning, Usage>;

    /// Returns the environment of this machine for records.
    ///
    /// # Errors
    ///
    /// The settings of the RNIC are invalid.
    fn environment(&self, toward: Option<IpAddr>, attributes: &DeviceAttributes) -> Result<Environment, Failure>;
}
