//! Tests with golden bytes, properties, and comparisons with slow but simple computations.

mod cost;
mod frames;
mod golden;
mod headers;
mod icrc;
mod opcodes;
mod types;
