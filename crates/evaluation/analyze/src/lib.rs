//! Reconstruction of RDMA operations from counters and captures.
//!
//! ```
//! use doorbell_analyze::explain::{Hints, Rates, explain};
//!
//! // In one second, a server's counters grew by these numbers: packets of 78 bytes arrived, and each was acknowledged.
//! let rates = Rates { rx_packets: 481e3, rx_bytes: 481e3 * 78.0, tx_packets: 481e3, tx_bytes: 481e3 * 62.0 };
//! let answer = explain(&rates, &Hints::default())?;
//! println!("{}", answer.verdict);
//! let best = &answer.explanations[0];
//! assert!(best.payload_bytes.contains(1) && best.operations_per_s.contains(481e3));
//! # Ok::<(), doorbell_analyze::explain::ExplainError>(())
//! ```
//!
//! [`explain`](mod@explain) derives the probable operations of an application from four rates of an RNIC's counters.
//! [`decode`](mod@decode) reports the contents of a capture, and [`check`](mod@check) judges its packets by rules of
//! IBTA. [`cost`] has the packets of a message as a record. The modules need no device and no connection.
#![forbid(unsafe_code)]

pub mod check;
pub mod cost;
pub mod decode;
pub mod explain;
