//! Integration tests of the crate. Each module has one subject.

mod efficiency_plot;
mod rxe;
