//! RNICs on a virtual clock, which the tests and the fuzz targets share.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "each test uses only a part of this module"
)]

pub mod connect;
pub mod faults;
pub mod fuzz;
pub mod script;
pub mod tally;
pub mod workload;
pub mod world;

pub use connect::{End, QKEY};
pub use doorbell_testing::memory::Block;
pub use doorbell_testing::{Rng, seeds, trace};
pub use faults::Worst;
pub use world::{Acks, Link, Node, Sent, World, address_of};
