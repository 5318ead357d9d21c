//! Integration tests of the crate that can share a process. Each module has one subject.

#[path = "../common/mod.rs"]
mod common;

mod behaviour;
mod fuzz;
mod multiplexing;
mod steering;
