//! Helpers of Doorbell's tests. No crate outside of tests depends on this one.

pub mod files;
pub mod fuzz;
pub mod memory;
#[cfg(feature = "model")]
pub mod model;
pub mod namespace;
mod rng;
pub mod seeds;
pub mod trace;

pub use rng::Rng;
