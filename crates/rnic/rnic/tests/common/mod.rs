//! A world of RNICs on a virtual clock, shared by the tests and the fuzz targets.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod connect;
pub mod faults;
pub mod fuzz;
pub mod memory;
pub mod rng;
pub mod script;
pub mod seeds;
pub mod tally;
pub mod trace;
pub mod workload;
pub mod world;

pub use connect::{End, QKEY};
pub use faults::Worst;
pub use memory::Block;
pub use rng::Rng;
pub use world::{Acks, Link, Node, Sent, World, address_of};
