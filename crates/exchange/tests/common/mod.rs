//! What the tests of hostile peers and the fuzz targets share.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod bare;
pub mod fuzz;
#[path = "../../../rnic/tests/common/rng.rs"]
pub mod rng;
#[path = "../../benches/protocols/wire.rs"]
pub mod wire;

pub use bare::{Bare, Stage};
pub use rng::Rng;
