//! Every protocol of message exchange, in every variant, as data.
//!
//! A [`Protocol`] has a name, an id that set-up sends ([`WireId`]), properties by which programs choose
//! ([`Properties`]), and its [`Step`]s: which end posts which operation, of what size, how often, behind which other
//! one, and how the other end notices it.
//!
//! ```
//! use doorbell_protocols::{End, Protocol, Run};
//!
//! let protocol = Protocol::by_name("buffered-write-tail-read").unwrap();
//! assert_eq!(protocol.properties().passive, Some(End::Receiver));
//! // What the sender of 1,000 messages posts, eight messages at a time:
//! let run = Run { messages: 1000, batch: 8, ..Run::default() };
//! for step in protocol.steps().iter().filter(|step| step.by == End::Sender && step.is_part(run.credits)) {
//!     let posts = step.posts(&run);
//!     println!("{:?}: {} to {:?} times", step.operation, posts.least, posts.most);
//! }
//! ```
//!
//! Nobody interprets the steps: `doorbell-exchange` implements each protocol as code of its own, and a conformance test
//! there counts what connections really post. From the steps follow how many packets a run must take, which every
//! measurement is compared with, and what the performance model charges for a message.
//!
//! Not among the steps, since every connection has them, whatever its protocol: the goodbye (a SEND of 0 B with
//! immediate data) and the question whether a quiet peer lives (a WRITE of 0 B).

#![forbid(unsafe_code)]

mod posts;
mod protocol;
mod step;
mod table;
#[cfg(test)]
mod tests;

pub use posts::{POLL_LIST, Posts, Run};
pub use protocol::{Properties, Release, UnknownProtocol, WireId, ZeroCopy};
pub use step::{Credits, End, Joined, Noticed, Role, Size, Step, When};
pub use table::{Description, Protocol, Store};
