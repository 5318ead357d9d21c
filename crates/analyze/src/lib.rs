//! From what was seen on the wire to operations.
//!
//! ```
//! use doorbell_analyze::explain::{Hints, Rates, explain};
//!
//! // What a server's counters grew by in a second: packets of 78 bytes came in, and each was acknowledged.
//! let rates = Rates { rx_packets: 481e3, rx_bytes: 481e3 * 78.0, tx_packets: 481e3, tx_bytes: 481e3 * 62.0 };
//! let answer = explain(&rates, &Hints::default())?;
//! println!("{}", answer.verdict);
//! let best = &answer.explanations[0];
//! assert!(best.payload_bytes.contains(1) && best.operations_per_s.contains(481e3));
//! # Ok::<(), doorbell_analyze::explain::ExplainError>(())
//! ```
//!
//! [`explain`](mod@explain) says what an application probably does, from four rates that counters of an RNIC give;
//! [`decode`](mod@decode) says what a capture holds. Both are pure: they know packets and rates, and neither a device
//! nor a connection.
#![forbid(unsafe_code)]

pub mod decode;
pub mod explain;
