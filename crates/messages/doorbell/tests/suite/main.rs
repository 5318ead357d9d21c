//! Integration tests of the crate. Each module has one subject.

mod connections;
mod examples;
mod on_tokio;
mod ports;
mod testing;
