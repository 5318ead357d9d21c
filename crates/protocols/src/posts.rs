//! How often steps are posted.

use doorbell_wire::MessageKind;

use crate::step::{Credits, Role, Size, Step, When};

/// Completions that a connection takes by one poll, at most.
pub const POLL_LIST: usize = 32;

/// Messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many.
    pub messages: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Messages unacknowledged, at most.
    pub window: u64,
    /// Messages of one post, at most.
    pub batch: u64,
    /// Messages that the receiver makes room for, of all connections.
    pub depth: u64,
    /// Messages for which the receiver has room at once, exactly. `None` if that is not known: a ring has room for
    /// more short messages than the depth says.
    pub space: Option<u64>,
    /// Flow control by credits is on.
    pub credits: bool,
    /// Messages go the other way as well, and may carry credits.
    pub is_answered: bool,
    /// How often the end that posts a step polled, if all that it had posted was complete before each poll.
    pub polls: Option<u64>,
}

impl Default for Run {
    /// No messages, one by one.
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

/// How often an operation is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posts {
    /// The operation.
    pub operation: MessageKind,
    /// Payload bytes of one that carries or tells of one message. Others are longer where
    /// [`all_bytes`](Self::all_bytes) says so.
    pub bytes: u64,
    /// Payload bytes of all of them, however many there are; `None` if each has [`bytes`](Self::bytes), or tells of
    /// buffers.
    pub all_bytes: Option<u64>,
    /// At least.
    pub least: u64,
    /// At most; `None` if an end posts it as often as it likes.
    pub most: Option<u64>,
}

impl Step {
    /// How often the step is posted in a run: a bound for every order in which messages arrive and are freed.
    pub fn posts(&self, run: &Run) -> Posts {
        let messages = run.messages;
        let at_least_for = |most_at_once: u64| messages.div_ceil(most_at_once.max(1));
        // Each report makes room for no more messages than there is room for at all.
        let reports = match run.space {
            Some(space) if !(run.is_answered && self.rides()) => messages.saturating_sub(space).div_ceil(space.max(1)),
            _ => 0,
        };
        let (least, most) = match self.when {
            When::Message => (messages, Some(messages)),
            When::Post => (at_least_for(run.batch), Some(messages)),
            When::Waiting => (at_least_for(run.window), Some(messages)),
            // Each ends where the sender has no more messages, or where the receiver had no more room.
            When::Pulled => (at_least_for(run.window), Some(2 * messages)),
            When::Reap => (at_least_for(run.window.min(POLL_LIST as u64)), Some(messages)),
            // Each buffer may be reported by itself, also those that were never reported before.
            When::Freed { .. } if messages == 0 => (0, Some(0)),
            When::Freed { .. } => (reports, Some(messages + run.depth)),
            When::Short { .. } if messages == 0 => (0, Some(0)),
            When::Short { .. } => (reports, run.polls),
            When::Polled => (run.polls.unwrap_or(at_least_for(run.window)), run.polls),
        };
        let all_bytes = matches!(self.size, Size::AllNew { .. }).then(|| self.size.bytes(run.bytes, messages));
        Posts { operation: self.operation, bytes: self.size.bytes(run.bytes, 1), all_bytes, least, most }
    }

    /// Does it carry nothing but credits, which messages of the other direction may carry instead?
    pub fn rides(&self) -> bool {
        self.role == Role::Release && self.credits == Credits::With
    }
}
