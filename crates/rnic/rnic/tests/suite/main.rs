//! Integration tests of the crate. Each module has one subject.
#![allow(clippy::module_inception, reason = "a model has the name of the part that it compiles")]

#[path = "../common/mod.rs"]
mod common;

mod completion;
mod engines;
mod fuzz;
mod lifecycle;
mod protocol;
mod rxe;
mod shared;
mod simulation;
mod unreliable;

// The part of the crate that `shared` compiles imports `crate::work::RecvWqe`.
use shared::work;
