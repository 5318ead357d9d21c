//! RDMA testbeds in virtual time.
//!
//! A [`Testbed`] says what each part of a testbed needs, from the CPU's store to the switch's queue: one file,
//! `testbeds/*.toml`, each value with its unit and its source. [`testbed::all`] has those that are part of the
//! program.
//!
//! Time is in whole picoseconds ([`Ps`]). Nothing here uses floating-point arithmetic, the order of a hash table or
//! the address of anything, so a simulation gives the same result on every machine.
//!
//! ```
//! use doorbell_sim::{Ps, testbed};
//!
//! let t1 = testbed::by_name("connectx5-100g").ok_or("a testbed of the program")?;
//! // A SEND of 16 B is 98 bytes on the line.
//! assert_eq!(t1.link.rate.time_of(98), Ps(7840));
//! // The same testbed with another link: one value replaced, under the same checks.
//! let faster = t1.with("link.rate", "400 Gb/s")?;
//! assert_eq!(faster.link.rate.time_of(98), Ps(1960));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod testbed;
mod time;

pub use testbed::Testbed;
pub use time::{PerByte, Ps, Rate};
