//! Figures that RDMA benchmarks print, compared with counters, packets and limits.
//!
//! - [`read()`] reads the output of perftest, `ucx_perftest`, qperf, fio and OSU-style tables into an [`Output`].
//! - [`Counted`] has the growth of a device's counters during the benchmark.
//! - [`audit`] compares both with the arithmetic of packets, and returns a [`Verdict`] with its reasons.
//!
//! ```
//! use doorbell_audit::{Given, Verdict, audit, read};
//!
//! let heading = " #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]";
//! let text = format!("{heading}\n 65536  5000  0.00  11000.00  0.176000\n");
//! let audit = audit(&read(&text, &[]), None, &Given { link_bits_per_s: Some(10e9), ..Given::default() });
//! assert_eq!(audit.verdict, Verdict::Contradicted);
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod claim;
mod counted;
mod numbers;
mod page;
mod read;
mod verdict;

pub use arithmetic::Arithmetic;
pub use claim::{Claim, Figure, LinkType, Output, Setup, Tool};
pub use counted::{Counted, NotCounters};
pub use page::{SCHEMA, json, text};
pub use read::read;
pub use verdict::{Audit, Finding, Given, Predicted, Verdict, audit};
