//! `rdma_*`: connections between programs by address and port, as librdmacm offers them.
//!
//! The lower layers have no connections, so the messages of IBTA's connection manager go over sockets here instead of
//! management datagrams. Within one machine these are Unix sockets, whose names are the ports. They form a port space
//! of their own, as on an adapter, so a program may listen for TCP and for RDMA at one port.
//!
//! Between machines the messages go over TCP at the port of the same number. A listener that other machines can reach
//! listens at that TCP port too, if it is free. An active side therefore need not know the address of the peer's RNIC.
//! When a process dies, the kernel closes its connections, so the peers notice.
//!
//! | file | |
//! |---|---|
//! | `message.rs` | the messages between two ends |
//! | `ports.rs` | ports of this machine: which ids may have which port, and how ids find each other |
//! | `line.rs`, `line/transport.rs`, `line/incoming.rs` | state of an id, its sockets, received messages |
//! | `service.rs` | the thread that serves the lines |
//! | `tcp.rs` | `bind`, which gives a program the TCP port of a listener's number |
//! | `channel.rs` | event channels |
//! | `id.rs`, `object.rs`, `device.rs`, `options.rs` | ids, their device and their options |
//! | `resolve.rs`, `address.rs`, `addrinfo.rs` | addresses |
//! | `connect.rs` | listening, connecting, disconnecting |
//! | `qp.rs`, `ep.rs`, `verbs.rs` | queue pairs of ids |
//! | `multicast.rs` | groups |
//! | `rsocket.rs` | rsockets, which are refused |
//! | `hostile.rs`, `fuzz.rs`, `testing.rs`, `tests.rs`, `tests/peers.rs` | tests |

mod address;
mod addrinfo;
mod channel;
mod connect;
mod device;
mod ep;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
mod id;
mod line;
mod message;
mod multicast;
mod object;
mod options;
mod ports;
mod qp;
mod resolve;
mod rsocket;
mod service;
mod tcp;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verbs;

pub(crate) use service::THREAD;
pub(crate) use tcp::find_next;
