//! Common parts of the fuzz bodies and their tests.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod fuzz;

pub use doorbell_testing::Rng;
