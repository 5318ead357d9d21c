//! Parts that the fuzz bodies and their tests share.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod fuzz;

pub use doorbell_testing::Rng;
