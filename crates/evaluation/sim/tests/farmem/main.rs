//! Tests of the store of `doorbell-farmem` on the simulated testbed.

mod common;
mod linearizability;
mod store;
