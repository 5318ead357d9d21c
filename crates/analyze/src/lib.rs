//! From what was seen on the wire to operations.
//!
//! [`explain`](mod@explain) says what an application probably does, from four rates that counters of an RNIC give;
//! [`decode`](mod@decode) says what a capture holds. Both are pure: they know packets and rates, and neither a device
//! nor a connection.
#![forbid(unsafe_code)]

pub mod decode;
pub mod explain;
