//! Helpers for the tests of Doorbell. Other crates use this crate only in tests.

mod alone;
pub mod connection;
pub mod files;
pub mod fuzz;
mod left_out;
pub mod memory;
#[cfg(feature = "model")]
pub mod model;
pub mod namespace;
mod rng;
mod sandbox;
pub mod seeds;
pub mod strangers;
pub mod trace;
mod user;

pub use alone::in_own_process;
pub use connection::ConnectionEnd;
pub use left_out::{leave_out, root_or_leave_out};
pub use rng::Rng;
pub use sandbox::{refuse_socket_option, refuse_threads};
pub use user::as_user;
