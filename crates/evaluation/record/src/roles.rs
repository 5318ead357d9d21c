//! Roles of the ends of a point.
//!
//! The parameters determine the role of each end ([`Parameters::cast`]). A session assigns the roles to its ends, and
//! each end performs its role. The roles do not depend on whether an end is a process, a thread, or a task.

use std::fmt;

use doorbell_machine::pinning::Pinning;

use crate::parameters::Parameters;
use crate::serving::SharedBy;
use crate::words::{Kind, Operation};

/// Role of one end in each of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends messages by a plan, and receives incoming messages.
    Sender,
    /// Receives messages.
    Receiver,
    /// Sends requests and waits for their answers. A ping-pong is this role with one request at a time.
    Requester,
    /// Answers each message with a reply.
    Responder,
    /// Posts one-sided operations.
    Initiator,
    /// Owns the memory that one-sided operations access.
    Target,
    /// Publishes each message to all connections from one buffer.
    Source,
    /// Receives the messages that a source publishes.
    Reader,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::Requester => "requester",
            Self::Responder => "responder",
            Self::Initiator => "initiator",
            Self::Target => "target",
            Self::Source => "source",
            Self::Reader => "reader",
        })
    }
}

/// Role of an end, with the connections and threads that perform the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Role in each connection.
    pub role: Role,
    /// Whether this part belongs to the answering end.
    pub answers: bool,
    /// Number of connections.
    pub connections: usize,
    /// Number of threads over which the connections are distributed.
    pub threads: usize,
    /// Whether one completion queue and one thread serve all connections.
    pub single_receiver: bool,
    /// Thread that posts shared receive buffers again. `None` means that each connection has its own receive buffers.
    pub shared_receives: Option<SharedBy>,
    /// Pause of the receiver before it frees a message, in nanoseconds.
    pub pause_ns: u64,
}

impl Part {
    /// Returns the share of one of several hosts, with `connections` of the connections.
    #[must_use]
    pub fn share(self, connections: usize) -> Self {
        Self { connections, threads: self.threads.min(connections).max(1), ..self }
    }
}

/// Parts of the two ends of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Part of the asking end, which measures the time.
    pub asking: Part,
    /// Part of the answering end.
    pub answering: Part,
}

impl Parameters {
    /// Returns the CPUs of `all` to which threads are pinned while the point is measured. For a point on shared memory,
    /// all parties run in one process.
    #[must_use]
    pub fn pinning(&self, all: &Pinning) -> Pinning {
        if let Some(point) = &self.far {
            return Pinning { both_ends: false, ..all.clone() }.of_threads(point.threads());
        }
        let of = |part: Part| part.threads + usize::from(part.shared_receives == Some(SharedBy::Thread));
        let Cast { asking, answering } = self.cast();
        let threads = of(asking).max(of(answering));
        all.of_threads(if all.both_ends { 2 * threads } else { threads })
    }

    /// Returns the parts of both ends.
    pub fn cast(&self) -> Cast {
        let serving = &self.serving;
        let (asking, answering) = match (self.operation, self.kind) {
            (operation, _) if operation.is_one_sided() => (Role::Initiator, Role::Target),
            _ if self.replicate => (Role::Source, Role::Reader),
            (Operation::RequestResponse, _) | (_, Kind::Latency) => (Role::Requester, Role::Responder),
            _ if self.bidirectional => (Role::Sender, Role::Sender),
            _ => (Role::Sender, Role::Receiver),
        };
        let part = |role| Part {
            role,
            answers: false,
            connections: self.connections,
            threads: serving.threads,
            single_receiver: false,
            shared_receives: None,
            pause_ns: 0,
        };
        // The responder of a ping-pong answers without a pause.
        let pause_ns = if self.kind == Kind::Latency { 0 } else { self.slow_receiver_us * 1000 };
        Cast {
            asking: part(asking),
            answering: Part {
                answers: true,
                threads: match serving.server_threads {
                    _ if serving.single_receiver => 1,
                    0 => serving.threads,
                    threads => threads.min(self.connections),
                },
                single_receiver: serving.single_receiver,
                shared_receives: serving.shared_receives,
                pause_ns,
                ..part(answering)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::Serving;

    #[test]
    fn parameters_name_their_roles() {
        let roles = |parameters: &Parameters| {
            let cast = parameters.cast();
            (cast.asking.role, cast.answering.role)
        };
        let plain = |kind, operation| Parameters::plain(kind, operation, 8);
        for (operation, streaming, timed) in [
            (Operation::Send, (Role::Sender, Role::Receiver), (Role::Requester, Role::Responder)),
            (Operation::RequestResponse, (Role::Requester, Role::Responder), (Role::Requester, Role::Responder)),
            (Operation::Write, (Role::Initiator, Role::Target), (Role::Initiator, Role::Target)),
            (Operation::CompareSwap, (Role::Initiator, Role::Target), (Role::Initiator, Role::Target)),
        ] {
            assert_eq!(roles(&plain(Kind::Bandwidth, operation)), streaming);
            assert_eq!(roles(&plain(Kind::Latency, operation)), timed);
        }
        let stream = plain(Kind::Bandwidth, Operation::Send);
        assert_eq!(roles(&Parameters { bidirectional: true, ..stream.clone() }), (Role::Sender, Role::Sender));
        assert_eq!(roles(&Parameters { replicate: true, ..stream.clone() }), (Role::Source, Role::Reader));
    }

    #[test]
    fn serving_options_apply_to_the_answering_end() {
        let serving = Serving {
            threads: 3,
            single_receiver: true,
            shared_receives: Some(SharedBy::Thread),
            ..Serving::default()
        };
        let parameters = Parameters {
            serving,
            connections: 5,
            slow_receiver_us: 2,
            ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16)
        };
        let Cast { asking, answering } = parameters.cast();
        assert_eq!((asking.connections, asking.threads, asking.pause_ns), (5, 3, 0));
        assert_eq!((asking.single_receiver, asking.shared_receives), (false, None));
        assert_eq!((answering.connections, answering.threads, answering.pause_ns), (5, 1, 2000));
        assert_eq!((answering.single_receiver, answering.shared_receives), (true, Some(SharedBy::Thread)));
    }

    #[test]
    fn the_answering_end_has_threads_of_its_own() {
        let threads = |server_threads| {
            let serving = Serving { threads: 4, server_threads, ..Serving::default() };
            let plain = Parameters::plain(Kind::Bandwidth, Operation::RequestResponse, 16);
            let Cast { asking, answering } = Parameters { serving, connections: 4, ..plain }.cast();
            (asking.threads, answering.threads)
        };
        assert_eq!([0, 1, 3, 9].map(threads), [(4, 4), (4, 1), (4, 3), (4, 4)]);
    }
}
