//! Fuzz bodies are plain functions of bytes. A test runs them over a corpus and for a bounded time of mutation, and
//! cargo-fuzz runs them for any time.

mod choices;
pub mod runner;

pub use choices::Choices;
