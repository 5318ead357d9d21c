//! Clients, a box and a memory node on one virtual clock, with software RNICs and a network with faults between them.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod tally;
pub mod world;

pub use doorbell_testing::{Rng, memory, seeds, trace};
pub use tally::Tally;
pub use world::Link;
