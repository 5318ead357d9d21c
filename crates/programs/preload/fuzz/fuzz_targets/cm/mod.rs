//! The library crate exports only C functions. So this fuzz target includes the sources of the library, under the same
//! module path.
#![allow(dead_code)]

#[path = "../../../src/cm/fuzz.rs"]
pub(crate) mod fuzz;
#[path = "../../../src/cm/message.rs"]
mod message;
