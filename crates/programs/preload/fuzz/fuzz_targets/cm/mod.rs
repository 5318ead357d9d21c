//! The library exports only C functions, so this target includes its sources, under the same module path.
#![allow(dead_code)]

#[path = "../../../src/cm/fuzz.rs"]
pub(crate) mod fuzz;
#[path = "../../../src/cm/message.rs"]
mod message;
