//! What the tests of hostile peers and the fuzz targets share.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "each test uses its part")]

pub mod fuzz;
#[path = "../../../rnic/tests/common/rng.rs"]
pub mod rng;

use doorbell_study::parameters::{Extent, Kind, Operation, Parameters};
use doorbell_study::protocol::Protocol;
use doorbell_study::serving::Serving;
pub use rng::Rng;

pub const MEMORY_BYTES: usize = 64 << 20;

pub fn parameters() -> Parameters {
    Parameters {
        kind: Kind::Bandwidth,
        operation: Operation::Send,
        protocol: Protocol::SendReceive,
        replicate: false,
        sizes: vec![16, 5000],
        extent: Extent::Messages(100),
        window: 16,
        depth: 32,
        depths_are_defaults: false,
        batch: 1,
        inline: 64,
        connections: 2,
        bidirectional: false,
        events: false,
        credits: true,
        mtu: None,
        rate: None,
        slow_receiver_us: 0,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        verify: true,
        memory_bytes: MEMORY_BYTES,
        serving: Serving::default(),
    }
}
