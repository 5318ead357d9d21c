//! Tests of the store of `doorbell-farmem` on the simulated testbed.
//!
//! They are a program of their own, which `cargo xtask deep mutants` runs for each mutant of `doorbell-farmem`.

mod common;
mod linearizability;
mod store;
