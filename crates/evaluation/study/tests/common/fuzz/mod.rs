//! Fuzz functions, which take bytes. A test runs these functions over a corpus, and over mutated inputs for a limited
//! time. cargo-fuzz runs them without a time limit.

mod json;
mod lines;
mod records;

pub use doorbell_testing::fuzz::Choices;
pub use lines::{fuzz_lines, line};
pub use records::fuzz_records;
