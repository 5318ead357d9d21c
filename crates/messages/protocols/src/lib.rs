//! Protocols of message exchange as data, with all variants.
//!
//! A [`Protocol`] has a name, an id for connection set-up ([`WireId`]), properties by which programs choose
//! ([`Properties`]), and [`Step`]s. A step states which end posts which operation, and the size of the operation. It
//! also states when the operation is posted, and how the other end notices the operation.
//!
//! ```
//! use doorbell_protocols::{End, Protocol, Run};
//!
//! let protocol = Protocol::by_name("buffered-write-tail-read").unwrap();
//! assert_eq!(protocol.properties().passive, Some(End::Receiver));
//! // Print the operations that the sender posts for 1,000 messages in batches of eight:
//! let run = Run { messages: 1000, batch: 8, ..Run::default() };
//! for step in protocol.steps().iter().filter(|step| step.by == End::Sender && step.is_part(run.credits)) {
//!     let posts = step.posts(&run);
//!     println!("{:?}: {} to {:?} times", step.operation, posts.least, posts.most);
//! }
//! ```
//!
//! The steps are data only. `doorbell-exchange` implements each protocol in separate code, and its conformance test
//! counts the operations that connections post. Every measurement compares its number of packets with the number that
//! the steps imply. The performance model computes the cost of a message from the steps.
//!
//! Every connection also posts two operations that are not among the steps. A closing connection sends a goodbye: a
//! SEND of 0 B with immediate data. A connection whose peer is silent posts a WRITE of 0 B to check whether the peer is
//! alive.

#![forbid(unsafe_code)]

mod posts;
mod protocol;
mod ring;
mod step;
mod table;
#[cfg(test)]
mod tests;

pub use posts::{POLL_LIST, Posts, Run};
pub use protocol::{Properties, Release, UnknownProtocol};
pub use ring::{RING_UNIT, RING_WORD, ring_bytes, ring_receives, ring_space};
pub use step::{Credits, End, Joined, Noticed, Role, Size, Step, When};
pub use table::{Description, Protocol, RESERVATIONS_IN_FLIGHT, Store, WireId, ZeroCopy};
