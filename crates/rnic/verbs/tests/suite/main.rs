//! Integration tests of the crate that can share a process. Each module has one subject.

/// Generates each test for UDP and for shared memory. The tests get the first or the second argument.
macro_rules! over_each_link {
    ($udp:expr, $memory:expr; $($name:ident)*) => {
        mod over_udp {
            $(#[test] fn $name() { super::$name($udp); })*
        }
        mod through_memory {
            $(#[test] fn $name() { super::$name($memory); })*
        }
    };
}

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
