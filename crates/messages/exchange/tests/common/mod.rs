//! Common code of the tests with hostile peers and of the fuzz targets.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses only some items")]

pub mod bare;
pub mod fuzz;
#[path = "../../benches/protocols/wire.rs"]
pub mod wire;

pub use bare::{Bare, Stage};
pub use doorbell_testing::Rng;
