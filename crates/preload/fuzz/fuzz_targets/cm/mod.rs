//! The library exports C functions only, so its source is included, under the path that it has there.
#![allow(dead_code)]

#[path = "../../../src/cm/fuzz.rs"]
pub(crate) mod fuzz;
#[path = "../../../src/cm/message.rs"]
mod message;
