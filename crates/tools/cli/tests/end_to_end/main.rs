//! Tests of the `doorbell` command from the view of its users. Each test runs the command as a process, and checks the
//! output and the exit status. No test checks the speed of a measurement.

mod advise;
mod audit;
mod bench;
mod captures;
mod check;
mod clean;
mod command;
mod counters;
mod devices;
mod ending;
mod errors;
mod explain;
mod failures;
mod far;
mod faults;
mod hosts;
mod launches;
mod load;
mod model;
mod operations;
mod ports;
mod qualify;
mod run;
mod short;
mod sim;
mod steer;
mod strangers;
mod study;
mod terminal;
mod two_sides;
mod usage;
mod wire;
