//! Readings for other programs.

pub mod http;
pub mod json;
pub mod openmetrics;
