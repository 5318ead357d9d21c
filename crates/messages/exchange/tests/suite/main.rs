//! Integration tests of the crate that can share a process. Each module has one subject.
#![allow(clippy::module_inception, reason = "the test of `reports` has the name of the part that it compiles")]

#[path = "../common/mod.rs"]
mod common;

mod asynchronous;
mod conformance;
mod fuzz;
mod many_to_one;
mod misuse;
#[cfg(feature = "tokio")]
mod on_tokio;
mod pool;
mod reports;
mod ring;
mod send_receive;
mod shared_write;
mod single_faults;
mod steps;

// A part of the crate that `pool` compiles imports `crate::connection::config::MAX_REPOST_LIST`.
use pool::connection;
