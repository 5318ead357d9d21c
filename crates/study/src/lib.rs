//! Workloads, measurement, and the records of what was measured.
//!
//! [`workload`] holds the workloads as `async fn` over connections, written once, and
//! [`one_sided`] those over verbs alone; [`executor`] runs them on a thread that polls. [`session`]
//! coordinates two processes over TCP, point by point; [`record`] is what comes out.
//! [`measure`] times the parameters of the performance model, one call at a time, and [`limit`] what
//! this machine's kernel gives without an RNIC.
#![forbid(unsafe_code)]

pub mod cpu;
pub mod environment;
pub mod executor;
pub mod experiment;
pub mod limit;
pub mod measure;
mod memory;
pub mod one_sided;
pub mod parameters;
pub mod payload;
pub mod prediction;
pub mod record;
pub mod roles;
pub mod serving;
pub mod session;
pub mod threads;
pub mod workload;
