//! Fuzz bodies: plain functions of bytes. A stable test runs them over a corpus and for a bounded time of mutation.
//! cargo-fuzz runs them for any time.

mod descriptions;
pub mod messages;

pub use descriptions::fuzz_descriptions;
pub use doorbell_testing::fuzz::Choices;
pub use messages::fuzz_messages;
