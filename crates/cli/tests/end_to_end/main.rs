//! The `doorbell` command as its users meet it: run as a process, judged by what it prints and by
//! its exit status. No test asserts how fast anything is.

mod advise;
mod bench;
mod captures;
mod command;
mod counters;
mod ending;
mod errors;
mod explain;
mod failures;
mod far;
mod hosts;
mod launches;
mod model;
mod operations;
mod run;
mod sim;
mod steer;
mod strangers;
mod study;
mod terminal;
mod two_sides;
mod usage;
mod wire;
