//! A middlebox, called the box, in front of a memory node. The box sends the requests of many clients to the node on
//! one ordered queue pair. [`Steer`] is a state machine without socket, clock and thread, and [`service`] runs it
//! between a link and TCP.
//!
//! Clients address the box as if it were the memory node. It receives their RoCE v2 packets, checks each request
//! against the node's regions, and holds the request until its message is complete. Then it sends the request on its
//! only queue pair with the node. It forwards the node's answer to the client that sent the request, with this client's
//! packet and message sequence numbers. docs/middlebox.md describes how clients reach a box, and the effects of faults.
//!
//! ```
//! use std::net::IpAddr;
//!
//! use doorbell_steer::{ClientEnd, Config, NodeEnd, Region, Steer};
//! use doorbell_verbs_core::Access;
//! use doorbell_wire::{PathMtu, Psn, Qpn, RKey};
//!
//! # fn main() -> Result<(), doorbell_steer::SetupError> {
//! let [boxed, node, client]: [IpAddr; 3] = [[10, 0, 0, 9].into(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
//! let mut steer = Steer::new(Config { seed: 7, ..Config::at(boxed) });
//! // The node makes its queue pair for this number, and expects this PSN.
//! let (_own_qpn, _first_psn) = steer.node_side();
//! steer.attach(NodeEnd { qpn: Qpn::new(17), ..NodeEnd::at(node, PathMtu::Mtu1024) })?;
//! steer.add_region(Region {
//!     rkey: RKey::new(1),
//!     node_rkey: RKey::new(0x1234),
//!     address: 0x10_0000,
//!     length: 4096,
//!     access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
//!     exclusive: false,
//! })?;
//! // The client makes its queue pair for the number that it gets here, at the box's address.
//! let client = ClientEnd { address: client, qpn: Qpn::new(99), first_psn: Psn::new(0), path_mtu: PathMtu::Mtu1024 };
//! let _qpn = steer.connect(client)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod client;
mod config;
mod counters;
mod driver;
mod engine;
mod key;
mod message;
mod node;
mod order;
mod output;
mod regions;
pub mod service;
pub mod shut_out;
mod steering;
mod values;

pub use config::{ClientEnd, Config, Limits, NodeEnd, Region, SetupError};
pub use counters::Counters;
pub use driver::{Driver, DriverCounters};
pub use engine::{Held, NodeFailure, Steer};
pub use order::{Order, Tap};
pub use output::Path;
pub use steering::Layout;
