//! The `doorbell` command from the view of its users: each test runs it as a process, and checks its output and its
//! exit status. No test checks a speed.

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
