//! Integration tests of the crate. Each module has one subject.
#![allow(clippy::module_inception, reason = "the test of `sequence` has the name of the part that it compiles")]

#[path = "../common/mod.rs"]
mod common;

mod fuzz;
mod published;
mod sequence;
mod sysfs;
