//! Integration tests of the crate. Each module has one subject.

mod common;
mod html;
mod protocol_pages;
mod study_page;
