//! Number of times that each step of a protocol is posted.

use doorbell_wire::MessageKind;

use crate::step::{Credits, Role, Size, Step, When};

/// Maximum number of completions that a connection takes with one poll.
pub const POLL_LIST: usize = 32;

/// Properties of a run of messages in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of each message.
    pub bytes: u64,
    /// Maximum number of unacknowledged messages.
    pub window: u64,
    /// Maximum number of messages in one post.
    pub batch: u64,
    /// Number of messages for which the receiver has buffers, summed over all connections.
    pub depth: u64,
    /// Exact number of messages that fit into the receiver's memory at once. `None` if this number is unknown: a ring
    /// has space for more short messages than its depth.
    pub space: Option<u64>,
    /// Whether credits control the flow.
    pub credits: bool,
    /// Whether the other direction also has messages, which may carry credits.
    pub is_answered: bool,
    /// Number of polls of the end that posts the step, if all its posts were complete before each poll. Otherwise
    /// `None`.
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

/// Bounds on the number of posts of an operation, and the payload bytes of the posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posts {
    /// Operation that is posted.
    pub operation: MessageKind,
    /// Payload bytes of a post for one message. If [`all_bytes`](Self::all_bytes) is set, a post for several messages
    /// has more bytes.
    pub bytes: u64,
    /// Payload bytes of all posts together, for an operation that carries all new messages ([`Size::AllNew`]). `None`
    /// for other operations.
    pub all_bytes: Option<u64>,
    /// Minimum number of posts.
    pub least: u64,
    /// Maximum number of posts; `None` if unlimited.
    pub most: Option<u64>,
}

impl Step {
    /// Returns the number of posts of the step in a run. The bounds hold for every order in which messages arrive and
    /// the program frees them.
    pub fn posts(&self, run: &Run) -> Posts {
        let messages = run.messages;
        let at_least_for = |most_at_once: u64| messages.div_ceil(most_at_once.max(1));
        // One report covers at most the receiver's whole space, which gives the minimum number of reports.
        let reports = match run.space {
            Some(space) if !(run.is_answered && self.rides()) => messages.saturating_sub(space).div_ceil(space.max(1)),
            _ => 0,
        };
        let (least, most) = match self.when {
            When::Message => (messages, Some(messages)),
            When::Post => (at_least_for(run.batch), Some(messages)),
            When::Waiting { .. } => (at_least_for(run.window), Some(messages)),
            // A READ ends after the sender's newest message, or inside a message where the receiver's space ends. A
            // message therefore takes at most two READs.
            When::Pulled => (at_least_for(run.window), Some(2 * messages)),
            When::Reap => (at_least_for(run.window.min(POLL_LIST as u64)), Some(messages)),
            When::Freed { .. } if messages == 0 => (0, Some(0)),
            // The receiver may report each freed message in a separate post, and also each buffer that no message has
            // used.
            When::Freed { .. } => (reports, Some(messages + run.depth)),
            When::Short { .. } if messages == 0 => (0, Some(0)),
            When::Short { .. } => (reports, run.polls),
            When::Polled => (run.polls.unwrap_or(at_least_for(run.window)), run.polls),
        };
        let all_bytes = matches!(self.size, Size::AllNew { .. }).then(|| self.size.bytes(run.bytes, messages));
        Posts { operation: self.operation, bytes: self.size.bytes(run.bytes, 1), all_bytes, least, most }
    }

    /// Returns whether the step carries only credits. Messages of the other direction may then carry the credits
    /// instead.
    pub fn rides(&self) -> bool {
        self.role == Role::Release && self.credits == Credits::With
    }
}
