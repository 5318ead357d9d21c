//! Output that neither text nor files of others can turn against the user.
//!
//! [`escape`] makes text harmless for a terminal. [`files`] creates files by path without following links that others put there.
#![forbid(unsafe_code)]

pub mod files;
mod text;

pub use text::{escape, write_escaped};
