//! `rdma_*`: connections between programs by address and port, as librdmacm offers them.
//!
//! The RNIC has no management datagrams, so the library sends the messages of IBTA's connection manager over sockets.
//! Within one machine, the library uses Unix sockets, and the name of each socket contains the RDMA port. So the RDMA
//! ports form their own port space, as on an adapter. A program may listen for TCP and for RDMA at the same port.
//!
//! Between machines, the library sends the messages over TCP. The TCP port has the same number as the RDMA port. A
//! listener that other machines can reach also listens at this TCP port, if the port is free. Therefore a client need
//! not know the address of the peer's RNIC. When a process dies, the kernel closes the sockets of the process, so the
//! peers notice the death.
//!
//! | file | |
//! |---|---|
//! | `message.rs` | messages between two peers |
//! | `ports.rs` | ports of this machine: which id may have which port, and how a client finds a listener |
//! | `line.rs`, `line/transport.rs`, `line/incoming.rs` | connection state of an id, its sockets, received messages |
//! | `service.rs` | the thread that handles the sockets and deadlines of all ids |
//! | `tcp.rs` | replaces `bind`: a listener gives up its TCP port if a socket of the program needs the port |
//! | `channel.rs` | event channels |
//! | `id.rs`, `object.rs`, `device.rs`, `options.rs` | ids, their device and their options |
//! | `resolve.rs`, `address.rs`, `addrinfo.rs` | addresses |
//! | `connect.rs` | listening, connecting, disconnecting |
//! | `qp.rs`, `ep.rs`, `verbs.rs` | queue pairs of ids |
//! | `multicast.rs` | multicast groups |
//! | `rsocket.rs` | rsockets, which the library rejects |
//! | `hostile.rs`, `fuzz.rs`, `testing.rs`, `tests.rs`, `tests/` | tests |

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
