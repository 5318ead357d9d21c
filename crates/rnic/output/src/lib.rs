//! Output that protects the user from text and files of other users.
//!
//! [`escape`] makes text harmless for a terminal. [`files`] creates files without following links of other users.
#![forbid(unsafe_code)]

pub mod files;
mod text;

pub use text::{escape, write_escaped};
