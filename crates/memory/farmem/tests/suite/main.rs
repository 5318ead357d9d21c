//! Integration tests of the crate. Each module has one subject.

mod assembly;
mod carrier;
