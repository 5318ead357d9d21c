//! Requirements on every protocol and variant: see `suite.rs`. The crate doorbell-sim, which depends on this one,
//! runs the same suite in virtual time.

mod provider;
// The attribute puts the modules of the suite beside its file, as in other crates that include it.
#[path = "suite.rs"]
mod suite;
