//! The place of a frame on its way through the network.

use crate::time::Ps;

/// Next switch of a frame, the port that sends the frame there, and the pauses of this port that the frame knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hop {
    /// The next switch.
    pub(super) switch: u32,
    /// Index of the port that sends the frame to this switch, among all ports that send to switches.
    pub(super) port: u32,
    /// Time at which the first bit leaves that port, with all pauses known so far.
    pub(super) begins: Ps,
    /// Number of pauses of the port when the frame entered its queue.
    pub(super) made: u64,
    /// Number of pauses of the port that `begins` includes.
    pub(super) seen: u64,
}
