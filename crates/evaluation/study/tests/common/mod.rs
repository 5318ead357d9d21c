//! Helpers for the tests with untrusted peers and for the fuzz targets.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses some of the helpers")]

pub mod fuzz;

use doorbell_record::{Extent, Kind, Operation, Parameters};
pub use doorbell_testing::Rng;

pub const MEMORY_BYTES: usize = 64 << 20;

pub fn parameters() -> Parameters {
    Parameters {
        sizes: vec![16, 5000],
        extent: Extent::Messages(100),
        window: 16,
        depth: 32,
        depths_are_defaults: false,
        connections: 2,
        verify: true,
        memory_bytes: MEMORY_BYTES,
        ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16)
    }
}
