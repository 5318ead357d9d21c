//! One suite of functions with the requirements for every provider of verbs, and helpers for tests of providers.
//!
//! Each case gets a function that opens two devices that reach each other. [`provider!`] generates the tests of a
//! provider from the cases, and [`CASES`] is their table.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "cases and helpers have the names of what they check")]

mod cases;
pub mod common;
pub mod departures;
mod provider;

pub mod connected;
pub mod lifetime;
pub mod memory;
pub mod misuse;
pub mod queues;
pub mod states;
pub mod threads;
pub mod unreliable;

pub use cases::{CASES, Case};
use doorbell_verbs::Device;

/// Opens two devices that reach each other.
pub type Open<'a> = &'a dyn Fn() -> (Device, Device);
