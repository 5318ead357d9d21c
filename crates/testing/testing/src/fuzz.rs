//! Fuzz bodies are functions that take bytes. A test runs them over a corpus, and on mutations of the corpus for a
//! bounded time. cargo-fuzz runs the same bodies for any time.

mod choices;
pub mod runner;

pub use choices::Choices;
