//! Integration tests of the crate that can share a process. Each module has one subject.

mod acknowledgements;
mod channels;
mod conformance;
mod deaths;
mod engines;
mod faults;
mod handlers;
mod link;
mod namespace;
mod ports;
mod progress;
mod published;
mod scribbled;
mod sleepers;
mod system;
mod verbs_faults;
