//! What every protocol and variant must do: see `suite.rs`. The provider in virtual time runs the same in the crate
//! doorbell-sim, which is above this one.

mod provider;
// By its path, as others do, so that its modules lie beside it.
#[path = "suite.rs"]
mod suite;
