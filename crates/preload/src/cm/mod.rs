//! `rdma_*`: connections between programs by address and port, as librdmacm offers them.
//!
//! Nothing below this knows of connections, so what IBTA's connection manager says in management datagrams goes over
//! sockets here. On one machine these are Unix sockets, whose names are the ports: a space of their own, as an adapter
//! has it, so a program may listen for TCP and for RDMA at one port. Between machines it is TCP at the port of the same
//! number: a listener that other machines can reach listens there too, where that is free. So an active side need not
//! know which address the other's RNIC has, and a process that dies is noticed, since its connections close.
//!
//! | file | |
//! |---|---|
//! | `message.rs` | what two ends say to each other |
//! | `ports.rs` | which ids may have which port of this machine, and how they find each other |
//! | `line.rs`, `line/road.rs`, `line/hear.rs` | an id to the other end: its state, how it gets a connection, what it hears |
//! | `service.rs` | the thread that serves those |
//! | `tcp.rs` | what gives a program the TCP port of a listener's number |
//! | `channel.rs` | events on their way to the program |
//! | `id.rs`, `object.rs`, `device.rs`, `options.rs` | ids, and what they are bound to |
//! | `resolve.rs`, `address.rs`, `addrinfo.rs` | addresses |
//! | `connect.rs` | listening, connecting, disconnecting |
//! | `qp.rs`, `ep.rs`, `verbs.rs` | queue pairs of ids |
//! | `multicast.rs` | groups |
//! | `rsocket.rs` | what is refused |
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
