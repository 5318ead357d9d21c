//! Integration tests of the crate that can share a process. Each module has one subject.

#[path = "../common/mod.rs"]
mod common;

mod fuzz;
mod hostile;
mod hosts;
mod in_process;
mod session;
