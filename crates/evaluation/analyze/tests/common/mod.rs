//! Modules for the runner of fuzz bodies.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the runner uses its part")]

#[path = "../../../../rnic/rnic/tests/common/rng.rs"]
pub mod rng;

pub use rng::Rng;
