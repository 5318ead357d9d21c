//! Tests of the parts that pass data between threads and processes. Each module compiles one part of the crate with the
//! types of a model checker.
#![allow(clippy::module_inception, reason = "a test has the name of the part that it compiles")]

mod flush;
mod gate;
mod ring;
mod wake;
