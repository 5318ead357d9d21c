//! Golden bytes, properties and comparisons with slow but obvious computations.

mod cost;
mod frames;
mod golden;
mod headers;
mod icrc;
mod opcodes;
mod types;
