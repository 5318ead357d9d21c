//! Requirements on every protocol and variant: see `suite.rs`. The crate doorbell-sim, which depends on this one,
//! runs the same suite in virtual time.

mod provider;
// By its path, as others do, so that its modules lie beside it.
#[path = "suite.rs"]
mod suite;
