//! `rdma_*`: connections between programs by address and port, as librdmacm offers them.
//!
//! Nothing below this knows of connections, so what IBTA's connection manager says in management
//! datagrams goes over TCP here: an id that is bound has the TCP port of the same address and number, a
//! listener listens there, and what resolves an address to it connects there. So port numbers are the
//! machine's, an active side need not know which address the other's RNIC has, and a process that
//! dies is noticed, since its connections close.
//!
//! | file | |
//! |---|---|
//! | `message.rs` | what two ends say to each other |
//! | `line.rs`, `line/hear.rs` | an id to the other end: its TCP connection and its state |
//! | `service.rs` | the thread that serves those |
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
mod qp;
mod resolve;
mod rsocket;
mod service;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verbs;
