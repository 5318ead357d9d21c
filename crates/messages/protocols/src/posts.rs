//! Number of posts of each step.

use doorbell_wire::MessageKind;

use crate::step::{Credits, Role, Size, Step, When};

/// Maximum of completions that a connection takes with one poll.
pub const POLL_LIST: usize = 32;

/// Messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of each message.
    pub bytes: u64,
    /// Maximum of unacknowledged messages.
    pub window: u64,
    /// Maximum of messages in one post.
    pub batch: u64,
    /// Messages for which the receiver has buffers, summed over all connections.
    pub depth: u64,
    /// Exact number of messages for which the receiver has space at once. `None` if unknown: a ring has space for
    /// more short messages than its depth.
    pub space: Option<u64>,
    /// Whether credits control the flow.
    pub credits: bool,
    /// Whether messages of the other direction exist and may carry credits.
    pub is_answered: bool,
    /// Number of polls by the end that posts a step, if all its posts were complete before each poll.
    pub polls: Option<u64>,
}

impl Default for Run {
    /// Returns a run of no messages, with batches of one.
    fn default() -> Self {
        Self {
            messages: 0,
            bytes: 0,
            window: 1,
            batch: 1,
            depth: 1,
            space: None,
            credits: true,
            is_answered: false,
            polls: None,
        }
    }
}

/// Number of posts of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posts {
    /// Operation.
    pub operation: MessageKind,
    /// Payload bytes of a post for one message. If [`all_bytes`](Self::all_bytes) is set, posts for more messages are
    /// longer.
    pub bytes: u64,
    /// Payload bytes of all posts, independent of their number. `None` if each has [`bytes`](Self::bytes), or reports
    /// buffers.
    pub all_bytes: Option<u64>,
    /// Minimum.
    pub least: u64,
    /// Maximum; `None` if unlimited.
    pub most: Option<u64>,
}

impl Step {
    /// Returns the number of posts of the step in a run. The bounds hold for every order in which messages arrive and
    /// are freed.
    pub fn posts(&self, run: &Run) -> Posts {
        let messages = run.messages;
        let at_least_for = |most_at_once: u64| messages.div_ceil(most_at_once.max(1));
        // Each report frees at most the whole space.
        let reports = match run.space {
            Some(space) if !(run.is_answered && self.rides()) => messages.saturating_sub(space).div_ceil(space.max(1)),
            _ => 0,
        };
        let (least, most) = match self.when {
            When::Message => (messages, Some(messages)),
            When::Post => (at_least_for(run.batch), Some(messages)),
            When::Waiting => (at_least_for(run.window), Some(messages)),
            // A pull ends after the last message of the sender, or at the end of the receiver's space.
            When::Pulled => (at_least_for(run.window), Some(2 * messages)),
            When::Reap => (at_least_for(run.window.min(POLL_LIST as u64)), Some(messages)),
            // Each buffer may be reported separately, including buffers that have never been reported.
            When::Freed { .. } if messages == 0 => (0, Some(0)),
            When::Freed { .. } => (reports, Some(messages + run.depth)),
            When::Short { .. } if messages == 0 => (0, Some(0)),
            When::Short { .. } => (reports, run.polls),
            When::Polled => (run.polls.unwrap_or(at_least_for(run.window)), run.polls),
        };
        let all_bytes = matches!(self.size, Size::AllNew { .. }).then(|| self.size.bytes(run.bytes, messages));
        Posts { operation: self.operation, bytes: self.size.bytes(run.bytes, 1), all_bytes, least, most }
    }

    /// Returns whether the step carries only credits, which messages of the other direction may carry instead.
    pub fn rides(&self) -> bool {
        self.role == Role::Release && self.credits == Credits::With
    }
}
