//! The `doorbell` command as its users meet it: run as a process, judged by what it prints and by
//! its exit status. No test asserts how fast anything is.

mod bench;
mod command;
mod failures;
mod operations;
mod run;
mod two_sides;
mod usage;
mod wire;
