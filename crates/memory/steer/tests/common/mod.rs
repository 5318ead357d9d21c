//! Clients, a box and a memory node on one virtual clock, with real RNICs and a network with faults between them.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

#[path = "../../../../rnic/rnic/tests/common/memory.rs"]
pub mod memory;
#[path = "../../../../rnic/rnic/tests/common/rng.rs"]
pub mod rng;
#[path = "../../../../rnic/rnic/tests/common/seeds.rs"]
pub mod seeds;
pub mod tally;
#[path = "../../../../rnic/rnic/tests/common/trace.rs"]
pub mod trace;
pub mod world;

pub use rng::Rng;
pub use tally::Tally;
pub use world::Link;
