//! Published figures of RDMA message exchange, and the judge that compares them with values of a source.
//!
//! A [`Row`] is one published number, and a [`Shape`] is one published sentence about curves. Each shape has one rule.
//! The rule asks a [`Source`] for points of curves, and decides whether these have the shape. Records of a study and
//! predictors are sources. [`tolerance`] has all tolerances. They are the same for all sources, apart from the noise
//! that a source states.
//!
//! A rule compares values of one source with each other, and with factors, counts and formats in the sentence. It does
//! not compare times and rates with those of the testbed: these are rows.
#![forbid(unsafe_code)]

mod judge;
mod names;
mod published;
mod source;
pub mod tolerance;
mod verdict;

pub use judge::judge;
pub use names::UnknownTestbed;
pub use published::*;
pub use source::{Cause, Load, Setting, Source};
pub use tolerance::Noise;
pub use verdict::{CheckedShape, Compared, Finding, Gap, Verdict};
