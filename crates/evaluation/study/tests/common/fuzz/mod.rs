//! Fuzz bodies: plain functions of bytes. A stable test runs them over a corpus and for a bounded time of mutation,
//! cargo-fuzz for any time.

mod json;
mod lines;
mod records;

pub use doorbell_testing::fuzz::Choices;
pub use lines::{fuzz_lines, line};
pub use records::fuzz_records;
