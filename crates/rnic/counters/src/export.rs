//! Readings for other programs.

pub mod http;
mod infiniband;
pub mod json;
pub mod openmetrics;
