//! Integration tests of the crate. Each module has one subject.

mod html;
mod study_page;
