//! Tests of the parts that pass data between threads and processes. Each of their modules compiles one part of the
//! crate with the types of a model checker. `fault_plans` runs the built-in fault plans on a virtual clock.
#![allow(clippy::module_inception, reason = "a test has the name of the part that it compiles")]

mod fault_plans;
mod flush;
mod gate;
mod ring;
mod wake;
