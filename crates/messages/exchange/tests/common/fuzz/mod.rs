//! Fuzz functions, whose input is a slice of bytes. `tests/suite/fuzz.rs` runs these functions with a corpus, and with
//! mutated inputs for a bounded time. cargo-fuzz runs them without a time limit.

mod descriptions;
pub mod messages;

pub use descriptions::fuzz_descriptions;
pub use doorbell_testing::fuzz::Choices;
pub use messages::fuzz_messages;
